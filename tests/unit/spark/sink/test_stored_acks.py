"""Acknowledgements that share a reply subject: which of them say that each is another message's."""

import pytest

from jetlake.client.tables.columns.frame_split import split_frames
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
