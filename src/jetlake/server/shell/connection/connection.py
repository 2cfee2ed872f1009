"""A client's connection: what asyncio calls and what the account knows, made of a reader, a handshake and a writer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol, cast

from jetlake.model.encoding.times import format_time
from jetlake.protocol.parser import ServerParser
from jetlake.protocol.publish_runs import PublishRuns
from jetlake.server.engine.routing.subscription import EndListener, Subscriber, Subscription
from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.connection.frame_handler import FrameHandler
from jetlake.server.shell.connection.handshake import Handshake
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.peer_connection import PeerConnection
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.reader import ConnectionReader
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection.session import Session
from jetlake.server.shell.connection.subscriptions import ClientSubscriptions
from jetlake.server.shell.connection.writer import ConnectionWriter

__all__ = ["Connection", "ConnectionRegistry"]


class ConnectionRegistry(Protocol):
    """The connection table as connections know it."""

    @property
    def is_crowded(self) -> bool:
        """Whether too many sockets of refused clients are still open."""
        ...

    def admit(self, connection: Connection) -> str | None:
        """Number a new connection; the text of the error when there is no room for it."""
        ...

    def connected(self, connection: Connection) -> None:
        """Note that the client was authenticated."""
        ...

    def closed(self, connection: Connection) -> None:
        """Move an ended connection to the closed ones."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """Forget the socket of a connection."""
        ...


class Connection(PeerConnection, Subscriber):
    """One client, from its socket to its subscriptions.

    Args:
        services: what the server gives its connections.
        registry: the server's connection table.

    Attributes:
        start_ns: when the client connected.
        stop_ns: when the connection ended; 0 while it is open.
        close_reason: why the connection ended; empty while it is open.
    """

    def __init__(self, services: ConnectionServices, registry: ConnectionRegistry) -> None:
        self.start_ns: int = services.clock.now_ns()
        self.stop_ns: int = 0
        self.close_reason: str = ""
        self._registry = registry
        self._clock = services.clock
        self._log = services.log
        self._engine_loop = services.engine_loop
        self._info = services.info
        self._settings = services.settings
        self._report_defect = services.report_defect
        self.peer = peer = Peer()
        self.headers = False  # until CONNECT
        self.session = session = Session(peer, services.accounts.global_account, services.log)
        self.writer = writer = ConnectionWriter(peer, self, self, services)
        self.send = writer.send  # type: ignore[method-assign]  # Deliveries cost no call more.
        self._subscriptions = subscriptions = ClientSubscriptions(session, self, writer, services)
        self.handshake = handshake = Handshake(peer, session, self, subscriptions, writer, self, services)
        self.pings = PingTimer(peer, writer, lambda: handshake.awaits_tls, self, services)
        publish_runs = PublishRuns()
        self._frames = FrameHandler(
            peer, session, self, handshake, subscriptions, self.pings, writer, self, services, publish_runs
        )
        reader = ConnectionReader(
            partial(_make_parser, services.settings, session, publish_runs),
            self,
            writer,
            self.pings,
            services,
            handshake=handshake,
            handle=self._frames.handle,
            handle_violation=self._frames.handle_violation,
        )
        self._read_with(reader)
        self.handshake.on_checked = self._reader.resume_after_check
        self.handshake.on_bound = self._reader.apply_limits
        self.handshake.on_connected = partial(registry.connected, self)

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
        refusal = self._registry.admit(self)
        if refusal is not None:
            self.handshake.send_first_info()
            self.end(refusal, reason=refusal)
            if self._registry.is_crowded:
                self.writer.hang_up()
            return
        self.handshake.start()
        self.pings.start()
        self._engine_loop.schedule()

    def eof_received(self) -> bool:
        self._close("Client Closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._close("Client Closed" if exc is None else "Read Error")
        # Monitoring remembers connections that have ended; their buffers need not be.
        self.writer.detach()
        self._reader.detach()
        self.handshake.detach()
        self._subscriptions.detach()
        self.pings.detach()
        self._frames.detach()
        self._registry.disconnected(self)

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
        }
        return {key: value for key, value in fields.items() if value not in ("", 0)}

    # What monitoring shows

    @property
    def in_msgs(self) -> int:
        """Messages that the client has published."""
        return self._frames.in_msgs

    @property
    def in_bytes(self) -> int:
        """The bytes of the headers and payloads of those messages."""
        return self._frames.in_bytes

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
        self._registry.closed(self)
        self._log.debug(f"{self} - Client connection closed: {reason}")


def _make_parser(settings: Settings, session: Session, publish_runs: PublishRuns) -> ServerParser:
    options = settings.options
    return ServerParser(
        max_control_line=options.max_control_line,
        max_payload=session.payload_max(options.max_payload),
        ack_runs=True,
        publish_runs=publish_runs,
    )
