"""The handlers of the consumer API."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from jetlake.errors import api_error
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import ZERO_TIME, format_time, parse_time
from jetlake.model.enums import (
    ConsumerAction,
    DeliverPolicy,
    PriorityPolicy,
    RetentionPolicy,
)
from jetlake.model.replies import (
    ConsumerCreateReply,
    ConsumerDeleteReply,
    ConsumerInfoReply,
    ConsumerListReply,
    ConsumerNamesReply,
    ConsumerPauseReply,
    ConsumerPendingReply,
    ConsumerResetReply,
    ConsumerUnpinReply,
    PendingMessage,
    reply_of,
)
from jetlake.model.requests import (
    ConsumerCreateRequest,
    ConsumerListRequest,
    ConsumerPauseRequest,
    ConsumerResetRequest,
    ConsumerUnpinRequest,
)
from jetlake.model.rules.common import utc_time
from jetlake.model.rules.consumer_rules import (
    ConsumerRules,
    check_consumer_in_steps,
    check_consumer_request,
    check_consumer_update_in_steps,
    check_group_name,
    check_workqueue,
    with_durable_position,
)
from jetlake.model.rules.limits import consumers_max
from jetlake.model.source_names import stream_identity
from jetlake.protocol.headers import find_value
from jetlake.server.engine.api.consumer_creation import create_consumer, does_without, is_promised, new_name
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.api.metadata import is_same_metadata, with_served_metadata, with_stored_metadata
from jetlake.server.engine.api.request import ApiRequest, Handler, page, promise_again
from jetlake.server.engine.consumer.consumer import Consumer
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.steps import Steps

__all__ = ["HANDLERS", "consumer_info"]

# More would be no explanation.
_PENDING_LISTED = 100

NAMES_PER_PAGE = 1024
INFOS_PER_PAGE = 256
_STREAM_IDENTITY = b"Nats-Stream-Identity"

# Create and update


def consumer_create(request: ApiRequest) -> Steps[ConsumerCreateReply]:
    """Handle `CONSUMER.CREATE` in its three forms and `CONSUMER.DURABLE.CREATE`: create or update a consumer."""
    body = request.body or ConsumerCreateRequest()
    config = check_consumer_request(
        body,
        stream=request.stream,
        consumer=request.consumer,
        filter_subject=request.rest,
        durable=request.verb == "CONSUMER.DURABLE.CREATE",
    )
    stream = request.jetstream.stream(request.stream)
    if config.is_copying:
        _exchange_identity(request, stream)
    is_transient = config.direct
    config = with_durable_position(config, stream.config.retention)
    rules = ConsumerRules(
        stream=stream.config,
        pedantic=body.pedantic,
        server=stream.services.options.limits,
        account=request.jetstream.limits,
    )
    config = with_stored_metadata((yield from check_consumer_in_steps(config, rules)))
    if config.direct and config.sourcing and config.name:
        # A mirror or source that asks again must not meet the consumer that it lost.
        config = replace(config, name=f"{config.name}-{new_name(stream)}")
    existing = stream.consumers.get(config.name) if config.name else None
    if existing is not None and is_transient and not config.direct:
        consumer = yield from _resume(existing, config, rules)
    elif existing is not None:
        if body.action is ConsumerAction.CREATE:
            _check_same(existing.config, config, body.config, rules)
            consumer = existing
        else:
            consumer = yield from _update(existing, config, rules)
    elif body.action is ConsumerAction.UPDATE:
        raise api_error(10149)
    else:
        consumer = yield from _create(request.jetstream, stream, config)
        consumer.hold()  # A client learns the consumer's name before it gets the first message.
        request.after_answer.append(consumer.release)
    if existing is not None:
        yield from stream.retention.finish_sweep()
        promise_again(request, existing.storage)
    request.awaits.extend(_awaited(consumer, is_new=existing is None))
    return reply_of(ConsumerCreateReply, consumer_info(consumer))


def _exchange_identity(request: ApiRequest, stream: Stream, *, is_checked: bool = True) -> None:
    """Tell the stream's identity in the answer, and check the one that the request expects.

    Raises:
        ApiError: 10225, the request expects an earlier stream of the same name.
    """
    identity = stream_identity(stream.created_ns)
    expected = find_value(request.header, _STREAM_IDENTITY)
    if is_checked and expected and expected != identity.encode():
        raise api_error(10225, msg=identity)
    request.answer_pairs.append((_STREAM_IDENTITY, identity.encode()))


def _resume(consumer: Consumer, config: ConsumerConfig, rules: ConsumerRules) -> Steps[Consumer]:
    """Let the durable consumer of a mirror or source continue after its ack floor, at another deliver subject."""
    old = consumer.config
    config = replace(
        config,
        deliver_policy=old.deliver_policy,
        opt_start_seq=old.opt_start_seq,
        opt_start_time=old.opt_start_time,
    )
    yield from _update(consumer, config, rules)
    consumer.reset(consumer.ack_tracker.floor_stream + 1)  # At once: the next acknowledgement raises the floor.
    return consumer


def _reset(consumer: Consumer, sequence: int) -> Steps[None]:
    """Let a consumer continue at a sequence.

    Raises:
        ApiError: 10014, the consumer has gone while messages were counted.
    """
    yield from consumer.reset_in_steps(sequence)
    if consumer.is_closed:
        raise api_error(10014)


def _create(jetstream: JetStream, stream: Stream, config: ConsumerConfig) -> Steps[Consumer]:
    if not config.is_copying:
        count_max = consumers_max(stream.config.max_consumers, jetstream.limits)
        consumers = stream.consumers
        if len(consumers) >= count_max:
            copying = sum(consumer.config.is_copying for consumer in consumers.values())
            if len(consumers) - copying >= count_max:
                raise api_error(10026)
    if stream.config.retention is RetentionPolicy.WORKQUEUE:
        yield from _check_workqueue(stream, None, config)
    return (yield from create_consumer(stream, jetstream.advisories, config))


def _check_workqueue(stream: Stream, consumer: Consumer | None, config: ConsumerConfig) -> Steps[None]:
    """Check the configuration of a work queue's consumer, a new one where there is none."""
    rivals = yield from stream.retention.rivals(consumer, config.filters)
    yield from check_workqueue(config, [rival.config for rival in rivals], is_update=consumer is not None)


