"""The executor's half of reading, as far as it is about the process that it runs in."""

import pytest

from jetlake.client.tables.planning import ReadPartition
from jetlake.spark import garbage
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source import executor


@pytest.mark.parametrize(("is_worker", "times"), [(True, 1), (False, 0)])
def test_a_worker_spares_its_imports_once(monkeypatch, is_worker, times):
    frozen = []
    monkeypatch.setattr(garbage.gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(garbage.TaskContext, "get", lambda: object() if is_worker else None)
    garbage.spare_imports.cache_clear()
    partition = ReadPartition(stream="S", first=1, end=2, subjects=(), reader="consumer")
    for _ in range(2):
        executor.read_partition(partition, None, SourceOptions.of({"stream": "S"}))
    garbage.spare_imports.cache_clear()
    assert len(frozen) == times
