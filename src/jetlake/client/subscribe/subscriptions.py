"""The subscribe calls of a JetStream context: find the stream, find or create the consumer, check it, subscribe.

NATS ADR-15 describes the workflow, NATS ADR-13 the pull form. Other clients run it at the same time for the same
consumer, so the order of its steps matters:

1. the options are checked before anything is sent;
2. the consumer is looked up by its name, and must fit the request;
3. a push subscription subscribes before it creates its consumer: by that interest the server knows that a durable
   consumer is in use, and no delivery is lost;
4. a consumer that appeared between 2 and 3 is an error, except for a queue group, whose members share one: they begin
   again at 2, at most `_RACES_MAX` times;
5. a subscription that got no consumer is unsubscribed again.

A server answers a request to create a consumer that exists with the same configuration as it answers one that creates
it. Such a consumer belongs to the client that created it: its age in the answer is larger than the time that the
request took. Only a consumer that another client created while the request was under way counts as our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import ConsumerOptions, configured
from jetlake.client.connection.subscription import MessageCallback, PendingLimits, SlowPolicy
from jetlake.client.ordered.ordered import OrderedConsume
from jetlake.client.settings.options import duration_s
from jetlake.client.settings.wire_values import queue_bytes, subscribe_subject
from jetlake.client.streams.stream import stream_handle
from jetlake.client.subscribe.bound_consumer import UNBOUND_WAITS_S
from jetlake.client.subscribe.pull_subscription import PullSubscription
from jetlake.client.subscribe.push_subscription import PushSettings, PushSubscription
from jetlake.client.subscribe.subscribe_checks import SubscribeRequest, check_existing, check_request
from jetlake.errors import (
    ApiError,
    ConsumerExistsError,
    ConsumerNameInUseError,
    ConsumerNotFoundError,
    InvalidOptionError,
    PermissionsError,
    RequestTimeoutError,
    StreamNotFoundError,
    SubscribeMismatchError,
)
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import Seconds
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.model.replies import ConsumerCreateReply, ConsumerInfoReply, StreamNamesReply
from jetlake.model.requests import ConsumerCreateRequest, StreamListRequest
from jetlake.protocol.nuid import new_inbox

# How often other clients may create or delete the consumer between two steps of the workflow.
_RACES_MAX = 8


class BindOptions(ConsumerOptions, total=False):
    """The options of a new consumer, which an existing one must share, and how to find the existing one."""

    stream: str
    """The stream's name; needed when several streams have the subject."""
    consumer: str
    """Bind to this existing consumer, and create none."""
    keep_consumer: bool
    """Keep the consumer that the call creates when the subscription ends."""


class QueueSubscribeOptions(BindOptions, total=False):
    """The options of push subscriptions."""

    durable: str
    """Use this durable consumer, and create it if it is missing."""
    manual_ack: bool
    """Leave acknowledging to the callback."""
    pending_messages_max: int
    """Most messages that may wait to be taken. Default 512 Ki."""
    pending_bytes_max: int
    """Most bytes of payload that may wait to be taken. Default 128 MiB."""
    on_slow: SlowPolicy
    """What happens at these limits; see `Client.subscribe`."""


class SubscribeOptions(QueueSubscribeOptions, total=False):
    """The options of a push subscription without a queue group."""

    heartbeat_alarm: Seconds | None
    """Seconds of silence after which `on_error` gets a `HeartbeatMissedError`. Default: 3 times `idle_heartbeat`."""


