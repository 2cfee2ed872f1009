"""The pin of a consumer's pinned client, kept in the consumer's record."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.server.engine.core.commit import Commit, Syncable

__all__ = ["StoredPin"]


class StoredPin:
    """A pin that survives a restart.

    Args:
        id: the pin in the record; empty = no client is pinned.
        pinned_ns: when the client was pinned.
        save: saves the consumer's record.
        place: what is durable once the record is; None in memory.
        commit: tells when that is.
    """

    def __init__(
        self, id: str, pinned_ns: int, save: Callable[[], None], place: Syncable | None, commit: Commit
    ) -> None:
        self.id = id
        self.pinned_ns = pinned_ns
        self._save = save
        self._place = place
        self._commit = commit

    def set(self, id: str, pinned_ns: int, on_stored: Callable[[], None]) -> None:
        """Replace the pin; `on_stored` is called when it is on disk, or the disk has refused it.

        A refused record is reported and written again by the commit; the client need not wait for that.
        """
        self.id, self.pinned_ns = id, pinned_ns
        self._save()
        if self._place is None:
            on_stored()
        else:
            self._commit.when_durable(self._place, lambda _error: on_stored())
