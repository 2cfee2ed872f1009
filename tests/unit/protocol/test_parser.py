"""The parser by example: every verb, every limit, and the answers that nats-server 2.15.1 gives to broken input."""

import tracemalloc

import pytest

from jetlake.errors import ProtocolError
from jetlake.protocol.frames import Connect, Err, Info, Msg, Ok, Ping, Pong, Pub, Sub, Unsub
from jetlake.protocol.parser import ClientParser, ServerParser

UNKNOWN = "Unknown Protocol Operation"
LINE_EXCEEDED = "maximum control line exceeded"
PAYLOAD_VIOLATION = "Maximum Payload Violation"
SILENT = None


def parse(parser, data: bytes) -> list:
    frames = parser.feed(data)
    assert parser.error is None, parser.error
    return frames


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (b"CONNECT {}\r\n", Connect(b"{}")),
        (b'connect   {"verbose":true}  \r\n', Connect(b'{"verbose":true}')),
        (b'CONNECT{"verbose":true}\r\n', Connect(b'{"verbose":true}')),
        (b"CONNECT\r\n", Connect(b"")),
        (b"PUB a 2\r\nhi\r\n", Pub(b"a", b"", b"", b"hi")),
        (b"PUB a r 2\r\nhi\r\n", Pub(b"a", b"r", b"", b"hi")),
        (b"PUB a 0\r\n\r\n", Pub(b"a", b"", b"", b"")),
        (b"PUB a 002\r\nhi\r\n", Pub(b"a", b"", b"", b"hi")),
        (b"PUB a 000000002\r\nhi\r\n", Pub(b"a", b"", b"", b"hi")),
        (b"PUB a 2\nhi\r\n", Pub(b"a", b"", b"", b"hi")),
        (b"PUB\ta\tr\t2\r\nhi\r\n", Pub(b"a", b"r", b"", b"hi")),
        (b"PUB   a    2   \r\nhi\r\n", Pub(b"a", b"", b"", b"hi")),
        (b"PUB a\tr 2\r\nhi\r\n", Pub(b"a", b"r", b"", b"hi")),
        (b"pUb a 4\r\n\r\n\r\n\r\n", Pub(b"a", b"", b"", b"\r\n\r\n")),
        (b"PUB a..b 2\r\nhi\r\n", Pub(b"a..b", b"", b"", b"hi")),
        (b"PUB a.* 2\r\nhi\r\n", Pub(b"a.*", b"", b"", b"hi")),
        (b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Pub(b"a", b"", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"HPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Pub(b"a", b"r", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"hpub a r 12 12\r\nNATS/1.0\r\n\r\n\r\n", Pub(b"a", b"r", b"NATS/1.0\r\n\r\n", b"")),
        (b"HPUB a 0 2\r\nhi\r\n", Pub(b"a", b"", b"", b"hi")),
        (b"HPUB a 3 3\r\n\xff\0!\r\n", Pub(b"a", b"", b"\xff\0!", b"")),
        (b"SUB a 1\r\n", Sub(b"a", b"", b"1")),
        (b"SUB a.> q 1\r\n", Sub(b"a.>", b"q", b"1")),
        (b"sub a 1\r\r\n", Sub(b"a", b"", b"1")),
        (b"UNSUB 1\r\n", Unsub(b"1", 0)),
        (b"UNSUB 1 5\r\n", Unsub(b"1", 5)),
        (b"UNSUB 1 x\r\n", Unsub(b"1", 0)),
        (b"UNSUB 1 -1\r\n", Unsub(b"1", 0)),
        (b"UNSUB 1 9999999999\r\n", Unsub(b"1", 0)),
        (b"PING\r\n", Ping()),
        (b"PING\n", Ping()),
        (b"ping\r\n", Ping()),
        (b"PINGhello\r\n", Ping()),
        (b"PING hello\r\n", Ping()),
        (b"PONG\r\n", Pong()),
    ],
)
def test_what_a_client_sends(data, frame):
    assert parse(ServerParser(), data) == [frame]
    assert parse(ServerParser(), data * 3) == [frame] * 3
    parser = ServerParser()
    assert [frame for byte in data for frame in parse(parser, bytes([byte]))] == [frame]


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (b'INFO {"server_id":"x"} \r\n', Info(b'{"server_id":"x"}')),
        (b"MSG a 1 2\r\nhi\r\n", Msg(b"a", b"1", b"", b"", b"hi")),
        (b"MSG a 1 r 2\r\nhi\r\n", Msg(b"a", b"1", b"r", b"", b"hi")),
        (b"msg a 1 r 2\r\nhi\r\n", Msg(b"a", b"1", b"r", b"", b"hi")),
        (b"MSG\ta 1  r 2\r\nhi\r\n", Msg(b"a", b"1", b"r", b"", b"hi")),
        (b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Msg(b"a", b"1", b"", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"HMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Msg(b"a", b"1", b"r", b"NATS/1.0\r\n\r\n", b"hi")),
        (
            b"HMSG r 1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n",
            Msg(b"r", b"1", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""),
        ),
        (b"PING\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b"+OK\r\n", Ok()),
        (b"+ok\r\n", Ok()),
        (b"-ERR 'Stale Connection'\r\n", Err("Stale Connection")),
        (b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n", Err('Permissions Violation for Publish to "x"')),
        (b"-ERR it's\r\n", Err("it's")),
        (b"-ERR '\r\n", Err("'")),
        (b"-ERR\r\n", Err("")),
        (b"-ERR '\xff'\r\n", Err("\\xff")),
    ],
)
def test_what_a_server_sends(data, frame):
    assert parse(ClientParser(), data) == [frame]
    assert parse(ClientParser(), data * 3) == [frame] * 3
    parser = ClientParser()
    assert [frame for byte in data for frame in parse(parser, bytes([byte]))] == [frame]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\r\n", UNKNOWN),
        (b"\n", UNKNOWN),
        (b" PING\r\n", UNKNOWN),
        (b" PUB a 2\r\nhi\r\n", UNKNOWN),
        (b"X", UNKNOWN),
        (b"PX", UNKNOWN),
        (b"PUBX", UNKNOWN),
        (b"PUBX a 1\r\n", UNKNOWN),
        (b"PUB\r\n", UNKNOWN),
        (b"PUB\n", UNKNOWN),
        (b"SUB\r\n", UNKNOWN),
        (b"UNSUB\r\n", UNKNOWN),
        (b"MSG a 1 1\r\nx\r\n", UNKNOWN),
        (b"GET / HTTP/1.1\r\n\r\n", UNKNOWN),
        (b"PUB a 2\r\nhi!\r\n", UNKNOWN),
        (b"PUB a 2\r\nhi\n\n", UNKNOWN),
        (b"PUB a 2\r\nhi\rx", UNKNOWN),
        (b"PUB a 2\r\nhix", UNKNOWN),
        (b"HPUB a 1 2\r\nhi!\r\n", UNKNOWN),
        (b"PUB \r\n", SILENT),
        (b"PUB a\r\n", SILENT),
        (b"PUB a b c d\r\n", SILENT),
        (b"PUB a b c 1\r\nx\r\n", SILENT),
        (b"PUB a x\r\n", SILENT),
        (b"PUB a -1\r\n", SILENT),
        (b"PUB a +1\r\nx\r\n", SILENT),
        (b"PUB a 1_0\r\n0123456789\r\n", SILENT),
        (b"PUB a \xd9\xa1\r\nx\r\n", SILENT),
        (b"PUB a 9999999999\r\n", SILENT),
        (b"PUB a 0000000001\r\nx\r\n", SILENT),
        (b"HPUB a 3\r\n", SILENT),
        (b"HPUB a b c 3 2\r\n", SILENT),
        (b"HPUB a x 2\r\n", SILENT),
        (b"HPUB a 3 2\r\nxyz\r\n", SILENT),
        (b"HPUB a 3 2\r\nxy\r\n", SILENT),
        (b"HPUB a 1048578 1048577\r\n", SILENT),
        (b"HPUB a 9999999999 2\r\n", SILENT),
        (b"SUB a\r\n", SILENT),
        (b"SUB a b c d\r\n", SILENT),
        (b"UNSUB 1 2 3\r\n", SILENT),
        (b"PUB a 1048577\r\n", PAYLOAD_VIOLATION),
        (b"PUB a 999999999\r\n", PAYLOAD_VIOLATION),
        (b"HPUB a 2 1048577\r\n", PAYLOAD_VIOLATION),
        (b"PUB " + b"a" * 4095 + b" 1\r\nx\r\n", LINE_EXCEEDED),
        (b"PUB " + b"a" * 4090 + b" 1      \r\nx\r\n", LINE_EXCEEDED),
        (b"PUB " + b"a" * 4097, LINE_EXCEEDED),
        (b"SUB " + b"a" * 4095 + b" 1\r\n", LINE_EXCEEDED),
        (b"UNSUB " + b"a" * 4097 + b"\r\n", LINE_EXCEEDED),
        (b"CONNECT {" + b" " * 4095 + b"}\r\n", LINE_EXCEEDED),
        (b"HPUB " + b"a" * 4093 + b" 0 1\r\nx\r\n", LINE_EXCEEDED),
    ],
)
def test_what_a_server_refuses(data, text):
    before = b"PUB a 2\r\nhi\r\nSUB a 1\r\n"
    for pieces in ([before + data], [before, data], [bytes([byte]) for byte in before + data]):
        parser = ServerParser()
        frames = [frame for piece in pieces for frame in parser.feed(piece)]
        assert frames == [Pub(b"a", b"", b"", b"hi"), Sub(b"a", b"", b"1")]
        assert isinstance(parser.error, ProtocolError)
        assert parser.error.text == text
        assert parser.error.closes
        assert str(parser.error)
        assert parser.feed(b"PING\r\n") == []


