"""Where a pipeline's rows go: the console, a folder of files, a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from jetlake.errors import ConfigError

__all__ = ["Target", "parse_target"]

_KINDS = ("console", "stream", "parquet", "orc", "json")
_FORMS = "console, stream:NAME, parquet:DIR, orc:DIR or json:DIR"
_STREAM = re.compile(r"[^\s.*>/\\]+")


@dataclass(frozen=True)
class Target:
    """One place: a stream's name, or a folder's path; neither for the console."""

    kind: Literal["console", "stream", "parquet", "orc", "json"]
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}" if self.value else self.kind

    @property
    def is_folder(self) -> bool:
        """Whether rows become files."""
        return self.kind not in ("console", "stream")


def parse_target(text: str, *, plain: Literal["stream", "parquet"] | None = None) -> Target:
    """Read `console`, `stream:NAME` or `parquet:DIR`.

    Args:
        plain: what a name without a kind is; a path with a slash is always a folder of Parquet.

    Raises:
        ConfigError: it is none of them.
    """
    kind, found, value = text.strip().partition(":")
    if not found and kind == "console":
        return Target("console")
    if found and kind in _KINDS[1:] and value and not value.startswith("//"):
        if kind == "stream" and not _STREAM.fullmatch(value):
            raise ConfigError(f"{value!r} can't be a stream's name: it holds a blank, a dot, a wildcard or a slash")
        return Target(kind, value)  # type: ignore[arg-type]
    if "/" in text:
        return Target("parquet", text.strip())
    if plain == "stream" and not found and _STREAM.fullmatch(kind):
        return Target("stream", kind)
    raise ConfigError(f"{text!r} is no place to write to: write {_FORMS}")
