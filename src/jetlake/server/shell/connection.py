"""A client's connection: bytes in through the parser to the account, frames out once per turn of the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from jetlake.protocol.encoder import OK, PING, PONG, err, info
from jetlake.protocol.frames import Connect, Frame, Ping, Pong, Pub, Sub, Unsub
from jetlake.protocol.parser import ServerParser
from jetlake.protocol.subjects import is_valid_publish, is_valid_subscribe
from jetlake.server.engine.account import Account
from jetlake.server.engine.subscription import Subscriber, Subscription
from jetlake.server.engine.timers import Timer
from jetlake.server.shell.auth import Identity
from jetlake.server.shell.connect_options import BadConnectError, ConnectOptions
from jetlake.server.shell.permissions import PermissionCheck
from jetlake.server.shell.tls import TLS_HANDSHAKE, TlsChannel, TlsError
from jetlake.server.shell.traces import describe_frame, describe_output

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["Connection"]

# Unwritten bytes from which deliveries to this connection pause, and at which they go on.
_HIGH_WATER = 1024 * 1024
_LOW_WATER = 256 * 1024

# What clients may not use: subjects by which servers talk among themselves, and replies that only servers hand out.
_RESERVED_SUBJECTS = (b"$NRG.", b"$GR.", b"_GR_.")
_RESERVED_REPLIES = (b"$JS.ACK.", b"_R_.", b"_GR_.")
_RESERVED_QUEUE = b"_sys_"
# Only subjects that begin with `$` or `_` need the closer look.
_RESERVED_FIRST = frozenset(b"$_")

# How long a refused peer may go on sending before the socket is torn down: an early reset could overtake the -ERR.
_LINGER_S = 0.25
# The first ping comes soon, to learn the round-trip time.
_FIRST_PING_S = 2.0
# A publisher whose messages pile up somewhere is not read from for this long.
_STALL_S = 0.005

_SECOND_NS = 1_000_000_000


class Connection(asyncio.Protocol, Subscriber):
    """One client, from its socket to its subscriptions.

    Attributes:
        cid: the number by which monitoring knows it.
        identity: who it is; None until it is known.
        options: what it said in CONNECT, without secrets.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cid: int = 0
        self.headers = False
        self.identity: Identity | None = None
        self.options = ConnectOptions()
        self.start_ns: int = server.clock.now_ns()
        self.last_activity_ns: int = self.start_ns
        self.rtt_ns: int = 0
        self.in_msgs: int = 0
        self.in_bytes: int = 0
        self.out_bytes: int = 0
        self.close_reason: str = ""
        self.stop_ns: int = 0
        self.peer_host: str = ""
        self.peer_port: int = 0
        self.account: Account = server.global_account
        self.permissions: PermissionCheck | None = None
        self.nonce = ""
        self.tls: TlsChannel | None = None
        self._parser = ServerParser(
            max_control_line=server.options.max_control_line, max_payload=server.options.max_payload
        )
        self._subscriptions: dict[bytes, Subscription] = {}
        self._ended_deliveries = 0
        self._guarded = True
        self._introduced = False
        self._greeted = False
        self._connected = False
        self._awaits_tls = False
        self._checking = False
        self._held: list[Frame] = []
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._pending = 0
        self._max_pending = server.options.max_pending
        self._stall_mark = self._max_pending * 3 // 4
        self._dirty = False
        self._paused = False
        self._pings_out = 0
        self._ping_sent_ns = 0
        self._ping_timer: Timer | None = None
        self._entry_timer: Timer | None = None
        self._write_timer: Timer | None = None

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_host, self.peer_port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        server = self.server
        refusal = server.admit(self)
        if server.authenticator.uses_nonce:
            self.nonce = server.new_nonce()
        if server.log.tracing:
            self.send = self._send_traced  # type: ignore[method-assign]
        tls = server.options.tls
        if refusal is not None:
            self._greet()
            self.end(refusal, reason=refusal)
            return
        if tls is None:
            self._greet()
            self._expect_authentication()
        else:
            self._awaits_tls = True
            if tls.handshake_first:
                self._expect_handshake(tls.handshake_first_fallback_s or tls.timeout_s)
            else:
                self._greet()
                self._expect_handshake(tls.timeout_s)
        self._schedule_ping(min(server.options.ping_interval_s, _FIRST_PING_S))
        server.schedule_turn()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.last_activity_ns = self.server.clock.now_ns()
        try:
            if self._awaits_tls or self.tls is not None:
                data = self._decrypt(data)
                if self.tls is not None and self.tls.ended:
                    self._forget("Client Closed")
                    self.hang_up()
                if not data or self.closed:
                    return
            if self._checking:
                # Who it is is being found out in a thread; what comes meanwhile waits, and no more is read.
                self._held.extend(self._parser.feed(data))
                return
            self._receive(data)
        except Exception as error:
            # A defect of ours: this client loses its connection, the others never hear of it.
            self.server.report_defect(str(self), error)
            self.end(reason="Internal Error")

    def _receive(self, data: bytes) -> None:
        before = self.in_msgs
        self._handle(self._parser.feed(data))
        server = self.server
        if self._parser.error is not None and not self.closed and not self._checking:
            self._refuse_bytes()
        server.schedule_turn()
        if server.pressured and self.in_msgs != before and self not in server.pressured:
            self._stall()

    def _refuse_bytes(self) -> None:
        error = self._parser.error
        assert error is not None
        if self.identity is None and not self._enter_by_default():
            self._refuse_entry()
            return
        self.server.log.debug(f"{self} - {error.reason}")
        self.end(error.text, reason=error.text or "Parse Error")

    def _stall(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self.server.stalled += 1
            transport.pause_reading()
            self.server.loop.call_later(_STALL_S, self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._checking:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._forget("Client Closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget("Client Closed" if exc is None else "Read Error")
        self._transport = None
        self.server.disconnected(self)

    # Frames in

    def _handle(self, frames: list[Frame]) -> None:
        """All frames of one read, in one loop; publishes of clients that need no checks go straight to the account."""
        messages = size = 0
        guarded = self._guarded
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
                if (
                    guarded
                    or (subject[0] in _RESERVED_FIRST and subject.startswith(_RESERVED_SUBJECTS))
                    or reply.startswith(_RESERVED_REPLIES)
                ):
                    self._publish_guarded(subject, reply, header, payload)
                    if self.closed:
                        break
                    guarded = self._guarded
                    publish = self.account.publish
                    find_route = self.account.literals.get
                    continue
                route = find_route(subject)
                if route is not None and (receive := route.only_sink) is not None:
                    receive(subject, reply, header, payload, self)
                else:
                    publish(subject, reply, header, payload, self)
            else:
                self._operate(frame)
                if self.closed:
                    break
                if self._checking:
                    self._held.extend(rest)
                    break
                guarded = self._guarded
                publish = self.account.publish
                find_route = self.account.literals.get
        self.in_msgs += messages
        self.in_bytes += size

    def _operate(self, frame: Frame) -> None:
        if self.server.log.tracing:
            self.server.log.trace(f"{self} - <<- [{describe_frame(frame)}]")
        if isinstance(frame, Connect):
            self._connect(frame.json)
        elif self.identity is None and not self._enter_by_default():
            self._refuse_entry()
        elif isinstance(frame, Ping):
            self._answer_ping()
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
            shown = describe_frame(Pub(subject, reply, header, payload), self.server.options.max_traced_msg_len)
            self.server.log.trace(f"{self} - <<- [{shown}]")
        if self.identity is None and not self._enter_by_default():
            self._refuse_entry()
            return
        if header and not self.headers:
            self.end(reason="Message Header Violation")
            return
        options = self.options
        if options.pedantic and not is_valid_publish(subject):
            self.send(err("Invalid Publish Subject"))
        if subject.startswith(_RESERVED_SUBJECTS) or (
            self.permissions is not None and not self.permissions.may_publish(subject)
        ):
            self._deny(f'Publish to "{_text(subject)}"')
            return
        if reply.startswith(_RESERVED_REPLIES):
            self._deny(f'Publish with Reply of "{_text(reply)}"')
            return
        if options.verbose:
            self.send(OK)
        self.account.publish(subject, reply, header, payload, self)

    def _deny(self, what: str) -> None:
        self.server.log.error(f"{self} - Permissions Violation for {what} - user {_name_of(self.identity)}")
        self.send(err(f"Permissions Violation for {what}"))

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        limit = self.server.options.max_subscriptions
        if not is_valid_subscribe(subject) and (self.permissions is None or self._may_subscribe(subject, queue)):
            self.send(err("Invalid Subject"))
            return
        if not self._may_subscribe(subject, queue):
            using = f' using queue "{_text(queue)}"' if queue else ""
            self._deny(f'Subscription to "{_text(subject)}"{using}')
            return
        if limit > 0 and sid not in self._subscriptions and len(self._subscriptions) >= limit:
            self.send(err("maximum subscriptions exceeded"))
            return
        # The client hears of its subscription before it hears of messages: others must not be let in between.
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

    def _may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        if queue == _RESERVED_QUEUE:
            return False
        return self.permissions is None or self.permissions.may_subscribe(subject, queue)

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

    def _answer_ping(self) -> None:
        self.send(PONG)
        if not self._greeted and self._connected and self.options.protocol >= 1:
            self._greeted = True
            self.send(info(self.server.info_for(self, connect_info=True)))

    # CONNECT

    def _connect(self, json: bytes) -> None:
        try:
            options = self.options.changed_by(json)
        except BadConnectError:
            self.end(reason="Parse Error")
            return
        authenticator = self.server.authenticator
        if self.identity is not None and self._connected:
            self._accept(options, self.identity)  # a second CONNECT changes options, never who one is
        elif authenticator.is_slow(options):
            self._checking = True
            self.server.check_in_thread(self, options)
            if self._transport is not None:
                self._transport.pause_reading()
        else:
            self.checked(options, authenticator.authenticate(options, self.nonce))

    def checked(self, options: ConnectOptions, identity: Identity | None) -> None:
        """The credentials in CONNECT were looked at: let the client in as this identity, or refuse it."""
        was_checking, self._checking = self._checking, False
        if self.closed:
            return
        if identity is None:
            self._refuse_entry(options)
            return
        self._accept(options, identity)
        if was_checking and not self.closed:
            held, self._held = self._held, []
            self._handle(held)
            if self._parser.error is not None and not self.closed:
                self._refuse_bytes()
            self._resume_reading()
            self.server.schedule_turn()

    def _accept(self, options: ConnectOptions, identity: Identity) -> None:
        if options.protocol not in (0, 1):
            self.end("invalid client protocol", reason="Bad Client Protocol Version")
            return
        if options.no_responders and not options.headers:
            self.end("no responders requires headers support", reason="No Responders Requires Headers")
            return
        self._connected = True
        self.options = options.without_secrets()
        self.headers = options.headers
        self.echo = options.echo
        self.no_responders = options.no_responders
        self._enter(identity)
        if options.verbose:
            self.send(OK)

    def _enter(self, identity: Identity) -> None:
        server = self.server
        if self.identity is not identity:
            self.identity = identity
            self.account = server.account(identity.account)
            self.permissions = None
            if identity.permissions is not None:
                self.permissions = PermissionCheck(identity.permissions, server.clock.now_ns)
        server.timers.cancel(self._entry_timer)
        self._guarded = (
            self.permissions is not None
            or self.options.verbose
            or self.options.pedantic
            or not self.headers
            or server.log.tracing
        )

    def _enter_by_default(self) -> bool:
        """Let in a client that has not said CONNECT, if it may be without a name."""
        default = self.server.authenticator.default
        if default is not None:
            self._enter(default)
        return default is not None

    def _refuse_entry(self, options: ConnectOptions | None = None) -> None:
        known = options is not None and self.server.authenticator.knows(options.user)
        who = f' - User "{options.user}"' if options is not None and known else ""
        self.server.log.error(f"{self} - authentication error{who}")
        self.end("Authorization Violation", reason="Authentication Failure")

    def reauthorize(self, identity: Identity | None) -> None:
        """The configuration was reloaded: go on as this identity, or not at all."""
        if identity is None or (self.identity is not None and identity.account != self.identity.account):
            self._refuse_entry()
            return
        self.identity = None
        self._enter(identity)
        for subscription in list(self._subscriptions.values()):
            if self._may_subscribe(subscription.subject, subscription.queue):
                check = self.permissions
                subscription.admits = check.filter_for(subscription.subject) if check is not None else None
            else:
                self.account.unsubscribe(subscription)
                self._subscription_ended(subscription)
                self._deny(f'Subscription to "{_text(subscription.subject)}"')

    def apply_limits(self) -> None:
        """The configuration was reloaded: take over the limits that may change while connected."""
        options = self.server.options
        self._parser.max_payload = options.max_payload
        self._parser.max_control_line = options.max_control_line
        self._max_pending = options.max_pending
        self._stall_mark = self._max_pending * 3 // 4

    def _greet(self) -> None:
        self._introduced = True
        self.send(info(self.server.info_for(self)))
        self.flush()

    def send_info(self) -> None:
        """Tell a client that can take it that something about the server has changed."""
        if self._connected and self.options.protocol >= 1:
            self.send(info(self.server.info_for(self)))

    # TLS

    def _expect_handshake(self, timeout_s: float) -> None:
        deadline_ns = self.server.clock.now_ns() + int(timeout_s * _SECOND_NS)
        self._entry_timer = self.server.timers.schedule(deadline_ns, self._handshake_overdue)

    def _handshake_overdue(self) -> None:
        tls = self.server.options.tls
        if self._awaits_tls and tls is not None and tls.handshake_first_fallback_s and self.tls is None:
            # The client waits for INFO: it is one of the older kind.
            self._greet()
            self._expect_handshake(tls.timeout_s)
            return
        self.server.log.error(f"{self} - TLS handshake error: timeout")
        self.end(reason="TLS Handshake Failure")

    def _decrypt(self, data: bytes) -> bytes:
        """Plaintext of what came; nothing while the handshake goes on, or when the connection ends here."""
        if self.tls is None:
            if data[0] != TLS_HANDSHAKE:
                return self._take_cleartext(data)
            assert self.server.tls_context is not None
            self.tls = TlsChannel(self.server.tls_context)
        try:
            plaintext = self.tls.receive(data)
        except TlsError as error:
            self._write(self.tls.to_send())
            if self._awaits_tls:
                self.server.log.error(f"{self} - TLS handshake error: {error}")
            self._forget("TLS Handshake Failure" if self._awaits_tls else "Client Closed")
            if self._transport is not None:
                self._transport.close()
            return b""
        self._write(self.tls.to_send())
        if self._awaits_tls and self.tls.established:
            self._awaits_tls = False
            tls = self.server.options.tls
            if tls is not None and tls.handshake_first and not self._introduced:
                self._greet()
            self._expect_authentication()
        return plaintext

    def _take_cleartext(self, data: bytes) -> bytes:
        """A client that goes on without TLS: fine where that is allowed, else the end."""
        if self.server.options.allow_non_tls:
            self._awaits_tls = False
            self._expect_authentication()
            return data
        self.end("Secure Connection - TLS Required", reason="TLS Handshake Failure")
        return b""

    def _expect_authentication(self) -> None:
        self.server.timers.cancel(self._entry_timer)
        if self.server.authenticator.default is None:
            deadline_ns = self.server.clock.now_ns() + int(self.server.options.auth_timeout_s * _SECOND_NS)
            self._entry_timer = self.server.timers.schedule(deadline_ns, self._authentication_overdue)

    def _authentication_overdue(self) -> None:
        if self.identity is None and not self._checking:
            self.server.log.error(f"{self} - authentication timeout")
            self.end("Authentication Timeout", reason="Authentication Timeout")

    # Liveness

    def _schedule_ping(self, delay_s: float) -> None:
        deadline_ns = self.server.clock.now_ns() + int(delay_s * _SECOND_NS)
        self._ping_timer = self.server.timers.schedule(deadline_ns, self._ping_due)

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
            if not self._awaits_tls:
                self._pings_out += 1
                self._ping_sent_ns = now_ns
                self.send(PING)
        self._schedule_ping(options.ping_interval_s)

    # Frames out

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        self._output.append(data)
        size = self._pending = self._pending + len(data)
        if not self._dirty:
            self._dirty = True
            self.server.mark_dirty(self)
        if size > _HIGH_WATER:
            self._take_pressure()

    def _send_traced(self, data: bytes) -> None:
        for line in describe_output(data):
            self.server.log.trace(f"{self} - ->> [{line}]")
        Connection.send(self, data)

    def _take_pressure(self) -> None:
        """More waits than should: pause deliveries, slow down publishers, or cut this client off."""
        self.congested = True
        if self._pending > self._stall_mark:
            self._pending = self.pending_bytes()
            if self._pending > self._stall_mark:
                self.server.pressured.add(self)
            if self._pending > self._max_pending:
                self._cut_off(f"MaxPending of {self._max_pending} Exceeded", "Slow Consumer (Pending Bytes)")

    def _cut_off(self, detail: str, reason: str) -> None:
        self.server.slow_consumers += 1
        self.server.log.info(f"{self} - Slow Consumer Detected: {detail}")
        self._forget(reason)
        if self._transport is not None:
            self._transport.abort()

    def pending_bytes(self) -> int:
        """Bytes that wait to be written, here and in the transport."""
        buffered = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return buffered + sum(map(len, self._output))

    def flush(self) -> None:
        """Write everything that was sent in this turn of the loop, with one call."""
        self._dirty = False
        transport = self._transport
        if self._paused or not self._output or transport is None:
            return
        output = self._output
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        self.out_bytes += len(data)
        transport.write(data if self.tls is None else self.tls.encrypt(data))
        self._pending = transport.get_write_buffer_size()
        if self.congested and not self._paused:
            self._relieve()

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._paused = True
        self.congested = True
        deadline_ns = self.server.clock.now_ns() + int(self.server.options.write_deadline_s * _SECOND_NS)
        self._write_timer = self.server.timers.schedule(deadline_ns, self._write_overdue)

    def resume_writing(self) -> None:
        self._paused = False
        self.server.timers.cancel(self._write_timer)
        self._relieve()
        self.flush()

    def _relieve(self) -> None:
        self.congested = False
        self.server.pressured.discard(self)
        self.server.drained()

    def _write_overdue(self) -> None:
        deadline = f"{self.server.options.write_deadline_s:g}s"
        self._cut_off(f"WriteDeadline of {deadline} exceeded", "Slow Consumer (Write Deadline)")

    # The end

    def end(self, error: str | None = None, *, reason: str) -> None:
        """Close the connection, after an -ERR with this text if there is one."""
        if self.closed:
            return
        if error is not None:
            self.send(err(error))
        self.flush()
        self._forget(reason)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._paused:
            transport.close()
            self.server.loop.call_later(_LINGER_S, transport.abort)
        elif self.tls is None and transport.can_write_eof():
            transport.write_eof()
            self.server.loop.call_later(_LINGER_S, transport.close)
        else:
            transport.close()

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the socket of a connection that has ended; at once = without waiting for its last bytes."""
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    def _forget(self, reason: str) -> None:
        """Take this client out of everything; its socket may live a little longer."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self.stop_ns = self.server.clock.now_ns()
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            self._ended_deliveries += subscription.delivered
            self.account.unsubscribe(subscription)
        for timer in (self._ping_timer, self._entry_timer, self._write_timer):
            self.server.timers.cancel(timer)
        self.server.pressured.discard(self)
        self._output.clear()
        self._held.clear()
        self.server.forgotten(self)
        self.server.log.debug(f"{self} - Client connection closed: {reason}")

    # What others want to know

    @property
    def out_msgs(self) -> int:
        """Messages delivered so far."""
        return self._ended_deliveries + sum(sub.delivered for sub in self._subscriptions.values())

    def subscriptions(self) -> list[Subscription]:
        return list(self._subscriptions.values())

    def client_info(self) -> dict[str, Any]:
        return self.server.client_info(self)

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port} - cid:{self.cid}"


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "backslashreplace")


def _name_of(identity: Identity | None) -> str:
    return f'"{identity.user}"' if identity is not None and identity.user else "without a name"