@pytest.mark.parametrize(
    "data",
    [
        b"PUB a 1\r\nx\r\n",
        b"MSG a 1\r\nx\r\n",
        b"MSG a 1 r s 1\r\nx\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 2\r\nhi!\r\n",
        b"HMSG a 1 1\r\n",
        b"HMSG a 1 3 2\r\nhi\r\n",
        b"HMSG a 1 r s 1 2\r\nhi\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\r\n",
        b"\x15\x03\x01",
    ],
)
def test_what_a_client_refuses(data):
    for pieces in ([data], [bytes([byte]) for byte in data]):
        parser = ClientParser()
        assert [frame for piece in pieces for frame in parser.feed(b"" + piece)] == []
        assert isinstance(parser.error, ProtocolError)
        assert parser.error.closes


@pytest.mark.parametrize(
    "data", [b"P", b"PUB", b"PUB a", b"PUB " + b"a" * 4096, b"PUB " + b"a" * 4094 + b" 1\r", b"CONN"]
)
def test_what_may_still_become_a_line_is_kept(data):
    parser = ServerParser()
    assert parser.feed(data) == []
    assert parser.error is None


def test_lines_as_long_as_the_limit():
    subject = b"a" * 4094
    assert parse(ServerParser(), b"PUB %b 1\r\nx\r\n" % subject) == [Pub(subject, b"", b"", b"x")]
    assert parse(ServerParser(), b"CONNECT {" + b" " * 4094 + b"}\r\n")
    assert parse(ServerParser(max_control_line=5), b"SUB abc 1\r\n") == [Sub(b"abc", b"", b"1")]
    parser = ServerParser(max_control_line=5)
    assert parser.feed(b"SUB abcd 1\r\n") == []
    assert parser.error.text == LINE_EXCEEDED


