"""Commits a day of ten-second batches to an Iceberg table, and tells what the table's files become.

    python tests/faults/lake_day.py --commits 8640

The table's policy counts commits and snapshots, not hours, so that the day takes as long as its commits. Each has one
file of a hundred messages, as an archive with `--follow --every 10s` writes it.
"""

from __future__ import annotations

import argparse
import datetime
import random
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from jetlake.lake.catalogs import TableAddress
from jetlake.lake.columns import file_schema, file_system, open_writer, small_types
from jetlake.lake.iceberg import IcebergTable, Policy

ROWS = 100
COLUMNS = pa.schema(
    [
        ("stream", pa.string()),
        ("sequence", pa.int64()),
        ("subject", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=int, default=8640)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jetlake-lake-day-"))
    archived = IcebergTable(TableAddress(str(folder / "lake" / "orders")), "ARCHIVE")
    table = archived.create(COLUMNS, ["date"], "ORDERS")
    schema = small_types(file_schema(table))
    system, root = file_system(table)
    system.create_dir(f"{root}/data/ARCHIVE")
    policy = Policy()
    began = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)
    slowest_s = 0.0
    for batch in range(given.commits):
        first = batch * ROWS + 1
        rows = {
            "stream": ["ORDERS"] * ROWS,
            "sequence": range(first, first + ROWS),
            "subject": ["orders.new"] * ROWS,
            "timestamp": [began + datetime.timedelta(seconds=10 * batch)] * ROWS,
            "data": [random.randbytes(100) for _ in range(ROWS)],
        }
        path = f"data/ARCHIVE/{batch:08d}.parquet"
        with system.open_output_stream(f"{root}/{path}") as sink, open_writer(sink, schema) as writer:
            writer.write_table(pa.table(rows, schema))
        archived.append(batch, [f"{table.location()}/{path}"], first, first + ROWS - 1)
        if batch % policy.every == policy.every - 1:
            before_s = time.monotonic()
            archived.maintain(policy)
            slowest_s = max(slowest_s, time.monotonic() - before_s)
        if (batch + 1) % (given.commits // 6) == 0:
            tell(archived, folder, batch + 1, slowest_s)
    assert archived.require().scan().count() == given.commits * ROWS


def tell(archived: IcebergTable, folder: Path, commits: int, slowest_s: float) -> None:
    table = archived.require()
    files = [path for path in (folder / "lake").rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix == ".parquet"]
    metadata = [path for path in files if path.parent.name == "metadata"]
    live = table.inspect.files().num_rows
    kilobytes = sum(path.stat().st_size for path in metadata) // 1024
    print(
        f"{commits} commits: {live} live data files ({len(data)} on disk), {len(table.metadata.snapshots)} snapshots, "
        f"{len(metadata)} metadata files of {kilobytes} KiB, slowest maintenance {slowest_s:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
