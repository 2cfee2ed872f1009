"""A leaf connection: the socket to another server, once it carries a link, and how it ends.

The two ends differ only in the handshake: `dialled.py` is the leaf node's end, `accepted.py` the hub's.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import cast

from jetlake.errors import BadSubjectError
from jetlake.protocol.encoder import PONG, err
from jetlake.protocol.frames import Err, Frame, LeafMsg, LeafSub, LeafUnsub, Ping, Pong
from jetlake.protocol.leaf import LeafParser
from jetlake.protocol.parser import GeneralParser
from jetlake.server.engine.core.timers import Timer
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.peer_connection import ConnectionReader, ConnectionWriter, PeerConnection
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.leaf.link import LeafLink, LoopError, ViolationError
from jetlake.server.shell.leaf.peer_info import PeerInfo

__all__ = ["LeafConnection"]

_SECOND_NS = 1_000_000_000


class _LeafPeer(Peer):
    """The other server; as text the prefix of the connection's log lines."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port} - lid:{self.cid}"


class LeafConnection(PeerConnection):
    """One leaf connection, to a hub or from a leaf node.

    Args:
        number: the connection's number in logs and monitoring.
        link: what the connection carries once the handshake is over.
        sockets: the leaf connections whose sockets are open, this one among them until its own is gone.

    Attributes:
        reason: why the connection ended; empty while it is open.
        ended: done when the connection has ended.
        was_open: whether a link was open on the connection that has ended.
    """

    def __init__(self, services: ConnectionServices, number: int, link: LeafLink, sockets: set[LeafConnection]) -> None:
        self.link = link
        self._sockets = sockets
        self.reason = ""
        self.closed = self.was_open = self._is_linked = False
        self.start_ns = services.clock.now_ns()
        self.peer = peer = _LeafPeer()
        peer.cid = number
        self._clock = services.clock
        self._log = services.log
        self._engine_loop = services.engine_loop
        self._report_defect = services.report_defect
        self.ended: asyncio.Future[None] = self._engine_loop.loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self.writer = ConnectionWriter(peer, link, self, services)
        self.pings = PingTimer(self, services)
        self._read_with(ConnectionReader(self, services))

    @property
    def is_open(self) -> bool:
        """Whether the connection carries a link, and has not ended."""
        return self._is_linked and not self.closed

    @property
    def close_reason(self) -> str:
        """Why the connection ended, for a WebSocket below."""
        return self.reason

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sockets.add(self)
        self._attach(cast("asyncio.Transport", transport))
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer.host, self.peer.port = str(address[0]).removeprefix("::ffff:"), int(address[1])
        if self.closed:
            self.writer.hang_up()

    def _attach(self, transport: asyncio.Transport) -> None:
        super()._attach(transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._sockets.discard(self)
        self._close("Client Closed" if exc is None else "Read Error")
        self.writer.detach()
        self._reader.detach()
        self.pings.detach()

    # Frames

    def make_parser(self) -> LeafParser:
        return LeafParser()

    @property
    def is_mute(self) -> bool:
        return not self.is_open

    def handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
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
            try:
                self.link.receive(messages)
            except ViolationError as error:
                self._end_for(error)
        elif messages:
            self._refuse_frame(messages[0])

    def _operate(self, frame: Frame) -> None:
        """Handle a frame that is no message, on a connection that carries a link."""
        if isinstance(frame, Ping):
            self.writer.send(PONG)
        elif isinstance(frame, Pong):
            self.pings.take_pong()
        elif isinstance(frame, Err):
            self._log.error(f"{self.peer} - Leafnode Error '{frame.text}'")
            self.reason = self.reason or frame.text
        elif not self.is_open:
            self._refuse_frame(frame)
        elif isinstance(frame, LeafUnsub):
            self.link.unsubscribe(frame)
        elif isinstance(frame, LeafSub):
            self._subscribe(frame)

    @abstractmethod
    def _refuse_frame(self, frame: Frame) -> None:
        """React to interest, or a message, on a connection that carries no link."""

    def _subscribe(self, frame: LeafSub) -> None:
        try:
            self.link.subscribe(frame)
        except LoopError:
            text = f'Loop detected for leafnode account="{self.link.account.name}"'
            self._log.error(f"{self.peer} - {text}")
            self.end(f"{text}. Delaying attempt to reconnect for 30s", reason=text)
        except ViolationError as error:
            self._end_for(error)
        except BadSubjectError:
            self.writer.send(err("Invalid Subscription"))

    def _end_for(self, error: ViolationError) -> None:
        text = f"Permissions Violation for {error}"
        self._log.error(f"{self.peer} - {text} - Check other side configuration")
        self.end(text, reason="Protocol Violation")

    def handle_violation(self, parser: GeneralParser) -> None:
        assert parser.error is not None
        self._log.error(f"{self.peer} - {parser.error.reason}")
        self.end(parser.error.text, reason=parser.error.text or "Parse Error")

    # The end of the handshake

    def _open(self, info: PeerInfo) -> None:
        """Carry the link from now on."""
        self._is_linked = True
        self._engine_loop.timers.cancel(self._timer)
        self.link.open(info, self.writer.send)
        self.pings.start()
        self._engine_loop.schedule()
        self._log.info(f"{self.peer} - Leafnode connection created for account: {self.link.account.name}")

    def _expect_within(self, seconds: float, time_out: Callable[[int], None]) -> None:
        timers = self._engine_loop.timers
        timers.cancel(self._timer)
        self._timer = timers.schedule(self._clock.now_ns() + int(seconds * _SECOND_NS), time_out)
        self._engine_loop.schedule()

    # The end

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
