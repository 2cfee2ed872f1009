"""How a client is made: `connect`, which can be awaited or entered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jetlake.client.client import Client
from jetlake.client.connection.connection import Connection
from jetlake.client.settings.credentials import KeySource, Secret
from jetlake.client.settings.options import (
    AddressesCallback,
    ChooseServer,
    ErrorCallback,
    EventCallback,
    LocalServer,
    build_options,
)
from jetlake.client.settings.tracing import Tracing, trace_sends
from jetlake.model.encoding.durations import Seconds

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

__all__ = ["Connecting", "connect"]


class Connecting(Coroutine[Any, Any, Client]):
    """A connection that is about to be made: `await` it for the client, or enter it with `async with`.

    Args:
        opening: the coroutine that makes the connection.
    """

    __slots__ = ("_client", "_opening")

    def __init__(self, opening: Coroutine[Any, Any, Client]) -> None:
        self._opening = opening

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._opening.__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._opening
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    # As a coroutine, so that `asyncio.create_task(jetlake.connect())` works too.

    def send(self, value: Any, /) -> Any:
        """Run the connecting until it waits."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the connecting waits."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """Give the connecting up."""
        self._opening.close()


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    server: LocalServer | Callable[[], LocalServer] | None = None,
    context: str | bool | None = None,
    name: str | None = None,
    user: Secret | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    nkey_seed: KeySource | None = None,
    credentials: KeySource | None = None,
    tls: ssl.SSLContext | bool | None = None,
    tls_hostname: str | None = None,
    tls_handshake_first: bool = False,
    websocket_headers: Mapping[str, str | list[str]] | None = None,
    connect_timeout: Seconds = 2.0,
    request_timeout: Seconds = 5.0,
    drain_timeout: Seconds = 30.0,
    reconnect: bool = True,
    retry_first_connect: bool = False,
    reconnect_attempts_max: int | None = None,
    reconnect_wait: Seconds = 0.1,
    reconnect_wait_max: Seconds = 5.0,
    reconnect_jitter: float = 0.25,
    pending_bytes_max: int = 8 * 1024 * 1024,
    ping_interval: Seconds = 60.0,
    pings_outstanding_max: int = 2,
    echo: bool = True,
    inbox_prefix: str = "_INBOX",
    shuffle_servers: bool = True,
    choose_server: ChooseServer | None = None,
    discover_servers: bool = True,
    tracing: Tracing | None = None,
    on_disconnected: ErrorCallback | None = None,
    on_reconnected: EventCallback | None = None,
    on_error: ErrorCallback | None = None,
    on_lame_duck: EventCallback | None = None,
    on_discovered: AddressesCallback | None = None,
    on_closed: EventCallback | None = None,
) -> Connecting:
    """Connect to a server or cluster; `await` it, or use it as an async context manager, which drains at its end.

    ::

        async with jetlake.connect("nats://localhost:4222") as nc:
            await nc.publish("greet", b"hello")

    Args:
        servers: one address or several, like `nats://localhost:4222`, `tls://host` or `nats://user:password@host`;
            over WebSocket `ws://host:8080` or `wss://host`.
        server: a `jetlake.Server` that runs in this event loop, instead of addresses: the connection needs no TCP. A
            function that gives one is asked at each connect, so that a server may be replaced.
        context: a context that the `nats` command saved, or True for the one that it has selected: servers, login, TLS,
            inbox prefix and JetStream domain. Other arguments win over the context.
        name: shown in the server's list of connections.
        user: user name, with `password`.
        password: the user's password.
        token: a token instead of a user.
        nkey_seed: an nkey seed, or the path of a file that holds one.
        credentials: the path of a creds file with a JWT and its seed, or its text. Each of these five may be a plain
            or coroutine function instead, which is asked at each connect, for `connect_timeout` seconds at most.
        tls: an SSL context; True demands TLS with the default one, False refuses it. Default: as the server requires.
        tls_hostname: the name that the server's certificate must have. Default: the host of its address.
        tls_handshake_first: start TLS before the server says anything, for servers that are set so.
        websocket_headers: headers of the request by which a WebSocket begins, for whatever stands before the server.
        connect_timeout: seconds that one server may take; and how long a server may give no sign of life when an
            answer or a heartbeat is overdue, before the connection is given up.
        request_timeout: seconds that a request waits by default.
        drain_timeout: seconds that `drain` may take by default.
        reconnect: connect again after a lost connection; without, the client is closed.
        retry_first_connect: keep trying when no server is there at the first attempt either.
        reconnect_attempts_max: failures in a row after which a server is given up, refused credentials included, which
            `on_error` hears of each time. Default: never.
        reconnect_wait: seconds to wait when all servers were tried once; doubled each time.
        reconnect_wait_max: the longest such wait.
        reconnect_jitter: the share of each wait that is random.
        pending_bytes_max: bytes that may be written while there is no server.
        ping_interval: seconds between signs of life.
        pings_outstanding_max: unanswered pings after which the connection is given up.
        echo: receive what this connection publishes itself.
        inbox_prefix: what the subjects for replies begin with.
        shuffle_servers: try the servers, and the addresses of each name, in random order.
        choose_server: called before each attempt with the addresses in the order in which they would be tried; returns
            the one to try next, or None to leave the order.
        discover_servers: learn the addresses of a cluster's other servers.
        tracing: traces what is published and handled, such as `jetlake.otel.Tracing()`.
        on_disconnected: called with the reason when the connection is lost.
        on_reconnected: called when there is a new one.
        on_error: called with what no call can raise: slow subscribers, refused permissions, failing handlers.
        on_lame_duck: called when the server announces that it is going to stop.
        on_discovered: called with the addresses of servers that were learned.
        on_closed: called when the client is closed for good.

    Raises:
        InvalidOptionError: an option that cannot work; nothing was sent.
        NoServersError: no server could be reached.
        AuthorizationError: the server refuses the credentials.
    """
    return Connecting(
        _connect(
            servers=servers,
            server=server,
            context=context,
            name=name,
            user=user,
            password=password,
            token=token,
            nkey_seed=nkey_seed,
            credentials=credentials,
            tls=tls,
            tls_hostname=tls_hostname,
            tls_handshake_first=tls_handshake_first,
            websocket_headers=websocket_headers,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            drain_timeout=drain_timeout,
            reconnect=reconnect,
            retry_first_connect=retry_first_connect,
            reconnect_attempts_max=reconnect_attempts_max,
            reconnect_wait=reconnect_wait,
            reconnect_wait_max=reconnect_wait_max,
            reconnect_jitter=reconnect_jitter,
            pending_bytes_max=pending_bytes_max,
            ping_interval=ping_interval,
            pings_outstanding_max=pings_outstanding_max,
            echo=echo,
            inbox_prefix=inbox_prefix,
            shuffle_servers=shuffle_servers,
            choose_server=choose_server,
            discover_servers=discover_servers,
            tracing=tracing,
            on_disconnected=on_disconnected,
            on_reconnected=on_reconnected,
            on_error=on_error,
            on_lame_duck=on_lame_duck,
            on_discovered=on_discovered,
            on_closed=on_closed,
        )
    )


async def _connect(**given: Any) -> Client:
    if given["context"] is None:
        options = build_options(**given)
    else:
        # Files are read, and programs may be asked.
        options = await asyncio.to_thread(build_options, **given)
    client = Client(Connection(options))
    await client._connection.open()
    trace_sends(client, client._connection.options.tracing)
    return client
