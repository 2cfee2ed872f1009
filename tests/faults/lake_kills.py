"""Kills a typed archive again and again while messages come in and their type grows, then counts everything.

    python tests/faults/lake_kills.py --kills 50 --seed 1 --format iceberg

Every round starts `jetlake pipeline archive --follow`, publishes meanwhile, and kills the whole process group with
SIGKILL soon after a random step of its work: a batch is planned, written, noted, committed or finished, files merge, or
snapshots expire, of the table or of its rejects. Between rounds the payloads get new fields and wider numbers. At
the end one run archives the rest, `verify` compares table and stream, and in an Iceberg archive deletes what broken
attempts have left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
from pyarrow import dataset

import jetlake
from jetlake.lake.catalogs import open_catalog
from jetlake.testing import ports

JETLAKE = str(Path(sys.executable).with_name("jetlake"))
Generation = tuple[str, Callable[[int], dict[str, Any]]]
"""The schema by which messages are archived, and the message of a number."""
GENERATIONS: tuple[Generation, ...] = (
    ("id int, amount float", lambda number: {"id": number, "amount": number / 2}),
    ("id bigint, amount double", lambda number: {"id": number + (1 << 40), "amount": number / 3}),
    (
        "id bigint, amount double, customer struct<name: string, tags: array<string>>",
        lambda number: {"id": number, "amount": 1.5, "customer": {"name": f"c{number}", "tags": ["a", "b"]}},
    ),
)
BAD_EVERY = 37
ATTEMPTS_MAX = 5
COMMON_STEPS = {
    "planned": "orders/_jetlake/checkpoint/offsets/*",
    "noted": "orders/_jetlake/batches/*.json",
    "rejects noted": "orders_rejects/_jetlake/batches/*.json",
    "finished": "orders/_jetlake/checkpoint/commits/*",
}
STEPS = {
    "iceberg": {
        **COMMON_STEPS,
        "written": "orders/data/*/0*/*.parquet",
        "committing": "orders/metadata/*.avro",
        "committed": "orders/metadata/*.metadata.json",
        "rejects committing": "orders_rejects/metadata/*.avro",
        "rejects committed": "orders_rejects/metadata/*.metadata.json",
        "merged": "orders/data/*/merged/*.parquet",
        "expired": "orders/metadata/snap-*.avro",
    },
    "delta": {**COMMON_STEPS, "committed": "orders/_delta_log/*.json"},
    "parquet": {
        **COMMON_STEPS,
        "written": "orders/_jetlake/staging/*/**/*.parquet",
        "moved": "orders/date=*/*/*.parquet",
    },
}
"""The files of an archive by the step that makes them; the step `expired` deletes some."""
STEP_S = 30.0
"""How long a round waits for a step that need not come, such as a merge, once it has finished a batch."""
QUICK_JAVA = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Such a Java starts faster, and is killed before it would be slower."""


class Publisher(threading.Thread):
    """Publishes numbered messages until it is stopped; every now and then one that does not fit."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.generation = 0
        self.number = self.bad = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with await jetlake.connect(self.url) as client:
            js = client.jetstream()
            while not self.stopping.is_set():
                for _ in range(20):
                    self.number += 1
                    is_bad = self.number % BAD_EVERY == 0
                    self.bad += is_bad
                    body = b"{broken" if is_bad else json.dumps(GENERATIONS[self.generation][1](self.number)).encode()
                    await js.publish(f"orders.{self.number % 5}", body, headers={"N": str(self.number)})
                await asyncio.sleep(0.2)


def archive(url: str, lake: Path, format_name: str, schema: str, *more: str) -> list[str]:
    return [
        *(JETLAKE, "--server", url, "pipeline", "archive", "ORDERS", str(lake), "--format", format_name),
        *("--payload", "json", "--schema", schema, "--keep-raw", "--master", "local[2]"),
        *("--maintain-every", "2", "--keep-snapshots", "5", "--conf", QUICK_JAVA, *more),
    ]


def rows_of(lake: Path, format_name: str) -> int:
    """How many rows a table has, for a reader that knows nothing of the archive's notes."""
    if format_name == "iceberg":
        return open_catalog(lake.parent / "catalog.db").load_table(f"lake.{lake.name}").scan().count()
    if format_name == "delta":
        return deltalake.DeltaTable(lake).count()
    return dataset.dataset(lake, format="parquet", partitioning="hive").count_rows()


