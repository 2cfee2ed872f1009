"""Server addresses: what people write for a server, read into its parts."""

from __future__ import annotations

import re

from msgspec import Struct

from jetlake.errors import InvalidOptionError

__all__ = ["DEFAULT_PORT", "ServerAddress", "parse_address", "parse_addresses", "without_login"]

DEFAULT_PORT = 4222

_DEFAULT_PORTS = {"nats": DEFAULT_PORT, "tls": DEFAULT_PORT, "ws": 80, "wss": 443}
_SHAPE = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?"
    r"(?:(?P<login>[^@/]*)@)?"
    r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<host>[^:/@\[\]]*))"
    r"(?::(?P<port>[0-9]*))?/?"
)


class ServerAddress(Struct, frozen=True):
    """Where a server is and how its address asks to be reached."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    """The address demands TLS by its scheme."""
    user: str = ""
    password: str = ""
    token: str = ""
    websocket: bool = False
    """The server is reached over WebSocket."""

    def __repr__(self) -> str:
        return f"ServerAddress({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        plain, encrypted = ("ws", "wss") if self.websocket else ("nats", "tls")
        return f"{encrypted if self.tls else plain}://{host}:{self.port}"


def parse_address(text: str) -> ServerAddress:
    """Read `nats://host:4222`, `tls://user:password@host`, `nats://token@host`, `host`, `host:port` or `[::1]:4222`.

    `ws://host:8080` and `wss://host` are servers reached over WebSocket.

    Raises:
        InvalidOptionError: anything else; the message says what is wrong without repeating secrets.
    """
    if not isinstance(text, str):
        raise InvalidOptionError(f"a server address must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidOptionError(f"server address {without_login(text)!r} cannot be encoded as UTF-8") from None
    parts = _SHAPE.fullmatch(text.strip())
    if parts is None:
        raise InvalidOptionError(f"not a server address: {without_login(text)!r} (write it like nats://host:4222)")
    scheme = (parts["scheme"] or "nats").lower()
    if scheme not in _DEFAULT_PORTS:
        raise InvalidOptionError(
            f"server address {without_login(text)!r}: the scheme must be nats, tls, ws or wss, not {scheme!r}"
        )
    host = parts["ipv6"] or parts["host"]
    if not host or any(character.isspace() for character in host):
        raise InvalidOptionError(f"server address {without_login(text)!r} has no host")
    digits = parts["port"].lstrip("0") if parts["port"] else str(_DEFAULT_PORTS[scheme])
    # Python does not read thousands of digits, which are no port anyhow.
    port = int(digits) if 0 < len(digits) <= 5 else 0
    if not 0 < port < 65536:
        raise InvalidOptionError(f"server address {without_login(text)!r}: {parts['port'][:20]} is not a port")
    user, password, token = _read_login(parts["login"])
    return ServerAddress(host, port, scheme in ("tls", "wss"), user, password, token, scheme in ("ws", "wss"))


def parse_addresses(servers: str | list[str] | tuple[str, ...]) -> tuple[ServerAddress, ...]:
    """Read one address, several separated by commas, or a list of them.

    Raises:
        InvalidOptionError: one of them is no address, or there is none.
    """
    texts = servers.split(",") if isinstance(servers, str) else servers
    addresses = tuple(dict.fromkeys(parse_address(text) for text in texts if text))
    if not addresses:
        raise InvalidOptionError("servers is empty: pass at least one address, like nats://localhost:4222")
    return addresses


def _read_login(login: str | None) -> tuple[str, str, str]:
    if not login:
        return "", "", ""
    user, colon, password = login.partition(":")
    if colon:
        return _unquote(user), _unquote(password), ""
    return "", "", _unquote(user)


def _unquote(text: str) -> str:
    """Undo percent-encoding, so that a password may hold `@` and `:`."""
    if "%" not in text:
        return text
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode())
    return raw.decode("utf-8", "replace")


def without_login(text: str) -> str:
    """Return an address as it may be shown, valid or not: no login, and no port that may be half of one."""
    return re.sub(r"(?<=\w):(?!//)(?!\d*/?$)[^/@,]*$", ":…", re.sub(r"//.*@|^[^/]*@", "//…@", text))
