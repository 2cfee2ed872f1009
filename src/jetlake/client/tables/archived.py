"""The archive of a stream, as a read of stream and archive together sees it: its seam, its files, and their messages.

An archive is complete up to the end of the last batch in its commit log: the batch's files were moved to their final
names before Spark wrote that log. This end is the seam. Messages before it are read from the files, messages behind it
from the stream, and a batch that is being written meanwhile changes neither half. Files are listed until two listings
agree and no compaction runs, so that a file and the one that replaces it are never both read.

An archive of decoded payloads has the values, the bytes only if they were kept, and beside it the messages that do not
fit in a folder or table of their own; both are read. Values stand for payloads that are decoded in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from jetlake.client.tables.bounds import Bounds
from jetlake.client.tables.data_loss import check_not_restored
from jetlake.client.tables.message_columns import MessageColumns, Positions
from jetlake.client.tables.planning import StreamOffset
from jetlake.client.tables.positions import Position
from jetlake.client.tables.spark_offsets import logged_offset
from jetlake.client.tables.stream_api import StreamApi
from jetlake.errors import ConfigError, DataLossError, OffsetError, StreamRecreatedError, UnsupportedStreamError
from jetlake.lake.catalogs import TableAddress
from jetlake.lake.iceberg import IcebergTable, stream_files
from jetlake.model.stream import StreamInfo
from jetlake.protocol.subjects import compile_matcher, is_subset

if TYPE_CHECKING:
    # Imported with the first archive: it takes longer than most of the imports of a read without one.
    from pyarrow import fs

NOTES = "_jetlake"
"""The directory of metadata inside an archive; readers of files skip names with an underscore."""
REJECTS = "_rejects"
"""What the folder, or the table, beside a typed archive is called: its name and this."""
_FORMATS = ("parquet", "delta", "iceberg")
_LISTINGS_MAX = 5
_BATCH = re.compile(r"batch-(\d+)")
_HEADER_COLUMNS = {"headers", "headers_raw", "msg_id"}
_DATA_COLUMNS = {"data", "size", "value", "bad_data", "bad_reason"}


@dataclass(frozen=True)
class Archived:
    """An archive, as far as it is certainly complete.

    Attributes:
        path: the folder, as it was named.
        offset: the position behind the archived messages, as the archive's checkpoint has it.
        files: paths with their sizes in bytes, of all files that may hold messages before it.
    """

    path: str
    offset: StreamOffset
    files: tuple[tuple[str, int], ...]


def open_archive(path: str, stream: str, subjects: tuple[str, ...], payload: str, columns: Sequence[str]) -> Archived:
    """Return the archive of that stream in a folder.

    Args:
        payload: how payloads are decoded by the read; `raw` for not at all.
        columns: what the read needs of a message.

    Raises:
        ConfigError: there is none, or it cannot stand for the beginning of the stream.
        UnsupportedStreamError: its files are being compacted at this moment.
    """
    system, root = open_file_system(path)
    described = _read_json(system, f"{root}/{NOTES}/archive.json")
    if described is None:
        raise ConfigError(
            f"option archive={path!r}: there is no archive here; jetlake pipeline archive creates archives"
        )
    _check_description(path, described, stream, subjects, payload, columns)
    batch, offset = _last_batch(path, system, described.get("checkpoint") or f"{root}/{NOTES}/checkpoint", stream)
    if offset is None:
        raise ConfigError(f"option archive={path!r}: the archive has not finished its first batch yet")
    files = _files_of(path, described, batch)
    if described.get("payload"):
        rejects = f"{path.rstrip('/')}{REJECTS}"
        table = f"{described['table']}{REJECTS}" if described["format"] == "iceberg" else ""
        files += _files_of(rejects, {**described, "table": table}, batch, may_lack=True)
    return Archived(path, offset, tuple(files))


def _files_of(path: str, described: dict[str, Any], batch: int, *, may_lack: bool = False) -> list[tuple[str, int]]:
    """Return the files of an archive's folder or table up to that batch, with their sizes.

    Args:
        may_lack: there need not be such a folder or table.
    """
    system, root = open_file_system(path)
    found: dict[str, int] = {}
    if described["format"] == "delta":
        if not may_lack or system.get_file_info(f"{root}/_delta_log").type.name == "Directory":
            found = {f"{root}/{file}": 0 for file in delta_files(path)}
    elif described["format"] == "iceberg":
        table = IcebergTable(TableAddress(path, described["catalog"], described["table"]), "")
        if not may_lack or table.load() is not None:
            found = stream_files(table.require(), described["stream"])
    elif not may_lack or system.get_file_info(root).type.name == "Directory":
        found = _files(path, system, root, batch)
    return sorted(found.items())


def _check_description(
    path: str, described: dict[str, Any], stream: str, subjects: tuple[str, ...], payload: str, columns: Sequence[str]
) -> None:
    reason = ""
    archived = [subject.encode() for subject in described.get("subjects", ())]
    lacks_bytes = described.get("payload") and not described["keep_raw"]
    if described.get("stream") != stream:
        reason = f"it holds stream {described.get('stream')}, not {stream}"
    elif described.get("format") not in _FORMATS:
        reason = f"its format is {described.get('format')}; together with the stream {', '.join(_FORMATS)} are read"
    elif described.get("upsert"):
        reason = "it holds the newest values of a bucket's keys, and not its messages"
    elif lacks_bytes and {"data", "size"} & set(columns):
        reason = "its payloads are decoded and it has not kept their bytes: read column value, or use --keep-raw"
    elif lacks_bytes and _DATA_COLUMNS & set(columns) and payload != described["payload"]:
        reason = f"its payloads were decoded as {described['payload']}, not as {payload}"
    elif described.get("start", "earliest") != "earliest":
        reason = f"it begins at {described['start']}, and never had the messages before that"
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
    """Return the files of finished batches, from two listings in a row that agree."""
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
    """Return whether that is a file of rows, of this batch or an earlier one."""
    parts = PurePosixPath(path)
    if any(part.startswith(("_", ".")) for part in parts.parts):
        return False
    number = _BATCH.match(parts.name)
    return number is None or int(number[1]) <= batch


def delta_files(path: str) -> list[str]:
    """Return the files of a Delta table, relative to its folder.

    Raises:
        ConfigError: the deltalake package is missing.
    """
    try:
        import deltalake
    except ImportError:
        raise ConfigError("archives of format delta need deltalake on the driver: install jetlake[delta]") from None
    # The log has URL-encoded paths; the table's own URIs mix encoded characters with plain ones.
    added = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))
    return [unquote(file) for file in added.column("path").to_pylist()]


def open_file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, and the path there; a plain one is local."""
    from pyarrow import fs

    try:
        system, directory = fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path!r} is not a readable folder: {error}") from None
    return system, directory.rstrip("/")


