"""Inboxes that serve one request for many messages after another, so that each costs neither SUB nor UNSUB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Receiver
from jetlake.errors import PermissionsError
from jetlake.protocol.nuid import new_inbox

__all__ = ["InboxPool", "InboxUser", "PooledInbox"]

_IDLE_MAX = 8


class InboxUser(Protocol):
    """A request whose answers come to a pooled inbox."""

    def receive(self, messages: list[Message]) -> None:
        """Take the messages of one read."""

    def ended(self, error: Exception | None) -> None:
        """End: no more answers will come, for the connection is closed, or the server refuses the inbox."""

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        """Take note that the server refused to publish to this subject."""

    def disconnected(self) -> None:
        """Take note that the connection was lost, and with it the answers."""


class PooledInbox(Receiver):
    """A wildcard inbox with at most one user at a time.

    Statuses come to the user's own reply subject under the inbox, so a late one of an earlier user is recognised.
    Messages carry their stored subject and belong to the present user; an inbox whose user left before the server had
    ended the answers is therefore not used again.

    Attributes:
        user: the request that gets what comes; None between two.
    """

    __slots__ = ("_next", "_prefix", "user")

    def __init__(self, inbox_prefix: str) -> None:
        self._prefix = new_inbox(inbox_prefix).encode() + b"."
        super().__init__(self._prefix + b"*")
        self._next = 0
        self.user: InboxUser | None = None

    def next_reply(self) -> bytes:
        """Return a reply subject for the next user."""
        self._next += 1
        return self._prefix + b"%d" % self._next

    def receive(self, messages: list[Message]) -> None:
        if self.user is not None:
            self.user.receive(messages)

    def ended(self, error: Exception | None) -> None:
        self.sid = b""
        if self.user is not None:
            self.user.ended(error)

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        if self.user is not None:
            self.user.forbidden(subject, error)

    def disconnected(self) -> None:
        if self.user is not None:
            self.user.disconnected()


class InboxPool:
    """The subscribed inboxes of one connection that have no user.

    Args:
        inbox_prefix: the first tokens of every inbox.
        subscribe: subscribes a new inbox.
        unsubscribe: ends the subscription of an inbox that is not used again.
    """

    __slots__ = ("_idle", "_inbox_prefix", "_subscribe", "_unsubscribe")

    def __init__(
        self, inbox_prefix: str, subscribe: Callable[[Receiver], None], unsubscribe: Callable[[Receiver], None]
    ) -> None:
        self._inbox_prefix = inbox_prefix
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._idle: list[PooledInbox] = []

    def take(self, user: InboxUser) -> PooledInbox:
        """Give the user an inbox, subscribed.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        while self._idle:
            inbox = self._idle.pop()
            if inbox.sid:
                inbox.user = user
                return inbox
        inbox = PooledInbox(self._inbox_prefix)
        self._subscribe(inbox)
        inbox.user = user
        return inbox

    def put_back(self, inbox: PooledInbox, *, reusable: bool) -> None:
        """Take the inbox from its user; one that the server may still send to is not used again."""
        inbox.user = None
        if reusable and len(self._idle) < _IDLE_MAX:
            self._idle.append(inbox)
        else:
            self._unsubscribe(inbox)
