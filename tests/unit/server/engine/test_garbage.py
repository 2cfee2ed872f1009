"""Garbage in requests, headers and subjects: an answer or silence, never an exception, never a lost message."""

import json
from string import ascii_letters

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlake.model.api import ROUTES
from jetlake.model.requests import DirectGetRequest, MessageGetRequest, StreamCreateRequest, StreamPurgeRequest

FIELDS = sorted(
    {
        field
        for kind in (StreamCreateRequest, StreamPurgeRequest, MessageGetRequest, DirectGetRequest)
        for field in kind.__struct_fields__
    }
)
HEADER_KEYS = [
    "Nats-Msg-Id",
    "Nats-Expected-Stream",
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Subject-Sequence-Subject",
    "Nats-Expected-Last-Msg-Id",
    "Nats-Rollup",
    "Nats-TTL",
    "Nats-Incr",
    "Nats-Schedule",
    "Nats-Batch-Id",
    "Nats-Required-Api-Level",
    "Other",
]

numbers = st.integers(-(2**65), 2**65) | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64 - 1])
words = st.sampled_from(
    ["", "a.>", "S", "s.*", "..", ">", "*", "new", "file", "none", "2026-02-30T00:00:00Z", "\x00", "é"]
)
leaves = st.none() | st.booleans() | numbers | words | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=5
)
bodies = (
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=6).map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(FIELDS), values, max_size=6).map(
        lambda value: json.dumps({"name": "S", **value}).encode()
    )
    | values.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=60)
    | st.just(b"[" * 5000)
)
tokens = st.sampled_from(["S", "T", "*", ">", "a b", "é", "", "x" * 300]) | st.text(
    ascii_letters + ".$*>/\\", max_size=12
)
subjects = st.builds(
    lambda verb, names: ".".join(["$JS.API", verb, *names]).encode("utf-8", "replace"),
    st.sampled_from([*ROUTES, "DIRECT.GET", "BOGUS", ""]),
    st.lists(tokens, max_size=3),
)
header_blocks = st.one_of(
    st.just(b""),
    st.lists(st.tuples(st.sampled_from(HEADER_KEYS), words | st.text(max_size=10)), max_size=4).map(
        lambda pairs: b"NATS/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in pairs).encode() + b"\r\n"
    ),
    st.binary(max_size=40),
)


def kept(harness):
    stream = harness.jetstream.streams["KEPT"]
    return [stream.store.get(sequence).payload for sequence in (1, 2, 3)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(subjects, bodies, header_blocks), min_size=1, max_size=8))
def test_requests(make_harness, requests):
    harness = make_harness()
    harness.create("KEPT", subjects=["kept"])
    for number in range(3):
        harness.store("kept", b"%d" % number)
    for subject, body, header in requests:
        if b"KEPT" not in subject:
            harness.publish(subject, body, header, reply=b"_INBOX.x")
            harness.turn()
            for frame in harness.client.take():
                if not frame.header:
                    json.loads(frame.payload)
    assert kept(harness) == [b"0", b"1", b"2"]
    assert harness.store("kept", b"3") == {"stream": "KEPT", "seq": 4}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(tokens, header_blocks, st.binary(max_size=30)), min_size=1, max_size=20))
def test_messages(make_harness, messages):
    harness = make_harness()
    stream = harness.create(allow_rollup_hdrs=True, allow_direct=True)
    sequences = []
    for token, header, payload in messages:
        frames = harness.request(("s." + token).encode("utf-8", "replace"), payload, header)
        for frame in frames:
            if frame.header:
                continue  # 503: a subject that no stream can have
            answer = json.loads(frame.payload)
            if "error" not in answer and not answer.get("duplicate"):
                sequences.append(answer["seq"])
    assert sequences == sorted(set(sequences))
    assert stream.store.last_sequence == (sequences[-1] if sequences else 0)
    harness.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})
    harness.request("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 100})
