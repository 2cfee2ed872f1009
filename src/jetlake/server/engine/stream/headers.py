"""The control headers of published messages: the `Nats-…` keys that a stream obeys."""

from __future__ import annotations

MSG_ID = b"Nats-Msg-Id"
EXPECTED_STREAM = b"Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE = b"Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE = b"Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID = b"Nats-Expected-Last-Msg-Id"
INCREMENT = b"Nats-Incr"
ROLLUP = b"Nats-Rollup"
SOURCE = b"Nats-Stream-Source"
TTL = b"Nats-TTL"
_ID_LINE = b"\r\nNats-Msg-Id:"
_BARE_ID = b"NATS/1.0\r\nNats-Msg-Id: "
_BARE_ID_SIZE = len(_BARE_ID)


def read_control_headers(header: bytes) -> dict[bytes, bytes]:
    """Return the first value of every key that starts with `Nats-`; empty values are left out."""
    if b"\r\nNats-" not in header:
        return {}
    values: dict[bytes, bytes] = {}
    for line in header.split(b"\r\n"):
        if line.startswith(b"Nats-"):
            key, colon, value = line.partition(b":")
            if colon and key not in values:
                values[key] = value.lstrip(b" ")
    return {key: value for key, value in values.items() if value}


def has_only_id(header: bytes) -> bool:
    """Return whether a message id is the only control header."""
    start = header.find(b"\r\nNats-")
    return header.startswith(_ID_LINE, start) and header.find(b"\r\nNats-", start + 2) < 0


def read_id(header: bytes) -> bytes:
    """Return the message id, or empty bytes."""
    start = header.find(_ID_LINE)
    if start < 0:
        return b""
    start += len(_ID_LINE)
    return header[start : header.find(b"\r\n", start)].lstrip(b" ")


def read_bare_id(header: bytes) -> bytes:
    """Return the message id of a header that holds nothing else, as clients spell it; empty bytes for any other."""
    if (
        header.startswith(_BARE_ID)
        and header.find(b"\r\n", _BARE_ID_SIZE) == len(header) - 4
        and header[_BARE_ID_SIZE] > 32  # no blank, and no line's end
    ):
        return header[_BARE_ID_SIZE:-4]
    return b""