def _awaited(consumer: Consumer, *, is_new: bool) -> list[Syncable | None]:
    """Return what must be durable before an answer describes the consumer."""
    stream = consumer.stream
    store = stream.store if stream.store.durable else None
    if store is not None and does_without(stream, consumer.config, store.failure):
        store = None
    storage = consumer.storage
    return [stream.storage.folder, store, storage.written if is_new and not is_promised(consumer) else storage.folder]


def _check_same(old: ConsumerConfig, new: ConsumerConfig, asked: ConsumerConfig, rules: ConsumerRules) -> None:
    """Check that creating the consumer again changes nothing.

    As in nats-server, an ephemeral consumer with the default inactive threshold always differs, so that two clients
    that chose the same name do not share a consumer unawares.

    Raises:
        ApiError: 10148, the consumer exists with another configuration.
    """
    is_chosen = (
        bool(new.durable_name) or max(asked.inactive_threshold, rules.stream.consumer_limits.inactive_threshold) > 0
    )
    same = replace(new, pause_until=old.pause_until, metadata=old.metadata) == old and is_same_metadata(old, new)
    if not (is_chosen and same):
        raise api_error(10148)


def _update(consumer: Consumer, config: ConsumerConfig, rules: ConsumerRules) -> Steps[Consumer]:
    """Change a consumer.

    Raises:
        ApiError: the change is not allowed, or the consumer has gone while messages were counted.
    """
    old = consumer.config
    stream = consumer.stream
    if stream.config.retention is RetentionPolicy.WORKQUEUE:
        yield from _check_workqueue(stream, consumer, config)
    in_use = bool(old.deliver_subject) and stream.account.has_interest(old.deliver_subject.encode())
    checked = check_consumer_update_in_steps(old, config, rules, is_deliver_subject_in_use=in_use)
    config = with_stored_metadata((yield from checked))
    if consumer.is_closed:
        raise api_error(10014)
    if config != old:
        yield from consumer.update(config)
        if consumer.is_closed:
            raise api_error(10014)
    return consumer


# Info


def consumer_info_reply(request: ApiRequest) -> ConsumerInfoReply:
    """Handle `CONSUMER.INFO`."""
    return reply_of(ConsumerInfoReply, consumer_info(_consumer(request)))


def consumer_pending(request: ApiRequest) -> ConsumerPendingReply:
    """Handle `CONSUMER.PENDING`."""
    tracker = _consumer(request).ack_tracker
    messages = tuple(
        PendingMessage(sequence=sequence, deliveries=deliveries, state=state, due=format_time(due_ns))
        for sequence, deliveries, state, due_ns in tracker.oldest(_PENDING_LISTED)
    )
    return ConsumerPendingReply(total=len(tracker.pending), messages=messages)


def consumer_names(request: ApiRequest) -> Steps[ConsumerNamesReply]:
    """Handle `CONSUMER.NAMES`."""
    body = request.body or ConsumerListRequest()
    names = yield from request.jetstream.stream(request.stream).consumer_names.get()
    offset, some = page(names, body.offset, NAMES_PER_PAGE)
    return ConsumerNamesReply(total=len(names), offset=offset, limit=NAMES_PER_PAGE, consumers=some)


