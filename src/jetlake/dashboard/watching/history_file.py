"""The file in which the history of streams and consumers outlives the dashboard."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["HistoryFile"]

_VERSION = 1
_BYTES_MAX = 256 * 1024 * 1024

_Series = dict[str, dict[str, tuple[int, bytes, bytes]]]


class _Kept(msgspec.Struct, frozen=True):
    created: str
    series: _Series


class _Content(msgspec.Struct, frozen=True):
    version: int
    kept: dict[str, _Kept]


class HistoryFile:
    """One file, replaced as a whole. It is a convenience: what can't be read or written is left out.

    Args:
        path: where it is; its folder is made when it is first written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Any]:
        """Return what was saved last, by stream and consumer; nothing when it can't be read."""
        try:
            if self._path.stat().st_size > _BYTES_MAX:
                return {}
            content = msgspec.msgpack.decode(self._path.read_bytes(), type=_Content)
        except (OSError, msgspec.DecodeError):
            return {}
        if content.version != _VERSION:
            return {}
        return {key: {"created": kept.created, "series": kept.series} for key, kept in content.kept.items()}

    def save(self, histories: dict[str, Any]) -> None:
        """Replace what was saved before: readers see the old file or the new one."""
        aside = self._path.with_name(self._path.name + ".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(msgspec.msgpack.encode({"version": _VERSION, "kept": histories}))
            aside.replace(self._path)
        except OSError:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
