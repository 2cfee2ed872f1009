"""The subscribe workflow of NATS ADR-15: find the stream, find or create the consumer, check it, subscribe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import configured
from jetlake.client.connection.connection import Connection
from jetlake.client.legacy.bound_consumer import UNBOUND_WAITS_S
from jetlake.client.legacy.pull_subscription import PullSubscription
from jetlake.client.legacy.push_subscription import PushSettings, PushSubscription
from jetlake.client.legacy.subscribe_checks import SubscribeRequest, check_existing, check_request
from jetlake.client.settings.wire_values import queue_bytes, subscribe_subject
from jetlake.errors import (
    ApiError,
    ConsumerExistsError,
    ConsumerNameInUseError,
    ConsumerNotFoundError,
    StreamNotFoundError,
    SubscribeMismatchError,
)
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.model.replies import ConsumerCreateReply, ConsumerInfoReply, StreamNamesReply
from jetlake.model.requests import ConsumerCreateRequest, StreamListRequest
from jetlake.protocol.nuid import new_inbox

__all__ = ["find_stream", "subscribe_pull", "subscribe_push"]


# How often others may create or delete the consumer between two steps here.
_RACES_MAX = 8


async def find_stream(api: ApiCaller, request: SubscribeRequest) -> str:
    """Return the name of the stream, looked up by the subject if it was not given.

    Raises:
        StreamNotFoundError: no stream has that subject, or more than one has.
    """
    if request.stream:
        return check_name("stream", request.stream)
    reply = await api.call(StreamNamesReply, "STREAM.NAMES", body=StreamListRequest(subject=request.subject))
    names = reply.streams or ()
    if len(names) != 1:
        found = f"{len(names)} streams have" if names else "no stream has"
        raise StreamNotFoundError(404, 10059, f"{found} the subject {request.subject!r}; name one with stream=")
    return names[0]


async def subscribe_pull(api: ApiCaller, request: SubscribeRequest) -> PullSubscription:
    """Return a pull subscription: on the consumer that exists, or on a new one.

    Raises:
        InvalidOptionError: the request contradicts itself; nothing was sent.
        SubscribeMismatchError: the consumer that exists does not fit.
    """
    check_request(request)
    stream = await find_stream(api, request)
    info = await _look_up(api, stream, request)
    if info is not None:
        return PullSubscription(api, stream, info.name, created=False, info=info)
    if request.consumer:
        # Perhaps this user may pull and may not ask for the info: the pull will tell.
        return PullSubscription(api, stream, request.consumer, created=False, info=None)
    try:
        info = await _create(api, stream, request, deliver_subject="")
    except (ConsumerExistsError, ConsumerNameInUseError):
        info = await _checked(api, stream, request)
        return PullSubscription(api, stream, info.name, created=False, info=info)
    return PullSubscription(
        api,
        stream,
        info.name,
        created=not request.keeps_consumer,
        info=info,
        is_named=request.has_own_name,
    )


async def subscribe_push(
    api: ApiCaller,
    request: SubscribeRequest,
    settings: PushSettings,
) -> PushSubscription:
    """Return a push subscription: on the consumer that exists, or on a new one.

    Raises:
        InvalidOptionError: the request contradicts itself; nothing was sent.
        SubscribeMismatchError: the consumer that exists does not fit.
        ConsumerNotFoundError: the consumer to bind to is not there.
    """
    check_request(request)
    stream = await find_stream(api, request)

    def prepare(subject: str) -> PushSubscription:
        return PushSubscription(api, subscribe_subject(subject), queue_bytes(request.queue), settings)

    for _ in range(_RACES_MAX):
        info = await _look_up(api, stream, request)
        if info is not None:
            subscription = prepare(info.config.deliver_subject)
            with _subscribed(subscription, api.connection):
                if request.queue:
                    # The last member that leaves deletes the consumer: make sure that this one is bound in time.
                    try:
                        info = await api.call(ConsumerInfoReply, "CONSUMER.INFO", stream, info.name)
                    except ConsumerNotFoundError:
                        continue
                subscription.attach(info, created=False)
                return subscription
        if request.consumer:
            raise ConsumerNotFoundError(404, 10014, f"consumer {request.consumer!r} not found")
        # The subscription comes first: by its interest the server knows that a durable consumer is in use.
        deliver_subject = request.options.get("deliver_subject") or new_inbox(api.connection.options.inbox_prefix)
        subscription = prepare(deliver_subject)
        with _subscribed(subscription, api.connection):
            try:
                info = await _create(api, stream, request, deliver_subject=deliver_subject)
            except (ConsumerExistsError, ConsumerNameInUseError):
                # Somebody created it between the look-up and now. Only a queue's members share a consumer.
                if request.queue:
                    continue
                await _checked(api, stream, request)
                raise SubscribeMismatchError(
                    f"duplicate subscription: consumer {request.name!r} of stream {stream!r} was created by another "
                    "subscriber meanwhile"
                ) from None
            subscription.attach(info, created=not request.keeps_consumer, is_named=request.has_own_name)
            return subscription
    raise SubscribeMismatchError(f"consumer {request.name!r} of stream {stream!r} is created and deleted all the time")


@contextmanager
def _subscribed(subscription: PushSubscription, connection: Connection) -> Iterator[None]:
    """Subscribe, and take that back unless the subscription gets its consumer."""
    connection.subscribe(subscription)
    try:
        yield
    finally:
        if not subscription.consumer_name:
            connection.unsubscribe(subscription)
            subscription.ended(None)


async def _look_up(api: ApiCaller, stream: str, request: SubscribeRequest) -> ConsumerInfo | None:
    """Return the consumer that was named, if it is there and fits."""
    if not request.name:
        return None
    check_name("consumer", request.name)
    try:
        return await _checked(api, stream, request)
    except ConsumerNotFoundError:
        return None
    except ApiError:
        if request.is_pull and request.consumer:
            return None
        raise


async def _checked(api: ApiCaller, stream: str, request: SubscribeRequest) -> ConsumerInfo:
    for wait_s in UNBOUND_WAITS_S:
        await asyncio.sleep(wait_s)
        info = await api.call(ConsumerInfoReply, "CONSUMER.INFO", stream, request.name)
        if request.queue or not info.push_bound:
            break
    check_existing(request, info)
    return info


async def _create(api: ApiCaller, stream: str, request: SubscribeRequest, *, deliver_subject: str) -> ConsumerInfo:
    options: dict[str, Any] = {"ack_policy": AckPolicy.EXPLICIT, **request.options}
    options["deliver_subject"] = deliver_subject
    if request.subject and not options.get("filter_subjects"):
        options.setdefault("filter_subject", request.subject)
    if request.queue:
        options["deliver_group"] = request.queue
    if request.durable:
        options["durable_name"] = request.durable
    config = configured(ConsumerConfig, options)
    body = ConsumerCreateRequest(stream_name=stream, config=config, action=ConsumerAction.CREATE)
    if request.durable:
        return await api.call(ConsumerCreateReply, "CONSUMER.DURABLE.CREATE", stream, request.durable, body=body)
    body = msgspec.structs.replace(body, action=ConsumerAction.CREATE_OR_UPDATE)
    return await api.call(ConsumerCreateReply, "CONSUMER.CREATE", stream, body=body)
