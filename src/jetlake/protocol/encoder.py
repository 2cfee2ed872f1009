"""Frames to bytes: one function for each verb of the wire, and the templates of frames in hot loops.

The templates `MSG_FRAME` and the like are for loops over many small messages, where a call for each message would cost
more than the formatting.
"""

from __future__ import annotations

from collections.abc import Sequence

PING = b"PING\r\n"
PONG = b"PONG\r\n"
OK = b"+OK\r\n"

MSG_FRAME = b"MSG %b %b %d\r\n%b\r\n"
"""Subject, sid, size, payload."""
MSG_REPLY_FRAME = b"MSG %b %b %b %d\r\n%b\r\n"
"""Subject, sid, reply, size, payload."""
HMSG_FRAME = b"HMSG %b %b %d %d\r\n%b%b\r\n"
"""Subject, sid, size of the header, size of both, header, payload."""
HMSG_REPLY_FRAME = b"HMSG %b %b %b %d %d\r\n%b%b\r\n"
"""Subject, sid, reply, size of the header, size of both, header, payload."""
ACK_FRAME = b"PUB %b 4\r\n+ACK\r\n"
"""The acknowledgement of one message: its reply subject."""

# Most messages are small, and formatting their size would cost more than the rest of the frame.
_SIZES_PREPARED = 2048
_sizes = [b" %d" % size for size in range(_SIZES_PREPARED)]
_last_sizes = [b" %d\r\n" % size for size in range(_SIZES_PREPARED)]


def pub(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """`PUB`: publish without headers; an empty reply is none."""
    size = len(payload)
    last_size = _last_sizes[size] if size < _SIZES_PREPARED else b" %d\r\n" % size
    if reply:
        return b"".join((b"PUB ", subject, b" ", reply, last_size, payload, b"\r\n"))
    return b"".join((b"PUB ", subject, last_size, payload, b"\r\n"))


def pub_run(subjects: Sequence[bytes], head: bytes, numbers: Sequence[bytes], payloads: Sequence[bytes]) -> bytes:
    """`PUB`, many times: publish without headers, each with a reply; all columns are equally long and not empty.

    Args:
        head: the beginning of all replies.
        numbers: the end of each reply.
    """
    count = len(payloads)
    sizes = set(map(len, payloads))
    if len(sizes) == 1 and subjects.count(subjects[0]) == count:
        pieces = [b"\r\nPUB %b %b" % (subjects[0], head)] * (4 * count)
        pieces[1::4] = numbers
        pieces[2::4] = [b" %d\r\n" % sizes.pop()] * count
        pieces[3::4] = payloads
    else:
        pieces = [b"\r\nPUB "] * (6 * count)
        pieces[1::6] = subjects
        pieces[2::6] = [b" " + head] * count
        pieces[3::6] = numbers
        if max(sizes) < _SIZES_PREPARED:
            pieces[4::6] = map(_last_sizes.__getitem__, map(len, payloads))
        else:
            pieces[4::6] = [b" %d\r\n" % len(payload) for payload in payloads]
        pieces[5::6] = payloads
    pieces[0] = pieces[0][2:]
    pieces.append(b"\r\n")
    return b"".join(pieces)


def pub_each(subjects: Sequence[bytes], payload: bytes) -> bytes:
    """`PUB`, many times: publish one payload to each of the subjects, of which there is at least one."""
    end = b" %d\r\n%b\r\n" % (len(payload), payload)
    return b"PUB " + (end + b"PUB ").join(subjects) + end


def hpub(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """`HPUB`: publish with a header block."""
    sizes = _both_sizes(len(header), len(payload))
    if reply:
        return b"".join((b"HPUB ", subject, b" ", reply, sizes, header, payload, b"\r\n"))
    return b"".join((b"HPUB ", subject, sizes, header, payload, b"\r\n"))


def msg(subject: bytes, sid: bytes, reply: bytes, payload: bytes) -> bytes:
    """`MSG`: deliver without headers; an empty reply is none."""
    size = len(payload)
    last_size = _last_sizes[size] if size < _SIZES_PREPARED else b" %d\r\n" % size
    if reply:
        return b"".join((b"MSG ", subject, b" ", sid, b" ", reply, last_size, payload, b"\r\n"))
    return b"".join((b"MSG ", subject, b" ", sid, last_size, payload, b"\r\n"))


def hmsg(subject: bytes, sid: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """`HMSG`: deliver with a header block."""
    sizes = _both_sizes(len(header), len(payload))
    if reply:
        return b"".join((b"HMSG ", subject, b" ", sid, b" ", reply, sizes, header, payload, b"\r\n"))
    return b"".join((b"HMSG ", subject, b" ", sid, sizes, header, payload, b"\r\n"))


def _both_sizes(header_size: int, payload_size: int) -> bytes:
    """Return the end of the control line: the size of the header, then of the whole message."""
    size = header_size + payload_size
    if size < _SIZES_PREPARED:
        return _sizes[header_size] + _last_sizes[size]
    return b" %d %d\r\n" % (header_size, size)


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
    """`-ERR`: an error in quotes; line ends in it are escaped."""
    one_line = text.replace("\r", "\\r").replace("\n", "\\n")
    return b"-ERR '%b'\r\n" % one_line.encode("utf-8", "backslashreplace")


def status(line: bytes, fields: bytes = b"") -> bytes:
    """Return the header block of a status message.

    Args:
        line: number and description, such as `404 No Messages`.
        fields: further lines, each with its CRLF.
    """
    return b"NATS/1.0 %b\r\n%b\r\n" % (line, fields)
