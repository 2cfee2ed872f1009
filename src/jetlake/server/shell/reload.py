"""Reloading: which options a running server can take over, and which need a restart."""

from __future__ import annotations

from jetlake.errors import ConfigError
from jetlake.server.config.options import Options

__all__ = ["check_reload"]

# Sockets, stores and files are opened once.
_FIXED = (
    "host",
    "port",
    "server_name",
    "http_host",
    "http_port",
    "https",
    "http_base_path",
    "jetstream",
    "ack_subject_v2",
    "system_account",
    "callout",
    "log_file",
    "log_size_limit",
    "log_time",
    "log_time_utc",
    "pid_file",
    "ports_file_dir",
    "websocket",
    "leafnodes",
)
# Clients rely on what INFO says about TLS.
_TLS_FIXED = "config reload not supported for switching TLS on or off; restart the server"


def check_reload(current: Options, new: Options) -> list[str]:
    """Name the options that differ.

    Raises:
        ConfigError: one of the options cannot be changed while the server runs.
    """
    changed = [name for name in current.__struct_fields__ if getattr(current, name) != getattr(new, name)]
    for name in changed:
        if name in _FIXED:
            raise ConfigError(
                f"config reload not supported for {name}: old={getattr(current, name)!r}, new={getattr(new, name)!r}"
            )
        if name == "tls" and (current.tls is None) != (new.tls is None):
            raise ConfigError(_TLS_FIXED)
        if name == "operators" and (current.operators is None or new.operators is None):
            raise ConfigError("config reload not supported for switching operators on or off; restart the server")
        if name == "accounts" and current.operators is None:
            _check_accounts(current, new)
    return changed


def _check_accounts(current: Options, new: Options) -> None:
    """Refuse to switch JetStream on or off for an account: streams are opened once."""
    had = {account.name: account.jetstream is not None for account in current.accounts}
    for account in new.accounts:
        if had.get(account.name, False) != (account.jetstream is not None):
            word = "a new account with JetStream" if account.name not in had else f"JetStream of account {account.name}"
            raise ConfigError(f"config reload not supported for {word}; restart the server")
