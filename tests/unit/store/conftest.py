"""Both stores, as one fixture: every test of the contract runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.interface import MessageStore
from jetlake.store.memory_store import MemoryStore


@pytest.fixture(params=["memory", "file", "file-small-segments"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    segment_bytes = 1000 if request.param == "file-small-segments" else 8 << 20
    file_store = FileStore(RealDisk(), tmp_path / "msgs", segment_bytes=segment_bytes)
    yield file_store
    file_store.close()
