"""Inboxes that serve one request for many messages after another, so that each costs neither SUB nor UNSUB."""

from __future__ import annotations

import asyncio
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

    def receive_run(self, messages: list[Message]) -> None:
        """Take many messages of one read that all have a reply subject."""

    def check_deadline(self) -> None:
        """Check whether the deadline that `PooledInbox.call_at` was given has passed."""

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

    The timer serves one user after the other too, so that users that come and go many times before it is due start one.

    Args:
        loop: the event loop.
        inbox_prefix: the first tokens of the inbox.

    Attributes:
        user: the request that gets what comes; None between two.
    """

    __slots__ = ("_loop", "_next", "_prefix", "_timer", "user")

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox_prefix: str) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._prefix = new_inbox(inbox_prefix).encode() + b"."
        super().__init__(self._prefix + b"*")
        self._next = 0
        self.user: InboxUser | None = None

    def next_reply(self) -> bytes:
        """Return a reply subject for the next user."""
        self._next += 1
        return self._prefix + b"%d" % self._next

    def call_at(self, when: float) -> None:
        """Call `check_deadline` of the user then, and perhaps before: an earlier user's timer may still be set."""
        timer = self._timer
        if timer is None or timer.when() > when:
            self.stop_timer()
            self._timer = self._loop.call_at(when, self._timer_fired)

    def stop_timer(self) -> None:
        """Cancel the timer, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timer_fired(self) -> None:
        self._timer = None
        if self.user is not None:
            self.user.check_deadline()

    def receive(self, messages: list[Message]) -> None:
        if self.user is not None:
            self.user.receive(messages)

    def receive_run(self, messages: list[Message]) -> None:
        if self.user is not None:
            self.user.receive_run(messages)

    def ended(self, error: Exception | None) -> None:
        self.sid = b""
        self.stop_timer()
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
        loop: the event loop.
        inbox_prefix: the first tokens of every inbox.
        subscribe: subscribes a new inbox.
        unsubscribe: ends the subscription of an inbox that is not used again.
    """

    __slots__ = ("_idle", "_inbox_prefix", "_loop", "_subscribe", "_unsubscribe")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inbox_prefix: str,
        subscribe: Callable[[Receiver], None],
        unsubscribe: Callable[[Receiver], None],
    ) -> None:
        self._loop = loop
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
        inbox = PooledInbox(self._loop, self._inbox_prefix)
        self._subscribe(inbox)
        inbox.user = user
        return inbox

    def put_back(self, inbox: PooledInbox, *, reusable: bool) -> None:
        """Take the inbox from its user; one that the server may still send to is not used again."""
        inbox.user = None
        if reusable and len(self._idle) < _IDLE_MAX:
            self._idle.append(inbox)
        else:
            inbox.stop_timer()
            self._unsubscribe(inbox)
