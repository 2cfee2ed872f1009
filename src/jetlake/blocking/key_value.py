"""Blocking forms of key-value buckets and of watching them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from jetlake.blocking.facade import Call, Facade, Made
from jetlake.client.kv.bucket import KeyValue as AsyncKeyValue
from jetlake.client.kv.entry import Entry
from jetlake.client.kv.watch import KeyWatch as AsyncKeyWatch
from jetlake.errors import ConnectionClosedError

__all__ = ["KeyValue", "KeyWatch"]


class KeyWatch(Facade):
    """The blocking form of `jetlake.client.kv.KeyWatch`: use it as a context manager and iterate over it."""

    _inner: AsyncKeyWatch

    current = Call(AsyncKeyWatch.current)
    next = Call(AsyncKeyWatch.next)
    next_batch = Call(AsyncKeyWatch.next_batch)
    stop = Call(AsyncKeyWatch.stop)

    def start(self) -> Self:
        """Begin; entering the context manager, `current` and iterating do it too."""

        async def start() -> None:
            self._inner.start()

        self._thread.call(start())
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        except ConnectionClosedError:
            pass

    def __iter__(self) -> Iterator[Entry]:
        while entries := self.next_batch():
            yield from entries


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
    def bucket(self) -> str:
        """The bucket's name."""
        return self._inner.bucket
