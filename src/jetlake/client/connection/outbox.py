"""The writing half of a connection: one write for each turn of the event loop.

What is always true:

- `turn_frames` are the frames of this turn. While no server is connected they are empty. While they are not empty, the
  write at the end of the turn is scheduled: code that finds them filled may append without another check.
- A frame is in `turn_frames`, in `_kept`, or handed to the socket. Only publishes and requests that were not handed to
  the socket are kept for the next server, up to a limit: whether the others arrived is unknown.
- The next server gets the subscriptions first, then what receivers send again, then the kept frames: an acknowledgement
  never overtakes a publish that was called before it.
- A lone request is written at once, since it would wait for the end of a turn that is otherwise idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from jetlake.client.messages.ready import READY, Deferred, Ready
from jetlake.client.messages.statistics import Traffic
from jetlake.errors import ConnectionClosedError, JetlakeError, OutboundBufferFullError

if TYPE_CHECKING:
    from jetlake.client.connection.wire_protocol import WireProtocol

_TURN_BYTES_MAX = 64 * 1024
_TURN_FRAMES_MAX = 256
"""Frames of one turn that are written before its end, so that the server works while a thousand messages are acked."""

Grow = Callable[[], tuple[bytes, int]]
"""Returns all frames that a publisher has gathered until they are written, and how many they are."""


class Outbox:
    """Frames on their way to the connected server; the base of `Connection`, so that a write is one call.

    Args:
        loop: the event loop.
        kept_bytes_max: most bytes that are kept while there is no server.

    Attributes:
        turn_frames: what is written at the end of this turn; always this list.
        traffic: counts what is sent and received.
    """

    __slots__ = (
        "_growing",
        "_is_closed",
        "_is_scheduled",
        "_kept",
        "_kept_bytes",
        "_kept_bytes_max",
        "_next_key",
        "_turn_bytes",
        "_wire",
        "loop",
        "traffic",
        "turn_frames",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, kept_bytes_max: int) -> None:
        self.loop = loop
        self._kept_bytes_max = kept_bytes_max
        self._wire: WireProtocol | None = None
        self.turn_frames: list[bytes] = []
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
        frames = self.turn_frames
        if frames:
            frames.append(frame)
            if len(frames) >= _TURN_FRAMES_MAX:
                self._write()
        else:
            self._send_first(frame)

    def _send_first(self, frame: bytes) -> None:
        check_loop(self.loop)
        if self._wire is not None:
            self.turn_frames.append(frame)
            self.expect_frames()
        else:
            self._keep_or_refuse(frame, b"")

    def _keep_or_refuse(self, frame: bytes, key: bytes) -> None:
        if self._is_closed:
            raise ConnectionClosedError("the connection is closed")
        if not self._keep(frame, key):
            raise OutboundBufferFullError(
                f"no server is connected and {self._kept_bytes_max} bytes are waiting already (pending_bytes_max)"
            )

    def _keep(self, frame: bytes, key: bytes = b"") -> bool:
        """Keep the frame for the next server, if there is room."""
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
            self.turn_frames.append(frame)
        else:
            self._is_scheduled = True
            self.loop.call_soon(self.end_turn)
            self.traffic.frames_sent += 1
            self._wire.write(frame)

    def send_run(self, frames: bytes, count: int) -> None:
        """Write `count` encoded frames as `send` writes one."""
        self.send(frames)
        self.traffic.frames_sent += count - 1

    def send_growing(self, frame: bytes, grow: Grow) -> None:
        """Write what `grow` returns at the end of this turn, instead of the frame; there are others before it."""
        self._growing.append((len(self.turn_frames), grow))
        self.turn_frames.append(frame)

    def send_bulk(self, frame: bytes) -> Ready | BackPressure:
        """Write the frame as `send` does; awaiting the result waits while the socket's buffer is full."""
        if self.turn_frames:
            self.turn_frames.append(frame)
        else:
            self._send_first(frame)
        self._turn_bytes += len(frame)
        if self._turn_bytes < _TURN_BYTES_MAX:
            return READY
        return BackPressure(self)

    def expect_frames(self) -> None:
        """Schedule the write at the end of this turn, before there is a frame.

        Code that wakes a task which is about to send calls this right after: the write then follows the task's step
        at once, instead of one turn of the event loop later.
        """
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Write everything that waits."""
        self._is_scheduled = False
        self._turn_bytes = 0
        self._write()

    def _write(self) -> None:
        frames = self.turn_frames
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
            self.turn_frames[position], count = grow()
            self.traffic.frames_sent += count - 1

    async def apply_back_pressure(self) -> None:
        """Write what waits, let the event loop read, and wait while the socket's buffer is full."""
        self.end_turn()
        await asyncio.sleep(0)
        if self._wire is not None:
            await self._wire.writable()

    # New and lost servers

    def begin_writing(self, wire: WireProtocol, subscriptions: bytes) -> None:
        """Write the subscriptions to a new server; `send_kept` follows."""
        self._wire = wire
        if subscriptions:
            self.send_run(subscriptions, subscriptions.count(b"\r\n"))

    def send_kept(self, payload_bytes_max: int) -> int:
        """Write the frames of this turn, then the kept frames.

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
                self.turn_frames.append(frames)
        self._forget_kept()
        self.end_turn()
        return dropped

    def keep_unsent(self) -> int:
        """Keep the publishes of this turn, since the server is gone; returns how many found no room.

        Subscriptions are restored on the next connection anyway, and pings were meant for the lost one.
        """
        self._wire = None
        self._grow()
        unsent = [frame for frame in self.turn_frames if frame.startswith((b"PUB ", b"HPUB "))]
        self.turn_frames.clear()
        return sum(len(_publish_sizes(frame)) for frame in unsent if not self._keep(frame))

    @property
    def kept_messages(self) -> int:
        """The publishes that are kept, without requests, whose callers get an error."""
        return sum(len(_publish_sizes(frames)) for key, frames in self._kept.items() if type(key) is int)

    def forget_unsent(self, inbox: bytes) -> None:
        """Drop kept frames whose answers come to this inbox: its owner sends them again, or fails them."""
        self._kept = {key: frame for key, frame in self._kept.items() if not _reply(frame).startswith(inbox)}
        self._kept_bytes = sum(map(len, self._kept.values()))

    def withdraw(self, key: bytes) -> None:
        """Drop the kept frame of this key, if there is one."""
        frame = self._kept.pop(key, None)
        if frame is not None:
            self._kept_bytes -= len(frame)

    def stop_writing(self) -> None:
        """Write the frames of this turn, and refuse all later ones."""
        self.end_turn()
        self._is_closed = True
        self._wire = None
        self.turn_frames.clear()
        self._forget_kept()

    def _forget_kept(self) -> None:
        self._kept = {}
        self._kept_bytes = 0


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse calls from another thread or event loop, which the loop would notice late or never.

    Raises:
        JetlakeError: this is not the event loop that the client was made on.
    """
    if asyncio._get_running_loop() is not loop:
        raise JetlakeError(
            "the client belongs to the event loop it was created on: call it from there (with "
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


class BackPressure(Deferred[None]):
    """Makes a fast writer wait while the socket's buffer is full; awaiting it is optional."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __await__(self) -> Generator[Any, None, None]:
        return self._outbox.apply_back_pressure().__await__()
