"""Bytes to frames: the server's and the client's parser, fed with whatever a socket gave.

Each has one loop that takes whole message frames straight out of the read buffer: find the line's end, split the line,
slice the payload. Whatever is not such a frame (another verb, another spelling, a frame cut by the end of the read, a
limit passed) takes the general path, which keeps what it has seen and resumes there with the next read.
No byte is searched twice, and a payload is copied once, out of the read buffer.

The reasons are in decisions 2 and 24 (docs/decisions).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from io import BytesIO
from itertools import repeat
from typing import ClassVar

from jetlake.errors import ProtocolError
from jetlake.protocol.ack_runs import ACK_SIZE_MAX, read_ack_run
from jetlake.protocol.control_lines import (
    SIZE_DIGITS_MAX,
    SIZES,
    bad_arguments,
    control_line_exceeded,
    message_arguments,
    payload_violation,
    read_size,
    unknown_operation,
    verb_pattern,
)
from jetlake.protocol.frames import Connect, Err, Frame, Info, Msg, Ok, Ping, Pong, Pub, Sub, Unsub
from jetlake.protocol.message_runs import RUN_BYTES_MIN, RunReader
from jetlake.protocol.publish_runs import LINE_MAX, SIZE_MAX, PublishRuns

__all__ = ["ClientParser", "GeneralParser", "Parser", "ServerParser"]

MAX_CONTROL_LINE = 4096
MAX_PAYLOAD = 1024 * 1024

# A client must take what its server took: subjects up to the server's limit with a reply beside them, long INFO lines,
# and messages to which headers were added on the way. These bounds only keep a broken peer from filling the memory.
CLIENT_MAX_CONTROL_LINE = 1024 * 1024
CLIENT_MAX_PAYLOAD = 65 * 1024 * 1024

_CRLF = b"\r\n"
_OK = Ok()
_PING = Ping()
_PONG = Pong()

Reader = Callable[..., Frame | None]


class GeneralParser:
    """Reads any verb in any spelling, lines and messages in pieces, within every limit.

    Complete by itself; the parsers of the two directions only add a loop that is faster for whole messages.

    Attributes:
        error: the violation that ended the stream of frames, or None.
        position: where in its data the last `feed` stopped; the data's length when it took everything.
        message_count: how many frames the last `feed` returned, each publish and acknowledgement in a run counted.
        max_control_line: how long the arguments on one line may be, in bytes.
        max_payload: how long header and payload of one message may be together, in bytes; may be changed at any time.
    """

    _readers: ClassVar[dict[bytes, Reader]]
    """What reads the arguments of each verb: a frame, or None when a message body is now awaited."""
    _verb: ClassVar[re.Pattern[bytes]]
    """A verb at the beginning of a line, with the blank behind it."""

    def __init__(self, *, max_control_line: int, max_payload: int) -> None:
        self.error: ProtocolError | None = None
        self.position = 0
        self.message_count = 0
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        self._run_surplus = 0  # how many messages the runs have beyond the first of each
        self._line = bytearray()
        self._body: MessageBody | None = None

    def feed(self, data: bytes, position: int = 0, lines: int | None = None) -> list[Frame]:
        """Return all frames that are whole with this data; a rest is kept for the next call.

        After a violation `error` is set, the frames before it are still returned, and later calls return nothing.

        Args:
            position: where the data begins; above 0 only where the last call stopped in the same data.
            lines: most lines to read; the next call resumes at `self.position`.
        """
        frames: list[Frame] = []
        self.position = len(data)
        self._run_surplus = 0
        if self.error is None:
            try:
                if self._body is not None or self._line:
                    position = self._resume(data, frames)
                position = self._scan(data, position, frames, lines or len(data))
                if lines is not None and data.find(b"\n", position) >= 0:
                    self.position = position
                elif position < len(data):
                    self._keep_line(data, position)
            except ProtocolError as error:
                self.error = error.with_traceback(None)  # The traceback would keep the data alive.
                self._line.clear()
                self._body = None
        self.message_count = len(frames) + self._run_surplus
        return frames

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        """Read at most `lines` lines that end in this data; returns where the rest begins."""
        for _ in repeat(None, lines):
            line_end = data.find(b"\n", position)
            if line_end < 0:
                break
            position = self._read_line(data[position:line_end], data, line_end + 1, frames)
        return position

    def _resume(self, data: bytes, frames: list[Frame]) -> int:
        """Complete the frame that the last read cut off; returns where the next line begins."""
        if self._body is not None:
            return self._fill(data, 0, frames)
        line_end = data.find(b"\n")
        if line_end < 0:
            self._keep_line(data, 0)
            return len(data)
        self._line += memoryview(data)[:line_end]
        line = bytes(self._line)
        self._line.clear()
        return self._read_line(line, data, line_end + 1, frames)

    def _keep_line(self, data: bytes, position: int) -> None:
        """Keep a line whose end has not come, as long as it can still become a valid one."""
        line = self._line
        line += memoryview(data)[position:]
        verb = self._verb.match(line)
        if verb is not None:
            if len(line) - verb.end() - line.endswith(b"\r") > self.max_control_line:
                raise control_line_exceeded(self.max_control_line)
            return
        word = bytes(line[:20]).upper()
        if not any(known.startswith(word) for known in self._readers):
            raise unknown_operation(word)

    def _read_line(self, line: bytes, data: bytes, position: int, frames: list[Frame]) -> int:
        """Read one control line, and what there is of its message at `position`; returns where the next line begins."""
        word, blank, arguments = line.partition(b" ")
        reader = self._readers.get(word) if blank else None
        if reader is None:
            verb = self._verb.match(line)
            if verb is None:
                raise unknown_operation(line)
            reader = self._readers[verb[verb.lastindex or 0].upper()]
            arguments = line[verb.end() :]
        arguments = arguments.removesuffix(b"\r")
        if len(arguments) > self.max_control_line:
            raise control_line_exceeded(self.max_control_line)
        frame = reader(self, arguments)
        if frame is None:
            return self._fill(data, position, frames)
        frames.append(frame)
        return position

    def _await(self, make: Callable[[bytes, bytes], Frame], header_size: int, size: int) -> None:
        """Await a message of these sizes, unless they break a limit."""
        if header_size > size:
            raise ProtocolError(f"header of {header_size} bytes in a message of {size}")
        if size > self.max_payload:
            raise payload_violation(size, self.max_payload)
        self._body = MessageBody(make, header_size, size - header_size)

    def _fill(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Take what there is of the awaited message; returns where the next line begins."""
        body = self._body
        assert body is not None
        position = body.take(data, position)
        if body.is_whole:
            self._body = None
            frames.append(body.frame())
        elif body.is_broken:
            raise ProtocolError("payload is not followed by CRLF", text="Unknown Protocol Operation")
        return position

    def _read_ping(self, arguments: bytes) -> Frame:
        return _PING

    def _read_pong(self, arguments: bytes) -> Frame:
        return _PONG

    def _read_connect(self, arguments: bytes) -> Frame:
        return Connect(arguments.strip())

    def _read_info(self, arguments: bytes) -> Frame:
        return Info(arguments.strip())

    def _read_ok(self, arguments: bytes) -> Frame:
        return _OK