def test_a_client_takes_long_lines_and_large_messages():
    info = b'{"connect_urls":["%b"]}' % (b"x" * 100_000)
    assert parse(ClientParser(), b"INFO %b \r\n" % info) == [Info(info)]
    payload = b"x" * 2_000_000
    assert parse(ClientParser(), b"MSG a 1 2000000\r\n%b\r\n" % payload) == [Msg(b"a", b"1", b"", b"", payload)]
    parser = ClientParser(max_payload=1_999_999)
    assert parser.feed(b"MSG a 1 2000000\r\n%b\r\n" % payload) == []
    assert parser.error is not None


@pytest.mark.parametrize("size", [0, 1, 4094, 4096, 5000, 70_000, 1_048_576])
def test_payloads_up_to_the_limit(size):
    payload = b"\n" * size
    frames = parse(ServerParser(), b"PUB a r %d\r\n%b\r\nPING\r\n" % (size, payload))
    assert frames == [Pub(b"a", b"r", b"", payload), Ping()]


def test_the_payload_limit_may_change():
    parser = ServerParser()
    parser.max_payload = 3
    assert parse(parser, b"PUB a 3\r\nabc\r\nHPUB a 1 3\r\nabc\r\n") == [
        Pub(b"a", b"", b"", b"abc"),
        Pub(b"a", b"", b"a", b"bc"),
    ]
    parser.max_payload = 2
    assert parser.feed(b"PUB a 3\r\nabc\r\n") == []
    assert parser.error.text == PAYLOAD_VIOLATION


