"""The flags of `jetlake serve`: nats-server's own, with one dash or two, `-flag value` or `-flag=value`."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct

from jetlake.errors import ConfigError

__all__ = ["FLAGS", "Flag", "Kind", "parse_flags", "usage"]


class Kind(Enum):
    """The kind of a flag's value."""

    TEXT = "text"
    NUMBER = "number"
    SIZE = "size"
    SWITCH = "switch"


class Flag(Struct, frozen=True):
    """One flag under all its names."""

    group: str
    setting: str
    names: tuple[str, ...]
    kind: Kind
    shown: str
    help: str


def _flag(group: str, setting: str, names: str, kind: Kind, shown: str, help: str) -> Flag:
    return Flag(group, setting, tuple(names.split()), kind, shown, help)


FLAGS = (
    _flag("Server", "host", "a addr net", Kind.TEXT, "<host>", "Bind to host address (default: 0.0.0.0)"),
    _flag(
        "Server", "port", "p port", Kind.NUMBER, "<port>", "Use port for clients, -1 for any free one (default: 4222)"
    ),
    _flag("Server", "server_name", "n name server_name", Kind.TEXT, "<name>", "Server name (default: its id)"),
    _flag("Server", "pid_file", "P pid", Kind.TEXT, "<file>", "File to store the PID"),
    _flag("Server", "http_port", "m http_port", Kind.NUMBER, "<port>", "Use port for HTTP monitoring"),
    _flag("Server", "https_port", "ms https_port", Kind.NUMBER, "<port>", "Use port for HTTPS monitoring"),
    _flag("Server", "lake", "lake", Kind.TEXT, "<dir>", "Serve Iceberg tables of this folder there, at /iceberg"),
    _flag(
        "Server",
        "websocket_port",
        "websocket_port",
        Kind.NUMBER,
        "<port>",
        "Use port for clients over WebSocket, -1 for any free one; with the server's TLS, or unencrypted",
    ),
    _flag("Server", "config", "c config", Kind.TEXT, "<file>", "Configuration file"),
    _flag("Server", "test", "t", Kind.SWITCH, "", "Test the configuration and exit"),
    _flag(
        "Server",
        "signal",
        "sl signal",
        Kind.TEXT,
        "<signal>=<pid>",
        "Send a signal to a server: ldm, stop, quit, term, reopen or reload; <pid> may be a file with the PID",
    ),
    _flag("Server", "client_advertise", "client_advertise", Kind.TEXT, "<host:port>", "Address to name in INFO"),
    _flag(
        "Server",
        "ports_file_dir",
        "ports_file_dir",
        Kind.TEXT,
        "<dir>",
        "Write the ports into a file there (<executable>_<pid>.ports)",
    ),
    _flag("Logging", "log_file", "l log", Kind.TEXT, "<file>", "Log to this file instead of standard error"),
    _flag("Logging", "log_time", "T logtime", Kind.SWITCH, "", "Put the time into log lines (default: true)"),
    _flag("Logging", "log_time_utc", "logtime_utc", Kind.SWITCH, "", "... in UTC"),
    _flag(
        "Logging", "log_size_limit", "log_size_limit", Kind.SIZE, "<bytes>", "Move the log file aside beyond this size"
    ),
    _flag("Logging", "debug", "D debug", Kind.SWITCH, "", "Log for debugging"),
    _flag("Logging", "trace", "V trace", Kind.SWITCH, "", "Log every frame of the protocol"),
    _flag("Logging", "trace_verbose", "VV", Kind.SWITCH, "", "The same"),
    _flag("Logging", "debug_and_trace", "DV", Kind.SWITCH, "", "Both of them"),
    _flag("Logging", "debug_and_trace_verbose", "DVV", Kind.SWITCH, "", "Both of them"),
    _flag(
        "Logging",
        "max_traced_msg_len",
        "max_traced_msg_len",
        Kind.NUMBER,
        "<len>",
        "Trace at most this much of a payload",
    ),
    _flag(
        "JetStream",
        "jetstream",
        "js jetstream",
        Kind.SWITCH,
        "",
        "Enable JetStream (default, unless a configuration file decides)",
    ),
    _flag("JetStream", "no_jetstream", "no_jetstream", Kind.SWITCH, "", "Disable JetStream"),
    _flag(
        "JetStream", "store_dir", "sd store_dir", Kind.TEXT, "<dir>", "Keep the streams there (default: ./jetlake-data)"
    ),
    _flag(
        "JetStream", "domain", "domain", Kind.TEXT, "<name>", "JetStream domain, under which a hub finds the streams"
    ),
    _flag(
        "Leaf Node", "leaf", "leaf", Kind.TEXT, "<urls>", "Join a hub as a leaf node: nats://user:password@host:7422"
    ),
    _flag("Authorization", "user", "user", Kind.TEXT, "<user>", "User required for connections"),
    _flag("Authorization", "password", "pass", Kind.TEXT, "<password>", "Password required for connections"),
    _flag("Authorization", "token", "auth", Kind.TEXT, "<token>", "Token required for connections"),
    _flag("TLS", "tls", "tls", Kind.SWITCH, "", "Use TLS, do not verify clients"),
    _flag("TLS", "tls_cert", "tlscert", Kind.TEXT, "<file>", "Server certificate"),
    _flag("TLS", "tls_key", "tlskey", Kind.TEXT, "<file>", "Private key of the server certificate"),
    _flag("TLS", "tls_verify", "tlsverify", Kind.SWITCH, "", "Use TLS, verify client certificates"),
    _flag("TLS", "tls_ca", "tlscacert", Kind.TEXT, "<file>", "CA of the client certificates"),
    _flag("Common", "help", "h help", Kind.SWITCH, "", "Show this message"),
    _flag("Common", "version", "v version", Kind.SWITCH, "", "Show the version"),
    _flag("Refused", "refused:routes", "routes", Kind.TEXT, "<urls>", "Routes to a cluster"),
    _flag("Refused", "refused:cluster", "cluster", Kind.TEXT, "<url>", "Cluster URL"),
    _flag("Refused", "refused:cluster_listen", "cluster_listen", Kind.TEXT, "<url>", "Cluster URL"),
    _flag("Refused", "refused:cluster_name", "cluster_name", Kind.TEXT, "<name>", "Cluster name"),
    _flag("Refused", "refused:cluster_advertise", "cluster_advertise", Kind.TEXT, "<url>", "Cluster URL"),
    _flag("Refused", "refused:no_advertise", "no_advertise", Kind.SWITCH, "", "Cluster advertising"),
    _flag("Refused", "refused:connect_retries", "connect_retries", Kind.NUMBER, "<n>", "Cluster retries"),
    _flag("Accepted without effect", "ignored:profile", "profile", Kind.NUMBER, "<port>", "Profiling port"),
    _flag("Accepted without effect", "ignored:syslog", "s syslog", Kind.SWITCH, "", "Log to syslog"),
    _flag("Accepted without effect", "ignored:remote_syslog", "r remote_syslog", Kind.TEXT, "<addr>", "Log to syslog"),
)

