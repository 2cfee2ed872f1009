"""What a context wrote last, by subject."""

from jetlake.client.publish import publisher
from jetlake.client.publish.publisher import OwnWrites


def test_the_newest_sequence_counts():
    writes = OwnWrites()
    assert writes.newest("a") == 0
    writes.note("a", 5)
    writes.note("a", 3)  # Acknowledged late.
    assert writes.newest("a") == 5
    writes.forget("a")
    writes.forget("a")
    assert writes.newest("a") == 0


def test_the_subjects_written_last_are_kept(monkeypatch):
    monkeypatch.setattr(publisher, "_OWN_WRITES_MAX", 3)
    writes = OwnWrites()
    for sequence, subject in enumerate("abcad", 1):
        writes.note(subject, sequence)
    assert [writes.newest(subject) for subject in "abcd"] == [4, 0, 3, 5]
