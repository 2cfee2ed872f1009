"""The handshake: the server's INFO, TLS and the client's CONNECT, for asyncio and blocking connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jetlake.client.settings.options import ConnectOptions
from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import (
    AuthorizationError,
    ConfigError,
    DecodeError,
    InvalidOptionError,
    JetlakeError,
    PermissionsError,
    ServerError,
    StaleConnectionError,
)
from jetlake.model.encoding.codec import decode, encode
from jetlake.protocol import encoder
from jetlake.version import __version__

if TYPE_CHECKING:
    import ssl

__all__ = ["ServerInfo", "complaint", "connect_frame", "read_info", "tls_context"]

LANGUAGE = "python3"

_AUTHORIZATION_TEXTS = (
    "authorization violation",
    "authentication timeout",
    "user authentication expired",
    "user authentication revoked",
    "account authentication expired",
)


class ServerInfo(msgspec.Struct, frozen=True):
    """The INFO of a server."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    proto: int = 0
    host: str = ""
    port: int = 0
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    max_payload: int = 1024 * 1024
    jetstream: bool = False
    client_id: int = 0
    client_ip: str = ""
    nonce: str = ""
    cluster: str = ""
    domain: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    api_lvl: int = 0
    jetlake: str = ""
    """Version of jetlake, if the server is one of its own: `version` is the nats-server that it is compatible with."""
    jetlake_features: tuple[str, ...] = ()


class _Connect(msgspec.Struct, frozen=True, omit_defaults=True):
    verbose: bool = msgspec.field(default_factory=bool)
    pedantic: bool = msgspec.field(default_factory=bool)
    tls_required: bool = msgspec.field(default_factory=bool)
    headers: bool = msgspec.field(default_factory=bool)
    no_responders: bool = msgspec.field(default_factory=bool)
    echo: bool = msgspec.field(default_factory=bool)
    protocol: int = msgspec.field(default_factory=int)
    lang: str = ""
    version: str = ""
    name: str = ""
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""
    jwt: str = ""
    nkey: str = ""
    sig: str = ""


def read_info(json: bytes) -> ServerInfo:
    """Return the server's INFO.

    Raises:
        ServerError: it is not what a server sends.
    """
    try:
        return decode(ServerInfo, json)
    except DecodeError as error:
        raise ServerError(f"the server's INFO can't be decoded: {error}") from None


def connect_frame(options: ConnectOptions, address: ServerAddress, info: ServerInfo, *, secure: bool) -> bytes:
    """Return the CONNECT frame with the credentials that the options or the address hold.

    Raises:
        AuthorizationError: the server asks for a signature without giving a nonce.
        InvalidOptionError: a function gives the credentials, which this kind of connection does not support.
    """
    user, password, token, credentials = options.user, options.password, options.token, options.credentials
    if callable(user) or callable(password) or callable(token) or callable(credentials):
        raise InvalidOptionError("functions that return credentials need jetlake.connect or jetlake.blocking.connect")
    jwt = nkey = signature = ""
    if credentials is not None:
        if not info.nonce:
            raise AuthorizationError(f"{address} does not support nkeys: it sent no nonce to sign")
        signature = credentials.sign(info.nonce)
        jwt = credentials.jwt
        nkey = "" if jwt else credentials.public_key
    elif not (user or token):
        user, password, token = address.user, address.password, address.token
    return encoder.connect(
        encode(
            _Connect(
                tls_required=secure,
                headers=info.headers,
                no_responders=info.headers,
                echo=options.echo,
                protocol=1,
                lang=LANGUAGE,
                version=__version__,
                name=options.name,
                user=user,
                password=password,
                auth_token=token,
                jwt=jwt,
                nkey=nkey,
                sig=signature,
            )
        )
    )


def tls_context(options: ConnectOptions, address: ServerAddress, info: ServerInfo | None) -> ssl.SSLContext | None:
    """Return the TLS context for this server, or None for a plain connection; `info` is None before the greeting.

    Raises:
        ConfigError: the address or the options demand TLS and the server has none, or the other way round.
    """
    if address.websocket and not address.tls:
        return None  # The frames are in the clear, and TLS lies below them or nowhere.
    wanted = bool(options.tls) or address.tls or options.tls_handshake_first
    if info is not None:
        if wanted and not (info.tls_required or info.tls_available):
            raise ConfigError(f"{address} offers no TLS, which the address or the option tls requires")
        if info.tls_required and options.tls is False:
            raise ConfigError(f"{address} requires TLS, and the option tls is False")
        wanted = wanted or info.tls_required
    elif not (options.tls_handshake_first or address.websocket):
        return None
    if not wanted:
        return None
    if options.tls is None or isinstance(options.tls, bool):
        import ssl

        return ssl.create_default_context()
    return options.tls


def complaint(text: str) -> JetlakeError:
    """Translate a `-ERR` into an exception."""
    lowered = text.lower()
    if lowered.startswith(_AUTHORIZATION_TEXTS):
        return AuthorizationError(f"the server refused the credentials: {text}")
    if lowered.startswith("stale connection"):
        return StaleConnectionError("the server received nothing from this client and closed the connection")
    if lowered.startswith("permissions violation"):
        return PermissionsError(text)
    return ServerError(text)
