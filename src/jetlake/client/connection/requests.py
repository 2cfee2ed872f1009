"""Requests and their answers: one wildcard inbox and one timer for all, one future for each.

A request that may safely be sent twice is repeated after half of its time or 2.5 s, whichever is less, then at doubled
intervals, and on the next connection when one is lost: a server of a cluster that dies or freezes loses the requests
that it has not passed on. All others fail when the connection is lost: whether they arrived is unknown.

`_waiting` has one entry for each request without an outcome, by the last token of its reply subject. One timer fires at
the earliest deadline or repetition of all; it may fire for a request that is answered meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jetlake.client.connection.outbox import check_loop
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.errors import (
    AckRefusedError,
    BadHeaderError,
    ClientConnectionError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    OutboundBufferFullError,
    PermissionsError,
    RequestTimeoutError,
    StaleAckError,
)
from jetlake.model.consumer_features import STALE_ACK
from jetlake.protocol import encoder
from jetlake.protocol.nuid import next_nuid

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection

_NEVER = float("inf")
_REPEAT_FIRST_MAX_S = 2.5
_ELECTION_POLL_S = 0.25


class Requests(Receiver):
    """Sends the requests of one connection, and receives their answers.

    Args:
        connection: writes the requests, and keeps them while no server is connected; its options have the default
            timeout.
    """

    __slots__ = (
        "_connection",
        "_denied",
        "_loop",
        "_next",
        "_prefix",
        "_prefix_length",
        "_sweep_at",
        "_sweeper",
        "_timeout_s",
        "_waiting",
    )

    def __init__(self, connection: Connection) -> None:
        prefix = f"{connection.options.inbox_prefix}.{next_nuid()}.".encode()
        super().__init__(prefix + b"*")
        self._connection = connection
        self._loop = connection.loop
        self._timeout_s = connection.options.request_timeout_s
        self._prefix = prefix
        self._prefix_length = len(prefix)
        self._waiting: dict[bytes, _Request] = {}
        self._next = 0
        self._denied = Denial()
        self._sweep_at = _NEVER
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        timeout_s: float | None,
        is_repeatable: bool = False,
    ) -> Message:
        """Publish with a reply subject of our own and wait for the first answer.

        Args:
            timeout_s: how long to wait; the connection's `request_timeout` when None.
            is_repeatable: the request may be sent again, which then happens instead of failing when the connection is
                lost, and when no answer comes.

        Raises:
            RequestTimeoutError: no answer in time.
            NoRespondersError: the subject has no subscriber.
            DisconnectedError: the connection was lost meanwhile.
            PermissionsError: the server refuses the subject, or the inbox for the answer.
        """
        check_loop(self._loop)
        reply, answer = self._begin(subject, len(header) + len(payload), timeout_s or self._timeout_s)
        try:
            if header:
                frame = encoder.hpub(subject, reply, header, payload)
            else:
                frame = encoder.pub(subject, reply, payload)
            self._connection.send_now(frame, reply)
            if is_repeatable:
                self._repeat(reply, frame)
            return await answer
        except OutboundBufferFullError:
            self._forget(reply)
            # A caller that retries in a loop and ignores the error must not keep the loop from connecting.
            await asyncio.sleep(0)
            raise
        except (JetlakeError, asyncio.CancelledError):
            self._forget(reply)
            raise

    async def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait until its consumer has it.

        While a cluster elects the consumer's leader, its subject has no subscriber: the call waits for the leader. The
        old leader may have lost an acknowledgement, so one that may arrive twice is sent again.

        Args:
            timeout_s: how long to wait; the connection's `request_timeout` when None.

        Raises:
            RequestTimeoutError: no answer in time.
            NoRespondersError: the consumer is gone, or its cluster has no leader for it in time.
            DisconnectedError: the connection was lost meanwhile.
        """
        left_s = timeout_s or self._timeout_s
        give_up_at = self._loop.time() + left_s
        while True:
            is_clustered = bool(self._connection.info.cluster)
            is_repeatable = is_clustered and payload.startswith((b"+ACK", b"+TERM"))
            try:
                return await self.request(subject, b"", payload, left_s, is_repeatable)
            except NoRespondersError:
                left_s = give_up_at - self._loop.time() - _ELECTION_POLL_S
                if not is_clustered or left_s <= 0:
                    raise
            await asyncio.sleep(_ELECTION_POLL_S)

    # Waiting for answers

    def _begin(self, subject: bytes, size: int, timeout_s: float) -> tuple[bytes, asyncio.Future[Message]]:
        """Return a reply subject for a request, and the future of its answer.

        Args:
            subject: where the request goes.
            size: the bytes of its headers and payload.
            timeout_s: how long its answer may take.

        Raises:
            PermissionsError: the server refused the subscription of the inbox on this connection.
        """
        if not self.sid:
            self._denied.check(self._connection.reconnects)
            self._connection.subscribe(self)
        self._next += 1
        token = b"%d" % self._next
        deadline = self._loop.time() + timeout_s
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._waiting[token] = _Request(subject, size, timeout_s, deadline, answer)
        if deadline < self._sweep_at:
            self._arm(deadline)
        return self._prefix + token, answer

    def _repeat(self, reply: bytes, frame: bytes) -> None:
        """Send the request's frame again if some time passes without an answer, or the connection is lost."""
        request = self._waiting[reply[self._prefix_length :]]
        request.frame = frame
        request.repeat_at = request.deadline - request.timeout_s + request.repeat_s
        if request.repeat_at < self._sweep_at:
            self._arm(request.repeat_at)

    def _forget(self, reply: bytes) -> None:
        """Forget a request whose caller left; a kept frame is not sent later."""
        self._waiting.pop(reply[self._prefix_length :], None)
        self._connection.withdraw(reply)

    async def await_answers(self) -> None:
        """Wait until the requests that wait now have their answers; others may begin meanwhile."""
        if answers := [request.answer for request in self._waiting.values()]:
            await asyncio.wait(answers)

    def receive(self, messages: list[Message]) -> None:
        start = self._prefix_length
        for message in messages:
            request = self._waiting.pop(message.raw_subject[start:], None)
            if request is None or request.answer.done():
                continue
            if message.raw_header and not message.payload and message.status == 503:
                request.answer.set_exception(_refusal(request.subject, message))
            else:
                request.answer.set_result(message)

    def disconnected(self) -> None:
        """Fail all requests that may not be repeated: their answers are lost with the connection."""
        self._connection.forget_unsent(self._prefix)
        repeated = {token: request for token, request in self._waiting.items() if request.frame}
        for token, request in repeated.items():
            request.is_lost = True
            del self._waiting[token]
        self._fail_all("the connection was lost while waiting for an answer")
        self._waiting = repeated

    def reconnected(self) -> None:
        """Repeat the requests that were lost with the last connection; fail those larger than this server takes."""
        for token, request in list(self._waiting.items()):
            try:
                self._connection.check_size(request.size)
            except InvalidOptionError as error:
                self._forget(self._prefix + token)
                if not request.answer.done():
                    request.answer.set_exception(error)
                continue
            if request.is_lost:
                # sometimes: a request is repeated after a reconnect
                request.is_lost = False
                self._connection.send(request.frame)

    def ended(self, error: Exception | None) -> None:
        self._fail_all("the connection was closed while waiting for an answer", error, ConnectionClosedError)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._sweep_at = _NEVER
        # Closed, or the server refuses the inbox: a later connection may be allowed to have it.
        self.sid = b""
        self._denied.take(error, self._connection.reconnects)

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        for token, request in list(self._waiting.items()):
            if request.subject == subject:
                del self._waiting[token]
                if not request.answer.done():
                    request.answer.set_exception(error)

    def _fail_all(
        self, reason: str, error: Exception | None = None, kind: type[ClientConnectionError] = DisconnectedError
    ) -> None:
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            if not request.answer.done():
                subject = request.subject.decode("utf-8", "replace")
                request.answer.set_exception(error or kind(f"{reason} on {subject!r}"))

    def _arm(self, deadline: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_at = deadline
        self._sweeper = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        self._sweeper = None
        self._sweep_at = _NEVER
        earliest = _NEVER
        is_overdue = False
        for token, request in list(self._waiting.items()):
            if request.deadline > now:
                if request.repeat_at <= now:
                    request.repeat_s *= 2
                    request.repeat_at = now + request.repeat_s
                    is_overdue = True
                    if self._connection.is_connected:
                        self._connection.send(request.frame)
                earliest = min(earliest, request.deadline, request.repeat_at)
                continue
            is_overdue = True
            del self._waiting[token]
            self._connection.withdraw(self._prefix + token)
            if not request.answer.done():
                subject = request.subject.decode("utf-8", "replace")
                request.answer.set_exception(
                    RequestTimeoutError(f"no answer on {subject!r} within {request.timeout_s:g} s")
                )
        if earliest != _NEVER:
            self._arm(earliest)
        if is_overdue:
            self._connection.suspect()


class _Request:
    """A request that waits for its answer."""

    __slots__ = ("answer", "deadline", "frame", "is_lost", "repeat_at", "repeat_s", "size", "subject", "timeout_s")

    def __init__(
        self, subject: bytes, size: int, timeout_s: float, deadline: float, answer: asyncio.Future[Message]
    ) -> None:
        self.subject = subject
        self.size = size
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.answer = answer
        # The frame to repeat; empty for a request that may be sent only once.
        self.frame = b""
        self.repeat_at = _NEVER
        self.repeat_s = first_repetition_s(timeout_s)
        self.is_lost = False


def first_repetition_s(timeout_s: float) -> float:
    """Return after how long a request that may be sent twice is sent again, if it has no answer."""
    return min(timeout_s / 2, _REPEAT_FIRST_MAX_S)


def _refusal(subject: bytes, answer: Message) -> JetlakeError:
    """Return the error of a status 503: no subscriber, or a refused acknowledgement with its reason."""
    text = subject.decode("utf-8", "replace")
    try:
        reason = answer.headers.description
    except BadHeaderError as error:
        return error
    if not (reason and subject.startswith(b"$JS.ACK.")):
        return NoRespondersError(text)
    return StaleAckError(text, reason) if reason == STALE_ACK else AckRefusedError(text, reason)
