"""The loader of a restored stream: writes the items of an archive to the stream's storage, before the stream exists."""

from __future__ import annotations

from msgspec.structs import replace

from jetlake.errors import ApiError, DecodeError, api_error
from jetlake.model.account import AccountLimits
from jetlake.model.archive.items import (
    ArchivedConsumer,
    ArchivedMessage,
    ArchivedState,
    ConsumerPosition,
    Item,
    SkippedSequence,
)
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import FOREVER, parse_lifetime
from jetlake.model.enums import RetentionPolicy, StorageType
from jetlake.model.rules.consumer_rules import ConsumerRules, check_consumer, check_workqueue
from jetlake.model.rules.limits import ServerLimits, consumers_max
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import find_value
from jetlake.protocol.subjects import is_valid_publish
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.server.engine.storage.consumer_storage import ConsumerRecord, ConsumerStorage
from jetlake.server.engine.storage.storage import SavedIds, SavedLifetimes, StreamStorage
from jetlake.server.engine.stream.headers import MSG_ID, TTL
from jetlake.server.engine.stream.rules import limits_of
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.steps import finish

# Appended messages are handed to the disk when they take this much memory.
_FLUSH_BYTES = 1024 * 1024

LoadedConsumer = tuple[ConsumerRecord, ConsumerStorage, ConsumerState]
"""A consumer whose files are written, and where it stands."""


