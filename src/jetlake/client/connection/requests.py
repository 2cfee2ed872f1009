"""Requests and their answers: one wildcard inbox and one timer for all, one future for each.

A request that may safely be sent twice is sent again when half of its time has passed without an answer, and on the
next connection when one is lost: a cluster's server that dies takes the requests in its hands with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetlake.client.connection.outbox import Outbox
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.errors import (
    AckRefusedError,
    BadHeaderError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    PermissionsError,
    RequestTimeoutError,
    StaleAckError,
)
from jetlake.model.consumer_features import STALE_ACK
from jetlake.protocol.nuid import next_nuid

__all__ = ["Requests"]

_NEVER = float("inf")


def _refusal(subject: bytes, answer: Message) -> JetlakeError:
    """Return the error of a status 503, which a server sends for nobody, or with a reason for an acknowledgement."""
    text = subject.decode("utf-8", "replace")
    try:
        reason = answer.headers.description
    except BadHeaderError as error:
        return error
    if not (reason and subject.startswith(b"$JS.ACK.")):
        return NoRespondersError(text)
    return StaleAckError(text, reason) if reason == STALE_ACK else AckRefusedError(text, reason)


class _Request:
    __slots__ = ("answer", "deadline", "frame", "is_lost", "repeat_at", "size", "subject", "timeout_s")

    def __init__(
        self, subject: bytes, size: int, timeout_s: float, deadline: float, answer: asyncio.Future[Message]
    ) -> None:
        self.subject = subject
        self.size = size
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.answer = answer
        # What is sent again; empty for a request that may be sent only once.
        self.frame = b""
        self.repeat_at = _NEVER
        self.is_lost = False


class Requests(Receiver):
    """The requests of one connection that wait for their answers.

    Args:
        loop: the event loop.
        inbox_prefix: the first tokens of the inbox.
        outbox: keeps requests while no server is connected, and drops those that nobody waits for any more.
        subscribe: subscribes the inbox.
        reconnects: how often the client has reconnected so far.
    """

    __slots__ = (
        "_denied",
        "_loop",
        "_next",
        "_outbox",
        "_prefix",
        "_prefix_length",
        "_reconnects",
        "_subscribe",
        "_sweep_at",
        "_sweeper",
        "_waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inbox_prefix: str,
        outbox: Outbox,
        subscribe: Callable[[Receiver], None],
        reconnects: Callable[[], int],
    ) -> None:
        prefix = f"{inbox_prefix}.{next_nuid()}.".encode()
        super().__init__(prefix + b"*")
        self._loop = loop
        self._outbox = outbox
        self._subscribe = subscribe
        self._reconnects = reconnects
        self._prefix = prefix
        self._prefix_length = len(prefix)
        self._waiting: dict[bytes, _Request] = {}
        self._next = 0
        self._denied = Denial()
        self._sweep_at = _NEVER
        self._sweeper: asyncio.TimerHandle | None = None

    def begin(self, subject: bytes, size: int, timeout_s: float) -> tuple[bytes, asyncio.Future[Message]]:
        """Return a reply subject for a request, and the future of its answer.

        Args:
            subject: where the request goes.
            size: the bytes of its headers and payload.
            timeout_s: how long its answer may take.

        Raises:
            PermissionsError: the server refused the subscription of the inbox on this connection.
        """
        if not self.sid:
            self._denied.check(self._reconnects())
            self._subscribe(self)
        self._next += 1
        token = b"%d" % self._next
        deadline = self._loop.time() + timeout_s
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._waiting[token] = _Request(subject, size, timeout_s, deadline, answer)
        if deadline < self._sweep_at:
            self._arm(deadline)
        return self._prefix + token, answer

    def repeat(self, reply: bytes, frame: bytes) -> None:
        """Send the request's frame again if half of its time passes without an answer, or the connection is lost."""
        request = self._waiting[reply[self._prefix_length :]]
        request.frame = frame
        request.repeat_at = request.deadline - request.timeout_s / 2
        if request.repeat_at < self._sweep_at:
            self._arm(request.repeat_at)

    def forget(self, reply: bytes) -> None:
        """Forget a request that is not waited for; if it was not sent yet, it is not sent later."""
        self._waiting.pop(reply[self._prefix_length :], None)
        self._outbox.withdraw(reply)

    async def settle(self) -> None:
        """Wait until the requests that wait now have their answers; others may go on asking."""
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
        """Fail all requests but those that may be sent again: their answers are lost with the connection."""
        self._outbox.forget_unsent(self._prefix)
        repeated = {token: request for token, request in self._waiting.items() if request.frame}
        for token, request in repeated.items():
            request.is_lost = True
            del self._waiting[token]
        self._fail_all("the connection was lost while waiting for an answer")
        self._waiting = repeated

    def reconnected(self) -> None:
        """Send again what was lost with the last connection; fail what is larger than this server takes."""
        for token, request in list(self._waiting.items()):
            try:
                self._outbox.check_size(request.size)
            except InvalidOptionError as error:
                self.forget(self._prefix + token)
                if not request.answer.done():
                    request.answer.set_exception(error)
                continue
            if request.is_lost:
                request.is_lost = False
                self._outbox.send(request.frame)

    def ended(self, error: Exception | None) -> None:
        self._fail_all("the connection was closed while waiting for an answer", error)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._sweep_at = _NEVER
        # Closed, or the server refuses the inbox: a later connection may be allowed to have it.
        self.sid = b""
        self._denied.take(error, self._reconnects())

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        for token, request in list(self._waiting.items()):
            if request.subject == subject:
                del self._waiting[token]
                if not request.answer.done():
                    request.answer.set_exception(error)

    def _fail_all(self, reason: str, error: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            if not request.answer.done():
                subject = request.subject.decode("utf-8", "replace")
                request.answer.set_exception(error or DisconnectedError(f"{reason} on {subject!r}"))

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
        for token, request in list(self._waiting.items()):
            if request.deadline > now:
                if request.repeat_at <= now:
                    request.repeat_at = _NEVER
                    if self._outbox.is_connected:
                        self._outbox.send(request.frame)
                earliest = min(earliest, request.deadline, request.repeat_at)
                continue
            del self._waiting[token]
            self._outbox.withdraw(self._prefix + token)
            if not request.answer.done():
                subject = request.subject.decode("utf-8", "replace")
                request.answer.set_exception(
                    RequestTimeoutError(f"no answer on {subject!r} within {request.timeout_s:g} s")
                )
        if earliest != _NEVER:
            self._arm(earliest)
