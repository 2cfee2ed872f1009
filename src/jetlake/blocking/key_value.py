"""Blocking forms of key-value buckets and of watching them."""

from __future__ import annotations

from jetlake.blocking.facade import Call, Facade, View
from jetlake.blocking.stream import Stream
from jetlake.blocking.watching import Watch, Watched
from jetlake.client.kv.bucket import KeyValue as AsyncKeyValue
from jetlake.client.kv.codecs import KeyCodec, ValueCodec
from jetlake.client.kv.entry import Entry

__all__ = ["KeyValue", "KeyWatch"]


class KeyWatch(Watch[Entry]):
    """The blocking form of `jetlake.client.kv.KeyWatch`: use it as a context manager and iterate over it."""


class KeyValue(Facade):
    """The blocking form of `jetlake.client.kv.KeyValue`."""

    _inner: AsyncKeyValue

    get = Call(AsyncKeyValue.get)
    keys = Call(AsyncKeyValue.keys)
    history = Call(AsyncKeyValue.history)
    watch = Watched(AsyncKeyValue.watch, KeyWatch)
    status = Call(AsyncKeyValue.status)
    put = Call(AsyncKeyValue.put)
    create = Call(AsyncKeyValue.create)
    update = Call(AsyncKeyValue.update)
    delete = Call(AsyncKeyValue.delete)
    purge = Call(AsyncKeyValue.purge)
    purge_deletes = Call(AsyncKeyValue.purge_deletes)

    def with_codec(self, *, keys: KeyCodec | None = None, values: ValueCodec | None = None) -> KeyValue:
        """The same bucket through codecs, as `jetlake.client.kv.KeyValue.with_codec`."""
        return KeyValue(self._inner.with_codec(keys=keys, values=values), self._thread)

    @property
    def stream(self) -> Stream:
        """The stream that holds it."""
        return Stream(self._inner.stream, self._thread)

    bucket = View[str]("The bucket's name.")