def _listing(system: fs.FileSystem, folder: str, **options: bool) -> list[fs.FileInfo]:
    """Return the entries of a folder."""
    from pyarrow import fs

    found: list[fs.FileInfo] = system.get_file_info(fs.FileSelector(folder, **options))
    return found


def _read_json(system: fs.FileSystem, path: str) -> dict[str, Any] | None:
    if not system.get_file_info(path).is_file:
        return None
    with system.open_input_stream(path) as file:
        found = json.loads(file.read())
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class ArchivedRange:
    """The range of archived messages to read.

    Attributes:
        first, end: sequences, the end exclusive.
        since_us, until_us: when they were stored, the end exclusive; None for any time.
    """

    first: int
    end: int
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True)
class ArchivedFiles:
    """Some files of an archive, and which of their messages to read.

    Attributes:
        root: the archive as it was named, with its file system.
        subjects: filters; none means all.
    """

    stream: str
    root: str
    files: tuple[str, ...]
    wanted: ArchivedRange
    subjects: tuple[str, ...] = ()


def check_archive(api: StreamApi, stream: str, archive: Archived) -> None:
    """Check that the archive's sequences still mean the messages of the stream.

    Raises:
        UnsupportedStreamError: the stream was recreated, or restored from an older state.
    """
    try:
        check_not_restored(api, stream, archive.offset)
    except StreamRecreatedError:
        raise UnsupportedStreamError(
            f"stream {stream} was recreated or restored from an older state since archive {archive.path} was "
            "written: their sequences refer to different messages, so read each of them separately"
        ) from None


def archived_range(
    info: StreamInfo, archive: Archived, start: Position, end: Position, bounds: Bounds, now_ns: int, filtered: bool
) -> ArchivedRange:
    """Return the archived messages that the positions name and the bounds let through.

    Args:
        filtered: whether the read has filters of subjects.

    Raises:
        ConfigError: a position cannot be found in an archive.
    """
    seam = archive.offset.next
    if (start.kind == "last" and filtered) or end.kind not in ("latest", "sequence", "time", "ago"):
        raise ConfigError("with option archive, write positions as seq:N or as times; last:N only without subjects")
    first = {
        "sequence": start.value,
        "last": info.state.last_seq + 1 - start.value,
        "latest": seam,
    }.get(start.kind, 0)
    last = min(seam, end.value + 1) if end.kind == "sequence" else seam
    since_ns, until_ns = start.time_ns(now_ns), end.time_ns(now_ns)
    since = [_down_us(since_ns)] if since_ns is not None else []
    until = [_down_us(until_ns)] if until_ns is not None else []
    since += [bounds.first_us] if bounds.first_us is not None else []
    until += [bounds.end_us] if bounds.end_us is not None else []
    return ArchivedRange(
        max(first, bounds.first),
        min(last, bounds.end) if bounds.end is not None else last,
        max(since, default=None),
        min(until, default=None),
    )


def _down_us(time_ns: int) -> int:
    """Return the microsecond of that time, as an archive has it of a message that was stored then."""
    return time_ns // 1000


