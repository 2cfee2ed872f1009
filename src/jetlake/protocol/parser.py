"""Bytes to frames: the server's and the client's parser, fed with whatever a socket gave.

Each has one loop that takes whole message frames straight out of the read buffer: find the line's end, split the line,
slice the payload. Whatever is not such a frame (another verb, another spelling, a frame cut by the end of the read, a
limit passed) takes the general path, which keeps what it has seen and goes on from there with the next read.
No byte is searched twice, and a payload is copied once, out of the read buffer.

The reasons are in decisions 2 and 24 (docs/decisions).
"""

from __future__ import annotations

from functools import partial
from itertools import repeat

from jetlake.protocol.ack_runs import ACK_SIZE_MAX, read_ack_run
from jetlake.protocol.frames import Connect, Err, Frame, Info, Msg, Ok, Pub, Sub, Unsub
from jetlake.protocol.general_parser import (
    SIZE_DIGITS_MAX,
    SIZES,
    GeneralParser,
    bad_arguments,
    read_ping,
    read_pong,
    read_size,
    verb_pattern,
)

__all__ = ["ClientParser", "Parser", "ServerParser"]

MAX_CONTROL_LINE = 4096
MAX_PAYLOAD = 1024 * 1024

# A client must take what its server took: subjects up to the server's limit with a reply beside them, long INFO lines,
# and messages to which headers were added on the way. These bounds only keep a broken peer from filling the memory.
CLIENT_MAX_CONTROL_LINE = 1024 * 1024
CLIENT_MAX_PAYLOAD = 65 * 1024 * 1024

_OK = Ok()


class ClientParser(GeneralParser):
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

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        find = data.find
        append = frames.append
        sizes = SIZES
        message_type = self._message_type
        max_line = self.max_control_line
        max_payload = self.max_payload
        short = min(max_line, max_payload)  # A frame as short as this breaks no limit.
        for _ in repeat(None, lines):
            line_end = find(b"\n", position)
            if line_end < 0:
                break
            start = line_end + 1
            parts = data[position:line_end].split()
            count = len(parts)
            try:
                verb = data[position : position + 4]  # of the line, which may begin with blanks: those are refused
                if verb == b"MSG ":
                    if count == 5:
                        _, subject, sid, reply, digits = parts
                    else:
                        _, subject, sid, digits = parts
                        reply = b""
                    end = start + sizes[digits]
                    if (
                        data[end] == 13
                        and data[end + 1] == 10
                        and (end - position <= short or end - max_payload <= start <= position + max_line)
                    ):
                        append(message_type(subject, sid, reply, b"", data[start:end]))
                        position = end + 2
                        continue
                elif verb == b"HMSG" and data[position + 4] == 32:
                    if count == 6:
                        _, subject, sid, reply, header_digits, digits = parts
                    else:
                        _, subject, sid, header_digits, digits = parts
                        reply = b""
                    middle = start + sizes[header_digits]
                    end = start + sizes[digits]
                    if (
                        data[end] == 13
                        and data[end + 1] == 10
                        and middle <= end
                        and (end - position <= short or end - max_payload <= start <= position + max_line)
                    ):
                        append(message_type(subject, sid, reply, data[start:middle], data[middle:end]))
                        position = end + 2
                        continue
            except (LookupError, ValueError):
                pass  # Another spelling, a wrong number of arguments, or a frame that is not whole.
            position = self._read_line(data[position:line_end], data, start, frames)
        return position

    def _read_msg(self, arguments: bytes) -> None:
        parts = arguments.split()
        if len(parts) == 4:
            subject, sid, reply, digits = parts
        elif len(parts) == 3:
            subject, sid, digits = parts
            reply = b""
        else:
            raise bad_arguments("MSG", arguments)
        self._await(partial(self._message_type, subject, sid, reply), 0, read_size(digits))

    def _read_hmsg(self, arguments: bytes) -> None:
        parts = arguments.split()
        if len(parts) == 5:
            subject, sid, reply, header_digits, digits = parts
        elif len(parts) == 4:
            subject, sid, header_digits, digits = parts
            reply = b""
        else:
            raise bad_arguments("HMSG", arguments)
        self._await(partial(self._message_type, subject, sid, reply), read_size(header_digits), read_size(digits))

    def _read_info(self, arguments: bytes) -> Frame:
        return Info(arguments.strip())

    def _read_ok(self, arguments: bytes) -> Frame:
        return _OK

    def _read_err(self, arguments: bytes) -> Frame:
        text = arguments.strip().decode("utf-8", "backslashreplace")
        if len(text) >= 2 and text[0] == text[-1] == "'":
            text = text[1:-1]
        return Err(text)

    _readers = {
        b"MSG": _read_msg,
        b"HMSG": _read_hmsg,
        b"INFO": _read_info,
        b"PING": read_ping,
        b"PONG": read_pong,
        b"+OK": _read_ok,
        b"-ERR": _read_err,
    }
    _verb = verb_pattern(spaced=(b"MSG", b"HMSG"), loose=(b"INFO", b"PING", b"PONG", b"+OK", b"-ERR"))


