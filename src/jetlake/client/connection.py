"""The connection of an asyncio client: one that outlives its TCP connections.

Everything of one read is parsed and handed over at once, as lists by subscription. Everything written during one turn
of the event loop goes out with one write at its end; a lone request goes out at once. While there is no server, writes
are kept up to a limit and go out on the next connection, after the subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Generator
from enum import Enum
from inspect import isawaitable
from random import Random
from typing import Any

from jetlake.client.handshake import ServerInfo, complaint, read_info
from jetlake.client.message import Message, Outlet
from jetlake.client.options import ConnectOptions, EventCallback
from jetlake.client.ready import READY, Ready
from jetlake.client.receiver import Receiver
from jetlake.client.requests import Requests
from jetlake.client.server_address import ServerAddress
from jetlake.client.server_pool import ServerPool
from jetlake.client.wire_protocol import WireProtocol, open_wire
from jetlake.errors import (
    AuthorizationError,
    ClientConnectionError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    NoServersError,
    OutboundBufferFullError,
    PermissionsError,
    RequestTimeoutError,
    StaleConnectionError,
)
from jetlake.protocol import encoder
from jetlake.protocol.frames import Err, Frame, Info, Ping, Pong

__all__ = ["Connection", "ConnectionState"]

logger = logging.getLogger("jetlake.client")

_TURN_BYTES_MAX = 64 * 1024


class ConnectionState(Enum):
    """What a connection is doing."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


