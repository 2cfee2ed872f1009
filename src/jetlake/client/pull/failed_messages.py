"""What becomes of a message whose handler failed: reported, tried again after a back-off, or a dead letter."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.failures import describe
from jetlake.client.messages.message import Message
from jetlake.client.pull.retry_options import RetryOptions
from jetlake.client.settings.wire_values import header_bytes
from jetlake.errors import (
    ApiError,
    ClientConnectionError,
    ConsumeError,
    JetlakeError,
    NoRespondersError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)
from jetlake.model.ack_subject import AckSubject
from jetlake.model.dead_letter import error_headers, letter_headers, letter_id, letter_subject, own_headers
from jetlake.model.publish import decode_pub_ack
from jetlake.protocol.headers import append_pair, writable_pairs

__all__ = ["FailedMessages"]

_REASON_MAX = 200
_HEADER_BYTES_MAX = 65535
"""The largest header block that a stream stores."""
_TOO_LARGE = 10054
"""The error code of a stream whose `max_msg_size` is smaller than the message."""


class FailedMessages:
    """Settles messages whose handler raised.

    A letter is stored before its message is terminated. Whatever is cut off in between, the message comes again and
    its letter has the same message id, so the stream of dead letters keeps one.

    Args:
        connection: carries letters and acknowledgements.
        options: the retries; None leaves messages to their ack wait.
        report: takes every error of a handler, and every letter that could not be stored.
    """

    __slots__ = ("_connection", "_options", "_report")

    def __init__(
        self, connection: Connection, options: RetryOptions | None, report: Callable[[Exception], None]
    ) -> None:
        self._connection = connection
        self._options = options
        self._report = report

    async def settle(self, message: Message, error: Exception) -> None:
        """Report the error, and nak or give up the message unless the handler has settled it."""
        self._report(error)
        if self._options is None or message.is_settled:
            return
        try:
            await self._settle(message, error, self._options)
        except (ClientConnectionError, NotJetStreamMessageError):
            pass  # Without a connection the message comes again after its ack wait; one of core NATS never does.

    async def _settle(self, message: Message, error: Exception, options: RetryOptions) -> None:
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
                told = f"the dead letter of {message!r} would be larger than the server or its stream takes"
                self._report(ConsumeError(f"{told}: the message is terminated without one"))
        await self._terminate(message, reason)

    async def _store_letter(self, message: Message, error: Exception, origin: AckSubject, template: str) -> bool:
        """Store the letter with as much of the error as there is room for; False if not even its origin fits."""
        # What another client has written wrong must not keep the letter from being stored, nor the other headers out.
        own = own_headers(writable_pairs(message.raw_header))
        headers = own | letter_headers(origin, message.subject, time.time_ns())
        bare = _letter_header(headers, origin)
        bytes_max = min(self._connection.max_payload - len(message.payload), _HEADER_BYTES_MAX)
        if len(bare) > bytes_max:
            return False
        said = error_headers(
            describe(error), "".join(traceback.format_exception(error)), bytes_max=bytes_max - len(bare)
        )
        subject = letter_subject(template, origin.stream, origin.consumer).encode()
        for header in (_letter_header(headers | said, origin), bare):
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
        """Terminate with the server's confirmation; without one the message comes again."""
        line = " ".join(reason.split())[:_REASON_MAX].encode("utf-8", "backslashreplace")
        try:
            await self._connection.request_raw(message.raw_reply, b"", b"+TERM " + line, None)
        except (RequestTimeoutError, NoRespondersError) as failure:
            failure.add_note(f"while terminating {message!r}: the message is tried again")
            self._report(failure)


def _letter_header(pairs: dict[str, str | list[str]], origin: AckSubject) -> bytes:
    return append_pair(header_bytes(pairs), b"Nats-Msg-Id", letter_id(origin).encode("utf-8", "surrogateescape"))
