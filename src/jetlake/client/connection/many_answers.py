"""Requests that many may answer, and when enough answers have come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from jetlake.client.connection.answers import Answers
from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.settings.options import duration_s
from jetlake.errors import InvalidOptionError, NoRespondersError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol import encoder

__all__ = ["Enough", "Sentinel", "enough", "request_many"]

Sentinel = bool | Callable[[Message], bool]
"""True: an answer without payload is the last. A function: the answer that it says True of is the last."""


class Enough(Struct, frozen=True):
    """When a request has enough answers."""

    timeout_s: float
    max_messages: int | None
    stall_s: float | None
    is_last: Callable[[Message], bool] | None


def enough(timeout_s: float, max_messages: int | None, stall: Seconds | None, sentinel: Sentinel) -> Enough:
    """Check what `Client.request_many` was given.

    Raises:
        InvalidOptionError: an option that cannot work.
    """
    if max_messages is not None and (isinstance(max_messages, bool) or max_messages < 1):
        raise InvalidOptionError(f"max_messages is 1 or more, not {max_messages!r}")
    stall_s = None if stall is None else duration_s("stall", stall)
    if stall_s is not None and stall_s <= 0:
        raise InvalidOptionError(f"stall is more than 0 seconds, not {stall_s:g}")
    if not isinstance(sentinel, bool) and not callable(sentinel):
        raise InvalidOptionError(f"sentinel is True, False or a function that takes a message, not {sentinel!r}")
    is_last = sentinel if callable(sentinel) else _is_empty if sentinel else None
    return Enough(timeout_s, max_messages, stall_s, is_last)


def _is_empty(message: Message) -> bool:
    return not message.payload


async def request_many(
    connection: Connection, subject: bytes, header: bytes, payload: bytes, wanted: Enough
) -> AsyncIterator[Message]:
    """Publish a request and take its answers, until there are enough or no time is left.

    Raises:
        NoRespondersError: nobody listens.
        DisconnectedError: the connection was lost meanwhile.
    """
    now = connection.loop.time
    deadline = now() + wanted.timeout_s
    with Answers(connection, "request") as answers:
        if header:
            connection.send(encoder.hpub(subject, answers.subject, header, payload))
        else:
            connection.send(encoder.pub(subject, answers.subject, payload))
        connection.end_turn()
        count = 0
        while count != wanted.max_messages and (rest_s := deadline - now()) > 0:
            # How long the first answer takes says nothing about how far the others are behind it.
            wait_s = rest_s if wanted.stall_s is None or not count else min(wanted.stall_s, rest_s)
            try:
                message = await answers.next(wait_s, subject.decode())
            except RequestTimeoutError:
                return
            if message.status == 503 and not count:
                raise NoRespondersError(subject.decode())
            if message.status is not None or (wanted.is_last is not None and wanted.is_last(message)):
                return
            count += 1
            yield message
