"""When a read has all that there was, whatever its server counts."""

from jetlake.client.messages.message import Message
from jetlake.client.ordered.watch import Snapshot, SnapshotProgress

READING, UNSURE, COMPLETE = SnapshotProgress.READING, SnapshotProgress.UNSURE, SnapshotProgress.COMPLETE


def message(subject, stream_seq, pending):
    reply = f"$JS.ACK.S.C.1.{stream_seq}.{stream_seq}.1790000000000000000.{pending}"
    return Message(subject.encode(), b"1", reply.encode(), b"", b"")


def test_a_quiet_stream_is_asked_nothing():
    snapshot = Snapshot(3, one_per_subject=True)
    taken = [snapshot.take(message(f"s.{number}", number, 3 - number)) for number in (1, 2, 3)]
    assert taken == [READING, READING, COMPLETE]


def test_a_count_that_is_zero_too_early_is_not_believed():
    snapshot = Snapshot(3, one_per_subject=True)
    first = message("s.1", 1, 0)
    assert snapshot.take(first) is UNSURE
    assert snapshot.set_end(9, first) is READING
    assert snapshot.take(message("s.2", 7, 0)) is READING
    assert snapshot.take(message("s.3", 9, 0)) is COMPLETE


def test_a_newer_message_of_a_subject_stands_for_no_other_subject():
    snapshot = Snapshot(2, one_per_subject=True)
    first = message("s.1", 5, 0)
    assert snapshot.take(first) is UNSURE
    assert snapshot.set_end(6, first) is READING
    again = message("s.1", 6, 0)
    assert snapshot.take(again) is UNSURE
    assert snapshot.set_end(8, again) is READING
    assert snapshot.take(message("s.2", 8, 0)) is COMPLETE
    history = Snapshot(2, one_per_subject=False)
    assert [history.take(message("s.1", number, 2 - number)) for number in (1, 2)] == [READING, COMPLETE]


def test_what_is_missing_for_good_is_not_waited_for():
    purged = Snapshot(3, one_per_subject=True)
    last = message("s.3", 7, 0)
    assert purged.take(last) is UNSURE
    assert purged.set_end(7, last) is COMPLETE
    # Others write on and on.
    busy, ends, sequence = Snapshot(3, one_per_subject=True), 0, 0
    while True:
        sequence += 1
        written = message("s.1", sequence, 5 if ends else 0)
        progress = busy.take(written)
        if progress is COMPLETE:
            break
        if progress is UNSURE:
            assert busy.set_end(sequence + 3, written) is READING
            ends += 1
    assert ends == 8


def test_a_writer_that_is_never_caught_up_with_holds_up_nobody():
    snapshot = Snapshot(2, one_per_subject=True)
    assert snapshot.take(message("s.1", 1, 70)) is READING
    second = message("s.2", 2, 80)
    assert snapshot.take(second) is UNSURE
    assert snapshot.set_end(4, second) is READING
    assert [snapshot.take(message("s.1", number, 90)) for number in (3, 4)] == [READING, COMPLETE]
