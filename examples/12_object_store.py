"""Files in an object store: put from a path, read back into another, list what is there."""

import asyncio
import os
import tempfile
from pathlib import Path

import jetlake


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, copy = Path(folder, "source"), Path(folder, "copy")
        source.write_bytes(os.urandom(300_000))
        async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
            js = nc.jetstream()
            store = await js.create_object_store("FILES")
            info = await store.put("old.bin", source)
            print(f"stored {info.size} bytes in {info.chunks} chunks")
            await store.get_file("old.bin", copy)
            print("copied:", copy.read_bytes() == source.read_bytes())
            await store.put("new.bin", iter([b"made ", b"of ", b"pieces"]))
            print(", ".join([info.name for info in await store.list()]), "left")
            await js.delete_object_store("FILES")


asyncio.run(main())
