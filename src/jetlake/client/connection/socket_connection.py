"""A small blocking connection: one socket, one thread, no reconnect; for readers that want the bytes themselves.

It greets a server as the asyncio client does, with the same options, and offers what a task of a batch job needs:
requests, publishing, subscriptions, parsed messages, and for the fastest readers the raw bytes of the socket. An
error of the socket closes it; its user opens another one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Self

from jetlake.client.connection.handshake import ServerInfo, complaint, connect_frame, read_info, tls_context
from jetlake.client.connection.server_pool import ServerPool
from jetlake.client.settings.options import ConnectOptions, build_options
from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import (
    AuthorizationError,
    ClientConnectionError,
    ConnectionClosedError,
    ConnectTimeoutError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NoServersError,
    RequestTimeoutError,
)
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol import encoder
from jetlake.protocol.frames import Err, Frame, Info, Msg, Ping, Pong
from jetlake.protocol.headers import inline_status
from jetlake.protocol.nuid import new_inbox
from jetlake.protocol.parser import ClientParser

if TYPE_CHECKING:
    import ssl

_READ_SIZE = 256 * 1024
_RECEIVE_BUFFER_SIZE = 4 * 1024 * 1024
_REQUESTS_SID = b"1"


class SocketConnection:
    """A blocking connection to one server; created by `connect_socket`. Not for several threads at once.

    Attributes:
        sock: the socket (with TLS if there is TLS).
        info: the server's INFO.
        address: where it is.
        inbox: a subject under which everything is this connection's own; requests use numbers below it.
        closed: whether it was closed or broke.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: ServerAddress,
        info: ServerInfo,
        options: ConnectOptions,
        parser: ClientParser | None = None,
    ) -> None:
        self.sock = sock
        self.address = address
        self.info = info
        self.options = options
        self.inbox = self.new_inbox()
        self.closed = False
        self._parser = parser or ClientParser()
        self._arrived: list[Msg] = []
        self._next_sid = int(_REQUESTS_SID)
        self._next_request = 0
        self._pongs = 0
        self.send(encoder.sub(self.inbox + b".*", b"", _REQUESTS_SID))
        # A server says more after its greeting; once it has answered this, raw readers begin at a frame's start.
        self.flush()

    @property
    def server_version(self) -> str:
        """The server's version, such as `2.15.1`."""
        return self.info.version

    @property
    def max_payload(self) -> int:
        """The maximum bytes of headers and payload that the server accepts."""
        return self.info.max_payload

    def new_inbox(self) -> bytes:
        """Return a unique subject to receive replies on."""
        return new_inbox(self.options.inbox_prefix).encode()

    # Writing

    def send(self, data: bytes | memoryview) -> None:
        """Write whole frames.

        Raises:
            ConnectionClosedError: the connection is closed, or it broke just now.
        """
        if self.closed:
            raise ConnectionClosedError("the connection is closed")
        try:
            self.sock.settimeout(self.options.request_timeout_s)
            self.sock.sendall(data)
        except OSError as error:
            self.close()
            raise ConnectionClosedError(f"{self.address} does not accept data: {error}") from error

    def publish(self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", header: bytes = b"") -> None:
        """Publish one message."""
        if header:
            self.send(encoder.hpub(subject, reply, header, payload))
        else:
            self.send(encoder.pub(subject, reply, payload))

    def subscribe(self, subject: bytes, queue: bytes = b"") -> bytes:
        """Subscribe; returns the number that the messages will carry."""
        self._next_sid += 1
        sid = b"%d" % self._next_sid
        self.send(encoder.sub(subject, queue, sid))
        return sid

    def unsubscribe(self, sid: bytes, after: int = 0) -> None:
        """End a subscription now, or after `after` messages since it began."""
        self.send(encoder.unsub(sid, after))

    # Requests

    def request(
        self, subject: bytes, payload: bytes = b"", timeout_s: float | None = None, *, header: bytes = b""
    ) -> Msg:
        """Publish and wait for the answer; messages of subscriptions that come meanwhile are kept for `receive`.

        Raises:
            NoRespondersError: the subject has no subscriber.
            RequestTimeoutError: no answer in time.
            ConnectionClosedError: the connection broke.
        """
        self._next_request += 1
        reply = b"%b.%d" % (self.inbox, self._next_request)
        deadline = time.monotonic() + (timeout_s or self.options.request_timeout_s)
        self.publish(subject, payload, reply=reply, header=header)
        while True:
            for message in self._read(deadline, f"no answer on {subject.decode('utf-8', 'replace')!r} in time"):
                if message.sid != _REQUESTS_SID:
                    self._arrived.append(message)
                elif message.subject == reply:
                    if message.header and not message.payload and inline_status(message.header) == 503:
                        raise NoRespondersError(subject.decode("utf-8", "replace"))
                    return message

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the server has processed everything that was written.

        Raises:
            RequestTimeoutError: it took too long.
        """
        deadline = time.monotonic() + (timeout_s or self.options.request_timeout_s)
        awaited = self._pongs + 1
        self.send(encoder.PING)
        while self._pongs < awaited:
            self._arrived += self._read(deadline, "the server did not answer the ping in time")

    # Reading

    def receive(self, timeout_s: float | None = None) -> list[Msg]:
        """Return the messages of subscriptions that are there, at least one; pings are answered on the way.

        Args:
            timeout_s: seconds to wait for the first; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConnectionClosedError: the connection broke.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._arrived:
            self._arrived += self._read(deadline, "no message came in time")
        arrived, self._arrived = self._arrived, []
        return [message for message in arrived if message.sid != _REQUESTS_SID]

    def recv(self, timeout_s: float | None = None) -> bytes:
        """Return the raw bytes that come next, for a reader that parses them (and answers pings by `handle_line`).

        Raises:
            RequestTimeoutError: none came in time.
            ConnectionClosedError: the connection broke.
        """
        return self._recv(timeout_s, "nothing arrived in time")

    def recv_into(self, buffer: memoryview, timeout_s: float | None = None) -> int:
        """Wait for bytes and put all that are there into the buffer; returns how many.

        Raises:
            RequestTimeoutError: none came in time.
            ConnectionClosedError: the connection broke.
        """
        fill = self._recv_first_into(buffer, timeout_s)
        return fill + self.recv_ready_into(buffer[fill:])

    def recv_ready_into(self, buffer: memoryview) -> int:
        """Put the bytes that are there into the buffer, without waiting; returns how many."""
        fill = 0
        self.sock.settimeout(0.0)
        try:
            while fill < len(buffer):
                count = self.sock.recv_into(buffer[fill:])
                if not count:
                    break  # The server closed its side; the next call says so.
                fill += count
        except OSError:
            pass  # Nothing more is there right now, or the next call says what is wrong.
        return fill

    def _recv_first_into(self, buffer: memoryview, timeout_s: float | None) -> int:
        if self.closed:
            raise ConnectionClosedError("the connection is closed")
        try:
            self.sock.settimeout(timeout_s)
            count = self.sock.recv_into(buffer)
        except TimeoutError:
            raise RequestTimeoutError("nothing arrived in time") from None
        except OSError as error:
            raise self._broken(error) from error
        if not count:
            raise self._broken(None)
        return count

    def handle_line(self, line: bytes) -> None:
        """Handle a control line that a raw reader found between messages: answer a ping, raise an error of the server.

        Raises:
            JetlakeError: the line was an error of the server.
        """
        for frame in ClientParser().feed(line.rstrip(b"\r\n") + b"\r\n"):
            self._control(frame)

    def _read(self, deadline: float | None, reason: str) -> list[Msg]:
        """Return the messages of the next read."""
        timeout_s = None
        if deadline is not None:
            timeout_s = deadline - time.monotonic()
            if timeout_s <= 0:
                raise RequestTimeoutError(reason)
        frames = self._parser.feed(self._recv(timeout_s, reason))
        if self._parser.error is not None:
            self.close()
            raise self._parser.error
        messages = []
        for frame in frames:
            if type(frame) is Msg:
                messages.append(frame)
            else:
                self._control(frame)
        return messages

    def _recv(self, timeout_s: float | None, reason: str) -> bytes:
        if self.closed:
            raise ConnectionClosedError("the connection is closed")
        try:
            self.sock.settimeout(timeout_s)
            data = self.sock.recv(_READ_SIZE)
        except TimeoutError:
            raise RequestTimeoutError(reason) from None
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise self._broken(None)
        return data

    def _broken(self, error: OSError | None) -> ConnectionClosedError:
        self.close()
        return ConnectionClosedError(f"{self.address} closed the connection" + (f": {error}" if error else ""))

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Ping):
            self.send(encoder.PONG)
        elif isinstance(frame, Pong):
            self._pongs += 1
        elif isinstance(frame, Info):
            self.info = read_info(frame.json)
        elif isinstance(frame, Err):
            error = complaint(frame.text)
            if isinstance(error, ClientConnectionError):
                self.close()
            raise error

    # Ending

    def close(self) -> None:
        """Close the socket; calling it again does nothing."""
        if not self.closed:
            self.closed = True
            self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect_socket(
    servers: str | Iterable[str] | None = None,
    *,
    name: str | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    nkey_seed: str | Path | None = None,
    credentials: str | Path | None = None,
    tls: ssl.SSLContext | bool | None = None,
    tls_hostname: str | None = None,
    tls_handshake_first: bool = False,
    connect_timeout: Seconds = 2.0,
    request_timeout: Seconds = 5.0,
    inbox_prefix: str = "_INBOX",
) -> SocketConnection:
    """Connect to the first server that answers; `jetlake.connect` describes the arguments.

    Raises:
        InvalidOptionError: an option that cannot work.
        NoServersError: no server could be reached.
        AuthorizationError: the server refuses the credentials.
    """
    return open_socket(
        build_options(
            servers,
            name=name,
            user=user,
            password=password,
            token=token,
            nkey_seed=nkey_seed,
            credentials=credentials,
            tls=tls,
            tls_hostname=tls_hostname,
            tls_handshake_first=tls_handshake_first,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            inbox_prefix=inbox_prefix,
        )
    )


