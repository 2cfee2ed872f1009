"""Header blocks: reading, building, and the helpers that work on raw bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.errors import BadHeaderError, JetlakeError
from jetlake.protocol.headers import (
    Headers,
    append_pair,
    encode_headers,
    find_value,
    inline_status,
    remove_key,
    strip_status,
)

KEYS = st.text(
    st.characters(codec="utf-8", exclude_characters=":", exclude_categories=("Cc", "Zs", "Zl", "Zp")), min_size=1
)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(lambda value: value.lstrip(" \t"))
PAIRS = st.lists(st.tuples(KEYS | st.sampled_from(["A", "B"]), VALUES), max_size=6)
STATUSES = st.none() | st.integers(100, 599)
NOISE = st.lists(
    st.sampled_from([b"NATS/1.0", b" 503", b" ", b"\r\n", b"\r", b"\n", b":", b"A", b"A: b", b"\xff", b"\0"])
    | st.binary(max_size=4),
    max_size=12,
).map(b"".join)


@given(PAIRS, STATUSES)
def test_what_is_built_is_read(pairs, status):
    description = "No Messages" if status else ""
    raw = Headers.build(pairs, status, description).raw
    headers = Headers(raw)
    assert headers.items() == pairs
    assert headers.status == status
    assert headers.description == description
    assert len(headers) == len(pairs)
    for key, _ in pairs:
        assert key in headers
        assert headers.get_all(key) == [value for name, value in pairs if name == key]
        assert headers.get(key) == headers[key] == headers.get_all(key)[0]
    assert list(headers) == headers.keys() == list(dict(pairs))
    assert encode_headers(headers.items(), headers.status, headers.description) == raw


@given(PAIRS, STATUSES, KEYS, VALUES)
def test_raw_helpers_agree_with_the_reader(pairs, status, key, value):
    raw = encode_headers(pairs, status)
    assert inline_status(raw) == status
    for name in [key, *dict(pairs)]:
        found = find_value(raw, name.encode())
        assert (found.decode() if found is not None else None) == Headers(raw).get(name)
        assert Headers(remove_key(raw, name.encode())).items() == [pair for pair in pairs if pair[0] != name]
    longer = Headers(append_pair(raw, key.encode(), value.encode()))
    assert longer.items() == [*pairs, (key, value)]
    assert longer.status == status
    stored = strip_status(raw)
    assert Headers(stored).items() == pairs
    assert Headers(stored).status is None
    assert (stored == b"") is (not pairs and status is not None)


@given(NOISE)
def test_any_bytes_are_read_or_refused(raw):
    headers = Headers(raw)
    try:
        pairs = headers.items()
        assert [headers.get(key) for key, _ in pairs] == [headers.get_all(key)[0] for key, _ in pairs]
        assert headers.status is None or headers.status >= 0
    except BadHeaderError as error:
        assert isinstance(error, JetlakeError)
        assert isinstance(error, ValueError)
    for helper in (strip_status, inline_status):
        helper(raw)
    find_value(raw, b"A")
    remove_key(raw, b"A")
    append_pair(raw, b"A", b"b")
    assert headers.raw is raw


ANY_TEXT = st.text(st.characters())  # Surrogates too.


@given(ANY_TEXT, ANY_TEXT)
def test_any_pair_is_written_whole_or_refused(key, value):
    try:
        raw = encode_headers([(key, value)])
    except BadHeaderError:
        return
    assert Headers(raw).items() == [(key, value.lstrip(" \t"))]


def test_status_line():
    headers = Headers(b"NATS/1.0 404 No Messages\r\n\r\n")
    assert (headers.status, headers.description, headers.items()) == (404, "No Messages", [])
    headers = Headers(b"NATS/1.0 503\r\nNats-Subject: a.b\r\n\r\n")
    assert (headers.status, headers.description, headers["Nats-Subject"]) == (503, "", "a.b")
    headers = Headers(b"NATS/1.0\r\nA: b\r\n\r\n")
    assert (headers.status, headers.description) == (None, "")


def test_an_empty_block_is_no_block():
    assert not Headers()
    assert Headers().items() == []
    assert Headers().status is None
    assert "A" not in Headers()
    assert append_pair(b"", b"A", b"b") == b"NATS/1.0\r\nA: b\r\n\r\n"


def test_keys_are_case_sensitive_and_repeat():
    headers = Headers.build({"Nats-Msg-Id": "1", "X": ["a", "b"], "x": "c"})
    assert headers.raw == b"NATS/1.0\r\nNats-Msg-Id: 1\r\nX: a\r\nX: b\r\nx: c\r\n\r\n"
    assert headers.get("nats-msg-id") is None
    assert headers.get("nats-msg-id", "none") == "none"
    assert headers.get_all("X") == ["a", "b"]
    assert headers.keys() == ["Nats-Msg-Id", "X", "x"]
    with pytest.raises(KeyError):
        headers["y"]


def test_blocks_are_values():
    one, same, other = Headers.build({"A": "b"}), Headers.build([("A", "b")]), Headers.build({"A": "c"})
    assert one == same != other
    assert len({one, same, other}) == 2
    assert one != b"A"
    assert repr(one) == "Headers([('A', 'b')])"
    assert repr(Headers(b"NATS/1.0 503 Nobody\r\n\r\n")) == "Headers(503 Nobody, [])"
    assert repr(Headers(b"broken")) == "Headers(b'broken')"


def test_bytes_that_are_no_text_survive():
    raw = b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n"
    assert encode_headers(Headers(raw).items()) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage",
        b"NATS/2.0\r\n\r\n",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nA: b\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: no key\r\n\r\n",
        b"NATS/1.0 abc\r\n\r\n",
        b"NATS/1.0503\r\n\r\n",
        b"NATS/1.0 -1\r\n\r\n",
        b"NATS/1.0 99999999999999999999\r\n\r\n",
    ],
)
def test_broken_blocks_are_refused_when_they_are_read(raw):
    headers = Headers(raw)
    with pytest.raises(BadHeaderError):
        headers.get("A")
    with pytest.raises(BadHeaderError):
        _ = headers.status


@pytest.mark.parametrize("key", ["", "a:b", "a b", "a\r", "a\nb", "\t", "a\0", 5, b"a", "\ud800"])
def test_bad_keys_are_refused(key):
    with pytest.raises(BadHeaderError):
        Headers.build({key: "x"})


@pytest.mark.parametrize("value", ["a\r", "a\nb", "\r\n\r\nPUB x 0", 5, None, b"bytes"])
def test_bad_values_are_refused(value):
    with pytest.raises(BadHeaderError, match="Key"):
        Headers.build({"Key": value} if not isinstance(value, bytes) else [("Key", value)])


def test_a_description_needs_a_status_and_one_line():
    with pytest.raises(BadHeaderError):
        encode_headers(description="lonely")
    with pytest.raises(BadHeaderError):
        encode_headers(status=400, description="two\r\nlines")


@pytest.mark.parametrize(
    ("raw", "stored"),
    [
        (b"NATS/1.0 503\r\n\r\n", b""),
        (b"NATS/1.0 503 No Responders\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"),
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n\r\n"),
        (b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"),
        (b"garbage", b"garbage"),
        (b"", b""),
    ],
)
def test_a_stream_stores_no_status(raw, stored):
    assert strip_status(raw) == stored


def test_find_value_wants_the_whole_key():
    raw = b"NATS/1.0\r\nX-Nats-Msg-Id: no\r\nNats-Msg-Id-2: no\r\nNats-Msg-Id:yes \r\nNats-Msg-Id: late\r\n\r\n"
    assert find_value(raw, b"Nats-Msg-Id") == b"yes "
    assert find_value(b"NATS/1.0\r\nA:  \tb\r\n\r\n", b"A") == b"\tb"
    assert find_value(raw, b"NATS/1.0") is None
    assert find_value(b"", b"A") is None


def test_remove_key_takes_neighbours():
    raw = b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: 3\r\nA: 4\r\n\r\n"
    assert remove_key(raw, b"A") == b"NATS/1.0\r\nB: 3\r\n\r\n"
    assert remove_key(raw, b"C") == raw


def test_remove_key_leaves_no_empty_block():
    assert remove_key(b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"A") == b""
    assert remove_key(b"NATS/1.0\r\n\r\n", b"A") == b"NATS/1.0\r\n\r\n"
