"""A change that was prepared and not run yet: what it does, in words and as a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jetlake.dashboard.changes.commands import DURATIONS
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

__all__ = ["Done", "Prepared", "arguments", "differences"]


@dataclass(frozen=True)
class Done:
    """What was done, in a sentence, and a file that came of it."""

    text: str
    file: Path | None = None
    """To be downloaded once; it is removed afterwards."""


@dataclass(frozen=True)
class Prepared:
    """What a person confirms. What runs is this very value: nothing is asked or computed anew in between."""

    title: str
    """What is done, as a heading."""
    command: str
    """The command that does the same."""
    run: Callable[[], Awaitable[Done]]
    """Runs the change."""
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    """What changes: name, before, after."""
    warning: str = ""
    """What can't be undone."""
    file: str = ""
    """What the command reads from a file, when it does."""

    def shown(self, change_id: str) -> dict[str, Any]:
        return {
            "id": change_id,
            "title": self.title,
            "command": self.command,
            "changes": self.changes,
            "warning": self.warning,
            "file": self.file,
        }


ArgumentsT = TypeVar("ArgumentsT")


def arguments(kind: type[ArgumentsT], given: Mapping[str, Any]) -> ArgumentsT:
    """Return the arguments of a change, checked.

    Raises:
        InvalidOptionError: one that is missing, unknown, or of another type.
    """
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidOptionError(str(error)) from None


def differences(before: msgspec.Struct | None, after: msgspec.Struct) -> list[tuple[str, str, str]]:
    """Return the fields of a configuration that change."""
    old = {} if before is None else msgspec.to_builtins(before)
    new = msgspec.to_builtins(after)
    return [
        (name, _text(name, old.get(name)), _text(name, new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _text(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if name in DURATIONS and isinstance(value, int):
        return f"{value / NANOSECONDS_PER_SECOND:,g} s"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
