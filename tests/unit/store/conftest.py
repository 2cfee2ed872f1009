"""Both stores, as one fixture: every test of the contract runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.memory_store import MemoryStore
from jetlake.store.message_store import MessageStore


def compress_eagerly(store: FileStore) -> None:
    """Compress every full segment with the flush that follows it, in small blocks, whatever it saves."""
    store.compresses = True
    store._compressor.block_bytes = 100
    store._compressor.worth_it = 10
    flush = store.flush

    def flush_and_compress() -> None:
        flush()
        store.sync()
        while store._compressor.step():
            store._compressor.write()

    store.flush = flush_and_compress  # type: ignore[method-assign]


@pytest.fixture(params=["memory", "file", "file-small-segments", "file-compressed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    segment_bytes = 8 << 20 if request.param == "file" else 1000
    file_store = FileStore(RealDisk(), tmp_path / "msgs", segment_bytes=segment_bytes)
    if request.param == "file-compressed":
        compress_eagerly(file_store)
    yield file_store
    file_store.close()
