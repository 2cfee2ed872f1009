"""The WebSocket protocol of one connection: bytes of the socket in, bytes of the NATS protocol out, and back.

The reasons are in decision 21 (docs/decisions).
"""

from __future__ import annotations

from http import HTTPStatus

from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from jetlake.server.config.options import WebSocketOptions
from jetlake.server.shell.websocket.upgrade import is_browser, refusal

__all__ = ["WebSocketCore"]

# As in nats-server: shorter output is not worth compressing, and pages read small frames sooner.
_COMPRESSED_MIN = 65
_BROWSER_FRAME_BYTES = 4096

# A message may have the longest payload, its protocol lines, and what a client gathers in one write.
_GATHERED_BYTES = 1024 * 1024

_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
)


class WebSocketCore:
    """The upgrade and the frames of one connection, without a socket.

    Attributes:
        request: the request that was upgraded; None before that.
        ended: the socket must be closed: the upgrade was refused, or both sides have sent their close frames.

    Args:
        options: the listener's options.
        max_payload: the longest payload of a NATS message.
        is_encrypted: the socket speaks TLS, which makes a page's own origin `https`.
        takes_leaf_nodes: requests of leaf nodes are upgraded too.
    """

    def __init__(
        self, options: WebSocketOptions, max_payload: int, *, is_encrypted: bool, takes_leaf_nodes: bool = False
    ) -> None:
        self.request: Request | None = None
        self.ended = False
        self._options = options
        self._is_encrypted = is_encrypted
        self._takes_leaf_nodes = takes_leaf_nodes
        deflate = ServerPerMessageDeflateFactory(
            server_no_context_takeover=True, client_no_context_takeover=True, compress_settings={"level": 1}
        )
        self._protocol = ServerProtocol(
            extensions=[deflate] if options.compression else None, max_size=max_payload + _GATHERED_BYTES
        )
        self._frame_bytes = 0

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the socket, and return the payloads of data frames; `to_send` has the answers to others."""
        protocol = self._protocol
        protocol.receive_data(data)
        payloads = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif isinstance(event, Frame) and event.opcode in _DATA:
                payloads.append(event.data)
        return b"".join(payloads)

    def _upgrade(self, request: Request) -> None:
        status = refusal(
            request, self._options, is_encrypted=self._is_encrypted, takes_leaf_nodes=self._takes_leaf_nodes
        )
        if status is None:
            response = self._protocol.accept(request)
            if response.status_code == HTTPStatus.UPGRADE_REQUIRED:
                response.status_code, response.reason_phrase = HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST.phrase
        else:
            response = self._protocol.reject(status, f"{status.phrase}\n")
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.request = request
            self._frame_bytes = _BROWSER_FRAME_BYTES if is_browser(request.headers) else 0
            self._complete(response)
        else:
            response.headers["Sec-WebSocket-Version"] = "13"
        self._protocol.send_response(response)

    def _complete(self, response: Response) -> None:
        for name, value in self._options.headers:
            response.headers[name] = value

    @property
    def violation(self) -> str:
        """What the client did wrong; empty while it did nothing."""
        return str(self._protocol.parser_exc or self._protocol.handshake_exc or "")

    @property
    def is_open(self) -> bool:
        """Whether data can be sent: after the upgrade, and before a close frame."""
        return self._protocol.state is State.OPEN

    def to_send(self) -> bytes:
        """Take the bytes to send besides the data: the answer to the upgrade, pongs, the close frame."""
        pieces = self._protocol.data_to_send()
        if SEND_EOF in pieces:
            self.ended = True
            pieces = pieces[: pieces.index(SEND_EOF)]
            if self.request is None and not pieces:
                return _BAD_REQUEST  # not HTTP at all
        return b"".join(pieces)

    def frame(self, data: bytes) -> bytes:
        """Put bytes of the NATS protocol into frames, each a message of its own."""
        size = self._frame_bytes
        if not size or len(data) <= size:
            return self._frame(data)
        return b"".join([self._frame(data[start : start + size]) for start in range(0, len(data), size)])

    def _frame(self, data: bytes) -> bytes:
        extensions = self._protocol.extensions if len(data) >= _COMPRESSED_MIN else ()
        return Frame(Opcode.BINARY, data).serialize(mask=False, extensions=extensions)

    def close(self, code: int, reason: str) -> bytes:
        """Return the close frame; empty when it was sent before, or the connection was never upgraded."""
        if not self.is_open:
            return b""
        self._protocol.send_close(code, reason)
        return self.to_send()
