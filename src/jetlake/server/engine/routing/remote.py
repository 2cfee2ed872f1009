"""The interest of other servers, and the way of messages to it: one copy to each server, for all that matches there.

The reasons are in decision 25 (docs/decisions).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence

from jetlake.server.engine.routing.subscription import Message, Subscriber

__all__ = ["Remote", "RemoteLink", "RemoteRoute"]


class RemoteLink(Subscriber):
    """The connection to another server, as accounts know it: where messages go to, and the origin of those from it."""

    @property
    def peers(self) -> object:
        """The links that exchange nothing with each other, this one among them, have the same value here.

        All hubs of a server, and the leaf nodes of one cluster, reach each other without this server.
        """
        return self

    def takes(self, address: bytes) -> bool:
        """Return whether messages for the subscribers of this subject may be sent to the server now."""
        return True

    @abstractmethod
    def forward(self, address: bytes, messages: list[Message], queues: list[bytes]) -> int:
        """Send a run of messages for the subscribers of `address`, and for a member of each of the queue groups.

        Returns:
            How many messages, counted from the first, were sent.
        """


class Remote:
    """The interest of another server in a subject.

    Attributes:
        queue: the queue group; empty = every message is wanted.
        weight: how many members the group has there.
    """

    __slots__ = ("active", "link", "queue", "subject", "weight")

    def __init__(self, subject: bytes, link: RemoteLink, queue: bytes, weight: int) -> None:
        self.subject = subject
        self.link = link
        self.queue = queue
        self.weight = weight
        self.active = True


class RemoteRoute:
    """The servers that want the messages of one subject.

    Args:
        remotes: their interest.
        near: the queue groups that have members on this server, which go first.

    Attributes:
        lead: the first of the remotes, by which a message is forwarded that meets each of them.
        recipients: number of servers and groups beyond this server that get a copy.
    """

    __slots__ = ("_far", "_groups", "_plain", "lead", "recipients")

    def __init__(self, remotes: Sequence[Remote], near: Collection[bytes]) -> None:
        self.lead = remotes[0]
        plain: dict[RemoteLink, None] = {}
        groups: dict[bytes, list[Remote]] = {}
        for remote in remotes:
            if remote.queue:
                groups.setdefault(remote.queue, []).append(remote)
            else:
                plain[remote.link] = None
        self._plain = tuple(plain)
        self._groups = groups
        self._far = [queue for queue in groups if queue not in near]
        self.recipients = len(self._plain) + len(self._far)

    @property
    def congested(self) -> bool:
        """Whether a server that wants every message cannot take more for now, or all of a group."""
        if any(link.congested for link in self._plain):
            return True
        return any(all(remote.link.congested for remote in self._groups[queue]) for queue in self._far)

    def deliver(
        self,
        random: Callable[[], float],
        address: bytes,
        messages: list[Message],
        origin: Subscriber | None,
        refused: Iterable[bytes] = (),
    ) -> int:
        """Send a run of messages to the servers, never to the one it came from, nor to its peers.

        Args:
            refused: groups of which no member on this server could take the message.

        Returns:
            How many messages, counted from the first, were sent to a server.
        """
        peers = origin.peers if isinstance(origin, RemoteLink) else None
        chosen: dict[RemoteLink, list[bytes]] = {link: [] for link in self._plain if link.peers != peers}
        wanted = origin.groups if origin is not None else None
        for queue in (*self._far, *refused):
            if queue in self._groups and (wanted is None or queue in wanted):
                link = self._choose(queue, address, peers, random)
                if link is not None:
                    chosen.setdefault(link, []).append(queue)
        return max((link.forward(address, messages, queues) for link, queues in chosen.items()), default=0)

    def _choose(self, queue: bytes, address: bytes, peers: object, random: Callable[[], float]) -> RemoteLink | None:
        """Draw a server that has members of the group and may be sent the message, by their number."""
        remotes = [
            remote for remote in self._groups[queue] if remote.link.peers != peers and remote.link.takes(address)
        ]
        remotes = [remote for remote in remotes if not remote.link.congested] or remotes
        left = random() * sum(remote.weight for remote in remotes)
        for remote in remotes:
            left -= remote.weight
            if left < 0:
                return remote.link
        return remotes[-1].link if remotes else None
