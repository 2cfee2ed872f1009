"""Iceberg tables through pyiceberg: catalogs, commits that happen once, and the maintenance that keeps a table small.

- A batch is in the table exactly when a snapshot in the ancestry of the current one carries its number and the id of
  its archive. The number is committed with the files, so a crash leaves both or neither.
- Snapshots expire. The commit therefore also sets the table property `jetlake.batch.<archive>`, which answers for the
  part of the ancestry that is gone. It does not answer for the part that is there: a rollback leaves properties alone.
- A commit that meets another writer's is built again on the other's, after looking for the batch once more.
  pyiceberg's own retries are off, for they would not look.
- Files are written before they are committed, under names that carry the archive's id. A crash in between leaves files
  that no snapshot names; only such files, with our names, are ever deleted as orphans.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jetlake.errors import ConfigError, LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

ARCHIVE = "jetlake.archive"
"""What a snapshot calls the archive that wrote it; with `.<id>`, the table property that names the archive's stream."""
BATCH = "jetlake.batch"
"""The number of a snapshot's batch; with `.<id>`, the table property with the last one of an archive."""
FIRST, LAST = "jetlake.first-sequence", "jetlake.last-sequence"
"""The sequences that a snapshot's batch begins and ends with."""
COMPACTION = "jetlake.compaction"
"""Marks a snapshot that only merges files."""
CATALOG_FILE = "catalog.db"
"""The embedded catalog, in the folder that holds the folders of its tables."""
NAMESPACE = "lake"
"""The namespace of tables in the embedded catalog."""

_CATALOG = "jetlake"
_FILE_IO = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
_COMMITS_MAX = 20
_RETRY_WAIT_S = 0.05
_RETRY_WAIT_MAX_S = 2.0
# Other characters have a meaning in the locations that readers parse as URLs.
_UNSUITED = re.compile(r"[#?%\\]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Metadata that a commit under way may be about to name is left alone for so long.
_METADATA_ORPHAN_S = 3600.0
# What a table is created with: merged manifests, few old metadata files, and no statistics of payloads and headers.
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    # Tells files of streams apart whose names begin alike.
    "write.metadata.metrics.column.stream": "full",
}


def require_pyiceberg() -> None:
    """Make sure that the package is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import pyiceberg.catalog.sql
        import pyiceberg.io.pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError(
            "format iceberg needs the package pyiceberg; install it with: pip install 'jetlake[iceberg]'"
        ) from None


@dataclass(frozen=True)
class TableAddress:
    """Which table of which catalog, and where it lies.

    Attributes:
        folder: the table's location; the embedded catalog is in the folder above.
        catalog: the name of a catalog in pyiceberg's configuration; empty for the embedded one.
        table: the table's name with its namespace; empty for `lake.<name of the folder>`.

    Raises:
        ConfigError: a name or folder that cannot be used.
    """

    folder: str
    catalog: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        found = _UNSUITED.search(self.folder)
        if found is not None:
            raise ConfigError(
                f"an Iceberg table can't be written to {self.folder}, for its path holds {found[0]!r}: choose another "
                "folder"
            )
        if "://" in self.folder and not self.folder.startswith("file://") and not self.catalog:
            raise ConfigError(
                f"the embedded catalog is a local file, and {self.folder} is not local: name a catalog with --catalog"
            )
        if self.table and (not _NAME.fullmatch(self.table) or "." not in self.table.strip(".")):
            raise ConfigError(f"{self.table!r} is no table's name: write NAMESPACE.NAME, such as lake.orders")

    @property
    def identifier(self) -> tuple[str, ...]:
        """The namespace's parts and the name."""
        return tuple((self.table or f"{NAMESPACE}.{table_name(self.folder)}").split("."))

    @property
    def name(self) -> str:
        """The table's name with its namespace, for people."""
        return ".".join(self.identifier)

    @property
    def location(self) -> str:
        """Where the table lies, as its metadata says it."""
        folder = self.folder.rstrip("/")
        if "://" in folder:
            # Hadoop's name of the file system, and everybody else's.
            return re.sub(r"^s3[an]://", "s3://", folder)
        return f"file://{Path(folder).absolute()}"

    @property
    def catalog_file(self) -> Path:
        """The embedded catalog."""
        return Path(self.folder.removeprefix("file://")).absolute().parent / CATALOG_FILE

    def open_catalog(self) -> Catalog:
        """Return the catalog.

        Raises:
            ConfigError: pyiceberg knows no such catalog.
        """
        return open_catalog(self.catalog or self.catalog_file)


