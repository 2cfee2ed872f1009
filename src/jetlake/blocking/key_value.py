"""Blocking forms of key-value buckets and of watching them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from jetlake.blocking.facade import Call, Facade, Made, View
from jetlake.blocking.reading import Watch, Watched
from jetlake.blocking.stream import Stream, table_read
from jetlake.client.kv.bucket import KeyValue as AsyncKeyValue
from jetlake.client.kv.codecs import KeyCodec, ValueCodec
from jetlake.client.kv.entry import Entry

if TYPE_CHECKING:
    from pyarrow import Table as ArrowTable

DefaultT = TypeVar("DefaultT")


class KeyWatch(Watch[Entry]):
    """The blocking form of `jetlake.client.kv.KeyWatch`: use it as a context manager and iterate over it."""


class KeyValue(Facade):
    """The blocking form of `jetlake.client.kv.KeyValue`."""

    _inner: AsyncKeyValue

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

    table = Made(AsyncKeyValue.table, table_read)

    @overload
    def get(self, key: str, *, revision: int = 0, leader: bool = False) -> Entry: ...

    @overload
    def get(self, key: str, *, revision: int = 0, leader: bool = False, default: DefaultT) -> Entry | DefaultT: ...

    def get(self, key: str, *, revision: int = 0, leader: bool = False, default: Any = ...) -> Any:
        """Return the value of a key, as `jetlake.client.kv.KeyValue.get`.

        Raises:
            KeyNotFoundError: there is none, or it was deleted, and no default was given.
        """
        return self._thread.call(self._inner.get(key, revision=revision, leader=leader, default=default))

    def to_arrow(self, *patterns: str, **options: Any) -> ArrowTable:
        """Return the values of keys as a `pyarrow.Table`: `table(…).to_arrow()`."""
        return self.table(*patterns, **options).to_arrow()

    def to_polars(self, *patterns: str, **options: Any) -> Any:
        """Return the values of keys as a polars DataFrame: `table(…).to_polars()`."""
        return self.table(*patterns, **options).to_polars()

    def to_pandas(self, *patterns: str, **options: Any) -> Any:
        """Return the values of keys as a pandas DataFrame: `table(…).to_pandas()`."""
        return self.table(*patterns, **options).to_pandas()

    def with_codec(self, *, keys: KeyCodec | None = None, values: ValueCodec | None = None) -> KeyValue:
        """Return the same bucket through codecs, as `jetlake.client.kv.KeyValue.with_codec`."""
        return KeyValue(self._inner.with_codec(keys=keys, values=values), self._thread)

    @property
    def stream(self) -> Stream:
        """The stream that holds it."""
        return Stream(self._inner.stream, self._thread)

    bucket = View[str]("The bucket's name.")
