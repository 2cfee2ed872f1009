"""The durable consumers of streaming queries: how a query holds its position, releases messages, and shows its lag.

In a work queue the durable consumer is the lock that keeps other readers away; in an interest stream it is the interest
that keeps the messages. A query marks it with a random owner, which its offsets carry: so another query, or the same
one after its checkpoint was deleted, is refused before it takes or releases anything.

Finished batches are released by the stream's retention: a work queue is purged up to the offset, an interest stream's
consumer is reset to it (server 2.14), limits streams need nothing. The server takes no condition with a purge. So the
stream's identity is checked right before, together with the durable consumer, which a recreated stream does not have;
and once more right after, so that a stream that was replaced between the two is reported and not passed over.
"""

from __future__ import annotations

import hashlib
import logging
from typing import NamedTuple

import msgspec

from jetlake.client.tables.data_loss import check_not_restored
from jetlake.client.tables.planning import StreamOffset, Version, version_text
from jetlake.client.tables.stream_api import StreamApi
from jetlake.errors import (
    ApiError,
    ConsumerHeldError,
    ConsumerNotFoundError,
    DataLossError,
    PermissionsError,
    StreamNotFoundError,
    StreamRecreatedError,
    UnsupportedStreamError,
)
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.enums import AckPolicy, ConsumerAction, DeliverPolicy, RetentionPolicy
from jetlake.model.stream import StreamConfig
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.stream_watch import StreamWatch

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
    """Return the error for an interest stream that did not keep its messages for the query at all times."""
    return DataLossError(
        f"consumer {consumer} of interest stream {stream} was deleted while the query did not run, so messages "
        "published since then may not have been kept. To continue without them, set option failOnDataLoss=false"
    )


def ensure_durable(api: StreamApi, stream: str, options: SourceOptions, owner: str) -> bool:
    """Ensure that the query's durable consumer exists and belongs to no other query; return whether it existed.

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
            f"consumer {info.name} of stream {stream} exists and was not created by a Spark query: choose another name "
            "with option consumer, or use option guarantee=atLeastOnce to share it"
        )
    if set(info.config.filters) != set(options.subjects):
        raise ConsumerHeldError(
            f"consumer {info.name} of stream {stream} filters {list(info.config.filters)}, and the query "
            f"{list(options.subjects)}: choose another name with option consumer; or delete the consumer, if the query "
            "that created it will not run again"
        )
    holder = info.config.metadata.get(_OWNER, "")
    if holder and holder != owner and not options.take_over:
        raise ConsumerHeldError(
            f"consumer {info.name} of stream {stream} belongs to another query, which would lose the messages that "
            "this one releases: choose another name with option consumer. If that query will not run again (its "
            "checkpoint was deleted), delete the consumer or set option consumerTakeover=true once"
        )


def claim(api: StreamApi, stream: str, options: SourceOptions, owner: str) -> None:
    """Write the owner into the consumer; called when the owner is in the query's log.

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


def check_still_held(stream: str, info: ConsumerInfo, owner: str) -> None:
    """Check that no other query has taken the consumer over from the query with that owner.

    A query checks before each batch and before each release: a message that it released would be missing in the other.

    Raises:
        ConsumerHeldError: another query has taken it over.
    """
    holder = info.config.metadata.get(_OWNER, "")
    if owner and holder and holder != owner:
        raise ConsumerHeldError(
            f"another query has taken over consumer {info.name} of stream {stream} (option consumerTakeover), so this "
            "query stops and releases nothing more. Run only one of the two"
        )


class SharedConsumer(NamedTuple):
    """The durable consumer of an at-least-once query.

    Attributes:
        is_new: whether it was missing, and was created.
        request_max: most messages that one request may ask for.
    """

    is_new: bool
    request_max: int