class StreamLoader:
    """Fills the storage of one stream.

    Args:
        storage: the storage, held: a restart removes it.
        config: the stream's configuration, checked.
        usage: the stream's share of account and server usage.
        limits: the server's limits for consumers.
        account: the account's limits.
        now_ns: when the restore begins.

    Attributes:
        begun_ns: when the restore began.
        created_ns: when the stream was created: then, unless the archive tells.
        missing: number of messages that the backup counts and the archive has not held so far.
    """

    def __init__(
        self,
        storage: StreamStorage,
        config: StreamConfig,
        usage: StreamUsage,
        limits: ServerLimits,
        account: AccountLimits,
        now_ns: int,
    ) -> None:
        self.storage = storage
        self.config = config
        self.usage = usage
        self.created_ns = self.begun_ns = now_ns
        self._rules = ConsumerRules(stream=config, pedantic=False, server=limits, account=account)
        self.missing = 0
        self._last_sequence = 0
        self._may_begin_anywhere = False
        self._has_first = False
        self._limits = limits_of(config)
        # Ids and deadlines, saved for the stream's start, which would otherwise read all headers.
        self._has_ids = False
        self._ids: list[tuple[bytes, int, int]] = []
        self._deadlines: list[tuple[int, int]] = []
        self._ageless: list[int] = []
        self._unflushed = 0
        self._consumers: list[ArchivedConsumer] = []

    def add(self, item: Item) -> None:
        """Store an item of the archive.

        Raises:
            DecodeError: it contradicts an earlier item.
            ApiError: the account's or server's limits do not allow it.
            StoreError: the disk refused.
        """
        if isinstance(item, ArchivedMessage):
            self._add_message(item)
        elif isinstance(item, SkippedSequence):
            self._skip(item.sequence)
        elif isinstance(item, ArchivedState):
            self._begin(item)
        else:
            self._consumers.append(self._checked(item))

    def _begin(self, state: ArchivedState) -> None:
        self.created_ns = state.created_ns or self.begun_ns
        self.missing = state.messages
        self._last_sequence = state.last_sequence
        self._may_begin_anywhere = state.first_sequence is None
        self._has_first = state.first_sequence != 0
        if state.first_sequence is not None and state.first_sequence > 1:
            self.storage.store.advance_to(state.first_sequence)

    def _add_message(self, message: ArchivedMessage) -> None:
        subject, time_ns, sequence, header, payload = message
        self._inbox_state(sequence)
        self.missing -= 1
        if not is_valid_publish(subject):
            raise DecodeError(f"message sequence {sequence} has an invalid subject")
        if header and not (header.startswith(b"NATS/1.0") and header.endswith(b"\r\n\r\n")):
            raise DecodeError(f"message sequence {sequence} has an invalid header")
        if 0 < self.config.max_msg_size < len(header) + len(payload):
            raise DecodeError(f"message sequence {sequence} exceeds maximum message size")
        if header:
            self._note_headers(header, sequence, time_ns)
        self.storage.store.append(subject, header, payload, time_ns)
        self._unflushed += len(subject) + len(header) + len(payload)
        if self._unflushed > _FLUSH_BYTES:
            self.flush()

    def _note_headers(self, header: bytes, sequence: int, time_ns: int) -> None:
        if message_id := find_value(header, MSG_ID):
            self._has_ids = True
            if time_ns > self.begun_ns - self.config.duplicate_window:
                self._ids.append((message_id, sequence, time_ns))
        if self.config.allow_msg_ttl and (text := find_value(header, TTL)):
            lifetime_ns = parse_lifetime(text)
            if lifetime_ns == FOREVER:
                self._ageless.append(sequence)
            elif lifetime_ns is not None:
                self._deadlines.append((time_ns + lifetime_ns, sequence))

    def _inbox_state(self, sequence: int) -> None:
        """Let the next message have this sequence; those before it are deleted."""
        store = self.storage.store
        expected = store.last_sequence + 1
        if self._may_begin_anywhere and sequence > 1:
            store.advance_to(sequence)
        elif sequence < expected or not self._has_first:
            raise DecodeError(f"message sequence {sequence} out of order")
        elif sequence > expected:
            store.skip(sequence - expected)
        self._may_begin_anywhere = False
        self._last_sequence = max(self._last_sequence, sequence)

    def _skip(self, sequence: int) -> None:
        store = self.storage.store
        if sequence <= store.last_sequence:
            store.remove(sequence)
        elif self._may_begin_anywhere:
            store.advance_to(sequence + 1)
            self._last_sequence = max(self._last_sequence, sequence)
        else:
            self._inbox_state(sequence)
            store.skip(1)

    def flush(self) -> None:
        """Write the appended messages to the disk, and count them.

        Raises:
            ApiError: the account's or server's limits are exceeded.
            StoreError: the disk refused.
        """
        self._unflushed = 0
        self.storage.store.flush()
        # A little at a time; the stream applies its age limit when it opens.
        self.storage.store.enforce(self._limits, self.begun_ns)
        self.usage.set_used(self.storage.store.bytes)
        if not self.usage.has_room(0):
            raise api_error(10047 if self.config.storage is StorageType.FILE else 10028)

    def _checked(self, consumer: ArchivedConsumer) -> ArchivedConsumer:
        config = consumer.config
        if not config.name:
            config = replace(config, name=consumer.name)
        try:
            if config.name != consumer.name:
                raise DecodeError("consumer names do not match")
            config = self._checked_config(config)
        except DecodeError as error:
            raise DecodeError(f'failed to add consumer "{consumer.name}": {error}') from None
        except ApiError as error:
            reason = f"{error.description} ({error.err_code})"
            raise DecodeError(f'failed to add consumer "{consumer.name}": {reason}') from None
        return ArchivedConsumer(consumer.name, config, consumer.position, consumer.created_ns)

    def _checked_config(self, config: ConsumerConfig) -> ConsumerConfig:
        checked = check_consumer(config, self._rules)
        others = [other.config for other in self._consumers]
        if len(others) >= consumers_max(self.config.max_consumers, self._rules.account):
            raise api_error(10026)
        if any(other.name == config.name for other in others):
            raise DecodeError("the archive has it twice")
        if self.config.retention is RetentionPolicy.WORKQUEUE:
            finish(check_workqueue(checked, others))
        return replace(checked, metadata=config.metadata)

    def complete(self) -> tuple[list[LoadedConsumer], list[Syncable]]:
        """Write the rest once the archive is complete.

        Returns:
            The consumers, and the files that must be durable before clients may see the stream.

        Raises:
            StoreError: the disk refused.
        """
        store = self.storage.store
        if self._last_sequence > store.last_sequence:
            if store.messages:
                store.skip(self._last_sequence - store.last_sequence)
            else:
                store.advance_to(self._last_sequence + 1)
        self.flush()
        if self._has_ids:
            self.storage.save_ids(SavedIds(store.last_sequence, self._ids))
        if self.config.allow_msg_ttl:
            self.storage.save_lifetimes(SavedLifetimes(store.last_sequence, self._deadlines, self._ageless))
        syncables: list[Syncable] = [store] if store.durable else []
        loaded = []
        for consumer in self._consumers:
            state = _stored_state(consumer.position, consumer.config.max_deliver)
            record = ConsumerRecord(
                name=consumer.name,
                config=consumer.config,
                created_ns=consumer.created_ns or self.begun_ns,
                start=1 if state.delivered_consumer else state.delivered_stream + 1,
                passed=state.delivered_stream if self.config.retention is RetentionPolicy.WORKQUEUE else 0,
            )
            storage = self.storage.create_consumer(record)
            storage.journal.replace(state)
            if storage.folder is not None:
                syncables += [storage.folder, storage.journal]
            loaded.append((record, storage, state))
        return loaded, syncables

    def discard(self) -> Syncable | None:
        """Remove all that was stored; return the removal, which is durable once the files are gone.

        Raises:
            StoreError: the files could not be removed; a restart removes them.
        """
        self.usage.release()
        return self.storage.delete()


def _stored_state(position: ConsumerPosition, max_deliver: int) -> ConsumerState:
    """Return an archived position as a journal holds it.

    Args:
        position: the consumer's position in the archive.
        max_deliver: most deliveries of a message. A message that is not pending and was delivered again reached it;
            without a limit there is no such message.
    """
    redelivered = position.redelivered
    return ConsumerState(
        delivered_consumer=position.delivered.consumer_seq,
        delivered_stream=position.delivered.stream_seq,
        floor_consumer=position.ack_floor.consumer_seq,
        floor_stream=position.ack_floor.stream_seq,
        pending={
            sequence: (pending.sequence, max(pending.timestamp, 0), redelivered.get(sequence, 0) + 1)
            for sequence, pending in sorted(position.pending.items())
        },
        deliveries={
            sequence: count + 1
            for sequence, count in redelivered.items()
            if count and (sequence in position.pending or max_deliver > 0)
        },
    )
