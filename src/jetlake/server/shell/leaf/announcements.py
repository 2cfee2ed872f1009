"""Announcements: the interest of one account, counted, as hubs are told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.interest import queue_of
from jetlake.server.engine.routing.remote import Remote

__all__ = ["Announcements"]

Listener = Callable[[bytes, bytes, int], None]
"""Called with subject, queue group and the number of recipients; 0 = the last one is gone."""


class Announcements:
    """The recipients in one account, by subject and queue group; interest of other servers does not count.

    Args:
        account: followed from the construction on.
        skipped: subjects with this prefix stay here; empty = none.

    Attributes:
        loop_subject: a subject of this account alone: a hub that announces it back is part of a loop.
    """

    def __init__(self, account: Account, skipped: bytes) -> None:
        self.loop_subject = b"$LDS." + next_nuid().encode()
        self._skipped = skipped
        self._counts: dict[tuple[bytes, bytes], int] = {}
        self._listeners: list[Listener] = []
        self.added(self.loop_subject, b"")
        for interest in account.interests():
            if not isinstance(interest, Remote):
                self.added(interest.subject, queue_of(interest))
        for subject in account.js.subjects() if account.js is not None else ():
            self.added(subject, b"")
        account.observer = self

    def added(self, subject: bytes, queue: bytes) -> None:
        """Count one more recipient; the first one, and each member of a queue group, is announced."""
        if self._skipped and subject.startswith(self._skipped):
            return
        count = self._counts.get((subject, queue), 0) + 1
        self._counts[subject, queue] = count
        if count == 1 or queue:
            self._tell(subject, queue, count)

    def removed(self, subject: bytes, queue: bytes) -> None:
        """Count one recipient less; the last one, and each member of a queue group, is announced."""
        count = self._counts.get((subject, queue), 0) - 1
        if count < 0:
            return
        if count:
            self._counts[subject, queue] = count
        else:
            del self._counts[subject, queue]
        if not count or queue:
            self._tell(subject, queue, count)

    def _tell(self, subject: bytes, queue: bytes, count: int) -> None:
        for listener in self._listeners:
            listener(subject, queue, count)

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Return all subjects with their queue groups and numbers of recipients."""
        return ((subject, queue, count) for (subject, queue), count in self._counts.items())

    def follow(self, listener: Listener) -> None:
        """Call the listener with every change from now on."""
        self._listeners.append(listener)

    def unfollow(self, listener: Listener) -> None:
        """Call the listener no more."""
        self._listeners.remove(listener)
