"""How Spark's tasks reach the servers: the options, and the connections that a process keeps by them.

A task leases a connection and returns it for the next task of the process, at most four for equal options. A forked
worker starts without any: the connections that it inherits belong to its parent, which still writes to them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jetlake.client.connection.socket_connection import SocketConnection, connect_socket
from jetlake.client.tables.option_values import boolean, duration_s, names, text, timeout_s
from jetlake.errors import ConfigError, JetlakeError
from jetlake.model.api import api_prefix
from jetlake.spark.options.option_table import build, consumer_name, known_options, option, refuse_unknown, without_path

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


_IDLE_MAX = 4
_FRESH_S = 1.0

# Idle connections by their options, each with the time since which it is idle; forked workers have their own.
_idle: dict[ConnectionOptions, list[tuple[float, SocketConnection]]] = {}
_idle_of_process = os.getpid()


def _servers(value: str) -> tuple[str, ...]:
    servers = names(value)
    for server in servers:
        if "@" in server:
            raise ValueError(
                "it holds credentials, which Spark would show in plans and in its UI; "
                "use auth.user with auth.password, auth.token or auth.credsSecret"
            )
        scheme, separator, _ = server.partition("://")
        if separator and scheme in ("ws", "wss"):
            raise ValueError(f"{scheme}:// is not supported in Spark: use nats:// or tls://")
        if separator and scheme not in ("nats", "tls"):
            raise ValueError(f"{scheme}:// is not a scheme of NATS servers; use nats:// or tls://")
    return servers


@dataclass(frozen=True)
class ConnectionOptions:
    """How to reach the server, for source and sink alike."""

    servers: tuple[str, ...] = option(
        "servers",
        _servers,
        ("nats://127.0.0.1:4222",),
        "nats://127.0.0.1:4222",
        "Addresses of the servers, separated by commas; `tls://` asks for TLS. Every executor must reach them. "
        "Credentials in an address are refused, because Spark shows addresses.",
    )
    user: str = option("auth.user", text, "", "none", "User name; goes with `auth.password`.")
    password: str = option("auth.password", text, "", "none", "Password of `auth.user`.")
    token: str = option("auth.token", text, "", "none", "Token, for servers that take one.")
    credentials: str = option(
        "auth.credsSecret",
        text,
        "",
        "none",
        "The *content* of a credentials file (user JWT and seed), not its path: executors do not have your files.",
    )
    nkey_seed: str = option(
        "auth.nkeySecret", text, "", "none", "The nkey seed (`SU…`) to sign the server's nonce with."
    )
    tls: bool = option("tls", boolean, False, "false", "Use TLS even where the server does not ask for it.")
    tls_ca: str = option(
        "tls.ca", text, "", "the system's", "Certificates to trust, as PEM text or as a path that every machine has."
    )
    tls_cert: str = option("tls.cert", text, "", "none", "The client's certificate, as PEM text or path.")
    tls_key: str = option("tls.keySecret", text, "", "none", "The client's private key, as PEM text or path.")
    tls_hostname: str = option(
        "tls.hostname", text, "", "the address's", "Name that the server's certificate must carry."
    )
    domain: str = option("domain", consumer_name, "", "none", "JetStream domain of the streams.")
    connect_timeout_s: float = option(
        "connectTimeout", timeout_s, 5.0, "5s", "How long one attempt to connect may take."
    )
    request_timeout_s: float = option(
        "requestTimeout", timeout_s, 5.0, "5s", "How long to wait for one answer of the server."
    )
    retry_for_s: float = option(
        "retryFor",
        duration_s,
        60.0,
        "60s",
        "How long to retry when the server is away, before the task or the query fails.",
    )

    def __post_init__(self) -> None:
        if bool(self.user) != bool(self.password):
            raise ConfigError("options auth.user and auth.password go together: one of them is missing")
        given = [
            name
            for name, value in (
                ("auth.user", self.user),
                ("auth.token", self.token),
                ("auth.credsSecret", self.credentials),
                ("auth.nkeySecret", self.nkey_seed),
            )
            if value
        ]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} are different ways to log in: give one of them")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("options tls.cert and tls.keySecret go together: one of them is missing")

    @property
    def api_prefix(self) -> str:
        """What the subjects of the JetStream API begin with."""
        return api_prefix(self.domain)

    @contextmanager
    def lease(self) -> Iterator[SocketConnection]:
        """Lease a connection for the block; it is kept for the next one unless the block failed."""
        connection = _take_idle(self) or open_connection(self)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        idle = _idle.setdefault(self, [])
        if not connection.closed and len(idle) < _IDLE_MAX:
            idle.append((time.monotonic(), connection))
        else:
            connection.close()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ConnectionOptions:
        """Read the connection's part of the options."""
        return build(cls, options)


def build_with_connection(cls: type[T], options: Mapping[str, str], *, path: str, doing: str) -> T:
    """Read the options of one side, source or sink, with its connection's.

    Args:
        path: the option that Spark's path stands for.
        doing: what the side does, for the error.

    Raises:
        ConfigError: the first option that is unknown or unusable, with the reason.
    """
    given = without_path(options, path)
    refuse_unknown(given, known_options(ConnectionOptions, cls), doing)
    return build(cls, given, connection=ConnectionOptions.of(given))


def open_connection(options: ConnectionOptions) -> SocketConnection:
    """Open a new connection.

    Raises:
        NoServersError: no server could be reached.
        AuthorizationError: the server does not accept the login.
        ConfigError: an option cannot be used.
    """
    return connect_socket(
        list(options.servers),
        name="jetlake-spark",
        user=options.user or None,
        password=options.password or None,
        token=options.token or None,
        nkey_seed=options.nkey_seed or None,
        credentials=options.credentials or None,
        tls=_tls(options),
        tls_hostname=options.tls_hostname or None,
        connect_timeout=options.connect_timeout_s,
        request_timeout=options.request_timeout_s,
    )


def _tls(options: ConnectionOptions) -> ssl.SSLContext | bool | None:
    if not (options.tls_ca or options.tls_cert):
        return True if options.tls else None
    import ssl  # Loaded only where TLS is used.

    try:
        context = ssl.create_default_context()
        if options.tls_ca:
            text = _pem("tls.ca", options.tls_ca)
            context.load_verify_locations(cadata=text)
        if options.tls_cert:
            _load_pair(context, _pem("tls.cert", options.tls_cert), _pem("tls.keySecret", options.tls_key))
    except ssl.SSLError as error:
        raise ConfigError(
            f"the certificates in options tls.ca, tls.cert and tls.keySecret cannot be loaded: {error}"
        ) from None
    return context


def _pem(name: str, value: str) -> str:
    """Return the PEM text itself, or the content of the file that the value names."""
    if "-----BEGIN" in value:
        return value
    try:
        return Path(value).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"option {name} is neither PEM text nor a file that can be read here: {error}") from None


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # The ssl module reads a certificate's key from files only.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate + "\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def _take_idle(options: ConnectionOptions) -> SocketConnection | None:
    """Return a kept connection that still answers, or None."""
    global _idle_of_process
    if _idle_of_process != os.getpid():
        # The parent of a forked worker still uses these.
        _idle.clear()
        _idle_of_process = os.getpid()
    idle = _idle.get(options, [])
    while idle:
        since_s, connection = idle.pop()
        if time.monotonic() - since_s < _FRESH_S:
            return connection
        try:
            connection.flush()
            return connection
        except (JetlakeError, OSError):
            connection.close()
    return None
