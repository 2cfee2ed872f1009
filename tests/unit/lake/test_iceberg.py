from __future__ import annotations

import datetime
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Transaction
from sqlalchemy.exc import OperationalError

from jetlake.errors import ConfigError, LakeError
from jetlake.lake.catalogs import TableAddress
from jetlake.lake.columns import file_schema, file_system, open_writer, small_types
from jetlake.lake.iceberg import ARCHIVE, IcebergTable, Policy, current_files, is_part_of, named_files, plan_merges

COLUMNS = pa.schema(
    [
        ("stream", pa.string()),
        ("sequence", pa.int64()),
        ("subject", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("data", pa.binary()),
    ]
)
NOON = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)


@pytest.fixture
def archived(tmp_path):
    return new(tmp_path, "ARCHIVE1")


def new(folder, archive, **options):
    return IcebergTable(TableAddress(str(folder / "lake" / "orders")), archive, sleep=lambda _: None, **options)


def add(archived, batch, first, end, *, day=0, columns=COLUMNS):
    """Write the file of a batch and commit it."""
    table = archived.create(columns, ["date"], f"OF_{archived.archive}")
    path = written(archived, table, batch, first, end, day)
    return archived.append(batch, [path], first, end - 1)


def written(archived, table, batch, first, end, day=0):
    rows = [
        {
            "stream": "ORDERS",
            "sequence": sequence,
            "subject": "orders.new",
            "timestamp": NOON + datetime.timedelta(days=day),
            "headers": [("N", [str(sequence)])],
            "data": b"%d" % sequence,
        }
        for sequence in range(first, end)
    ]
    schema = small_types(file_schema(table))
    system, root = file_system(table)
    path = f"data/{archived.archive}/{batch:08d}/{random.getrandbits(40):x}.parquet"
    system.create_dir(f"{root}/{path}".rpartition("/")[0])
    with system.open_output_stream(f"{root}/{path}") as sink, open_writer(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return f"{table.location()}/{path}"


def sequences(archived):
    return sorted(archived.require().scan().to_arrow()["sequence"].to_pylist())


def on_disk(archived):
    root = file_system(archived.require())[1]
    return {f"file://{path}" for path in map(str, Path(root).rglob("*")) if Path(path).is_file()}


def test_a_batch_is_committed_once(archived):
    for _ in range(3):
        table = add(archived, 0, 1, 11)
    assert sequences(archived) == list(range(1, 11))
    facts = table.current_snapshot().summary.additional_properties
    assert facts["jetlake.batch"] == "0"
    assert (facts["jetlake.first-sequence"], facts["jetlake.last-sequence"]) == ("1", "10")
    (field,) = (field for field in table.spec().fields)
    assert (field.name, str(field.transform)) == ("date", "day")
    (file,) = table.inspect.files().to_pylist()
    measured = {name for name, column in file["readable_metrics"].items() if column["lower_bound"] is not None}
    assert measured == {"stream", "sequence", "subject", "timestamp"}


def test_a_stream_has_one_archive_in_a_table(archived, tmp_path, monkeypatch):
    add(archived, 0, 1, 11)
    second = new(tmp_path, "ARCHIVE2")
    with pytest.raises(ConfigError, match="stream OF_ARCHIVE1 from another archive"):
        second.create(COLUMNS, ["date"], "OF_ARCHIVE1")
    # Nor when both claim it at once.
    commit = Transaction.commit_transaction

    def claimed_before(transaction):
        monkeypatch.undo()
        new(tmp_path, "ARCHIVE3").create(COLUMNS, ["date"], "B")
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", claimed_before)
    with pytest.raises(ConfigError, match="stream B from another archive"):
        second.create(COLUMNS, ["date"], "B")
    with pytest.raises(ConfigError, match="stream B from another archive"):
        second.create(COLUMNS, ["date"], "B")
    assert sorted(second.require().properties[key] for key in second.require().properties if ARCHIVE in key) == [
        "B",
        "OF_ARCHIVE1",
    ]


def test_another_writer_that_commits_in_between_is_kept(archived, tmp_path, monkeypatch):
    add(archived, 0, 1, 11)
    other = new(tmp_path, "ARCHIVE2")
    attempts = []
    built = IcebergTable.last_batch

    def meanwhile(self, table):
        # Behind the look at the table, and before the commit.
        if self is archived and len(attempts) < 2:
            attempts.append(1)
            add(other, len(attempts), 100 * len(attempts), 100 * len(attempts) + 5)
        return built(self, table)

    monkeypatch.setattr(IcebergTable, "last_batch", meanwhile)
    add(archived, 1, 11, 21)
    add(archived, 1, 11, 21)
    assert len(attempts) == 2
    assert sequences(archived) == [*range(1, 21), *range(100, 105), *range(200, 205)]


def test_a_lingering_process_does_not_commit_a_batch_twice(archived, tmp_path, monkeypatch):
    """Two processes hold the same batch: the second finds it when its commit meets the first one's."""
    add(archived, 0, 1, 11)
    twin = new(tmp_path, archived.archive)
    built = IcebergTable.last_batch
    done = []

    def meanwhile(self, table):
        found = built(self, table)
        if self is archived and not done:
            done.append(add(twin, 1, 11, 21))
        return found

    monkeypatch.setattr(IcebergTable, "last_batch", meanwhile)
    add(archived, 1, 11, 21)
    assert sequences(archived) == list(range(1, 21))


@pytest.mark.parametrize(
    ("said", "attempts", "told"),
    [
        ("database or disk is full", 1, "disk is full.*it resumes with this batch"),
        ("database is locked", 20, "is locked.*it resumes with this batch"),
    ],
)
def test_a_catalog_that_cannot_be_written_is_told(archived, monkeypatch, said, attempts, told):
    add(archived, 0, 1, 11)
    path = written(archived, archived.require(), 1, 11, 21)
    tried = []

    def commit(self):
        tried.append(1)
        raise OperationalError("UPDATE iceberg_tables", {}, sqlite3.OperationalError(said))

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit_transaction", commit)
        with pytest.raises(LakeError, match=told):
            archived.append(1, [path], 11, 20)
    assert len(tried) == attempts
    archived.append(1, [path], 11, 20)
    assert sequences(archived) == list(range(1, 21))


def test_a_catalog_that_another_process_holds_is_waited_for(archived):
    add(archived, 0, 1, 11)
    path = written(archived, archived.require(), 1, 11, 21)
    holder = sqlite3.connect(archived.address.catalog_file, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.3, holder.close).start()
    archived.append(1, [path], 11, 20)
    assert sequences(archived) == list(range(1, 21))


def test_writers_in_parallel_lose_nothing(tmp_path):
    first = new(tmp_path, "W0")
    add(first, 0, 1, 2)
    failed = []

    def write(number):
        mine = IcebergTable(first.address, f"W{number}")
        try:
            for batch in range(1, 6):
                add(mine, batch, 1000 * number + batch, 1000 * number + batch + 1)
        except LakeError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sequences(first) == sorted([1, *(1000 * n + b for n in range(3) for b in range(1, 6))])


def test_a_batch_is_known_although_its_snapshot_has_expired(archived, tmp_path):
    add(archived, 0, 1, 11)
    other = new(tmp_path, "ARCHIVE2")
    for batch in range(5):
        add(other, batch, 100 + batch, 101 + batch)
    table = archived.require()
    snapshot = next(
        s for s in table.metadata.snapshots if s.summary.additional_properties.get("jetlake.archive") == "ARCHIVE1"
    )
    archived.expire(2)
    table = archived.require()
    assert table.snapshot_by_id(snapshot.snapshot_id) is None
    assert archived.last_batch(table) == 0
    assert is_part_of(table, snapshot.snapshot_id, snapshot.sequence_number)
    add(archived, 0, 1, 11)
    assert sequences(archived) == [*range(1, 11), *range(100, 105)]


def test_a_table_that_was_rolled_back_lacks_the_batch(archived):
    first = add(archived, 0, 1, 11).current_snapshot()
    second = add(archived, 1, 11, 21).current_snapshot()
    table = archived.require()
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    table = archived.require()
    assert archived.last_batch(table) == 0
    assert is_part_of(table, first.snapshot_id, first.sequence_number)
    assert not is_part_of(table, second.snapshot_id, second.sequence_number)


def test_small_files_become_one_and_old_snapshots_go(archived):
    for batch in range(12):
        add(archived, batch, 10 * batch + 1, 10 * batch + 11, day=batch // 8)
    merged = archived.compact(1 << 20)
    assert (merged.files_before, merged.files_after) == (12, 2)
    assert sequences(archived) == list(range(1, 121))
    expired = archived.expire(1)
    assert expired.snapshots == 13
    table = archived.require()
    assert sequences(archived) == list(range(1, 121))
    rows = table.scan(row_filter="timestamp >= '2026-11-19T00:00:00+00:00'").to_arrow()
    assert rows.num_rows == 40
    assert archived.last_batch(table) == 11
    # What is on disk is what the table names, and the metadata before it.
    named = named_files(table, table.metadata.snapshots) | {table.metadata_location}
    named |= {entry.metadata_file for entry in table.metadata.metadata_log}
    assert on_disk(archived) - named == set()
    add(archived, 11, 111, 121)
    assert sequences(archived) == list(range(1, 121))


def test_merges_take_files_of_one_size(archived):
    for batch in range(6):
        add(archived, batch, 10 * batch + 1, 10 * batch + 11)
    table = archived.require()
    assert plan_merges(table, 1 << 20, merge_min=10, tiered=True) == []
    assert [len(group) for group in plan_merges(table, 1 << 20, merge_min=6, tiered=True)] == [6]
    archived.compact(1 << 20, merge_min=6, tiered=True)
    add(archived, 6, 61, 40_000)
    assert plan_merges(archived.require(), 1 << 20, merge_min=2, tiered=True) == []
    assert len(plan_merges(archived.require(), 1 << 20, merge_min=2, tiered=False)) == 1


def test_a_file_that_is_gone_when_it_is_merged_is_left_alone(archived, monkeypatch):
    for batch in range(3):
        add(archived, batch, 10 * batch + 1, 10 * batch + 11)
    merge = IcebergTable._merge

    def meanwhile(self, group):
        with self.require().transaction() as change, change.update_snapshot().overwrite() as rewritten:
            rewritten.delete_data_file(group[0])
        return merge(self, group)

    monkeypatch.setattr(IcebergTable, "_merge", meanwhile)
    assert archived.compact(1 << 20).files_after == 0
    assert sequences(archived) == list(range(11, 31))
    assert archived.orphans() == []


def test_metadata_stays_small_while_commits_go_on(archived):
    policy = Policy(every=10, snapshots=5, merge_min=5, target_bytes=1 << 20)
    sizes = []
    for batch in range(40):
        add(archived, batch, batch + 1, batch + 2)
        if batch % policy.every == policy.every - 1:
            archived.maintain(policy)
            table = archived.require()
            sizes.append((len(table.metadata.snapshots), len(on_disk(archived))))
    assert sequences(archived) == list(range(1, 41))
    assert {snapshots for snapshots, _ in sizes} == {5}
    assert sizes[-1][1] <= sizes[1][1] + 5


def test_columns_are_added_and_widened_and_never_narrowed(archived, caplog):
    value = pa.struct([("id", pa.int32()), ("price", pa.float32())])
    add(archived, 0, 1, 3, columns=COLUMNS.append(pa.field("value", value)))
    wider = pa.struct([("id", pa.int64()), ("price", pa.float64()), ("note", pa.string()), ("x", pa.list_(pa.int8()))])
    table = add(archived, 1, 3, 5, columns=COLUMNS.append(pa.field("value", wider)))
    found = table.scan().to_arrow().schema.field("value").type
    assert [(found.field(i).name, str(found.field(i).type)) for i in range(3)] == [
        ("id", "int64"),
        ("price", "double"),
        ("note", "large_string"),
    ]
    for changed in (pa.struct([("id", pa.string())]), pa.struct([("id", pa.list_(pa.int64()))])):
        with pytest.raises(ConfigError, match=r"can't become those .* The table has .*value struct"):
            archived.evolve(COLUMNS.append(pa.field("value", changed)))
    # A merge writes the columns of today, and what is inside of lists needs no statistics.
    archived.compact(1 << 20)
    assert sequences(archived) == [1, 2, 3, 4]
    assert caplog.messages == []


@pytest.mark.parametrize("address", [{"folder": "/a#b"}, {"folder": "s3://bucket/x"}, {"folder": "/a", "table": "x"}])
def test_what_is_no_address_of_a_table(address):
    with pytest.raises(ConfigError):
        TableAddress(**address)


def test_names_of_tables(tmp_path):
    assert TableAddress("/data/lake/2026-orders/").name == "lake._2026_orders"
    assert TableAddress("s3a://b/x", "rest", "a.b.c").identifier == ("a", "b", "c")
    assert TableAddress("s3a://b/x", "rest", "a.b.c").location == "s3://b/x"
    (tmp_path / "catalog.db").write_text("no database")
    with pytest.raises(ConfigError, match="can't be opened"):
        TableAddress(str(tmp_path / "x")).open_catalog()


def test_nothing_is_imported_before_it_is_used():
    program = "import sys, jetlake.lake.iceberg, jetlake.cli.commands.pipeline; print('pyiceberg' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_a_merge_whose_outcome_is_unknown_loses_nothing(archived, monkeypatch):
    for batch in range(3):
        add(archived, batch, 10 * batch + 1, 10 * batch + 11)
    commit = type(archived.catalog).commit_table

    def cut_off(self, *arguments):
        monkeypatch.undo()
        commit(self, *arguments)
        raise CommitStateUnknownException("504 Gateway Timeout")

    monkeypatch.setattr(type(archived.catalog), "commit_table", cut_off)
    archived.compact(1 << 30)
    assert sequences(archived) == list(range(1, 31))
    assert len(current_files(archived.require())) == 1


def test_a_file_that_is_gone_before_it_is_committed_is_named(archived):
    add(archived, 0, 1, 11)
    path = written(archived, archived.require(), 1, 11, 21)
    Path(path.removeprefix("file://")).unlink()
    with pytest.raises(LakeError, match=r"a file of table lake\.orders is gone"):
        archived.append(1, [path], 11, 20)


def test_a_table_whose_metadata_is_gone_is_told(archived):
    add(archived, 0, 1, 11)
    Path(archived.require().metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(LakeError, match=r"the catalog has table lake\.orders, but .* is gone: .* another table"):
        archived.create(COLUMNS, ["date"], "OF_ARCHIVE1")


def test_keys_are_as_the_last_batch_says_whatever_the_catalog_answers(tmp_path, monkeypatch):
    """Batches, merges, expiries, repairs, over commits that are refused, and others that are made and not answered."""
    chance = random.Random(3)
    kept = new(tmp_path, "KEPT")
    columns = pa.schema([("key", pa.string()), ("revision", pa.int64())])
    kept.create(columns, [], "KV_PRICES")
    commit = type(kept.catalog).commit_table

    def unsure(self, *arguments):
        outcome = chance.random()
        if outcome < 0.1:
            raise CommitFailedException("409 Conflict")
        answer = commit(self, *arguments)
        if outcome < 0.3:
            raise CommitStateUnknownException("504 Gateway Timeout")
        return answer

    monkeypatch.setattr(type(kept.catalog), "commit_table", unsure)
    expected = {}
    for batch in range(12):
        keys = chance.sample([f"k{number}" for number in range(12)], 6)
        put = keys[: chance.randrange(7)]
        for _ in range(2):
            kept.upsert(batch, pa.table([put, [batch] * len(put)], columns), pa.array(keys))
        expected = {key: revision for key, revision in expected.items() if key not in keys} | dict.fromkeys(put, batch)
        if batch % 3 == 2:
            kept.maintain(Policy(every=1, snapshots=2, merge_min=2))
            gone = sorted(expected)[:1]
            kept.upsert(None, None, pa.array(gone, pa.string()))
            expected = {key: revision for key, revision in expected.items() if key not in gone}
            for path in kept.orphans():
                kept.require().io.delete(path)
        rows = kept.require().scan().to_arrow().to_pylist()
        assert sorted((row["key"], row["revision"]) for row in rows) == sorted(expected.items())