def test_a_client_builds_its_own_messages():
    class Delivery(Msg, gc=False):
        acked: bool = False

    parser = ClientParser(message_type=Delivery)
    whole = parse(parser, b"MSG a 1 r 2\r\nhi\r\nHMSG a 1 1 2\r\nhi\r\n")
    cut = [frame for byte in b"MSG a 1 r 2\r\nhi\r\nHMSG a 1 1 2\r\nhi\r\n" for frame in parse(parser, bytes([byte]))]
    assert whole == cut == [Delivery(b"a", b"1", b"r", b"", b"hi"), Delivery(b"a", b"1", b"", b"h", b"i")]
    assert all(type(frame) is Delivery for frame in whole + cut)


class Watched(bytes):
    """Bytes that count how many of them are searched."""

    searched = 0

    def find(self, *arguments):
        found = super().find(*arguments)
        start = arguments[1] if len(arguments) > 1 else 0
        Watched.searched += (len(self) if found < 0 else found + 1) - start
        return found


@pytest.mark.parametrize("piece_size", [1, 7, 1024, 1_000_000])
def test_no_byte_is_searched_twice(piece_size):
    control = b"HPUB a.subject.of.some.length _INBOX.reply 100 200000\r\n"
    data = control + b"\n" * 200_000 + b"\r\nPING\r\n"
    Watched.searched = 0
    parser = ServerParser()
    frames = []
    for start in range(0, len(data), piece_size):
        frames += parse(parser, Watched(data[start : start + piece_size]))
    assert len(frames) == 2
    assert Watched.searched <= len(control) + len(b"PING\r\n")


@pytest.mark.parametrize("verb", [b"PUB a %d\r\n", b"HPUB a 10 %d\r\n", b"pub a %d\r\n"])
def test_a_payload_is_never_held_twice(verb):
    size = 1_000_000
    piece = b"x" * 1000
    parser = ServerParser()
    parse(parser, verb % size)
    tracemalloc.start()
    for _ in range(size // len(piece)):
        assert parse(parser, piece) == []
    [frame] = parse(parser, b"\r\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(frame.header) + len(frame.payload) == size
    assert peak < 1.5 * size


def test_what_an_attacker_sends_is_not_kept():
    parser = ServerParser()
    tracemalloc.start()
    for _ in range(1000):
        parser.feed(b"SUB" + b" " * 100_000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parser.error.text == LINE_EXCEEDED
    assert held < 50_000