def table_name(folder: str) -> str:
    """Return the name of the table in a folder: its last part, with `_` for what names don't take."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", folder.rstrip("/").rpartition("/")[2]) or "table"
    return name if not name[0].isdigit() else f"_{name}"


def open_catalog(which: str | Path) -> Catalog:
    """Return a catalog: that of a file, or the one that pyiceberg's configuration describes under a name.

    Raises:
        ConfigError: there is no such catalog, or it can't be reached.
    """
    require_pyiceberg()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    if isinstance(which, Path):
        which.parent.mkdir(parents=True, exist_ok=True)
        try:
            return SqlCatalog(_CATALOG, uri=f"sqlite:///{which}", warehouse=f"file://{which.parent}", **_FILE_IO)
        except Exception as error:
            raise ConfigError(f"the catalog {which} can't be opened: {_first_line(error)}") from None
    try:
        return load_catalog(which, **_FILE_IO)
    # pyiceberg, SQLAlchemy and the HTTP client each have errors of their own.
    except Exception as error:
        raise ConfigError(
            f"catalog {which!r} can't be opened: {_first_line(error)}. Describe it in ~/.pyiceberg.yaml, or by "
            f"PYICEBERG_CATALOG__{which.upper()}__URI"
        ) from None


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class Maintained(NamedTuple):
    """What maintenance did.

    Attributes:
        files_before, files_after: how many files became how many.
        snapshots: how many expired.
        deleted: how many files were deleted because nothing names them any more.
    """

    files_before: int = 0
    files_after: int = 0
    snapshots: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class Policy:
    """When a table that is being written is compacted, and what is kept of its history.

    Attributes:
        every: commits between two maintenances; 0 for none.
        snapshots: how many of the newest snapshots are kept.
        merge_min: how many files of about one size make it worth to merge them.
        target_bytes: files are merged up to this size.
    """

    every: int = 60
    snapshots: int = 60
    merge_min: int = 10
    target_bytes: int = 128 << 20


@dataclass
class IcebergTable:
    """One archive's view of a table.

    Attributes:
        archive: the id of the archive, which names its batches for ever.
        sleep: waits before a commit is tried again.
    """

    address: TableAddress
    archive: str
    sleep: Callable[[float], None] = time.sleep
    _catalog: Any = field(default=None, repr=False)

    @property
    def catalog(self) -> Catalog:
        """The catalog, opened when it is first needed."""
        if self._catalog is None:
            self._catalog = self.address.open_catalog()
        opened: Catalog = self._catalog
        return opened

    def load(self) -> Table | None:
        """Return the table as it is now; None when the catalog has none.

        Raises:
            LakeError: the catalog can't be asked, or the table's metadata is gone.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.catalog.load_table(self.address.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise LakeError(f"table {self.address.name} can't be read: {_first_line(error)}") from None

    def require(self) -> Table:
        """Return the table as it is now.

        Raises:
            LakeError: there is none.
        """
        table = self.load()
        if table is None:
            raise LakeError(f"table {self.address.name} is gone from its catalog")
        return table

    def create(self, columns: pa.Schema, partition_by: Sequence[str], stream: str) -> Table:
        """Return the table, created when there is none, and claimed for this archive.

        Args:
            columns: of the rows; a table that is there must take them.
            partition_by: `date`, `hour` or a column's name.

        Raises:
            ConfigError: the table is not one of ours, or is cut another way.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError

        table = self.load()
        if table is None:
            try:
                table = self._create(columns, partition_by, stream)
            except TableAlreadyExistsError:
                table = self.require()
        claimed = {key for key in table.properties if key.startswith(f"{ARCHIVE}.")}
        if not claimed:
            raise ConfigError(
                f"table {self.address.name} was not created by an archive, and its rows may be of any kind: choose "
                "another table"
            )
        found = [name.name for name in table.spec().fields]
        if found != list(partition_by):
            raise ConfigError(
                f"table {self.address.name} is partitioned by {', '.join(found) or 'nothing'}, not by "
                f"{', '.join(partition_by) or 'nothing'}: use that one, or choose another table"
            )
        mine = f"{ARCHIVE}.{self.archive}"
        if mine not in claimed:
            self.change(lambda change: change.set_properties({mine: stream}))
        return self.evolve(columns)

    def _create(self, columns: pa.Schema, partition_by: Sequence[str], stream: str) -> Table:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.schema import assign_fresh_schema_ids
        from pyiceberg.table.sorting import SortField, SortOrder
        from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

        schema = assign_fresh_schema_ids(iceberg_schema(columns))
        transforms: dict[str, tuple[str, Any]] = {
            "date": ("timestamp", DayTransform()),
            "hour": ("timestamp", HourTransform()),
        }
        parts = []
        for number, name in enumerate(partition_by):
            source, transform = transforms.get(name, (name, IdentityTransform()))
            parts.append(PartitionField(schema.find_field(source).field_id, 1000 + number, transform, name))
        order = SortOrder(SortField(schema.find_field("sequence").field_id, IdentityTransform()))
        self.catalog.create_namespace_if_not_exists(self.address.identifier[:-1])
        return self.catalog.create_table(
            self.address.identifier,
            schema=schema,
            location=self.address.location,
            partition_spec=PartitionSpec(*parts),
            sort_order=order,
            properties={**_PROPERTIES, **_unmeasured(schema), f"{ARCHIVE}.{self.archive}": stream},
        )

    def evolve(self, columns: pa.Schema) -> Table:
        """Return the table after adding the columns that it lacks, and widening the types that became wider.

        Raises:
            ConfigError: a column has a type that the table's does not take; names both.
        """
        table = self.require()
        # Times that are coarser than microseconds, and integers of a byte or two, are the table's wider types.
        wanted = iceberg_schema(columns)
        before = table.schema()
        with_new = table.transaction()
        try:
            update = with_new.update_schema()
            update.union_by_name(wanted)
            update.commit()
        except Exception as error:
            raise ConfigError(
                f"the columns of table {self.address.name} can't become those of the messages: {_first_line(error)}. "
                f"The table has {_told(before)}; the messages have {_told(wanted)}. Archive them into another table"
            ) from None
        if with_new.table_metadata.schema().as_struct() != before.as_struct():
            self.change(lambda change: _union(change, wanted))
        return self.require()

    def last_batch(self, table: Table) -> int | None:
        """Return the number of this archive's last batch in the table; None when it has none."""
        batches = []
        for snapshot in ancestry(table):
            found = _facts_of(snapshot)
            if found.get(ARCHIVE) == self.archive and BATCH in found:
                # Batches are committed in order, so the newest snapshot with one has the last.
                batches.append(int(found[BATCH]))
                break
        if not batches and not _is_whole(table):
            kept = table.properties.get(f"{BATCH}.{self.archive}")
            batches += [int(kept)] if kept is not None else []
        return max(batches, default=None)

    def append(self, batch: int, files: Sequence[str], first: int, last: int) -> Table:
        """Commit the files of a batch, unless the table has the batch; return the table that has it.

        Raises:
            LakeError: the catalog keeps refusing, or a file is gone.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        facts = {ARCHIVE: self.archive, BATCH: str(batch), FIRST: str(first), LAST: str(last)}
        data_files: list[DataFile] = []

        def add(change: Any, table: Table) -> bool:
            done = self.last_batch(table)
            if done is not None and done >= batch:
                return False
            if not data_files:
                data_files.extend(parquet_file_to_data_file(table.io, table.metadata, file) for file in files)
            with change.update_snapshot(snapshot_properties=facts).merge_append() as appended:
                for data_file in data_files:
                    appended.append_data_file(data_file)
            change.set_properties({f"{BATCH}.{self.archive}": str(batch)})
            return True

        return self._commit(add)

    def change(self, apply: Callable[[Any], object]) -> Table:
        """Commit a change that may be repeated."""

        def once(change: Any, table: Table) -> bool:
            apply(change)
            return True

        return self._commit(once)

    def _commit(self, build: Callable[[Any, Table], bool]) -> Table:
        """Build a change upon the table as it is and commit it; on a conflict, or when the outcome is unknown, again.

        Args:
            build: adds to a transaction; returns False when nothing is left to do.

        Raises:
            LakeError: it was refused too often.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
        from sqlalchemy.exc import OperationalError

        wait_s = _RETRY_WAIT_S
        last: Exception | None = None
        for _ in range(_COMMITS_MAX):
            table = self.require()
            # In this object alone: retries are made here, where the batch is looked for again.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            change = table.transaction()
            if not build(change, table):
                return table
            try:
                change.commit_transaction()
                return self.require()
            except (CommitFailedException, CommitStateUnknownException, OperationalError) as error:
                # The last is how SQLite says that another process holds the file.
                last = error
            self.sleep(wait_s * (0.5 + random.random() / 2))
            wait_s = min(wait_s * 2, _RETRY_WAIT_MAX_S)
        raise LakeError(
            f"table {self.address.name} could not be committed to: {_first_line(last) if last else 'no answer'}. "
            f"{_COMMITS_MAX} attempts met other writers; run it again when there are fewer"
        )

    def compact(self, target_bytes: int, *, merge_min: int = 2, tiered: bool = False) -> Maintained:
        """Merge small files of one partition, in the order of their sequences; readers see one version or the other.

        Args:
            merge_min: how many files a merge needs.
            tiered: only merge files of about one size, so that a row is rewritten a few times only.
        """
        before = after = 0
        for group in plan_merges(self.require(), target_bytes, merge_min=merge_min, tiered=tiered):
            merged = self._merge(group)
            before, after = before + (len(group) if merged else 0), after + merged
        return Maintained(before, after)

    def _merge(self, group: Sequence[DataFile]) -> int:
        from pyiceberg.exceptions import ValidationException
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        table = self.require()
        system, root = file_system(table)
        path = f"data/{self.archive}/merged/{random.getrandbits(64):016x}.parquet"
        merge_files(table, [file.file_path for file in group], f"{root}/{path}")
        target = f"{table.location().rstrip('/')}/{path}"

        def replace(change: Any, found: Table) -> bool:
            with change.update_snapshot(snapshot_properties={COMPACTION: self.archive}).overwrite() as rewritten:
                for file in group:
                    rewritten.delete_data_file(file)
                rewritten.append_data_file(parquet_file_to_data_file(found.io, found.metadata, target))
            return True

        try:
            self._commit(replace)
        except ValidationException:
            # Somebody has replaced or deleted one of these files meanwhile.
            system.delete_file(f"{root}/{path}")
            return 0
        return 1

    def expire(self, keep: int) -> Maintained:
        """Forget all but the newest snapshots, and delete the files that only these named."""
        table = self.require()
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        oldest_first = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        older = oldest_first[: max(len(oldest_first) - keep, 0)]
        expired = [snapshot for snapshot in older if snapshot.snapshot_id not in held]
        if not expired:
            return Maintained()
        named = named_files(table, expired)
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        def forget(change: Any, found: Table) -> bool:
            present = {snapshot.snapshot_id for snapshot in found.metadata.snapshots}
            going = [snapshot.snapshot_id for snapshot in expired if snapshot.snapshot_id in present]
            if going:
                ExpireSnapshots(change).by_ids(going).commit()
            return bool(going)

        table = self._commit(forget)
        unnamed = named - named_files(table, table.metadata.snapshots)
        for path in unnamed:
            table.io.delete(path)
        return Maintained(snapshots=len(expired), deleted=len(unnamed))

    def maintain(self, policy: Policy) -> Maintained:
        """Merge and expire by a policy."""
        merged = self.compact(policy.target_bytes, merge_min=policy.merge_min, tiered=True)
        expired = self.expire(policy.snapshots)
        return Maintained(merged.files_before, merged.files_after, expired.snapshots, expired.deleted)

    def orphans(self, pending: Iterable[str] = (), now_s: float | None = None) -> list[str]:
        """Return the files in the table's folder that nothing names: data of this archive, and old metadata.

        Args:
            pending: locations of files that are about to be committed.
        """
        from pyarrow import fs

        table = self.require()
        system, root = file_system(table)
        location = table.location().rstrip("/")
        named = named_files(table, table.metadata.snapshots) | set(pending)
        named |= {entry.metadata_file for entry in table.metadata.metadata_log} | {table.metadata_location}
        named |= {statistics.statistics_path for statistics in table.metadata.statistics}
        found = []
        now_s = time.time() if now_s is None else now_s
        for folder, age_s in ((f"data/{self.archive}", 0.0), ("metadata", _METADATA_ORPHAN_S)):
            selector = fs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)
            for info in system.get_file_info(selector):
                path = f"{location}{info.path[len(root) :]}"
                is_old = info.mtime is None or now_s - info.mtime.timestamp() >= age_s
                if info.is_file and is_old and path not in named:
                    found.append(path)
        return sorted(found)


