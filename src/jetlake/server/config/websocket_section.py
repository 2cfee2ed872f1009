"""The section `websocket` of a configuration file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlake.errors import ConfigError
from jetlake.server.config.options import TlsOptions, WebSocketOptions
from jetlake.server.config.section import Section
from jetlake.server.config.users import read_authorization

__all__ = ["read_websocket"]


def read_websocket(section: Section, read_tls: Callable[[Section], TlsOptions]) -> WebSocketOptions | None:
    """Read the options of the WebSocket listener; None without a port, as in nats-server.

    Raises:
        ConfigError: the section says something that makes no sense; the message names the place.
    """
    settings: dict[str, Any] = {
        "host": section.string("host", "net"),
        "port": section.integer("port", default=0),
        "advertise": section.string("advertise"),
        "no_tls": section.boolean("no_tls"),
        "compression": section.boolean("compression"),
        "same_origin": section.boolean("same_origin"),
        "allowed_origins": section.strings("allowed_origins", "allowed_origin", "allow_origins", "origins", "origin")
        or (),
        "handshake_timeout_s": section.duration("handshake_timeout", default=2.0),
        "user_cookie": section.string("user_cookie"),
        "password_cookie": section.string("pass_cookie"),
        "token_cookie": section.string("token_cookie"),
        "jwt_cookie": section.string("jwt_cookie"),
        "no_auth_user": section.string("no_auth_user"),
    }
    if (listen := section.address("listen")) is not None:
        settings.update(host=listen[0] or settings["host"], port=listen[1])
    if section.has("ping_interval"):
        settings["ping_interval_s"] = section.duration("ping_interval", default=0)
    if (tls := section.section("tls")) is not None:
        settings["tls"] = read_tls(tls)
    if (headers := section.section("headers")) is not None:
        settings["headers"] = tuple((name, _header(name, value.data, value.place)) for name, value in headers.items())
    if (authorization := section.section("authorization", "authentication")) is not None:
        settings.update(_read_authorization(authorization))
    section.finish()
    if not settings["port"]:
        return None
    try:
        return WebSocketOptions(**settings)
    except ConfigError as error:
        raise ConfigError(f"{section.value.place}: {error}") from None


def _read_authorization(section: Section) -> dict[str, Any]:
    if section.has("users"):
        raise ConfigError(f"{section.value.place}: websocket authorization does not allow multiple users")
    found = read_authorization(section)
    user = found.users[0] if found.users else None
    return {"user": user, "token": found.token, "auth_timeout_s": found.timeout_s}


def _header(name: str, value: object, place: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigError(f"{place}: error parsing header key {name}: expected a string")
    return value
