"""Write what this release stores, for later releases to open: `python -m tests.formats.write_formats 0.1.0`.

A folder of a server that was killed (with its redo log), one of a server that was stopped, a backup, and offsets of a
Spark checkpoint, each with what must be found in it. Files of a release are written once and never again.
"""

import asyncio
import io
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import jetlake
from jetlake.client.tables.planning import StreamOffset
from jetlake.client.tables.spark_offsets import Offset
from jetlake.server import Server
from tests.formats.contents import describe

HERE = Path(__file__).parent
AGES_S = 50 * 365 * 86400


def pack(folder):
    """Return a folder as a small archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.suffix not in (".lock", ".pid"):
                archive.add(path, path.relative_to(folder), recursive=False)
    return packed.getvalue()


async def fill(js):
    orders = await js.create_stream("ORDERS", subjects=["orders.>"], duplicate_window=AGES_S)
    for number in range(200):
        await js.publish(f"orders.{number % 7}", b"order %d" % number, msg_id=f"o{number}", headers={"n": str(number)})
    await orders.purge(before=20)
    await orders.delete_message(50)
    worker = await orders.create_consumer("worker", ack_wait=AGES_S)
    for message in await worker.fetch(30, expires=1):
        if message.metadata.stream_seq % 2:
            await message.ack_sync()
    queue = await js.create_stream("JOBS", subjects=["jobs.*"], retention="workqueue")
    await queue.create_consumer("pool", ack_wait=AGES_S)
    packed = await js.create_stream("PACKED", subjects=["packed.*"], compression="s2", max_msgs_per_subject=5)
    del packed
    bucket = await js.create_key_value("settings", history=3)
    await js.create_counters("HITS", subjects=["hits.>"])
    counters = await js.counters("HITS")
    for number in range(20):
        await js.publish("jobs.a", b"job %d" % number)
        await js.publish(f"packed.{number % 2}", bytes(200))
        await bucket.put(f"key.{number % 3}", b"value %d" % number)
        await counters.add("hits.page", number)
    await bucket.delete("key.1")
    for message in await (await queue.consumer("pool")).fetch(5, expires=1):
        await message.ack_sync()
    await js.create_stream("COPY", mirror="ORDERS")
    return orders


async def share_redo_log(js, store):
    """Keep streams busy together until they share the redo log."""
    bucket, counters = await js.key_value("settings"), await js.counters("HITS")
    for more in (100, 3):
        for _ in range(more):
            await asyncio.gather(
                *(js.publish(f"{name}.z", b"together") for name in ("orders", "jobs", "packed") for _ in range(5)),
                *(bucket.put(f"busy.{number}", b"together") for number in range(5)),
                *(counters.add("hits.busy", 1) for _ in range(5)),
            )
            if more > 3 and any(path.name == "redo.made" for path in store.rglob("redo*")):
                break


async def write(release):
    folder = HERE / release
    folder.mkdir()
    store = Path(tempfile.mkdtemp())
    try:
        async with Server(store) as server, jetlake.connect(server.url) as nc:
            js = nc.jetstream()
            orders = await fill(js)
            while (await (await js.stream("COPY")).info()).state.last_seq < (await orders.info()).state.last_seq:
                await asyncio.sleep(0.01)
            await share_redo_log(js, store)
            # A kill leaves what is on the disk at this moment: every answer was for something that is there.
            (folder / "killed.tar.xz").write_bytes(pack(store))
            while (await (await js.stream("COPY")).info()).state.last_seq < (await orders.info()).state.last_seq:
                await asyncio.sleep(0.01)
            await orders.backup(folder / "backup")
            expected = await describe(js)
        (folder / "stopped.tar.xz").write_bytes(pack(store))
    finally:
        shutil.rmtree(store)
    offset = Offset((("ORDERS", StreamOffset("2026-11-18T00:00:00Z", 77, seen=(90, "2026-11-18T01:00:00Z"))),))
    expected["offset"] = offset.to_json()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
