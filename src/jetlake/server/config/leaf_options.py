"""The options of a leaf node: the hubs that a server dials, and how it authenticates to them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from jetlake.errors import ConfigError
from jetlake.server.config.secret import Secret

__all__ = ["LEAF_PORT", "LeafOptions", "LeafRemote", "LeafTls", "LeafUrl", "parse_leaf_url"]

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
    """Only the URLs above are dialled, not those that the hub tells of."""
    dial_timeout_s: float = 1.0
    first_info_timeout_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("leafnode remote needs a url")
        if self.credentials and self.nkey is not None:
            raise ConfigError("leafnode remote cannot have both credentials and an nkey")
        if self.dial_timeout_s <= 0 or self.first_info_timeout_s <= 0:
            raise ConfigError("leafnode remote: timeouts must be above zero")


class LeafOptions(Struct, frozen=True, kw_only=True):
    """The section `leafnodes`."""

    remotes: tuple[LeafRemote, ...] = ()
    reconnect_s: float = 1.0
    """Pause before a hub is dialled again."""

    def __post_init__(self) -> None:
        if self.reconnect_s <= 0:
            raise ConfigError("leafnodes reconnect must be above zero")

    def check_accounts(self, known: Iterable[str]) -> None:
        """Check that the accounts of all remotes exist.

        Raises:
            ConfigError: one does not.
        """
        names = set(known)
        for remote in self.remotes:
            if remote.account not in names:
                raise ConfigError(f'cannot find local account "{remote.account}" specified in leafnode remote')


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
