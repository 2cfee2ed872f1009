"""What holds for every stream of frames and for every stream of bytes, however the reads cut them."""

from hypothesis import example, given
from hypothesis import strategies as st

from jetlake.errors import ProtocolError
from jetlake.protocol.frames import Connect, Err, Info, Msg, Ok, Ping, Pong, Pub, Sub, Unsub
from jetlake.protocol.parser import ClientParser, GeneralParser, ServerParser
from tests.support.cut_reads import pieces

# Small limits, so that short examples reach them.
LINE_MAX = 40
PAYLOAD_MAX = 60


def server_parser() -> ServerParser:
    return ServerParser(max_control_line=LINE_MAX, max_payload=PAYLOAD_MAX)


def client_parser() -> ClientParser:
    return ClientParser(max_control_line=LINE_MAX, max_payload=PAYLOAD_MAX)


class PlainServerParser(ServerParser):
    """Without the fast loop."""

    _scan = GeneralParser._scan


class PlainClientParser(ClientParser):
    """Without the fast loop."""

    _scan = GeneralParser._scan


# Valid frames, in all the spellings that the wire allows, each with what it must become.

TOKENS = st.text("aB1.*>$_-\xe9", min_size=1, max_size=6).map(str.encode)
OPTIONAL = st.just(b"") | TOKENS
PAYLOADS = st.binary(max_size=20) | st.lists(
    st.sampled_from([b"\r\n", b"PING", b"MSG a 1 2", b" ", b"x"]), max_size=4
).map(b"".join)
BLANKS = st.sampled_from([b" ", b" ", b" ", b"\t", b"  ", b" \t"])
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\n", b" \r\n"])
CASES = st.sampled_from([bytes.upper, bytes.upper, bytes.lower, bytes.swapcase, bytes.title])


@st.composite
def line(draw, verb: bytes, *arguments: bytes) -> bytes:
    words = [draw(CASES)(verb), *(argument for argument in arguments if argument)]
    return draw(BLANKS).join(words) + draw(ENDS)


@st.composite
def message(draw, verb: bytes, make, *leading: bytes):
    reply, header, payload = draw(OPTIONAL), draw(st.just(b"") | PAYLOADS), draw(PAYLOADS)
    size = b"%d" % (len(header) + len(payload))
    if header or draw(st.booleans()):
        control = draw(line(b"H" + verb, *leading, reply, b"%d" % len(header), size))
    else:
        control = draw(line(verb, *leading, reply, size))
    return control + header + payload + b"\r\n", make(*leading, reply, header, payload)


@st.composite
def client_sends(draw):
    subject, sid, queue, count = draw(TOKENS), draw(TOKENS), draw(OPTIONAL), draw(st.integers(0, 1000))
    kind = draw(st.integers(0, 9))
    if kind < 5:
        return draw(message(b"PUB", Pub, subject))
    if kind == 5:
        return draw(line(b"SUB", subject, queue, sid)), Sub(subject, queue, sid)
    if kind == 6:
        return draw(line(b"UNSUB", sid, b"%d" % count)), Unsub(sid, count)
    if kind == 7:
        return draw(line(b"CONNECT", b'{"verbose": true}')), Connect(b'{"verbose": true}')
    if kind == 8:
        return draw(line(b"PING")), Ping()
    return draw(line(b"PONG")), Pong()


@st.composite
def server_sends(draw):
    kind = draw(st.integers(0, 9))
    if kind < 5:
        return draw(message(b"MSG", Msg, draw(TOKENS), draw(TOKENS)))
    if kind == 5:
        return draw(line(b"INFO", b'{"max_payload": 1}')), Info(b'{"max_payload": 1}')
    if kind == 6:
        return draw(line(b"+OK")), Ok()
    if kind == 7:
        return draw(line(b"-ERR", b"'it's bad'")), Err("it's bad")
    if kind == 8:
        return draw(line(b"PING")), Ping()
    return draw(line(b"PONG")), Pong()


CUTS = st.lists(st.integers(0, 400), max_size=12) | st.just(range(2000))


