"""The checks of the subscribe workflow (NATS ADR-15): contradictory requests, and consumers that do not fit."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from jetlake.client.api.config_options import configured
from jetlake.errors import InvalidOptionError, SubscribeMismatchError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.enums import AckPolicy

# Servers and tools add keys of their own to the metadata.
_SERVER_METADATA = "_nats."
_FIXED_FOR_ORDERED = ("deliver_subject", "deliver_group", "max_deliver", "mem_storage", "num_replicas", "ack_wait")


class SubscribeRequest(Struct, frozen=True, kw_only=True):
    """The request of a subscribe call."""

    subject: str = ""
    stream: str = ""
    consumer: str = ""
    """Bind to this existing consumer; never create one."""
    durable: str = ""
    """Use the durable consumer of this name; create it if it is missing."""
    queue: str = ""
    is_pull: bool = False
    is_ordered: bool = False
    keeps_consumer: bool = False
    """Leave a consumer that is created where it is when the subscription ends."""
    options: dict[str, Any] = {}
    """The configuration of a new consumer, which an existing one must share."""

    @property
    def name(self) -> str:
        """The name of the consumer to look for; empty for a new ephemeral one."""
        return self.consumer or self.durable

    @property
    def has_own_name(self) -> bool:
        """Whether a consumer that is created gets a name of the user's, by which others find it."""
        return bool(self.name or self.options.get("name"))


def check_request(request: SubscribeRequest) -> None:
    """Refuse a request that cannot work, before anything is sent.

    Raises:
        InvalidOptionError: the request contradicts itself or says too little.
    """
    options = request.options
    configured(ConsumerConfig, dict(options))
    if not request.subject and not request.stream:
        raise InvalidOptionError("subscribe needs a subject or a stream, or the consumer cannot be found")
    if not request.subject and not request.name and not options.get("filter_subjects"):
        raise InvalidOptionError("subscribe needs a subject to create a consumer")
    if request.consumer and request.durable and request.consumer != request.durable:
        raise InvalidOptionError(
            "consumer binds to an existing consumer, and durable creates a missing one: pass one of them"
        )
    if request.queue:
        if options.get("idle_heartbeat"):
            raise InvalidOptionError("idle_heartbeat does not work with a queue: a random member would get it")
        if options.get("flow_control"):
            raise InvalidOptionError("flow_control does not work with a queue: a random member would get it")
        if options.get("deliver_group") not in (None, "", request.queue):
            raise InvalidOptionError("deliver_group and queue mean the same: pass one of them")
    if options.get("flow_control") and not options.get("idle_heartbeat"):
        raise InvalidOptionError("flow_control needs idle_heartbeat, which detects a stalled consumer")
    if request.is_pull:
        _check_pull(request)
    if request.is_ordered:
        _check_ordered(request)


def _check_pull(request: SubscribeRequest) -> None:
    policy = request.options.get("ack_policy")
    if policy is not None and policy != AckPolicy.EXPLICIT:
        raise InvalidOptionError(f"pull_subscribe needs ack_policy explicit, not {policy}")
    for option in ("deliver_subject", "deliver_group", "idle_heartbeat", "flow_control", "rate_limit_bps"):
        if request.options.get(option):
            raise InvalidOptionError(f"{option} is for push consumers, and pull_subscribe pulls")


def _check_ordered(request: SubscribeRequest) -> None:
    if request.name:
        raise InvalidOptionError("an ordered subscription creates its own consumers: leave durable and consumer out")
    if request.queue:
        raise InvalidOptionError("an ordered subscription has one reader: leave the queue out")
    policy = request.options.get("ack_policy")
    if policy is not None and policy != AckPolicy.NONE:
        raise InvalidOptionError(f"an ordered subscription acknowledges nothing: ack_policy must be none, not {policy}")
    for option in _FIXED_FOR_ORDERED:
        if request.options.get(option):
            raise InvalidOptionError(f"{option} is set by the library for an ordered subscription")


def check_existing(request: SubscribeRequest, info: ConsumerInfo) -> None:
    """Refuse a consumer that exists and cannot serve the request.

    Raises:
        SubscribeMismatchError: the message says which part differs.
    """
    config = info.config
    who = f"consumer {info.name!r} of stream {info.stream_name!r}"
    if request.is_pull:
        if config.is_push:
            raise SubscribeMismatchError(f"cannot create a pull subscription for the push based {who}")
    elif not config.is_push:
        raise SubscribeMismatchError(f"{who} is pull based: a pull subscription is required")
    else:
        _check_group(request, info, who)
    _check_filter(request, config, who)
    _check_config(request, config, who)


def _check_group(request: SubscribeRequest, info: ConsumerInfo, who: str) -> None:
    group = info.config.deliver_group
    if not request.queue:
        if group:
            raise SubscribeMismatchError(
                f"cannot create a subscription without a queue for {who}, created for the queue group {group!r}"
            )
        if info.push_bound:
            raise SubscribeMismatchError(f"duplicate subscription: {who} is already bound to a subscription")
        return
    if not group:
        raise SubscribeMismatchError(
            f"cannot create a queue subscription {request.queue!r} for {who}, created without a deliver group"
        )
    if group != request.queue:
        raise SubscribeMismatchError(
            f"cannot create a queue subscription {request.queue!r} for {who}, created for the queue group {group!r}"
        )
    if info.config.flow_control:
        raise SubscribeMismatchError(f"flow control is not supported over queues, and {who} has it")
    if info.config.idle_heartbeat:
        raise SubscribeMismatchError(f"heartbeats are not supported over queues, and {who} has them")


def _check_filter(request: SubscribeRequest, config: ConsumerConfig, who: str) -> None:
    filters = config.filters
    if request.subject and filters and request.subject not in filters:
        raise SubscribeMismatchError(f"{who} takes {', '.join(filters)}, which is not the subject {request.subject!r}")


def _check_config(request: SubscribeRequest, config: ConsumerConfig, who: str) -> None:
    wanted = configured(ConsumerConfig, dict(request.options))
    for name in request.options:
        asked, present = _comparable(wanted, name), _comparable(config, name)
        if asked != present:
            raise SubscribeMismatchError(
                f"{who} exists with {name} {present}, and {asked} would not be applied; update the consumer, or leave "
                "the option out"
            )


def _comparable(config: ConsumerConfig, name: str) -> Any:
    value = getattr(config, name)
    if name == "metadata":
        return {key: text for key, text in value.items() if not key.startswith(_SERVER_METADATA)}
    return value
