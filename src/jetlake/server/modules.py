"""The modules that the first stream and the first requests need.

Loading them takes several times as long as anything else at a start, and far longer on a busy machine. `jetlake serve`
greets clients first and loads them in steps between other work; `jetlake.Server` loads them before it starts, since
the loop is the program's.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from jetlake.store.steps import Steps

# In the order in which each takes little more than itself.
_MODULES = (
    "jetlake.model.stream",
    "jetlake.model.consumer",
    "jetlake.model.replies",
    "jetlake.model.api",
    "jetlake.store.files.own_files",
    "jetlake.store.files.folders",
    "jetlake.store.journal.file_journal",
    "jetlake.store.index.index",
    "jetlake.store.log.segment",
    "jetlake.store.log.log",
    "jetlake.store.log.compaction.compactor",
    "jetlake.store.file_store",
    "jetlake.store.stream_folder",
    "jetlake.server.engine.storage.folder_stream_storage",
    "jetlake.server.engine.schedule.schedules",
    "jetlake.server.engine.stream.publish",
    "jetlake.server.engine.stream.stream",
    "jetlake.server.engine.consumer.pull_delivery",
    "jetlake.server.engine.consumer.push_delivery",
    "jetlake.server.engine.consumer.consumer",
    "jetlake.server.engine.sourcing.sourcing",
    "jetlake.server.engine.api.stream_api",
    "jetlake.server.engine.api.consumer_api",
    "jetlake.server.engine.api.direct_get",
    "jetlake.server.engine.api.api",
)


@cache
def load() -> None:
    """Load all of them now; again, it costs nothing."""
    for _ in load_in_steps():
        pass


def load_in_steps() -> Steps[None]:
    """Load each module in a step of its own, then the codecs of requests."""
    for name in _MODULES:
        import_module(name)
        yield
    from jetlake.model.api import prepare_requests

    yield from prepare_requests()
