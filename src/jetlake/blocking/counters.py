"""The blocking form of counters."""

from __future__ import annotations

from jetlake.blocking.facade import Call, Collect, Facade
from jetlake.blocking.stream import Stream
from jetlake.client.counters.counters import Counters as AsyncCounters


class Counters(Facade):
    """The blocking form of `jetlake.client.counters.Counters`."""

    _inner: AsyncCounters

    add = Call(AsyncCounters.add)
    get = Call(AsyncCounters.get)
    entry = Call(AsyncCounters.entry)
    entries = Collect(AsyncCounters.entries)

    @property
    def stream(self) -> Stream:
        """The stream that holds them."""
        return Stream(self._inner.stream, self._thread)
