"""Direct gets of many messages: one request, a stream of answers, and a status that ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from jetlake.client.connection.answers import Answers
from jetlake.client.connection.connection import Connection
from jetlake.client.streams.stored_message import StoredMessage, from_direct
from jetlake.errors import MessageNotFoundError, NoRespondersError
from jetlake.model.encoding.codec import encode
from jetlake.model.requests import DirectGetRequest
from jetlake.protocol import encoder

__all__ = ["HINT", "get_batch"]

HINT = "direct gets need a stream with allow_direct=True"
"""What to say when nobody answers one."""


async def get_batch(
    connection: Connection, subject: bytes, request: DirectGetRequest, timeout_s: float
) -> AsyncIterator[StoredMessage]:
    """The messages of one request, as they come.

    Args:
        timeout_s: how long the server may be silent.

    Raises:
        NoRespondersError: the stream does not allow direct gets, or there is none.
        RequestTimeoutError: the server fell silent.
    """
    with Answers(connection, "get") as answers:
        connection.send(encoder.pub(subject, answers.subject, encode(request)))
        connection.end_turn()
        while True:
            message = await answers.next(timeout_s, subject.decode())
            status = message.status
            if status == 204:
                return
            if status == 503:
                raise NoRespondersError(subject.decode(), HINT)
            try:
                yield from_direct(message, in_batch=True)
            except MessageNotFoundError:
                return
