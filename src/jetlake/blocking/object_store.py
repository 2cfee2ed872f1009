"""Blocking forms of object stores, of reading objects and of watching them."""

from __future__ import annotations

from typing import Self

from jetlake.blocking.facade import Call, Facade, Made, View
from jetlake.blocking.reading import ContinuousIterator, Watch, Watched
from jetlake.blocking.stream import Stream
from jetlake.client.objects.info import ObjectInfo
from jetlake.client.objects.reader import ObjectReader as AsyncObjectReader
from jetlake.client.objects.store import ObjectStore as AsyncObjectStore


class ObjectReader(ContinuousIterator[bytes]):
    """The blocking form of `jetlake.client.objects.ObjectReader`: use it as a context manager and iterate over it."""

    _inner: AsyncObjectReader

    stop = Call(AsyncObjectReader.stop)

    name = View[str]("The name that is read.")
    info = View[ObjectInfo]("The object that is read; behind a link, the one that the link leads to.")

    def start(self) -> Self:
        """Find the object and start; entering the context manager and iterating do it too.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the name is a link that cannot be followed, or chunks are missing.
        """
        self._thread.call(self._inner.start())
        return self

    def read(self) -> bytes:
        """Return all that is left of the content."""
        return b"".join(self)


class ObjectWatch(Watch[ObjectInfo]):
    """The blocking form of `jetlake.client.objects.ObjectWatch`: use it as a context manager and iterate over it."""


class ObjectStore(Facade):
    """The blocking form of `jetlake.client.objects.ObjectStore`."""

    _inner: AsyncObjectStore

    info = Call(AsyncObjectStore.info)
    get = Call(AsyncObjectStore.get)
    get_file = Call(AsyncObjectStore.get_file)
    open = Made(AsyncObjectStore.open, ObjectReader)
    list = Call(AsyncObjectStore.list)
    watch = Watched(AsyncObjectStore.watch, ObjectWatch)
    status = Call(AsyncObjectStore.status)
    put = Call(AsyncObjectStore.put)
    update_meta = Call(AsyncObjectStore.update_meta)
    add_link = Call(AsyncObjectStore.add_link)
    add_bucket_link = Call(AsyncObjectStore.add_bucket_link)
    delete = Call(AsyncObjectStore.delete)
    seal = Call(AsyncObjectStore.seal)
    purge_orphans = Call(AsyncObjectStore.purge_orphans)

    @property
    def stream(self) -> Stream:
        """The stream that holds it."""
        return Stream(self._inner.stream, self._thread)

    bucket = View[str]("The object store's name.")
