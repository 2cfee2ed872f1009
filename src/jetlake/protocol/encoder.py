"""Frames to bytes: one function for each verb of the wire, with nothing formatted that is already bytes."""

from __future__ import annotations

__all__ = [
    "CRLF",
    "OK",
    "PING",
    "PONG",
    "connect",
    "err",
    "hmsg",
    "hpub",
    "info",
    "msg",
    "pub",
    "sub",
    "unsub",
]

CRLF = b"\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"
OK = b"+OK\r\n"

# Most payloads are small, and formatting their size would cost more than the rest of the frame.
_SIZES = [b"%d" % size for size in range(4097)]
_SIZES_COUNT = len(_SIZES)


def _size(size: int) -> bytes:
    return _SIZES[size] if size < _SIZES_COUNT else b"%d" % size


def pub(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """`PUB`: publish without headers."""
    if reply:
        return b"".join((b"PUB ", subject, b" ", reply, b" ", _size(len(payload)), CRLF, payload, CRLF))
    return b"".join((b"PUB ", subject, b" ", _size(len(payload)), CRLF, payload, CRLF))


def hpub(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """`HPUB`: publish with a header block."""
    length = len(header)
    sizes = b"%d %d" % (length, length + len(payload))
    if reply:
        return b"".join((b"HPUB ", subject, b" ", reply, b" ", sizes, CRLF, header, payload, CRLF))
    return b"".join((b"HPUB ", subject, b" ", sizes, CRLF, header, payload, CRLF))


def msg(subject: bytes, sid: bytes, reply: bytes, payload: bytes) -> bytes:
    """`MSG`: deliver without headers."""
    if reply:
        return b"".join((b"MSG ", subject, b" ", sid, b" ", reply, b" ", _size(len(payload)), CRLF, payload, CRLF))
    return b"".join((b"MSG ", subject, b" ", sid, b" ", _size(len(payload)), CRLF, payload, CRLF))


def hmsg(subject: bytes, sid: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """`HMSG`: deliver with a header block."""
    length = len(header)
    sizes = b"%d %d" % (length, length + len(payload))
    if reply:
        return b"".join((b"HMSG ", subject, b" ", sid, b" ", reply, b" ", sizes, CRLF, header, payload, CRLF))
    return b"".join((b"HMSG ", subject, b" ", sid, b" ", sizes, CRLF, header, payload, CRLF))


def sub(subject: bytes, queue: bytes, sid: bytes) -> bytes:
    """`SUB`: subscribe, in a queue group unless `queue` is empty."""
    return b"SUB %b %b %b\r\n" % (subject, queue, sid) if queue else b"SUB %b %b\r\n" % (subject, sid)


def unsub(sid: bytes, max: int = 0) -> bytes:
    """`UNSUB`: end a subscription now, or after `max` messages since it began."""
    return b"UNSUB %b %d\r\n" % (sid, max) if max else b"UNSUB %b\r\n" % sid


def connect(json: bytes) -> bytes:
    """`CONNECT`: the client's options as JSON text."""
    return b"CONNECT %b\r\n" % json


def info(json: bytes) -> bytes:
    """`INFO`: the server's description as JSON text; the blank before the line's end is part of the wire."""
    return b"INFO %b \r\n" % json


def err(text: str) -> bytes:
    """`-ERR`: the complaint, put into its quotes."""
    return b"-ERR '%b'\r\n" % text.encode("utf-8", "backslashreplace")
