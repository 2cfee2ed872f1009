"""What changes in a message when it is copied."""

import pytest

from jetlake.model.stream import SubjectTransform
from jetlake.server.engine.sourcing import copies
from jetlake.server.engine.sourcing.copies import Renaming, without_conditions


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


def test_the_first_transform_that_matches_renames():
    renaming = Renaming([SubjectTransform(src="a.*", dest="x.$1"), SubjectTransform(src="a.>", dest="y.>")])
    assert [renaming.apply(subject) for subject in (b"a.1", b"a.1.2", b"b")] == [b"x.1", b"y.1.2", b"b"]
    assert not Renaming([])


def test_a_subject_gets_the_same_new_subject_again_unless_it_is_drawn(monkeypatch):
    monkeypatch.setattr(copies, "_RENAMED_MAX", 3)
    renaming = Renaming([SubjectTransform(src="a.*", dest="x.$1")])
    for number in [*range(5), *range(5)]:
        assert renaming.apply(b"a.%d" % number) == b"x.%d" % number
        assert renaming.apply(b"b.%d" % number) == b"b.%d" % number
        assert len(renaming._renamed) <= 3
    drawn = Renaming([SubjectTransform(src="a.*", dest="x.{{Random(1000000)}}")])
    assert len({drawn.apply(b"a.b") for _ in range(20)}) > 1
