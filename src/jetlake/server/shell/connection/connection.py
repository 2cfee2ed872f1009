"""A client's connection: bytes in through the parser to the account, subscriptions, and pings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jetlake.protocol.encoder import OK, PING, err
from jetlake.protocol.frames import Connect, Frame, Ping, Pong, Pub, Sub, Unsub
from jetlake.protocol.parser import ServerParser
from jetlake.protocol.subjects import is_valid_publish, is_valid_subscribe
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscription
from jetlake.server.shell.connection.handshake import Entrance
from jetlake.server.shell.connection.inbox import Inbox
from jetlake.server.shell.connection.message_trace import TRACE_DESTINATION, MessageTrace, trace_destination
from jetlake.server.shell.connection.permissions import PermissionCheck
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["Connection"]

# What clients may not use: subjects by which servers talk among themselves, and replies that only servers hand out.
_RESERVED_SUBJECTS = (b"$NRG.", b"$GR.", b"_GR_.")
_RESERVED_REPLIES = (b"$JS.ACK.", b"_R_.", b"_GR_.")
_RESERVED_QUEUE = b"_sys_"
# Only subjects that begin with `$` or `_` need the closer look.
_RESERVED_FIRST = frozenset(b"$_")

# The first ping comes soon, to learn the round-trip time.
_FIRST_PING_S = 2.0
# A publisher whose messages pile up somewhere is not read from for this long.
_STALL_S = 0.005

# A share: what one connection may have handled before the others get theirs. Lines are handled in groups, between which
# the clock is looked at; a read as large as this means that more waits in the socket.
_SHARE_S = 0.001
_SHARE_FRAMES = 512
_GROUP_LINES = 64
_FULL_READ_BYTES = 250_000

# Subscriptions of a client that has left are removed in groups, between which others go first.
_UNSUBSCRIBES = 100

# Why a connection is not read from: its credentials are being checked, its messages pile up, its turn has to come.
_CHECKING = 1
_STALLED = 2
_BEHIND = 4

_SECOND_NS = 1_000_000_000


class Connection(Entrance):
    """One client, from its socket to its subscriptions.

    Attributes:
        in_msgs: messages that it has published.
        in_bytes: their headers and payloads.
        rtt_ns: how long a ping took; 0 = not known yet.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.start_ns: int = server.clock.now_ns()
        self.last_activity_ns: int = self.start_ns
        self.rtt_ns: int = 0
        self.in_msgs: int = 0
        self.in_bytes: int = 0
        self._inbox = Inbox(
            ServerParser(max_control_line=server.options.max_control_line, max_payload=server.options.max_payload)
        )
        self._holds = 0
        self._subscriptions: dict[bytes, Subscription] = {}
        self._ended_deliveries = 0
        self._pings_out = 0
        self._ping_sent_ns = 0
        self._ping_timer: Timer | None = None

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.attach(transport)
        refusal = self.server.admit(self)
        if refusal is not None:
            self.introduce()
            self.end(refusal, reason=refusal)
            if self.server.is_crowded:
                self.hang_up()
            return
        self.open()
        self._schedule_ping(min(self.server.options.ping_interval_s, _FIRST_PING_S))
        self.turns.schedule()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.turns.begin()
        self.last_activity_ns = self.server.clock.now_ns()
        try:
            if self.is_encrypted:
                data = self.decrypt(data)
            if data and not self.closed:
                self._receive(data)
        except Exception as error:
            self._report_defect(error)
        self.turns.schedule()

    def _receive(self, data: bytes) -> None:
        self._inbox.add(data)
        if self._holds:
            return
        if not self.turns.has_time() or self._take_share() or len(data) >= _FULL_READ_BYTES:
            self._fall_behind()

    def _take_share(self) -> bool:
        """Handle one share of what was received; whether some is left that may be handled."""
        inbox = self._inbox
        server = self.server
        pressured_sends = server.pressured_sends
        frames_left = _SHARE_FRAMES
        deadline_s = self.turns.ticks() + _SHARE_S
        while not self.closed:
            if inbox.is_broken:
                self._refuse_bytes()
                break
            if not inbox:
                break
            frames = inbox.take(_GROUP_LINES)
            self._handle(frames)
            if server.pressured_sends != pressured_sends:
                self._stall()
            if self._holds & (_CHECKING | _STALLED):
                break
            frames_left -= len(frames)
            if frames_left <= 0 or self.turns.ticks() >= deadline_s:
                return bool(inbox) or inbox.is_broken
        return False

    def read_on(self) -> bool:
        """Handle another share in a later turn; whether there is one more."""
        try:
            if self._take_share():
                return True
        except Exception as error:
            self._report_defect(error)
        if not self._holds & (_CHECKING | _STALLED):
            self._let_go(_BEHIND)
        return False

    def _fall_behind(self) -> None:
        """Read nothing more until this connection's turn has come and its inbox is empty."""
        self._hold(_BEHIND)
        if not self._holds & (_CHECKING | _STALLED):
            self.turns.wait_for_turn(self)

    def _report_defect(self, error: Exception) -> None:
        """A defect of ours: this client loses its connection, the others never hear of it."""
        self.server.report_defect(str(self), error)
        self.end(reason="Internal Error")

    def _refuse_bytes(self) -> None:
        error = self._inbox.parser.error
        assert error is not None
        if not self.is_in():
            self.refuse()
            return
        self.server.log.debug(f"{self} - {error.reason}")
        self.end(error.text, reason=error.text or "Parse Error")

    def _stall(self) -> None:
        """Let those catch up, this client included, whom its messages fill."""
        self.server.stalled += 1
        self._hold(_STALLED)
        self.server.loop.call_later(_STALL_S, self._stall_over)

    def _stall_over(self) -> None:
        """Go on; but a client that filled its own queue reads that first, or is cut off at the write deadline."""
        if not self.closed and self.pending_bytes() > self._stall_mark:
            self.server.loop.call_later(_STALL_S, self._stall_over)
        else:
            self._go_on_after(_STALLED)

    def _hold(self, reason: int) -> None:
        """Stop reading for a reason; reading begins again when no reason is left."""
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds |= reason

    def _let_go(self, reason: int) -> None:
        self._holds &= ~reason
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _go_on_after(self, reason: int) -> None:
        """A reason not to handle anything has gone: wait for a turn if it was the last."""
        self._holds &= ~reason
        if not self.closed and not self._holds & (_CHECKING | _STALLED):
            self._holds |= _BEHIND
            self.turns.wait_for_turn(self)

    def eof_received(self) -> bool:
        self.forget("Client Closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget("Client Closed" if exc is None else "Read Error")
        # Monitoring remembers connections that have ended; their buffers need not be.
        self._transport = self.tls = None
        self._inbox = Inbox(ServerParser())
        self.server.disconnected(self)

    # Frames

    def _handle(self, frames: list[Frame]) -> None:
        """A group of frames in one loop; publishes of clients that need no checks go straight to the account."""
        messages = size = 0
        guarded = self.guarded
        publish = self.account.publish
        find_route = self.account.literals.get
        rest = iter(frames)
        for frame in rest:
            if type(frame) is Pub:
                subject = frame.subject
                reply = frame.reply
                header = frame.header
                payload = frame.payload
                messages += 1
                size += len(payload) + len(header)
                if not (
                    guarded
                    or (subject[0] in _RESERVED_FIRST and subject.startswith(_RESERVED_SUBJECTS))
                    or reply.startswith(_RESERVED_REPLIES)
                    or (header and header.find(TRACE_DESTINATION) >= 0)
                ):
                    route = find_route(subject)
                    if route is not None and (receive := route.only_sink) is not None:
                        receive(subject, reply, header, payload, self)
                    else:
                        publish(subject, reply, header, payload, self)
                    continue
                self._publish_guarded(subject, reply, header, payload)
            else:
                self._operate(frame)
                if self.checking:
                    self._hold(_CHECKING)
                    self._inbox.put_back(list(rest))
                    break
            if self.closed:
                break
            guarded = self.guarded
            publish = self.account.publish
            find_route = self.account.literals.get
        self.in_msgs += messages
        self.in_bytes += size

    def go_on(self) -> None:
        self._go_on_after(_CHECKING)

    def _operate(self, frame: Frame) -> None:
        if self.server.log.tracing:
            self._trace(frame)
        if isinstance(frame, Connect):
            self.connect(frame.json)
        elif not self.is_in():
            self.refuse()
        elif isinstance(frame, Ping):
            self.answer_ping()
        elif isinstance(frame, Pong):
            self._pings_out = 0
            if self._ping_sent_ns:
                self.rtt_ns = max(self.server.clock.now_ns() - self._ping_sent_ns, 1)
        elif isinstance(frame, Sub):
            self._subscribe(frame.subject, frame.queue, frame.sid)
        elif isinstance(frame, Unsub):
            self._unsubscribe(frame.sid, frame.max)

    def _publish_guarded(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A publish with everything that may have to be checked or said about it."""
        if self.server.log.tracing:
            self._trace(Pub(subject, reply, header, payload))
        if not self.is_in():
            self.refuse()
            return
        if header and not self.headers:
            self.end(reason="Message Header Violation")
            return
        options = self.options
        if options.pedantic and not is_valid_publish(subject):
            self.send(err("Invalid Publish Subject"))
        if not self._may_publish(subject):
            self._deny(f'Publish to "{_text(subject)}"')
            return
        if reply.startswith(_RESERVED_REPLIES):
            self._deny(f'Publish with Reply of "{_text(reply)}"')
            return
        destination = trace_destination(header) if TRACE_DESTINATION in header else b""
        if destination and not self._may_publish(destination):
            self._deny(f'Publish to "{_text(destination)}"')
            return
        if options.verbose:
            self.send(OK)
        if destination:
            MessageTrace(self, (subject, reply, header, payload), destination).publish()
        else:
            self.account.publish(subject, reply, header, payload, self)

    def _may_publish(self, subject: bytes) -> bool:
        if subject.startswith(_RESERVED_SUBJECTS):
            return False
        return self.permissions is None or self.permissions.may_publish(subject)

    def _deny(self, what: str) -> None:
        user = f'"{self.identity.user}"' if self.identity is not None and self.identity.user else "without a name"
        self.server.log.error(f"{self} - Permissions Violation for {what} - user {user}")
        self.send(err(f"Permissions Violation for {what}"))

    def _trace(self, frame: Frame) -> None:
        from jetlake.server.shell.connection.traces import describe_frame

        shown = describe_frame(frame, self.server.options.max_traced_msg_len)
        self.server.log.trace(f"{self} - <<- [{shown}]")

    # Subscriptions

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        if not self._may_subscribe(subject, queue, self.permissions):
            using = f' using queue "{_text(queue)}"' if queue else ""
            self._deny(f'Subscription to "{_text(subject)}"{using}')
            return
        if not is_valid_subscribe(subject):
            self.send(err("Invalid Subject"))
            return
        limit = self.server.options.max_subscriptions
        if limit > 0 and sid not in self._subscriptions and len(self._subscriptions) >= limit:
            self.send(err("maximum subscriptions exceeded"))
            return
        if self.options.verbose:
            self.send(OK)
        if sid in self._subscriptions:
            return
        subscription = Subscription(subject, sid, self, queue)
        if self.permissions is not None:
            subscription.admits = self.permissions.filter_for(subject)
        subscription.on_end = self._subscription_spent
        self._subscriptions[sid] = subscription
        self.account.add(subscription)

    @staticmethod
    def _may_subscribe(subject: bytes, queue: bytes, permissions: PermissionCheck | None) -> bool:
        return queue != _RESERVED_QUEUE and (permissions is None or permissions.may_subscribe(subject, queue))

    def _unsubscribe(self, sid: bytes, max: int) -> None:
        subscription = self._subscriptions.get(sid)
        if subscription is not None:
            self.account.unsubscribe(subscription, max)
            if not subscription.active:
                self._subscription_ended(subscription)
        if self.options.verbose:
            self.send(OK)

    def _subscription_ended(self, subscription: Subscription) -> None:
        self._ended_deliveries += subscription.delivered
        self._subscriptions.pop(subscription.sid, None)

    def _subscription_spent(self, subscription: Subscription) -> None:
        """It ends with its maximum, whose last deliveries are under way and not counted yet."""
        self._ended_deliveries += subscription.max - subscription.delivered
        self._subscription_ended(subscription)

    def change_subscriptions(self, account: Account, permissions: PermissionCheck | None) -> None:
        for subscription in list(self._subscriptions.values()):
            subject, queue = subscription.subject, subscription.queue
            is_allowed = self._may_subscribe(subject, queue, permissions)
            if account is self.account and is_allowed:
                subscription.admits = permissions.filter_for(subject) if permissions is not None else None
                continue
            self.account.unsubscribe(subscription)
            self._subscription_ended(subscription)
            if not is_allowed:
                self._deny(f'Subscription to "{_text(subject)}"')

    # Liveness

    def _schedule_ping(self, delay_s: float) -> None:
        deadline_ns = self.server.clock.now_ns() + int(delay_s * _SECOND_NS)
        self._ping_timer = self.turns.timers.schedule(deadline_ns, self._ping_due)

    def _ping_due(self) -> None:
        options = self.server.options
        now_ns = self.server.clock.now_ns()
        is_active = now_ns - self.last_activity_ns < options.ping_interval_s * _SECOND_NS
        if not is_active or not self.rtt_ns:
            if self._pings_out >= options.ping_max:
                self.server.stale_connections += 1
                self.server.log.debug(f"{self} - Stale Client Connection - Closing")
                self.end("Stale Connection", reason="Stale Connection")
                return
            if not self.awaits_tls:
                self._pings_out += 1
                self._ping_sent_ns = now_ns
                self.send(PING)
        self._schedule_ping(options.ping_interval_s)

    # What others want of it

    def release(self) -> None:
        super().release()
        self.turns.timers.cancel(self._ping_timer)
        subscriptions, self._subscriptions = self._subscriptions, {}
        self._ended_deliveries += sum(subscription.delivered for subscription in subscriptions.values())
        self.turns.work.begin(self._unsubscribe_all(self.account, list(subscriptions.values())))
        self._inbox.clear()
        self.server.forgotten(self)

    @staticmethod
    def _unsubscribe_all(account: Account, subscriptions: list[Subscription]) -> Steps[None]:
        """Take a client's subscriptions out of its account, in steps when they are many."""
        for place, subscription in enumerate(subscriptions, 1):
            account.unsubscribe(subscription)
            if not place % _UNSUBSCRIBES:
                yield

    def apply_limits(self) -> None:
        """The configuration was reloaded: take over what may change while connected."""
        self.apply_tracing()
        options = self.server.options
        self._inbox.parser.max_payload = options.max_payload
        self._inbox.parser.max_control_line = options.max_control_line
        self._max_pending = options.max_pending
        self._stall_mark = self._max_pending * 3 // 4

    @property
    def out_msgs(self) -> int:
        """Messages delivered so far."""
        return self._ended_deliveries + sum(sub.delivered for sub in self._subscriptions.values())

    def subscriptions(self) -> list[Subscription]:
        return list(self._subscriptions.values())

    def client_info(self) -> dict[str, Any]:
        return self.server.client_info(self)


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "backslashreplace")