def _union(change: Any, wanted: Any) -> None:
    with change.update_schema() as update:
        update.union_by_name(wanted)
    change.set_properties(_unmeasured(change.table_metadata.schema()))


def _unmeasured(schema: Any) -> dict[str, str]:
    """Return the table's properties for columns without statistics."""
    names = (schema.find_column_name(id_) for id_ in unmeasured_ids(schema))
    return {f"write.metadata.metrics.column.{name}": "none" for name in names}


def _told(schema: Any) -> str:
    return ", ".join(f"{column.name} {column.field_type}" for column in schema.columns)


def _facts_of(snapshot: Any) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def ancestry(table: Table) -> Iterator[Any]:
    """Yield the current snapshot and those that it was built upon, as far as the table knows them."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def _is_whole(table: Table) -> bool:
    """Return whether the ancestry goes back to the table's first snapshot, which has number 1."""
    numbers = [snapshot.sequence_number or 0 for snapshot in ancestry(table)]
    return not numbers or numbers[-1] <= 1


def is_part_of(table: Table, snapshot_id: int, sequence_number: int) -> bool:
    """Return whether the rows of a snapshot are a part of the table as it is now.

    A snapshot that is not in the ancestry has expired, or the table was rolled back to one before it. Numbers grow
    along the ancestry: when its oldest known snapshot is a later one, the former can be, and is taken to be, the case.
    """
    oldest = None
    for snapshot in ancestry(table):
        if snapshot.snapshot_id == snapshot_id:
            return True
        oldest = snapshot
    return oldest is not None and (oldest.sequence_number or 0) > sequence_number


