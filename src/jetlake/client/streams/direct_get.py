"""Direct gets: of one message, and of many with one request, a stream of answers, and a status that ends them.

A direct get is answered by any replica of the stream, and by any mirror of it with `mirror_direct`. Replicas may lag;
mirrors may lack messages that their origin has, or hold messages of an earlier stream of its name. So a range that a
mirror answered, and a range without any answer, is read from the stream's leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from jetlake.client.api.api_caller import NO_LEADER, ApiCaller
from jetlake.client.connection.inboxes import Answers
from jetlake.client.streams.stored_message import StoredMessage, from_direct, from_reply
from jetlake.errors import (
    ApiError,
    JetlakeError,
    MessageNotFoundError,
    NoRespondersError,
    PermissionsError,
    PullStatusError,
)
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import MessageGetReply, StreamInfoReply
from jetlake.model.requests import DirectGetRequest, MessageGetRequest, StreamInfoRequest
from jetlake.protocol import encoder

HINT = "direct gets need a stream with allow_direct=True"
"""The hint in the error of a direct get without an answer."""

_MULTI_LAST_MAX = 1024
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
    """Return whether a stream without an answer is in a cluster that is electing its leader."""
    try:
        info = await api.call(StreamInfoReply, "STREAM.INFO", stream, timeout_s=min(_ASK_S, left_s))
    except ApiError as error:
        return error.err_code == NO_LEADER
    except PermissionsError:
        return False
    except JetlakeError:
        return True  # The stream has no leader that could answer.
    return info.config.allow_direct and info.cluster is not None and bool(info.cluster.name)


async def get_by_leader(api: ApiCaller, stream: str, request: MessageGetRequest) -> StoredMessage:
    """Return the message of one request, as the stream's leader has it.

    Raises:
        MessageNotFoundError: the stream holds no such message.
    """
    reply = await api.call(MessageGetReply, "STREAM.MSG.GET", stream, body=request)
    return from_reply(reply.message, stream)


async def get_batch(api: ApiCaller, stream: str, request: DirectGetRequest) -> AsyncIterator[StoredMessage]:
    """Yield the messages of one request when they arrive.

    Raises:
        NoRespondersError: the stream does not allow direct gets, or there is none.
        RequestTimeoutError: the server fell silent.
    """
    subject = api.subject("DIRECT.GET", stream)
    is_mirror, has_any = False, False
    with Answers(api.connection, "get") as answers:
        api.connection.send(encoder.pub(subject, answers.subject, encode(request)))
        api.connection.end_turn()
        while not is_mirror:
            answer = await answers.next(api.timeout_s, subject.decode())
            if answer.status == 204:
                break
            if answer.status == 503:
                raise NoRespondersError(subject.decode(), HINT)
            try:
                message = from_direct(answer)
            except MessageNotFoundError:
                break
            is_mirror = message.stream != stream
            if not is_mirror:
                has_any = True
                yield message
    if has_any:
        return
    by_leader = _newest_by_leader if request.multi_last else _range_by_leader
    try:
        async for message in by_leader(api, stream, request):
            yield message
    except PermissionsError:
        # A user with permission for direct gets only cannot ask the leader whether there is nothing.
        if is_mirror:
            raise


async def _range_by_leader(api: ApiCaller, stream: str, request: DirectGetRequest) -> AsyncIterator[StoredMessage]:
    following = MessageGetRequest(
        seq=request.seq, next_by_subj=request.next_by_subj or ">", start_time=request.start_time
    )
    size = 0
    for _ in range(request.batch):
        try:
            message = await get_by_leader(api, stream, following)
        except MessageNotFoundError:
            return
        size += len(message.subject) + len(message.header) + len(message.payload)
        yield message
        if 0 < request.max_bytes <= size:
            return
        following = MessageGetRequest(seq=message.sequence + 1, next_by_subj=following.next_by_subj)


async def _newest_by_leader(api: ApiCaller, stream: str, request: DirectGetRequest) -> AsyncIterator[StoredMessage]:
    subjects: set[str] = set()
    for pattern in request.multi_last:
        info = await api.call(StreamInfoReply, "STREAM.INFO", stream, body=StreamInfoRequest(subjects_filter=pattern))
        subjects.update(info.state.subjects)
        if max(len(subjects), info.total) > _MULTI_LAST_MAX:
            raise PullStatusError(413, "Too Many Results")
    found = [message for subject in subjects if (message := await _last(api, stream, subject, request)) is not None]
    found = sorted((message for message in found if message.sequence >= request.seq), key=lambda one: one.sequence)
    for message in found[: request.batch or None]:
        yield message


async def _last(api: ApiCaller, stream: str, subject: str, request: DirectGetRequest) -> StoredMessage | None:
    """Return the newest message of a subject, up to the sequence or time of the request if it has one."""
    if not request.up_to_seq and request.up_to_time is None:
        try:
            return await get_by_leader(api, stream, MessageGetRequest(last_by_subj=subject))
        except MessageNotFoundError:
            return None
    newest: StoredMessage | None = None
    every = DirectGetRequest(seq=1, next_by_subj=subject, batch=request.up_to_seq or 1 << 62)
    async for message in _range_by_leader(api, stream, every):
        if request.up_to_seq and message.sequence > request.up_to_seq:
            break
        if request.up_to_time is not None and message.time_ns > parse_time(request.up_to_time):
            break
        newest = message
    return newest