def open_socket(options: ConnectOptions) -> SocketConnection:
    """Connect to the first server that answers.

    Raises:
        NoServersError: no server could be reached.
        AuthorizationError: the server refuses the credentials.
    """
    pool = ServerPool(
        options.servers,
        attempts_max=1,
        backoff=options.backoff,
        random=Random(),
        shuffle=options.shuffle_servers,
        choose=options.choose_server,
    )
    last_error: Exception | None = None
    while (attempt := pool.next_attempt()) is not None:
        try:
            return _greet(options, attempt.address)
        except (OSError, JetlakeError) as error:
            last_error = error
            pool.failed(attempt.address, str(error) or type(error).__name__)
    if isinstance(last_error, AuthorizationError):
        raise last_error
    raise NoServersError(pool.failures) from last_error


def _greet(options: ConnectOptions, address: ServerAddress) -> SocketConnection:
    """Return a connection to that server."""
    if address.websocket:
        raise InvalidOptionError(f"{address}: bulk reads reach servers by nats and tls addresses, not over WebSocket")
    deadline = time.monotonic() + options.connect_timeout_s
    sock = socket.create_connection((address.host, address.port), timeout=options.connect_timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return greet_socket(sock, options, address, deadline)


def greet_socket(
    sock: socket.socket, options: ConnectOptions, address: ServerAddress, deadline: float | None = None
) -> SocketConnection:
    """Go through INFO, TLS, CONNECT and the first PING on a socket that is connected; it is closed when that fails.

    Raises:
        JetlakeError, OSError: the server refused us, or broke the connection.
    """
    if deadline is None:
        deadline = time.monotonic() + options.connect_timeout_s
    hostname = options.tls_hostname or address.host
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_SIZE)
        context = tls_context(options, address, None)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=hostname)
        parser = ClientParser()
        info = _await_info(sock, parser, deadline, address)
        secure = context is not None
        if not secure and (context := tls_context(options, address, info)) is not None:
            sock = context.wrap_socket(sock, server_hostname=hostname)
            secure = True
        sock.sendall(connect_frame(options, address, info, secure=secure) + encoder.PING)
        info = _await_pong(sock, parser, deadline, address) or info
        return SocketConnection(sock, address, info, options, parser)
    except BaseException:
        sock.close()
        raise


