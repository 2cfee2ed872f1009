"""The connection of an asyncio client: one that outlives its TCP connections.

Everything of one read is parsed and delivered at once, as lists by subscription. Everything written during one turn of
the event loop goes out with one write at its end; a lone request goes out at once. While no server is connected, writes
are kept up to a limit and go out on the next connection, after the subscriptions.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar, cast

from jetlake.client.connection.events import Events
from jetlake.client.connection.handshake import ServerInfo, complaint, read_info
from jetlake.client.connection.inbox_pool import InboxPool
from jetlake.client.connection.outbox import Outbox, check_loop
from jetlake.client.connection.pings import Pings
from jetlake.client.connection.request_sender import RequestSender
from jetlake.client.connection.requests import Requests
from jetlake.client.connection.server_link import ConnectionState, ServerLink
from jetlake.client.connection.subscription_table import SubscriptionTable
from jetlake.client.connection.subscriptions import Subscriptions
from jetlake.client.connection.wire_protocol import WireProtocol
from jetlake.client.messages.endings import Endings
from jetlake.client.messages.message import Message, Outlet
from jetlake.client.messages.receiver import Receiver
from jetlake.client.messages.statistics import Statistics
from jetlake.client.settings.options import ConnectOptions, EventCallback
from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import (
    AuthorizationError,
    ClientConnectionError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    OutboundBufferFullError,
    PermissionsError,
    RequestTimeoutError,
    ServerError,
    StaleConnectionError,
)
from jetlake.protocol import encoder
from jetlake.protocol.frames import Err, Frame, Info, Ping, Pong

__all__ = ["Connection", "ConnectionState"]

HandlerT = TypeVar("HandlerT", bound=Callable[[Any], Any] | None)


class Connection:
    """Subscriptions, requests and writes on whichever server there is.

    Args:
        options: the options of the connection.
        message_type: what is built of a received message.
        random: for the order of servers and the jitter of waits.

    Attributes:
        max_payload: most bytes of headers and payload that the server takes.
        last_error: the last error that no call could raise.
        endings: knows which handlers wait for an ending themselves.
        requests: the requests that wait for their answers.
        inboxes: inboxes that serve one fetch after another.
        turn_frames: the frames of this turn, as `Outbox.frames`.
    """

    def __init__(
        self, options: ConnectOptions, *, message_type: type[Message] = Message, random: Random | None = None
    ) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.max_payload = ServerInfo().max_payload
        self.last_error: Exception | None = None
        self._is_lame_duck = False
        self._closed = self.loop.create_future()
        self._outbox = Outbox(
            self.loop, options.pending_bytes_max, lambda *request: self.confirm(*request), self.check_size
        )
        # Bound once, so that a write through the connection is one call.
        self.send = self._outbox.send
        self.send_now = self._outbox.send_now
        self.send_bulk = self._outbox.send_bulk
        self.send_run = self._outbox.send_run
        self.send_growing = self._outbox.send_growing
        self.turn_frames = self._outbox.frames
        self.end_turn = self._outbox.end_turn
        self.expect_frames = self._outbox.expect_frames
        self.apply_back_pressure = self._outbox.apply_back_pressure
        self.forget_unsent = self._outbox.forget_unsent
        traffic = self._outbox.traffic
        self._table = SubscriptionTable(message_type, self._outbox, self._control, self._complete, self._fail, traffic)
        self._link = ServerLink(options, random or Random(), message_type, self._table.receive, traffic, self)
        self._pings = Pings(
            self.loop, options.ping_interval_s, options.pings_outstanding_max, self.send_now, self._is_stale
        )
        self._subscriptions = Subscriptions(self.loop, self._table, self._link, self.send, self._pings.pause)
        self.subscribe = self._subscriptions.subscribe
        self.unsubscribe = self._subscriptions.unsubscribe
        self.stop_delivery = self._subscriptions.stop_delivery
        self.forget = self._subscriptions.forget
        self.pause_reading = self._subscriptions.pause_reading
        self.resume_reading = self._subscriptions.resume_reading
        self.receivers = self._subscriptions.receivers
        self.listeners = self._subscriptions.listeners
        self.endings = Endings(self.loop)
        self._events = Events(self.endings)
        self.inboxes = InboxPool(self.loop, options.inbox_prefix, self.subscribe, self.unsubscribe)
        self.requests = Requests(
            self.loop, options.inbox_prefix, self._outbox, self.subscribe, lambda: self._link.reconnects
        )
        sender = RequestSender(
            self.loop, self.requests, self.send_now, options.request_timeout_s, lambda: bool(self.info.cluster)
        )
        self.request_raw = sender.request
        self.confirm = sender.confirm

    # State

    @property
    def outlet(self) -> Outlet:
        """Where messages send their answers: the outbox, or what stands before it."""
        return self._table.outlet

    @outlet.setter
    def outlet(self, outlet: Outlet) -> None:
        self._table.outlet = outlet

    @property
    def state(self) -> ConnectionState:
        """What the connection is doing."""
        return self._link.state

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._link.state is ConnectionState.CLOSED

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected."""
        return self._link.wire is not None

    @property
    def info(self) -> ServerInfo:
        """The last INFO of the server."""
        return self._link.info

    def traced(self, handler: HandlerT) -> HandlerT:
        """Return the handler of messages or requests, traced if the options say so."""
        tracing = self.options.tracing
        if tracing is None or not callable(handler):
            return handler
        return cast("HandlerT", tracing.traced_handler(handler))

    @property
    def servers(self) -> list[ServerAddress]:
        """The servers that are known, named or discovered."""
        return self._link.servers

    def set_servers(self, addresses: Iterable[ServerAddress]) -> None:
        """Know these servers from now on, for the next time that a connection is made.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        if self.is_closed:
            raise ConnectionClosedError("the client is closed")
        self._link.set_servers(addresses)

    @property
    def address(self) -> ServerAddress | None:
        """The server that is, or was last, connected."""
        return self._link.address

    @property
    def reconnects(self) -> int:
        """How often the client has reconnected."""
        return self._link.reconnects

    def sockets(self) -> list[int]:
        """List the file descriptors of the open sockets."""
        transport = self._link.transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        return [sock.fileno()] if sock is not None else []

    def describe(self) -> str:
        """Describe state and address in two words."""
        return f"{self.state.value} {self.address or ''}".rstrip()

    def statistics(self) -> Statistics:
        """Count what was received and sent so far."""
        traffic = self._outbox.traffic
        return Statistics(
            traffic.messages_received,
            traffic.bytes_received,
            traffic.frames_sent,
            traffic.bytes_sent,
            self.reconnects,
            len(self._table.receivers()),
        )

    # Opening and closing

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            NoServersError: no server could be reached.
            AuthorizationError: the only answer was that the credentials are wrong.
        """
        try:
            await self._link.open()
        except Exception:
            self._close(None)
            raise

    def close(self) -> None:
        """Write what is buffered, close, and end all subscriptions; calling it again does nothing."""
        check_loop(self.loop)
        self._close(None)

    def _close(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        unsent = self._outbox.kept_messages
        self._outbox.close()
        self.last_error = error or self.last_error
        self._link.close()
        self._pings.stop(error or ConnectionClosedError("the connection was closed"))
        self._subscriptions.end(error)
        if unsent:
            told = f"the connection was closed: {unsent} messages that waited for a server were not sent"
            self._events.report(self.options.on_error, ConnectionClosedError(told))
        if not self._closed.done():
            self._closed.set_result(None)
        self._events.emit(self.options.on_closed)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed and the callbacks of its last events have run."""
        await asyncio.shield(self._closed)
        await self._events.finish()

    async def wind_down(self) -> None:
        """Drain all subscriptions and reads, then wait for the answers to requests and publishes."""
        check_loop(self.loop)
        await asyncio.gather(*(receiver.wind_down() for receiver in self.receivers()))
        await asyncio.gather(*(receiver.settle() for receiver in self.receivers()))

    async def reconnect(self, timeout_s: float) -> None:
        """Flush, close the connection, and wait for the next one.

        Args:
            timeout_s: how long the flush may take; a server that takes longer is left all the same.

        Raises:
            ConnectionClosedError: no server takes the client any more.
        """
        if self.is_connected:
            try:
                await self.flush(timeout_s)
            except (DisconnectedError, RequestTimeoutError):
                pass
        self._link.abort(ClientConnectionError("the client reconnects, as force_reconnect asked for"))
        await self._link.connected_again()

    def when_gone(self, owner: object, release: Callable[[], None]) -> Callable[[], object]:
        """Call `release` on the event loop once the owner is garbage-collected; calling the result cancels that."""
        finalizer = weakref.finalize(owner, _call_on_loop, self.loop, release)
        finalizer.atexit = False
        return finalizer.detach

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

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until a server is connected; returns at once if one is.

        Raises:
            ConnectionClosedError: the connection is closed, or becomes so because no server takes the client.
            DisconnectedError: no server was connected in time.
        """
        check_loop(self.loop)
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                # Whoever calls in a loop and ignores the error must not keep the loop from connecting.
                await asyncio.sleep(0)
                await self._link.connected_again()
        except TimeoutError:
            raise DisconnectedError(f"no server is connected within {timeout_s:g} s") from None

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server, or the next one if none is connected, has processed everything that was written.

        Raises:
            RequestTimeoutError: the server took too long.
            DisconnectedError: no server was connected in time, or the connection was lost meanwhile.
        """
        give_up_at = self.loop.time() + timeout_s
        await self.wait_connected(timeout_s)
        pong = self._pings.ping()
        self.end_turn()
        try:
            async with asyncio.timeout_at(give_up_at):
                await pong
        except TimeoutError:
            raise RequestTimeoutError(f"the server did not answer within {timeout_s:g} s") from None

    async def sent(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was written, or until there will be none.

        A connection that is lost meanwhile is reported to `on_error`: what was written last may not have arrived.

        Raises:
            RequestTimeoutError: the server took too long.
        """
        while not self.is_closed:
            if self.is_connected:
                try:
                    await self.flush(timeout_s)
                except DisconnectedError as error:
                    self.signal(error)
                return
            if not self._outbox.kept_messages:
                return
            await self._link.changed()

    # What the link tells

    def connected(self, wire: WireProtocol, *, is_first: bool) -> None:
        """Subscribe, send again what receivers wait for, and what was kept, on the new TCP connection."""
        self._outbox.connected(wire, self._table.resume_frames())
        self._pings.start()
        if not is_first:
            for receiver in self.receivers():
                receiver.reconnected()
        dropped = self._outbox.send_kept(self.max_payload)
        if dropped:
            told = f"{self.address} takes {self.max_payload} bytes of headers and payload at most"
            self.signal(InvalidOptionError(f"{told}: {dropped} larger messages that waited for a server were dropped"))
        if not is_first:
            self._events.emit(self.options.on_reconnected)

    def lost(self, reason: Exception, *, is_clean: bool, is_final: bool) -> None:
        """Keep what was not sent and tell all receivers; close if no other server follows."""
        if not is_clean:
            self.last_error = reason
        dropped = self._outbox.disconnected()
        self._pings.stop(DisconnectedError("the connection was lost before the server had answered"))
        if not is_final:
            for receiver in self.receivers():
                receiver.disconnected()
        self._events.emit(self.options.on_disconnected, reason)
        if dropped:
            room = f"more than {self.options.pending_bytes_max} bytes (pending_bytes_max) waited to be sent"
            told = f"the connection was lost while {room}: {dropped} messages were dropped"
            self._events.report(self.options.on_error, OutboundBufferFullError(told))
        if is_final:
            self._close(reason)

    def gave_up(self, reason: Exception) -> None:
        """Close: no server takes the client any more."""
        self._close(reason)

    def refused(self, error: AuthorizationError) -> None:
        """Report a server that takes the credentials no longer."""
        self.signal(error)

    def failed(self, error: Exception) -> None:
        """Report a defect that would end the attempts to connect if it was raised."""
        self.signal(error)

    def informed(self, info: ServerInfo, discovered: list[str], *, is_cluster_changed: bool) -> None:
        """Take over the server's limits, and emit what is new."""
        self.max_payload = info.max_payload
        if is_cluster_changed:
            for receiver in self.receivers():
                receiver.cluster_changed()
        if discovered:
            self._events.emit(self.options.on_discovered, discovered)
        if info.ldm and not self._is_lame_duck:
            self._events.emit(self.options.on_lame_duck)
        self._is_lame_duck = info.ldm

    # What the server sends beside messages

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Ping):
            self.send_now(encoder.PONG)
        elif isinstance(frame, Pong):
            self._pings.answered()
        elif isinstance(frame, Info):
            self._inform(frame.json)
        elif isinstance(frame, Err):
            self._complain(frame.text)

    def _inform(self, json: bytes) -> None:
        try:
            info = read_info(json)
        except ServerError as error:
            self._link.abort(error)
        else:
            self._link.take_info(info)

    def _complain(self, text: str) -> None:
        error = complaint(text)
        if isinstance(error, PermissionsError):
            self._subscriptions.forbid(error, text)
        elif isinstance(error, ClientConnectionError):
            # The server closes right after; this is the reason that all receivers get.
            self._link.abort(error)
            return
        self.signal(error)

    def _complete(self, receiver: Receiver) -> None:
        self._subscriptions.complete(receiver)

    def _fail(self, receiver: Receiver, error: Exception) -> None:
        self._subscriptions.fail(receiver, error)
        self.signal(error)

    def _is_stale(self, pings: int) -> None:
        self._link.abort(StaleConnectionError(f"{self.address} did not answer {pings} pings"))

    # Errors that no call can raise

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
