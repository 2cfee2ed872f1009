"""Watching keys: what they are now, and every change from then on, in order and without gaps."""

from __future__ import annotations

from jetlake.client.kv.entry import Entry
from jetlake.client.ordered.watch import Watch

__all__ = ["KeyWatch"]


class KeyWatch(Watch[Entry]):
    """The entries of some keys, without end; made by `KeyValue.watch`.

    Use it as an async context manager and iterate over it; with a handler, wait on `wait()`. What the keys are when it
    begins comes first; `current` takes just that. It survives lost connections and restarted servers, and ends with an
    error when the bucket does.
    """

    __slots__ = ()