def read_archived(found: ArchivedFiles, columns: Sequence[str], rows_max: int) -> Iterator[MessageColumns]:
    """Yield the messages of some files; only the columns that these need are read.

    Raises:
        DataLossError: a file is gone that was there when the read was planned.
    """
    from pyarrow import fs, parquet  # here, for most reads are without an archive

    if found.wanted.first >= found.wanted.end:
        return
    plain = "://" not in found.root
    system = fs.LocalFileSystem() if plain else fs.FileSystem.from_uri(found.root)[0]
    for path in found.files:
        try:
            source = system.open_input_file(path)
        except FileNotFoundError:
            raise DataLossError(
                f"file {path} of archive {found.root} is gone since the read began: its files were put together, "
                "or it was deleted. Read again"
            ) from None
        with source:
            file = parquet.ParquetFile(source, coerce_int96_timestamp_unit="us")
            groups = _row_groups(file, found.wanted)
            names = _needed(set(columns), set(file.schema_arrow.names))
            for batch in file.iter_batches(rows_max, row_groups=groups, columns=names):
                messages = _messages(batch, found)
                if len(messages):
                    yield messages


def _row_groups(file: Any, wanted: ArchivedRange) -> list[int]:
    """Return the row groups that may hold wanted messages, by the file's statistics of sequences."""
    chosen = []
    for number in range(file.metadata.num_row_groups):
        statistics = _statistics(file.metadata.row_group(number), "sequence")
        if statistics is None or (statistics.max >= wanted.first and statistics.min < wanted.end):
            chosen.append(number)
    return chosen


def _statistics(group: Any, name: str) -> Any:
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name:
            return column.statistics if column.is_stats_set and column.statistics.has_min_max else None
    return None


def _needed(columns: set[str], present: set[str]) -> list[str]:
    names = ["stream", "sequence", "timestamp", "subject"]
    if columns & _HEADER_COLUMNS:
        names.append("headers_raw" if "headers_raw" in present else "headers")
    if columns & _DATA_COLUMNS:
        # Bytes that were kept are decoded again; a file of rejected messages has them, and the reason, in any case.
        names += [name for name in (("data",) if "data" in present else ("value",)) if name in present]
    return names


def _messages(batch: pa.RecordBatch, found: ArchivedFiles) -> MessageColumns:
    """Return the wanted rows as messages."""
    import pyarrow.compute as pc  # here, as in message_columns

    wanted = found.wanted
    time = batch.column("timestamp")
    time_us = time.cast(pa.timestamp("us", tz=time.type.tz)).cast(pa.int64())
    sequence = batch.column("sequence")
    keep = pc.and_(pc.greater_equal(sequence, wanted.first), pc.less(sequence, wanted.end))
    # A table may hold several archives, and rows of other writers.
    keep = pc.and_(keep, pc.equal(batch.column("stream"), found.stream))
    if wanted.since_us is not None:
        keep = pc.and_(keep, pc.greater_equal(time_us, wanted.since_us))
    if wanted.until_us is not None:
        keep = pc.and_(keep, pc.less(time_us, wanted.until_us))
    subject = batch.column("subject").cast(pa.binary())
    if found.subjects:
        matchers = [compile_matcher(pattern.encode()) for pattern in found.subjects]
        matching = [one for one in subject.unique().to_pylist() if any(match(one) for match in matchers)]
        keep = pc.and_(keep, pc.is_in(subject, pa.array(matching, pa.binary())))
    count = int(pc.sum(keep).as_py() or 0)
    nothing = pa.array([b""] * count, pa.binary())
    header = nothing
    if "headers_raw" in batch.schema.names:
        header = pa.array([raw or b"" for raw in batch.column("headers_raw").filter(keep).to_pylist()], pa.binary())
    elif "headers" in batch.schema.names:
        header = pa.array([_block(pairs) for pairs in batch.column("headers").filter(keep).to_pylist()], pa.binary())
    has_data = "data" in batch.schema.names
    data = batch.column("data").cast(pa.binary()).filter(keep).fill_null(b"") if has_data else nothing
    value = batch.column("value").filter(keep) if "value" in batch.schema.names else None
    return MessageColumns(
        _integers(sequence.filter(keep)),
        _integers(time_us.filter(keep)) * 1000,
        subject.filter(keep),
        header,
        data,
        value=value,
    )


def _integers(numbers: pa.Array) -> Positions:
    """Return the numbers without Arrow's own conversion, which looks for pandas."""
    if not len(numbers):
        return np.empty(0, np.int64)
    return np.frombuffer(numbers.buffers()[1], np.int64)[numbers.offset : numbers.offset + len(numbers)]


def _block(pairs: list[tuple[str, list[str]]] | None) -> bytes:
    """Return the header block of an archived map, which was valid when it was archived."""
    if not pairs:
        return b""
    lines = [f"{key}: {value}\r\n" for key, values in pairs for value in values or ()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()
