"""The keys of a configuration file that are about operators, and its `auth_callout`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jetlake import platform
from jetlake.errors import ConfigError
from jetlake.server.config.conf import Value, read_file
from jetlake.server.config.section import Section

if TYPE_CHECKING:
    from jetlake.server.config.operator_options import CalloutOptions, FolderOptions, OperatorOptions

__all__ = ["read_callout", "read_operators"]

_OPERATORS = ("operator", "operators", "roots", "root")
_TRUSTED = ("trusted", "trusted_keys")
_RESOLVER = ("resolver", "account_resolver", "accounts_resolver")
_KEYS = (*_OPERATORS, *_TRUSTED, *_RESOLVER, "resolver_preload", "resolver_pinned_accounts", "default_sentinel")
_URL = re.compile(r"URL\(\s*[\"']?(.*?)[\"']?\s*\)", re.IGNORECASE)
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


def read_operators(section: Section) -> OperatorOptions | None:
    """Read whom the server trusts, and where accounts are resolved; None when none of the keys is there."""
    if not section.has(*_KEYS):
        return None
    from jetlake.server.config.operator_options import OperatorOptions

    tokens = tuple(_token(text, section) for text in section.strings(*_OPERATORS) or ())
    trusted = section.strings(*_TRUSTED) or ()
    resolver = section.find(*_RESOLVER)
    preload = section.section("resolver_preload")
    pinned = section.strings("resolver_pinned_accounts") or ()
    sentinel = section.string("default_sentinel")
    if not (tokens or trusted):
        section.ignore("it has no use without an operator", *_KEYS)
        return None
    if resolver is None:
        raise ConfigError(f"{section.value.place}: operators require an account resolver to be configured")
    url = _url(resolver)
    folder = _folder(resolver, section) if not url else None
    accounts = tuple((name, _text(value)) for name, value in preload.items()) if preload is not None else ()
    try:
        return OperatorOptions(
            tokens=tokens,
            trusted_keys=trusted,
            folder=folder,
            url=url,
            preload=accounts,
            pinned_accounts=pinned,
            default_sentinel=sentinel,
        )
    except ConfigError as error:
        raise ConfigError(f"{resolver.place}: {error}") from None


def _text(value: Value) -> str:
    if not isinstance(value.data, str):
        raise ConfigError(f"{value.place}: preload account value should be a string JWT")
    return value.data.strip()


def _token(text: str, section: Section) -> str:
    """Return an operator's token: itself, or the content of a file, bare or between marks."""
    if _TOKEN.fullmatch(text.strip()):
        return text.strip()
    try:
        content = read_file(platform.expand_user(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{section.value.place}: operator: {text!r:.80} is neither a token nor a file that can be read "
            f"({error.__class__.__name__})"
        ) from None
    found = _TOKEN.search(content)
    if found is None:
        raise ConfigError(f"{section.value.place}: operator: the file {text!r} holds no token")
    return found[0]


def _url(value: Value) -> str:
    """Read a resolver by URL; empty for any other."""
    found = _URL.fullmatch(value.data.strip()) if isinstance(value.data, str) else None
    if found is None:
        return ""
    return found[1].rstrip("/") + "/"


def _folder(value: Value, section: Section) -> FolderOptions | None:
    """Read a resolver; None for one in memory."""
    from jetlake.server.config.operator_options import FolderOptions

    if isinstance(value.data, str):
        word = value.data.upper()
        if word in ("MEM", "MEMORY"):
            return None
        raise ConfigError(
            f"{value.place}: error parsing account resolver: expected MEMORY, URL(http://…) or a map with type and dir"
        )
    inner = Section(value, section.findings)
    kind = inner.string("type").upper()
    if kind in ("MEM", "MEMORY"):
        inner.finish()
        return None
    if kind == "CACHE":
        raise ConfigError(
            f"{value.place}: resolver type cache is not supported: "
            "it looks accounts up at other servers of a cluster; use type: full"
        )
    if kind != "FULL":
        raise ConfigError(f"{value.place}: unknown resolver type {kind or 'without a name'}: expected full")
    if inner.has("ttl"):
        raise ConfigError(f"{value.place}: FULL does not accept ttl")
    inner.ignore("it is for the servers of a cluster", "interval", "timeout")
    try:
        folder = FolderOptions(
            directory=inner.string("dir"),
            allow_delete=inner.boolean("allow_delete"),
            hard_delete=inner.boolean("hard_delete"),
            limit=max(inner.integer("limit", default=0), 0),
        )
    except ConfigError as error:
        raise ConfigError(f"{value.place}: {error}") from None
    inner.finish()
    return folder


def read_callout(section: Section | None, default_account: str) -> CalloutOptions | None:
    """Read `auth_callout`; None when there is none."""
    if section is None:
        return None
    from jetlake.server.config.operator_options import CalloutOptions

    if not section.has("issuer"):
        raise ConfigError(f"{section.value.place}: auth_callout requires an issuer")
    try:
        options = CalloutOptions(
            issuer=section.string("issuer"),
            account=section.string("account", "acc", default=default_account),
            users=section.strings("auth_users", "users") or (),
            xkey=section.string("xkey", "key"),
            allowed_accounts=section.strings("allowed_accounts"),
        )
    except ConfigError as error:
        raise ConfigError(f"{section.value.place}: {error}") from None
    section.finish()
    return options
