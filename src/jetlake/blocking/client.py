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
from jetlake.blocking.facade import Call, Collect, Facade, View
from jetlake.blocking.jetstream import JetStream
from jetlake.blocking.message import Message
from jetlake.blocking.outlet import ThreadOutlet
from jetlake.blocking.reading import MessageHandler, Subscription
from jetlake.blocking.service import Service, Services
from jetlake.blocking.threads.loop_port import LoopPort
from jetlake.blocking.threads.loop_thread import LoopThread
from jetlake.blocking.wording import blocking_wording
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

__all__ = ["Client", "connect"]

P = ParamSpec("P")

_FLUSH_S = 10.0
_SHUTDOWN_S = 3.0


class Client(Facade):
    """A connection to a server or cluster, usable from several threads; made by `jetlake.blocking.connect`.

    A thread of its own runs the connection. Usable as a context manager, which drains at its end.
    """

    _inner: client.Client

    def __init__(self, inner: client.Client, thread: LoopThread, outlet: ThreadOutlet) -> None:
        super().__init__(inner, thread)
        self._outlet = outlet

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
        """Publish to the subscribers of the moment; waits only while the socket's buffer is full.

        Raises:
            BadSubjectError: nobody can publish there.
            ConnectionClosedError: the client is closed.
        """
        raw_subject = publish_subject(subject)
        raw_reply = publish_subject(reply) if reply else b""
        payload = payload_bytes(payload)
        header = header_bytes(headers)
        self._inner._connection.check_size(len(header) + len(payload))
        if header:
            self._outlet.send(encoder.hpub(raw_subject, raw_reply, header, payload))
        else:
            self._outlet.send(encoder.pub(raw_subject, raw_reply, payload))

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
            NoRespondersError: nobody listens.
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
        """Receive what is published to a subject from now on; the arguments are those of `jetlake.Client.subscribe`.

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
        """Know these servers from now on, as `jetlake.Client.set_servers`."""

        async def take() -> None:
            self._inner.set_servers(servers)

        self._thread.call(take())

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses, to receive replies on."""
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
        """JetStream through this connection; the arguments are those of `jetlake.Client.jetstream`."""
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
        """Return the services that run somewhere: find them, and send requests whose errors are raised."""
        return Services(self._inner.services(), self._thread)

    def flush(self, timeout: Seconds = _FLUSH_S) -> None:
        """Wait until the server has processed everything that was published before."""
        wait_s = timeout_s(timeout) or _FLUSH_S
        deadline = time.monotonic() + wait_s

        async def flush() -> None:
            await self._outlet.flushed(wait_s)
            await self._inner.flush(max(0.001, deadline - time.monotonic()))

        self._thread.call(flush())

    def drain(self, timeout: Seconds | None = None) -> None:
        """Close without loss: subscriptions and reads end, callbacks and handlers finish, what was published is sent.

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
                await self._outlet.flushed()
                await connection.wind_down()

        try:
            self._thread.call(wind_down())
            is_done = self._thread.join(timeout_s=deadline - time.monotonic())
        except TimeoutError:
            is_done = False
        except JetlakeError:
            is_done = True  # The connection broke meanwhile: there is nobody left to drain to.
        if is_done:
            self._end(lambda: self._inner.drain(max(0.001, deadline - time.monotonic())))
        else:
            self.close()
            raise DrainTimeoutError(f"draining took longer than {wait_s:g} s; the rest was cut off")

    def close(self) -> None:
        """Write what waits and close; subscriptions end."""
        if threading.current_thread() is self._thread.port.thread:
            self._thread.port.leave()  # In an event callback, where waiting would be for ever.
        else:
            self._end(self._inner.close)

    def _end(self, how: Callable[[], Any]) -> None:
        async def end() -> None:
            try:
                # First what other threads have queued.
                self._outlet.flush()
                await how()
            finally:
                # Whatever the window had no room for is told that it is too late.
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
        function.__doc__ = blocking_wording(connect.__doc__ or "")
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

    async def open_client() -> tuple[client.Client, ThreadOutlet]:
        connection = Connection(options, message_type=Message)
        outlet = ThreadOutlet(port, connection)
        connection.outlet = outlet
        await connection.open()
        return client.Client(connection), outlet

    try:
        inner, outlet = thread.call(open_client())
    except BaseException:
        thread.stop()
        raise
    port.shutdown = partial(_shut_down, inner._connection, outlet, port)
    port.sockets = inner._connection.sockets
    thread.keep(name)
    made = Client(inner, thread, outlet)
    trace_sends(made, options.tracing)
    return made


async def _shut_down(connection: Connection, outlet: ThreadOutlet, port: LoopPort) -> None:
    """Send what waits and wait for the acknowledgements of what was published, but not for ever; then close."""
    outlet.flush()
    try:
        async with asyncio.timeout(_SHUTDOWN_S):
            await port.empty_queues()
            await outlet.flushed()
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
