"""Bytes to frames: the server's and the client's parser, fed with whatever a socket gave.

Each has one loop that takes whole message frames straight out of the read buffer: find the line's end, split the line,
slice the payload. Whatever is not such a frame (another verb, other spelling, a frame cut by the end of the read) takes
the general path, which keeps what it has seen and goes on from there with the next read; no byte is searched twice, and
a payload is copied once, out of the read buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

from jetlake.errors import ProtocolError
from jetlake.protocol.frames import Connect, Err, Frame, Info, Msg, Ok, Ping, Pong, Pub, Sub, Unsub

__all__ = ["ClientParser", "Parser", "ServerParser"]

MAX_CONTROL_LINE = 4096
MAX_PAYLOAD = 1024 * 1024

# A client must take what its server took: subjects up to the server's limit with a reply beside them, long INFO lines,
# and messages to which headers were added on the way. These bounds only keep a broken peer from filling the memory.
CLIENT_MAX_CONTROL_LINE = 1024 * 1024
CLIENT_MAX_PAYLOAD = 65 * 1024 * 1024

_UNKNOWN_OPERATION = "Unknown Protocol Operation"
_CONTROL_LINE_EXCEEDED = "maximum control line exceeded"
_PAYLOAD_VIOLATION = "Maximum Payload Violation"

_SIZE_DIGITS_MAX = 9
_SIZES_PREPARED = 2048
_SIZES_KEPT_MAX = 8192

_PING = Ping()
_PONG = Pong()
_OK = Ok()


class _Sizes(dict[bytes, int]):
    """Sizes by their digits: a look-up is faster than a conversion, and checks the digits too."""

    def __missing__(self, digits: bytes) -> int:
        if not digits.isdigit() or len(digits) > _SIZE_DIGITS_MAX:
            raise ProtocolError(f"bad size {digits[:20]!r}")
        size = int(digits)
        if len(self) < _SIZES_KEPT_MAX:
            self[digits] = size
        return size


_sizes = _Sizes({b"%d" % size: size for size in range(_SIZES_PREPARED)})


class _Body:
    """A message whose control line is known and whose bytes have yet to come."""

    __slots__ = ("_end_missing", "_header", "_header_missing", "_make", "_payload", "_payload_missing")

    def __init__(self, make: Callable[[bytes, bytes], Frame], header_size: int, payload_size: int) -> None:
        self._make = make
        # BytesIO hands out what was written into it without another copy.
        self._header = BytesIO()
        self._payload = BytesIO()
        self._header_missing = header_size
        self._payload_missing = payload_size
        self._end_missing = b"\r\n"

    def take(self, data: bytes, position: int) -> int:
        """Take what belongs to the message and return the position behind it."""
        view = memoryview(data)
        if self._header_missing:
            taken = self._header.write(view[position : position + self._header_missing])
            self._header_missing -= taken
            position += taken
        if self._payload_missing:
            taken = self._payload.write(view[position : position + self._payload_missing])
            self._payload_missing -= taken
            position += taken
        if not self._header_missing and not self._payload_missing:
            end = data[position : position + len(self._end_missing)]
            if not self._end_missing.startswith(end):
                raise ProtocolError("payload is not followed by CRLF", text=_UNKNOWN_OPERATION)
            self._end_missing = self._end_missing[len(end) :]
            position += len(end)
        return position

    def frame(self) -> Frame | None:
        """The message, if all of it has come."""
        if self._end_missing:
            return None
        return self._make(self._header.getvalue(), self._payload.getvalue())


class Parser:
    """What both directions share: the limits, the error, and the general path for frames in pieces.

    Attributes:
        error: the violation that ended the stream of frames, or None.
        max_control_line: how long the arguments of one line may be, in bytes.
        max_payload: how long header and payload of one message may be together, in bytes; may be changed at any time.
    """

    _operations: dict[bytes, Callable[..., Frame | None]] = {}

    def __init__(self, *, max_control_line: int, max_payload: int) -> None:
        self.error: ProtocolError | None = None
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        self._line = bytearray()
        self._body: _Body | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that are whole with this data; a rest is kept for the next call.

        After a violation `error` is set, the frames before it are still returned, and later calls return nothing.
        """
        frames: list[Frame] = []
        if self.error is None:
            try:
                position = self._resume(data, frames) if self._body is not None or self._line else 0
                self._scan(data, position, frames)
            except ProtocolError as error:
                self.error = error
                self._line.clear()
                self._body = None
        return frames

    def _scan(self, data: bytes, position: int, frames: list[Frame]) -> None:
        raise NotImplementedError

    def _resume(self, data: bytes, frames: list[Frame]) -> int:
        """Go on with what the last read cut off; returns where the next frame begins."""
        if self._body is not None:
            return self._fill(data, 0, frames)
        start = data.find(b"\n") + 1
        if not start:
            self._keep_line(data, 0)
            return len(data)
        self._line += data[:start]
        line = bytes(self._line)
        self._line.clear()
        return self._read_line(line, data, start, frames)

    def _keep_line(self, data: bytes, position: int) -> None:
        """Keep a line whose end has not come, as long as it can still become a valid one."""
        self._line += memoryview(data)[position:]
        word = bytes(self._line[:8]).upper().split()
        operation = word[0] if word else b"?"
        if not any(known.startswith(operation) or operation.startswith(known) for known in self._operations):
            raise _unknown_operation(operation)
        if len(self._line) - len(operation) - 2 > self.max_control_line:
            raise _control_line_exceeded(self.max_control_line)

    def _read_line(self, line: bytes, data: bytes, position: int, frames: list[Frame]) -> int:
        """Read one whole control line, and what there is of its message from `position` on."""
        operation, *rest = line.split(None, 1) or [b""]
        arguments = rest[0].rstrip() if rest else b""
        read = self._operations.get(operation.upper())
        if read is None:
            raise _unknown_operation(operation)
        if len(arguments) > self.max_control_line:
            raise _control_line_exceeded(self.max_control_line)
        frame = read(self, arguments)
        if frame is not None:
            frames.append(frame)
        elif self._body is not None:
            return self._fill(data, position, frames)
        return position

    def _fill(self, data: bytes, position: int, frames: list[Frame]) -> int:
        body = self._body
        assert body is not None
        position = body.take(data, position)
        frame = body.frame()
        if frame is not None:
            self._body = None
            frames.append(frame)
        return position

    def _expect(self, make: Callable[[bytes, bytes], Frame], header_digits: bytes, size_digits: bytes) -> None:
        """Expect a message body of these sizes next."""
        header_size = _sizes[header_digits]
        size = _sizes[size_digits]
        if size > self.max_payload:
            raise _payload_violation(size, self.max_payload)
        if header_size > size:
            raise ProtocolError(f"header of {header_size} bytes in a message of {size}")
        self._body = _Body(make, header_size, size - header_size)

    def _read_ping(self, arguments: bytes) -> Frame:
        return _PING

    def _read_pong(self, arguments: bytes) -> Frame:
        return _PONG


