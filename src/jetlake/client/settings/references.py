"""References in saved contexts: a path or secret that is written as `file://`, `env://`, `data:` or `op://`."""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from jetlake.errors import InvalidOptionError

__all__ = ["file_path", "key_source", "program_output", "secret_text"]

_PROGRAM_S = 30.0
_REFERENCE = re.compile(r"(?i)(file|env|op)://(.*)|(data):[^,]*;base64,(.*)", re.DOTALL)


def file_path(value: str) -> str:
    """Return the path, with `~` and variables expanded; empty for none."""
    path = value[len("file://") :] if value.lower().startswith("file://") else value
    return str(Path(os.path.expandvars(path)).expanduser()) if path else ""


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


def _file_text(path: str) -> str:
    try:
        return Path(file_path(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"a context refers to {path!r}: cannot read it ({type(error).__name__})") from None


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
