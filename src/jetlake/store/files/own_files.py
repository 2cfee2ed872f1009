"""The names that the store writes itself: whatever else lies in its folders belongs to another program and stays.

The reasons are in decision 13 (docs/decisions).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from jetlake.store.files.disk import Disk, Kind

__all__ = [
    "ACCOUNT",
    "CONSUMERS",
    "CONSUMER_FILES",
    "MESSAGE_FILES",
    "STREAMS",
    "STREAM_FILES",
    "Layout",
    "foreign_names",
    "foreign_names_within",
    "format_names",
]

_NAMES_TOLD_MAX = 10
# What `folder_name` makes, and the name that such a folder gets while it is removed.
_FOLDER = re.compile(r"[A-Za-z0-9_$=%~-]+(\.deleted[0-9]+)?")


class Layout:
    """What a folder of the store may hold: files by their names, and folders with a layout of their own.

    Args:
        files: matches the names of its files.
        folders: the layout of each folder; the key `*` stands for every name of a stream or consumer.
    """

    def __init__(self, files: str, folders: dict[str, Layout] | None = None) -> None:
        self._names = files
        self._folders = folders or {}

    @cached_property
    def _files(self) -> re.Pattern[str]:
        return re.compile(self._names, re.ASCII)  # Compiling all of them takes a part of a start.

    def has_file(self, name: str) -> bool:
        """Return whether the store writes a file of that name here."""
        return self._files.fullmatch(name) is not None

    def has(self, name: str, kind: Kind) -> bool:
        """Return whether the store makes a file or a folder of that name here."""
        return self.has_file(name) if kind is Kind.FILE else kind is Kind.FOLDER and self.folder(name) is not None

    def folder(self, name: str) -> Layout | None:
        """Return the layout of the folder of that name; None when the store makes none."""
        return self._folders.get("*") if "*" in self._folders and _FOLDER.fullmatch(name) else self._folders.get(name)


MESSAGE_FILES = Layout(r"([0-4]\d{9}\.(idx|seg(\.2\.tmp)?)|([0-4]\d{9}\.seg|mark|index|segments)(\.tmp)?)")
"""A stream's `msgs`."""
CONSUMER_FILES = Layout(r"(meta\.json(\.2)?|meta\.copy\.json|\d{10}\.journal)(\.tmp)?|begun")
"""The folder of one consumer."""
CONSUMERS = Layout(r"(?!)", {"*": CONSUMER_FILES})
"""A stream's `consumers`."""
STREAM_FILES = Layout(
    r"(meta\.json(\.2)?|meta\.copy\.json|ids|lifetimes|schedules|sources|segments)(\.tmp)?|ids\.\d{10}",
    {"msgs": MESSAGE_FILES, "consumers": CONSUMERS},
)
"""The folder of one stream."""
STREAMS = Layout(r"(?!)", {"*": STREAM_FILES})
"""The folder of all streams of an account."""
ACCOUNT = Layout(r"streams\.list(\.tmp)?", {"streams": STREAMS})
"""The folder of an account."""


def foreign_names(layout: Layout, kinds: dict[str, Kind]) -> list[str]:
    """Return the names in a folder that the store did not write; symbolic links are never its own."""
    return [name for name, kind in kinds.items() if not layout.has(name, kind)]


def foreign_names_within(disk: Disk, path: Path, layout: Layout) -> Iterator[str]:
    """Return the names in a folder and in those within it that the store did not write.

    Raises:
        OSError: the disk refused.
    """
    for name, kind in disk.kinds(path).items():
        if not layout.has(name, kind):
            yield name
        elif (inner := layout.folder(name)) is not None and kind is Kind.FOLDER:
            yield from (f"{name}/{below}" for below in foreign_names_within(disk, path / name, inner))


def format_names(names: list[str]) -> str:
    """Return the names for a log line, which must not grow without bound."""
    shown = ", ".join(name[:80] for name in names[:_NAMES_TOLD_MAX])
    return shown if len(names) <= _NAMES_TOLD_MAX else f"{shown} and {len(names) - _NAMES_TOLD_MAX} more"
