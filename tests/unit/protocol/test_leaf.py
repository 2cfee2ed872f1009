"""The wire between servers: every form of a message, interest, and whatever else may come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol.frames import Connect, Err, Info, LeafMsg, LeafSub, LeafUnsub, Ok, Ping, Pong
from jetlake.protocol.leaf import LeafParser, leaf_msg, leaf_sub, leaf_unsub
from jetlake.protocol.parser import GeneralParser

MESSAGES = [
    (b"LMSG a.b 2\r\nhi\r\n", LeafMsg(b"a.b", b"", (), b"", b"hi")),
    (b"LMSG a.b r 2\r\nhi\r\n", LeafMsg(b"a.b", b"r", (), b"", b"hi")),
    (b"LMSG a.b | q 2\r\nhi\r\n", LeafMsg(b"a.b", b"", (b"q",), b"", b"hi")),
    (b"LMSG a.b | q1 q2 2\r\nhi\r\n", LeafMsg(b"a.b", b"", (b"q1", b"q2"), b"", b"hi")),
    (b"LMSG a.b + r q1 q2 2\r\nhi\r\n", LeafMsg(b"a.b", b"r", (b"q1", b"q2"), b"", b"hi")),
    (b"HMSG a.b 3 5\r\nHHHhi\r\n", LeafMsg(b"a.b", b"", (), b"HHH", b"hi")),
    (b"HMSG a.b r 3 5\r\nHHHhi\r\n", LeafMsg(b"a.b", b"r", (), b"HHH", b"hi")),
    (b"HMSG a.b | q 3 5\r\nHHHhi\r\n", LeafMsg(b"a.b", b"", (b"q",), b"HHH", b"hi")),
    (b"HMSG a.b + r q1 q2 3 5\r\nHHHhi\r\n", LeafMsg(b"a.b", b"r", (b"q1", b"q2"), b"HHH", b"hi")),
]
OTHERS = [
    (b"LS+ a.*\r\n", LeafSub(b"a.*", b"", 1)),
    (b"LS+ a q 3\r\n", LeafSub(b"a", b"q", 3)),
    (b"LS- a.*\r\n", LeafUnsub(b"a.*", b"")),
    (b"LS- a q\r\n", LeafUnsub(b"a", b"q")),
    (b"PING\r\n", Ping()),
    (b"PONG\r\n", Pong()),
    (b"+OK\r\n", Ok()),
    (b"-ERR 'no'\r\n", Err("no")),
    (b'INFO {"a":1} \r\n', Info(b'{"a":1}')),
    (b"CONNECT {}\r\n", Connect(b"{}")),
]
BROKEN = [
    b"LMSG\r\n",
    b"LMSG a\r\n",
    b"LMSG a | 2\r\nhi\r\n",
    b"LMSG a + 2\r\nhi\r\n",
    b"LMSG a + r 2\r\nhi\r\n",
    b"LMSG a r q 2\r\nhi\r\n",
    b"LMSG a x\r\n",
    b"HMSG a 5\r\nhello\r\n",
    b"HMSG a 6 5\r\nhello\r\n",
    b"LS+\r\n",
    b"LS+ a q\r\n",
    b"LS+ a q x\r\n",
    b"LS- a q 1\r\n",
    b"SUB a 1\r\n",
    b"PUB a 0\r\n\r\n",
]


@pytest.mark.parametrize(("data", "frame"), MESSAGES + OTHERS)
def test_frames(data, frame):
    parser = LeafParser()
    assert parser.feed(data) == [frame]
    assert parser.error is None


@pytest.mark.parametrize(("data", "frame"), MESSAGES)
def test_messages_are_encoded_as_they_are_read(data, frame):
    assert leaf_msg(frame.subject, frame.reply, frame.queues, frame.header, frame.payload) == data


def test_interest_is_encoded_with_its_weight():
    assert leaf_sub(b"a", b"", 3) == b"LS+ a\r\n"
    assert leaf_sub(b"a", b"q", 3) == b"LS+ a q 3\r\n"
    assert leaf_sub(b"a", b"q", 0) == leaf_unsub(b"a", b"q") == b"LS- a q\r\n"
    assert leaf_sub(b"a", b"", 0) == b"LS- a\r\n"


@pytest.mark.parametrize("data", BROKEN)
def test_what_is_no_frame_ends_the_connection(data):
    parser = LeafParser()
    assert parser.feed(b"PING\r\n" + data) == [Ping()]
    assert parser.error is not None
    assert parser.feed(b"PING\r\n") == []


def test_limits():
    parser = LeafParser(max_payload=4)
    parser.feed(b"LMSG a 5\r\n")
    assert parser.error.text == "Maximum Payload Violation"
    parser = LeafParser(max_control_line=8)
    parser.feed(b"LS+ " + b"a" * 9)
    assert parser.error.text == "maximum control line exceeded"


class PlainLeafParser(LeafParser):
    """Without the fast loop."""

    _scan = GeneralParser._scan


PIECES = st.sampled_from([data for data, _ in MESSAGES + OTHERS] + BROKEN) | st.binary(max_size=12)


@given(st.lists(PIECES, max_size=6).map(b"".join), st.lists(st.integers(1, 9), max_size=30))
def test_the_same_frames_however_the_reads_cut_them(data, sizes):
    whole, plain, pieces = LeafParser(), PlainLeafParser(), LeafParser()
    frames = whole.feed(data)
    assert plain.feed(data) == frames
    assert (plain.error is None) == (whole.error is None)
    found, position = [], 0
    for size in [*sizes, len(data)]:
        found += pieces.feed(data[position : position + size])
        position += size
    assert found == frames
    assert (pieces.error is None) == (whole.error is None)
