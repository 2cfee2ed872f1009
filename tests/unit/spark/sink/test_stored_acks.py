"""Acknowledgements that share a reply subject: which of them say that each is another message's."""

import pytest

from jetlake.client.tables.frames import split_frames
from jetlake.spark.sink.stored_acks import StoredAcks


def ack(sequence, stream="S", more=""):
    return f'{{"stream":"{stream}","seq":{sequence}{more}}}'


def read(acks, *answers):
    """Let one read of the socket bring these answers."""
    frames = []
    for answer in answers:
        if isinstance(answer, bytes):
            frames.append(b"HMSG i.0 3 %d %d\r\n%b\r\n" % (len(answer), len(answer), answer))
        else:
            frames.append(f"MSG i.0 3 {len(answer)}\r\n{answer}\r\n".encode())
    data = bytearray(b"".join(frames))
    return acks.are_clear(data, split_frames(data, len(data)))


@pytest.mark.parametrize("more", ["", ',"domain":"hub"'])
def test_ascending_sequences_of_one_stream_are_clear(more):
    acks = StoredAcks()
    assert read(acks, *[ack(sequence, more=more) for sequence in (9, 10, 11)])
    assert read(acks, *[ack(sequence, more=more) for sequence in (120, 1300)])
    assert acks.stream == "S"


REFUSAL = '{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}'
NO_ACKS = ["", "+OK", ack(""), ack("1x"), REFUSAL, ack(12, more=',"duplicate": true'), b"NATS/1.0 503\r\n\r\n"]


@pytest.mark.parametrize("answer", NO_ACKS)
def test_what_does_not_say_that_a_message_was_stored_is_not(answer):
    assert not read(StoredAcks(), answer)
    acks = StoredAcks()
    assert read(acks, ack(10))
    assert not read(acks, ack(11), answer, ack(12))


@pytest.mark.parametrize(
    "answer", [ack(10), ack(9), ack(12, stream="T"), ack(12, stream="SS"), ack(12, more=',"domain":"hub"')]
)
def test_what_may_be_about_the_same_message_is_not(answer):
    acks = StoredAcks()
    assert read(acks, ack(10))
    assert not read(acks, answer, ack(13))


def frames(*answers, subject="i.0"):
    return "".join(f"MSG {subject} 3 {len(answer)}\r\n{answer}\r\n" for answer in answers).encode()


def runs(acks, data):
    """Read all runs at the beginning; returns their subjects and lengths, and what is left."""
    buffer = bytearray(data)
    found, end = [], 0
    while (run := acks.read_run(buffer, end, len(buffer))) is not None:
        found.append((run.subject.decode(), run.answers))
        end = run.end
    return found, bytes(buffer[end:])


@pytest.mark.parametrize("more", ["", ',"domain":"hub"'])
def test_answers_that_differ_in_their_sequences_alone_are_runs(more):
    acks = StoredAcks()
    assert runs(acks, frames(ack(1, more=more))) == ([], frames(ack(1, more=more)))  # nothing is known of the stream
    assert read(acks, ack(1, more=more))
    data = frames(*[ack(sequence, more=more) for sequence in (2, 4, 5, 98, 99)])
    data += frames(ack(100, more=more), ack(123456789012345678, more=more), subject="i.1024")
    assert runs(acks, data + b"MSG i.0 3 2") == ([("i.0", 3), ("i.0", 2), ("i.1024", 1), ("i.1024", 1)], b"MSG i.0 3 2")


@pytest.mark.parametrize("cut", range(1, len(frames(ack(11)))))
def test_an_answer_that_is_not_whole_is_left(cut):
    acks = StoredAcks()
    assert read(acks, ack(10))
    whole = frames(ack(11))
    assert runs(acks, whole + frames(ack(12))[:-cut]) == ([("i.0", 1)], frames(ack(12))[:-cut])


@pytest.mark.parametrize("answer", [a for a in NO_ACKS if isinstance(a, str)] + [ack(10), ack(9), ack(12, stream="T")])
def test_what_is_not_clear_ends_the_runs(answer):
    acks = StoredAcks()
    assert read(acks, ack(10))
    # A run is clear as a whole or not at all: who takes its answers apart finds the one that is not.
    _, left = runs(acks, frames(ack(11)) + frames(answer, ack(14)))
    assert left.endswith(frames(answer, ack(14)))
    assert not read(acks, answer, ack(14))


@pytest.mark.parametrize(
    "data", [b"", b"PING\r\n", b"MSG\r\n", b"-ERR 'x'\r\n", b"MSG i.0 3 x\r\n", b"MSG i.0 3 0\r\n\r\n"]
)
def test_other_lines_are_no_run(data):
    acks = StoredAcks()
    assert read(acks, ack(10))
    assert runs(acks, data) == ([], data)
