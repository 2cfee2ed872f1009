"""The options of a connection, as one frozen value that is checked when it is built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from jetlake.client.settings.credentials import (
    Credentials,
    KeySource,
    Secret,
    answered,
    asking,
    read_credentials,
    read_seed,
)
from jetlake.client.settings.server_address import ServerAddress, parse_addresses
from jetlake.client.settings.tracing import Tracing
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol.subjects import is_valid_publish

if TYPE_CHECKING:
    import socket
    import ssl

__all__ = [
    "DEFAULT_SERVER",
    "AddressesCallback",
    "ChooseServer",
    "ConnectOptions",
    "ErrorCallback",
    "EventCallback",
    "LocalServer",
    "build_options",
    "duration_s",
    "timeout_s",
]

DEFAULT_SERVER = "nats://127.0.0.1:4222"
DEFAULT_INBOX_PREFIX = "_INBOX"
# How a server in this process is named where others have an address.
IN_PROCESS_SERVER = "nats://in-process:4222"

_LOGINS = ("user", "password", "token", "nkey_seed", "credentials")

EventCallback = Callable[[], Awaitable[None] | None]
"""A plain function or a coroutine function without arguments."""
ErrorCallback = Callable[[Exception], Awaitable[None] | None]
"""A plain function or a coroutine function that takes an error."""
ChooseServer = Callable[[list[str]], str | None]
"""Gets the addresses of the servers, and returns the one to try next, or None to leave the order."""

AddressesCallback = Callable[[list[str]], Awaitable[None] | None]
"""A plain function or a coroutine function that takes addresses of servers."""


class LocalServer(Protocol):
    """A server in this process, such as `jetlake.Server`."""

    async def open_socket(self) -> socket.socket:
        """Open a connection without TCP and return the client's end.

        Raises:
            OSError: the server does not run, or runs in another event loop.
        """


class Backoff(Struct, frozen=True):
    """How long to wait between two rounds of attempts to connect, in seconds; `ServerPool` applies it."""

    first_s: float = 0.1
    """After the first round."""
    factor: float = 2.0
    """The growth of each wait."""
    max_s: float = 5.0
    """The longest wait."""
    jitter: float = 0.25
    """The share of a wait that is random."""


class ConnectOptions(Struct, frozen=True, kw_only=True):
    """All options of a connection; `jetlake.connect` describes each."""

    servers: tuple[ServerAddress, ...]
    server: LocalServer | Callable[[], LocalServer] | None = None
    name: str = ""
    user: Secret = ""
    password: Secret = ""
    token: Secret = ""
    credentials: Credentials | Callable[[], Awaitable[Credentials]] | None = None
    tls: ssl.SSLContext | bool | None = None
    tls_hostname: str = ""
    tls_handshake_first: bool = False
    websocket_headers: Mapping[str, str | list[str]] | None = None
    connect_timeout_s: float = 2.0
    request_timeout_s: float = 5.0
    drain_timeout_s: float = 30.0
    reconnect: bool = True
    retry_first_connect: bool = False
    reconnect_attempts_max: int | None = None
    backoff: Backoff = Backoff()
    pending_bytes_max: int = 8 * 1024 * 1024
    ping_interval_s: float = 60.0
    pings_outstanding_max: int = 2
    echo: bool = True
    inbox_prefix: str = DEFAULT_INBOX_PREFIX
    jetstream_domain: str = ""
    """The domain of `Client.jetstream` when nothing else is said; a saved context can set it."""
    jetstream_prefix: str = ""
    """The API prefix instead."""
    tracing: Tracing | None = None
    shuffle_servers: bool = True
    choose_server: ChooseServer | None = None
    discover_servers: bool = True
    on_disconnected: ErrorCallback | None = None
    on_reconnected: EventCallback | None = None
    on_error: ErrorCallback | None = None
    on_lame_duck: EventCallback | None = None
    on_discovered: AddressesCallback | None = None
    on_closed: EventCallback | None = None

    def __post_init__(self) -> None:
        _check_positive("connect_timeout", self.connect_timeout_s)
        _check_positive("request_timeout", self.request_timeout_s)
        _check_positive("drain_timeout", self.drain_timeout_s)
        _check_positive("ping_interval", self.ping_interval_s)
        if self.pings_outstanding_max < 1:
            raise InvalidOptionError(f"pings_outstanding_max must be at least 1, not {self.pings_outstanding_max}")
        if self.pending_bytes_max < 0:
            raise InvalidOptionError(f"pending_bytes_max must be 0 or more, not {self.pending_bytes_max}")
        if self.reconnect_attempts_max is not None and self.reconnect_attempts_max < 1:
            raise InvalidOptionError(
                f"reconnect_attempts_max must be at least 1, or None for no limit, not {self.reconnect_attempts_max}"
            )
        if self.backoff.first_s < 0 or self.backoff.max_s < self.backoff.first_s:
            raise InvalidOptionError("reconnect_wait must be 0 or more, and reconnect_wait_max must not be below it")
        if not is_valid_publish(self.inbox_prefix.encode()):
            raise InvalidOptionError(f"inbox_prefix {self.inbox_prefix!r} is not a subject without wildcards")
        if self.tls is not None and not isinstance(self.tls, bool):
            from ssl import SSLContext  # Loaded only where TLS is used.

            if not isinstance(self.tls, SSLContext):
                raise InvalidOptionError(
                    f"tls must be True, False or an SSL context, not {self.tls!r}; "
                    "make one by ssl.create_default_context(cafile=…)"
                )
        if self.tls_handshake_first and self.tls is False:
            raise InvalidOptionError("tls_handshake_first needs TLS, and tls is False")
        ways = {
            "token": bool(self.token),
            "user and password": bool(self.user or self.password),
            "nkey_seed or credentials": self.credentials is not None,
        }
        given = [way for way, is_given in ways.items() if is_given]
        if len(given) > 1:
            raise InvalidOptionError(f"use only one way to log in: {' and '.join(given)} are given")
        if self.password and not self.user:
            raise InvalidOptionError("password needs user")

    @property
    def asks(self) -> bool:
        """Whether a function is asked for what to log in with."""
        return any(map(callable, (self.user, self.password, self.token, self.credentials)))

    async def answered(self) -> ConnectOptions:
        """Return the options with what the functions give now.

        Raises:
            ClientConnectionError: a function failed.
        """
        if not self.asks:
            return self
        wait_s = self.connect_timeout_s
        return replace(
            self,
            user=await answered("user", self.user, wait_s),
            password=await answered("password", self.password, wait_s),
            token=await answered("token", self.token, wait_s),
            credentials=await answered("credentials", self.credentials, wait_s),
        )


def build_options(
    servers: str | Iterable[str] | None = None, *, context: str | bool | None = None, **given: Any
) -> ConnectOptions:
    """Return the options from what `jetlake.connect` was given.

    Raises:
        InvalidOptionError: an option that cannot work.
    """
    given["servers"] = servers
    if context is None or context is False:
        return _checked_options(**given)
    return _checked_options(**_with_context(context, given))


def _with_context(name: str | bool, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is given, and from a saved context what is not."""
    from jetlake.client.settings.saved_context import read_context  # Loaded only where contexts are used.

    saved = read_context(name if isinstance(name, str) else None).connect_options()
    if any(given.get(option) is not None for option in _LOGINS):
        saved = {option: value for option, value in saved.items() if option not in _LOGINS}
    unset = {"inbox_prefix": DEFAULT_INBOX_PREFIX, "tls_handshake_first": False}
    said = {option: value for option, value in given.items() if option not in saved or value != unset.get(option)}
    return {**saved, **said}


