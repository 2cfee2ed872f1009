"""Iceberg tables through pyiceberg: commits that happen once, and the maintenance that keeps a table small.

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
from typing import TYPE_CHECKING, Any, NamedTuple

from jetlake.errors import ConfigError, LakeError
from jetlake.lake.catalogs import TableAddress, first_line
from jetlake.lake.columns import (
    file_system,
    iceberg_schema,
    merge_files,
    path_of,
    unmeasured_ids,
    write_rows,
    write_without,
)

if TYPE_CHECKING:
    import pyarrow as pa
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
_COMMITS_MAX = 20
_RETRY_WAIT_S = 0.05
_RETRY_WAIT_MAX_S = 2.0
# What SQLite says of a catalog that no retry can write.
_UNWRITABLE = re.compile(r"disk is full|readonly database|unable to open database|disk I/O error|malformed")
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
        except FileNotFoundError as error:
            raise LakeError(
                f"the catalog has table {self.address.name}, but the table's metadata is gone: {first_line(error)}. "
                "Bring it back, or archive into another table"
            ) from None
        except Exception as error:
            raise LakeError(f"table {self.address.name} can't be read: {first_line(error)}") from None

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
            ConfigError: the table is not one of ours, is cut another way, or has the stream from another archive.
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
            self._require_sole(table, stream)
            table = self.change(lambda change: change.set_properties({mine: stream}))
            try:
                # Commits of properties alone do not conflict, so two archives may claim the stream at once.
                self._require_sole(table, stream)
            except ConfigError:
                self.change(lambda change: change.remove_properties(mine))
                raise
        return self.evolve(columns)

    def _require_sole(self, table: Table, stream: str) -> None:
        mine = f"{ARCHIVE}.{self.archive}"
        if any(
            key.startswith(f"{ARCHIVE}.") and key != mine and table.properties[key] == stream
            for key in table.properties
        ):
            raise ConfigError(
                f"table {self.address.name} has the messages of stream {stream} from another archive, and would have "
                "them twice: continue that archive in its folder, or choose another table"
            )

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
        by = "sequence" if "sequence" in schema.column_names else "revision"
        order = SortOrder(SortField(schema.find_field(by).field_id, IdentityTransform()))
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
                f"the columns of table {self.address.name} can't become those of the messages: {first_line(error)}. "
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

    def upsert(self, batch: int | None, rows: pa.Table | None, keys: pa.Array) -> Table:
        """Replace the rows of some keys by others, in one snapshot, unless the table has the batch.

        Files that hold none of the keys stay; each of the others becomes one without them.

        Args:
            batch: the number that the snapshot records; None for a repair.
            rows: the keys' new rows; None for none.
            keys: all keys whose rows go.

        Raises:
            LakeError: as in `append`.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        facts = {COMPACTION: self.archive} if batch is None else {ARCHIVE: self.archive, BATCH: str(batch)}
        # Data files never change, so a file rewritten for a refused attempt serves the next one.
        rewritten: dict[str, str | None] = {}
        added: list[str] = []

        def rewrite(table: Table, file: DataFile) -> str | None:
            path = self._fresh_path()
            system, root = file_system(table)
            kept = write_without(table, file.file_path, keys, f"{root}/{path}")
            if kept is None:
                return None
            if not kept:
                system.delete_file(f"{root}/{path}")
                return ""
            return f"{table.location().rstrip('/')}/{path}"

        def replace(change: Any, table: Table) -> bool:
            done = self.last_batch(table)
            if batch is not None and done is not None and done >= batch:
                return False
            if rows is not None and len(rows) and not added:
                fresh = self._fresh_path()
                write_rows(table, rows, f"{file_system(table)[1]}/{fresh}")
                added.append(f"{table.location().rstrip('/')}/{fresh}")
            files = current_files(table)
            for file in files:
                if file.file_path not in rewritten:
                    rewritten[file.file_path] = rewrite(table, file)
            going = [file for file in files if rewritten[file.file_path] is not None]
            coming = [*added, *filter(None, (rewritten[file.file_path] for file in going))]
            if batch is not None:
                change.set_properties({f"{BATCH}.{self.archive}": str(batch)})
            if not going and not coming:
                return batch is not None
            with change.update_snapshot(snapshot_properties=facts).overwrite() as changed:
                for file in going:
                    changed.delete_data_file(file)
                for path in coming:
                    changed.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
            return True

        return self._commit(replace)

    def _fresh_path(self) -> str:
        return f"data/{self.archive}/{random.getrandbits(64):016x}.parquet"

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
            LakeError: it was refused too often, or a file is gone.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServiceUnavailableError
        from requests.exceptions import ConnectionError as CutOffError
        from sqlalchemy.exc import OperationalError

        wait_s = _RETRY_WAIT_S
        last: Exception | None = None
        for _ in range(_COMMITS_MAX):
            table = self.require()
            # In this object alone: retries are made here, where the batch is looked for again.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            change = table.transaction()
            try:
                if not build(change, table):
                    return table
            except FileNotFoundError as error:
                raise LakeError(f"a file of table {self.address.name} is gone: {first_line(error)}") from None
            try:
                change.commit_transaction()
                return self.require()
            except (CommitFailedException, CommitStateUnknownException) as error:
                last = error
            except (OperationalError, ServiceUnavailableError, CutOffError) as error:
                # The catalog's database is held by another process or can't be written, or the catalog is away.
                last = error
                if _UNWRITABLE.search(str(error)):
                    break
            self.sleep(wait_s * (0.5 + random.random() / 2))
            wait_s = min(wait_s * 2, _RETRY_WAIT_MAX_S)
        reason = first_line(last) if last is not None else "no answer"
        advice = f"{_COMMITS_MAX} attempts met other writers; run it again when there are fewer"
        if not isinstance(last, CommitFailedException):
            advice = (
                "The batch is kept aside: when the catalog can be written, run it again, and it resumes with this batch"
            )
        raise LakeError(f"table {self.address.name} could not be committed to: {reason}. {advice}")

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
            # An attempt whose outcome was unknown may have been committed.
            if target in {file.file_path for file in current_files(found)}:
                return False
            with change.update_snapshot(snapshot_properties={COMPACTION: self.archive}).overwrite() as rewritten:
                for file in group:
                    rewritten.delete_data_file(file)
                rewritten.append_data_file(parquet_file_to_data_file(found.io, found.metadata, target))
            return True

        try:
            self._commit(replace)
        except ValidationException:
            # Another writer has replaced or deleted one of these files meanwhile.
            table = self.require()
            if target not in named_files(table, table.metadata.snapshots):
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
    """Yield the current snapshot and its ancestors, as far as the table knows them."""
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
        only: leave out the files of streams that no archive of the table has, too; these rows belong to another writer.
    """
    others = neighbours(table, stream)
    found = {}
    for file in current_files(table):
        low, high = _bounds(table, file, "stream")
        may_hold = low is None or high is None or low <= stream.encode() <= high
        is_foreign = not may_hold and not any(low <= other.encode() <= high for other in others)
        if may_hold or (is_foreign and not only):
            found[path_of(table, file.file_path)] = file.file_size_in_bytes
    return found


def _bounds(table: Table, file: DataFile, column: str) -> tuple[Any, Any]:
    if column not in table.schema().column_names:
        return None, None
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