def named_files(table: Table, snapshots: Iterable[Any]) -> set[str]:
    """Return the manifest lists, manifests and data files that snapshots name."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    found.add(entry.data_file.file_path)
    return found


def current_files(table: Table) -> list[DataFile]:
    """Return the data files of the table as it is now.

    Raises:
        LakeError: rows were deleted by files of deletes, which only a query engine applies.
    """
    from pyiceberg.manifest import DataFileContent

    snapshot = table.current_snapshot()
    found = []
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content != DataFileContent.DATA:
                raise LakeError(
                    f"table {'.'.join(table.name())} has files of deletes, which another program has written: have "
                    "that program merge them into the table's files first"
                )
            found.append(entry.data_file)
    return found


def neighbours(table: Table, stream: str) -> set[str]:
    """Return the streams of the other archives that share the table."""
    return {value for key, value in table.properties.items() if key.startswith(f"{ARCHIVE}.")} - {stream, ""}


def stream_files(table: Table, stream: str, *, only: bool = True) -> dict[str, int]:
    """Return the paths of the files that may hold messages of a stream, on the table's file system, with their sizes.

    Args:
        only: leave out the files of streams that no archive of the table has, too; these are somebody else's rows.
    """
    others = neighbours(table, stream)
    found = {}
    for file in current_files(table):
        low, high = _bounds(table, file, "stream")
        may_hold = low is None or high is None or low <= stream.encode() <= high
        is_foreign = not may_hold and not any(low <= other.encode() <= high for other in others)
        if may_hold or (is_foreign and not only):
            found[_path_of(table, file.file_path)] = file.file_size_in_bytes
    return found


def _bounds(table: Table, file: DataFile, column: str) -> tuple[Any, Any]:
    id_ = table.schema().find_field(column).field_id
    return (file.lower_bounds or {}).get(id_), (file.upper_bounds or {}).get(id_)


def plan_merges(table: Table, target_bytes: int, *, merge_min: int, tiered: bool) -> list[list[DataFile]]:
    """Choose the files that become one each: of one partition and stream, together not larger than the target."""
    groups: dict[Any, list[DataFile]] = {}
    for file in current_files(table):
        if file.file_size_in_bytes >= target_bytes or file.spec_id != table.spec().spec_id:
            continue
        tier = len(str(file.file_size_in_bytes)) if tiered else 0
        groups.setdefault((repr(file.partition), _bounds(table, file, "stream"), tier), []).append(file)
    planned = []
    for files in groups.values():
        files.sort(key=lambda file: int.from_bytes(_bounds(table, file, "sequence")[0] or b"", "little"))
        group: list[DataFile] = []
        size = 0
        for file in files:
            if group and size + file.file_size_in_bytes > target_bytes:
                planned.append(group)
                group, size = [], 0
            group.append(file)
            size += file.file_size_in_bytes
        planned.append(group)
    return [group for group in planned if len(group) >= max(merge_min, 2)]


def merge_files(table: Table, files: Sequence[str], target: str) -> None:
    """Write the rows of some files of the table to one, a row group at a time, with the table's columns of today."""
    import pyarrow as pa
    from pyarrow import parquet

    system, _ = file_system(table)
    schema = small_types(file_schema(table))
    system.create_dir(target.rpartition("/")[0], recursive=True)
    with system.open_output_stream(target) as sink, open_writer(sink, schema) as writer:
        for file in files:
            with system.open_input_file(_path_of(table, file)) as source:
                found = parquet.ParquetFile(source)
                for number in range(found.metadata.num_row_groups):
                    rows = found.read_row_group(number)
                    writer.write_table(pa.table(_as_today(rows, schema), schema))


