"""Direct gets: of one message, and of many with one request, a stream of answers, and a status that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from jetlake.client.api.api_caller import NO_LEADER, ApiCaller
from jetlake.client.connection.answers import Answers
from jetlake.client.connection.connection import Connection
from jetlake.client.streams.stored_message import StoredMessage, from_direct
from jetlake.errors import (
    ApiError,
    JetlakeError,
    MessageNotFoundError,
    NoRespondersError,
    PermissionsError,
)
from jetlake.model.encoding.codec import encode
from jetlake.model.replies import StreamInfoReply
from jetlake.model.requests import DirectGetRequest
from jetlake.protocol import encoder

__all__ = ["HINT", "get_batch", "get_one"]

HINT = "direct gets need a stream with allow_direct=True"
"""What to say when nobody answers one."""

_RETRY_S = 0.1
_ASK_S = 1.0


async def get_one(api: ApiCaller, stream: str, subject: bytes, payload: bytes) -> StoredMessage:
    """Return the message of one request; a cluster whose replicas do not answer yet is asked again within the timeout.

    Raises:
        MessageNotFoundError: the stream holds no such message.
        NoRespondersError: the stream does not allow direct gets, or there is none.
    """
    loop = api.connection.loop
    give_up_at = loop.time() + api.timeout_s
    while True:
        left_s = give_up_at - loop.time()
        try:
            return from_direct(await api.connection.request_raw(subject, b"", payload, max(_RETRY_S, left_s), True))
        except NoRespondersError:
            if left_s <= _RETRY_S or not await _is_expected(api, stream, left_s):
                raise NoRespondersError(subject.decode(), HINT) from None
        await asyncio.sleep(_RETRY_S)


async def _is_expected(api: ApiCaller, stream: str, left_s: float) -> bool:
    """Return whether a stream that nobody answers for is one of a cluster, which is electing its leader."""
    try:
        info = await api.call(StreamInfoReply, "STREAM.INFO", stream, timeout_s=min(_ASK_S, left_s))
    except ApiError as error:
        return error.err_code == NO_LEADER
    except PermissionsError:
        return False
    except JetlakeError:
        return True  # Nobody leads the stream, so nobody can say.
    return info.config.allow_direct and info.cluster is not None and bool(info.cluster.name)


async def get_batch(
    connection: Connection, subject: bytes, request: DirectGetRequest, timeout_s: float
) -> AsyncIterator[StoredMessage]:
    """Yield the messages of one request, as they come.

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
