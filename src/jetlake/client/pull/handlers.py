"""The handlers of a read: the tasks that call them, and what becomes of messages whose handler failed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.callbacks import describe, failure_in_task
from jetlake.client.messages.endings import enter_worker
from jetlake.client.messages.message import Message
from jetlake.client.pull.options import ConsumeOptions, RetryOptions
from jetlake.client.settings.wire_values import header_bytes
from jetlake.errors import (
    ApiError,
    ClientConnectionError,
    ConsumeError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)
from jetlake.model.ack_subject import AckSubject
from jetlake.model.dead_letter import error_headers, letter_headers, letter_id, letter_subject, own_headers
from jetlake.model.publish import decode_pub_ack
from jetlake.protocol.headers import append_pair, writable_pairs

if TYPE_CHECKING:
    from jetlake.client.pull.continuous_pull import ContinuousPull

MessageHandler = Callable[[Message], Awaitable[None] | None]
"""A plain or a coroutine function that takes a message."""

_REASON_MAX = 200
_HEADER_BYTES_MAX = 65535
"""The largest header block that a stream stores."""
_TOO_LARGE = 10054
"""The error code of a stream whose `max_msg_size` is smaller than the message."""


class HandlerPool:
    """Tasks that take messages and call the handler with each.

    Args:
        connection: traces the handler, and knows which handlers wait for an ending themselves.
        handler: the function to call with each message; None for none.
        concurrency: number of tasks.
        failed: handles each message whose handler raised.

    Attributes:
        handled: messages that the handler has finished.

    Raises:
        InvalidOptionError: the handler is no function, or the number of tasks is none.
    """

    __slots__ = ("_concurrency", "_endings", "_failed", "_handler", "_tasks", "handled")

    def __init__(
        self, connection: Connection, handler: MessageHandler | None, concurrency: int, failed: FailedMessages
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidOptionError(f"concurrency must be 1 or more, not {concurrency!r}")
        if concurrency > 1 and handler is None:
            raise InvalidOptionError("concurrency needs a handler")
        if handler is not None and not callable(handler):
            raise InvalidOptionError(f"handler must be a function that takes a message, not {handler!r}")
        self._handler = connection.traced(handler)
        self._concurrency = concurrency
        self._failed = failed
        self._endings = connection.endings
        self._tasks: list[asyncio.Task[None]] = []
        self.handled = 0

    @property
    def has_handler(self) -> bool:
        """Whether there is a handler."""
        return self._handler is not None

    def start(self, pull: ContinuousPull) -> None:
        """Begin to take the messages of a pull."""
        if self._handler is not None:
            work = self._handler
            self._tasks = [pull.mailbox.loop.create_task(self._run(work, pull)) for _ in range(self._concurrency)]

    async def _run(self, handler: MessageHandler, pull: ContinuousPull) -> None:
        enter_worker()
        mailbox = pull.mailbox
        messages = mailbox.messages
        while True:
            while messages:
                message = messages.popleft()
                if len(messages) <= pull.refill_at:
                    pull.handed_out(message)
                try:
                    result = handler(message)
                    if result is not None:
                        await result
                    self.handled += 1
                except BaseException as error:
                    # One bad message must not stop the others.
                    await self._failed.handle(message, failure_in_task(error, message))
            if mailbox.is_ended:
                return
            await mailbox.wait()

    async def finished(self) -> None:
        """Wait until all tasks have ended, except tasks that wait for an ending themselves."""
        await self._endings.finished(self._tasks)

    async def ended(self) -> None:
        """Wait until all tasks have ended, also one whose handler ends the read or the client."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel the tasks in the middle of their messages, which are delivered again later."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


class FailedMessages:
    """Retries messages whose handler raised, and finally stores them as dead letters.

    A dead letter is stored before its message is terminated. After a crash between the two, the message is delivered
    again and its dead letter gets the same message id, so the stream of dead letters keeps one.

    Args:
        connection: carries dead letters and acknowledgements.
        options: the retries, without which messages wait for their ack wait, and `on_error`, which gets every error
            of a handler and every dead letter that could not be stored.
    """

    __slots__ = ("_connection", "_on_error", "_options")

    def __init__(self, connection: Connection, options: ConsumeOptions) -> None:
        self._connection = connection
        self._on_error = options.on_error
        self._options = options.retries

    def _report(self, error: Exception) -> None:
        self._connection.report(self._on_error, error)

    async def handle(self, message: Message, error: Exception) -> None:
        """Report the error, and retry or give up the message unless the handler has acknowledged or refused it."""
        self._report(error)
        if self._options is None or message.is_settled:
            return
        try:
            await self._retry_or_give_up(message, error, self._options)
        except (ClientConnectionError, NotJetStreamMessageError):
            pass  # Without a connection, the message is delivered again after its ack wait; one of core NATS never is.

    async def _retry_or_give_up(self, message: Message, error: Exception, options: RetryOptions) -> None:
        origin = message.metadata
        if not options.is_last(origin.delivered):
            message.nak(options.delay_s(origin.delivered))
            return
        reason = describe(error)
        if options.dead_letter:
            try:
                is_stored = await self._store_letter(message, error, origin, options.dead_letter)
            except JetlakeError as failure:
                failure.add_note(f"while storing the dead letter of {message!r}: the message is tried again")
                self._report(failure)
                message.nak(options.delay_s(origin.delivered))
                return
            if not is_stored:
                reason = f"too large for a dead letter: {reason}"
                large = f"the dead letter of {message!r} would be larger than the server or its stream takes"
                self._report(ConsumeError(f"{large}: the message is terminated without one"))
        await self._terminate(message, reason)

    async def _store_letter(self, message: Message, error: Exception, origin: AckSubject, template: str) -> bool:
        """Store the dead letter with as much of the error as fits; False if not even the message's origin fits."""
        # Malformed headers of the publisher are left out, so that they keep neither the dead letter nor others out.
        own = own_headers(writable_pairs(message.raw_header))
        headers = own | letter_headers(origin, message.subject, time.time_ns())
        bare = _letter_header(headers, origin)
        bytes_max = min(self._connection.max_payload - len(message.payload), _HEADER_BYTES_MAX)
        if len(bare) > bytes_max:
            return False
        reason = error_headers(
            describe(error), "".join(traceback.format_exception(error)), bytes_max=bytes_max - len(bare)
        )
        subject = letter_subject(template, origin.stream, origin.consumer).encode()
        for header in (_letter_header(headers | reason, origin), bare):
            answer = await self._connection.request_raw(subject, header, message.payload, None)
            try:
                decode_pub_ack(answer.payload)
            except ApiError as refusal:
                if refusal.err_code != _TOO_LARGE:
                    raise
            else:
                return True
        return False

    async def _terminate(self, message: Message, reason: str) -> None:
        """Terminate with the server's confirmation; without one the message is delivered again."""
        line = " ".join(reason.split())[:_REASON_MAX].encode("utf-8", "backslashreplace")
        try:
            await self._connection.request_raw(message.raw_reply, b"", b"+TERM " + line, None)
        except (RequestTimeoutError, NoRespondersError) as failure:
            failure.add_note(f"while terminating {message!r}: the message is tried again")
            self._report(failure)


def _letter_header(pairs: dict[str, str | list[str]], origin: AckSubject) -> bytes:
    return append_pair(header_bytes(pairs), b"Nats-Msg-Id", letter_id(origin).encode("utf-8", "surrogateescape"))
