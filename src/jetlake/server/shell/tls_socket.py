"""TLS between a socket and a protocol that knows nothing of it.

asyncio's own servers count no TLS handshakes and wait a minute for each: sockets that stall would take all descriptors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from ssl import SSLContext
from typing import Any, cast

from msgspec import Struct

from jetlake.server.shell.access.tls import TlsChannel, TlsError

__all__ = ["LayeredTransport", "TlsListening", "TlsSocket"]


class TlsListening(Struct, frozen=True):
    """How a listener speaks TLS."""

    context: SSLContext
    timeout_s: float
    """How long a handshake may take."""
    has_room: Callable[[], bool]
    """Whether one more socket may begin a handshake; otherwise it is closed at once."""


class TlsSocket(asyncio.Protocol):
    """A socket that was accepted: the TLS handshake within its time, then the protocol above.

    Args:
        make_protocol: makes the protocol once the handshake is complete.
        handshakes: the sockets in their handshake, this one among them until it is complete.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], tls: TlsListening, handshakes: set[TlsSocket]
    ) -> None:
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshakes = handshakes
        self._channel = TlsChannel(tls.context)
        self._socket: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._above: _TlsTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        if not self._tls.has_room():
            self._socket.abort()
            return
        self._handshakes.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._tls.timeout_s, self.abort)

    def data_received(self, data: bytes) -> None:
        socket, channel = self._socket, self._channel
        if socket is None or socket.is_closing():
            return
        try:
            plaintext = channel.receive(data)
        except TlsError:
            socket.write(channel.to_send())
            self._end(socket)
            return
        if answer := channel.to_send():
            socket.write(answer)
        if channel.established and self._protocol is None:
            self._end_handshake()
            self._protocol = self._make_protocol()
            self._above = _TlsTransport(socket, channel, self._tls.context)
            self._protocol.connection_made(self._above)
        if plaintext and self._protocol is not None:
            self._protocol.data_received(plaintext)
        if channel.ended:
            self._end_when_read(socket)

    def _end_when_read(self, socket: asyncio.Transport) -> None:
        """Close the socket when the protocol above has handled all that came before the end of TLS."""
        if self._above is not None and self._above.is_paused:
            self._above.at_resume = partial(self._end_when_read, socket)
        else:
            self._end(socket)

    def eof_received(self) -> bool:
        if self._protocol is not None:
            self._protocol.eof_received()
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        self._socket = None
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def abort(self) -> None:
        """Close the socket at once."""
        if self._socket is not None:
            self._socket.abort()

    def _end(self, socket: asyncio.Transport) -> None:
        """Close the socket after a violation of TLS, or after the peer's end of it."""
        if self._protocol is not None:
            self._protocol.eof_received()
        socket.close()

    def _end_handshake(self) -> None:
        self._handshakes.discard(self)
        if self._timer is not None:
            self._timer.cancel()


class LayeredTransport(asyncio.Transport):
    """A transport above a socket's: a subclass says how written bytes are framed, and how the stream ends."""

    def __init__(self, socket: asyncio.Transport, extra: dict[str, Any]) -> None:
        super().__init__(extra)
        self._socket = socket

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = super().get_extra_info(name)
        return found if found is not None else self._socket.get_extra_info(name, default)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def abort(self) -> None:
        self._socket.abort()


class _TlsTransport(LayeredTransport):
    """What a protocol above TLS writes to.

    Attributes:
        is_paused: the protocol has not handled all that it was given.
        at_resume: called once when it has.
    """

    def __init__(self, socket: asyncio.Transport, channel: TlsChannel, context: SSLContext) -> None:
        super().__init__(socket, {"ssl_object": channel.object, "sslcontext": context})
        self._channel = channel
        self.is_paused = False
        self.at_resume: Callable[[], None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._socket.is_closing():
            self._socket.write(self._channel.encrypt(bytes(data)))

    def pause_reading(self) -> None:
        self.is_paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self.is_paused = False
        self._socket.resume_reading()
        if (at_resume := self.at_resume) is not None:
            self.at_resume = None
            at_resume()

    def can_write_eof(self) -> bool:
        return False  # the end of TLS ends both directions

    def close(self) -> None:
        if not self._socket.is_closing():
            self._socket.write(self._channel.finish())
            self._socket.close()