def ensure_shared(api: StreamApi, stream: str, options: SourceOptions) -> SharedConsumer:
    """Ensure that the durable consumer of an at-least-once query exists, which others may use too.

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
            f"consumer {name} of stream {stream} is not a pull consumer with explicit acknowledgement, which "
            "guarantee=atLeastOnce needs: name another one with option consumer"
        )
    if options.subjects and set(info.config.filters) != set(options.subjects):
        raise ConsumerHeldError(
            f"consumer {name} of stream {stream} delivers {', '.join(info.config.filters) or 'all subjects'}, not "
            f"{', '.join(options.subjects)}: leave out option subjects, or name another consumer"
        )
    return SharedConsumer(False, info.config.max_batch if info.config.max_batch > 0 else TAKEN_MAX)


def _create(api: StreamApi, stream: str, config: ConsumerConfig) -> None:
    try:
        api.create_consumer(stream, config)
    except ApiError as error:
        if error.err_code not in _NOT_UNIQUE:
            raise
        raise ConsumerHeldError(
            f"another consumer of work queue {stream} receives the same messages, so Spark cannot read them "
            f"exclusively ({error}): delete it, choose other subjects, or use option guarantee=atLeastOnce with its "
            "name in option consumer"
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


def release(api: StreamApi, how: str, stream: str, options: SourceOptions, offset: StreamOffset) -> None:
    """Release the messages before the offset: `purge` removes them, `reset` moves the consumer behind them.

    Raises:
        StreamRecreatedError: it is another stream.
        ConsumerHeldError: another query has taken the consumer over; nothing was released.
        UnsupportedStreamError: the server or the login does not allow it.
    """
    name = consumer_name(options, stream)
    try:
        # A reset of a consumer that does not exist is never answered, as if the server were slow: so ask first.
        check_still_held(stream, api.consumer_info(stream, name), offset.owner)
        if how == "reset":
            check_not_restored(api, stream, offset)
            api.reset_consumer(stream, name, offset.next)
            return
        removed = 0
        for subject in options.subjects or ("",):
            check_not_restored(api, stream, offset)
            removed += api.purge(stream, offset.next, subject)
        if api.stream_info(stream).created != offset.created:
            raise StreamRecreatedError(
                f"stream {stream} was deleted and created again while a finished batch was "
                f"released: up to {removed} messages of the new stream may have been removed unread"
            )
    except (StreamNotFoundError, PermissionsError, ApiError) as error:
        raise UnsupportedStreamError(
            f"stream {stream} did not release the messages of a finished batch ({how}: {error}). They are still there "
            "and will be released when the query runs again with the permission to do so; or use option "
            "guarantee=atLeastOnce"
        ) from error


CONSUMER_RESET: Version = (2, 14, 0)


def choose_release(config: StreamConfig, version: Version, options: SourceOptions) -> str:
    """Return how a streaming query releases a finished batch: `none`, `purge`, `reset` or `ack`.

    Raises:
        UnsupportedStreamError: there is no way that keeps the guarantee, with what to change.
    """
    name = config.name
    if config.retention is RetentionPolicy.LIMITS:
        if options.guarantee == "atLeastOnce":
            raise UnsupportedStreamError(
                f"stream {name} has limits retention, which is always read exactly once: leave out option guarantee"
            )
        return "none"
    if options.guarantee == "atLeastOnce":
        return "ack"
    if config.retention is RetentionPolicy.WORKQUEUE:
        if config.deny_purge or config.sealed:
            raise UnsupportedStreamError(
                f"work queue {name} does not allow purging, which removes finished batches: "
                "allow it, or use option guarantee=atLeastOnce"
            )
        return "purge"
    if version < CONSUMER_RESET:
        raise UnsupportedStreamError(
            f"stream {name} has interest retention; to release finished batches the server must be "
            f"{version_text(CONSUMER_RESET)} or newer and is {version_text(version)}: upgrade it, "
            "or use option guarantee=atLeastOnce"
        )
    return "reset"


_LAG_MARK = "jetlake.spark.lag"
_log = logging.getLogger("jetlake.spark")


class LagConsumer:
    """The durable consumer of option `lagConsumer`, moved behind each finished batch: its pending messages are the lag.

    The consumer only shows the position, which is in the checkpoint. So a query continues when the consumer cannot be
    moved, and logs that once.
    """

    def __init__(self, options: SourceOptions, watch: StreamWatch) -> None:
        self._options = options
        self._watch = watch
        self._shown: dict[tuple[str, str], int] = {}
        self._failed = False

    def show(self, stream: str, created: str, sequence: int) -> None:
        """Move the consumer to that sequence of the stream.

        Raises:
            ConsumerHeldError: the consumer of that name was not created for this.
        """
        name = self._options.lag_consumer
        if not name or self._shown.get((stream, created)) == sequence:
            return
        try:
            self._watch.ask(lambda api: self._move(api, stream, name, sequence))
            self._shown[(stream, created)] = sequence
        except (ApiError, PermissionsError) as error:
            if not self._failed:
                _log.warning("consumer %s of stream %s does not show the query's lag: %s", name, stream, error)
            self._failed = True

    def _move(self, api: StreamApi, stream: str, name: str, sequence: int) -> None:
        filters = self._options.subjects
        try:
            # A reset of a consumer that does not exist is never answered.
            info = api.consumer_info(stream, name)
        except ConsumerNotFoundError:
            pass
        else:
            if _LAG_MARK not in info.config.metadata:
                raise ConsumerHeldError(
                    f"consumer {name} of stream {stream} exists and was not created to show a query's lag: choose "
                    "another name with option lagConsumer"
                )
            if self._watch.version >= CONSUMER_RESET and set(info.config.filters) == set(filters):
                api.reset_consumer(stream, name, sequence)
                return
            api.forget_consumer(stream, name)
        config = ConsumerConfig(
            name=name,
            durable_name=name,
            description="shows how far a Spark query is",
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subject=filters[0] if len(filters) == 1 else "",
            filter_subjects=filters if len(filters) > 1 else (),
            metadata={_LAG_MARK: "1"},
        )
        api.create_consumer(stream, config)