_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}
_SWITCHES = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def parse_flags(arguments: list[str]) -> dict[str, Any]:
    """Parse the command line into settings by name; of a flag given twice the last counts.

    Raises:
        ConfigError: an unknown flag, a missing or a wrong value, or a word that is no flag.
    """
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--" and not rest:
            break
        if not word.startswith("-") or word in ("-", "--"):
            raise ConfigError(f'unrecognized command: "{word}"')
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        flag = _BY_NAME.get(name)
        if flag is None:
            raise ConfigError(f"flag provided but not defined: -{name}{_suggestion(name)}")
        if flag.kind is Kind.SWITCH:
            settings[flag.setting] = _switch(name, value) if equals else True
            continue
        if not equals:
            if not rest:
                raise ConfigError(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        settings[flag.setting] = value if flag.kind is Kind.TEXT else _number(name, value)
    return settings


def _suggestion(name: str) -> str:
    """Name the flag that an unknown one looks like."""
    import difflib

    near = difflib.get_close_matches(name, [known for known in _BY_NAME if len(known) > 2], 1)
    return f"; did you mean --{near[0]}?" if near else ""


def _switch(name: str, value: str) -> bool:
    try:
        return _SWITCHES[value.lower()]
    except KeyError:
        raise ConfigError(f'invalid boolean value "{value}" for -{name}') from None


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f'invalid value "{value}" for flag -{name}: not a number') from None


def usage() -> str:
    """Write the help text from the table of flags."""
    lines = ["Usage: jetlake serve [options]"]
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        lines += ["", f"{group}:" if group.startswith("Accepted") else f"{group} Options:"]
        for flag in FLAGS:
            if flag.group == group:
                names = ", ".join(f"-{name}" if len(name) <= 2 else f"--{name}" for name in flag.names)
                lines.append(f"    {names} {flag.shown}".ljust(44) + f" {flag.help}")
    return "\n".join(lines) + "\n"
