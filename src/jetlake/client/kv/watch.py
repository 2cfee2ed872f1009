"""Watching keys: what they are now, and every change from then on, in order and without gaps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

from jetlake.client.kv.entry import Entry, from_delivery
from jetlake.client.messages.message import Message
from jetlake.client.ordered.ordered_consume import OrderedConsume
from jetlake.errors import RequestTimeoutError
from jetlake.model.encoding.durations import Seconds

__all__ = ["KeyWatch"]

_LOOK_FIRST_S = 0.1
_LOOK_MAX_S = 2.0


class KeyWatch:
    """The entries of some keys, without end; made by `KeyValue.watch`.

    Use it as an async context manager and iterate over it. What the keys are when it begins comes first; `current`
    takes just that. It survives lost connections and restarted servers, and ends with an error when the bucket does.
    """

    __slots__ = ("_bucket", "_ignores_deletes", "_is_current", "_prefix_length", "_reading")

    def __init__(self, bucket: str, prefix: str, reading: OrderedConsume, *, ignore_deletes: bool) -> None:
        self._bucket = bucket
        self._prefix_length = len(prefix)
        self._reading = reading
        self._ignores_deletes = ignore_deletes
        self._is_current = False

    def __repr__(self) -> str:
        return f"<KeyWatch of {self._bucket!r}{' ended' if self._reading.is_stopped else ''}>"

    def start(self) -> Self:
        """Begin; entering the context manager, `current` and iterating do it too."""
        self._reading.start()
        return self

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the watch, and with it the loops that iterate."""
        await self._reading.stop()

    async def current(self) -> list[Entry]:
        """What there was when the watch began and was not taken yet; it may be nothing.

        Raises:
            ConsumeError: the watch ended.
        """
        entries: list[Entry] = []
        self.start()
        if not await self._reading.pending_at_start():
            self._is_current = True
        wait_s = _LOOK_FIRST_S
        while not self._is_current:
            try:
                entry = self._entry(await self._reading.next(wait_s))
            except RequestTimeoutError:
                # What was counted at the start may have been purged or have expired since.
                self._is_current = await self._reading.is_caught_up()
                wait_s = min(_LOOK_MAX_S, wait_s * 2)
                continue
            wait_s = _LOOK_FIRST_S
            if self._wants(entry):
                entries.append(entry)
        return entries

    async def next(self, timeout: Seconds | None = None) -> Entry:
        """The next entry.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConsumeError: the watch ended.
        """
        while True:
            entry = self._entry(await self._reading.next(timeout))
            if self._wants(entry):
                return entry

    async def next_batch(self) -> list[Entry]:
        """All entries that are there, at least one; an empty list once it was stopped.

        Raises:
            ConsumeError: the watch ended.
        """
        while messages := await self._reading.next_batch():
            entries = [entry for entry in map(self._entry, messages) if self._wants(entry)]
            if entries:
                return entries
        return []

    async def __aiter__(self) -> AsyncIterator[Entry]:
        async for message in self._reading:
            entry = self._entry(message)
            if self._wants(entry):
                yield entry

    def _entry(self, message: Message) -> Entry:
        entry = from_delivery(self._bucket, self._prefix_length, message)
        if not entry.pending:
            self._is_current = True
        return entry

    def _wants(self, entry: Entry) -> bool:
        return not (self._ignores_deletes and entry.is_deleted)
