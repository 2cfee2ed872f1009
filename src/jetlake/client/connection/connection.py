"""The connection of an asyncio client, which outlives its TCP connections.

                      ┌─ Outbox (base class): writes, kept while there is no server
    Connection ───────┼─ ServerLink: dials, loses and redials; one WireProtocol at a time
    receivers by sid  ├─ Pings: finds out whether the server lives
                      └─ Requests: one inbox for all requests; InboxPool: inboxes of fetches

What is always true:

- A subscription keeps its number (`sid`) on every TCP connection. `subscribe` works without a server: each new server
  gets all subscriptions, with the rest of their `delivered_max`.
- All messages of one read are delivered to a receiver as one list. A receiver that raises ends alone.
- A new server gets, in this order: the subscriptions, what receivers send again in `reconnected`, the kept frames.
- When the TCP connection is lost, receivers learn it by `disconnected` before the next server is tried; when the
  connection is closed, or no server is left, by `ended`, once.
- Everything runs on the event loop that created the connection; calls from another thread are refused (`check_loop`).
- An error that no call can raise goes to `on_error`, or to the log.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable
from itertools import repeat
from random import Random
from typing import Any, TypeVar, cast

from jetlake.client.connection.handshake import ServerInfo, complaint, read_info
from jetlake.client.connection.inboxes import InboxPool
from jetlake.client.connection.outbox import Outbox, check_loop
from jetlake.client.connection.pings import Pings
from jetlake.client.connection.requests import Requests
from jetlake.client.connection.server_link import ConnectionState, ServerLink
from jetlake.client.connection.wire_protocol import WireProtocol
from jetlake.client.messages.callbacks import EventCallbacks
from jetlake.client.messages.endings import Endings, end_all
from jetlake.client.messages.message import Message, Outlet
from jetlake.client.messages.receiver import Receiver
from jetlake.client.messages.statistics import Statistics
from jetlake.client.settings.options import ConnectOptions, ErrorCallback
from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    OutboundBufferFullError,
    PermissionsError,
    RequestTimeoutError,
    ServerError,
)
from jetlake.protocol import encoder
from jetlake.protocol.frames import Err, Frame, Info, MessageRun, Ping, Pong

__all__ = ["Connection", "ConnectionState"]

HandlerT = TypeVar("HandlerT", bound=Callable[[Any], Any] | None)


class Connection(Outbox):
    """Subscriptions, requests and writes on whichever server is connected.

    Args:
        options: the options of the connection.
        message_type: what is built of a received message.
        random: for the order of servers and the jitter of waits.

    Attributes:
        max_payload: most bytes of headers and payload that the server takes.
        last_error: the last error that no call could raise.
        outlet: where messages send their answers: the connection, or the outlet of a blocking client.
        listeners: receivers without a subscription at the moment that are notified of the connection all the same.
        endings: knows which handlers wait for an ending themselves.
        requests: the requests that wait for their answers.
        inboxes: inboxes that serve one fetch after another.
    """

    def __init__(
        self, options: ConnectOptions, *, message_type: type[Message] = Message, random: Random | None = None
    ) -> None:
        super().__init__(asyncio.get_running_loop(), options.pending_bytes_max)
        self.options = options
        self.message_type = message_type
        self.max_payload = ServerInfo().max_payload
        self.last_error: Exception | None = None
        self.outlet: Outlet = self
        self.listeners: set[Receiver] = set()
        self._receivers: dict[bytes, Receiver] = {}
        self._next_sid = 0
        self._paused_by: set[Receiver] = set()
        self._is_lame_duck = False
        self._closed = self.loop.create_future()
        self._link = ServerLink(self, random or Random())
        self._pings = Pings(self)
        self.endings = Endings(self.loop)
        self._callbacks = EventCallbacks(self.endings)
        self.inboxes = InboxPool(self)
        self.requests = Requests(self)

    # State

    @property
    def state(self) -> ConnectionState:
        """What the connection is doing."""
        return self._link.state

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._link.state is ConnectionState.CLOSED

    @property
    def info(self) -> ServerInfo:
        """The last INFO of the server."""
        return self._link.info

    @property
    def servers(self) -> list[ServerAddress]:
        """The servers that are known, named or discovered."""
        return self._link.pool.addresses

    def set_servers(self, addresses: Iterable[ServerAddress]) -> None:
        """Replace the servers that the next connection is made to; the present connection stays.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        if self.is_closed:
            raise ConnectionClosedError("the client is closed")
        self._link.pool.replace(addresses)

    @property
    def address(self) -> ServerAddress | None:
        """The server that is, or was last, connected."""
        return self._link.address

    @property
    def reconnects(self) -> int:
        """How often the client has reconnected."""
        return self._link.reconnects

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport of the TCP connection."""
        return None if self._link.wire is None else self._link.wire.transport

    def sockets(self) -> list[int]:
        """List the file descriptors of the open sockets."""
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        return [sock.fileno()] if sock is not None else []

    def describe(self) -> str:
        """Describe state and address in two words."""
        return f"{self.state.value} {self.address or ''}".rstrip()

    def statistics(self) -> Statistics:
        """Count the traffic so far."""
        traffic = self.traffic
        return Statistics(
            traffic.messages_received,
            traffic.bytes_received,
            traffic.frames_sent,
            traffic.bytes_sent,
            self.reconnects,
            len(self._receivers),
        )

    def traced(self, handler: HandlerT) -> HandlerT:
        """Return the handler of messages or requests, traced if the options say so."""
        tracing = self.options.tracing
        if tracing is None or not callable(handler):
            return handler
        return cast("HandlerT", tracing.traced_handler(handler))

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
        unsent = self.kept_messages
        self.stop_writing()
        self.last_error = error or self.last_error
        self._link.close()
        self._pings.stop(error or ConnectionClosedError("the connection was closed"))
        receivers = self.receivers()
        self._receivers.clear()
        self.listeners.clear()
        for receiver in receivers:
            receiver.ended(error)
        if unsent:
            lost = f"the connection was closed: {unsent} messages that waited for a server were not sent"
            self._callbacks.report(self.options.on_error, ConnectionClosedError(lost))
        if not self._closed.done():
            self._closed.set_result(None)
        self._callbacks.emit(self.options.on_closed)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, its last bytes are written, and its last callbacks have run.

        A server that does not take the last bytes is not waited for long; `on_error` is told.
        """
        await asyncio.shield(self._closed)
        if not await self._link.written():
            lost = "the connection was closed, and the server has not taken the last messages: they may be lost"
            self._callbacks.report(self.options.on_error, ConnectionClosedError(lost))
        await self._callbacks.finish()

    def cut_off(self) -> None:
        """Release the socket of a closed connection at once, since the event loop ends."""
        self._link.cut_off()

    async def wind_down(self) -> None:
        """Drain all subscriptions and reads, then wait for the answers to requests and publishes."""
        check_loop(self.loop)
        await end_all([receiver.wind_down() for receiver in self.receivers()])
        await end_all([receiver.await_answers() for receiver in self.receivers()])

    async def reconnect(self, timeout_s: float) -> None:
        """Flush, close the TCP connection, and wait for the next one.

        Args:
            timeout_s: how long the flush may take; a server that takes longer is left all the same.

        Raises:
            ConnectionClosedError: all servers refused the client.
        """
        if self.is_connected:
            try:
                await self.flush(timeout_s)
            except (DisconnectedError, RequestTimeoutError):
                pass
        self.abort(ClientConnectionError("the client reconnects, as requested by force_reconnect"))
        await self._link.wait_connected()

    def abort(self, error: Exception) -> None:
        """Give up the TCP connection for this reason, if there is one, and dial again."""
        self._link.abort(error)

    def when_gone(self, owner: object, release: Callable[[], None]) -> Callable[[], object]:
        """Call `release` on the event loop once the owner is garbage-collected; calling the result cancels that."""
        finalizer = weakref.finalize(owner, _call_on_loop, self.loop, release)
        finalizer.atexit = False
        return finalizer.detach

    # Subscriptions

    def receivers(self) -> list[Receiver]:
        """List the subscribed receivers, oldest subscription first, and the listeners."""
        return list(dict.fromkeys((*self._receivers.values(), *self.listeners)))

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe now and again on each later server, until `unsubscribe`.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        check_loop(self.loop)
        if self.is_closed:
            raise ConnectionClosedError("the connection is closed")
        self._next_sid += 1
        receiver.sid = b"%d" % self._next_sid
        receiver.delivered = receiver.delivered_before = 0
        self._receivers[receiver.sid] = receiver
        if self.is_connected:
            self.send(encoder.sub(receiver.subject, receiver.queue, receiver.sid))

    def unsubscribe(self, receiver: Receiver, delivered_max: int = 0) -> None:
        """End the subscription now, or after `delivered_max` messages since it began."""
        if receiver.sid not in self._receivers:
            return
        left = 0
        if delivered_max > receiver.delivered:
            receiver.delivered_max = delivered_max
            left = delivered_max - receiver.delivered_before
        else:
            self.forget(receiver)
        if self.is_connected:
            self.send(encoder.unsub(receiver.sid, left))

    def stop_delivery(self, receiver: Receiver) -> None:
        """Send UNSUB, and still receive the messages under way; `forget` follows."""
        if receiver.sid in self._receivers and self.is_connected:
            self.send(encoder.unsub(receiver.sid))

    def forget(self, receiver: Receiver) -> None:
        """Drop all later messages of the subscription."""
        self._receivers.pop(receiver.sid, None)
        self.resume_reading(receiver)

    def pause_reading(self, receiver: Receiver) -> None:
        """Stop reading the socket until this receiver, and every other that paused it, resumes."""
        self._paused_by.add(receiver)
        transport = self.transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()
            self._pings.pause(True)

    def resume_reading(self, receiver: Receiver) -> None:
        """Read the socket again, unless another receiver has paused it."""
        if receiver not in self._paused_by:
            return
        self._paused_by.discard(receiver)
        transport = self.transport
        if not self._paused_by and transport is not None and not transport.is_closing():
            transport.resume_reading()
            self._pings.pause(False)

    def _resume_frames(self) -> bytes:
        """Encode the SUB and UNSUB frames that restore the subscriptions on a new server."""
        frames = []
        for receiver in self._receivers.values():
            frames.append(encoder.sub(receiver.subject, receiver.queue, receiver.sid))
            receiver.delivered_before = receiver.delivered
            if receiver.delivered_max:
                frames.append(encoder.unsub(receiver.sid, max(1, receiver.delivered_max - receiver.delivered)))
        return b"".join(frames)

    # Receiving

    def receive(self, frames: list[Any]) -> None:
        """Deliver the frames of one read: consecutive messages of a subscription as one list."""
        receivers = self._receivers
        message_type = self.message_type
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
                    self._deliver(receivers.get(sid), run)
                sid = frame.sid
                run = [frame]
            else:
                if run:
                    self._deliver(receivers.get(sid), run)
                    run = []
                    sid = b""
                if type(frame) is MessageRun:
                    self._deliver_run(receivers.get(frame.sid), frame)
                else:
                    self._control(frame)
        if run:
            self._deliver(receivers.get(sid), run)

    def _deliver_run(self, receiver: Receiver | None, run: MessageRun) -> None:
        if receiver is None:
            return  # Unsubscribed while the messages were under way.
        count = len(run.payloads)
        if receiver.takes_answers and not run.replies:
            self._hand_over(receiver, count, receiver.receive_answers, run.subjects, run.payloads)
            return
        nothing = repeat(b"")
        columns = run.subjects, repeat(run.sid), run.replies or nothing, nothing, run.payloads, repeat(self.outlet)
        messages = list(map(self.message_type, *columns, repeat(not receiver.needs_ack)))
        self._hand_over(receiver, count, receiver.receive_run if run.replies else receiver.receive, messages)

    def _deliver(self, receiver: Receiver | None, messages: list[Message]) -> None:
        if receiver is not None:
            self._hand_over(receiver, len(messages), receiver.receive, messages)

    def _hand_over(self, receiver: Receiver, count: int, receive: Callable[..., None], *received: object) -> None:
        receiver.delivered += count
        self.traffic.messages_received += count
        try:
            receive(*received)
        except Exception as error:  # Any client with the permission may publish anything to an inbox.
            self.unsubscribe(receiver)
            receiver.ended(error)
            self.signal(error)
            return
        if receiver.delivered_max and receiver.delivered >= receiver.delivered_max:
            self.forget(receiver)
            receiver.ended(None)

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Ping):
            self.send_now(encoder.PONG)
        elif isinstance(frame, Pong):
            self._pings.answered()
        elif isinstance(frame, Info):
            try:
                info = read_info(frame.json)
            except ServerError as error:
                self.abort(error)
            else:
                self._link.update_info(info)
        elif isinstance(frame, Err):
            self._complain(frame.text)

    def _complain(self, text: str) -> None:
        error = complaint(text)
        if isinstance(error, PermissionsError):
            self._forbid(error, text)
        elif isinstance(error, ClientConnectionError):
            # The server closes the connection right after; all receivers get this reason.
            self.abort(error)
            return
        self.signal(error)

    def _forbid(self, error: PermissionsError, text: str) -> None:
        """Pass a permissions violation to its cause: the publishers of the subject, or the subscription."""
        quoted = text.split('"')
        subject = quoted[1].encode() if len(quoted) > 2 else b""
        lowered = text.lower()
        if "publish to" in lowered:
            for receiver in self.receivers():
                receiver.forbidden(subject, error)
        elif "subscription to" in lowered:
            queue = quoted[3].encode() if len(quoted) > 4 else b""
            for receiver in list(self._receivers.values()):
                if receiver.subject == subject and receiver.queue == queue:
                    self.forget(receiver)
                    receiver.ended(error)

    # Requests

    def check_size(self, size: int) -> None:
        """Refuse a message for which the server would close the connection.

        Raises:
            InvalidOptionError: headers and payload are larger than the server takes.
        """
        if size > self.max_payload:
            raise InvalidOptionError(
                f"headers and payload of {size} bytes: the server accepts at most {self.max_payload}"
            )

    def request_raw(
        self, subject: bytes, header: bytes, payload: bytes, timeout_s: float | None, is_repeatable: bool = False
    ) -> Coroutine[Any, Any, Message]:
        """Publish with a reply subject and wait for the first answer, as `Requests.request`."""
        return self.requests.request(subject, header, payload, timeout_s, is_repeatable)

    def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Coroutine[Any, Any, Message]:
        """Send an acknowledgement and wait until its consumer has it, as `Requests.confirm`."""
        return self.requests.confirm(subject, payload, timeout_s)

    # Waiting for the server

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until a server is connected; returns at once if one is.

        Raises:
            ConnectionClosedError: the connection is closed, or becomes so because all servers refuse the client.
            DisconnectedError: no server was connected in time.
        """
        check_loop(self.loop)
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                # A caller that retries in a loop and ignores the error must not keep the loop from connecting.
                await asyncio.sleep(0)
                await self._link.wait_connected()
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
            self.suspect()
            raise RequestTimeoutError(f"the server did not answer within {timeout_s:g} s") from None

    async def sent(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was written, or until there will be none.

        A connection that is lost meanwhile is reported to `on_error`: the last messages may not have arrived.

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
            if not self.kept_messages:
                return
            await self._link.changed()

    def suspect(self) -> None:
        """Ping the server, since an answer is overdue; a dead connection is given up soon."""
        if self.is_connected and not self.is_closed:
            self._pings.probe()

    async def is_alive(self) -> bool:
        """Return whether the server gives a sign of life within `connect_timeout`; if not, the connection is given up.

        False too while no server is connected: receivers are notified of the next one.
        """
        if not self.is_connected or self.is_closed:
            return False
        return await asyncio.shield(self._pings.probe())

    # Events of the link

    def connected(self, wire: WireProtocol, *, is_first: bool) -> None:
        """Restore subscriptions, what receivers wait for, and kept frames on a server that accepted the client."""
        self.begin_writing(wire, self._resume_frames())
        self._pings.start()
        if not is_first:
            for receiver in self.receivers():
                receiver.reconnected()
        dropped = self.send_kept(self.max_payload)
        if dropped:
            limit = f"{self.address} takes {self.max_payload} bytes of headers and payload at most"
            self.signal(
                InvalidOptionError(f"{limit}: {dropped} larger messages that were waiting for a server were dropped")
            )
        if not is_first:
            self._callbacks.emit(self.options.on_reconnected)

    def lost(self, reason: Exception, *, is_clean: bool, is_final: bool) -> None:
        """Keep unsent frames and notify all receivers: the TCP connection is gone.

        Args:
            is_clean: the server closed it without an error.
            is_final: no other server is tried, so the connection is closed.
        """
        if not is_clean:
            self.last_error = reason
        dropped = self.keep_unsent()
        self._pings.stop(DisconnectedError("the connection was lost before the server answered"))
        if not is_final:
            for receiver in self.receivers():
                receiver.disconnected()
        self._callbacks.emit(self.options.on_disconnected, reason)
        if dropped:
            limit = f"more than {self.options.pending_bytes_max} bytes (pending_bytes_max) waited to be sent"
            lost = f"the connection was lost while {limit}: {dropped} messages were dropped"
            self._callbacks.report(self.options.on_error, OutboundBufferFullError(lost))
        if is_final:
            self._close(reason)

    def gave_up(self, reason: Exception) -> None:
        """Close, since no server is left to try."""
        self._close(reason)

    def informed(self, info: ServerInfo, discovered: list[str], *, is_cluster_changed: bool) -> None:
        """Adopt the server's limits and emit news.

        Args:
            info: the INFO.
            discovered: addresses that were not known yet.
            is_cluster_changed: another server joined or left the cluster while this one was connected.
        """
        self.max_payload = info.max_payload
        if is_cluster_changed:
            for receiver in self.receivers():
                receiver.cluster_changed()
        if discovered:
            self._callbacks.emit(self.options.on_discovered, discovered)
        if info.ldm and not self._is_lame_duck:
            self._callbacks.emit(self.options.on_lame_duck)
        self._is_lame_duck = info.ldm

    # Errors that no call can raise

    def report(self, callback: ErrorCallback | None, error: Exception) -> None:
        """Report an error that no call can raise to a callback of its own, or as `signal` does."""
        if callback is None:
            self.signal(error)
        else:
            self._callbacks.report(callback, error)

    def signal(self, error: Exception) -> None:
        """Report an error that no call can raise, to `on_error` or else to the log."""
        self.last_error = error
        self._callbacks.report(self.options.on_error, error)


def _call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)  # Objects are collected in any thread.
    except RuntimeError:
        pass  # The loop is closed, and the connection with it.
