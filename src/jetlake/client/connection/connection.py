"""The connection of an asyncio client: one that outlives its TCP connections.

Everything of one read is parsed and handed over at once, as lists by subscription. Everything written during one turn
of the event loop goes out with one write at its end; a lone request goes out at once. While there is no server, writes
are kept up to a limit and go out on the next connection, after the subscriptions.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from enum import Enum
from random import Random

from jetlake.client.connection.events import Events
from jetlake.client.connection.handshake import ServerInfo, complaint, read_info
from jetlake.client.connection.inbox_pool import InboxPool
from jetlake.client.connection.outbox import Outbox, check_loop
from jetlake.client.connection.pings import Pings
from jetlake.client.connection.read_pause import ReadPause
from jetlake.client.connection.requests import Requests
from jetlake.client.connection.subscription_table import SubscriptionTable
from jetlake.client.connection.wire_protocol import WireProtocol, open_wire
from jetlake.client.messages.endings import Endings
from jetlake.client.messages.message import Message, Outlet
from jetlake.client.messages.receiver import Receiver
from jetlake.client.messages.statistics import Statistics
from jetlake.client.settings.options import ConnectOptions, EventCallback
from jetlake.client.settings.server_address import ServerAddress
from jetlake.client.settings.server_pool import ServerPool
from jetlake.errors import (
    AuthorizationError,
    ClientConnectionError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    NoServersError,
    PermissionsError,
    RequestTimeoutError,
    StaleConnectionError,
)
from jetlake.protocol import encoder
from jetlake.protocol.frames import Err, Frame, Info, Ping, Pong

__all__ = ["Connection", "ConnectionState"]

# A connection that was up so long proves its server sound: the next loss starts the back-off anew.
_LASTED_S = 2.0


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
        self._outbox = Outbox(self.loop, options.pending_bytes_max, self.request_raw, self.check_size)
        # Bound once: whoever writes through the connection does so with one call.
        self.send = self._outbox.send
        self.send_now = self._outbox.send_now
        self.send_bulk = self._outbox.send_bulk
        self.end_turn = self._outbox.end_turn
        self.relieve = self._outbox.relieve
        self.forget_unsent = self._outbox.forget_unsent
        self._subscriptions = SubscriptionTable(
            message_type, self._outbox, self._control, self._complete, self._outbox.traffic
        )
        self._pings = Pings(
            self.loop, options.ping_interval_s, options.pings_outstanding_max, self.send_now, self._is_stale
        )
        self.endings = Endings(self.loop)
        self._events = Events(self.endings)
        self.inboxes = InboxPool(options.inbox_prefix, self.subscribe, self.unsubscribe)
        self._reconnect_task: asyncio.Task[None] | None = None
        self._connected_at = 0.0
        self._pause = ReadPause(self._pings.pause)
        self._state_changed: asyncio.Future[None] | None = None
        self._closed = self.loop.create_future()
        self.requests = Requests(self.loop, options.inbox_prefix, self._outbox, self.subscribe, lambda: self.reconnects)

    @property
    def outlet(self) -> Outlet:
        """Where messages send their answers: the outbox, or what stands before it."""
        return self._subscriptions.outlet

    @outlet.setter
    def outlet(self, outlet: Outlet) -> None:
        self._subscriptions.outlet = outlet

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good."""
        return self.state is ConnectionState.CLOSED

    @property
    def is_connected(self) -> bool:
        """Whether there is a server right now."""
        return self._wire is not None

    def sockets(self) -> list[int]:
        """The file descriptors of the open sockets."""
        transport = self._wire.transport if self._wire is not None else None
        sock = transport.get_extra_info("socket") if transport is not None else None
        return [sock.fileno()] if sock is not None else []

    def describe(self) -> str:
        """What it is doing and where, in two words."""
        return f"{self.state.value} {self.address or ''}".rstrip()

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
            wire, info = await open_wire(
                await self.options.answered(),
                address,
                self._message_type,
                self._subscriptions.receive,
                self._lost,
                self._outbox.traffic,
            )
        except (OSError, JetlakeError) as error:
            reason = str(error) or type(error).__name__
            is_refused = isinstance(error, AuthorizationError)
            is_first = self.state is ConnectionState.CONNECTING
            self._pool.failed(address, reason, authorization=is_refused and is_first)
            if is_refused and not is_first:
                # A server that took these credentials before may do so again, when its own are mended.
                self.signal(error)
            return error
        if self.state is ConnectionState.CLOSED:
            wire.close()
            return None
        self._connected(wire, address, info)
        return None

    def _connected(self, wire: WireProtocol, address: ServerAddress, info: ServerInfo) -> None:
        first = self.state is ConnectionState.CONNECTING
        self.address = address
        self._connected_at = self.loop.time()
        self._pool.connected(address, first=first)
        self._take_info(info)
        self.state = ConnectionState.CONNECTED
        self._wire = wire
        self._outbox.connected(wire, self._subscriptions.resume_frames())
        self._pings.start()
        if not first:
            self.reconnects += 1
            for receiver in self.receivers():
                receiver.reconnected()
            self._events.emit(self.options.on_reconnected)
            self._wake()

    def _lost(self, wire: WireProtocol, error: Exception | None) -> None:
        if wire is not self._wire:
            return
        self._wire = None
        if self.state is ConnectionState.CLOSED:
            return
        self.last_error = self.last_error if error is None else self._translated(error)
        self._outbox.disconnected()
        self._pings.stop(DisconnectedError("the connection was lost before the server had answered"))
        reason = self._translated(error)
        if not self.options.reconnect or self._expired_for_good(error):
            self._events.emit(self.options.on_disconnected, reason)
            self._close(reason)
            return
        self.state = ConnectionState.RECONNECTING
        for receiver in self.receivers():
            receiver.disconnected()
        self._events.emit(self.options.on_disconnected, reason)
        if self.address is not None:
            lasted_s = self.loop.time() - self._connected_at
            self._pool.lost(self.address, lasted=lasted_s >= _LASTED_S)
        self._reconnect_task = self.loop.create_task(self._reconnect())

    def _translated(self, error: Exception | None) -> Exception:
        """The error as one of ours: the operating system's own say neither who nor what."""
        if isinstance(error, JetlakeError):
            return error
        reason = ClientConnectionError(f"{self.address} closed the connection" + (f": {error}" if error else ""))
        reason.__cause__ = error
        return reason

    def _expired_for_good(self, error: Exception | None) -> bool:
        is_expired = isinstance(error, AuthorizationError) and "expired" in str(error).lower()
        return is_expired and self.options.credentials is None and not self.options.asks

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
        check_loop(self.loop)
        self._close(None)

    def _close(self, error: Exception | None) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        unsent = self._outbox.kept_messages
        self._outbox.close()
        self.state = ConnectionState.CLOSED
        self.last_error = error or self.last_error
        if self._reconnect_task is not None and self._reconnect_task is not asyncio.current_task(self.loop):
            self._reconnect_task.cancel()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._pings.stop(error or ConnectionClosedError("the connection was closed"))
        receivers = self.receivers()
        self._subscriptions.clear()
        self.listeners.clear()
        for receiver in receivers:
            receiver.ended(error)
        if unsent:
            told = f"the connection was closed: {unsent} messages that waited for a server were not sent"
            self._events.report(self.options.on_error, ConnectionClosedError(told))
        self._wake()
        if not self._closed.done():
            self._closed.set_result(None)
        self._events.emit(self.options.on_closed)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed and the callbacks of its last events have run."""
        await asyncio.shield(self._closed)
        await self._events.finish()

    # Writing

    def check_size(self, size: int) -> None:
        """Refuse what the server would close the connection for.

        Raises:
            InvalidOptionError: headers and payload are larger than the server takes.
        """
        if size > self.max_payload:
            raise InvalidOptionError(
                f"headers and payload of {size} bytes: the server takes {self.max_payload} at most"
            )

    def check_connected(self) -> None:
        """Refuse what makes no sense without a server.

        Raises:
            ConnectionClosedError: the connection is closed.
            DisconnectedError: there is no server right now.
        """
        check_loop(self.loop)
        if self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")
        if self._wire is None:
            raise DisconnectedError("no server is connected")

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was written.

        Raises:
            RequestTimeoutError: it took too long.
            DisconnectedError: the connection was lost meanwhile.
        """
        self.check_connected()
        pong = self._pings.ping()
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
        check_loop(self.loop)
        if self.state is ConnectionState.CLOSED:
            raise ConnectionClosedError("the connection is closed")
        self._subscriptions.add(receiver)
        if self._wire is not None:
            self.send(encoder.sub(receiver.subject, receiver.queue, receiver.sid))

    def unsubscribe(self, receiver: Receiver, delivered_max: int = 0) -> None:
        """End the subscription now, or after so many messages since it began."""
        if receiver not in self._subscriptions:
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
        return list(dict.fromkeys((*self._subscriptions.receivers(), *self.listeners)))

    async def wind_down(self) -> None:
        """End everything that receives, without loss; then wait for the answers to what was published."""
        check_loop(self.loop)
        await asyncio.gather(*(receiver.wind_down() for receiver in self.receivers()))
        await asyncio.gather(*(receiver.settle() for receiver in self.receivers()))

    async def sent(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was written, or until there will be none.

        A connection that is lost meanwhile is reported to `on_error`: what was written last may not have arrived.

        Raises:
            RequestTimeoutError: the server took too long.
        """
        while not self.is_closed:
            if self._wire is not None:
                try:
                    await self.flush(timeout_s)
                except DisconnectedError as error:
                    self.signal(error)
                return
            if not self._outbox.kept_messages:
                return
            await self._connected_or_closed()

    async def _connected_or_closed(self) -> None:
        """Wait for the next connection, or for the end."""
        if self._state_changed is None:
            self._state_changed = self.loop.create_future()
        await asyncio.shield(self._state_changed)

    def _wake(self) -> None:
        changed, self._state_changed = self._state_changed, None
        if changed is not None:
            changed.set_result(None)

    async def make_anew(self, timeout_s: float) -> None:
        """Send what was written, leave the server, and wait for the next connection.

        Raises:
            ConnectionClosedError: there will be none.
        """
        if self._wire is not None:
            try:
                await self.flush(timeout_s)
            except DisconnectedError:
                pass
        if self._wire is not None:
            self._wire.abort(ClientConnectionError("the connection is made anew, as asked for"))
        while self._wire is None:
            if self.is_closed:
                raise ConnectionClosedError("the connection is closed")
            await self._connected_or_closed()

    def when_gone(self, owner: object, release: Callable[[], None]) -> None:
        """Call the function on the event loop once nobody holds the owner any more."""
        weakref.finalize(owner, _call_on_loop, self.loop, release).atexit = False

    def stop_delivery(self, receiver: Receiver) -> None:
        """Tell the server to send no more, and go on taking what is under way; `forget` follows."""
        if receiver in self._subscriptions and self._wire is not None:
            self.send(encoder.unsub(receiver.sid))

    def forget(self, receiver: Receiver) -> None:
        """Drop whatever still comes for it."""
        self._subscriptions.remove(receiver)
        self.resume_reading(receiver)

    def pause_reading(self, receiver: Receiver) -> None:
        """Stop reading the socket until this receiver (and every other that asked for it) resumes."""
        self._pause.add(receiver, self._wire)

    def resume_reading(self, receiver: Receiver) -> None:
        """This receiver has room again."""
        self._pause.remove(receiver, self._wire)

    # Requests

    async def request_raw(self, subject: bytes, header: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Publish with a reply subject of our own and wait for the first answer.

        Raises:
            RequestTimeoutError: no answer in time.
            NoRespondersError: nobody listens.
            DisconnectedError: the connection was lost meanwhile.
            PermissionsError: the server refuses the subject, or the inbox for the answer.
        """
        check_loop(self.loop)
        reply, answer = self.requests.begin(subject, timeout_s or self.options.request_timeout_s)
        try:
            if header:
                self.send_now(encoder.hpub(subject, reply, header, payload), reply)
            else:
                self.send_now(encoder.pub(subject, reply, payload), reply)
            return await answer
        except (JetlakeError, asyncio.CancelledError):
            self.requests.forget(reply)
            raise

    # Receiving

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Ping):
            self.send_now(encoder.PONG)
        elif isinstance(frame, Pong):
            self._pings.answered()
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
                self._events.emit(self.options.on_discovered, [str(address) for address in fresh])
        if info.ldm and not was_lame_duck:
            self._events.emit(self.options.on_lame_duck)

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
        """Tell whoever caused it: those who wait for an answer to what they published, or the subscription."""
        quoted = text.split('"')
        subject = quoted[1].encode() if len(quoted) > 2 else b""
        lowered = text.lower()
        if "publish to" in lowered:
            for receiver in self.receivers():
                receiver.forbidden(subject, error)
        elif "subscription to" in lowered:
            queue = quoted[3].encode() if len(quoted) > 4 else b""
            for receiver in self._subscriptions.receivers():
                if receiver.subject == subject and receiver.queue == queue:
                    self.forget(receiver)
                    receiver.ended(error)

    def _complete(self, receiver: Receiver) -> None:
        """The receiver got the last message it had asked for."""
        self.forget(receiver)
        receiver.ended(None)

    def _is_stale(self, pings: int) -> None:
        if self._wire is not None:
            self._wire.abort(StaleConnectionError(f"{self.address} did not answer {pings} pings"))

    # Events

    def statistics(self) -> Statistics:
        """What came and went so far."""
        traffic = self._outbox.traffic
        return Statistics(
            traffic.messages_received,
            traffic.bytes_received,
            traffic.frames_sent,
            traffic.bytes_sent,
            self.reconnects,
            len(self._subscriptions.receivers()),
        )

    def report(self, callback: EventCallback | None, error: Exception) -> None:
        """Report what no call can raise to a callback of its own, or as `signal` does."""
        if callback is None:
            self.signal(error)
        else:
            self._events.report(callback, error)

    def signal(self, error: Exception) -> None:
        """Report what no call can raise, to `on_error` or else to the log."""
        self.last_error = error
        self._events.report(self.options.on_error, error)


def _call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)  # Objects are collected in any thread.
    except RuntimeError:
        pass  # The loop is closed, and the connection with it.
