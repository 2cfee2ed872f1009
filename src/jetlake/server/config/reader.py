"""The keys of a configuration file, and the options that they set.

The reasons are in decision 12 (docs/decisions).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import parse_duration, seconds
from jetlake.server.config.cipher_suites import read_cipher_suites
from jetlake.server.config.conf import Value, parse_file
from jetlake.server.config.leaf_section import read_leafnodes
from jetlake.server.config.mappings_reader import read_mappings
from jetlake.server.config.operator_section import read_operators
from jetlake.server.config.options import (
    DEFAULT_INDEX_CACHE,
    DEFAULT_STORE_DIR,
    SYSTEM_ACCOUNT,
    JetStreamOptions,
    TlsOptions,
)
from jetlake.server.config.secret import Secret
from jetlake.server.config.section import Findings, Section
from jetlake.server.config.users import check_names, read_accounts, read_authorization
from jetlake.server.config.websocket_section import read_websocket

__all__ = ["read_config", "read_file"]

_LAME_DUCK_MIN_S = 30.0
_NOT_BUILT = "this server does not have it"
_INSECURE = "ignoring it would admit clients that it is meant to keep out"

# Keys without effect, and why nothing is lost without it.
_CLUSTER_ONLY = "it concerns several servers; this one is a single node"
_GO_ONLY = "it inspects nats-server's own program"
_IGNORED = {
    "this server staples no responses; a client that requires them cannot connect": ("ocsp",),
    "this server sends no requests to OCSP responders": ("ocsp_cache",),
    "this server takes its domain from `domain`": ("default_js_domain",),
    "the system account always exists, and is empty unless it is given users": (
        "no_system_account",
        "no_system",
        "no_sys_acc",
        "no_sys_account",
    ),
    _CLUSTER_ONLY: ("server_metadata", "connect_error_reports", "reconnect_error_reports"),
    _GO_ONLY: ("prof_port", "prof_block_rate"),
    "this server caches routes in another way": ("disable_sublist_cache", "sublist_cache"),
    "the length of subjects is limited by `max_control_line`": ("max_sub_tokens", "max_subscription_tokens"),
    "a thousand are kept": ("max_closed_clients",),
    "a publisher that is too fast for its subscribers is always slowed down": ("no_fast_producer_stall",),
    "a connection whose write takes too long is closed": ("write_timeout",),
    "the log goes to standard error, or to `log_file`": ("syslog", "remote_syslog"),
    "one older log file is kept": ("logfile_max_num", "log_max_num", "logfile_max"),
    "a trace shows whole frames of all accounts": ("trace_verbose", "trace_headers"),
    "nonces have a fixed length": ("nonce_size",),
    "requests wait in a queue of the connection that sent them": ("jetstream_request_queue_limit",),
    "it belongs to an export": ("account_token_position",),
}
_CERTIFICATE_STORE = ("cert_store", "cert_match_by", "cert_match", "cert_match_skip_invalid", "ca_certs_match")
_JETSTREAM_IGNORED = {
    _CLUSTER_ONLY: (
        "unique_tag",
        "max_outstanding_catchup",
        "extension_hint",
        "meta_compact",
        "meta_compact_size",
        "meta_compact_sync",
    ),
    "queued data is limited by `max_pending` of each connection": ("max_buffered_size", "max_buffered_msgs"),
    "requests wait in a queue of the connection that sent them": ("request_queue_limit", "info_queue_limit"),
}
_OTHER_SERVERS = ("cluster", "gateway")


def read_file(
    path: str | os.PathLike[str], environment: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Findings]:
    """Read the options that a configuration file sets, by name, with the warnings.

    Raises:
        ConfigError: the file cannot be read, or says something that makes no sense; the message names the place.
    """
    document = parse_file(path, environment)
    if not document.data:
        # A file that is being written, or was cut off: a server without its users would be open to everyone.
        raise ConfigError(f"{os.fspath(path)}: config has no values or is empty")
    return read_config(document)


def read_config(document: Value) -> tuple[dict[str, Any], Findings]:
    """Read the options that a parsed configuration sets, by name, with the warnings."""
    findings = Findings()
    section = Section(document, findings)
    options: dict[str, Any] = {}
    _read_addresses(section, options)
    _read_limits(section, options)
    _read_entry(section, options)
    _read_logging(section, options)
    _read_jetstream(section, options)
    section.refuse("this server is a single node; for several, use nats-server", *_OTHER_SERVERS)
    section.refuse("this server speaks NATS only; for MQTT, use nats-server", "mqtt")
    section.refuse(_INSECURE, "proxies")
    section.refuse("the authorities of the system vouch for a resolver by URL", "resolver_tls")
    section.refuse("let the proxy forward connections unchanged", "proxy_protocol")
    for why, names in _IGNORED.items():
        section.ignore(why, *names)
    section.finish()
    return options, findings


def _read_addresses(section: Section, options: dict[str, Any]) -> None:
    listen = section.address("listen")
    if listen is not None:
        options["port"] = listen[1]
        if listen[0]:
            options["host"] = listen[0]
    if section.has("port"):
        options["port"] = section.integer("port", default=0)
    if section.has("host", "net"):
        options["host"] = section.string("host", "net")
    for name in ("server_name", "client_advertise", "http_base_path"):
        if section.has(name):
            options[name] = section.string(name)
    if section.has("server_tags"):
        options["server_tags"] = tuple(tag.lower() for tag in section.strings("server_tags") or ())
    for https, listen_name, port_names in (
        (False, "http", ("http_port", "monitor_port")),
        (True, "https", ("https_port",)),
    ):
        address = section.address(listen_name)
        if address is not None:
            options.update(http_port=address[1], https=https)
            if address[0]:
                options["http_host"] = address[0]
        if section.has(*port_names):
            options.update(http_port=section.integer(*port_names, default=0), https=https)


def _read_limits(section: Section, options: dict[str, Any]) -> None:
    for name, names in (
        ("max_payload", ("max_payload",)),
        ("max_pending", ("max_pending", "max_pending_size")),
        ("max_control_line", ("max_control_line",)),
        ("max_connections", ("max_connections", "max_conn")),
        ("max_subscriptions", ("max_subscriptions", "max_subs")),
        ("ping_max", ("ping_max", "ping_max_out")),
    ):
        if section.has(*names):
            options[name] = section.integer(*names, default=0)
    if section.has("no_header_support"):
        options["no_header_support"] = section.boolean("no_header_support")
    if section.has("ping_interval"):
        options["ping_interval_s"] = section.duration("ping_interval", default=0)
    if section.has("write_deadline"):
        options["write_deadline_s"] = section.duration("write_deadline", default=0)
    duration = section.find("lame_duck_duration")
    if duration is not None:
        options["lame_duck_duration_s"] = section.duration("lame_duck_duration", default=0)
        if options["lame_duck_duration_s"] < _LAME_DUCK_MIN_S:
            raise ConfigError(
                f"{duration.place}: invalid lame_duck_duration of {options['lame_duck_duration_s']:g}s, "
                f"minimum is {_LAME_DUCK_MIN_S:g} seconds"
            )
    grace = section.find("lame_duck_grace_period")
    if grace is not None:
        options["lame_duck_grace_period_s"] = section.duration("lame_duck_grace_period", default=0)
        if options["lame_duck_grace_period_s"] < 0:
            raise ConfigError(f"{grace.place}: invalid lame_duck_grace_period, needs to be positive")


def _read_entry(section: Section, options: dict[str, Any]) -> None:
    users = []
    operators = read_operators(section)
    if operators is not None:
        if section.has("accounts", "no_auth_user"):
            raise ConfigError(f"{section.value.place}: operators do not allow Accounts to be configured directly")
        options["operators"] = operators
    authorization = section.section("authorization")
    if authorization is not None:
        found = read_authorization(authorization)
        users.extend(found.users)
        if found.token is not None:
            options["token"] = found.token
        if found.timeout_s is not None:
            options["auth_timeout_s"] = found.timeout_s
        if found.callout is not None:
            options["callout"] = found.callout
    accounts = section.section("accounts")
    if accounts is not None:
        options["accounts"], account_users = read_accounts(accounts)
        options["accounts"] = tuple(options["accounts"])
        check_names(account_users, {user.name for user in users}, accounts.value)
        users.extend(account_users)
    if section.has("mappings", "maps"):
        options["mappings"] = read_mappings(section.section("mappings", "maps"))
    if users:
        options["users"] = tuple(users)
    if section.has("no_auth_user"):
        options["no_auth_user"] = section.string("no_auth_user")
    if section.has("system_account", "system"):
        options["system_account"] = section.string("system_account", "system", default=SYSTEM_ACCOUNT)
    tls = section.section("tls")
    if tls is not None:
        options["tls"] = _read_tls(tls)
    if section.has("allow_non_tls"):
        options["allow_non_tls"] = section.boolean("allow_non_tls")
    websocket = section.section("websocket", "ws")
    if websocket is not None:
        options["websocket"] = read_websocket(websocket, _read_tls)
    leafnodes = section.section("leafnodes", "leaf")
    if leafnodes is not None:
        options["leafnodes"] = read_leafnodes(leafnodes, _read_tls)


def _read_tls(section: Section) -> TlsOptions:
    first, fallback_s = _read_handshake_first(section)
    maps = section.boolean("verify_and_map")
    section.refuse(_INSECURE, "pinned_certs", "verify_cert_and_check_known_urls", "ocsp_peer")
    section.refuse("there is one certificate, in `cert_file`", "certs", *_CERTIFICATE_STORE)
    section.ignore("the curves are OpenSSL's, none of which is weak", "curve_preferences")
    section.ignore("unfinished handshakes are bounded by their number and time here", "connection_rate_limit")
    section.ignore("it is for connections to other servers", "insecure")
    options = TlsOptions(
        cert_file=section.string("cert_file"),
        key_file=section.string("key_file"),
        ca_file=section.string("ca_file"),
        verify=section.boolean("verify") or maps,
        verify_and_map=maps,
        timeout_s=section.seconds("timeout", default=2.0),
        handshake_first=first,
        handshake_first_fallback_s=fallback_s,
        min_version=section.string("min_version"),
        cipher_suites=read_cipher_suites(section),
    )
    section.finish()
    if not options.cert_file:
        raise ConfigError(f"{section.value.place}: missing 'cert_file' in TLS configuration")
    if not options.key_file:
        raise ConfigError(f"{section.value.place}: missing 'key_file' in TLS configuration")
    return options


def _read_handshake_first(section: Section) -> tuple[bool, float]:
    """Read `true`, `false`, `auto` (fall back after 50 ms of silence), or the duration until the fallback."""
    value = section.find("handshake_first", "first", "immediate")
    if value is None or value.data is False:
        return False, 0.0
    if value.data is True:
        return True, 0.0
    if isinstance(value.data, str):
        if value.data == "auto":
            return True, 0.05
        try:
            return True, seconds(parse_duration(value.data))
        except ConfigError:
            pass
    raise ConfigError(f'{value.place}: field "handshake_first" must be true, false, "auto" or a duration')


def _read_logging(section: Section, options: dict[str, Any]) -> None:
    for name, names in (
        ("debug", ("debug",)),
        ("trace", ("trace",)),
        ("log_time", ("logtime",)),
        ("log_time_utc", ("logtime_utc",)),
    ):
        if section.has(*names):
            options[name] = section.boolean(*names)
    for name, spellings in (
        ("log_file", ["log_file", "logfile"]),
        ("pid_file", ["pidfile", "pid_file"]),
        ("ports_file_dir", ["ports_file_dir"]),
    ):
        if section.has(*spellings):
            options[name] = section.string(*spellings)
    if section.has("log_size_limit", "logfile_size_limit"):
        options["log_size_limit"] = section.integer("log_size_limit", "logfile_size_limit", default=0)
    if section.has("max_traced_msg_len"):
        options["max_traced_msg_len"] = section.integer("max_traced_msg_len", default=0)


def _read_jetstream(section: Section, options: dict[str, Any]) -> None:
    flags = section.section("feature_flags")
    if flags is not None:
        options["ack_subject_v2"] = flags.boolean("js_ack_fc_v2")
        flags.finish(
            lambda key, value: section.findings.notices.append(
                f"{value.place}: feature flag {key} is ignored: {_NOT_BUILT}"
            )
        )
    store_dir = section.string("store_dir", "storedir", default=DEFAULT_STORE_DIR)
    if section.has("store_dir", "storedir"):
        options["store_dir"] = store_dir
    value = section.find("jetstream")
    if value is None or value.data is False:
        options["jetstream"] = None
    elif value.data is True:
        options["jetstream"] = JetStreamOptions(store_dir=store_dir)
    elif isinstance(value.data, str):
        options["jetstream"] = _by_word(value, store_dir)
    else:
        options["jetstream"] = _read_jetstream_map(Section(value, section.findings), store_dir)


def _by_word(value: Value, store_dir: str) -> JetStreamOptions | None:
    word = str(value.data).lower()
    if word in ("enabled", "enable"):
        return JetStreamOptions(store_dir=store_dir)
    if word in ("disabled", "disable"):
        return None
    raise ConfigError(f"{value.place}: Expected 'enabled' or 'disabled' for string value, got '{value.data}'")


def _read_jetstream_map(section: Section, store_dir: str) -> JetStreamOptions | None:
    enabled = section.boolean("enabled", "enable", default=True)
    settings: dict[str, Any] = {
        "store_dir": section.string("store_dir", "storedir", "store", default=store_dir),
        "max_memory": section.size("max_memory_store", "max_mem_store", "max_mem", default=-1),
        "max_storage": section.size("max_file_store", "max_file", default=-1),
        "domain": section.string("domain"),
        "strict": section.boolean("strict", default=True),
        "sync_interval_s": _read_sync_interval(section),
        "index_cache": section.size("index_cache", default=DEFAULT_INDEX_CACHE),
    }
    section.refuse("the key is given by `key`; the data would be stored unencrypted", "tpm")
    _read_encryption(section, settings)
    limits = section.section("limits")
    if limits is not None:
        settings["max_ack_pending"] = limits.integer("max_ack_pending", default=-1)
        settings["max_request_batch"] = limits.integer("max_request_batch", default=-1)
        settings["duplicate_window_s"] = limits.duration("duplicate_window", default=0.0)
        _read_batch_limits(limits.section("batch"), settings)
        limits.ignore(_CLUSTER_ONLY, "max_ha_assets")
        limits.finish()
    for why, names in _JETSTREAM_IGNORED.items():
        section.ignore(why, *names)
    section.finish()
    if not enabled:
        return None
    try:
        return JetStreamOptions(**settings)
    except ConfigError as error:
        raise ConfigError(f"{section.value.place}: {error}") from None


def _read_encryption(section: Section, settings: dict[str, Any]) -> None:
    for setting, names in (
        ("key", ("key", "encryption_key", "ek")),
        ("previous_key", ("prev_key", "prev_encryption_key", "prev_ek", "previous_key")),
    ):
        if section.has(*names):
            secret = section.string(*names)
            if not secret:
                # A variable that was not set must not leave the data in the clear.
                raise ConfigError(f"{section.value.place}: {names[0]} is empty")
            settings[setting] = Secret(secret)
    if section.has("cipher"):
        word = section.string("cipher").lower()
        settings["cipher"] = "chacha" if word == "chachapoly" else word


def _read_batch_limits(section: Section | None, settings: dict[str, Any]) -> None:
    if section is not None:
        # As in nats-server, 0 and less stand for the default.
        for setting, key in (
            ("batches_per_stream", "max_inflight_per_stream"),
            ("batches_total", "max_inflight_total"),
            ("batch_messages", "max_msgs"),
        ):
            value = section.integer(key, default=0)
            if value > 0:
                settings[setting] = value
        timeout_s = section.duration("timeout", default=0.0)
        if timeout_s > 0:
            settings["batch_timeout_s"] = timeout_s
        section.finish()


def _read_sync_interval(section: Section) -> float | None:
    value = section.find("sync_interval", "sync")
    if value is None or (isinstance(value.data, str) and value.data.lower() == "always"):
        return None
    return section.duration("sync_interval", "sync", default=0.0)
