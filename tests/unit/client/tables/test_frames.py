"""Splitting a read buffer and making columns of it: the fast way must agree with the plain one, or step back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.client.tables.frames import split_frames, split_frames_by_loop, split_frames_vectorised
from jetlake.client.tables.message_columns import columns_of_deliveries, columns_of_direct_gets, statuses_of
from jetlake.errors import ProtocolError
from jetlake.protocol.headers import Headers

FIELDS = ("subject", "sizes", "header", "payload", "end")

nasty = st.sampled_from([b"", b"\r\n", b"\nMSG a 1 2\r\n", b"\r\nHMSG a 1 2 2\r\n", b"x" * 300, b"\nMSG ", b"\0\xff\n"])
payloads = st.binary(max_size=40) | nasty
tokens = st.text("abcXYZ019_-", min_size=1, max_size=5)
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
blocks = st.dictionaries(tokens, tokens, max_size=3).map(lambda pairs: Headers.build(pairs).raw if pairs else b"")


def delivery(number, subject, header, payload, reply="$JS.ACK.S.c.1.{0}.{0}.{1}.7"):
    ack = reply.format(number, 1794732209518069683 + number)
    if header:
        line = f"HMSG {subject} 12 {ack} {len(header)} {len(header) + len(payload)}\r\n"
    else:
        line = f"MSG {subject} 12 {ack} {len(payload)}\r\n"
    return line.encode() + header + payload + b"\r\n"


def direct(number, subject, header, payload):
    own = header[:-2] if header else b"NATS/1.0\r\n"
    block = (
        own
        + (
            f"Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {number}\r\n"
            f"Nats-Time-Stamp: 2026-11-15T08:43:28.{number:09d}Z\r\n"
            "Nats-Num-Pending: 6\r\nNats-Last-Sequence: 0\r\n\r\n"
        ).encode()
    )
    return b"HMSG _INBOX.x 3 %d %d\r\n%b%b\r\n" % (len(block), len(block) + len(payload), block, payload)


def assert_same(a, b):
    assert a.consumed == b.consumed
    assert a.lines == b.lines
    for field in FIELDS:
        assert getattr(a, field).tolist() == getattr(b, field).tolist(), field


@settings(max_examples=300)
@given(st.lists(st.tuples(subjects, blocks, payloads), min_size=1, max_size=8), st.integers(0, 60), st.booleans())
def test_the_fast_way_agrees_with_the_plain_one_or_gives_up(messages, cut, with_ping):
    data = bytearray(b"".join(delivery(n + 1, *message) for n, message in enumerate(messages)))
    if with_ping:
        data += b"PING\r\n"
    fill = max(len(data) - cut, 0)
    plain = split_frames_by_loop(data, fill)
    fast = split_frames_vectorised(data, fill)
    if fast is not None and len(fast) == len(plain):
        assert_same(fast, plain) if not plain.lines else None
    if fast is not None:
        # What the fast way says is always right, even when it says less.
        for field in FIELDS:
            assert getattr(fast, field).tolist() == getattr(plain, field).tolist()[: len(fast)]
    assert_same(split_frames(data, fill), plain if fast is None else fast)


def test_plain_messages_take_the_fast_way():
    data = bytearray(b"".join(delivery(n, "a.b", b"", b"x" * 128) for n in range(1, 100)))
    fast = split_frames_vectorised(data, len(data) - 3)
    assert fast is not None
    assert_same(fast, split_frames_by_loop(data, len(data) - 3))
    assert len(fast) == 98


def test_payloads_of_any_size_take_the_fast_way():
    sizes = [0, 9, 10, 99, 100, 999, 1000, 9999, 10_000, 100_000, 1_000_000, 1, 128]
    data = bytearray(b"".join(delivery(n, "a.b", b"", b"x" * size) for n, size in enumerate(sizes)))
    fast = split_frames_vectorised(data, len(data))
    assert fast is not None
    assert_same(fast, split_frames_by_loop(data, len(data)))


@pytest.mark.parametrize("size", [b"3", b"5", b"14", b":", b"4 ", b""])
def test_a_size_that_is_not_the_payloads_is_never_believed(size):
    good, bad = delivery(1, "a", b"", b"abcd"), delivery(2, "a", b"", b"abcd").replace(b" 4\r\n", b" " + size + b"\r\n")
    for frames in ((bad, good), (good, bad), (good, bad, good)):
        data = bytearray(b"".join(frames))
        fast = split_frames_vectorised(data, len(data))
        assert fast is None or len(fast) <= frames.index(bad)


@pytest.mark.parametrize("payload", [b"\n\n\n", b"\n" * 20, b"x\r\n\r\n", b"\nMSG a 1 0\r\n\r\n"])
def test_line_ends_at_the_very_end_of_a_read_are_no_message(payload):
    data = bytearray(delivery(1, "a", b"", payload))
    for fill in range(1, len(data) + 1):
        split = split_frames(data, fill)
        assert len(split) == (fill == len(data))


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 x\r\nab\r\n",
        b"MSG a 1\r\n",
        b"MSG  a 1 2\r\nab\r\n",
        b"HMSG a 1 9 2\r\nab\r\n",
        b"MSG a 1 2\r\nabcd",
        b"\r\n\r\n",
    ],
)
def test_what_no_server_sends_is_an_error(line):
    with pytest.raises(ProtocolError):
        split_frames(bytearray(line), len(line))


def rows(columns):
    return list(
        zip(
            columns.sequence.tolist(),
            columns.time_ns.tolist(),
            [value.decode() for value in columns.subject.to_pylist()],
            columns.header.to_pylist(),
            columns.payload.to_pylist(),
            strict=True,
        )
    )


@given(st.lists(st.tuples(subjects, blocks, payloads), min_size=1, max_size=8))
def test_columns_of_deliveries(messages):
    data = bytearray(b"".join(delivery(n + 1, *message) for n, message in enumerate(messages)))
    columns, statuses = columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")
    assert not len(statuses)
    assert columns.pending == 7
    assert rows(columns) == [(n + 1, 1794732209518069684 + n, *message) for n, message in enumerate(messages)]


@given(st.lists(st.tuples(subjects, blocks, payloads), min_size=1, max_size=8))
def test_columns_of_direct_gets(messages):
    data = bytearray(b"".join(direct(n + 1, *message) for n, message in enumerate(messages)))
    columns, statuses = columns_of_direct_gets(data, split_frames(data, len(data)), "S")
    assert not len(statuses)
    assert rows(columns) == [(n + 1, 1794732208000000001 + n, *message) for n, message in enumerate(messages)]


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.S.c.1.{0}.{0}.{1}.7",
        "$JS.ACK._.szMpdrwD.S.c.1.{0}.{0}.{1}.7",
        "$JS.ACK.hub.szMpdrwD.S.c.1.{0}.{0}.{1}.7.more.tokens",
    ],
)
def test_all_forms_of_the_acknowledgement_subject(reply):
    data = bytearray(b"".join(delivery(n, "x", b"", b"p", reply) for n in (1, 20, 300)))
    columns, _ = columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")
    assert columns.sequence.tolist() == [1, 20, 300]
    assert columns.time_ns.tolist() == [1794732209518069683 + n for n in (1, 20, 300)]
    assert columns.pending == 7


def test_statuses_are_told_apart():
    status = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n"
    frame = b"HMSG _INBOX.p 7 %d %d\r\n%b\r\n" % (len(status), len(status), status)
    data = bytearray(delivery(1, "x", b"", b"p") + frame + delivery(2, "y", b"", b"q"))
    columns, statuses = columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")
    assert columns.sequence.tolist() == [1, 2]
    (found,) = statuses_of(data, statuses)
    assert (found.status, found.description, found.get("Nats-Pending-Messages")) == (408, "Request Timeout", "3")
    data = bytearray(frame)
    columns, statuses = columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")
    assert (len(columns), len(statuses)) == (0, 1)


def test_the_end_of_a_direct_batch_is_a_status():
    end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 7\r\n\r\n"
    data = bytearray(direct(5, "a", b"", b"p") + b"HMSG _INBOX.x 3 %d %d\r\n%b\r\n" % (len(end), len(end), end))
    columns, statuses = columns_of_direct_gets(data, split_frames(data, len(data)), "S")
    assert columns.sequence.tolist() == [5]
    assert [status.status for status in statuses_of(data, statuses)] == [204]


@pytest.mark.parametrize(("names", "expected"), [("SSS", [1, 2, 3]), ("MMM", []), ("SMS", [1, 3])])
def test_what_a_mirror_answers_is_left_out(names, expected):
    answers = [
        direct(number, "a", b"", b"p").replace(b"Nats-Stream: S", b"Nats-Stream: %b" % name.encode())
        for number, name in enumerate(names, 1)
    ]
    data = bytearray(b"".join(answers))
    columns, _ = columns_of_direct_gets(data, split_frames(data, len(data)), "S")
    assert columns.sequence.tolist() == expected


def test_a_foreign_reply_subject_is_an_error():
    data = bytearray(b"MSG a 1 some.reply 1\r\nx\r\n")
    with pytest.raises(ProtocolError, match="acknowledgement subject"):
        columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")


def test_slices():
    data = bytearray(b"".join(delivery(n, f"s.{n}", b"", b"%d" % n) for n in range(1, 10)))
    columns, _ = columns_of_deliveries(data, split_frames(data, len(data)), "S", "c")
    part = columns.slice(2, 5)
    assert rows(part) == rows(columns)[2:5]
    assert part.sequence.dtype == np.int64
