"""Contexts of the `nats` command: servers and credentials that it saved under a name.

A path or secret in a context may be a reference: `file://`, `env://`, `data:` or `op://`.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jetlake import platform
from jetlake.client.settings.tls_files import tls_from_files
from jetlake.errors import InvalidOptionError

_PROGRAM_S = 30.0
_REFERENCE = re.compile(r"(?i)(file|env|op)://(.*)|(data):[^,]*;base64,(.*)", re.DOTALL)


class SavedContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A context as the `nats` command keeps it; keys that only its own output needs are left out."""

    description: str = ""
    url: str = ""
    """URLs, separated by commas."""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    """Path of a credentials file."""
    nkey: str = ""
    """Path of a file with an nkey seed."""
    user_jwt: str = ""
    user_seed: str = ""
    """The seed that belongs to `user_jwt`."""
    nsc: str = ""
    """`nsc://operator/account/user`: servers and credentials that the program `nsc` knows."""
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool = False
    inbox_prefix: str = ""
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    socks_proxy: str = ""
    windows_cert_store: str = ""

    def connect_options(self) -> dict[str, Any]:
        """Return the arguments of `build_options` that the context sets.

        The first login that is set counts, in this order: user, creds, nkey, user_jwt, token.

        Raises:
            InvalidOptionError: the context asks for what this client does not have, or a reference leads nowhere.
        """
        for unknown in ("socks_proxy", "windows_cert_store"):
            if getattr(self, unknown):
                raise InvalidOptionError(f"{unknown} of a context is not for this client")
        url, creds = self.url, self.creds
        if self.nsc and not (url and creds):
            known_url, known_creds = ask_nsc(self.nsc)
            url, creds = url or known_url, creds or known_creds
        options: dict[str, Any] = {"servers": url, **self._login(creds)}
        if self.ca or (self.cert and self.key):
            options["tls"] = tls_from_files(*map(file_path, (self.ca, self.cert, self.key)))
        options["tls_handshake_first"] = self.tls_first
        options["inbox_prefix"] = self.inbox_prefix
        options["jetstream_domain"] = self.jetstream_domain
        options["jetstream_prefix"] = "" if self.jetstream_domain else self.jetstream_api_prefix
        return {name: value for name, value in options.items() if value}

    def _login(self, creds: str) -> dict[str, Any]:
        if self.user:
            return {"user": self.user, "password": secret_text(self.password)}
        if creds:
            return {"credentials": key_source(creds)}
        if self.nkey:
            return {"nkey_seed": key_source(self.nkey)}
        if self.user_jwt:
            if not self.user_seed:
                raise InvalidOptionError("user_jwt of a context needs its user_seed")
            return {"credentials": _creds_text(secret_text(self.user_jwt), secret_text(self.user_seed))}
        return {"token": secret_text(self.token)}


def read_context(name: str | None = None) -> SavedContext:
    """Read a context of the `nats` command.

    Args:
        name: its name. Default: what the variable NATS_CONTEXT names, or the selected one.

    Raises:
        InvalidOptionError: there is no such context, none is selected, or its file cannot be read.
    """
    name = name or os.environ.get("NATS_CONTEXT") or selected_context()
    if name is None:
        raise InvalidOptionError("no context is selected; choose one: nats context select NAME")
    file = _folder() / "context" / f"{name}.json"
    if ".." in name or "/" in name or os.sep in name or not file.is_file():
        known = ", ".join(saved_context_names()) or "none"
        raise InvalidOptionError(f"the nats command has no context {name!r}; saved ones: {known}")
    try:
        keys = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        return msgspec.convert({key: value for key, value in keys.items() if value is not None}, SavedContext)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidOptionError(f"context {name!r}: {file}: {error}") from None


def saved_context_names() -> list[str]:
    """Return the names of the contexts that the `nats` command saved."""
    return sorted(file.stem for file in (_folder() / "context").glob("*.json"))


def selected_context() -> str | None:
    """Return the name of the context that `nats context select` chose, if there is one."""
    try:
        return (_folder() / "context.txt").read_text().strip() or None
    except OSError:
        return None


def _folder() -> Path:
    return platform.user_folder("XDG_CONFIG_HOME", ".config") / "nats"


class _Operator(msgspec.Struct, frozen=True):
    service: tuple[str, ...] = ()


class _Profile(msgspec.Struct, frozen=True):
    user_creds: str = ""
    operator: _Operator = _Operator()


def ask_nsc(lookup: str) -> tuple[str, str]:
    """Return the servers and the path of the credentials that `nsc` knows for a user."""
    try:
        profile = msgspec.json.decode(program_output("nsc", "generate", "profile", lookup), type=_Profile)
    except msgspec.MsgspecError as error:
        raise InvalidOptionError(f"nsc generate profile {lookup}: {error}") from None
    return ",".join(profile.operator.service), profile.user_creds


def _creds_text(jwt: str, seed: str) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


# References


def file_path(value: str) -> str:
    """Return the path, with `~` and variables expanded; empty for none."""
    path = value[len("file://") :] if value.lower().startswith("file://") else value
    return str(platform.expand_user(os.path.expandvars(path))) if path else ""


def key_source(value: str) -> str | Path:
    """Return the path of a file with keys, or the text that another reference leads to.

    Raises:
        InvalidOptionError: the reference leads nowhere.
    """
    found = _REFERENCE.fullmatch(value)
    if found is None or (found[1] or "").lower() == "file":
        return Path(file_path(value))
    return secret_text(value)


def secret_text(value: str) -> str:
    """Return the text itself, or what a reference leads to.

    Raises:
        InvalidOptionError: the reference leads nowhere.
    """
    found = _REFERENCE.fullmatch(value)
    if found is None:
        return value
    scheme = (found[1] or found[3]).lower()
    return _RESOLVERS[scheme](found[4] if scheme == "data" else found[2]).rstrip("\r\n")


def program_output(*command: str) -> bytes:
    """Return what a program that keeps secrets prints.

    Raises:
        InvalidOptionError: it is not installed, or fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_PROGRAM_S)
    except FileNotFoundError:
        raise InvalidOptionError(f"a context needs the program {command[0]!r}, which is not installed") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidOptionError(f"a context asks {command[0]!r}, which failed: {error}") from None
    return done.stdout


# One that never ends, as `/dev/zero`, is refused.
_FILE_LENGTH_MAX = 1_000_000


def _file_text(path: str) -> str:
    try:
        with Path(file_path(path)).open(encoding="utf-8") as file:
            text = file.read(_FILE_LENGTH_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"a context refers to {path!r}: cannot read it ({type(error).__name__})") from None
    if len(text) > _FILE_LENGTH_MAX:
        raise InvalidOptionError(f"a context refers to {path!r}: it is too long for a secret")
    return text


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise InvalidOptionError(f"a context refers to the variable {name!r}, which is not set")
    return value


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidOptionError("a context holds a data: reference that is not base64 of a text") from None


_RESOLVERS: dict[str, Callable[[str], str]] = {
    "file": _file_text,
    "env": _variable,
    "data": _decoded,
    "op": lambda rest: program_output("op", "read", f"op://{rest}").decode(errors="replace"),
}