def consumer_list(request: ApiRequest) -> Steps[ConsumerListReply]:
    """Handle `CONSUMER.LIST`."""
    body = request.body or ConsumerListRequest()
    stream = request.jetstream.stream(request.stream)
    names = yield from stream.consumer_names.get()
    offset, some = page(names, body.offset, INFOS_PER_PAGE)
    infos: list[Any] = []
    for name in some:
        if (consumer := stream.consumers.get(name)) is not None:
            infos.append(Raw(encode(consumer.info())))
        yield
    return ConsumerListReply(total=len(names), offset=offset, limit=INFOS_PER_PAGE, consumers=tuple(infos))


def consumer_info(consumer: Consumer) -> ConsumerInfo:
    """Return a consumer's info with the server's metadata, which lists leave out."""
    return consumer.info(config=with_served_metadata(consumer.config))


# Changes


def consumer_delete(request: ApiRequest) -> Steps[ConsumerDeleteReply]:
    """Handle `CONSUMER.DELETE`, also for a consumer that could not be opened."""
    stream = request.jetstream.stream(request.stream)
    if request.consumer not in stream.consumers and stream.storage.remove_missing(request.consumer):
        stream.retention.sweep()
    else:
        request.awaits.append(_consumer(request).close(deleted=True))
    yield from stream.retention.finish_sweep()
    return ConsumerDeleteReply(success=True)


def consumer_pause(request: ApiRequest) -> ConsumerPauseReply:
    """Handle `CONSUMER.PAUSE`; without a time, or with one that is past, the consumer resumes."""
    body = request.body or ConsumerPauseRequest()
    consumer = _consumer(request)
    until = utc_time(body.pause_until) if body.pause_until and body.pause_until != ZERO_TIME else None
    request.awaits.append(consumer.storage.folder)
    consumer.pause(with_stored_metadata(replace(consumer.config, pause_until=until)))
    return ConsumerPauseReply(
        paused=consumer.is_paused(request.now_ns),
        pause_until=until or ZERO_TIME,
        pause_remaining=consumer.pause_remaining_ns(request.now_ns),
    )


def consumer_reset(request: ApiRequest) -> Steps[ConsumerResetReply]:
    """Handle `CONSUMER.RESET`: restart at a sequence that the deliver policy allows, or after the ack floor."""
    body = request.body or ConsumerResetRequest()
    consumer = _consumer(request)
    config = consumer.config
    sequence = body.seq
    if not sequence:
        sequence = consumer.ack_tracker.floor_stream + 1
    elif config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE:
        if sequence < config.opt_start_seq:
            raise api_error(10204, err="below start seq")
    elif config.deliver_policy is DeliverPolicy.BY_START_TIME and config.opt_start_time is not None:
        if sequence < consumer.stream.store.first_at_or_after(parse_time(config.opt_start_time)):
            raise api_error(10204, err="below start time")
    elif config.deliver_policy is not DeliverPolicy.ALL:
        raise api_error(10204, err="not allowed")
    yield from _reset(consumer, sequence)
    yield from consumer.stream.retention.finish_sweep()
    if find_value(request.header, _STREAM_IDENTITY) is not None:
        _exchange_identity(request, consumer.stream, is_checked=False)
    if consumer.storage.folder is not None:
        request.awaits.extend((consumer.storage.folder, consumer.journal))
    return reply_of(ConsumerResetReply, consumer_info(consumer), reset_seq=sequence)


def consumer_unpin(request: ApiRequest) -> ConsumerUnpinReply:
    """Handle `CONSUMER.UNPIN`, with the group in the body or, as in NATS ADR-42, as the last token of the subject."""
    body: ConsumerUnpinRequest | None = request.body
    group = request.rest
    if not group:
        if body is None:
            raise api_error(10025, err="unexpected end of JSON input")
        if not body.group:
            raise api_error(10025, err="consumer group not specified")
        group = body.group
    check_group_name(group)
    consumer = _consumer(request)
    has_pins = consumer.config.priority_policy is PriorityPolicy.PINNED_CLIENT
    if not has_pins or group not in consumer.config.priority_groups:
        raise api_error(10160)
    consumer.delivery.unpin()
    return ConsumerUnpinReply()


def _consumer(request: ApiRequest) -> Consumer:
    consumer: Consumer | None = request.jetstream.stream(request.stream).consumers.get(request.consumer)
    if consumer is None:
        raise api_error(10014)
    return consumer


HANDLERS: dict[str, Handler] = {
    "CONSUMER.CREATE": consumer_create,
    "CONSUMER.DURABLE.CREATE": consumer_create,
    "CONSUMER.INFO": consumer_info_reply,
    "CONSUMER.PENDING": consumer_pending,
    "CONSUMER.NAMES": consumer_names,
    "CONSUMER.LIST": consumer_list,
    "CONSUMER.DELETE": consumer_delete,
    "CONSUMER.PAUSE": consumer_pause,
    "CONSUMER.RESET": consumer_reset,
    "CONSUMER.UNPIN": consumer_unpin,
}
