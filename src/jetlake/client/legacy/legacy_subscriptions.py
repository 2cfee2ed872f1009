"""The older workflow, in which a consumer is created with its subscription (NATS ADR-13, NATS ADR-15)."""

from __future__ import annotations

from typing import Any, cast

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.api.config_options import ConsumerOptions
from jetlake.client.connection.subscription import MessageCallback, PendingLimits, SlowPolicy
from jetlake.client.legacy.pull_subscription import PullSubscription
from jetlake.client.legacy.push_subscription import PushSettings, PushSubscription
from jetlake.client.legacy.subscribe_checks import SubscribeRequest, check_request
from jetlake.client.legacy.subscribe_workflow import find_stream, subscribe_pull, subscribe_push
from jetlake.client.ordered.ordered_consume import OrderedConsume
from jetlake.client.settings.options import duration_s
from jetlake.client.streams.stream import stream_handle
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds

__all__ = ["BindOptions", "LegacySubscriptions", "QueueSubscribeOptions", "SubscribeOptions"]


class BindOptions(ConsumerOptions, total=False):
    """The options of a new consumer, which one that exists must share, and how to find that one."""

    stream: str
    """The stream's name; needed when several streams have the subject."""
    consumer: str
    """Bind to this existing consumer, and create none."""
    keep_consumer: bool
    """Leave a consumer that the call creates where it is when the subscription ends."""


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


class LegacySubscriptions:
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
        return await subscribe_push(self._api, request, settings)

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
        return await subscribe_push(self._api, _request(subject, given, queue=queue), settings)

    async def pull_subscribe(self, subject: str, durable: str, options: BindOptions) -> PullSubscription:
        """Bind to a pull consumer; see `JetStream.pull_subscribe`."""
        given = {**cast("dict[str, Any]", options), "durable": durable}
        return await subscribe_pull(self._api, _request(subject, given, is_pull=True))

    async def _subscribe_ordered(self, request: SubscribeRequest, callback: MessageCallback | None) -> OrderedConsume:
        check_request(request)
        stream = await find_stream(self._api, request)
        options = {name: value for name, value in request.options.items() if name not in ("ack_policy", "flow_control")}
        heartbeat: Any = options.pop("idle_heartbeat", None)
        if request.subject and "filter_subjects" not in options:
            options.setdefault("filter_subject", request.subject)
        ordered = stream_handle(self._api, stream).ordered(**options)
        return ordered.consume(callback, idle_heartbeat=heartbeat).start()


def _push_settings(
    given: dict[str, Any], callback: MessageCallback | None, heartbeat_alarm_s: float | None
) -> PushSettings:
    """Take what concerns the subscription out of the arguments."""
    limits = {name: given.pop(name) for name in PendingLimits.__struct_fields__ if name in given}
    return PushSettings(callback, given.pop("manual_ack", False), heartbeat_alarm_s, PendingLimits(**limits))


def _request(subject: str, given: dict[str, Any], **kind: Any) -> SubscribeRequest:
    """Take what finds the consumer out of the arguments; the others describe the consumer."""
    return SubscribeRequest(
        subject=subject,
        stream=given.pop("stream", ""),
        consumer=given.pop("consumer", ""),
        durable=given.pop("durable", ""),
        keeps_consumer=given.pop("keep_consumer", False),
        options=given,
        **kind,
    )
