"""The options of a server that trusts operators, and of one that asks a service who may connect."""

from __future__ import annotations

from msgspec import Struct

from jetlake.errors import ConfigError

__all__ = ["CalloutOptions", "FolderOptions", "OperatorOptions"]


class FolderOptions(Struct, frozen=True, kw_only=True):
    """The folder with the tokens of accounts, a file for each."""

    directory: str
    allow_delete: bool = False
    """An operator may delete accounts by a request."""
    hard_delete: bool = False
    """Deleted accounts leave no file."""
    limit: int = 0
    """Most accounts; 0 = any number."""

    def __post_init__(self) -> None:
        if not self.directory:
            raise ConfigError("resolver: dir has no value and needs to point to a directory")
        if self.hard_delete and not self.allow_delete:
            raise ConfigError("resolver: hard_delete has no effect without allow_delete")


class OperatorOptions(Struct, frozen=True, kw_only=True):
    """Whom the server trusts to sign accounts, and where their tokens are."""

    tokens: tuple[str, ...] = ()
    """The tokens of operators."""
    trusted_keys: tuple[str, ...] = ()
    """Public keys of operators, without a token."""
    folder: FolderOptions | None = None
    """None = the accounts are in memory, or at a URL."""
    url: str = ""
    """Where accounts are looked up, by http or https; empty = nowhere."""
    preload: tuple[tuple[str, str], ...] = ()
    """Accounts that are there from the start: public key and token."""
    pinned_accounts: tuple[str, ...] = ()
    """Only users of these accounts may connect; empty = of all."""
    default_sentinel: str = ""
    """The bearer token of clients that show none; empty = such clients are refused."""

    def __post_init__(self) -> None:
        from jetlake.auth.keys import kind_of

        if self.url:
            _check_url(self.url)
            if self.preload:
                raise ConfigError("resolver_preload is only available for a resolver in memory or in a folder")
        if self.tokens and self.trusted_keys:
            raise ConfigError("conflicting options for 'TrustedKeys' and 'TrustedOperators'")
        for key in self.trusted_keys:
            if kind_of(key) != "operator":
                raise ConfigError(f'trust key "{key}" required to be a valid public operator nkey')
        for key in (*self.pinned_accounts, *(account for account, _ in self.preload)):
            if kind_of(key) != "account":
                raise ConfigError(f'"{key}" is not the public key of an account')


def _check_url(url: str) -> None:
    """Check the URL of a resolver.

    Raises:
        ConfigError: nothing can be looked up there.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or not url.isprintable() or " " in url or parts.query or parts.fragment:
        raise ConfigError("resolver: the URL must begin with http:// or https://, and accounts' keys go behind it")


class CalloutOptions(Struct, frozen=True, kw_only=True):
    """The service that decides who may connect."""

    issuer: str
    """The public account key that signs its answers."""
    account: str
    """The account that the service is in."""
    users: tuple[str, ...]
    """The users that the server knows itself: the service's own."""
    xkey: str = ""
    """The service's public curve key, with which requests are sealed; empty = they are not."""
    allowed_accounts: tuple[str, ...] | None = None
    """The accounts that the service may let users into; None = all."""

    def __post_init__(self) -> None:
        from jetlake.auth.keys import kind_of

        if kind_of(self.issuer) != "account":
            raise ConfigError("Expected callout user to be a valid public account nkey")
        if not self.users:
            raise ConfigError("auth_callout needs auth_users: the users of the service itself")
        if self.xkey and kind_of(self.xkey) != "curve":
            raise ConfigError("Expected callout xkey to be a valid public xkey")
