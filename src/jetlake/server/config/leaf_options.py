"""The options of leaf nodes: the hubs that a server dials, and the listener for leaf nodes that dial it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from jetlake.errors import ConfigError
from jetlake.server.config.secret import Secret

if TYPE_CHECKING:  # These options are part of theirs.
    from jetlake.server.config.options import TlsOptions, User

__all__ = [
    "LEAF_PORT",
    "LeafListen",
    "LeafOptions",
    "LeafRemote",
    "LeafTls",
    "LeafUrl",
    "parse_leaf_url",
    "read_version",
]

LEAF_PORT = 7422
_SCHEMES = ("nats", "tls", "nats-leaf")


class LeafUrl(Struct, frozen=True, kw_only=True):
    """The address of a hub, with the credentials that stood in its URL."""

    host: str
    port: int = LEAF_PORT
    is_tls: bool = False
    user: str = ""
    password: Secret | None = None
    """None with a user = the user is a token."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"LeafUrl({self})"  # The user may be a token, which stands in no log.


class LeafTls(Struct, frozen=True, kw_only=True):
    """TLS settings of a connection to a hub."""

    ca_file: str = ""
    """Empty = the certificates of the system."""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    """The hub's certificate is not checked."""
    handshake_first: bool = False
    """The handshake comes before the hub's INFO."""
    timeout_s: float = 2.0
    min_version: str = ""
    """The least TLS version, `1.2` or `1.3`; empty = the library's own."""
    cipher_suites: str = ""
    """The ciphers of TLS 1.2 by OpenSSL's names; empty = the library's own."""

    def __post_init__(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError("leafnode tls: cert_file and key_file belong together")
        if self.timeout_s <= 0:
            raise ConfigError("leafnode tls: timeout must be above zero")


class LeafRemote(Struct, frozen=True, kw_only=True):
    """One hub that the server joins as a leaf node; with several URLs, any of them."""

    urls: tuple[LeafUrl, ...]
    account: str = "$G"
    """The account whose subjects are shared with the hub."""
    credentials: str = ""
    """File with a JWT and its seed."""
    nkey: Secret | None = None
    """Seed."""
    tls: LeafTls | None = None
    """None = TLS only where the URL or the hub asks for it, with the certificates of the system."""
    deny_imports: tuple[str, ...] = ()
    """Subjects of which nothing comes from the hub."""
    deny_exports: tuple[str, ...] = ()
    """Subjects of which nothing goes to the hub."""
    no_randomize: bool = False
    """URLs are tried in their order."""
    ignore_discovered_servers: bool = False
    """Only the URLs above are dialled, not the ones that the hub announces."""
    dial_timeout_s: float = 1.0
    first_info_timeout_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("leafnode remote needs a url")
        if self.credentials and self.nkey is not None:
            raise ConfigError("leafnode remote cannot have both credentials and an nkey")
        if self.dial_timeout_s <= 0 or self.first_info_timeout_s <= 0:
            raise ConfigError("leafnode remote: timeouts must be above zero")


class LeafListen(Struct, frozen=True, kw_only=True):
    """The listener for leaf nodes."""

    host: str = "0.0.0.0"
    port: int = LEAF_PORT
    """0 or -1 = any free port."""
    advertise: str = ""
    """The address announced to leaf nodes; empty = the one that they connected to."""
    tls: TlsOptions | None = None
    users: tuple[User, ...] = ()
    """The only users of leaf nodes; none = the server's users."""
    account: str = ""
    """The account of leaf nodes without credentials; empty = the account of clients without credentials."""
    auth_timeout_s: float | None = None
    """None = the setting for clients."""
    min_version: str = ""
    """The oldest nats-server that may join; empty = any."""
    isolate: bool = False
    """The interest of one leaf node is not announced to the others."""

    def __post_init__(self) -> None:
        if not -1 <= self.port <= 65535:
            raise ConfigError(f"leafnodes port must be between -1 and 65535, not {self.port}")
        if self.auth_timeout_s is not None and self.auth_timeout_s <= 0:
            raise ConfigError("leafnodes authorization timeout must be above zero")
        if self.tls is not None and self.tls.handshake_first_fallback_s:
            raise ConfigError("leafnodes tls: handshake_first must be true or false")
        if self.min_version and not read_version(self.min_version):
            raise ConfigError(f'leafnodes min_version: "{self.min_version}" is not like 2.8.0')


class LeafOptions(Struct, frozen=True, kw_only=True):
    """The section `leafnodes`."""

    listen: LeafListen | None = None
    """None = this server accepts no leaf nodes."""
    remotes: tuple[LeafRemote, ...] = ()
    reconnect_s: float = 1.0
    """Pause before a hub is dialled again."""

    def __post_init__(self) -> None:
        if self.reconnect_s <= 0:
            raise ConfigError("leafnodes reconnect must be above zero")

    def check_accounts(self, known: Iterable[str]) -> None:
        """Check that the accounts of all remotes, and of the listener's users, exist.

        Raises:
            ConfigError: one does not.
        """
        names = set(known)
        for remote in self.remotes:
            if remote.account not in names:
                raise ConfigError(f'cannot find local account "{remote.account}" specified in leafnode remote')
        if self.listen is not None:
            for name in (self.listen.account, *(user.account for user in self.listen.users)):
                if name and name not in names:
                    raise ConfigError(f'cannot find local account "{name}" specified in leafnode authorization')


def parse_leaf_url(text: str) -> LeafUrl:
    """Parse `nats://[user:password@]host[:7422]`; `tls://` asks for TLS, and `host:port` alone is enough.

    Raises:
        ConfigError: the text is no such URL, or one of a kind that is not spoken here.
    """
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    if parts.scheme in ("ws", "wss"):
        raise ConfigError(f"leafnode url {parts.scheme}://… is not supported: leaf connections go over TCP here")
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f'leafnode url: unknown scheme "{parts.scheme}", use nats:// or tls://')
    try:
        port = parts.port or LEAF_PORT
    except ValueError:
        raise ConfigError("leafnode url: the port is not a number below 65536") from None
    if not parts.hostname:
        raise ConfigError("leafnode url names no host")
    return LeafUrl(
        host=parts.hostname,
        port=port,
        is_tls=parts.scheme == "tls",
        user=unquote(parts.username or ""),
        password=Secret(unquote(parts.password)) if parts.password is not None else None,
    )


def read_version(text: str) -> tuple[int, ...]:
    """Read the numbers of a version such as `2.10.4`; empty for a text that is none."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found is not None else ()
