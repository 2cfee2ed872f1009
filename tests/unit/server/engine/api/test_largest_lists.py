"""Every request of the API with the longest lists, to a stream with many subjects: no turn does much of the work.

Work is counted in executed lines, and each step of long work is a turn: neither depends on the machine.
"""

import json

import pytest

from jetlake.server.engine.api.api import _HANDLERS
from tests.support.executed_lines import ExecutedLines

LISTED = 2000
SUBJECTS = 6000
LINES_MAX = 15 * LISTED
"""What is done at once for a list must be short for each entry; what takes more than a few lines goes in steps."""
TOTAL_MAX = 1000 * LISTED
"""The whole work of a request grows with its list, not with its square."""


def numbered(pattern, count=LISTED):
    return [pattern.format(number) for number in range(count)]


# Literal subjects, patterns of each of which some subjects are matched by, and patterns whose wildcards come first.
LITERALS = numbered("s.{0}.x")
PATTERNS = numbered("s.{0}.*")
CROSSING = [*numbered("x.a{0}.b", LISTED // 2), *numbered("x.*.c{0}", LISTED // 2)]
COMBINED = [
    ".".join("as"[number >> bit & 1] if number >> bit & 2 else "*" for bit in range(10)) for number in range(2000)
]
# Patterns of which many lead the same way for many tokens, and end differently; and subjects that go such ways.
ENTANGLED = [
    ".".join(["s", *("*" if number >> bit & 1 else "a" for bit in range(20)), str(number)]) for number in range(48)
]
WINDING = [".".join(["s", *("ab"[number >> bit & 1] for bit in range(20)), "none"]) for number in range(64)]
# Fewer: the answer shows each source with its state, and is built at once.
SOURCES = [{"name": name} for name in numbered("n{0}", LISTED // 2)]
OWN = [{"name": "H", "filter_subject": filter_subject} for filter_subject in numbered("i.{0}", LISTED // 8)]
TRANSFORMS = [{"src": f"t{number}.*", "dest": f"u{number}.$1"} for number in range(LISTED)]


def consumer(**config):
    return {"stream_name": "S", "config": {"name": "c", **config}}


def stream(name, **config):
    return {"name": name, **config}


# By verb: subjects and bodies, sent one after the other.
REQUESTS = {
    "INFO": [("INFO", None)],
    "STREAM.CREATE": [
        ("STREAM.CREATE.A", stream("A", subjects=numbered("q.{0}.x"), republish={"src": ">", "dest": "r.>"})),
        ("STREAM.CREATE.B", stream("B", subjects=CROSSING)),
        ("STREAM.CREATE.C", stream("C", sources=[{"name": "O", "subject_transforms": TRANSFORMS}])),
        ("STREAM.CREATE.D", stream("D", mirror={"name": "O", "subject_transforms": TRANSFORMS})),
        ("STREAM.CREATE.F", stream("F", sources=SOURCES)),
        ("STREAM.CREATE.G", stream("G", subjects=[subject.replace("s", "g", 1) for subject in ENTANGLED])),
        ("STREAM.CREATE.H", stream("H", subjects=numbered("h.{0}"), sources=OWN)),
        ("STREAM.CREATE.E", stream("E", subjects=["e"], metadata=dict.fromkeys(numbered("key {0}"), "value"))),
    ],
    "STREAM.UPDATE": [
        ("STREAM.UPDATE.OTHER", stream("OTHER", subjects=["other", *numbered("v.{0}")])),
        ("STREAM.UPDATE.OTHER", stream("OTHER", subjects=["other", *numbered("w.{0}")])),
        ("STREAM.UPDATE.OTHER", stream("OTHER", subjects=numbered("y.*.{0}.>"))),
        ("STREAM.UPDATE.OTHER", stream("OTHER", subjects=numbered("y.{0}.*.>"))),
        ("STREAM.UPDATE.OTHER", stream("OTHER", subjects=["w.*"])),
        ("STREAM.UPDATE.OTHER", stream("OTHER", sources=SOURCES)),
        ("STREAM.UPDATE.OTHER", stream("OTHER", sources=[{"name": name} for name in numbered("m{0}", LISTED // 2)])),
    ],
    "STREAM.DELETE": [
        ("STREAM.CREATE.A", stream("A", subjects=numbered("q.{0}.x"))),
        ("STREAM.DELETE.A", None),
        ("STREAM.CREATE.F", stream("F", sources=SOURCES)),
        ("STREAM.DELETE.F", None),
    ],
    "STREAM.NAMES": [("STREAM.NAMES", {"subject": "s.>"})],
    "STREAM.LIST": [("STREAM.LIST", {"subject": "s.>"})],
    "STREAM.INFO": [("STREAM.INFO.S", {"subjects_filter": "s.*.x", "deleted_details": True})],
    "STREAM.PURGE": [("STREAM.PURGE.S", {"filter": "s.*.x"})],
    "STREAM.MSG.GET": [
        ("STREAM.MSG.GET.S", {"last_by_subj": "s.*.y"}),
        ("STREAM.MSG.GET.S", {"seq": 1, "next_by_subj": "*.*.x"}),
    ],
    "STREAM.MSG.DELETE": [("STREAM.MSG.DELETE.S", {"seq": 5})],
    "STREAM.SNAPSHOT": [("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})],
    "STREAM.RESTORE": [("STREAM.RESTORE.R", {"config": stream("R", subjects=numbered("q.{0}.x"))})],
    "CONSUMER.CREATE": [
        ("CONSUMER.CREATE.S.c", consumer(filter_subjects=LITERALS)),
        ("CONSUMER.CREATE.S.c", consumer(filter_subjects=PATTERNS)),
        ("CONSUMER.CREATE.S.c", consumer(filter_subjects=CROSSING)),
        ("CONSUMER.CREATE.S.c", consumer(filter_subjects=ENTANGLED)),
        ("CONSUMER.CREATE.S.d", consumer(name="d", filter_subjects=PATTERNS, deliver_policy="last")),
        ("CONSUMER.CREATE.S.e", consumer(name="e", filter_subjects=PATTERNS, deliver_policy="last_per_subject")),
        ("CONSUMER.CREATE.S.f", consumer(name="f", backoff=[1] * LISTED, max_deliver=-1, ack_policy="explicit")),
    ],
    "CONSUMER.DURABLE.CREATE": [
        ("CONSUMER.DURABLE.CREATE.S.c", consumer(durable_name="c", filter_subjects=PATTERNS, ack_policy="explicit")),
    ],
    "CONSUMER.INFO": [("CONSUMER.INFO.S.many", None)],
    "CONSUMER.PENDING": [("CONSUMER.PENDING.S.many", None)],
    "CONSUMER.NAMES": [("CONSUMER.NAMES.S", None)],
    "CONSUMER.LIST": [("CONSUMER.LIST.S", None)],
    "CONSUMER.DELETE": [("CONSUMER.DELETE.S.many", None)],
    "CONSUMER.PAUSE": [("CONSUMER.PAUSE.S.many", {"pause_until": "2100-01-01T00:00:00Z"})],
    "CONSUMER.RESET": [("CONSUMER.RESET.S.many", {"seq": 1})],
    "CONSUMER.UNPIN": [("CONSUMER.UNPIN.S.many", {"group": "g"})],
    "DIRECT.GET": [
        ("DIRECT.GET.S", {"multi_last": LITERALS}),
        ("DIRECT.GET.S", {"multi_last": PATTERNS}),
        ("DIRECT.GET.S", {"multi_last": COMBINED}),
        ("DIRECT.GET.S", {"multi_last": ENTANGLED}),
        ("DIRECT.GET.S", {"last_by_subj": "s.*.y"}),
        ("DIRECT.GET.S", {"next_by_subj": "*.*.x", "batch": 10}),
    ],
}


def test_every_request_is_there():
    assert REQUESTS.keys() == _HANDLERS.keys() | {"DIRECT.GET"}


@pytest.fixture
def large(make_harness):
    harness = make_harness()
    harness.create(name="O", subjects=["o"])
    harness.create(name="OTHER", subjects=["other"])
    harness.create(allow_direct=True)
    harness.api("CONSUMER.CREATE.S.many", consumer(name="many", filter_subjects=PATTERNS))
    for number in range(SUBJECTS):
        harness.publish(f"s.{number}.{'y' if number < 100 else 'x'}")
    for subject in WINDING:
        harness.publish(subject)
    harness.turn()
    harness.engine.long_work.slice_ns = 0
    return harness


@pytest.mark.parametrize("verb", REQUESTS)
def test_no_turn_does_much_of_the_work(large, verb):
    for subject, body in REQUESTS[verb]:
        lines = ExecutedLines()
        payload = json.dumps(body).encode() if body is not None else b""
        large.client.take()
        lines.during(lambda: large.publish(f"$JS.API.{subject}", payload, reply=b"_INBOX.a"))  # noqa: B023
        while large.engine.has_ready():
            lines.during(large.engine.flush)
        (*_, answer) = large.client.take()
        if answer.payload.startswith(b"{") and verb != "CONSUMER.UNPIN":
            assert "error" not in json.loads(answer.payload), (subject, answer.payload)
        assert lines.most <= LINES_MAX, subject
        assert lines.total <= TOTAL_MAX, subject
