"""The creation of consumers: new ones, and consumers of a recovered or restored stream."""

from __future__ import annotations

from functools import partial
from random import Random

from msgspec.structs import replace

from jetlake.errors import JetlakeError, StoreError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import ActionKind, RetentionPolicy
from jetlake.model.rules.limits import INACTIVE_THRESHOLD_DEFAULT
from jetlake.server.engine.consumer.consumer import Consumer, filter_of
from jetlake.server.engine.consumer.feed import StartPosition, start_position
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.storage.consumer_storage import ConsumerRecord, ConsumerStorage
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["adopt_consumer", "create_consumer", "does_without", "is_promised", "new_name", "recover_consumers"]

_NAME_LENGTH = 8
_NAME_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# Added to inactive thresholds, so that consumers created together are not removed together.
_JITTER_MIN_NS = 100_000_000
_JITTER_MAX_NS = 1_000_000_000

_RETRY_NS = 1_000_000_000


def create_consumer(stream: Stream, advisories: Advisories, config: ConsumerConfig) -> Steps[Consumer]:
    """Create a consumer with a configuration that has been checked.

    Raises:
        StoreError: the consumer could not be written.
    """
    try:
        # A consumer that starts behind a message must not meet another one under its sequence when its write fails.
        stream.store.flush()
    except StoreError as error:
        if not does_without(stream, config, error):
            raise
    subject_filter = filter_of(config)
    start = yield from start_position(config, stream.store, subject_filter, stream.store.last_sequence)
    if subject_filter is not None and not start.chosen:
        start = replace(start, pending=(yield from stream.count_in_steps(start.sequence, subject_filter)))
    record = ConsumerRecord(
        name=config.name or new_name(stream),
        config=config,
        created_ns=stream.services.clock.now_ns(),
        start=start.sequence,
        resume=start.resume,
    )
    had_missing = bool(stream.storage.missing)
    storage = stream.storage.create_consumer(record)
    consumer = _make(stream, advisories, record, storage, start, subject_filter)
    if storage.folder is not None and stream.visible_sequence < start.sequence - 1:
        # The same for a power cut: the consumer is on disk only after the messages that it starts behind.
        for written in (storage.written, storage.folder):
            assert written is not None
            stream.services.commit.order(stream.store, written)
        consumer.write_after(stream.store)
    _add(stream, consumer)
    _make_durable(consumer)
    if had_missing:
        stream.retention.sweep()
    consumer.events.action(ActionKind.CREATE)
    return consumer


def does_without(stream: Stream, config: ConsumerConfig, refusal: StoreError | None) -> bool:
    """Return whether a consumer needs nothing of a stream's disk that refuses: one in memory, which only reads.

    Refused messages are rolled back, so that the consumer is not shown them; removals may wait.
    """
    if refusal is None or not config.mem_storage:
        return False
    stream.store.roll_back(refusal)
    return True


def recover_consumers(stream: Stream, advisories: Advisories) -> None:
    """Open the stream's consumers from disk, at the positions in their journals."""
    for record, storage in stream.storage.recover_consumers():
        consumer = _make(stream, advisories, record, storage, StartPosition(record.start), filter_of(record.config))
        try:
            consumer.restore(record.resume)
        except StoreError as error:
            stream.storage.set_aside(record.name, str(error))
            continue
        _add(stream, consumer)


def adopt_consumer(
    stream: Stream, advisories: Advisories, record: ConsumerRecord, storage: ConsumerStorage, state: ConsumerState
) -> None:
    """Add a consumer whose files are written, at the position that they hold."""
    consumer = _make(stream, advisories, record, storage, StartPosition(record.start), filter_of(record.config))
    try:
        consumer.continue_from(state, record.resume)
    except StoreError as error:
        stream.storage.set_aside(record.name, str(error))
    else:
        _add(stream, consumer)


def is_promised(consumer: Consumer) -> bool:
    """Return whether a new consumer must survive a power cut: a durable one, or one that the retention depends on.

    Others survive a kill. Clients create them often, for one read.
    """
    return bool(consumer.config.durable_name) or consumer.stream.config.retention is not RetentionPolicy.LIMITS


def _make_durable(consumer: Consumer) -> None:
    """Write and sync a new consumer, and delete it again when that fails."""
    storage, commit = consumer.storage, consumer.services.commit

    def undo(error: JetlakeError | None) -> None:
        if error is not None and not consumer.is_closed:
            commit.forget(consumer.journal, error)
            consumer.hold()
            _remove_refused(consumer, consumer.services.clock.now_ns())

    for syncable in (None if is_promised(consumer) else storage.written, storage.folder):
        if syncable is not None:
            commit.mark_now(syncable)
            commit.when_durable(syncable, undo)


def _remove_refused(consumer: Consumer, now_ns: int) -> None:
    """Remove a consumer that could not be written; while the disk refuses that too, try again each second."""
    if consumer.is_closed:
        return
    try:
        consumer.close(deleted=True)
    except StoreError:
        consumer.services.timers.schedule(now_ns + _RETRY_NS, partial(_remove_refused, consumer))


def _make(
    stream: Stream,
    advisories: Advisories,
    record: ConsumerRecord,
    storage: ConsumerStorage,
    start: StartPosition,
    subject_filter: SubjectFilter | None,
) -> Consumer:
    jitter_ns = _jitter_ns(record.config, stream.services.random)
    return Consumer(stream, advisories, record, storage, start, subject_filter, jitter_ns)


def _add(stream: Stream, consumer: Consumer) -> None:
    stream.add_consumer(consumer)
    consumer.open()


def new_name(stream: Stream) -> str:
    """Return a random name that no consumer of the stream has."""
    while True:
        name = "".join(stream.services.random.choices(_NAME_LETTERS, k=_NAME_LENGTH))
        if name not in stream.consumers:
            return name


def _jitter_ns(config: ConsumerConfig, random: Random) -> int:
    """Return what is added to the inactive threshold: nothing where a push consumer's was configured."""
    if config.is_push and config.inactive_threshold != INACTIVE_THRESHOLD_DEFAULT:
        return 0
    return random.randint(_JITTER_MIN_NS, _JITTER_MAX_NS)
