"""Where to connect and as whom: flags, then environment variables, then a saved context, then the local server.

Contexts of the `nats` command are found by their names too. The one that `nats context select` chose is not used by
itself: a command that was meant for the local server must not reach another.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from jetlake import platform
from jetlake.errors import ConfigError

__all__ = [
    "ENVIRONMENT",
    "Target",
    "load_context",
    "names",
    "nats_names",
    "plain",
    "previous",
    "remove_context",
    "require",
    "save_context",
    "select_context",
    "selected",
    "unselect_context",
]

DEFAULT_URL = "nats://127.0.0.1:4222"

ENVIRONMENT = {
    "server": ("JETLAKE_URL", "NATS_URL"),
    "user": ("JETLAKE_USER", "NATS_USER"),
    "password": ("JETLAKE_PASSWORD", "NATS_PASSWORD"),
    "token": ("JETLAKE_TOKEN", "NATS_TOKEN"),
    "creds": ("JETLAKE_CREDS", "NATS_CREDS"),
    "nkey": ("JETLAKE_NKEY", "NATS_NKEY"),
    "tls_ca": ("JETLAKE_CA", "NATS_CA"),
    "tls_cert": ("JETLAKE_CERT", "NATS_CERT"),
    "tls_key": ("JETLAKE_KEY", "NATS_KEY"),
    "domain": ("JETLAKE_DOMAIN",),
}
"""The variables that stand for each setting, the first that is set wins."""

_NAME = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z")


class Target(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server and the credentials for it."""

    server: str = DEFAULT_URL
    """URLs, separated by commas."""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    """Path of a credentials file."""
    nkey: str = ""
    """Path of a file with an nkey seed."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_first: bool = False
    """Whether the TLS handshake comes before the server says anything."""
    domain: str = ""
    """JetStream domain."""
    api_prefix: str = ""
    """Subject prefix of the JetStream API, where it is imported from another account."""
    inbox_prefix: str = ""
    description: str = ""
    """Description in the list of contexts."""
    nats: str = ""
    """Name of the `nats` command's context that gives whatever is not set here; `server` may then be empty."""

    @property
    def shown(self) -> str:
        """The servers as they may be shown: an address can hold a password."""
        if not self.server:
            return f"context {self.nats}"
        return ",".join(re.sub(r"(//).*@|^[^/]*@", r"\1", server) for server in self.server.split(","))

    def with_settings(self, settings: dict[str, Any]) -> Target:
        """Return the same target with what is set in there."""
        given = {name: value for name, value in settings.items() if value or value is False}
        return msgspec.structs.replace(self, **given)


def from_environment(environment: dict[str, str]) -> dict[str, str]:
    """Read the settings that environment variables give."""
    found = {}
    for setting, variables in ENVIRONMENT.items():
        for variable in variables:
            if environment.get(variable):
                found[setting] = environment[variable]
                break
    return found


def _folder() -> Path:
    return platform.user_folder("XDG_CONFIG_HOME", ".config") / "jetlake" / "contexts"


def _file(name: str) -> Path:
    if not _NAME.match(name):
        raise ConfigError(f"{name!r} is not a valid context name; use letters, digits, '-', '_' and '.'")
    return _folder() / f"{name}.json"


def load_context(name: str) -> Target:
    """Read a saved context: one of ours, or else one of the `nats` command.

    Raises:
        ConfigError: there is none of that name, or its file can't be read.
    """
    if name in nats_names():
        from jetlake.client.settings.saved_context import read_context

        read_context(name)
        return Target(server="", nats=name)
    file = require(name)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Target)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: {error}; save it again, or delete it: jetlake context rm {name}") from None


def require(name: str) -> Path:
    """Find the file of a saved context.

    Raises:
        ConfigError: there is none of that name.
    """
    file = _file(name)
    if not file.exists():
        known = ", ".join([*names(), *nats_names()]) or "none"
        raise ConfigError(f"context {name!r} not found; saved: {known}. Select one: jetlake context select NAME")
    return file


def save_context(name: str, target: Target) -> Path:
    """Keep the context; its file is readable by its owner only, since it may hold secrets."""
    file = _file(name)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(target), indent=2))
    return file


def remove_context(name: str) -> None:
    """Remove it, even one that can't be read."""
    require(name).unlink()
    if selected() == name:
        _marker().unlink(missing_ok=True)


def names() -> list[str]:
    """List the saved contexts."""
    return sorted(file.stem for file in _folder().glob("*.json"))


def nats_names() -> list[str]:
    """List the contexts of the `nats` command, without those whose names ours have too."""
    from jetlake.client.settings.saved_context import saved_context_names

    own = names()
    return [name for name in saved_context_names() if name not in own]


def plain(target: Target) -> Target:
    """Return the same target without a context of the `nats` command: what that says stands in the fields.

    Raises:
        ConfigError: the context can't be read, or says what a target has no field for.
    """
    if not target.nats:
        return target
    from jetlake.client.settings.saved_context import file_path, read_context, secret_text

    saved = read_context(target.nats)
    for option in ("nsc", "user_jwt", "jetstream_api_prefix"):
        if getattr(saved, option):
            raise ConfigError(f"context {target.nats}: {option} can't be used here")
    fields = {
        "user": saved.user,
        "password": secret_text(saved.password),
        "token": secret_text(saved.token),
        "creds": file_path(saved.creds),
        "nkey": file_path(saved.nkey),
    }
    if any(getattr(target, name) for name in fields):
        fields = {name: getattr(target, name) for name in fields}
    others: dict[str, Any] = {
        "server": target.server or saved.url or DEFAULT_URL,
        "tls_ca": target.tls_ca or file_path(saved.ca),
        "tls_cert": target.tls_cert or file_path(saved.cert),
        "tls_key": target.tls_key or file_path(saved.key),
        "domain": target.domain or saved.jetstream_domain,
        "api_prefix": target.api_prefix,
        "inbox_prefix": target.inbox_prefix or saved.inbox_prefix,
        "description": target.description or saved.description,
        "tls_first": target.tls_first or saved.tls_first,
    }
    return Target(**{**fields, **others})


def _marker() -> Path:
    return _folder().parent / "context"


def _previous_marker() -> Path:
    return _folder().parent / "previous-context"


def select_context(name: str) -> None:
    """Use this context when nothing else is said."""
    load_context(name)
    _marker().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = selected()
    if before is not None and before != name:
        _previous_marker().write_text(before)
    _marker().write_text(name)


def unselect_context() -> None:
    """Use no context when nothing else is said."""
    before = selected()
    if before is not None:
        _previous_marker().write_text(before)
        _marker().unlink()


def previous() -> str | None:
    """Return the context that was selected before the last change."""
    return _read(_previous_marker())


def selected() -> str | None:
    """Return the context that is used when nothing else is said."""
    return _read(_marker())


def _read(marker: Path) -> str | None:
    try:
        return marker.read_text().strip() or None
    except OSError:
        return None
