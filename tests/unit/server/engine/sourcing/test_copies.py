"""What changes in a message when it is copied."""

import pytest

from jetlake.model.stream import SubjectTransform
from jetlake.server.engine.sourcing import copies
from jetlake.server.engine.sourcing.copies import Renaming, without_conditions
from jetlake.store.steps import finish
from tests.support.executed_lines import ExecutedLines


def block(*lines):
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (block(b"A: b"), block(b"A: b")),
        (block(b"Nats-Expected-Stream: S"), b""),
        (block(b"A: b", b"Nats-Batch-Id: x", b"Nats-Batch-Sequence: 1", b"C: d"), block(b"A: b", b"C: d")),
        (block(b"Nats-Msg-Id: 1", b"Nats-Expected-Last-Sequence: 0"), block(b"Nats-Msg-Id: 1")),
        (block(b"A: Nats-Expected-Stream: S"), block(b"A: Nats-Expected-Stream: S")),
    ],
)
def test_conditions_are_stripped(before, after):
    assert without_conditions(before) == after


def prepared(transforms):
    renaming = Renaming(transforms)
    finish(renaming.prepare())
    return renaming


def test_the_first_transform_that_matches_renames():
    renaming = prepared([SubjectTransform(src="a.*", dest="x.$1"), SubjectTransform(src="a.>", dest="y.>")])
    assert [renaming.apply(subject) for subject in (b"a.1", b"a.1.2", b"b")] == [b"x.1", b"y.1.2", b"b"]
    assert not Renaming([])


def test_a_subject_gets_the_same_new_subject_again_unless_it_is_drawn(monkeypatch):
    monkeypatch.setattr(copies, "_RENAMED_MAX", 3)
    renaming = prepared([SubjectTransform(src="a.*", dest="x.$1")])
    for number in [*range(5), *range(5)]:
        assert renaming.apply(b"a.%d" % number) == b"x.%d" % number
        assert renaming.apply(b"b.%d" % number) == b"b.%d" % number
        assert len(renaming._renamed) <= 3
    drawn = prepared([SubjectTransform(src="a.*", dest="x.{{Random(1000000)}}")])
    assert len({drawn.apply(b"a.b") for _ in range(20)}) > 1


@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_many_transforms_are_prepared_in_steps(make_harness, kind):
    harness = make_harness()
    harness.create(name="O", subjects=["t.>"])
    transforms = [{"src": f"t.{number}", "dest": f"u.{number}"} for number in range(3000)]
    origin = {"name": "O", "subject_transforms": transforms}
    copies = {"mirror": origin, "subjects": None} if kind == "mirror" else {"sources": [origin], "subjects": None}
    stream = harness.create(name="C", **copies)
    harness.advance(1)
    harness.publish("t.2999", b"x")
    lines = ExecutedLines()
    while not stream.store.messages:
        lines.during(harness.engine.flush)
    assert stream.store.get(1).subject == b"u.2999"
    assert lines.most < 3000
    assert sum(1 for _ in Renaming([SubjectTransform(**transform) for transform in transforms]).prepare()) > 40