class ClientParser(GeneralParser):
    """Reads what a server sends: INFO, MSG, HMSG, PING, PONG, +OK, -ERR.

    Args:
        message_type: what to build of a message, called with subject, sid, reply, header and payload.
        message_runs: yield small messages that fill a read as a `MessageRun` for each subscription in turn.
    """

    def __init__(
        self,
        *,
        max_control_line: int = CLIENT_MAX_CONTROL_LINE,
        max_payload: int = CLIENT_MAX_PAYLOAD,
        message_type: type[Msg] = Msg,
        message_runs: bool = False,
    ) -> None:
        super().__init__(max_control_line=max_control_line, max_payload=max_payload)
        self._message_type = message_type
        self._runs = RunReader() if message_runs else None

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        size = len(data) - position
        # A read within the limits holds nothing that breaks them.
        if self._runs is not None and RUN_BYTES_MIN <= size <= min(self.max_control_line, self.max_payload, lines):
            found = self._runs.read(data, position)
            if found is not None:
                runs, position = found
                frames += runs
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
        subject, sid, reply, digits = message_arguments("MSG", arguments, 2, 1)
        self._await(partial(self._message_type, subject, sid, reply), 0, read_size(digits))

    def _read_hmsg(self, arguments: bytes) -> None:
        subject, sid, reply, header_digits, digits = message_arguments("HMSG", arguments, 2, 2)
        self._await(partial(self._message_type, subject, sid, reply), read_size(header_digits), read_size(digits))

    def _read_err(self, arguments: bytes) -> Frame:
        text = arguments.strip().decode("utf-8", "backslashreplace")
        if len(text) >= 2 and text[0] == text[-1] == "'":
            text = text[1:-1]
        return Err(text)

    _readers = {
        b"MSG": _read_msg,
        b"HMSG": _read_hmsg,
        b"INFO": GeneralParser._read_info,
        b"PING": GeneralParser._read_ping,
        b"PONG": GeneralParser._read_pong,
        b"+OK": GeneralParser._read_ok,
        b"-ERR": _read_err,
    }
    _verb = verb_pattern(spaced=(b"MSG", b"HMSG"), loose=(b"INFO", b"PING", b"PONG", b"+OK", b"-ERR"))


