"""What a connection writes: one write for each turn of the event loop, and kept up to a limit while there is no server.

A lone request goes out at once, so that nothing waits for the end of a turn that is otherwise idle.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from jetlake.client.messages.ready import READY, Ready
from jetlake.client.messages.statistics import Traffic
from jetlake.errors import ConnectionClosedError, JetlakeError, OutboundBufferFullError

if TYPE_CHECKING:
    from jetlake.client.connection.wire_protocol import WireProtocol
    from jetlake.client.messages.message import Message

__all__ = ["BackPressure", "Outbox", "check_loop"]

_TURN_BYTES_MAX = 64 * 1024
_TURN_FRAMES_MAX = 256
"""Frames of one turn that are written before its end, so that the server works while a thousand messages are acked."""

Confirm = Callable[[bytes, bytes, float | None], Awaitable["Message"]]
"""Sends an acknowledgement to a subject, and waits so many seconds for the answer."""

Grow = Callable[[], tuple[bytes, int]]
"""Returns all frames that a publisher has gathered until they are written, and how many they are."""


class Outbox:
    """Frames on their way to the connected server.

    Messages answer through it too, so that an acknowledgement is one call.

    Args:
        loop: the event loop.
        kept_bytes_max: most bytes that are kept while there is no server.
        confirm: sends an acknowledgement and waits for the answer.
        check_size: refuses headers and payloads of more bytes than the server takes.

    Attributes:
        frames: what is written at the end of this turn; always this list. Who finds it filled may add to it, since
            then there is a socket and the write is scheduled.
        traffic: counts what is sent and received.
    """

    __slots__ = (
        "_growing",
        "_is_closed",
        "_is_scheduled",
        "_kept",
        "_kept_bytes",
        "_kept_bytes_max",
        "_loop",
        "_next_key",
        "_turn_bytes",
        "_wire",
        "check_size",
        "confirm",
        "frames",
        "traffic",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kept_bytes_max: int,
        confirm: Confirm,
        check_size: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._kept_bytes_max = kept_bytes_max
        self.confirm = confirm
        self.check_size = check_size
        self._wire: WireProtocol | None = None
        self.frames: list[bytes] = []
        self._growing: list[tuple[int, Grow]] = []
        self._is_scheduled = False
        self._turn_bytes = 0
        # Insertion order is the order of sending. Requests are found by their reply subject, the others by a number.
        self._kept: dict[bytes | int, bytes] = {}
        self._next_key = 0
        self._kept_bytes = 0
        self._is_closed = False
        self.traffic = Traffic()

    @property
    def is_connected(self) -> bool:
        """Whether frames go to a server, or are kept for the next one."""
        return self._wire is not None

    # Writing

    def send(self, frame: bytes) -> None:
        """Write the frame at the end of this turn of the event loop.

        Raises:
            ConnectionClosedError: the connection is closed.
            OutboundBufferFullError: there is no server and the limit of kept writes is reached.
        """
        frames = self.frames
        if frames:
            frames.append(frame)
            if len(frames) >= _TURN_FRAMES_MAX:
                self._write()
        else:
            self._send_first(frame)

    def _send_first(self, frame: bytes) -> None:
        check_loop(self._loop)
        if self._wire is not None:
            self.frames.append(frame)
            self.expect_frames()
        else:
            self._keep_or_refuse(frame, b"")

    def _keep_or_refuse(self, frame: bytes, key: bytes) -> None:
        if self._is_closed:
            raise ConnectionClosedError("the connection is closed")
        if not self._keep(frame, key):
            raise OutboundBufferFullError(
                f"no server is connected and {self._kept_bytes_max} bytes wait already (pending_bytes_max)"
            )

    def _keep(self, frame: bytes, key: bytes = b"") -> bool:
        """Keep the frame for the next connection, if there is room."""
        if self._kept_bytes + len(frame) > self._kept_bytes_max:
            return False
        self._next_key += 1
        self._kept[key or self._next_key] = frame
        self._kept_bytes += len(frame)
        return True

    def send_now(self, frame: bytes, key: bytes = b"") -> None:
        """Write the frame at once if it is the first of this turn, so that a lone request has no delay.

        Args:
            frame: what to write.
            key: by which `withdraw` finds the frame while there is no server.
        """
        if self._wire is None:
            self._keep_or_refuse(frame, key)
        elif self._is_scheduled:
            self.frames.append(frame)
        else:
            self._is_scheduled = True
            self._loop.call_soon(self.end_turn)
            self.traffic.frames_sent += 1
            self._wire.write(frame)

    def send_run(self, frames: bytes, count: int) -> None:
        """Write so many frames as `send` writes one."""
        self.send(frames)
        self.traffic.frames_sent += count - 1

    def send_growing(self, frame: bytes, grow: Grow) -> None:
        """Write what `grow` returns at the end of this turn, in the place of the frame; there are others before it."""
        self._growing.append((len(self.frames), grow))
        self.frames.append(frame)

    def send_bulk(self, frame: bytes) -> Ready | BackPressure:
        """Write the frame as `send` does; awaiting the result waits while the socket's buffer is full."""
        if self.frames:
            self.frames.append(frame)
        else:
            self._send_first(frame)
        self._turn_bytes += len(frame)
        if self._turn_bytes < _TURN_BYTES_MAX:
            return READY
        return BackPressure(self)

    def expect_frames(self) -> None:
        """Write at the end of this turn what is sent until then.

        Whoever wakes a task that is about to send calls this right behind: the write then follows the task's step at
        once, where one that the task's first frame scheduled would take another turn of the event loop.
        """
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Write everything that waits."""
        self._is_scheduled = False
        self._turn_bytes = 0
        self._write()

    def _write(self) -> None:
        frames = self.frames
        if frames and self._wire is not None:
            if self._growing:
                self._grow()
            self.traffic.frames_sent += len(frames)
            data = b"".join(frames)
            frames.clear()
            self._wire.write(data)

    def _grow(self) -> None:
        growing, self._growing = self._growing, []
        for position, grow in growing:
            self.frames[position], count = grow()
            self.traffic.frames_sent += count - 1

    async def apply_back_pressure(self) -> None:
        """Write what waits, let the event loop read, and wait while the socket's buffer is full."""
        self.end_turn()
        await asyncio.sleep(0)
        if self._wire is not None:
            await self._wire.writable()

    # What the connection tells

    def connected(self, wire: WireProtocol, subscriptions: bytes) -> None:
        """Write the subscriptions to the new server; `send_kept` follows."""
        self._wire = wire
        if subscriptions:
            self.send_run(subscriptions, subscriptions.count(b"\r\n"))

    def send_kept(self, payload_bytes_max: int) -> int:
        """Write what is sent already on this connection, then the kept frames.

        What receivers send again comes first, so that an acknowledgement never overtakes a publish that was called
        before it.

        Args:
            payload_bytes_max: most bytes of headers and payload that this server takes; for more it would close the
                connection, and take the frames behind with it.

        Returns:
            How many publishes were dropped, because they are larger.
        """
        dropped = 0
        for frames in self._kept.values():
            if len(frames) > payload_bytes_max and max(sizes := _publish_sizes(frames)) > payload_bytes_max:
                dropped += len(sizes)
            else:
                self.frames.append(frames)
        self._forget_kept()
        self.end_turn()
        return dropped

    def disconnected(self) -> int:
        """Keep the unsent frames, since the server is gone, and return how many publishes of them found no room.

        What was not handed to the socket yet was never sent, so it belongs on the next connection, as far as there is
        room. Subscriptions are made there anyway, and pings were meant for the lost one.
        """
        self._wire = None
        self._grow()
        unsent = [frame for frame in self.frames if frame.startswith((b"PUB ", b"HPUB "))]
        self.frames.clear()
        return sum(len(_publish_sizes(frame)) for frame in unsent if not self._keep(frame))

    @property
    def kept_messages(self) -> int:
        """The publishes that wait for a server, without requests, whose callers learn of it."""
        return sum(len(_publish_sizes(frames)) for key, frames in self._kept.items() if type(key) is int)

    def forget_unsent(self, inbox: bytes) -> None:
        """Do not send what waits for a server and asks for an answer under this inbox: its owner sees to it."""
        self._kept = {key: frame for key, frame in self._kept.items() if not _reply(frame).startswith(inbox)}
        self._kept_bytes = sum(map(len, self._kept.values()))

    def withdraw(self, key: bytes) -> None:
        """Do not send the frame of this key, if it still waits for a server."""
        frame = self._kept.pop(key, None)
        if frame is not None:
            self._kept_bytes -= len(frame)

    def close(self) -> None:
        """Write what waits for this turn, and take nothing more."""
        self.end_turn()
        self._is_closed = True
        self._wire = None
        self.frames.clear()
        self._forget_kept()

    def _forget_kept(self) -> None:
        self._kept = {}
        self._kept_bytes = 0


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse calls from another thread or event loop, which would be seen late or never.

    Raises:
        JetlakeError: this is not the event loop that the client was made on.
    """
    if asyncio._get_running_loop() is not loop:
        raise JetlakeError(
            "the client belongs to the event loop that it was made on: call it there (by "
            "asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe), or use jetlake.blocking from any thread"
        )


def _reply(frame: bytes) -> bytes:
    """Return the reply subject of a PUB or HPUB frame; something else than a subject when there is none."""
    parts = frame[: frame.index(b"\r\n")].split(b" ", 3)
    return parts[2] if len(parts) > 2 else b""


def _publish_sizes(frames: bytes) -> list[int]:
    """Return the bytes of headers and payload of PUB and HPUB frames that follow each other."""
    sizes = []
    position = 0
    while position < len(frames):
        line_end = frames.index(b"\r\n", position)
        size = int(frames[frames.rindex(b" ", position, line_end) : line_end])
        position = line_end + size + 4
        sizes.append(size)
    return sizes


class BackPressure:
    """Makes a fast writer wait while the socket's buffer is full, if the writer awaits it; nobody has to."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __await__(self) -> Generator[Any, None, None]:
        return self._outbox.apply_back_pressure().__await__()