def _await_info(sock: socket.socket, parser: ClientParser, deadline: float, address: ServerAddress) -> ServerInfo:
    while True:
        for frame in _greeting_frames(sock, parser, deadline, address):
            if isinstance(frame, Info):
                return read_info(frame.json)


def _await_pong(
    sock: socket.socket, parser: ClientParser, deadline: float, address: ServerAddress
) -> ServerInfo | None:
    """Wait for the welcome; returns the INFO that came with it, which knows the account, if there was one."""
    info = None
    is_welcome = False
    while not is_welcome:
        for frame in _greeting_frames(sock, parser, deadline, address):
            if isinstance(frame, Info):
                info = read_info(frame.json)
            elif isinstance(frame, Pong):
                is_welcome = True
    return info


def _greeting_frames(sock: socket.socket, parser: ClientParser, deadline: float, address: ServerAddress) -> list[Frame]:
    left_s = deadline - time.monotonic()
    try:
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        data = sock.recv(_READ_SIZE)
    except TimeoutError:
        raise ConnectTimeoutError(f"{address} did not answer in time") from None
    if not data:
        raise ClientConnectionError(f"{address} closed the connection during the greeting")
    frames = parser.feed(data)
    if parser.error is not None:
        raise parser.error
    for frame in frames:
        if isinstance(frame, Err):
            raise complaint(frame.text)
    return frames
