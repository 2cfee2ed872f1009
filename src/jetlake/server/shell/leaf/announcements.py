"""Announcements: the interest of one account, counted, as the servers at the other ends of its links know it.

Always true: a link gets the recipients on this server, and the ones behind every link that is no peer of it (see
`RemoteLink.peers`); what a server has announced is never announced back to it.

    hub A      hub B          links to hubs are peers: A is notified of nothing that B wants, as both may be one cluster
       \\      /
        server --- clients
       /      \\
    leaf C     leaf D         C is notified of all that A, B, the clients and D want; A of what clients, C and D want

Loop subjects (`$LDS.`) pass between peers too: they are how a server learns that it hears itself.

Of the reply subjects of requests across accounts (`_R_.<prefix>.<token>`) only the prefix is announced: the token is
known to those who were sent the request, and to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.interest import queue_of
from jetlake.server.engine.routing.remote import Remote, RemoteLink

__all__ = ["HUBS", "LOOP_PREFIX", "Announcements", "LeafAccounts"]

HUBS = "hubs"
"""What `peers` is for all links to hubs; no cluster has this name, because clusters are distinguished by a tuple."""
LOOP_PREFIX = b"$LDS."
_REPLY_PREFIX = b"_R_."

Listener = Callable[[bytes, bytes, int], None]
"""Called with subject, queue group and the number of recipients; 0 = the last one is gone."""


class _Follower(Struct, frozen=True):
    """A link that is notified of changes."""

    listener: Listener
    is_isolated: bool
    """It gets nothing of the other leaf nodes' interest."""


class Announcements:
    """The recipients in one account, by subject and queue group, on this server and behind its links.

    Args:
        account: followed from the construction on.
        skipped: subjects with this prefix stay here; empty = none.

    Attributes:
        loop_subject: a subject of this account alone: a server that announces it back is part of a loop.
    """

    def __init__(self, account: Account, skipped: bytes) -> None:
        self.loop_subject = LOOP_PREFIX + next_nuid().encode()
        self._skipped = skipped
        self._near: dict[tuple[bytes, bytes], int] = {}
        self._far: dict[tuple[bytes, bytes], _Far] = {}
        self._followers: dict[RemoteLink, _Follower] = {}
        self.added(self.loop_subject, b"")
        for interest in account.interests():
            if not isinstance(interest, Remote):
                self.added(interest.subject, queue_of(interest))
        for subject in account.js.subjects() if account.js is not None else ():
            self.added(subject, b"")
        account.observer = self

    # Recipients on this server

    def added(self, subject: bytes, queue: bytes) -> None:
        """Count one more recipient; the first one, and each member of a queue group, is announced."""
        if self._skipped and subject.startswith(self._skipped):
            return
        subject = _announced(subject, queue)
        self._near[subject, queue] = self._near.get((subject, queue), 0) + 1
        self._tell(subject, queue, 1, None)

    def removed(self, subject: bytes, queue: bytes) -> None:
        """Count one recipient less; the last one, and each member of a queue group, is announced."""
        subject = _announced(subject, queue)
        count = self._near.get((subject, queue), 0) - 1
        if count < 0:
            return
        if count:
            self._near[subject, queue] = count
        else:
            del self._near[subject, queue]
        self._tell(subject, queue, -1, None)

    def is_answer_here(self, subject: bytes) -> bool:
        """Return whether a consumer on this server takes the subject as an acknowledgement, or for flow control."""
        tokens = subject.split(b".")
        forms = (
            b".".join([*tokens[:4], *[b"*"] * 5]),  # $JS.ACK.<stream>.<consumer>.…
            b".".join([*tokens[:6], *[b"*"] * 4, b">"]),  # $JS.ACK.<domain>.<account>.<stream>.<consumer>.…
            b".".join([*tokens[:-1], b"*"]),  # $JS.FC.<stream>.<consumer>.…
        )
        return any((form, b"") in self._near for form in forms)

    # Recipients behind a link

    def weigh(self, subject: bytes, queue: bytes, link: RemoteLink, change: int) -> None:
        """Count recipients behind a link: this many more, or with a negative number less."""
        if not change or (self._skipped and subject.startswith(self._skipped)):
            return
        source = _source(subject, link)
        far = self._far.get((subject, queue))
        if far is None:
            far = self._far[subject, queue] = _Far()
        far.add(source, change)
        if not far.counts:
            del self._far[subject, queue]
        self._tell(subject, queue, change, source)

    # Which links hear of an interest

    def follow(self, link: RemoteLink, listener: Listener, *, is_isolated: bool = False) -> None:
        """Call the listener with every change for this link from now on."""
        self._followers[link] = _Follower(listener, is_isolated)

    def unfollow(self, link: RemoteLink) -> None:
        """Tell this link no more."""
        self._followers.pop(link, None)

    def all_for(self, link: RemoteLink, *, is_isolated: bool = False) -> Iterator[tuple[bytes, bytes, int]]:
        """Return all subjects that the link is notified of, with their queue groups and numbers of recipients."""
        for key in {**self._near, **self._far}:
            count = self._count_for(key, link, is_isolated)
            if count:
                yield *key, count

    def _tell(self, subject: bytes, queue: bytes, change: int, source: object) -> None:
        for link, follower in list(self._followers.items()):
            if source is not None and not _hears(subject, link, source, follower.is_isolated):
                continue
            count = self._count_for((subject, queue), link, follower.is_isolated)
            if queue or (count > 0) != (count - change > 0):
                follower.listener(subject, queue, count)

    def _count_for(self, key: tuple[bytes, bytes], link: RemoteLink, is_isolated: bool) -> int:
        count = self._near.get(key, 0)
        far = self._far.get(key)
        if far is None:
            return count
        if is_isolated and not key[0].startswith(LOOP_PREFIX):
            return count + far.counts.get(HUBS, 0)
        return count + far.total - far.counts.get(_source(key[0], link), 0)


