"""A process that commits to an Iceberg table, merges and expires, and is killed: every batch is there once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

from jetlake.lake.catalogs import TableAddress
from jetlake.lake.iceberg import IcebergTable

WRITER = """
import sys
import pyarrow as pa
from jetlake.lake.catalogs import TableAddress
from jetlake.lake.columns import file_schema, file_system, open_writer, small_types
from jetlake.lake.iceberg import IcebergTable, Policy
columns = pa.schema([("stream", pa.string()), ("sequence", pa.int64())])
archived = IcebergTable(TableAddress(sys.argv[1]), "ARCHIVE")
table = archived.create(columns, [], "ORDERS")
schema = small_types(file_schema(table))
system, root = file_system(table)
done = archived.last_batch(table)
for batch in range(0 if done is None else done + 1, 1000):
    path = f"data/ARCHIVE/{batch:08d}/rows.parquet"
    system.create_dir(f"{root}/{path}".rpartition("/")[0])
    numbers = range(10 * batch + 1, 10 * batch + 11)
    with system.open_output_stream(f"{root}/{path}") as sink, open_writer(sink, schema) as writer:
        writer.write_table(pa.table({"stream": ["ORDERS"] * 10, "sequence": numbers}, schema))
    for _ in range(2):
        archived.append(batch, [f"{table.location()}/{path}"], numbers[0], numbers[-1])
    if batch % 3 == 2:
        archived.maintain(Policy(every=3, snapshots=3, merge_min=2))
    print(batch, flush=True)
"""


def test_a_killed_writer_leaves_every_batch_once(tmp_path):
    folder = str(tmp_path / "lake" / "orders")
    chance = random.Random(1)
    told = -1
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE, text=True)
        for _ in range(chance.randrange(3, 7)):
            told = int(writer.stdout.readline())
        # Somewhere within the next commit or merge.
        time.sleep(chance.random() * 0.1)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    archived = IcebergTable(TableAddress(folder), "ARCHIVE")
    table = archived.require()
    last = archived.last_batch(table)
    assert last >= told
    for path in archived.orphans():
        table.io.delete(path)
    found = sorted(archived.require().scan().to_arrow()["sequence"].to_pylist())
    assert found == list(range(1, 10 * last + 11))
    assert archived.orphans() == []


KEEPER = """
import sys
import pyarrow as pa
from jetlake.lake.catalogs import TableAddress
from jetlake.lake.iceberg import IcebergTable, Policy
columns = pa.schema([("key", pa.string()), ("value", pa.binary()), ("revision", pa.int64())])
kept = IcebergTable(TableAddress(sys.argv[1]), "BUCKET")
done = kept.last_batch(kept.create(columns, [], "KV_PRICES"))
for batch in range(0 if done is None else done + 1, 1000):
    keys = [f"k{(batch * 7 + step) % 20}" for step in range(6)]
    rows = pa.table([keys[:4], [b"%d" % batch] * 4, [batch] * 4], columns)
    for _ in range(2):
        kept.upsert(batch, rows, pa.array(keys))
    if batch % 3 == 2:
        kept.maintain(Policy(every=3, snapshots=3, merge_min=2))
    print(batch, flush=True)
"""


def test_a_killed_keeper_of_newest_values_leaves_each_key_as_it_was(tmp_path):
    """A batch gives four keys a value and takes it from two: the table is what its last batch says."""
    folder = str(tmp_path / "lake" / "prices")
    chance = random.Random(2)
    told = -1
    for _ in range(4):
        keeper = subprocess.Popen([sys.executable, "-c", KEEPER, folder], stdout=subprocess.PIPE, text=True)
        for _ in range(chance.randrange(3, 7)):
            told = int(keeper.stdout.readline())
        time.sleep(chance.random() * 0.1)
        keeper.send_signal(signal.SIGKILL)
        keeper.communicate()
    kept = IcebergTable(TableAddress(folder), "BUCKET")
    last = kept.last_batch(kept.require())
    assert last >= told
    expected = {}
    for batch in range(last + 1):
        keys = [f"k{(batch * 7 + step) % 20}" for step in range(6)]
        expected |= dict.fromkeys(keys[:4], (b"%d" % batch, batch))
        for key in keys[4:]:
            expected.pop(key, None)
    table = kept.require()
    for path in kept.orphans():
        table.io.delete(path)
    rows = kept.require().scan().to_arrow().to_pylist()
    assert len(rows) == len(expected)
    assert {row["key"]: (row["value"], row["revision"]) for row in rows} == expected
