"""The section `leafnodes` of a configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jetlake.errors import ConfigError
from jetlake.server.config.leaf_options import LeafOptions, LeafRemote, LeafTls, parse_leaf_url
from jetlake.server.config.secret import Secret
from jetlake.server.config.section import Section

__all__ = ["read_leafnodes"]

# Keys of the listener for leaf nodes. There is none: without an open port they let nobody in and keep nobody out.
_LISTENER = (
    "listen",
    "host",
    "net",
    "port",
    "advertise",
    "no_advertise",
    "authorization",
    "authentication",
    "tls",
    "min_version",
    "isolate_leafnode_interest",
    "isolate",
)


def read_leafnodes(section: Section) -> LeafOptions:
    """Read the hubs that the server joins.

    Raises:
        ConfigError: the section says something that makes no sense, or asks for what is not there; the message names
            the place.
    """
    section.address("listen")
    section.integer("port", default=0)
    section.ignore("this server joins hubs and accepts no leaf nodes; no port is opened for them", *_LISTENER)
    section.ignore("leaf connections are not compressed here", "compression")
    section.ignore("it only tunes nats-server", "write_deadline", "write_timeout")
    found = section.find("remotes", "remote")
    entries = found.data if found is not None and isinstance(found.data, list) else [found] if found is not None else []
    remotes = [_read_remote(Section(entry, section.findings)) for entry in entries]
    reconnect_s = section.seconds("reconnect", "reconnect_delay", "reconnect_interval", default=1.0)
    section.finish()
    with _placed(section):
        return LeafOptions(remotes=tuple(remote for remote in remotes if remote is not None), reconnect_s=reconnect_s)


def _read_remote(section: Section) -> LeafRemote | None:
    """Read one remote; None for one that is disabled."""
    section.refuse("this server is always the spoke of a leaf connection", "hub")
    section.refuse("it is not known here", "isolate", "isolate_leafnode_interest", "request_isolation", "proxy")
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
    section.refuse("the hub's certificate would be checked less than it asks for", "pinned_certs", "cert_match")
    section.ignore("this server does not have it", "cipher_suites", "curve_preferences", "min_version", "verify")
    settings: dict[str, Any] = {
        "ca_file": section.string("ca_file"),
        "cert_file": section.string("cert_file"),
        "key_file": section.string("key_file"),
        "insecure": section.boolean("insecure"),
        "handshake_first": section.boolean("handshake_first", "first", "immediate"),
        "timeout_s": section.seconds("timeout", default=2.0),
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
