"""Inboxes for requests with more than one answer: `request_many`, `Answers` of one request, and inboxes of fetches.

A pooled inbox serves one fetch after another, so that a fetch costs neither SUB nor UNSUB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Receiver
from jetlake.client.settings.options import duration_s
from jetlake.errors import (
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    NoRespondersError,
    PermissionsError,
    RequestTimeoutError,
)
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection

_IDLE_MAX = 8

Sentinel = bool | Callable[[Message], bool]
"""True: an answer without payload is the last. A function: the answer that it says True of is the last."""


class Answers(Receiver):
    """The answers to one request; usable in a `with` block, which subscribes and unsubscribes.

    Args:
        connection: where the answers come from.
        during: what a lost connection cuts off, for the error.
    """

    __slots__ = ("_connection", "_during", "mailbox")

    def __init__(self, connection: Connection, during: str) -> None:
        super().__init__(new_inbox(connection.options.inbox_prefix).encode())
        self._connection = connection
        self._during = during
        self.mailbox = Mailbox(connection.loop)

    def __enter__(self) -> Answers:
        self._connection.subscribe(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.unsubscribe(self)

    def receive(self, messages: list[Message]) -> None:
        self.mailbox.put(messages)

    def ended(self, error: Exception | None) -> None:
        self.mailbox.end(error or ConnectionClosedError(f"the connection was closed during the {self._during}"))

    def disconnected(self) -> None:
        self.mailbox.end(DisconnectedError(f"the connection was lost during the {self._during}"))

    async def next(self, timeout_s: float, subject: str) -> Message:
        """Return the next answer.

        Args:
            timeout_s: how long the server may be silent.
            subject: where the request went, for the error.

        Raises:
            RequestTimeoutError: the server fell silent.
            DisconnectedError: the connection was lost.
        """
        mailbox = self.mailbox
        while not mailbox.messages:
            if mailbox.is_ended:
                raise mailbox.error or DisconnectedError(f"the {self._during} was cut off")
            try:
                async with asyncio.timeout(timeout_s):
                    await mailbox.wait()
            except TimeoutError:
                self._connection.suspect()
                raise RequestTimeoutError(f"no answer on {subject!r} within {timeout_s:g} s") from None
        return mailbox.messages.popleft()


class AnswerLimits(Struct, frozen=True):
    """When a request for many answers ends."""

    timeout_s: float
    max_messages: int | None
    stall_s: float | None
    is_last: Callable[[Message], bool] | None


def answer_limits(
    timeout_s: float, max_messages: int | None, stall: Seconds | None, sentinel: Sentinel
) -> AnswerLimits:
    """Check what `Client.request_many` was given.

    Raises:
        InvalidOptionError: an option that cannot work.
    """
    if max_messages is not None and (isinstance(max_messages, bool) or max_messages < 1):
        raise InvalidOptionError(f"max_messages must be 1 or more, not {max_messages!r}")
    stall_s = None if stall is None else duration_s("stall", stall)
    if stall_s is not None and stall_s <= 0:
        raise InvalidOptionError(f"stall must be more than 0 seconds, not {stall_s:g}")
    if not isinstance(sentinel, bool) and not callable(sentinel):
        raise InvalidOptionError(f"sentinel must be True, False or a function that takes a message, not {sentinel!r}")
    is_last = sentinel if callable(sentinel) else _is_empty if sentinel else None
    return AnswerLimits(timeout_s, max_messages, stall_s, is_last)


def _is_empty(message: Message) -> bool:
    return not message.payload


async def request_many(
    connection: Connection, subject: bytes, header: bytes, payload: bytes, limits: AnswerLimits
) -> AsyncIterator[Message]:
    """Publish a request and take its answers, until there are enough or no time is left.

    Raises:
        NoRespondersError: the subject has no subscriber.
        DisconnectedError: the connection was lost meanwhile.
    """
    now = connection.loop.time
    deadline = now() + limits.timeout_s
    with Answers(connection, "request") as answers:
        if header:
            connection.send(encoder.hpub(subject, answers.subject, header, payload))
        else:
            connection.send(encoder.pub(subject, answers.subject, payload))
        connection.end_turn()
        count = 0
        while count != limits.max_messages and (rest_s := deadline - now()) > 0:
            # How long the first answer takes says nothing about how far the others are behind it.
            wait_s = rest_s if limits.stall_s is None or not count else min(limits.stall_s, rest_s)
            try:
                message = await answers.next(wait_s, subject.decode())
            except RequestTimeoutError:
                return
            if message.status == 503 and not count:
                raise NoRespondersError(subject.decode())
            if message.status is not None or (limits.is_last is not None and limits.is_last(message)):
                return
            count += 1
            yield message


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
        """Learn that the server refused to publish to this subject."""

    def disconnected(self) -> None:
        """Learn that the connection was lost, and with it the answers."""


class PooledInbox(Receiver):
    """A wildcard inbox with at most one user at a time.

    A status has the user's own reply subject, so a late one of an earlier user is recognised. Messages have their
    stored subject and belong to the present user; an inbox whose user left before the server had ended the answers
    is therefore not used again.

    The timer serves one user after the other too, so that many short users start one timer.

    Attributes:
        user: the request that gets the messages; None between two.
    """

    __slots__ = ("_loop", "_next", "_prefix", "_timer", "user")

    def __init__(self, connection: Connection) -> None:
        self._loop = connection.loop
        self._timer: asyncio.TimerHandle | None = None
        self._prefix = new_inbox(connection.options.inbox_prefix).encode() + b"."
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
    """The subscribed inboxes of one connection that have no user."""

    __slots__ = ("_connection", "_idle")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
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
        inbox = PooledInbox(self._connection)
        self._connection.subscribe(inbox)
        inbox.user = user
        return inbox

    def put_back(self, inbox: PooledInbox, *, reusable: bool) -> None:
        """Return the inbox to the pool; one that the server may still send to is not used again."""
        inbox.user = None
        if reusable and len(self._idle) < _IDLE_MAX:
            self._idle.append(inbox)
        else:
            inbox.stop_timer()
            self._connection.unsubscribe(inbox)