def _as_today(rows: pa.Table, schema: pa.Schema) -> list[Any]:
    import pyarrow as pa

    by_id = {_field_id(column): index for index, column in enumerate(rows.schema)}
    columns = []
    for wanted in schema:
        index = by_id.get(_field_id(wanted))
        columns.append(pa.nulls(len(rows), wanted.type) if index is None else fitted(rows.column(index), wanted.type))
    return columns


def fitted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column with a type of the table: wider types, and fields of structs in the table's order."""
    import pyarrow as pa

    return pa.chunked_array([_fitted(chunk, kind) for chunk in column.chunks], kind)


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if array.type.equals(kind, check_metadata=True):
        return array
    if not pa.types.is_struct(kind) or not pa.types.is_struct(array.type):
        return array.cast(kind)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    present = {array.type.field(index).name: index for index in range(array.type.num_fields)}
    children = [
        _fitted(array.field(present[child.name]), child.type)
        if child.name in present
        else pa.nulls(len(array), child.type)
        for child in fields
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _field_id(column: pa.Field) -> bytes:
    found: bytes = (column.metadata or {}).get(b"PARQUET:field_id", column.name.encode())
    return found


_UNSTATED = ("data", "headers_raw")


def open_writer(sink: Any, schema: pa.Schema) -> Any:
    """Return a writer of Parquet as our tables have it: no statistics and dictionaries of what never repeats."""
    from pyarrow import parquet

    stated = [column.name for column in schema if column.name not in _UNSTATED and not _is_nested(column.type)]
    repeated = [name for name in stated if name not in ("sequence", "timestamp")]
    nested = [path for column in schema if _is_nested(column.type) for path in _leaves(column)]
    return parquet.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        write_statistics=stated + nested,
        use_dictionary=repeated + nested,
        store_schema=False,
    )


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def _leaves(column: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the columns in Parquet of structs; what is inside of maps and lists has no statistics."""
    import pyarrow as pa

    path = f"{prefix}{column.name}"
    if pa.types.is_struct(column.type):
        for index in range(column.type.num_fields):
            yield from _leaves(column.type.field(index), f"{path}.")
    elif not pa.types.is_nested(column.type):
        yield path


def unmeasured_ids(schema: Any) -> Iterator[int]:
    """Yield the ids of the columns without statistics: raw bytes, and what is inside of maps and lists."""
    from pyiceberg.types import ListType, MapType, NestedField, StructType

    def inside(field_: NestedField, measured: bool) -> Iterator[int]:
        kind = field_.field_type
        if isinstance(kind, StructType):
            for child in kind.fields:
                yield from inside(child, measured)
        elif isinstance(kind, ListType):
            yield from inside(kind.element_field, False)
        elif isinstance(kind, MapType):
            yield from inside(kind.key_field, False)
            yield from inside(kind.value_field, False)
        elif not measured:
            yield field_.field_id

    for column in schema.columns:
        yield from inside(column, column.name not in _UNSTATED)


def iceberg_schema(columns: pa.Schema) -> Any:
    """Return the columns as Iceberg has them, without ids yet.

    Raises:
        ConfigError: Iceberg has no type for one.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow

    widened = pa.schema([column.with_type(_widened(column.type)) for column in columns])
    try:
        return visit_pyarrow(widened, _ConvertToIcebergWithoutIDs())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a column can't be stored in an Iceberg table: {_first_line(error)}") from None


def _widened(kind: pa.DataType) -> pa.DataType:
    """Return a type that Iceberg has and that holds every value of this one."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([child.with_type(_widened(child.type)) for child in fields])
    if pa.types.is_map(kind):
        return pa.map_(_widened(kind.key_type), _widened(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_widened(kind.value_type))
    if pa.types.is_integer(kind):
        is_small = kind.bit_width < 32 or (kind.bit_width == 32 and pa.types.is_signed_integer(kind))
        if kind == pa.uint64():
            return pa.decimal128(20, 0)
        return pa.int32() if is_small else pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return kind


def file_schema(table: Table) -> pa.Schema:
    """Return the columns of a table's files, with their ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table.schema(), include_field_ids=True)


def small_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with offsets of four bytes, as Spark's batches have them; ids stay."""
    import pyarrow as pa

    return pa.schema([_small_field(column) for column in schema])


def _small_field(column: pa.Field) -> pa.Field:
    return column.with_type(_small(column.type))


def _small(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return kind


def file_system(table: Table) -> tuple[fs.FileSystem, str]:
    """Return the file system of a table, and the path of its folder there."""
    scheme, netloc, path = table.io.parse_location(table.location())  # type: ignore[attr-defined]
    return table.io.fs_by_scheme(scheme, netloc), path.rstrip("/")  # type: ignore[attr-defined]


def _path_of(table: Table, location: str) -> str:
    return str(table.io.parse_location(location)[2])  # type: ignore[attr-defined]
