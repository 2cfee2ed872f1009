"""A leaf connection: the socket to a hub, from its INFO over TLS and CONNECT to the link that it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from ssl import SSLContext
from typing import cast

from jetlake.errors import JetlakeError
from jetlake.protocol.encoder import PONG, connect
from jetlake.protocol.frames import Err, Frame, Info, LeafMsg, LeafSub, LeafUnsub, Ping, Pong
from jetlake.protocol.leaf import LeafParser
from jetlake.protocol.parser import GeneralParser
from jetlake.server.engine.core.timers import Timer
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.peer_connection import PeerConnection
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.reader import ConnectionReader
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection.writer import ConnectionWriter
from jetlake.server.shell.leaf.hub_info import HubInfo, read_hub_info
from jetlake.server.shell.leaf.link import LeafLink, LoopError

__all__ = ["LeafConnection"]

_SECOND_NS = 1_000_000_000
# How long the hub may take to answer CONNECT with its second INFO.
_ANSWER_S = 2.0
_NOT_A_HUB = "this port is not one for leaf nodes"


class _State(Enum):
    GREETING = "waits for INFO"
    SECURING = "waits for TLS"
    LOGIN = "waits for the answer to CONNECT"
    OPEN = "carries a link"


class _LeafPeer(Peer):
    """The hub; as text the prefix of the connection's log lines."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port} - lid:{self.cid}"


