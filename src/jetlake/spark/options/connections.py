"""Connections of one process: opened when needed, kept for the next task, given up when they do not answer."""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.client.connection.socket_connection import SocketConnection, connect_socket
from jetlake.errors import ConfigError, JetlakeError

if TYPE_CHECKING:
    from jetlake.spark.options.options import ConnectionOptions

__all__ = ["leased", "open_connection"]

_IDLE_MAX = 4
_FRESH_S = 1.0

# Idle connections by their options, each with the time since which it is idle; forked workers have their own.
_idle: dict[ConnectionOptions, list[tuple[float, SocketConnection]]] = {}
_idle_of_process = os.getpid()


def open_connection(options: ConnectionOptions) -> SocketConnection:
    """A new connection.

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
    try:
        context = ssl.create_default_context()
        if options.tls_ca:
            text = _pem("tls.ca", options.tls_ca)
            context.load_verify_locations(cadata=text)
        if options.tls_cert:
            _load_pair(context, _pem("tls.cert", options.tls_cert), _pem("tls.keySecret", options.tls_key))
    except ssl.SSLError as error:
        raise ConfigError(
            f"the certificates in options tls.ca, tls.cert and tls.keySecret do not work: {error}"
        ) from None
    return context


def _pem(name: str, value: str) -> str:
    """The PEM text itself, or that of the file it names."""
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


@contextmanager
def leased(options: ConnectionOptions) -> Iterator[SocketConnection]:
    """A connection for as long as the block runs; it is kept for the next one unless the block failed."""
    connection = _take_idle(options) or open_connection(options)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    idle = _idle.setdefault(options, [])
    if not connection.closed and len(idle) < _IDLE_MAX:
        idle.append((time.monotonic(), connection))
    else:
        connection.close()


def _take_idle(options: ConnectionOptions) -> SocketConnection | None:
    """A kept connection that still answers, or None."""
    global _idle_of_process
    if _idle_of_process != os.getpid():
        # The parent of a forked worker goes on using these.
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
