"""Watching objects: what there is now, and every change from then on, in order and without gaps."""

from __future__ import annotations

from jetlake.client.objects.info import ObjectInfo
from jetlake.client.ordered.watch import Watch

__all__ = ["ObjectWatch"]


class ObjectWatch(Watch[ObjectInfo]):
    """The objects of an object store, without end; made by `ObjectStore.watch`.

    Use it as an async context manager and iterate over it; with a handler, wait on `wait()`. The objects that are there
    when it begins come first; `current` takes just those. It survives lost connections and restarted servers, and ends
    with an error when the object store does.
    """

    __slots__ = ()
