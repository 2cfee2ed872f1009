"""The section `leafnodes` of a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jetlake.auth.keys import USER, kind_of
from jetlake.errors import ConfigError
from jetlake.server.config.cipher_suites import read_cipher_suites
from jetlake.server.config.leaf_options import LeafListen, LeafOptions, LeafRemote, LeafTls, parse_leaf_url
from jetlake.server.config.options import GLOBAL_ACCOUNT, TlsOptions, User
from jetlake.server.config.secret import Secret
from jetlake.server.config.section import Section

__all__ = ["read_leafnodes"]

_INSECURE = "ignoring it would admit clients that it is meant to keep out"


def read_leafnodes(section: Section, read_tls: Callable[[Section], TlsOptions]) -> LeafOptions:
    """Read the hubs that the server joins, and the listener for leaf nodes.

    Raises:
        ConfigError: the section says something that makes no sense, or asks for what is not there; the message names
            the place.
    """
    listen = _read_listen(section, read_tls)
    section.ignore("leaf connections are not compressed here", "compression")
    section.ignore(
        "leaf connections have the `write_deadline` of clients, and end when it passes",
        "write_deadline",
        "write_timeout",
    )
    section.ignore("it keeps addresses from the other servers of a cluster; there are none here", "no_advertise")
    found = section.find("remotes", "remote")
    entries = found.data if found is not None and isinstance(found.data, list) else [found] if found is not None else []
    remotes = [_read_remote(Section(entry, section.findings)) for entry in entries]
    reconnect_s = section.seconds("reconnect", "reconnect_delay", "reconnect_interval", default=1.0)
    section.finish()
    with _placed(section):
        return LeafOptions(
            listen=listen,
            remotes=tuple(remote for remote in remotes if remote is not None),
            reconnect_s=reconnect_s,
        )


def _read_listen(section: Section, read_tls: Callable[[Section], TlsOptions]) -> LeafListen | None:
    """Read the listener; None without a port, as in nats-server."""
    settings: dict[str, Any] = {
        "host": section.string("host", "net"),
        "port": section.integer("port", default=0),
        "advertise": section.string("advertise"),
        "min_version": section.string("min_version", "minimum_version"),
        "isolate": section.boolean("isolate_leafnode_interest", "isolate"),
    }
    if (listen := section.address("listen")) is not None:
        settings.update(host=listen[0] or settings["host"], port=listen[1])
    tls = section.section("tls")
    authorization = section.section("authorization", "authentication")
    settings |= _read_authorization(authorization) if authorization is not None else {}
    settings["tls"] = read_tls(tls) if tls is not None else None
    if not settings["port"]:
        return None
    settings["host"] = settings["host"] or "0.0.0.0"
    with _placed(section):
        return LeafListen(**settings)


def _read_authorization(section: Section) -> dict[str, Any]:
    """Read a single user with its account, or a list of users, each with its own."""
    section.refuse(_INSECURE, "proxy_required")
    account = section.string("account")
    settings: dict[str, Any] = {"account": account}
    if section.has("timeout"):
        settings["auth_timeout_s"] = section.seconds("timeout", default=2.0)
    user, password, nkey = (
        section.string("user", "username"),
        section.string("pass", "password"),
        section.string("nkey"),
    )
    listed = section.find("users")
    if listed is not None and (user or password or nkey):
        raise ConfigError(f"{section.value.place}: Can not have a single user/pass and a users array")
    if listed is not None:
        if not isinstance(listed.data, list):
            raise ConfigError(f"{listed.place}: expected users to be a list of maps")
        settings["users"] = tuple(_read_user(Section(entry, section.findings)) for entry in listed.data)
    elif user or password or nkey:
        settings["users"] = (_user(section, user, password, nkey, account),)
    section.finish()
    names = [each.name for each in settings.get("users", ())]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'{section.value.place}: Duplicate user "{name}" detected in leafnode authorization')
    return settings


def _read_user(section: Section) -> User:
    section.refuse(_INSECURE, "proxy_required")
    user = _user(
        section,
        section.string("user", "username"),
        section.string("pass", "password"),
        section.string("nkey"),
        section.string("account"),
    )
    section.finish()
    return user


def _user(section: Section, user: str, password: str, nkey: str, account: str) -> User:
    place = section.value.place
    if nkey:
        if user or password:
            raise ConfigError(f"{place}: Nkey users do not take usernames or passwords")
        if kind_of(nkey) != USER:
            raise ConfigError(f"{place}: Not a valid public nkey for a user")
        return User(name=nkey, is_nkey=True, account=account or GLOBAL_ACCOUNT)
    if not user:
        raise ConfigError(f"{place}: User entry requires a user")
    return User(name=user, password=Secret(password), account=account or GLOBAL_ACCOUNT)


def _read_remote(section: Section) -> LeafRemote | None:
    """Read one remote; None for one that is disabled."""
    section.refuse("this server is always the spoke of a leaf connection", "hub")
    section.refuse(
        "the hub would send more than it asks for: set it at the hub",
        "isolate",
        "isolate_leafnode_interest",
        "request_isolation",
    )
    section.refuse("hubs are dialled directly", "proxy")
    section.ignore("leaf connections are not compressed here", "compression")
    section.ignore("leaf connections go over TCP here", "ws_compression", "ws_compress", "ws_no_masking", "ws_no_mask")
    section.ignore("nothing is migrated between servers here", "jetstream_cluster_migrate", "js_cluster_migrate")
    tls = section.section("tls")
    nkey = section.string("nkey", "seed")
    urls = section.strings("urls", "url") or ()
    settings: dict[str, Any] = {
        "account": section.string("account", "local", default="$G"),
        "credentials": section.string("credentials", "creds"),
        "nkey": Secret(nkey) if nkey else None,
        "tls": _read_tls(tls) if tls is not None else None,
        "deny_imports": section.strings("deny_imports", "deny_import") or (),
        "deny_exports": section.strings("deny_exports", "deny_export") or (),
        "no_randomize": section.boolean("no_randomize", "dont_randomize"),
        "ignore_discovered_servers": section.boolean("ignore_discovered_servers"),
        "dial_timeout_s": section.seconds("dial_timeout", default=1.0),
        "first_info_timeout_s": section.seconds("first_info_timeout", default=1.0),
    }
    is_disabled = section.boolean("disabled")
    section.finish()
    with _placed(section):
        remote = LeafRemote(urls=tuple(map(parse_leaf_url, urls)), **settings)
    return None if is_disabled else remote


def _read_tls(section: Section) -> LeafTls:
    section.refuse(
        "the hub's certificate would be checked less than it asks for", "pinned_certs", "ocsp_peer", "cert_match"
    )
    section.ignore("the curves are OpenSSL's, none of which is weak", "curve_preferences")
    section.ignore("the hub's certificate is always checked, but for `insecure`", "verify")
    settings: dict[str, Any] = {
        "ca_file": section.string("ca_file"),
        "cert_file": section.string("cert_file"),
        "key_file": section.string("key_file"),
        "insecure": section.boolean("insecure"),
        "handshake_first": section.boolean("handshake_first", "first", "immediate"),
        "timeout_s": section.seconds("timeout", default=2.0),
        "min_version": section.string("min_version"),
        "cipher_suites": read_cipher_suites(section),
    }
    section.finish()
    with _placed(section):
        return LeafTls(**settings)


@contextmanager
def _placed(section: Section) -> Iterator[None]:
    """Put the place of the section before an error about its values together."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{section.value.place}: {error}") from None
