"""The archive of a stream as the source sees it: up to which sequence it is complete, and the files that say so.

An archive is complete up to the end of the last batch in its commit log: the batch's files were in their places before
Spark wrote it there. So this end is the seam. What lies before it is read from the files, what lies behind it from
the stream, and a batch that is being written meanwhile changes neither half.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from jetlake.client.tables.plan.offsets import StreamOffset, logged_offset
from jetlake.errors import ConfigError, OffsetError, UnsupportedStreamError
from jetlake.protocol.subjects import is_subset

if TYPE_CHECKING:
    # Loaded with the first archive: to import it takes longer than most of what a task without one imports.
    from pyarrow import fs

__all__ = ["NOTES", "Lake", "delta_files", "open_file_system", "open_lake"]

NOTES = "_jetlake"
"""The folder inside an archive that holds its notes; readers of files leave out what begins with an underscore."""

_FORMATS = ("parquet", "delta")
_LISTINGS_MAX = 5
_BATCH = re.compile(r"batch-(\d+)")


@dataclass(frozen=True)
class Lake:
    """An archive, as far as it is complete for certain.

    Attributes:
        offset: the position behind the archived messages, as the archive's checkpoint has it.
        files: paths with their sizes in bytes, of all files that may hold messages before it.
    """

    offset: StreamOffset
    files: tuple[tuple[str, int], ...]


def open_lake(path: str, stream: str, subjects: tuple[str, ...]) -> Lake:
    """Return the archive of that stream in a folder.

    Raises:
        ConfigError: there is none, or it cannot stand for the beginning of the stream.
        UnsupportedStreamError: its files are being put together at this moment.
    """
    system, root = open_file_system(path)
    described = _read_json(system, f"{root}/{NOTES}/archive.json")
    if described is None:
        raise ConfigError(f"option archive={path!r}: there is no archive here; jetlake pipeline archive makes them")
    _check_description(path, described, stream, subjects)
    batch, offset = _last_batch(path, system, described.get("checkpoint") or f"{root}/{NOTES}/checkpoint", stream)
    if offset is None:
        raise ConfigError(f"option archive={path!r}: the archive has not finished its first batch yet")
    if described["format"] == "delta":
        files = {f"{root}/{file}": 0 for file in delta_files(path)}
    else:
        files = _files(path, system, root, batch)
    return Lake(offset, tuple(sorted(files.items())))


def _check_description(path: str, described: dict[str, Any], stream: str, subjects: tuple[str, ...]) -> None:
    reason = ""
    archived = [subject.encode() for subject in described.get("subjects", ())]
    if described.get("stream") != stream:
        reason = f"it holds stream {described.get('stream')}, not {stream}"
    elif described.get("format") not in _FORMATS:
        reason = f"its format is {described.get('format')}; together with the stream {' and '.join(_FORMATS)} are read"
    elif described.get("start", "earliest") != "earliest":
        reason = f"it begins at {described['start']}, and what was before that it never had"
    elif archived and not all(any(is_subset(s.encode(), a) for a in archived) for s in subjects or (">",)):
        reason = f"it holds only {', '.join(described['subjects'])}: name these, or some of them, in option subjects"
    if reason:
        raise ConfigError(f"option archive={path!r} cannot be used: {reason}")


def _last_batch(path: str, system: fs.FileSystem, checkpoint: str, stream: str) -> tuple[int, StreamOffset | None]:
    """Return the last batch in the commit log, and its end."""
    if "://" in checkpoint:
        system, checkpoint = open_file_system(checkpoint)
    commits = _listing(system, f"{checkpoint}/commits", allow_not_found=True)
    batches = [int(info.base_name) for info in commits if info.base_name.isdigit()]
    if not batches:
        return -1, None
    batch = max(batches)
    try:
        with system.open_input_stream(f"{checkpoint}/offsets/{batch}") as file:
            return batch, logged_offset(file.read().decode()).of(stream)
    except (OSError, ValueError, OffsetError) as error:
        raise ConfigError(
            f"option archive={path!r} cannot be used: its checkpoint {checkpoint} is broken ({error})"
        ) from None


def _files(path: str, system: fs.FileSystem, root: str, batch: int) -> dict[str, int]:
    """Return the files of finished batches; lists them until nothing changes meanwhile."""
    journal = f"{root}/{NOTES}/compaction.json"
    before: dict[str, int] | None = None
    for _ in range(_LISTINGS_MAX):
        compacting = system.get_file_info(journal).is_file
        found = {
            info.path: info.size
            for info in _listing(system, root, recursive=True)
            if info.is_file and _is_of(info.path[len(root) + 1 :], batch)
        }
        if found == before and not compacting:
            return found
        before = found
    raise UnsupportedStreamError(
        f"the files of archive {path} are being put together at this moment; read again when that is done. If nobody "
        "does it, it broke off: the next run of the archive finishes it"
    )


def _is_of(path: str, batch: int) -> bool:
    """Return whether that is a file of rows, and of no batch behind this one."""
    place = PurePosixPath(path)
    if any(part.startswith(("_", ".")) for part in place.parts):
        return False
    number = _BATCH.match(place.name)
    return number is None or int(number[1]) <= batch


def delta_files(path: str) -> list[str]:
    """Return the files of a Delta table, as they are called below its folder.

    Raises:
        ConfigError: the deltalake package is missing.
    """
    import pyarrow as pa

    try:
        import deltalake
    except ImportError:
        raise ConfigError("archives of format delta need deltalake on the driver: install jetlake[delta]") from None
    # The log has them as in a URL; the table's own URIs mix what is encoded there with what is a part of a name.
    added = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))
    return [unquote(file) for file in added.column("path").to_pylist()]


def open_file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, and the path there; a plain one is local."""
    from pyarrow import fs

    try:
        system, place = fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path!r} is no folder that can be read: {error}") from None
    return system, place.rstrip("/")


def _listing(system: fs.FileSystem, folder: str, **options: bool) -> list[fs.FileInfo]:
    """Return what lies in a folder."""
    from pyarrow import fs

    found: list[fs.FileInfo] = system.get_file_info(fs.FileSelector(folder, **options))
    return found


def _read_json(system: fs.FileSystem, path: str) -> dict[str, Any] | None:
    if not system.get_file_info(path).is_file:
        return None
    with system.open_input_stream(path) as file:
        found = json.loads(file.read())
    return found if isinstance(found, dict) else None
