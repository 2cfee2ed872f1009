"""What the frames of a client do: publishes go to the account, the rest to the part of the connection they concern."""

from __future__ import annotations

from jetlake.model.trace_sampling import TRACE_DESTINATION
from jetlake.protocol.encoder import OK, err
from jetlake.protocol.frames import AckRun, Connect, Frame, Ping, Pong, Pub, PubRun, Sub, Unsub
from jetlake.protocol.parser import GeneralParser
from jetlake.protocol.publish_runs import PublishRuns
from jetlake.protocol.subjects import is_valid_publish
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.connection.control import GONE, ConnectionControl
from jetlake.server.shell.connection.handshake import Handshake
from jetlake.server.shell.connection.message_trace import MessageTrace, trace_destination
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection.session import RESERVED_REPLIES, RESERVED_SUBJECTS, Session
from jetlake.server.shell.connection.subscriptions import ClientSubscriptions
from jetlake.server.shell.connection.traces import readable
from jetlake.server.shell.connection.writer import ConnectionWriter

__all__ = ["FrameHandler"]

# Only subjects that begin with `$` or `_` need the closer look.
_RESERVED_FIRST = frozenset(b"$_")

# Requests to JetStream, and messages to so many, may take long: the clock is looked at after each.
_DOLLAR = b"$"[0]
_RECIPIENTS_MANY = 64


class FrameHandler:
    """Handles the frames of one client.

    Args:
        origin: who the messages come from, as the account knows it.
        runs: reads runs of publishes; told when one had to be handled message by message.

    Attributes:
        in_msgs: messages that the client has published.
        in_bytes: the bytes of their headers and payloads.
    """

    def __init__(
        self,
        peer: Peer,
        session: Session,
        origin: Subscriber,
        handshake: Handshake,
        subscriptions: ClientSubscriptions,
        pings: PingTimer,
        writer: ConnectionWriter,
        control: ConnectionControl,
        services: ConnectionServices,
        runs: PublishRuns,
    ) -> None:
        self.in_msgs = self.in_bytes = 0
        self._peer = peer
        self._session = session
        self._origin = origin
        self._handshake = handshake
        self._subscriptions = subscriptions
        self._pings = pings
        self._writer = writer
        self._control = control
        self._services = services
        self._runs = runs
        self._log = services.log

    def detach(self) -> None:
        """Let go of the connection, which is gone."""
        self._origin = self._control = GONE

    def handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
        """Handle a group of frames; publishes that need no check go straight to the account.

        Returns:
            The frames that have to wait: for a credentials check, or because the time is up.
        """
        messages = size = 0
        session, origin = self._session, self._origin
        guarded = session.guarded
        publish = session.account.publish
        find_route = session.account.literals.get
        ticks = self._services.engine_loop.ticks
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
                        continue
                    taken = publish(subject, reply, header, payload, origin)
                    if (taken >= _RECIPIENTS_MANY or subject[0] == _DOLLAR) and ticks() >= deadline_s:
                        break
                    continue
                self._publish_guarded(subject, reply, header, payload)
            elif type(frame) is PubRun:
                if guarded or not self._publish_run(frame):
                    self._runs.discourage()
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
                if self._handshake.checking:
                    break
            if self._control.closed or ticks() >= deadline_s:
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
        return b"$" not in run.words and b"R_." not in run.words and self._session.account.publish_run(run)

    def _operate(self, frame: Frame) -> None:
        if self._log.tracing:
            self._trace(frame)
        if isinstance(frame, Connect):
            self._handshake.connect(frame.json)
        elif not self._handshake.is_authenticated():
            self._handshake.refuse()
        elif isinstance(frame, Ping):
            self._handshake.answer_ping()
        elif isinstance(frame, Pong):
            self._pings.take_pong()
        elif isinstance(frame, Sub):
            self._subscriptions.subscribe(frame.subject, frame.queue, frame.sid)
        elif isinstance(frame, Unsub):
            self._subscriptions.unsubscribe(frame.sid, frame.max)

    def handle_violation(self, parser: GeneralParser) -> None:
        """End the connection whose bytes the parser refused."""
        error = parser.error
        assert error is not None
        if not self._handshake.is_authenticated():
            self._handshake.refuse()
            return
        self._log.debug(f"{self._peer} - {error.reason}")
        self._control.end(error.text, reason=error.text or "Parse Error")

    def _publish_guarded(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish a message after every check, with the answers that the client asked for."""
        session, send = self._session, self._writer.send
        if self._log.tracing:
            self._trace(Pub(subject, reply, header, payload))
        if not self._handshake.is_authenticated():
            self._handshake.refuse()
            return
        if header and not session.options.headers:
            self._control.end(reason="Message Header Violation")
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
        destination = trace_destination(header) if TRACE_DESTINATION in header else b""
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
            message = (subject, reply, header, payload)
            MessageTrace(self._origin, session.account, message, destination, self._services).publish()
        else:
            session.account.publish(subject, reply, header, payload, self._origin)

    def _publish_guarded_run(self, run: AckRun) -> None:
        """Publish acknowledgements one by one, each after every check."""
        for message in run.messages():
            if self._control.closed:
                return
            self._publish_guarded(message.subject, message.reply, message.header, message.payload)

    def _trace(self, frame: Frame) -> None:
        from jetlake.server.shell.connection.traces import describe_frame

        shown = describe_frame(frame, self._services.settings.options.max_traced_msg_len)
        self._log.trace(f"{self._peer} - <<- [{shown}]")