class _Far:
    """The recipients of one subject behind links, by source; the total saves a sum for each of many links."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[object, int] = {}
        self.total = 0

    def add(self, source: object, change: int) -> None:
        self.total += change
        count = self.counts.get(source, 0) + change
        if count:
            self.counts[source] = count
        else:
            self.counts.pop(source, None)


def _announced(subject: bytes, queue: bytes) -> bytes:
    """Return the subject that is announced for the one that is subscribed to."""
    if not queue and subject.startswith(_REPLY_PREFIX):
        prefix, dot, _ = subject[len(_REPLY_PREFIX) :].partition(b".")
        if dot:
            return _REPLY_PREFIX + prefix + b".>"
    return subject


def _source(subject: bytes, link: RemoteLink) -> object:
    """Return under what the interest behind a link is counted: its peers', or for a loop subject its own."""
    return link if subject.startswith(LOOP_PREFIX) else link.peers


def _hears(subject: bytes, link: RemoteLink, source: object, is_isolated: bool) -> bool:
    """Return whether the link is notified of what this source wants."""
    if source == _source(subject, link):
        return False
    return not is_isolated or source == HUBS or subject.startswith(LOOP_PREFIX)


class LeafAccounts:
    """The announcements of each account, from its first leaf connection on.

    Args:
        system_account: the name of the account whose subjects below `$SYS.` cross as well.
    """

    def __init__(self, system_account: str) -> None:
        self._system_account = system_account
        self._by_name: dict[str, Announcements] = {}

    def of(self, account: Account) -> Announcements:
        """Return the announcements of an account."""
        found = self._by_name.get(account.name)
        if found is None:
            # Every server answers for itself on these; only the system account of a hub asks all.
            skipped = b"" if account.name == self._system_account else b"$SYS."
            found = self._by_name[account.name] = Announcements(account, skipped)
        return found
