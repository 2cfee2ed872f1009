"""Lines of deliveries that have one form are read at once; whatever else comes is left to the general way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.client.tables.frames import split_frames
from jetlake.client.tables.message_columns import columns_of_deliveries, read_uniform_lines
from jetlake.errors import ProtocolError

TIME = 1794732209518069683


def frames(*lines):
    return bytearray(b"".join(b"MSG %b 2\r\nab\r\n" % line for line in lines))


def line(sequence, pending=70, subject=b"orders.new", head=b"12 $JS.ACK.S.c.1", tail=b""):
    return b"%b %b.%d.%d.%d.%d%b" % (subject, head, sequence, sequence, TIME + sequence, pending, tail)


def read(*lines):
    data = frames(*lines)
    return read_uniform_lines(data + bytes(8), split_frames(data, len(data)), "S", "c")


@pytest.mark.parametrize("head", [b"12 $JS.ACK.S.c.1", b"7 $JS.ACK._.szMpdrwD.S.c.1", b"100 $JS.ACK.hub.x.S.c.23"])
@pytest.mark.parametrize("tail", [b"", b".more.tokens"])
@pytest.mark.parametrize("first", [1, 12345677, 99_999_990, 123_456_789, 1_234_567_890_123_456_780])
def test_lines_of_one_form_are_read_at_once(head, tail, first):
    subjects = [b"a", b"orders.new", b"x" * 200]
    lines = [line(first + n, 70 - n, subject, head, tail) for n, subject in enumerate(subjects)]
    found = read(*lines)
    assert found is not None
    assert found.sequence.tolist() == [first, first + 1, first + 2]
    assert found.time_ns.tolist() == [TIME + first, TIME + first + 1, TIME + first + 2]
    assert found.pending == 68
    data = frames(*lines)
    ends = zip(split_frames(data, len(data)).subject.tolist(), found.subject_end.tolist(), strict=True)
    assert [bytes(data[start:end]) for start, end in ends] == subjects


@pytest.mark.parametrize(
    "other",
    [
        line(9, 70),
        line(100, 70),
        line(11, 7),
        line(11, 700),
        line(11, head=b"13 $JS.ACK.S.c.1"),
        line(11, head=b"12 $JS.ACK.S.d.1"),
        line(11, head=b"12 $JS.ACK.S.c.12"),
        line(11, tail=b".1"),
        line(11).replace(b".11.11.", b".1a.11."),
        line(11).replace(b".11.11.", b".11.1.1"),
        line(11).replace(b"%d" % (TIME + 11), b"17947322095180696:4"),
        b"_INBOX.status 12",
    ],
)
def test_a_line_of_another_form_is_left_to_the_general_way(other):
    assert read(line(10), line(11), line(12)) is not None
    for lines in ([line(10), other, line(12)], [other, line(10)], [line(10), other]):
        assert read(*lines) is None


@pytest.mark.parametrize("times", [(TIME, 1, TIME), (TIME, TIME // 2, TIME + 9), (TIME, TIME, TIME), (TIME, 0, 1)])
def test_times_that_go_back_and_forth_are_read_at_once(times):
    lines = [b"a 12 $JS.ACK.S.c.1.%d.7.%019d.70" % (10 + n, time) for n, time in enumerate(times)]
    found = read(*lines)
    assert found is not None
    assert found.time_ns.tolist() == list(times)
    assert found.sequence.tolist() == [10, 11, 12]


def test_a_sequence_of_more_than_64_bits_is_no_sequence():
    huge = [b"a 12 $JS.ACK.S.c.1.%d.7.%d.70" % (10**19 - 2 + n, TIME) for n in (0, 1)]
    found = read(*huge)
    assert found is not None
    assert (found.sequence < 0).all()  # which the reader takes for out of order


def test_a_reply_that_is_none_is_an_error_wherever_it_stands():
    data = frames(line(10), b"orders.new 12 " + b"x" * (len(line(11)) - 14), line(12))
    with pytest.raises(ProtocolError):
        columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")


digits = st.integers(0, 3).flatmap(lambda size: st.integers(10**size, 10 ** (size + 1) - 1))


@settings(max_examples=200)
@given(st.lists(st.tuples(digits, digits, st.binary(min_size=1, max_size=3).map(bytes.hex)), min_size=1, max_size=5))
def test_what_is_read_at_once_is_what_the_lines_say(messages):
    found = read(*(line(number, pending, subject.encode()) for number, pending, subject in messages))
    same_form = len({(len(str(number)), len(str(pending))) for number, pending, _ in messages}) == 1
    assert (found is not None) == same_form
    if found is not None:
        assert found.sequence.tolist() == [number for number, _, _ in messages]
        assert found.time_ns.tolist() == [TIME + number for number, _, _ in messages]
        assert found.pending == messages[-1][1]