class ServerParser(GeneralParser):
    """Reads what a client sends: CONNECT, PUB, HPUB, SUB, UNSUB, PING, PONG.

    Args:
        message_type: what to build of a message, called with subject, reply, header and payload.
        ack_runs: yield consecutive acknowledgements of one consumer as an `AckRun`.
    """

    def __init__(
        self,
        *,
        max_control_line: int = MAX_CONTROL_LINE,
        max_payload: int = MAX_PAYLOAD,
        message_type: type[Pub] = Pub,
        ack_runs: bool = False,
    ) -> None:
        super().__init__(max_control_line=max_control_line, max_payload=max_payload)
        self._message_type = message_type
        self._ack_runs = ack_runs

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        find = data.find
        append = frames.append
        sizes = SIZES
        message_type = self._message_type
        ack_runs = self._reads_ack_runs()
        max_line = self.max_control_line
        max_payload = self.max_payload
        short = min(max_line, max_payload)  # A frame as short as this breaks no limit.
        for _ in repeat(None, lines):
            line_end = find(b"\n", position)
            if line_end < 0:
                break
            start = line_end + 1
            parts = data[position:line_end].split()
            count = len(parts)
            try:
                verb = data[position : position + 4]  # of the line, which may begin with blanks: those are refused
                if verb == b"PUB ":
                    if count == 4:
                        _, subject, reply, digits = parts
                    else:
                        _, subject, digits = parts
                        reply = b""
                        if ack_runs and subject.startswith(b"$JS.ACK."):
                            run = read_ack_run(data, position, subject, digits, max_line)
                            if run is not None:
                                append(run)
                                position += len(run.data)
                                if len(run.sequences) >= lines:
                                    break
                                continue
                    end = start + sizes[digits]
                    if (
                        data[end] == 13
                        and data[end + 1] == 10
                        and (end - position <= short or end - max_payload <= start <= position + max_line)
                    ):
                        append(message_type(subject, reply, b"", data[start:end]))
                        position = end + 2
                        continue
                elif verb == b"HPUB" and data[position + 4] == 32:
                    if count == 5:
                        _, subject, reply, header_digits, digits = parts
                    else:
                        _, subject, header_digits, digits = parts
                        reply = b""
                    middle = start + sizes[header_digits]
                    end = start + sizes[digits]
                    fits = end - max_payload <= start <= position + max_line
                    if fits and middle <= end and data[end : end + 2] == b"\r\n":
                        append(message_type(subject, reply, data[start:middle], data[middle:end]))
                        position = end + 2
                        continue
            except (LookupError, ValueError):
                pass  # Another spelling, a wrong number of arguments, or a frame that is not whole.
            position = self._read_line(data[position:line_end], data, start, frames)
        return position

    def _reads_ack_runs(self) -> bool:
        """Whether acknowledgements may be read as runs; a limit below their size is checked one by one."""
        return self._ack_runs and self.max_payload >= ACK_SIZE_MAX

    def _read_pub(self, arguments: bytes) -> None:
        parts = arguments.split()
        if len(parts) == 3:
            subject, reply, digits = parts
        elif len(parts) == 2:
            subject, digits = parts
            reply = b""
        else:
            raise bad_arguments("PUB", arguments)
        self._await(partial(self._message_type, subject, reply), 0, read_size(digits))

    def _read_hpub(self, arguments: bytes) -> None:
        parts = arguments.split()
        if len(parts) == 4:
            subject, reply, header_digits, digits = parts
        elif len(parts) == 3:
            subject, header_digits, digits = parts
            reply = b""
        else:
            raise bad_arguments("HPUB", arguments)
        self._await(partial(self._message_type, subject, reply), read_size(header_digits), read_size(digits))

    def _read_sub(self, arguments: bytes) -> Frame:
        match arguments.split():
            case [subject, sid]:
                return Sub(subject, b"", sid)
            case [subject, queue, sid]:
                return Sub(subject, queue, sid)
        raise bad_arguments("SUB", arguments)

    def _read_unsub(self, arguments: bytes) -> Frame:
        match arguments.split():
            case [sid]:
                return Unsub(sid, 0)
            case [sid, count]:
                # A count that is none means now, as it does to nats-server.
                return Unsub(sid, int(count) if count.isdigit() and len(count) <= SIZE_DIGITS_MAX else 0)
        raise bad_arguments("UNSUB", arguments)

    def _read_connect(self, arguments: bytes) -> Frame:
        return Connect(arguments.strip())

    _readers = {
        b"PUB": _read_pub,
        b"HPUB": _read_hpub,
        b"SUB": _read_sub,
        b"UNSUB": _read_unsub,
        b"CONNECT": _read_connect,
        b"PING": read_ping,
        b"PONG": read_pong,
    }
    _verb = verb_pattern(spaced=(b"PUB", b"HPUB", b"SUB", b"UNSUB"), loose=(b"CONNECT", b"PING", b"PONG"))


Parser = ClientParser | ServerParser
"""Either direction: the same `feed`, `error` and limits."""
