"""The options of a server, from flags and configuration file together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from jetlake.errors import ConfigError
from jetlake.server.config.options import (
    DEFAULT_STORE_DIR,
    GLOBAL_ACCOUNT,
    JetStreamOptions,
    Options,
    Secret,
    TlsOptions,
    User,
)

__all__ = ["Assembled", "assemble", "options_from_settings"]

# nats-server's defaults.
_DEFAULTS: dict[str, Any] = {"host": "0.0.0.0", "port": 4222}

# Flags that set an option of the same name.
_PLAIN = (
    "host",
    "port",
    "server_name",
    "pid_file",
    "http_port",
    "lake",
    "client_advertise",
    "ports_file_dir",
    "log_file",
    "log_time",
    "log_time_utc",
    "log_size_limit",
    "debug",
    "trace",
    "max_traced_msg_len",
)


class Assembled(Struct, frozen=True, kw_only=True):
    """The options, with warnings about their sources."""

    options: Options
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Values in the file whose form has to be corrected: a test of the configuration fails with them."""


def assemble(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Assembled:
    """Merge the flags of the command line with the file that they name; flags win.

    Raises:
        ConfigError: file or flags make no sense, alone or together.
    """
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    doubts: list[str] = []
    path = flags.get("config", "")
    if path:
        from jetlake.server.config.reader import read_file

        from_file, findings = read_file(path, environment)
        settings.update(from_file)
        settings["config_file"] = os.fspath(path)
        warnings += findings.notices
        doubts += findings.doubts
    _apply_flags(flags, settings)
    if "host" in settings:
        settings.setdefault("http_host", settings["host"])  # else monitoring stays on the loopback interface
    settings = {**_DEFAULTS, **settings}
    if not path and "jetstream" not in settings:
        settings["jetstream"] = JetStreamOptions(store_dir=settings.get("store_dir", DEFAULT_STORE_DIR))
    options = options_from_settings(settings)
    if "websocket_port" in flags:
        options = options.with_websocket(flags["websocket_port"])
    if "leaf" in flags:
        options = options.with_leaf(flags["leaf"])
    if "domain" in flags:
        if options.jetstream is None:
            raise ConfigError("--domain needs JetStream")
        options = options.replace(jetstream=structs.replace(options.jetstream, domain=flags["domain"]))
    for setting in flags:
        if setting.startswith("refused:"):
            name = setting.removeprefix("refused:")
            raise ConfigError(f"--{name} is not supported: this server is a single node; for several, use nats-server")
        if setting.startswith("ignored:"):
            warnings.append(f"--{setting.removeprefix('ignored:')} is ignored: this server does not have it")
    return Assembled(options=options, warnings=tuple(warnings), doubts=tuple(doubts))


def options_from_settings(settings: Mapping[str, Any]) -> Options:
    """Options of settings as a file gives them.

    Raises:
        ConfigError: they make no sense together.
    """
    return Options(**{name: value for name, value in settings.items() if name != "store_dir"})


def _apply_flags(flags: Mapping[str, Any], settings: dict[str, Any]) -> None:
    for name in _PLAIN:
        if name in flags:
            settings[name] = flags[name]
    if flags.get("debug_and_trace") or flags.get("debug_and_trace_verbose"):
        settings.update(debug=True, trace=True)
    if flags.get("trace_verbose"):
        settings["trace"] = True
    if "https_port" in flags:
        settings.update(http_port=flags["https_port"], https=True)
    if settings.get("http_port") == 0:
        settings["http_port"] = None  # as in nats-server, 0 turns monitoring off; -1 asks for any port
    _apply_credentials(flags, settings)
    _apply_tls(flags, settings)
    _apply_jetstream(flags, settings)


def _apply_credentials(flags: Mapping[str, Any], settings: dict[str, Any]) -> None:
    if "token" in flags:
        if "user" in flags or "password" in flags:
            raise ConfigError("Cannot have a user/pass and token")
        settings.update(token=Secret(flags["token"]), users=())
    elif "user" in flags or "password" in flags:
        user = User(name=flags.get("user", ""), password=Secret(flags.get("password", "")), account=GLOBAL_ACCOUNT)
        settings.update(users=(user,), token=None)


def _apply_tls(flags: Mapping[str, Any], settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "cert_file": flags.get("tls_cert"),
        "key_file": flags.get("tls_key"),
        "ca_file": flags.get("tls_ca"),
        "verify": flags.get("tls_verify"),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given and not flags.get("tls"):
        return
    if flags.get("tls") is False:
        settings["tls"] = None
        return
    present: TlsOptions | None = settings.get("tls")
    if present is not None:
        settings["tls"] = structs.replace(present, **given)
    elif "cert_file" not in given or "key_file" not in given:
        raise ConfigError("TLS Server certificate must be present and valid: give --tlscert and --tlskey")
    else:
        settings["tls"] = TlsOptions(**given)


def _apply_jetstream(flags: Mapping[str, Any], settings: dict[str, Any]) -> None:
    folder = flags.get("store_dir")
    if folder is not None:
        settings["store_dir"] = folder
    if flags.get("no_jetstream") or flags.get("jetstream") is False:
        settings["jetstream"] = None
        return
    present: JetStreamOptions | None = settings.get("jetstream")
    if flags.get("jetstream") and present is None:
        settings["jetstream"] = JetStreamOptions(store_dir=settings.get("store_dir", DEFAULT_STORE_DIR))
    elif present is not None and folder is not None:
        settings["jetstream"] = structs.replace(present, store_dir=folder)
