"""The blocking client, for scripts, notebooks and threads.

The reasons are in decision 16 (docs/decisions).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, ParamSpec, Self, cast

from jetlake import client
from jetlake.blocking.facade import Call, Collect, Facade, View, blocking_doc
from jetlake.blocking.jetstream import JetStream
from jetlake.blocking.loop_thread import LoopPort, LoopThread
from jetlake.blocking.message import Message
from jetlake.blocking.reading import MessageHandler, Subscription
from jetlake.blocking.send_queue import SendQueue
from jetlake.blocking.service import Service, Services
from jetlake.client.connection.connection import Connection, ConnectionState
from jetlake.client.connection.handshake import ServerInfo
from jetlake.client.connection.subscription import SlowPolicy
from jetlake.client.messages.statistics import Statistics
from jetlake.client.publish.publish_window import PublishWindow
from jetlake.client.settings.options import ConnectOptions, build_options, timeout_s
from jetlake.client.settings.tracing import trace_sends
from jetlake.client.settings.wire_values import HeadersLike, header_bytes, payload_bytes, publish_subject
from jetlake.errors import ConnectionClosedError, DrainTimeoutError, JetlakeError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.service import EndpointInfo
from jetlake.protocol import encoder

P = ParamSpec("P")

_FLUSH_S = 10.0
_SHUTDOWN_S = 3.0


class Client(Facade):
    """A connection to a server or cluster, usable from several threads; created by `jetlake.blocking.connect`.

    A thread of its own runs the connection. Usable as a context manager, which drains at its end.
    """

    _inner: client.Client

    def __init__(self, inner: client.Client, thread: LoopThread, sends: SendQueue) -> None:
        super().__init__(inner, thread)
        self._sends = sends

    rtt = Call(client.Client.rtt)
    request_many = Collect(client.Client.request_many)
    force_reconnect = Call(client.Client.force_reconnect)

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected."""
        return self._inner.is_connected and not self._thread.port.is_shut

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed for good."""
        return self._inner.is_closed or self._thread.port.is_shut

    state = View[ConnectionState]("What the connection is doing.")
    server_info = View[ServerInfo]("The last INFO of the connected server.")
    server = View[str]("The address of the server that it is, or was last, connected to.")
    servers = View[list[str]]("The addresses of all servers that are known, named, or advertised by a cluster.")
    max_payload = View[int]("The most bytes of headers and payload that the server takes.")
    reconnects = View[int]("How often the client has reconnected.")
    statistics = View[Statistics]("Messages and bytes received and sent so far, over all connections.")
    last_error = View[Exception | None]("The last error that no call could raise; None if there was none.")

    def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None:
        """Publish to the current subscribers; waits only while the socket's buffer is full.

        Raises:
            BadSubjectError: the subject is invalid.
            ConnectionClosedError: the client is closed.
        """
        raw_subject = publish_subject(subject)
        raw_reply = publish_subject(reply) if reply else b""
        payload = payload_bytes(payload)
        header = header_bytes(headers)
        self._inner._connection.check_size(len(header) + len(payload))
        if header:
            self._sends.send(encoder.hpub(raw_subject, raw_reply, header, payload))
        else:
            self._sends.send(encoder.pub(raw_subject, raw_reply, payload))

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: Seconds | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """Publish and wait for the first answer.

        Raises:
            NoRespondersError: the subject has no subscribers.
            RequestTimeoutError: no answer in time.
            DisconnectedError: the connection was lost meanwhile.
        """
        return cast(
            "Message", self._thread.call(self._inner.request(subject, payload, timeout=timeout, headers=headers))
        )

    def subscribe(
        self,
        subject: str,
        callback: MessageHandler | None = None,
        *,
        queue: str = "",
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
    ) -> Subscription:
        """Receive the messages of a subject from now on; arguments as in `jetlake.Client.subscribe`.

        The callback runs in a thread of its own and may block; without one, iterate over the subscription.
        """
        inner = self._thread.call(
            self._inner.subscribe(
                subject,
                queue=queue,
                pending_messages_max=pending_messages_max,
                pending_bytes_max=pending_bytes_max,
                on_slow=on_slow,
            )
        )
        subscription = Subscription(inner, self._thread)
        if callback is not None:
            subscription.run(callback, f"jetlake-{subject}")
        return subscription

    def set_servers(self, servers: str | Iterable[str]) -> None:
        """Replace the known servers, as `jetlake.Client.set_servers`."""

        async def take() -> None:
            self._inner.set_servers(servers)

        self._thread.call(take())

    def new_inbox(self) -> str:
        """Return a unique subject to receive replies on."""
        return self._inner.new_inbox()

    def jetstream(
        self,
        *,
        domain: str = "",
        prefix: str = "",
        timeout: Seconds | None = None,
        publish_window: int = 4000,
        publish_window_bytes: int = 64 * 1024 * 1024,
    ) -> JetStream:
        """JetStream through this connection; arguments as in `jetlake.Client.jetstream`."""
        inner = self._inner.jetstream(
            domain=domain,
            prefix=prefix,
            timeout=timeout,
            publish_window=publish_window,
            publish_window_bytes=publish_window_bytes,
        )
        return JetStream(inner, self._thread)

    def service(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue: str | None = "q",
        stats_data: Callable[[EndpointInfo], Any] | None = None,
        concurrency: int = 1,
    ) -> Service:
        """Make a service of this client, whose handlers run in threads; see `jetlake.Client.service`."""
        inner = self._inner.service(
            name,
            version,
            description=description,
            metadata=metadata,
            queue=queue,
            stats_data=stats_data,
            concurrency=concurrency,
        )
        return Service(inner, self._thread)

    def services(self) -> Services:
        """Return a handle to discover running services, and to send requests whose errors are raised."""
        return Services(self._inner.services(), self._thread)

    def flush(self, timeout: Seconds = _FLUSH_S) -> None:
        """Wait until the server has processed everything that was published before."""
        wait_s = timeout_s(timeout) or _FLUSH_S
        deadline = time.monotonic() + wait_s

        async def flush() -> None:
            await self._sends.flushed(wait_s)
            await self._inner.flush(max(0.001, deadline - time.monotonic()))

        self._thread.call(flush())

    def drain(self, timeout: Seconds | None = None) -> None:
        """Close without loss: subscriptions and reads end, callbacks and handlers finish, published messages are sent.

        Raises:
            DrainTimeoutError: callbacks, handlers or the server took too long; the client is closed all the same.
        """
        if self.is_closed:
            return
        connection = self._inner._connection
        wait_s = timeout_s(timeout) or connection.options.drain_timeout_s
        deadline = time.monotonic() + wait_s

        async def wind_down() -> None:
            async with asyncio.timeout(wait_s):
                await self._thread.port.empty_queues()
                await self._sends.flushed()
                await connection.wind_down()

        try:
            self._thread.call(wind_down())
            is_done = self._thread.join(timeout_s=deadline - time.monotonic())
        except TimeoutError:
            is_done = False
        except JetlakeError:
            is_done = True  # The connection broke meanwhile: there is no server left to drain to.
        except BaseException:
            self.close()  # Interrupted: some subscriptions have ended, and only this call would close the others.
            raise
        if is_done:
            self._end(lambda: self._inner.drain(max(0.001, deadline - time.monotonic())))
        else:
            self.close()
            raise DrainTimeoutError(f"draining took longer than {wait_s:g} s; the rest was cut off")

    def close(self) -> None:
        """Write queued frames and close; subscriptions end."""
        if threading.current_thread() is self._thread.port.thread:
            self._thread.port.leave()  # In an event callback, which must not wait for its own thread.
        else:
            self._end(self._inner.close)

    def _end(self, how: Callable[[], Any]) -> None:
        async def end() -> None:
            try:
                # First the frames that other threads have queued.
                self._sends.flush()
                await how()
            finally:
                # Messages that never got into the window fail now.
                if self._inner.is_closed:
                    await self._thread.port.empty_queues()

        try:
            self._thread.call(end())
        except ConnectionClosedError:
            pass
        finally:
            if self.is_closed:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.drain()
        else:
            self.close()


def _blocking(connect: Callable[P, Any]) -> Callable[[Callable[..., Client]], Callable[P, Client]]:
    """Give a function the arguments and the documentation of the asyncio one."""

    def with_signature(function: Callable[..., Client]) -> Callable[P, Client]:
        update_wrapper(function, connect, assigned=(), updated=())
        function.__doc__ = blocking_doc(connect)
        return cast("Callable[P, Client]", function)

    return with_signature


@_blocking(client.connect)
def connect(*arguments: Any, **options: Any) -> Client:
    given = signature(client.connect).bind(*arguments, **options)
    given.apply_defaults()
    return _open(build_options(given.arguments.pop("servers"), **given.arguments))


def _open(options: ConnectOptions) -> Client:
    name = f"jetlake-{options.name or 'client'}"
    thread = LoopThread(name)
    port = thread.port

    async def open_client() -> tuple[client.Client, SendQueue]:
        connection = Connection(options, message_type=Message)
        sends = SendQueue(port, connection)
        connection.outlet = sends
        await connection.open()
        return client.Client(connection), sends

    try:
        inner, sends = thread.call(open_client())
    except BaseException:
        thread.stop()
        raise
    port.shutdown = partial(_shut_down, inner._connection, sends, port)
    port.sockets = inner._connection.sockets
    port.is_closed = partial(_is_closed, inner._connection)
    port.cut_off = inner._connection.cut_off
    thread.keep(name)
    made = Client(inner, thread, sends)
    trace_sends(made, options.tracing)
    return made


def _is_closed(connection: Connection) -> bool:
    return connection.is_closed


async def _shut_down(connection: Connection, sends: SendQueue, port: LoopPort) -> None:
    """Send all queued frames, wait for a limited time for acknowledgements, then close."""
    sends.flush()
    try:
        async with asyncio.timeout(_SHUTDOWN_S):
            await port.empty_queues()
            await sends.flushed()
            await asyncio.gather(
                *(window.complete() for window in connection.receivers() if isinstance(window, PublishWindow)),
                return_exceptions=True,
            )
            if connection.is_connected:
                await connection.flush(_SHUTDOWN_S)
    except (TimeoutError, JetlakeError):
        pass  # What is not acknowledged is reported by the windows when the connection closes.
    connection.close()
    await connection.wait_closed()
