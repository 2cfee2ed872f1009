"""However messages fall into batches, the stream and its answers are the same as one by one."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

headers = st.one_of(
    st.none(),
    st.none(),
    st.just({"Own": "header"}),
    st.integers(1, 6).map(lambda number: {"Nats-Msg-Id": f"id-{number}"}),
    st.integers(1, 6).map(lambda number: {"Own": "header", "Nats-Msg-Id": f"id-{number}"}),
    st.integers(0, 8).map(lambda number: {"Nats-Expected-Last-Sequence": str(number)}),
    st.integers(0, 8).map(lambda number: {"Nats-Expected-Last-Subject-Sequence": str(number)}),
    st.integers(1, 6).map(lambda number: {"Nats-Expected-Last-Msg-Id": f"id-{number}"}),
    st.sampled_from(["sub", "all"]).map(lambda kind: {"Nats-Rollup": kind}),
)
messages = st.lists(
    st.tuples(st.sampled_from(["s.a", "s.b", "s.c"]), headers, st.integers(0, 120), st.booleans()),
    min_size=1,
    max_size=30,
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "max_msgs": st.integers(1, 5),
        "max_bytes": st.integers(50, 400),
        "max_msgs_per_subject": st.integers(1, 3),
        "discard": st.sampled_from(["old", "new"]),
        "max_msg_size": st.integers(50, 100),
    },
)


def run(harness, config, batches):
    """Publish the batches, each in one cycle; all answers by reply, and what the stream holds then."""
    stream = harness.create(allow_rollup_hdrs=True, **config)
    number = 0
    answers = {}
    for batch in batches:
        for subject, header, size, wants_answer in batch:
            number += 1
            reply = b"_INBOX.n.%d" % number if wants_answer else b""
            harness.publish(subject, b"%d" % number + b"x" * size, header, reply=reply)
        harness.turn()
        for frame in harness.client.take():
            answers[frame.subject] = json.loads(frame.payload)
    store = stream.store
    held = [store.get(sequence) for sequence in range(1, store.last_sequence + 1)]
    contents = [message and (message.sequence, message.subject, message.header, message.payload) for message in held]
    return answers, contents, harness.state() | {"first_ts": "", "last_ts": ""}, stream.ids.last


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs, messages, st.integers(1, 7))
def test_batches_change_nothing(make_harness, config, messages, size):
    batches = [messages[start : start + size] for start in range(0, len(messages), size)]
    assert run(make_harness(), config, batches) == run(make_harness(), config, [[message] for message in messages])


def test_a_duplicate_within_a_batch_is_one(harness):
    harness.create()
    for number, name in enumerate(["a", "b", "a", "c", "b"]):
        harness.publish("s.x", b"", {"Nats-Msg-Id": name}, reply=b"_INBOX.n.%d" % number)
    harness.turn()
    answers = {frame.subject[-1:]: frame.payload for frame in harness.client.take()}
    assert answers == {
        b"0": b'{"stream":"S","seq":1}',
        b"1": b'{"stream":"S","seq":2}',
        b"2": b'{"stream":"S","seq":1,"duplicate": true}',
        b"3": b'{"stream":"S","seq":3}',
        b"4": b'{"stream":"S","seq":2,"duplicate": true}',
    }


def test_a_message_that_is_replaced_in_its_batch_has_pushed_others_out(make_harness):
    config = {"max_bytes": 120, "max_msgs_per_subject": 1}
    published = [("s.b", None, 0, False), ("s.a", None, 100, False), ("s.a", None, 0, False)]
    apart = run(make_harness(), config, [[message] for message in published])
    assert run(make_harness(), config, [published]) == apart
    assert [message and message[0] for message in apart[1]] == [None, None, 3]


def test_a_message_that_is_rolled_up_in_its_batch_has_pushed_others_out(make_harness):
    published = [("s.b", None, 0, False), ("s.a", None, 100, False), ("s.a", {"Nats-Rollup": "sub"}, 0, False)]
    apart = run(make_harness(), {"max_bytes": 120}, [[message] for message in published])
    assert run(make_harness(), {"max_bytes": 120}, [published]) == apart
    assert [message and message[0] for message in apart[1]] == [None, None, 3]
