"""Each verb to bytes, and back through the parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol import encoder
from jetlake.protocol.frames import Connect, Err, Info, Msg, Ok, Ping, Pong, Pub, Sub, Unsub
from jetlake.protocol.headers import encode_headers
from jetlake.protocol.parser import ClientParser, ServerParser

TOKENS = st.text("abcXYZ019._$*>-", min_size=1, max_size=12).map(str.encode)
PAYLOADS = st.binary(max_size=100) | st.integers(0, 10_000).map(bytes)


def test_the_bytes_of_each_verb():
    assert encoder.pub(b"a", b"", b"hi") == b"PUB a 2\r\nhi\r\n"
    assert encoder.pub(b"a", b"r", b"hi") == b"PUB a r 2\r\nhi\r\n"
    assert encoder.hpub(b"a", b"", b"HH", b"hi") == b"HPUB a 2 4\r\nHHhi\r\n"
    assert encoder.hpub(b"a", b"r", b"HH", b"hi") == b"HPUB a r 2 4\r\nHHhi\r\n"
    assert encoder.msg(b"a", b"1", b"", b"hi") == b"MSG a 1 2\r\nhi\r\n"
    assert encoder.msg(b"a", b"1", b"r", b"hi") == b"MSG a 1 r 2\r\nhi\r\n"
    assert encoder.hmsg(b"a", b"1", b"", b"HH", b"hi") == b"HMSG a 1 2 4\r\nHHhi\r\n"
    assert encoder.hmsg(b"a", b"1", b"r", b"HH", b"hi") == b"HMSG a 1 r 2 4\r\nHHhi\r\n"
    assert encoder.sub(b"a", b"", b"1") == b"SUB a 1\r\n"
    assert encoder.sub(b"a", b"q", b"1") == b"SUB a q 1\r\n"
    assert encoder.unsub(b"1") == b"UNSUB 1\r\n"
    assert encoder.unsub(b"1", 5) == b"UNSUB 1 5\r\n"
    assert encoder.connect(b"{}") == b"CONNECT {}\r\n"
    assert encoder.info(b"{}") == b"INFO {} \r\n"
    assert encoder.err("Stale Connection") == b"-ERR 'Stale Connection'\r\n"
    assert encoder.PING == b"PING\r\n"
    assert encoder.PONG == b"PONG\r\n"
    assert encoder.OK == b"+OK\r\n"


@given(TOKENS, TOKENS, st.just(b"") | TOKENS, st.binary(max_size=50), PAYLOADS, st.integers(0, 10**9 - 1))
def test_the_parser_reads_what_the_encoder_writes(subject, sid, optional, header, payload, count):
    to_server = {
        encoder.pub(subject, optional, payload): Pub(subject, optional, b"", payload),
        encoder.hpub(subject, optional, header, payload): Pub(subject, optional, header, payload),
        encoder.sub(subject, optional, sid): Sub(subject, optional, sid),
        encoder.unsub(sid, count): Unsub(sid, count),
        encoder.connect(b'{"a":1}'): Connect(b'{"a":1}'),
        encoder.PING: Ping(),
        encoder.PONG: Pong(),
    }
    to_client = {
        encoder.msg(subject, sid, optional, payload): Msg(subject, sid, optional, b"", payload),
        encoder.hmsg(subject, sid, optional, header, payload): Msg(subject, sid, optional, header, payload),
        encoder.info(b'{"a":1}'): Info(b'{"a":1}'),
        encoder.err("it's 'bad'"): Err("it's 'bad'"),
        encoder.OK: Ok(),
    }
    for parser, frames in ((ServerParser(), to_server), (ClientParser(), to_client)):
        assert parser.feed(b"".join(frames)) == list(frames.values())
        assert parser.error is None


def test_a_complaint_is_one_line():
    assert encoder.err("a\r\nPING") == b"-ERR 'a\\r\\nPING'\r\n"
    assert encoder.err("\ud800") == b"-ERR '\\ud800'\r\n"


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 4098, 100_000])
def test_sizes_beyond_the_prepared_ones(size):
    assert encoder.pub(b"a", b"", bytes(size)).startswith(b"PUB a %d\r\n" % size)
    assert encoder.hpub(b"a", b"", b"H", bytes(size)).startswith(b"HPUB a 1 %d\r\n" % (size + 1))


@pytest.mark.parametrize("sizes", [[0], [3, 0, 2047], [1, 2048, 2], [100_000] * 2, [5] * 3])
@pytest.mark.parametrize("is_one_subject", [True, False])
def test_a_run_is_its_frames(sizes, is_one_subject):
    payloads = [b"x" * size for size in sizes]
    subjects = [b"s.%d" % (0 if is_one_subject else number) for number in range(len(sizes))]
    numbers = [b"%03d" % number for number in range(len(sizes))]
    frames = map(encoder.pub, subjects, [b"_INBOX.7" + number for number in numbers], payloads)
    assert encoder.pub_run(subjects, b"_INBOX.7", numbers, payloads) == b"".join(frames)


def test_templates_are_what_the_functions_encode():
    assert encoder.msg(b"a", b"1", b"", b"xy") == encoder.MSG_FRAME % (b"a", b"1", 2, b"xy")
    assert encoder.msg(b"a", b"1", b"r", b"xy") == encoder.MSG_REPLY_FRAME % (b"a", b"1", b"r", 2, b"xy")
    assert encoder.hmsg(b"a", b"1", b"", b"h", b"xy") == encoder.HMSG_FRAME % (b"a", b"1", 1, 3, b"h", b"xy")
    assert encoder.hmsg(b"a", b"1", b"r", b"h", b"xy") == encoder.HMSG_REPLY_FRAME % (
        b"a",
        b"1",
        b"r",
        1,
        3,
        b"h",
        b"xy",
    )
    assert encoder.pub(b"r", b"", b"+ACK") == encoder.ACK_FRAME % b"r"
    assert encoder.pub_each([b"r", b"s"], b"+ACK") == encoder.ACK_FRAME % b"r" + encoder.ACK_FRAME % b"s"
    assert encoder.status(b"404 No Messages") == encode_headers(status=404, description="No Messages")
    assert encoder.status(b"408 X", b"K: v\r\n") == encode_headers({"K": "v"}, 408, "X")