class Subscriptions:
    """The push and pull subscriptions of a JetStream context.

    Args:
        api: finds streams, and finds and creates consumers.
    """

    def __init__(self, api: ApiCaller) -> None:
        self._api = api

    async def subscribe(
        self, subject: str, callback: MessageCallback | None, ordered: bool, options: SubscribeOptions
    ) -> PushSubscription | OrderedConsume:
        """Subscribe through a push consumer, or in order; see `JetStream.subscribe`."""
        given = cast("dict[str, Any]", dict(options))
        alarm = given.pop("heartbeat_alarm", None)
        settings = _push_settings(given, callback, None if alarm is None else duration_s("heartbeat_alarm", alarm))
        request = _request(subject, given, is_ordered=ordered)
        if ordered:
            return await self._subscribe_ordered(request, callback)
        return await self._subscribe_push(request, settings)

    async def queue_subscribe(
        self, subject: str, queue: str, callback: MessageCallback | None, options: QueueSubscribeOptions
    ) -> PushSubscription:
        """Share a push consumer with a queue group; see `JetStream.queue_subscribe`."""
        if not queue:
            raise InvalidOptionError("queue_subscribe needs the name of a queue")
        given = cast("dict[str, Any]", dict(options))
        if not given.get("consumer") and not given.get("durable"):
            given["durable"] = queue
        settings = _push_settings(given, callback, None)
        return await self._subscribe_push(_request(subject, given, queue=queue), settings)

    async def pull_subscribe(self, subject: str, durable: str, options: BindOptions) -> PullSubscription:
        """Bind to an existing pull consumer, or to a new one; see `JetStream.pull_subscribe`."""
        request = _request(subject, {**cast("dict[str, Any]", options), "durable": durable}, is_pull=True)
        check_request(request)
        stream = await self._find_stream(request)
        info = await self._look_up(stream, request)
        if info is not None:
            return PullSubscription(self._api, stream, info.name, created=False, info=info)
        if request.consumer:
            return PullSubscription(self._api, stream, request.consumer, created=False, info=None)
        began = self._api.connection.loop.time()
        try:
            info = await self._create(stream, request, deliver_subject="")
        except (ConsumerExistsError, ConsumerNameInUseError):
            info = await self._checked(stream, request)
            return PullSubscription(self._api, stream, info.name, created=False, info=info)
        return PullSubscription(
            self._api,
            stream,
            info.name,
            created=not request.keeps_consumer and self._is_new(request, info, began),
            info=info,
            is_named=request.has_own_name,
        )

    async def _subscribe_ordered(self, request: SubscribeRequest, callback: MessageCallback | None) -> OrderedConsume:
        check_request(request)
        stream = await self._find_stream(request)
        options = {name: value for name, value in request.options.items() if name not in ("ack_policy", "flow_control")}
        heartbeat: Any = options.pop("idle_heartbeat", None)
        if request.subject and "filter_subjects" not in options:
            options.setdefault("filter_subject", request.subject)
        ordered = stream_handle(self._api, stream).ordered(**options)
        return ordered.consume(callback, idle_heartbeat=heartbeat).start()

    async def _subscribe_push(self, request: SubscribeRequest, settings: PushSettings) -> PushSubscription:
        check_request(request)
        stream = await self._find_stream(request)
        for _ in range(_RACES_MAX):
            info = await self._look_up(stream, request)
            if info is not None:
                with self._subscribed(info.config.deliver_subject, request, settings) as subscription:
                    if request.queue:
                        # The last member to leave deletes the consumer: check that it still exists now that this
                        # subscription keeps it.
                        try:
                            info = await self._api.call(ConsumerInfoReply, "CONSUMER.INFO", stream, info.name)
                        except ConsumerNotFoundError:
                            continue
                    subscription.attach(info, created=False)
                    return subscription
            if request.consumer:
                raise ConsumerNotFoundError(404, 10014, f"consumer {request.consumer!r} not found")
            inbox_prefix = self._api.connection.options.inbox_prefix
            deliver_subject = request.options.get("deliver_subject") or new_inbox(inbox_prefix)
            with self._subscribed(deliver_subject, request, settings) as subscription:
                began = self._api.connection.loop.time()
                try:
                    info = await self._create(stream, request, deliver_subject=deliver_subject)
                except (ConsumerExistsError, ConsumerNameInUseError):
                    # Another client created the consumer after the look-up.
                    if request.queue:
                        continue
                    await self._checked(stream, request)
                    raise SubscribeMismatchError(
                        f"duplicate subscription: consumer {request.name!r} of stream {stream!r} was created by "
                        "another subscriber meanwhile"
                    ) from None
                is_new = self._is_new(request, info, began)
                subscription.attach(info, created=not request.keeps_consumer and is_new, is_named=request.has_own_name)
                return subscription
        raise SubscribeMismatchError(
            f"consumer {request.name!r} of stream {stream!r} is repeatedly created and deleted"
        )

    def _is_new(self, request: SubscribeRequest, info: ConsumerInfo, began: float) -> bool:
        """Return whether the consumer was created by the request that began then, as far as the server tells."""
        if not request.has_own_name or ZERO_TIME in (info.ts, info.created):
            return True
        age_s = (parse_time(info.ts) - parse_time(info.created)) / 1e9
        return age_s <= self._api.connection.loop.time() - began

    @contextmanager
    def _subscribed(
        self, subject: str, request: SubscribeRequest, settings: PushSettings
    ) -> Iterator[PushSubscription]:
        """Subscribe to a deliver subject, and unsubscribe again unless the subscription gets its consumer."""
        connection = self._api.connection
        subscription = PushSubscription(self._api, subscribe_subject(subject), queue_bytes(request.queue), settings)
        connection.subscribe(subscription)
        try:
            yield subscription
        finally:
            if not subscription.consumer_name:
                connection.unsubscribe(subscription)
                subscription.ended(None)

    async def _find_stream(self, request: SubscribeRequest) -> str:
        """Return the name of the stream, looked up by the subject if it was not given.

        Raises:
            StreamNotFoundError: no stream has that subject, or more than one has.
        """
        if request.stream:
            return check_name("stream", request.stream)
        reply = await self._api.call(StreamNamesReply, "STREAM.NAMES", body=StreamListRequest(subject=request.subject))
        names = reply.streams or ()
        if len(names) != 1:
            found = f"{len(names)} streams have" if names else "no stream has"
            raise StreamNotFoundError(404, 10059, f"{found} the subject {request.subject!r}; name one with stream=")
        return names[0]

    async def _look_up(self, stream: str, request: SubscribeRequest) -> ConsumerInfo | None:
        """Return the consumer with the request's name, if there is one, after checking that it fits."""
        if not request.name:
            return None
        check_name("consumer", request.name)
        try:
            return await self._checked(stream, request)
        except ConsumerNotFoundError:
            return None
        except (ApiError, PermissionsError, RequestTimeoutError):
            # A pull subscription to a consumer that exists needs no answer (NATS ADR-15): the first fetch finds out.
            if request.is_pull and request.consumer:
                return None
            raise

    async def _checked(self, stream: str, request: SubscribeRequest) -> ConsumerInfo:
        for wait_s in UNBOUND_WAITS_S:
            await asyncio.sleep(wait_s)
            info = await self._api.call(ConsumerInfoReply, "CONSUMER.INFO", stream, request.name)
            if request.queue or not info.push_bound:
                break
        check_existing(request, info)
        return info

    async def _create(self, stream: str, request: SubscribeRequest, *, deliver_subject: str) -> ConsumerInfo:
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
            return await self._api.call(
                ConsumerCreateReply, "CONSUMER.DURABLE.CREATE", stream, request.durable, body=body
            )
        body = msgspec.structs.replace(body, action=ConsumerAction.CREATE_OR_UPDATE)
        return await self._api.call(ConsumerCreateReply, "CONSUMER.CREATE", stream, body=body)


def _push_settings(
    given: dict[str, Any], callback: MessageCallback | None, heartbeat_alarm_s: float | None
) -> PushSettings:
    """Pop the arguments that concern the subscription."""
    limits = {name: given.pop(name) for name in PendingLimits.__struct_fields__ if name in given}
    return PushSettings(callback, given.pop("manual_ack", False), heartbeat_alarm_s, PendingLimits(**limits))


def _request(subject: str, given: dict[str, Any], **kind: Any) -> SubscribeRequest:
    """Pop the arguments that find the consumer; the remaining ones describe it."""
    return SubscribeRequest(
        subject=subject,
        stream=given.pop("stream", ""),
        consumer=given.pop("consumer", ""),
        durable=given.pop("durable", ""),
        keeps_consumer=given.pop("keep_consumer", False),
        options=given,
        **kind,
    )