def _unknown_operation(operation: bytes) -> ProtocolError:
    return ProtocolError(f"unknown operation {operation[:20]!r}", text=_UNKNOWN_OPERATION)


def _control_line_exceeded(limit: int) -> ProtocolError:
    return ProtocolError(f"control line is longer than {limit} bytes", text=_CONTROL_LINE_EXCEEDED)


def _payload_violation(size: int, limit: int) -> ProtocolError:
    return ProtocolError(f"payload of {size} bytes is over the limit of {limit}", text=_PAYLOAD_VIOLATION)


def _bad_arguments(operation: str, arguments: bytes) -> ProtocolError:
    return ProtocolError(f"bad arguments of {operation}: {arguments[:80]!r}")


class ClientParser(Parser):
    """Reads what a server sends: INFO, MSG, HMSG, PING, PONG, +OK, -ERR.

    Args:
        message_type: what to build of a message, called with subject, sid, reply, header and payload.
    """

    def __init__(
        self,
        *,
        max_control_line: int = CLIENT_MAX_CONTROL_LINE,
        max_payload: int = CLIENT_MAX_PAYLOAD,
        message_type: type[Msg] = Msg,
    ) -> None:
        super().__init__(max_control_line=max_control_line, max_payload=max_payload)
        self._message_type = message_type

    def _scan(self, data: bytes, position: int, frames: list[Frame]) -> None:
        find = data.find
        append = frames.append
        sizes = _sizes
        message_type = self._message_type
        max_control_line = self.max_control_line
        max_payload = self.max_payload
        length = len(data)
        while position < length:
            line_end = find(b"\n", position)
            if line_end < 0:
                self._keep_line(data, position)
                return
            parts = data[position:line_end].split()
            count = len(parts)
            start = line_end + 1
            if count == 5 and parts[0] == b"MSG":
                _, subject, sid, reply, digits = parts
                end = start + sizes[digits]
                header = b""
                payload_start = start
            elif count == 4 and parts[0] == b"MSG":
                _, subject, sid, digits = parts
                reply = header = b""
                end = start + sizes[digits]
                payload_start = start
            elif count == 6 and parts[0] == b"HMSG":
                _, subject, sid, reply, header_digits, digits = parts
                payload_start = start + sizes[header_digits]
                end = start + sizes[digits]
                header = data[start:payload_start]
            else:
                position = self._read_line(data[position:start], data, start, frames)
                continue
            if end + 2 > length or end - start > max_payload or payload_start > end:
                position = self._read_line(data[position:start], data, start, frames)
                continue
            if start - position > max_control_line or data[end] != 13 or data[end + 1] != 10:
                position = self._read_line(data[position:start], data, start, frames)
                continue
            append(message_type(subject, sid, reply, header, data[payload_start:end]))
            position = end + 2

    def _read_msg(self, arguments: bytes) -> None:
        match arguments.split():
            case [subject, sid, size]:
                reply = b""
            case [subject, sid, reply, size]:
                pass
            case _:
                raise _bad_arguments("MSG", arguments)
        self._expect(lambda header, payload: self._message_type(subject, sid, reply, header, payload), b"0", size)

    def _read_hmsg(self, arguments: bytes) -> None:
        match arguments.split():
            case [subject, sid, header_size, size]:
                reply = b""
            case [subject, sid, reply, header_size, size]:
                pass
            case _:
                raise _bad_arguments("HMSG", arguments)
        self._expect(
            lambda header, payload: self._message_type(subject, sid, reply, header, payload), header_size, size
        )

    def _read_info(self, arguments: bytes) -> Frame:
        return Info(arguments)

    def _read_ok(self, arguments: bytes) -> Frame:
        return _OK

    def _read_err(self, arguments: bytes) -> Frame:
        text = arguments.decode("utf-8", "backslashreplace")
        if len(text) >= 2 and text[0] == text[-1] == "'":
            text = text[1:-1]
        return Err(text)

    _operations = {
        b"MSG": _read_msg,
        b"HMSG": _read_hmsg,
        b"PING": Parser._read_ping,
        b"PONG": Parser._read_pong,
        b"INFO": _read_info,
        b"+OK": _read_ok,
        b"-ERR": _read_err,
    }