def kill_once(command: list[str], lake: Path, pattern: str, step: str, delay_s: float, log: Path) -> str:
    """Start the archive, kill it so long after it has begun a step, and say at which batch and after what.

    Empty when it ended by itself, as Spark does on a machine that is too busy to start its Python in time.
    """

    def files(pattern: str) -> set[Path]:
        return set(lake.parent.glob(pattern))

    def lock_made_ns() -> int:
        with suppress(OSError):
            return (lake / "_jetlake" / "lock.json").stat().st_mtime_ns
        return 0

    before_ns = lock_made_ns()
    finished = files(COMMON_STEPS["finished"])
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            deadline = time.monotonic() + 900  # Spark starts slowly on a machine that also does something else.
            while lock_made_ns() in (0, before_ns):
                if process.poll() is not None or time.monotonic() > deadline:
                    return ""
                time.sleep(0.1)
            seen = files(pattern)
            has_finished = False
            while time.monotonic() < deadline:
                now = files(pattern)
                if seen - now if step == "expired" else now - seen:
                    break
                # Files that appear meanwhile can go later.
                seen |= now
                if process.poll() is not None:
                    return ""
                if not has_finished and files(COMMON_STEPS["finished"]) - finished:
                    has_finished = True
                    deadline = time.monotonic() + STEP_S
                time.sleep(0.003)
            else:
                step = f"no sign of {step}"
            time.sleep(delay_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"{delay_s * 1000:.0f} ms after {step}, {where_cut(lake)}"


def where_cut(lake: Path) -> str:
    """What the files of the archive say about the batch that was cut off."""

    def last(step: str) -> int:
        names = (path.stem for path in lake.parent.glob(COMMON_STEPS[step]))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    planned, finished = last("planned"), last("finished")
    if planned == finished:
        return f"between batches {finished} and {finished + 1}"
    return f"in batch {planned}, {'after' if last('noted') >= planned else 'before'} its files were noted"


def wait_until_open(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=("iceberg", "delta", "parquet"), default="iceberg")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="jetlake-lake-kills-"))
    lake, log = folder / "lake" / "orders", folder / "archive.log"
    port = ports.free_port()
    url = f"nats://127.0.0.1:{port}"
    server = subprocess.Popen(
        [JETLAKE, "serve", "-js", "-sd", str(folder / "store"), "-a", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until_open(port)
        subprocess.run([JETLAKE, "--server", url, "stream", "add", "ORDERS", "--subjects", "orders.>"], check=True)
        publisher = Publisher(url)
        publisher.start()
        for round_ in range(given.kills):
            publisher.generation = min(round_ * len(GENERATIONS) // given.kills, len(GENERATIONS) - 1)
            schema = GENERATIONS[publisher.generation][0]
            command = archive(url, lake, given.format, schema, "--follow", "--every", "0s")
            steps = STEPS[given.format]
            # The first round waits for a batch, so that there is something to merge and expire.
            step = chance.choice(sorted(steps)) if round_ else "finished"
            delay_s = chance.choice((0.0, chance.random() * 0.02, chance.random() * 0.3))
            attempts = (kill_once(command, lake, steps[step], step, delay_s, log) for _ in range(ATTEMPTS_MAX))
            told = next(filter(None, attempts), "")
            if not told:
                raise RuntimeError(f"the archive ended by itself {ATTEMPTS_MAX} times; see {log}")
            print(f"kill {round_ + 1}: {told}; {publisher.number} messages", flush=True)
        publisher.stopping.set()
        publisher.join()
        subprocess.run(archive(url, lake, given.format, GENERATIONS[-1][0]), check=True)
        verify = [JETLAKE, "--server", url, "pipeline", "verify", "ORDERS", str(lake)]
        verify += ["--repair"] if given.format == "iceberg" else []
        told = subprocess.run(verify, check=True, capture_output=True, text=True).stdout
        print(told)
        good, rejects = (rows_of(folder, given.format) for folder in (lake, lake.with_name("orders_rejects")))
        same = int(re.findall(r"the same\D*([\d,]+)", told)[0].replace(",", ""))
        print(f"published {publisher.number}; in the table {good}, rejected {rejects} of {publisher.bad}; same {same}")
        if (good, rejects) != (publisher.number - publisher.bad, publisher.bad) or same != publisher.number:
            print("NOT every message is there once", file=sys.stderr)
            return 1
    finally:
        server.kill()
        server.wait()
    print(f"{given.kills} kills: every message is there once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