def _checked_options(
    servers: str | Iterable[str] | None = None,
    *,
    nkey_seed: KeySource | None = None,
    credentials: KeySource | None = None,
    reconnect_wait: Seconds = 0.1,
    reconnect_wait_max: Seconds = 5.0,
    reconnect_jitter: float = 0.25,
    connect_timeout: Seconds = 2.0,
    request_timeout: Seconds = 5.0,
    drain_timeout: Seconds = 30.0,
    ping_interval: Seconds = 60.0,
    **fields: object,
) -> ConnectOptions:
    if nkey_seed is not None and credentials is not None:
        raise InvalidOptionError("use only one way to log in: nkey_seed and credentials are given")
    if not 0 <= reconnect_jitter <= 1:
        raise InvalidOptionError(f"reconnect_jitter must be a fraction between 0 and 1, not {reconnect_jitter}")
    if fields.get("server") is not None:
        if servers is not None:
            raise InvalidOptionError("servers (addresses) and server (a server in this process) are mutually exclusive")
        if not callable(fields["server"]) and not hasattr(fields["server"], "open_socket"):
            raise InvalidOptionError(
                f"server must be a server in this process, not {fields['server']!r}; for addresses use servers"
            )
        servers = IN_PROCESS_SERVER
    if servers is None:
        servers = DEFAULT_SERVER
    given: dict[str, object] = {name: value for name, value in fields.items() if value is not None}
    if nkey_seed is not None:
        given["credentials"] = asking(nkey_seed, read_seed) if callable(nkey_seed) else read_seed(nkey_seed)
    elif credentials is not None:
        given["credentials"] = (
            asking(credentials, read_credentials) if callable(credentials) else read_credentials(credentials)
        )
    try:
        return ConnectOptions(
            servers=parse_addresses(servers if isinstance(servers, str) else list(servers)),
            backoff=Backoff(
                first_s=duration_s("reconnect_wait", reconnect_wait),
                max_s=duration_s("reconnect_wait_max", reconnect_wait_max),
                jitter=reconnect_jitter,
            ),
            connect_timeout_s=duration_s("connect_timeout", connect_timeout),
            request_timeout_s=duration_s("request_timeout", request_timeout),
            drain_timeout_s=duration_s("drain_timeout", drain_timeout),
            ping_interval_s=duration_s("ping_interval", ping_interval),
            **given,  # type: ignore[arg-type]
        )
    except TypeError as error:
        raise InvalidOptionError(f"connect: {error}") from None


def duration_s(option: str, value: Seconds) -> float:
    """Read a number of seconds or a timedelta.

    Raises:
        InvalidOptionError: neither, or not finite.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise InvalidOptionError(f"{option} must be a number of seconds or a timedelta, not {value!r}")
    return float(value)


def timeout_s(value: Seconds | None) -> float | None:
    """Read the seconds that a call may wait; None for its default.

    Raises:
        InvalidOptionError: not a duration, or not more than nothing.
    """
    if value is None:
        return None
    wait_s = duration_s("timeout", value)
    _check_positive("timeout", wait_s)
    return wait_s


def _check_positive(option: str, value_s: float) -> None:
    if value_s <= 0:
        raise InvalidOptionError(f"{option} must be more than 0 seconds, not {value_s:g}")
