"""What the connections to clients and to hubs share: what asyncio calls, and how a connection ends."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Collection

from jetlake.protocol.encoder import err
from jetlake.protocol.frames import Frame
from jetlake.protocol.parser import GeneralParser
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.reader import ConnectionReader
from jetlake.server.shell.connection.writer import ConnectionWriter

__all__ = ["PeerConnection", "hang_up_all"]

# How long a clean stop waits for the last bytes to be taken.
_STOP_S = 1.0


class PeerConnection(asyncio.Protocol):
    """A connection made of a reader and a writer; base of the connections to clients and to leaf nodes.

    Attributes:
        closed: the connection has ended; nothing more is handled or sent.
    """

    closed: bool
    peer: Peer
    writer: ConnectionWriter
    pings: PingTimer
    _reader: ConnectionReader
    _report_defect: Callable[[str, Exception], None]

    def _read_with(self, reader: ConnectionReader) -> None:
        self._reader = reader
        self.data_received = reader.receive  # type: ignore[method-assign]  # A read costs no call more.

    @property
    @abstractmethod
    def close_reason(self) -> str:
        """Why the connection ended; empty while it is open."""

    # What the reader calls

    @abstractmethod
    def make_parser(self) -> GeneralParser:
        """Make the parser, with the limits in force."""

    @abstractmethod
    def handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
        """Handle a group of frames until a time, and return the frames that have to wait."""

    @abstractmethod
    def handle_violation(self, parser: GeneralParser) -> None:
        """End the connection whose bytes the parser refused."""

    @property
    def is_encrypted(self) -> bool:
        """Whether received bytes have to go through `decrypt`."""
        return False

    @property
    def is_checking(self) -> bool:
        """Whether frames wait until credentials are checked."""
        return False

    @property
    def tls_ended(self) -> bool:
        """Whether the peer has ended TLS, and the connection has to follow once all is handled."""
        return False

    def decrypt(self, data: bytes) -> bytes:
        """Return the plaintext of received bytes."""
        return data

    @property
    @abstractmethod
    def is_mute(self) -> bool:
        """Whether nothing can be sent for now."""

    # What asyncio calls

    def _attach(self, transport: asyncio.Transport) -> None:
        self.writer.attach(transport)
        self._reader.attach(transport)

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()

    def end(self, error: str | None = None, *, reason: str) -> None:
        """Close the connection, after an -ERR with this text if there is one."""
        if self.closed:
            return
        if error is not None:
            self.writer.send(err(error))
        self.writer.flush_all()
        self._close(reason)
        self.writer.linger()

    def drop(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection without an -ERR; at once = without waiting for bytes that are unwritten."""
        self._close(reason)
        self.writer.hang_up(at_once=at_once)

    def fail(self, error: Exception) -> None:
        """Report an internal error and close this connection; other connections are not affected."""
        self._report_defect(str(self.peer), error)
        self.end(reason="Internal Error")

    @abstractmethod
    def _close(self, reason: str) -> None:
        """Release everything but the socket, which may live a little longer."""


async def hang_up_all(sockets: Collection[PeerConnection]) -> None:
    """Close the sockets of connections that have ended, after a moment for the last bytes; none is left open.

    Args:
        sockets: the connections with open sockets; a connection leaves them when its socket is gone.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STOP_S
    while sockets and loop.time() < deadline:
        for connection in list(sockets):
            connection.writer.hang_up()
        await asyncio.sleep(0.002)
    for connection in list(sockets):
        connection.writer.hang_up(at_once=True)
    await asyncio.sleep(0)  # the loop tells connections of their end in its next turn