def parse(parser, parts):
    frames = [frame for part in parts for frame in parser.feed(part)]
    error = parser.error
    return frames, error is not None, error.text if error else None


def parse_by_lines(parser, parts, lines):
    """As `parse`, with so many lines at a time."""
    frames = []
    for part in parts:
        position = 0
        while True:
            some = parser.feed(part, position, lines)
            assert len(some) <= lines + 1  # and one that the read before had cut off
            frames += some
            if parser.position == len(part):
                break
            position = parser.position
    error = parser.error
    return frames, error is not None, error.text if error else None


def check_frames(make_parser, sent, cuts):
    data = b"".join(wire for wire, _ in sent)
    expected = [frame for _, frame in sent]
    assert parse(make_parser(), [data]) == (expected, False, None)
    assert parse(make_parser(), pieces(data, cuts)) == (expected, False, None)
    for lines in (1, 3):
        assert parse_by_lines(make_parser(), pieces(data, cuts), lines) == (expected, False, None)


@given(st.lists(client_sends(), max_size=8), CUTS)
def test_any_cut_of_what_a_client_sends_gives_its_frames(sent, cuts):
    check_frames(server_parser, sent, cuts)


@given(st.lists(server_sends(), max_size=8), CUTS)
def test_any_cut_of_what_a_server_sends_gives_its_frames(sent, cuts):
    check_frames(client_parser, sent, cuts)


# Bytes that are almost frames: valid ones with holes, bits of the grammar in any order, and plain noise.

CRUMBS = st.sampled_from(
    b"PUB|HPUB|SUB|UNSUB|CONNECT|PING|PONG|MSG|HMSG|INFO|+OK|-ERR|pub|msg| |\t|\r|\n|\r\n|\x0b|\x0c|a|a.b|1|2|0|10"
    b"|99|0000000001|-1|+1|1_0|PUB a 2\r\nhi\r\n|MSG a 1 2\r\nhi\r\n|HPUB a 1 2\r\nhi\r\n|HMSG a 1 1 2\r\nhi\r\n"
    b"|PUB a 61\r\n|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".split(b"|")
)


@st.composite
def damaged(draw, frames):
    data = bytearray(b"".join(wire for wire, _ in draw(st.lists(frames, min_size=1, max_size=4))))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 3)))
        data[start:end] = draw(CRUMBS | st.binary(max_size=3))
    return bytes(data)


ANYTHING = (
    st.lists(CRUMBS, max_size=16).map(b"".join)
    | st.binary(max_size=100)
    | damaged(client_sends())
    | damaged(server_sends())
)


def check_bytes(make_parser, make_plain_parser, data, cuts):
    whole = parse(make_parser(), [data])
    assert parse(make_parser(), pieces(data, cuts)) == whole
    assert parse(make_plain_parser(max_control_line=LINE_MAX, max_payload=PAYLOAD_MAX), [data]) == whole
    parser = make_parser()
    parser.feed(data)
    if parser.error is not None:
        assert isinstance(parser.error, ProtocolError)
        assert parser.error.closes
        assert parser.feed(b"PING\r\n") == []


@given(ANYTHING, CUTS)
@example(b"PUB\ra 1\r\nx\r\n", [])
@example(b"PUB\x0ba 1\r\nx\r\n", [])
@example(b"PUB a 1\r\nx\r\n\r\n", [9])
def test_a_server_takes_any_bytes_the_same_way_however_they_are_cut(data, cuts):
    check_bytes(server_parser, PlainServerParser, data, cuts)


@given(ANYTHING, CUTS)
def test_a_client_takes_any_bytes_the_same_way_however_they_are_cut(data, cuts):
    check_bytes(client_parser, PlainClientParser, data, cuts)


@given(ANYTHING)
def test_no_parsed_word_can_break_a_line(data):
    for frame in server_parser().feed(data):
        words = [frame.subject] if isinstance(frame, Pub | Sub) else []
        words += [frame.reply] if isinstance(frame, Pub) else []
        words += [frame.sid] if isinstance(frame, Sub | Unsub) else []
        assert all(len(word.split()) <= 1 for word in words)