class Connection:
    """Subscriptions and writes on whichever server there is.

    Args:
        options: what the user asked for.
        message_type: what is built of a received message.
        random: for the order of servers and the jitter of waits.
    """

    def __init__(
        self, options: ConnectOptions, *, message_type: type[Message] = Message, random: Random | None = None
    ) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.state = ConnectionState.CONNECTING
        self.info = ServerInfo()
        self.address: ServerAddress | None = None
        self.max_payload = self.info.max_payload
        self.reconnects = 0
        self.last_error: Exception | None = None
        self.outlet: Outlet = self
        self.listeners: set[Receiver] = set()
        self._message_type = message_type
        self._pool = ServerPool(
            options.servers,
            attempts_max=options.reconnect_attempts_max,
            backoff=options.backoff,
            random=random or Random(),
            shuffle=options.shuffle_servers,
        )
        self._wire: WireProtocol | None = None
        self._out: list[bytes] = []
        self._turn_scheduled = False
        self._turn_bytes = 0
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._subscriptions: dict[bytes, Receiver] = {}
        self._next_sid = 0
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._pings_outstanding = 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._reconnect_task: asyncio.Task[None] | None = None
        self._event_tasks: set[asyncio.Future[Any]] = set()
        self._reading_paused_by: set[Receiver] = set()
        self._closed = self.loop.create_future()
        self.requests = Requests(self, options.inbox_prefix)

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good."""
        return self.state is ConnectionState.CLOSED

    @property
    def is_connected(self) -> bool:
        """Whether there is a server right now."""
        return self._wire is not None

    # Opening and closing

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            NoServersError: no server could be reached.
            AuthorizationError: the only answer was that the credentials are wrong.
        """
        last_error: Exception | None = None
        while True:
            attempt = self._pool.next_attempt()
            if attempt is None or (attempt.wait_s and not self.options.retry_first_connect):
                self._close(None)
                if isinstance(last_error, AuthorizationError):
                    raise last_error
                raise NoServersError(self._pool.failures) from last_error
            await asyncio.sleep(attempt.wait_s)
            last_error = await self._try(attempt.address)
            if last_error is None:
                return

    async def _try(self, address: ServerAddress) -> Exception | None:
        """Try one server; the error if it did not work."""
        try:
            wire, info = await open_wire(self.options, address, self._message_type, self._receive, self._lost)
        except (OSError, JetlakeError) as error:
            reason = str(error) or type(error).__name__
            self._pool.failed(address, reason, authorization=isinstance(error, AuthorizationError))
            return error
        if self.state is ConnectionState.CLOSED:
            wire.close()
            return None
        self._connected(wire, address, info)
        return None

    def _connected(self, wire: WireProtocol, address: ServerAddress, info: ServerInfo) -> None:
        first = self.state is ConnectionState.CONNECTING
        self.address = address
        self._pool.connected(address)
        self._take_info(info)
        self._pings_outstanding = 0
        self._pongs.clear()
        self.state = ConnectionState.CONNECTED
        self._wire = wire
        wire.write(self._resume_frames())
        self._schedule_ping()
        if not first:
            self.reconnects += 1
            for receiver in self.receivers():
                receiver.reconnected()
            self._emit(self.options.on_reconnected)

    def _resume_frames(self) -> bytes:
        """The subscriptions, and what was written while there was no server."""
        frames = []
        for receiver in self._subscriptions.values():
            frames.append(encoder.sub(receiver.subject, receiver.queue, receiver.sid))
            if receiver.delivered_max:
                frames.append(encoder.unsub(receiver.sid, max(1, receiver.delivered_max - receiver.delivered)))
                receiver.delivered_max -= receiver.delivered
                receiver.delivered = 0
        frames += self._backlog
        self._backlog = []
        self._backlog_bytes = 0
        return b"".join(frames)

    def _lost(self, wire: WireProtocol, error: Exception | None) -> None:
        if wire is not self._wire:
            return
        self._wire = None
        if self.state is ConnectionState.CLOSED:
            return
        self.last_error = self.last_error if error is None else error
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._fail_pongs(DisconnectedError("the connection was lost before the server had answered"))
        # What was not handed to the socket yet was never sent, so it belongs on the next connection. Subscriptions are
        # made there anyway, and pings were meant for this one.
        unsent = [frame for frame in self._out if frame.startswith((b"PUB ", b"HPUB "))]
        self._out = []
        reason = error or ClientConnectionError("the server closed the connection")
        if not self.options.reconnect or (isinstance(error, AuthorizationError) and self._expired_for_good()):
            self._emit(self.options.on_disconnected, reason)
            self._close(reason)
            return
        self.state = ConnectionState.RECONNECTING
        for frame in unsent:
            if self._backlog_bytes + len(frame) <= self.options.pending_bytes_max:
                self._backlog.append(frame)
                self._backlog_bytes += len(frame)
        for receiver in self.receivers():
            receiver.disconnected()
        self._emit(self.options.on_disconnected, reason)
        if self.address is not None:
            self._pool.lost(self.address)
        self._reconnect_task = self.loop.create_task(self._reconnect())

    def _expired_for_good(self) -> bool:
        return self.options.credentials is None

    async def _reconnect(self) -> None:
        while self.state is ConnectionState.RECONNECTING:
            attempt = self._pool.next_attempt()
            if attempt is None:
                self._close(NoServersError(self._pool.failures))
                return
            await asyncio.sleep(attempt.wait_s)
            if await self._try(attempt.address) is None:
                return

    def close(self) -> None:
        """Write what is buffered and end everything; calling it again does nothing."""
        self._close(None)

    def _close(self, error: Exception | None) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        self.end_turn()
        self.state = ConnectionState.CLOSED
        self.last_error = error or self.last_error
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._reconnect_task is not None and self._reconnect_task is not asyncio.current_task(self.loop):
            self._reconnect_task.cancel()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._out = []
        self._backlog = []
        self._fail_pongs(error or ConnectionClosedError("the connection was closed"))
        receivers = self.receivers()
        self._subscriptions.clear()
        self.listeners.clear()
        for receiver in receivers:
            receiver.ended(error)
        if not self._closed.done():
            self._closed.set_result(None)
        self._emit(self.options.on_closed)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed and the callbacks of its last events have run."""
        await asyncio.shield(self._closed)
        while pending := [task for task in self._event_tasks if task is not asyncio.current_task()]:
            await asyncio.wait(pending)

    # Writing

    def send(self, frame: bytes) -> None:
        """Write the frame at the end of this turn of the event loop.

        Raises:
            ConnectionClosedError: the connection is closed.
            OutboundBufferFullError: there is no server and the limit of kept writes is reached.
        """
        # A list that is not empty means that there is a socket and the write is scheduled.
        if self._out:
            self._out.append(frame)
        else:
            self._send_first(frame)

    def _send_first(self, frame: bytes) -> None:
        if self._wire is not None:
            self._out.append(frame)
            if not self._turn_scheduled:
                self._turn_scheduled = True
                self.loop.call_soon(self.end_turn)
        elif self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")
        elif self._backlog_bytes + len(frame) > self.options.pending_bytes_max:
            raise OutboundBufferFullError(
                f"no server is connected and {self.options.pending_bytes_max} bytes wait already (pending_bytes_max)"
            )
        else:
            self._backlog.append(frame)
            self._backlog_bytes += len(frame)

    def forget_unsent(self, inbox: bytes) -> None:
        """Do not send what was written while there is no server and names this inbox: its owner sees to it."""
        self._backlog = [frame for frame in self._backlog if inbox not in frame]
        self._backlog_bytes = sum(map(len, self._backlog))

    def send_now(self, frame: bytes) -> None:
        """Write the frame at once if it is the first of this turn, so that a lone request has no delay."""
        if self._turn_scheduled or self._wire is None:
            self.send(frame)
        else:
            self._turn_scheduled = True
            self.loop.call_soon(self.end_turn)
            self._wire.write(frame)

    def send_bulk(self, frame: bytes) -> Ready | _Relief:
        """Write the frame as `send` does; awaiting the result holds back who writes faster than the socket takes."""
        self.send(frame)
        self._turn_bytes += len(frame)
        if self._turn_bytes < _TURN_BYTES_MAX:
            return READY
        return _Relief(self)

    def check_size(self, size: int) -> None:
        """Refuse what the server would close the connection for.

        Raises:
            InvalidOptionError: headers and payload are larger than the server takes.
        """
        if size > self.max_payload:
            raise InvalidOptionError(
                f"headers and payload of {size} bytes: the server takes {self.max_payload} at most"
            )

    def end_turn(self) -> None:
        """Write everything that waits."""
        self._turn_scheduled = False
        self._turn_bytes = 0
        out = self._out
        if out and self._wire is not None:
            self._out = []
            self._wire.write(b"".join(out))

    async def relieve(self) -> None:
        """Write what waits, let the event loop read, and wait until the socket takes more."""
        self.end_turn()
        await asyncio.sleep(0)
        if self._wire is not None:
            await self._wire.writable()

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was written.

        Raises:
            RequestTimeoutError: it took too long.
            DisconnectedError: the connection was lost meanwhile.
        """
        if self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")
        if self._wire is None:
            raise DisconnectedError("no server is connected")
        pong: asyncio.Future[None] = self.loop.create_future()
        self._pongs.append(pong)
        self.send(encoder.PING)
        self.end_turn()
        try:
            async with asyncio.timeout(timeout_s):
                await pong
        except TimeoutError:
            raise RequestTimeoutError(f"the server did not answer within {timeout_s:g} s") from None

    # Subscribing

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe now and again on each later connection, until `unsubscribe`.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        if self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")
        self._next_sid += 1
        receiver.sid = b"%d" % self._next_sid
        receiver.delivered = 0
        self._subscriptions[receiver.sid] = receiver
        if self._wire is not None:
            self.send(encoder.sub(receiver.subject, receiver.queue, receiver.sid))

    def unsubscribe(self, receiver: Receiver, delivered_max: int = 0) -> None:
        """End the subscription now, or after so many messages since it began."""
        if receiver.sid not in self._subscriptions:
            return
        if delivered_max > receiver.delivered:
            receiver.delivered_max = delivered_max
        else:
            self.forget(receiver)
            delivered_max = 0
        if self._wire is not None:
            self.send(encoder.unsub(receiver.sid, delivered_max))

    def receivers(self) -> list[Receiver]:
        """Everybody who hears of the connection: subscriptions, and those between two subscriptions."""
        return list(dict.fromkeys((*self._subscriptions.values(), *self.listeners)))

    def stop_delivery(self, receiver: Receiver) -> None:
        """Tell the server to send no more, and go on taking what is under way; `forget` follows."""
        if receiver.sid in self._subscriptions and self._wire is not None:
            self.send(encoder.unsub(receiver.sid))

    def forget(self, receiver: Receiver) -> None:
        """Drop whatever still comes for it."""
        self._subscriptions.pop(receiver.sid, None)
        self.resume_reading(receiver)

    def pause_reading(self, receiver: Receiver) -> None:
        """Stop reading the socket until this receiver (and every other that asked for it) resumes."""
        self._reading_paused_by.add(receiver)
        transport = self._wire.transport if self._wire is not None else None
        if len(self._reading_paused_by) == 1 and transport is not None and transport.is_reading():
            transport.pause_reading()

    def resume_reading(self, receiver: Receiver) -> None:
        """This receiver has room again."""
        if receiver not in self._reading_paused_by:
            return
        self._reading_paused_by.discard(receiver)
        transport = self._wire.transport if self._wire is not None else None
        if not self._reading_paused_by and transport is not None and not transport.is_closing():
            transport.resume_reading()

    # Requests

    async def request_raw(self, subject: bytes, header: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Publish with a reply subject of our own and wait for the first answer.

        Raises:
            RequestTimeoutError: no answer in time.
            NoRespondersError: nobody listens.
            DisconnectedError: the connection was lost meanwhile.
        """
        reply, answer = self.requests.begin(subject, timeout_s or self.options.request_timeout_s)
        if header:
            self.send_now(encoder.hpub(subject, reply, header, payload))
        else:
            self.send_now(encoder.pub(subject, reply, payload))
        return await answer

    # Receiving

    def _receive(self, frames: list[Any]) -> None:
        # Frames, with messages of our own type among them.
        subscriptions = self._subscriptions
        message_type = self._message_type
        outlet = self.outlet
        sid = b""
        run: list[Message] = []
        for frame in frames:
            if type(frame) is message_type:
                frame._outlet = outlet
                if frame.sid == sid:
                    run.append(frame)
                    continue
                if run:
                    self._deliver(subscriptions.get(sid), run)
                sid = frame.sid
                run = [frame]
            else:
                if run:
                    self._deliver(subscriptions.get(sid), run)
                    run = []
                    sid = b""
                self._control(frame)
        if run:
            self._deliver(subscriptions.get(sid), run)

    def _deliver(self, receiver: Receiver | None, messages: list[Message]) -> None:
        if receiver is None:
            return  # Unsubscribed while they were under way.
        receiver.delivered += len(messages)
        receiver.receive(messages)
        if receiver.delivered_max and receiver.delivered >= receiver.delivered_max:
            self.forget(receiver)
            receiver.ended(None)

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Ping):
            self.send_now(encoder.PONG)
        elif isinstance(frame, Pong):
            self._pings_outstanding = 0
            pong = self._pongs.popleft() if self._pongs else None
            if pong is not None and not pong.done():
                pong.set_result(None)
        elif isinstance(frame, Info):
            self._take_info(read_info(frame.json))
        elif isinstance(frame, Err):
            self._complain(frame.text)

    def _take_info(self, info: ServerInfo) -> None:
        was_lame_duck = self.info.ldm
        self.info = info
        self.max_payload = info.max_payload
        if self.options.discover_servers and info.connect_urls:
            fresh = self._pool.discovered(info.connect_urls, tls=info.tls_required)
            if fresh and self.state is not ConnectionState.CONNECTING:
                self._emit(self.options.on_discovered, [str(address) for address in fresh])
        if info.ldm and not was_lame_duck:
            self._emit(self.options.on_lame_duck)

    def _complain(self, text: str) -> None:
        error = complaint(text)
        if isinstance(error, PermissionsError):
            self._forbid(error, text)
        elif isinstance(error, ClientConnectionError):
            # The server closes right after; this is the reason that everybody gets to hear.
            if self._wire is not None:
                self._wire.abort(error)
            return
        self.signal(error)

    def _forbid(self, error: PermissionsError, text: str) -> None:
        """Tell whoever caused it: a waiting request, or the subscription."""
        quoted = text.split('"')
        subject = quoted[1].encode() if len(quoted) > 2 else b""
        lowered = text.lower()
        if "publish to" in lowered:
            self.requests.forbidden(subject, error)
        elif "subscription to" in lowered:
            queue = quoted[3].encode() if len(quoted) > 4 else b""
            for receiver in list(self._subscriptions.values()):
                if receiver.subject == subject and receiver.queue == queue:
                    self.forget(receiver)
                    receiver.ended(error)

    # Liveness

    def _schedule_ping(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._ping_timer = self.loop.call_later(self.options.ping_interval_s, self._ping)

    def _ping(self) -> None:
        if self._wire is None:
            return
        if self._pings_outstanding >= self.options.pings_outstanding_max:
            self._wire.abort(StaleConnectionError(f"{self.address} did not answer {self._pings_outstanding} pings"))
            return
        self._pings_outstanding += 1
        self._pongs.append(None)
        self.send_now(encoder.PING)
        self._schedule_ping()

    def _fail_pongs(self, error: Exception) -> None:
        pongs, self._pongs = self._pongs, deque()
        for pong in pongs:
            if pong is not None and not pong.done():
                pong.set_exception(error)

    # Events

    def signal(self, error: Exception) -> None:
        """Report what no call can raise, to `on_error` or else to the log."""
        self.last_error = error
        if self.options.on_error is None:
            logger.warning("%s: %s", type(error).__name__, error)
        else:
            self._emit(self.options.on_error, error)

    def _emit(self, callback: EventCallback | None, *arguments: object) -> None:
        if callback is None:
            return
        try:
            result = callback(*arguments)
        except Exception:
            logger.exception("an event callback failed")
            return
        if isawaitable(result):
            task = asyncio.ensure_future(result)
            self._event_tasks.add(task)
            task.add_done_callback(self._event_done)

    def _event_done(self, task: asyncio.Future[Any]) -> None:
        self._event_tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an event callback failed", exc_info=task.exception())


class _Relief:
    """Awaiting it makes a fast writer wait for the socket; leaving it alone is allowed."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __await__(self) -> Generator[Any, None, None]:
        return self._connection.relieve().__await__()