class LeafConnection(PeerConnection):
    """One connection to a hub.

    Args:
        number: the connection's number in logs and monitoring.
        first_info_timeout_s: how long the hub may take to be reached and to greet.
        tls_timeout_s: how long the TLS handshake may take.
        tls: makes the context, and the name that the hub's certificate must have.
        wants_tls: TLS is used whether the hub asks for it or not.
        make_connect: makes the CONNECT of the hub's first INFO.
        link: what the connection carries once the hub has accepted the CONNECT.
        on_info: called with every INFO of the hub but the first.

    Attributes:
        info: the hub's latest INFO.
        reason: why the connection ended; empty while it is open.
        ended: done when the connection has ended.
        was_open: whether the hub had accepted the connection that has ended.
    """

    def __init__(
        self,
        services: ConnectionServices,
        number: int,
        *,
        first_info_timeout_s: float,
        tls_timeout_s: float,
        tls: Callable[[], tuple[SSLContext, str]],
        wants_tls: bool,
        make_connect: Callable[[HubInfo], bytes],
        link: LeafLink,
        on_info: Callable[[HubInfo], None],
    ) -> None:
        self.link = link
        self.info = HubInfo()
        self.reason = ""
        self.closed = self.was_open = False
        self.start_ns = services.clock.now_ns()
        self.peer = peer = _LeafPeer()
        peer.cid = number
        self._clock = services.clock
        self._log = services.log
        self._engine_loop = services.engine_loop
        self._report_defect = services.report_defect
        self.ended: asyncio.Future[None] = self._engine_loop.loop.create_future()
        self._tls = tls
        self._tls_timeout_s = tls_timeout_s
        self._wants_tls = wants_tls
        self._make_connect = make_connect
        self._on_info = on_info
        self._state = _State.GREETING
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self.writer = writer = ConnectionWriter(peer, link, self, services)
        self.pings = PingTimer(peer, writer, lambda: not self.is_open, self, services)
        self._read_with(
            ConnectionReader(
                LeafParser,
                self,
                writer,
                self.pings,
                services,
                handle=self._handle,
                handle_violation=self._handle_violation,
            )
        )
        self._expect_within(first_info_timeout_s)

    @property
    def is_open(self) -> bool:
        """Whether the hub has accepted the connection, and it has not ended."""
        return self._state is _State.OPEN and not self.closed

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._attach(cast("asyncio.Transport", transport))
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer.host, self.peer.port = str(address[0]), int(address[1])
        if self.closed:
            self.writer.hang_up()

    def _attach(self, transport: asyncio.Transport) -> None:
        super()._attach(transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._close("Client Closed" if exc is None else "Read Error")
        self.writer.detach()
        self._reader.detach()
        self.pings.detach()

    # Frames

    def _handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
        """Handle a group of frames; messages that follow each other stay together.

        Returns:
            The frames that have to wait, because the time is up.
        """
        messages: list[LeafMsg] = []
        for place, frame in enumerate(frames):
            if isinstance(frame, LeafMsg):
                messages.append(frame)
                continue
            self._receive(messages)
            messages = []
            self._operate(frame)
            if self.closed:
                return []
            if self._engine_loop.ticks() >= deadline_s:
                return frames[place + 1 :]
        self._receive(messages)
        return []

    def _receive(self, messages: list[LeafMsg]) -> None:
        if messages and self.is_open:
            self.link.receive(messages)

    def _operate(self, frame: Frame) -> None:
        if self._state is _State.SECURING:
            return  # Anybody could have sent it in the clear, and an answer would be written into the handshake.
        if isinstance(frame, Info):
            self._receive_info(frame.json)
        elif isinstance(frame, Ping):
            self.writer.send(PONG)
        elif isinstance(frame, Pong):
            self.pings.take_pong()
        elif isinstance(frame, Err):
            self._log.error(f"{self.peer} - Leafnode Error '{frame.text}'")
            self.reason = self.reason or frame.text
        elif not self.is_open:
            return
        elif isinstance(frame, LeafUnsub):
            self.link.unsubscribe(frame)
        elif isinstance(frame, LeafSub):
            try:
                self.link.subscribe(frame)
            except LoopError:
                text = f'Loop detected for leafnode account="{self.link.account.name}"'
                self._log.error(f"{self.peer} - {text}")
                self.end(f"{text}. Delaying attempt to reconnect for 30s", reason=text)

    def _handle_violation(self, parser: GeneralParser) -> None:
        assert parser.error is not None
        self._log.error(f"{self.peer} - {parser.error.reason}")
        self.end(parser.error.text, reason=parser.error.text or "Parse Error")

    # Handshake

    def _receive_info(self, json: bytes) -> None:
        try:
            self.info = info = read_hub_info(json)
        except JetlakeError as error:
            self._refuse(str(error))
            return
        if self._state is _State.GREETING:
            if not info.accepts_leaves:
                self._refuse(_NOT_A_HUB)
            elif (info.tls_required or self._wants_tls) and not self._is_encrypted():
                self._state = _State.SECURING
                self._expect_within(self._tls_timeout_s)
                self._engine_loop.start_task(self._secure())
            else:
                self._log_in()
        elif self._state is _State.LOGIN:
            self._open()
            self._on_info(info)
        elif self._state is _State.OPEN:
            self._on_info(info)

    def _is_encrypted(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    async def _secure(self) -> None:
        """Go on with TLS."""
        transport = self._transport
        assert transport is not None
        try:
            loop = self._engine_loop.loop
            context, name = await loop.run_in_executor(None, self._tls)
            if self.closed:
                return  # TLS on a transport that is closed never begins, and never ends.
            self._reader.start_over()  # nothing that came in the clear is continued by what comes over TLS
            secured = await loop.start_tls(transport, self, context, server_hostname=name)
        except (OSError, JetlakeError) as error:  # Errors of TLS are OSErrors.
            self._refuse(f"TLS handshake error: {error}")
            return
        if secured is None or self.closed:
            self._refuse("the hub closed the connection in the TLS handshake")
            return
        self._attach(secured)
        self._log_in()

    def _log_in(self) -> None:
        try:
            line = connect(self._make_connect(self.info))
        except JetlakeError as error:
            self._refuse(str(error))
            return
        self.writer.send(line)
        if self.info.info_on_connect:
            self._state = _State.LOGIN
            self._expect_within(_ANSWER_S)
        else:
            self._open()

    def _open(self) -> None:
        self._state = _State.OPEN
        self._engine_loop.timers.cancel(self._timer)
        self.link.open(self.info, self.writer.send)
        self.pings.start()
        self._engine_loop.schedule()
        self._log.info(f"{self.peer} - Leafnode connection created for account: {self.link.account.name}")

    def _expect_within(self, seconds: float) -> None:
        timers = self._engine_loop.timers
        timers.cancel(self._timer)
        self._timer = timers.schedule(self._clock.now_ns() + int(seconds * _SECOND_NS), self._time_out)
        self._engine_loop.schedule()

    def _time_out(self, _now_ns: int) -> None:
        self._refuse(f"the hub did not answer: the connection {self._state.value}")

    # The end

    def _refuse(self, why: str) -> None:
        if not self.closed:
            self._log.error(f"{self.peer} - Leafnode connection failed: {why}")
            self.drop(why)

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.was_open, self.closed = self.is_open, True
        self.reason = self.reason or reason
        self.writer.discard()
        self.pings.close()
        self._engine_loop.timers.cancel(self._timer)
        self._reader.clear()
        if self.was_open:
            self._engine_loop.work.begin(self.link.close())
            self._log.info(
                f"{self.peer} - Leafnode connection closed: {self.reason} - Account: {self.link.account.name}"
            )
        self._engine_loop.schedule()
        if not self.ended.done():
            self.ended.set_result(None)