class ServerParser(Parser):
    """Reads what a client sends: CONNECT, PUB, HPUB, SUB, UNSUB, PING, PONG.

    Args:
        message_type: what to build of a message, called with subject, reply, header and payload.
    """

    def __init__(
        self,
        *,
        max_control_line: int = MAX_CONTROL_LINE,
        max_payload: int = MAX_PAYLOAD,
        message_type: type[Pub] = Pub,
    ) -> None:
        super().__init__(max_control_line=max_control_line, max_payload=max_payload)
        self._message_type = message_type

    def _scan(self, data: bytes, position: int, frames: list[Frame]) -> None:
        find = data.find
        append = frames.append
        sizes = _sizes
        message_type = self._message_type
        max_control_line = self.max_control_line
        max_payload = self.max_payload
        length = len(data)
        while position < length:
            line_end = find(b"\n", position)
            if line_end < 0:
                self._keep_line(data, position)
                return
            parts = data[position:line_end].split()
            count = len(parts)
            start = line_end + 1
            if count == 4 and parts[0] == b"PUB":
                _, subject, reply, digits = parts
                end = start + sizes[digits]
                header = b""
                payload_start = start
            elif count == 3 and parts[0] == b"PUB":
                _, subject, digits = parts
                reply = header = b""
                end = start + sizes[digits]
                payload_start = start
            elif count == 5 and parts[0] == b"HPUB":
                _, subject, reply, header_digits, digits = parts
                payload_start = start + sizes[header_digits]
                end = start + sizes[digits]
                header = data[start:payload_start]
            else:
                position = self._read_line(data[position:start], data, start, frames)
                continue
            if end + 2 > length or end - start > max_payload or payload_start > end:
                position = self._read_line(data[position:start], data, start, frames)
                continue
            if start - position > max_control_line or data[end] != 13 or data[end + 1] != 10:
                position = self._read_line(data[position:start], data, start, frames)
                continue
            append(message_type(subject, reply, header, data[payload_start:end]))
            position = end + 2

    def _read_pub(self, arguments: bytes) -> None:
        match arguments.split():
            case [subject, size]:
                reply = b""
            case [subject, reply, size]:
                pass
            case _:
                raise _bad_arguments("PUB", arguments)
        self._expect(lambda header, payload: self._message_type(subject, reply, header, payload), b"0", size)

    def _read_hpub(self, arguments: bytes) -> None:
        match arguments.split():
            case [subject, header_size, size]:
                reply = b""
            case [subject, reply, header_size, size]:
                pass
            case _:
                raise _bad_arguments("HPUB", arguments)
        self._expect(lambda header, payload: self._message_type(subject, reply, header, payload), header_size, size)

    def _read_sub(self, arguments: bytes) -> Frame:
        match arguments.split():
            case [subject, sid]:
                return Sub(subject, b"", sid)
            case [subject, queue, sid]:
                return Sub(subject, queue, sid)
        raise _bad_arguments("SUB", arguments)

    def _read_unsub(self, arguments: bytes) -> Frame:
        match arguments.split():
            case [sid]:
                return Unsub(sid, 0)
            case [sid, count]:
                return Unsub(sid, _sizes[count])
        raise _bad_arguments("UNSUB", arguments)

    def _read_connect(self, arguments: bytes) -> Frame:
        return Connect(arguments)

    _operations = {
        b"PUB": _read_pub,
        b"HPUB": _read_hpub,
        b"SUB": _read_sub,
        b"UNSUB": _read_unsub,
        b"CONNECT": _read_connect,
        b"PING": Parser._read_ping,
        b"PONG": Parser._read_pong,
    }
