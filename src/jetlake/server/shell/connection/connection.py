"""A client's connection: what asyncio calls and what the account knows, made of a reader, a handshake and a writer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from jetlake.model.encoding.times import format_time
from jetlake.model.trace_sampling import TRACE_DESTINATION
from jetlake.protocol.encoder import OK, err
from jetlake.protocol.frames import AckRun, Connect, Frame, Ping, Pong, Pub, PubRun, Sub, Unsub
from jetlake.protocol.parser import GeneralParser, ServerParser
from jetlake.protocol.publish_runs import PublishRuns
from jetlake.protocol.subjects import is_valid_publish
from jetlake.server.engine.routing.subscription import EndListener, Subscriber, Subscription
from jetlake.server.shell.connection.handshake import Handshake
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.peer_connection import ConnectionReader, ConnectionWriter, PeerConnection
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection.session import RESERVED_REPLIES, RESERVED_SUBJECTS, Session
from jetlake.server.shell.connection.subscriptions import ClientSubscriptions
from jetlake.server.shell.connection.traces import readable

if TYPE_CHECKING:
    from jetlake.server.shell.connection_table import ConnectionTable

__all__ = ["Connection"]


# Only subjects that begin with `$` or `_` need the closer look.
_RESERVED_FIRST = frozenset(b"$_")

# Requests to JetStream, messages with headers that a stream obeys, and messages with many recipients may take long: the
# clock is looked at after each.
_DOLLAR = b"$"[0]
_RECIPIENTS_MANY = 64


class Connection(PeerConnection, Subscriber):
    """One client, from its socket to its subscriptions.

    Args:
        services: what the server gives its connections.
        table: the server's connection table.

    Attributes:
        start_ns: when the client connected.
        stop_ns: when the connection ended; 0 while it is open.
        in_msgs: messages that the client has published.
        in_bytes: the bytes of their headers and payloads.
        close_reason: why the connection ended; empty while it is open.
    """

    close_reason: str = ""

    def __init__(self, services: ConnectionServices, table: ConnectionTable) -> None:
        self.start_ns: int = services.clock.now_ns()
        self.stop_ns: int = 0
        self.close_reason = ""
        self.in_msgs = self.in_bytes = 0
        self._table = table
        self._clock = services.clock
        self._services = services
        self._log = services.log
        self._engine_loop = services.engine_loop
        self._info = services.info
        self._settings = services.settings
        self._report_defect = services.report_defect
        self.peer = peer = Peer()
        self.headers = False  # until CONNECT
        self._publish_runs = PublishRuns()
        self.session = session = Session(peer, services.accounts.global_account, services.log)
        self.writer = ConnectionWriter(peer, self, self, services)
        self.send = self.writer.send  # type: ignore[method-assign]  # Deliveries cost no call more.
        self._subscriptions = ClientSubscriptions(session, self, self.writer, services)
        self.handshake = Handshake(self, self._subscriptions, services)
        self.pings = PingTimer(self, services)
        self._read_with(ConnectionReader(self, services))

    def __str__(self) -> str:
        return str(self.peer)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have all the methods of asyncio's, and none of its classes.
        self._attach(cast("asyncio.Transport", transport))
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer.host, self.peer.port = str(address[0]).removeprefix("::ffff:"), int(address[1])
        self.peer.client_type = transport.get_extra_info("client_type") or self.peer.client_type
        self.peer.forwarded_for = transport.get_extra_info("forwarded_for") or ""
        self.handshake.take_over(transport)
        refusal = self._table.admit(self)
        if refusal is not None:
            self.handshake.send_first_info()
            self.end(refusal, reason=refusal)
            if self._table.is_crowded:
                self.writer.hang_up()
            return
        self.handshake.start()
        self.pings.start()
        self._engine_loop.schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        self._close("Client Closed" if exc is None else "Read Error")
        # Monitoring remembers connections that have ended; their buffers need not be.
        self.writer.detach()
        self._reader.detach()
        self.handshake.detach()
        self._subscriptions.detach()
        self.pings.detach()
        self._table.disconnected(self)

    # What the reader calls

    def handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
        """Handle a group of frames; publishes that need no check go straight to the account.

        Returns:
            The frames that have to wait: for a credentials check, or because the time is up.
        """
        messages = size = 0
        session, origin = self.session, self
        guarded = session.guarded
        publish = session.account.publish
        find_route = session.account.literals.get
        ticks = self._engine_loop.ticks
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
                    or (subject[0] in _RESERVED_FIRST and subject.startswith(RESERVED_SUBJECTS))
                    or reply.startswith(RESERVED_REPLIES)
                    or (header and header.find(TRACE_DESTINATION) >= 0)
                ):
                    route = find_route(subject)
                    if route is not None and (sink := route.only_sink) is not None:
                        sink.receive(subject, reply, header, payload, origin)
                        if header and ticks() >= deadline_s:
                            break
                        continue
                    taken = publish(subject, reply, header, payload, origin)
                    if (taken >= _RECIPIENTS_MANY or header or subject[0] == _DOLLAR) and ticks() >= deadline_s:
                        break
                    continue
                self._publish_guarded(subject, reply, header, payload)
            elif type(frame) is PubRun:
                if guarded or not self._publish_run(frame):
                    self._publish_runs.discourage()
                    rest = iter([*frame.messages(), *rest])
                    break
                messages += len(frame.subjects)
                size += frame.size
            elif type(frame) is AckRun:
                messages += len(frame.sequences)
                size += frame.payload_size
                if guarded:
                    self._publish_guarded_run(frame)
                else:
                    session.account.publish_acks(frame, origin)
            else:
                self._operate(frame)
                if self.handshake.checking:
                    break
            if self.closed or ticks() >= deadline_s:
                break
            guarded = session.guarded
            publish = session.account.publish
            find_route = session.account.literals.get
        self.in_msgs += messages
        self.in_bytes += size
        return list(rest)

    def _publish_run(self, run: PubRun) -> bool:
        """Publish a run to a stream; False when its messages have to be looked at one by one."""
        # No subject below `$`, no reply that may be reserved.
        return b"$" not in run.words and b"R_." not in run.words and self.session.account.publish_run(run)

    def _operate(self, frame: Frame) -> None:
        if self._log.tracing:
            self._trace(frame)
        if isinstance(frame, Connect):
            self.handshake.connect(frame.json)
        elif not self.handshake.is_authenticated():
            self.handshake.refuse()
        elif isinstance(frame, Ping):
            self.handshake.answer_ping()
        elif isinstance(frame, Pong):
            self.pings.take_pong()
        elif isinstance(frame, Sub):
            self._subscriptions.subscribe(frame.subject, frame.queue, frame.sid)
        elif isinstance(frame, Unsub):
            self._subscriptions.unsubscribe(frame.sid, frame.max)

    def handle_violation(self, parser: GeneralParser) -> None:
        """End the connection whose bytes the parser refused."""
        error = parser.error
        assert error is not None
        if not self.handshake.is_authenticated():
            self.handshake.refuse()
            return
        self._log.debug(f"{self.peer} - {error.reason}")
        self.end(error.text, reason=error.text or "Parse Error")

    def _publish_guarded(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish a message after every check, with the answers that the client asked for."""
        session, send = self.session, self.writer.send
        if self._log.tracing:
            self._trace(Pub(subject, reply, header, payload))
        if not self.handshake.is_authenticated():
            self.handshake.refuse()
            return
        if header and not session.options.headers:
            self.end(reason="Message Header Violation")
            return
        if session.options.pedantic and not is_valid_publish(subject):
            send(err("Invalid Publish Subject"))
        is_dropped = False
        if session.account.mappings is not None:
            mapped = session.account.mappings.apply(subject)
            is_dropped, subject = mapped is None, mapped or subject
        if not session.may_publish(subject):
            send(session.deny(f'Publish to "{readable(subject)}"'))
            return
        if not session.may_reply_to(reply):
            send(session.deny(f'Publish with Reply of "{readable(reply)}"'))
            return
        destination = b""
        if TRACE_DESTINATION in header:
            from jetlake.server.shell.connection.message_trace import trace_destination  # Few messages are traced.

            destination = trace_destination(header)
        if destination and not session.may_publish(destination):
            send(session.deny(f'Publish to "{readable(destination)}"'))
            return
        if session.options.verbose:
            send(OK)
        if is_dropped:
            return
        if header and not destination and session.account.trace is not None:
            destination = session.account.trace.find_destination(header)
        if destination:
            from jetlake.server.shell.connection.message_trace import MessageTrace

            message = (subject, reply, header, payload)
            MessageTrace(self, session.account, message, destination, self._services).publish()
        else:
            session.account.publish(subject, reply, header, payload, self)

    def _publish_guarded_run(self, run: AckRun) -> None:
        """Publish acknowledgements one by one, each after every check."""
        for message in run.messages():
            if self.closed:
                return
            self._publish_guarded(message.subject, message.reply, message.header, message.payload)

    def _trace(self, frame: Frame) -> None:
        from jetlake.server.shell.connection.traces import describe_frame

        shown = describe_frame(frame, self._settings.options.max_traced_msg_len)
        self._log.trace(f"{self.peer} - <<- [{shown}]")

    def make_parser(self) -> ServerParser:
        options = self._settings.options
        return ServerParser(
            max_control_line=options.max_control_line,
            max_payload=self.session.payload_max(options.max_payload),
            ack_runs=True,
            publish_runs=self._publish_runs,
        )

    @property
    def is_encrypted(self) -> bool:
        return self.handshake.is_encrypted

    @property
    def is_checking(self) -> bool:
        return self.handshake.checking

    @property
    def tls_ended(self) -> bool:
        return self.handshake.tls_ended

    @property
    def is_mute(self) -> bool:
        return self.handshake.awaits_tls

    def decrypt(self, data: bytes) -> bytes:
        return self.handshake.decrypt(data)

    # What the handshake calls

    def checked(self) -> None:
        """Handle the frames received while a thread checked the credentials."""
        self._reader.resume_after_check()

    def bound(self) -> None:
        """Take over the limits of the user's account."""
        self._reader.apply_limits()

    def connected(self) -> None:
        """Have the table note that the client's first CONNECT was accepted."""
        self._table.connected(self)

    # What the account calls

    def send(self, data: bytes) -> None:
        self.writer.send(data)

    def subscriptions(self) -> list[Subscription]:
        return self._subscriptions.active()

    def notify_of_end(self, listener: EndListener) -> bool:
        """Call the listener, which is not kept alive, once the connection is closed and all its interest is gone."""
        self._subscriptions.end_listeners.add(listener)
        return True

    def client_info(self) -> dict[str, Any]:
        session = self.session
        fields = {
            "start": format_time(self.start_ns),
            "host": self.peer.host,
            "id": self.peer.cid,
            "acc": session.account.name,
            "user": session.identity.user if session.identity is not None else "",
            "name": session.options.name,
            "lang": session.options.lang,
            "ver": session.options.version,
            "rtt": self.pings.rtt_ns,
            "server": self._info.name,
            "kind": "Client",
            "client_type": self.peer.client_type,
            **(session.identity.describe_token() if session.identity is not None else {}),
        }
        return {key: value for key, value in fields.items() if value not in ("", 0)}

    # What monitoring shows

    def pending_bytes(self) -> int:
        """Count the bytes that wait to be written."""
        return self.writer.pending_bytes()

    # Reload

    def apply_settings(self) -> None:
        """Take over the settings of a reload; the connection of a user who is not known any more ends."""
        self.writer.apply_limits()
        self.send = self.writer.send  # type: ignore[method-assign]
        self._reader.apply_limits()
        identity = self.session.identity
        if identity is not None:
            settings = self._settings
            self.handshake.reauthorize(settings.authenticator.recognize(identity, settings.previous_authenticator))

    # The end

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self.stop_ns = self._clock.now_ns()
        self.writer.discard()
        self.handshake.close()
        self.pings.close()
        self._subscriptions.close()
        self._reader.clear()
        self._table.closed(self)
        self._log.debug(f"{self} - Client connection closed: {reason}")
