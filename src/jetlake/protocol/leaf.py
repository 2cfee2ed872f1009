"""The wire between a leaf node and its hub: the parser of both directions, and the encoder of its own verbs.

A message goes as `LMSG <subject> [reply] <size>`. Where queue groups are to get it, they stand behind a mark:
`LMSG <subject> | <queue>… <size>` without a reply, `LMSG <subject> + <reply> <queue>… <size>` with one. With a header
the verb is `HMSG`, and the size of the header precedes the size of the whole. Interest is `LS+ <subject>`, or
`LS+ <subject> <queue> <weight>` with the absolute number of members, and ends with `LS- <subject> [queue]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat

from jetlake.errors import ProtocolError
from jetlake.protocol.control_lines import SIZES, bad_arguments, read_size, verb_pattern
from jetlake.protocol.frames import Err, Frame, LeafMsg, LeafSub, LeafUnsub
from jetlake.protocol.parser import CLIENT_MAX_CONTROL_LINE, CLIENT_MAX_PAYLOAD, GeneralParser

__all__ = ["LeafParser", "leaf_msg", "leaf_sub", "leaf_unsub"]

_QUEUES_ONLY = b"|"
_REPLY_AND_QUEUES = b"+"
_MARKS = (_QUEUES_ONLY, _REPLY_AND_QUEUES)

Address = tuple[bytes, bytes, tuple[bytes, ...]]
"""Subject, reply, and the queue groups."""


class LeafParser(GeneralParser):
    """Reads what the server at the other end of a leaf connection sends.

    A peer is a server and was authenticated as one: the limits only keep a broken one from filling the memory.
    """

    def __init__(
        self, *, max_control_line: int = CLIENT_MAX_CONTROL_LINE, max_payload: int = CLIENT_MAX_PAYLOAD
    ) -> None:
        super().__init__(max_control_line=max_control_line, max_payload=max_payload)

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        find = data.find
        append = frames.append
        sizes = SIZES
        max_line = self.max_control_line
        max_payload = self.max_payload
        for _ in repeat(None, lines):
            line_end = find(b"\n", position)
            if line_end < 0:
                break
            start = line_end + 1
            try:
                # Deliveries without queue groups; all else takes the general path.
                if data[position : position + 5] == b"LMSG ":
                    parts = data[position:line_end].split()
                    if len(parts) == 4:
                        _, subject, reply, digits = parts
                    else:
                        _, subject, digits = parts
                        reply = b""
                    end = start + sizes[digits]
                    fits = end - max_payload <= start <= position + max_line
                    if fits and reply not in _MARKS and data[end : end + 2] == b"\r\n":
                        append(LeafMsg(subject, reply, (), b"", data[start:end]))
                        position = end + 2
                        continue
            except (LookupError, ValueError):
                pass  # Queue groups, another spelling, or a frame that is not whole.
            position = self._read_line(data[position:line_end], data, start, frames)
        return position

    def _read_lmsg(self, arguments: bytes) -> None:
        *address, digits = arguments.split() or (b"",)
        self._await(partial(LeafMsg, *_read_address(address, arguments)), 0, read_size(digits))

    def _read_hmsg(self, arguments: bytes) -> None:
        parts = arguments.split()
        if len(parts) < 3:
            raise bad_arguments("HMSG", arguments)
        *address, header_digits, digits = parts
        make = partial(LeafMsg, *_read_address(address, arguments))
        self._await(make, read_size(header_digits), read_size(digits))

    def _read_sub(self, arguments: bytes) -> Frame:
        match arguments.split():
            case [subject]:
                return LeafSub(subject, b"", 1)
            case [subject, queue, weight] if weight.isdigit():
                return LeafSub(subject, queue, read_size(weight))
        raise bad_arguments("LS+", arguments)

    def _read_unsub(self, arguments: bytes) -> Frame:
        match arguments.split():
            case [subject]:
                return LeafUnsub(subject, b"")
            case [subject, queue]:
                return LeafUnsub(subject, queue)
        raise bad_arguments("LS-", arguments)

    def _read_err(self, arguments: bytes) -> Frame:
        return Err(arguments.strip().decode("utf-8", "backslashreplace").strip("'"))

    _readers = {
        b"LMSG": _read_lmsg,
        b"HMSG": _read_hmsg,
        b"LS+": _read_sub,
        b"LS-": _read_unsub,
        b"CONNECT": GeneralParser._read_connect,
        b"INFO": GeneralParser._read_info,
        b"PING": GeneralParser._read_ping,
        b"PONG": GeneralParser._read_pong,
        b"+OK": GeneralParser._read_ok,
        b"-ERR": _read_err,
    }
    _verb = verb_pattern(
        spaced=(b"LMSG", b"HMSG", b"LS+", b"LS-"), loose=(b"CONNECT", b"INFO", b"PING", b"PONG", b"+OK", b"-ERR")
    )


def _read_address(parts: list[bytes], arguments: bytes) -> Address:
    match parts:
        case [subject]:
            return subject, b"", ()
        case [subject, reply] if reply not in _MARKS:
            return subject, reply, ()
        case [subject, mark, *queues] if mark == _QUEUES_ONLY and queues:
            return subject, b"", tuple(queues)
        case [subject, mark, reply, *queues] if mark == _REPLY_AND_QUEUES and queues:
            return subject, reply, tuple(queues)
    raise ProtocolError(f"bad arguments of a message between servers: {arguments[:80]!r}")


def leaf_msg(subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes) -> bytes:
    """`LMSG`, or `HMSG` with a header: a message to another server, and the queue groups there that it is for."""
    if queues:
        names = b" ".join(queues)
        route = b" + %b %b" % (reply, names) if reply else b" | %b" % names
    else:
        route = b" %b" % reply if reply else b""
    if header:
        size = len(header) + len(payload)
        return b"HMSG %b%b %d %d\r\n%b%b\r\n" % (subject, route, len(header), size, header, payload)
    return b"LMSG %b%b %d\r\n%b\r\n" % (subject, route, len(payload), payload)


def leaf_sub(subject: bytes, queue: bytes, count: int) -> bytes:
    """`LS+` for `count` members of a queue group, or for any number of plain subscriptions; `LS-` for none."""
    if not count:
        return leaf_unsub(subject, queue)
    return b"LS+ %b %b %d\r\n" % (subject, queue, count) if queue else b"LS+ %b\r\n" % subject


def leaf_unsub(subject: bytes, queue: bytes) -> bytes:
    """`LS-`: the interest is gone."""
    return b"LS- %b %b\r\n" % (subject, queue) if queue else b"LS- %b\r\n" % subject
