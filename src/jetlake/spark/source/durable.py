"""The durable consumer by which a query holds its place in a work queue or interest stream.

It is the lock that keeps other readers of a work queue away, and the interest that keeps an interest stream's messages.
A query marks it as its own with a random owner, which its offsets carry: so another query, or the same one after its
checkpoint was deleted, finds out before it takes or releases anything.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ApiError, ConsumerHeldError, ConsumerNotFoundError, DataLossError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.spark.options.source_options import SourceOptions

__all__ = [
    "TAKEN_MAX",
    "SharedConsumer",
    "claim",
    "consumer_name",
    "deleted_consumer_error",
    "ensure_durable",
    "ensure_shared",
]

_MARK = "jetlake.spark"
_OWNER = "jetlake.owner"
_ACK_WAIT_S = 300.0
TAKEN_MAX = 10_000
"""Most messages that an at-least-once query takes for one batch, unless its options say fewer."""

_NOT_UNIQUE = (10099, 10100)


def consumer_name(options: SourceOptions, stream: str) -> str:
    """Return the name that the options give, or one that follows from stream and filters."""
    if options.consumer:
        return options.consumer
    digest = hashlib.sha256("\n".join([stream, *sorted(options.subjects)]).encode()).hexdigest()[:12]
    return f"jetlake-spark-{digest}"


def deleted_consumer_error(stream: str, consumer: str) -> DataLossError:
    """Return the error for an interest stream that did not keep its messages for the query all the time."""
    return DataLossError(
        f"consumer {consumer} of interest stream {stream} was deleted while the query did not run, so messages "
        "published since then may not have been kept. To go on without them set option failOnDataLoss=false"
    )


def ensure_durable(api: StreamApi, stream: str, options: SourceOptions, owner: str) -> bool:
    """Make sure that the query's durable consumer is there and nobody else's; says whether it was there before.

    Raises:
        ConsumerHeldError: it belongs to another query or program, or another consumer takes the same messages.
    """
    name = consumer_name(options, stream)
    try:
        info = api.consumer_info(stream, name)
    except ConsumerNotFoundError:
        _create(api, stream, _config(name, options))
        return False
    _check_ours(stream, info, options, owner)
    return True


def _check_ours(stream: str, info: ConsumerInfo, options: SourceOptions, owner: str) -> None:
    if _MARK not in info.config.metadata:
        raise ConsumerHeldError(
            f"consumer {info.name} of stream {stream} exists and was not made by a Spark query: choose another name "
            "with option consumer, or use option guarantee=atLeastOnce to share it"
        )
    if set(info.config.filters) != set(options.subjects):
        raise ConsumerHeldError(
            f"consumer {info.name} of stream {stream} has the filters {list(info.config.filters)}, the query "
            f"{list(options.subjects)}: choose another name with option consumer; or, if the query that made it is "
            "gone for good, delete the consumer"
        )
    holder = info.config.metadata.get(_OWNER, "")
    if holder and holder != owner and not options.take_over:
        raise ConsumerHeldError(
            f"consumer {info.name} of stream {stream} belongs to another query, which would lose what this one "
            "releases: choose another name with option consumer. If that query is gone for good (its checkpoint was "
            "deleted), delete the consumer or set option consumerTakeover=true once"
        )


def claim(api: StreamApi, stream: str, options: SourceOptions, owner: str) -> None:
    """Write the owner into the consumer; called once the owner is in the query's log.

    Raises:
        ConsumerHeldError: another query was faster.
    """
    info = api.consumer_info(stream, consumer_name(options, stream))
    if info.config.metadata.get(_OWNER) == owner:
        return
    _check_ours(stream, info, options, owner)
    metadata = {key: value for key, value in info.config.metadata.items() if not key.startswith("_nats.")}
    config = msgspec.structs.replace(info.config, metadata={**metadata, _OWNER: owner})
    api.create_consumer(stream, config, ConsumerAction.UPDATE)


class SharedConsumer(NamedTuple):
    """The durable consumer of an at-least-once query.

    Attributes:
        is_new: whether it was missing, and is created.
        request_max: most messages that one request may ask for.
    """

    is_new: bool
    request_max: int


def ensure_shared(api: StreamApi, stream: str, options: SourceOptions) -> SharedConsumer:
    """Make sure that the durable consumer of an at-least-once query is there, which others may use too.

    Raises:
        ConsumerHeldError: it does not wait for explicit acknowledgements, or another consumer takes the same messages.
    """
    name = consumer_name(options, stream)
    try:
        info = api.consumer_info(stream, name)
    except ConsumerNotFoundError:
        pending_max = min(options.max_messages or TAKEN_MAX, TAKEN_MAX)
        _create(api, stream, _config(name, options, pending_max))
        return SharedConsumer(True, TAKEN_MAX)
    if info.config.ack_policy is not AckPolicy.EXPLICIT or info.config.is_push:
        raise ConsumerHeldError(
            f"consumer {name} of stream {stream} is no pull consumer with explicit acknowledgement, which "
            "guarantee=atLeastOnce needs: name another one with option consumer"
        )
    if options.subjects and set(info.config.filters) != set(options.subjects):
        raise ConsumerHeldError(
            f"consumer {name} of stream {stream} hands out {', '.join(info.config.filters) or 'all subjects'}, not "
            f"{', '.join(options.subjects)}: leave option subjects away, or name another consumer"
        )
    return SharedConsumer(False, info.config.max_batch if info.config.max_batch > 0 else TAKEN_MAX)


def _create(api: StreamApi, stream: str, config: ConsumerConfig) -> None:
    try:
        api.create_consumer(stream, config)
    except ApiError as error:
        if error.err_code not in _NOT_UNIQUE:
            raise
        raise ConsumerHeldError(
            f"another consumer of work queue {stream} takes the same messages, so Spark cannot have them for itself "
            f"({error}): delete it, give other subjects, or use option guarantee=atLeastOnce with its name in option "
            "consumer"
        ) from None


def _config(name: str, options: SourceOptions, max_ack_pending: int = 0) -> ConsumerConfig:
    filters = options.subjects
    return ConsumerConfig(
        name=name,
        durable_name=name,
        description="holds the place of a Spark query",
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=nanoseconds(_ACK_WAIT_S),
        max_ack_pending=max_ack_pending,
        filter_subject=filters[0] if len(filters) == 1 else "",
        filter_subjects=filters if len(filters) > 1 else (),
        metadata={_MARK: "1"},
    )
