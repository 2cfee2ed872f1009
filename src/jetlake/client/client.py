"""The client: core messaging, and the way to JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Self

from jetlake.client.connection.connection import Connection, ConnectionState
from jetlake.client.connection.handshake import ServerInfo
from jetlake.client.connection.inboxes import Sentinel, answer_limits, request_many
from jetlake.client.connection.subscription import MessageCallback, PendingLimits, SlowPolicy, Subscription
from jetlake.client.messages.message import Message
from jetlake.client.messages.statistics import Statistics
from jetlake.client.settings.options import timeout_s
from jetlake.client.settings.server_address import parse_addresses
from jetlake.client.settings.wire_values import (
    HeadersLike,
    header_bytes,
    payload_bytes,
    publish_subject,
    queue_bytes,
    reply_subject,
    subscribe_subject,
)
from jetlake.errors import ClientConnectionError, DrainTimeoutError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jetlake.client.jetstream import JetStream
    from jetlake.client.services.discovery import Services
    from jetlake.client.services.service import Service
    from jetlake.model.service import EndpointInfo

__all__ = ["Client"]

_PENDING_MESSAGES_MAX = 512 * 1024
_PENDING_BYTES_MAX = 128 * 1024 * 1024
_FLUSH_S = 10.0


class Client:
    """A connection to a server or cluster; created by `jetlake.connect`.

    Usable as an async context manager, which drains at its end.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # State

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected."""
        return self._connection.state is ConnectionState.CONNECTED

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed for good."""
        return self._connection.is_closed

    @property
    def state(self) -> ConnectionState:
        """What the connection is doing."""
        return self._connection.state

    @property
    def server_info(self) -> ServerInfo:
        """The last INFO of the connected server."""
        return self._connection.info

    @property
    def server(self) -> str:
        """The address of the current server, or of the last one."""
        return str(self._connection.address or "")

    @property
    def servers(self) -> list[str]:
        """The addresses of all known servers: named by the user, or advertised by a cluster."""
        return [str(address) for address in self._connection.servers]

    @property
    def max_payload(self) -> int:
        """The maximum bytes of headers and payload that the server accepts."""
        return self._connection.max_payload

    @property
    def reconnects(self) -> int:
        """How often the client has reconnected."""
        return self._connection.reconnects

    @property
    def statistics(self) -> Statistics:
        """Messages and bytes received and sent so far, over all connections."""
        return self._connection.statistics()

    @property
    def last_error(self) -> Exception | None:
        """The last error that no call could raise; None if there was none."""
        return self._connection.last_error

    # Core messaging

    def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> Coroutine[Any, Any, None]:
        """Publish to the subscribers of the moment; the write happens at the end of this turn of the event loop.

        Awaiting the result applies back-pressure: it waits while the socket's buffer is full.

        Args:
            subject: where to.
            payload: the content.
            reply: a subject for answers.
            headers: headers of the message.

        Raises:
            BadSubjectError: the subject is not valid for publishing.
            ConnectionClosedError: the client is closed.
            OutboundBufferFullError: there is no server and too much waits already.
        """
        raw_subject = publish_subject(subject)
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        raw_reply = reply_subject(reply, raw_subject) if reply else b""
        connection = self._connection
        if headers:
            header = header_bytes(headers)
            connection.check_size(len(header) + len(payload))
            return connection.send_bulk(encoder.hpub(raw_subject, raw_reply, header, payload))
        if len(payload) > connection.max_payload:
            connection.check_size(len(payload))
        return connection.send_bulk(encoder.pub(raw_subject, raw_reply, payload))

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: Seconds | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """Publish and wait for the first answer.

        Args:
            timeout: seconds to wait; the connection's `request_timeout` when None.

        Raises:
            NoRespondersError: the subject has no subscriber.
            RequestTimeoutError: no answer in time.
            DisconnectedError: the connection was lost meanwhile.
        """
        raw_subject = publish_subject(subject)
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        header = header_bytes(headers)
        connection = self._connection
        connection.check_size(len(header) + len(payload))
        return await connection.request_raw(raw_subject, header, payload, timeout_s(timeout))

    def request_many(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: Seconds | None = None,
        max_messages: int | None = None,
        stall: Seconds | None = None,
        sentinel: Sentinel = False,
        headers: HeadersLike | None = None,
    ) -> AsyncIterator[Message]:
        """Publish and yield answers as they arrive; the absence of answers is not an error.

        ::

            async for answer in client.request_many("who.is.there", stall=0.3):
                print(answer.payload)

        Args:
            subject: where to.
            payload: the content.
            timeout: seconds until the last answer; the connection's `request_timeout` when None.
            max_messages: most answers.
            stall: seconds after an answer in which the next one must come.
            sentinel: True for an answer without payload that says that all have come, or a function that finds such an
                answer; it is not handed out.
            headers: headers of the message.

        Raises:
            NoRespondersError: the subject has no subscriber.
            DisconnectedError: the connection was lost meanwhile.
        """
        connection = self._connection
        raw_subject, header, content = publish_subject(subject), header_bytes(headers), payload_bytes(payload)
        connection.check_size(len(header) + len(content))
        wait_s = timeout_s(timeout) or connection.options.request_timeout_s
        return request_many(
            connection, raw_subject, header, content, answer_limits(wait_s, max_messages, stall, sentinel)
        )

    async def subscribe(
        self,
        subject: str,
        callback: MessageCallback | None = None,
        *,
        queue: str = "",
        pending_messages_max: int = _PENDING_MESSAGES_MAX,
        pending_bytes_max: int = _PENDING_BYTES_MAX,
        on_slow: SlowPolicy = "drop_new",
    ) -> Subscription:
        """Receive what is published to a subject from now on.

        Args:
            subject: a subject, or a pattern with `*` for one token and `>` for the rest.
            callback: called with each message; iterate over the subscription when there is none. A plain function is
                called right when the message is read, a coroutine function one message at a time.
            queue: the queue group; each message goes to one of its members.
            pending_messages_max: most messages that may wait to be taken.
            pending_bytes_max: most bytes of payload that may wait to be taken.
            on_slow: what happens when one of these limits is reached: `drop_new`, `drop_old`, `pause` or `error`.
                `on_error` gets a `SlowSubscriberError` in each case.

        Raises:
            BadSubjectError: the subject is not valid for subscribing.
            ConnectionClosedError: the client is closed.
        """
        subscription = Subscription(
            self._connection,
            subscribe_subject(subject),
            queue_bytes(queue),
            callback=self._connection.traced(callback),
            limits=PendingLimits(
                pending_messages_max=pending_messages_max, pending_bytes_max=pending_bytes_max, on_slow=on_slow
            ),
        )
        self._connection.subscribe(subscription)
        return subscription

    def new_inbox(self) -> str:
        """Return a unique subject to receive replies on."""
        return new_inbox(self._connection.options.inbox_prefix)

    def jetstream(
        self,
        *,
        domain: str = "",
        prefix: str = "",
        timeout: Seconds | None = None,
        publish_window: int = 4000,
        publish_window_bytes: int = 64 * 1024 * 1024,
    ) -> JetStream:
        """JetStream through this connection.

        Args:
            domain: the JetStream domain; empty for the one of the context or server.
            prefix: the whole API prefix instead, for an API that is imported under another name.
            timeout: seconds that a call waits; the connection's `request_timeout` when None.
            publish_window: most messages of `publish_async` under way.
            publish_window_bytes: most bytes of them.
        """
        from jetlake.client.jetstream import JetStream

        if not domain and not prefix:
            options = self._connection.options
            domain, prefix = options.jetstream_domain, options.jetstream_prefix
        return JetStream(
            self._connection,
            domain=domain,
            prefix=prefix,
            timeout=timeout,
            publish_window=publish_window,
            publish_window_bytes=publish_window_bytes,
        )

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
        """Create a service on this client, which other clients find by its name (NATS ADR-32).

        ::

            async with client.service("shop", "1.0.0") as shop:
                @shop.endpoint()
                async def price(request):
                    return b"42"

        Args:
            name: shared by all instances: letters, digits, `-` and `_`.
            version: by semantic versioning, like `1.0.0`.
            description: free text.
            metadata: free keys and values.
            queue: the queue group of its endpoints, of which one instance answers; None lets every instance answer.
            stats_data: called with each endpoint when statistics are asked for; what it returns is their `data`.
            concurrency: how many requests an endpoint works on at a time, unless it has a number of its own.

        Raises:
            InvalidOptionError: a name or version that other clients would refuse.
        """
        from jetlake.client.services.service import Service

        return Service(
            self._connection,
            name,
            version,
            description=description,
            metadata=metadata,
            queue=queue,
            stats_data=stats_data,
            concurrency=concurrency,
        )

    def services(self) -> Services:
        """Return a handle to discover running services, and to send requests whose errors are raised."""
        from jetlake.client.services.discovery import Services

        return Services(self._connection)

    # Ending

    async def flush(self, timeout: Seconds = _FLUSH_S) -> None:
        """Wait until the server has processed everything that was published before.

        Raises:
            RequestTimeoutError: it took too long.
            DisconnectedError: the connection was lost meanwhile.
        """
        await self._connection.flush(timeout_s(timeout) or _FLUSH_S)

    async def rtt(self) -> float:
        """Return the seconds that a round trip to the server takes."""
        start = self._connection.loop.time()
        await self._connection.flush(self._connection.options.request_timeout_s)
        return self._connection.loop.time() - start

    def set_servers(self, servers: str | Iterable[str]) -> None:
        """Replace the known servers: the new ones are tried when the connection is lost, or by `force_reconnect`.

        Args:
            servers: one address or several, as `jetlake.connect` takes them.

        Raises:
            InvalidOptionError: one of them is no address, or there is none.
            ConnectionClosedError: the client is closed.
        """
        self._connection.set_servers(parse_addresses(servers if isinstance(servers, str) else list(servers)))

    async def force_reconnect(self, timeout: Seconds = _FLUSH_S) -> None:
        """Disconnect and connect again, to the next server if there are several; returns when connected.

        Published messages are sent first, for half of the timeout at most: a server that does not answer is left too.
        Use it when credentials or servers have changed, or to balance a cluster.

        Raises:
            ConnectionClosedError: the client is closed, or became so because no server took it.
            RequestTimeoutError: there is no connection within the timeout; it is still tried.
        """
        wait_s = timeout_s(timeout) or _FLUSH_S
        try:
            async with asyncio.timeout(wait_s):
                await self._connection.reconnect(wait_s / 2)
        except TimeoutError:
            raise RequestTimeoutError(f"no new connection within {wait_s:g} s") from None

    async def drain(self, timeout: Seconds | None = None) -> None:
        """Close without loss: subscriptions and reads end, callbacks and handlers finish, published messages are sent.

        Requests and the messages of `publish_async` get their answers first. Without a server, what waits to be sent
        waits for the next one, as long as the timeout lets it; what is not sent then is reported to `on_error`.

        Messages that were fetched ahead for an iterator go back to the server, since they could not be acknowledged
        any more. A handler or callback that calls this itself is not waited for.

        Raises:
            DrainTimeoutError: callbacks or the server took too long; the client is closed all the same.
        """
        connection = self._connection
        if connection.is_closed:
            return
        wait_s = timeout_s(timeout) or connection.options.drain_timeout_s
        receivers = connection.receivers()
        try:
            with connection.endings.leaving(is_child_included=False):
                async with asyncio.timeout(wait_s):
                    await connection.wind_down()
                    await connection.sent(wait_s)
        except (TimeoutError, RequestTimeoutError):
            for receiver in receivers:
                receiver.abandon()
            raise DrainTimeoutError(f"draining took longer than {wait_s:g} s; the rest was cut off") from None
        except ClientConnectionError:
            pass  # The connection broke meanwhile: there is no server left to drain to.
        finally:
            await self.close()

    async def close(self) -> None:
        """Send pending data and close; subscriptions end. Use `drain` to let them finish.

        A server that does not take what waits within two seconds is not waited for: `on_error` is told.
        """
        self._connection.close()
        await self._connection.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.drain()
        else:
            await self.close()

    def __repr__(self) -> str:
        return f"<Client {self._connection.describe()}>"
