"""The release of stored batches: PubAcks leave and readers see the messages once the disk has them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from jetlake.errors import JetlakeError, StoreError, api_error
from jetlake.model.enums import PersistMode
from jetlake.model.publish import encode_pub_ack_error
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.core.commit import Action, Commit
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.stream.consumer_contract import StreamConsumer
from jetlake.server.engine.stream.ids.message_ids import MessageIds
from jetlake.store.interface import MessageStore

__all__ = ["Batch", "BatchRelease"]

# Messages that may wait for the disk; more are refused.
WAITING_MAX = 100_000
WAITING_BYTES_MAX = 128 * 1024 * 1024


class Batch:
    """The messages that one cycle stored in a stream, and their acknowledgements.

    Attributes:
        acks: reply subject and PubAck of each message that was checked one by one.
        answers: reply subject and payload of answers that need not wait for the disk.
        replies: reply subjects of the messages that were stored as one run; empty where a message has none.
        first_sequence: sequence of the run's first message.
        subjects: subjects of the stored messages, for consumers to count.
        announced: number of subjects that consumers have counted.
        bytes: bytes that the messages take in the store.
        republished: subject, header and payload of messages to republish.
        interested: consumers with new messages.
        last_sequence: the stream's last sequence after the batch.
        keeps_ids: the id log has ids of messages that were not stored for lack of interest.
        checks_room: account or server are so full that every message's size is checked.
        rolls_up: a message took the place of others, whose removal is part of its acknowledgement.
        on_durable: called with None, or the error, when the batch is released.
    """

    __slots__ = (
        "acks",
        "announced",
        "answers",
        "bytes",
        "checks_room",
        "first_sequence",
        "interested",
        "keeps_ids",
        "last_sequence",
        "on_durable",
        "replies",
        "republished",
        "rolls_up",
        "subjects",
    )

    def __init__(self, *, checks_room: bool = False, on_durable: Action | None = None) -> None:
        self.on_durable = on_durable
        self.acks: list[tuple[bytes, bytes]] = []
        self.answers: list[tuple[bytes, bytes]] = []
        self.replies: list[bytes] = []
        self.first_sequence = 0
        self.subjects: list[bytes] = []
        self.announced = 0
        self.bytes = 0
        self.republished: list[tuple[bytes, bytes, bytes]] = []
        self.interested: dict[StreamConsumer, int] = {}
        self.last_sequence = 0
        self.keeps_ids = False
        self.checks_room = checks_room
        self.rolls_up = False


class _Place:
    """The place of a batch among those that are durable and not acknowledged: a roll-up, and what came behind it.

    Attributes:
        is_ready: nothing keeps the batch but those before it.
    """

    __slots__ = ("batch", "count", "error", "is_ready")

    def __init__(self, count: int, batch: Batch, error: JetlakeError | None, *, is_ready: bool) -> None:
        self.count = count
        self.batch = batch
        self.error = error
        self.is_ready = is_ready


class BatchRelease:
    """The batches of one stream that wait for the disk, and how far its messages are released to readers.

    Attributes:
        store: the stream's messages.
        visible_sequence: the newest durable message. Readers see no newer one, so that a sequence that anyone has seen
            is never given to another message.

    Args:
        store: the stream's messages.
        commit: tells when the store is durable.
        account: sends PubAcks and republished messages.
        ids: tells when the id log is durable.
        wake: makes consumers ready that wait for new messages.
        on_undone: called after appended messages were undone.
    """

    def __init__(
        self,
        store: MessageStore,
        commit: Commit,
        account: Account,
        ids: MessageIds,
        *,
        wake: Callable[[Iterable[StreamConsumer]], None],
        on_undone: Callable[[], None],
    ) -> None:
        self.store = store
        self.visible_sequence = store.last_sequence
        self._commit = commit
        self._account = account
        self._ids = ids
        self._wake = wake
        self._on_undone = on_undone
        self._is_closed = False
        self._waiting = 0
        self._waiting_bytes = 0
        # Acknowledgements and republished messages keep their order where a roll-up waits for a second sync.
        self._in_order: deque[_Place] = deque()

    def configure(self, config: StreamConfig, ack_prefix: bytes) -> None:
        """Apply the stream's configuration, new or changed.

        Args:
            ack_prefix: the start of the stream's PubAcks, up to the sequence.
        """
        self._name = config.name
        self._ack_prefix = ack_prefix
        self._acknowledges = not config.no_ack
        self._waits_for_disk = self.store.durable and config.persist_mode is not PersistMode.ASYNC

    @property
    def is_overloaded(self) -> bool:
        """Whether so much waits for the disk that new messages are refused."""
        return self._waiting > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX

    def when_durable(self, batch: Batch, count: int, *, has_stored: bool) -> None:
        """Release a stored batch of so many messages once the disk has it."""
        commit = self._commit
        if not self._waits_for_disk:
            if self.store.durable:
                commit.mark(self.store)
            self._release(batch, None)
            return
        self._waiting += count
        self._waiting_bytes += batch.bytes
        if has_stored:
            commit.mark(self.store)
        release = partial(self._release_waiting, count, batch)
        if batch.keeps_ids:
            self._ids.when_kept(release)
        else:
            commit.when_durable(self.store, release)

    def undo(self, batch: Batch, error: StoreError) -> None:
        """Release a batch after a store error, which undoes all that was appended since the last flush."""
        self.store.take_back(error)
        self._commit.fail(self.store, error)
        self._commit.failed(self.store, error)
        self._release(batch, error)

    def _release_waiting(self, count: int, batch: Batch, error: JetlakeError | None) -> None:
        store = self.store
        # Until the log has the tombstones, a power cut brings back what was rolled up.
        removes = batch.rolls_up and error is None and not self._is_closed
        removes = removes and (store.needs_flush() or store.needs_sync())
        if error is None:
            self._show(batch)
        if not removes and not self._in_order:
            self._answer_counted(count, batch, error)
            return
        place = _Place(count, batch, error, is_ready=not removes)
        self._in_order.append(place)
        if removes:
            self._commit.mark(store)
            self._commit.when_durable(store, partial(self._rolled_up, place))

    def _rolled_up(self, place: _Place, _error: JetlakeError | None) -> None:
        """Acknowledge a roll-up, whatever became of its tombstones, and those that are durable behind it."""
        place.is_ready = True
        while self._in_order and self._in_order[0].is_ready:
            place = self._in_order.popleft()
            self._answer_counted(place.count, place.batch, place.error)

    def _answer_counted(self, count: int, batch: Batch, error: JetlakeError | None) -> None:
        self._waiting -= count
        self._waiting_bytes -= batch.bytes
        self._answer(batch, error)
        if self.store.needs_flush() and not self._is_closed:
            # Removals are written only after the messages that caused them are durable.
            self._commit.mark(self.store)

    def _release(self, batch: Batch, error: JetlakeError | None) -> None:
        if error is None:
            self._show(batch)
        self._answer(batch, error)

    def _show(self, batch: Batch) -> None:
        """Show a durable batch to readers."""
        if not self._is_closed:
            self.show(batch.last_sequence)
        if batch.interested:
            self._wake(batch.interested)

    def _answer(self, batch: Batch, error: JetlakeError | None) -> None:
        """Acknowledge a durable batch, or refuse a failed one."""
        if error is not None:
            self._turn_into_refusals(batch, error)
        if self._acknowledges:
            if batch.replies:
                self._account.acknowledge(batch.replies, self._ack_prefix, batch.first_sequence)
            if batch.acks:
                self._account.answer(batch.acks)
        if error is None:
            for subject, header, payload in batch.republished:
                self._account.publish(subject, b"", header, payload)
        if batch.on_durable is not None:
            batch.on_durable(error)

    def _turn_into_refusals(self, batch: Batch, error: JetlakeError) -> None:
        refusal = encode_pub_ack_error(self._name, api_error(10077, err=str(error)))
        batch.acks = [(reply, ack if ack.startswith(b'{"error"') else refusal) for reply, ack in batch.acks]
        batch.acks += [(reply, refusal) for reply in batch.replies if reply]
        batch.replies = []
        self._on_undone()

    def show(self, sequence: int) -> None:
        """Make messages up to the sequence visible: they are durable."""
        self.visible_sequence = max(self.visible_sequence, sequence)

    def close(self) -> None:
        """Show nothing more to readers."""
        self._is_closed = True
