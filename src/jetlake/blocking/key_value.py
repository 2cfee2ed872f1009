"""Blocking forms of key-value buckets and of watching them."""

from __future__ import annotations

from collections import deque

from jetlake.blocking.facade import Call, Facade, Made, View
from jetlake.blocking.stream import Stream
from jetlake.blocking.taking import ContinuousTaking
from jetlake.client.kv.bucket import KeyValue as AsyncKeyValue
from jetlake.client.kv.entry import Entry
from jetlake.client.kv.watch import KeyWatch as AsyncKeyWatch

__all__ = ["KeyValue", "KeyWatch"]


class KeyWatch(ContinuousTaking[Entry]):
    """The blocking form of `jetlake.client.kv.KeyWatch`: use it as a context manager and iterate over it."""

    _inner: AsyncKeyWatch

    stop = Call(AsyncKeyWatch.stop)

    def current(self) -> list[Entry]:
        """What there was when the watch began and was not taken yet; it may be nothing.

        Raises:
            ConsumeError: the watch ended.
        """
        # What an interrupted caller leaves behind is taken by the next one.
        self._thread.call(self._take_current())
        fresh: deque[Entry] = deque()
        entries = [*self._taken]
        self._taken = fresh
        return entries

    async def _take_current(self) -> None:
        self._taken.extend(await self._inner.current())


class KeyValue(Facade):
    """The blocking form of `jetlake.client.kv.KeyValue`."""

    _inner: AsyncKeyValue

    get = Call(AsyncKeyValue.get)
    keys = Call(AsyncKeyValue.keys)
    history = Call(AsyncKeyValue.history)
    watch = Made(AsyncKeyValue.watch, KeyWatch)
    status = Call(AsyncKeyValue.status)
    put = Call(AsyncKeyValue.put)
    create = Call(AsyncKeyValue.create)
    update = Call(AsyncKeyValue.update)
    delete = Call(AsyncKeyValue.delete)
    purge = Call(AsyncKeyValue.purge)
    purge_deletes = Call(AsyncKeyValue.purge_deletes)

    @property
    def stream(self) -> Stream:
        """The stream that holds it."""
        return Stream(self._inner.stream, self._thread)

    bucket = View[str]("The bucket's name.")