class ServerParser(GeneralParser):
    """Reads what a client sends: CONNECT, PUB, HPUB, SUB, UNSUB, PING, PONG.

    Args:
        message_type: what to build of a message, called with subject, reply, header and payload.
        ack_runs: yield consecutive acknowledgements of one consumer as an `AckRun`.
        publish_runs: reads publishes that follow each other as a `PubRun`; None yields each by itself.
    """

    def __init__(
        self,
        *,
        max_control_line: int = MAX_CONTROL_LINE,
        max_payload: int = MAX_PAYLOAD,
        message_type: type[Pub] = Pub,
        ack_runs: bool = False,
        publish_runs: PublishRuns | None = None,
    ) -> None:
        super().__init__(max_control_line=max_control_line, max_payload=max_payload)
        self._message_type = message_type
        self._ack_runs = ack_runs
        self._publish_runs = publish_runs

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        if self._publish_runs is not None and len(data) - position >= RUN_BYTES_MIN and self._allows_publish_runs():
            found = self._publish_runs.read(data, position)
            if found is not None:
                run, position = found
                frames.append(run)
                self._run_surplus += len(run.subjects) - 1
                if len(run.subjects) >= lines:
                    return position
        return self._scan_frames(data, position, frames, lines)

    def _scan_frames(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
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
                                self._run_surplus += len(run.sequences) - 1
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
                    if (
                        data[end] == 13
                        and data[end + 1] == 10
                        and middle <= end
                        and (end - position <= short or end - max_payload <= start <= position + max_line)
                    ):
                        append(message_type(subject, reply, data[start:middle], data[middle:end]))
                        position = end + 2
                        continue
            except (LookupError, ValueError):
                pass  # Another spelling, a wrong number of arguments, or a frame that is not whole.
            position = self._read_line(data[position:line_end], data, start, frames)
        return position

    def _reads_ack_runs(self) -> bool:
        """Return whether acknowledgements may be read as runs; a limit below their size is checked one by one."""
        return self._ack_runs and self.max_payload >= ACK_SIZE_MAX

    def _allows_publish_runs(self) -> bool:
        """Return whether no publish of a run can break a limit."""
        return self.max_control_line >= LINE_MAX and self.max_payload >= SIZE_MAX

    def _read_pub(self, arguments: bytes) -> None:
        subject, reply, digits = message_arguments("PUB", arguments, 1, 1)
        self._await(partial(self._message_type, subject, reply), 0, read_size(digits))

    def _read_hpub(self, arguments: bytes) -> None:
        subject, reply, header_digits, digits = message_arguments("HPUB", arguments, 1, 2)
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

    _readers = {
        b"PUB": _read_pub,
        b"HPUB": _read_hpub,
        b"SUB": _read_sub,
        b"UNSUB": _read_unsub,
        b"CONNECT": GeneralParser._read_connect,
        b"PING": GeneralParser._read_ping,
        b"PONG": GeneralParser._read_pong,
    }
    _verb = verb_pattern(spaced=(b"PUB", b"HPUB", b"SUB", b"UNSUB"), loose=(b"CONNECT", b"PING", b"PONG"))


Parser = ClientParser | ServerParser
"""Either direction: the same `feed`, `error` and limits."""


class MessageBody:
    """A message whose control line was read: collects header, payload and line end from as many reads as they take.

    Args:
        make: builds the frame of header and payload.
        header_size: how many bytes of header come first.
        payload_size: how many bytes of payload follow them.
    """

    __slots__ = ("_header", "_header_missing", "_line_end", "_make", "_payload", "_payload_missing")

    def __init__(self, make: Callable[[bytes, bytes], Frame], header_size: int, payload_size: int) -> None:
        self._make = make
        # BytesIO returns its bytes without another copy.
        self._header = BytesIO() if header_size else None
        self._payload = BytesIO()
        self._header_missing = header_size
        self._payload_missing = payload_size
        self._line_end = b""

    def take(self, data: bytes, position: int) -> int:
        """Take the bytes of the message; returns the position behind them."""
        view = memoryview(data)
        if self._header is not None and self._header_missing:
            taken = self._header.write(view[position : position + self._header_missing])
            self._header_missing -= taken
            if self._header_missing:
                return position + taken
            position += taken
        if self._payload_missing:
            taken = self._payload.write(view[position : position + self._payload_missing])
            self._payload_missing -= taken
            if self._payload_missing:
                return position + taken
            position += taken
        line_end = data[position : position + 2 - len(self._line_end)]
        self._line_end += line_end
        return position + len(line_end)

    @property
    def is_whole(self) -> bool:
        """Whether the message is complete, with its line end."""
        return self._line_end == _CRLF

    @property
    def is_broken(self) -> bool:
        """Whether the message is followed by something other than a line end."""
        return not _CRLF.startswith(self._line_end)

    def frame(self) -> Frame:
        """Return the frame of the whole message."""
        header = self._header.getvalue() if self._header is not None else b""
        return self._make(header, self._payload.getvalue())
