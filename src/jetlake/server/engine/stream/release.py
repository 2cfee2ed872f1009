"""The release of stored batches: PubAcks leave and readers see the messages once the disk has them.

What is always true:

- `visible_sequence` never passes the newest durable message. A reader sees no newer one, so a sequence that anyone has
  seen is never given to another message, also when the disk refuses and appended messages are rolled back.
- A batch is answered once: with PubAcks when it is durable, or with an error after its messages were rolled back.
- PubAcks and republished messages leave in the order of the batches. A batch that rolls up older messages waits for a
  second sync, of their tombstones; until then a power cut brings these messages back. Batches behind it wait with it:

      stored ── sync of the messages ──> visible ──(rolls up)── sync of the tombstones ──> acknowledged
                                             └───────────────(nothing held back)─────────────────┘

- Tombstones are written after the messages that caused them are durable: a crash leaves both, never neither.
- Messages that wait for the disk are bounded; while there are more, publishers are refused (`is_overloaded`).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, StoreError, api_error
from jetlake.model.publish import encode_pub_ack_error
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.stream.retention import AnyConsumer

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

# Messages that may wait for the disk; more are refused.
WAITING_MAX = 100_000
WAITING_BYTES_MAX = 128 * 1024 * 1024


class Release:
    """The batches of one stream that wait for the disk, and how far its messages are released to readers.

    Attributes:
        store: the stream's messages.
        visible_sequence: the newest durable message; readers see no newer one.
    """

    def __init__(self, stream: Stream) -> None:
        self.store = stream.store
        self.visible_sequence = stream.store.last_sequence
        self._stream = stream
        self._commit = stream.services.commit
        self._account = stream.account
        self._is_closed = False
        self._waiting = 0
        self._waiting_bytes = 0
        # Durable batches that are not acknowledged: a roll-up that waits for its tombstones, and those behind it.
        self._held: deque[_HeldBatch] = deque()

    @property
    def is_overloaded(self) -> bool:
        """Whether new messages are refused because too many wait for the disk."""
        return self._waiting > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX

    def when_durable(self, batch: Batch, count: int, *, has_stored: bool) -> None:
        """Release a batch of `count` messages once the disk has it."""
        commit, store = self._commit, self.store
        if not store.durable or not self._stream.rules.waits_for_disk:
            if store.durable:
                commit.mark(store)
            self._show(batch)
            self._answer(batch, None)
            return
        self._waiting += count
        self._waiting_bytes += batch.bytes
        if has_stored:
            commit.mark(store)
        release = partial(self._release_waiting, count, batch)
        if batch.keeps_ids:
            self._stream.ids.when_kept(release)
        else:
            commit.when_durable(store, release)

    def roll_back(self, batch: Batch, error: StoreError) -> None:
        """Refuse a batch after a store error, which rolls back all messages appended since the last flush."""
        # sometimes: appended messages are rolled back
        self.store.roll_back(error)
        self._commit.fail(self.store, error)
        self._commit.failed(self.store, error)
        self._answer(batch, error)

    def _release_waiting(self, count: int, batch: Batch, error: JetlakeError | None) -> None:
        store = self.store
        waits_for_tombstones = (
            batch.rolls_up and error is None and not self._is_closed and (store.needs_flush() or store.needs_sync())
        )
        if error is None:
            self._show(batch)
        if not waits_for_tombstones and not self._held:
            self._answer_waiting(count, batch, error)
            return
        held = _HeldBatch(count, batch, error, is_ready=not waits_for_tombstones)
        self._held.append(held)
        if waits_for_tombstones:
            self._commit.mark(store)
            self._commit.when_durable(store, partial(self._rolled_up, held))

    def _rolled_up(self, held: _HeldBatch, _error: JetlakeError | None) -> None:
        """Acknowledge a roll-up, whether or not its tombstones could be written, and the ready batches behind it."""
        held.is_ready = True
        while self._held and self._held[0].is_ready:
            held = self._held.popleft()
            self._answer_waiting(held.count, held.batch, held.error)

    def _answer_waiting(self, count: int, batch: Batch, error: JetlakeError | None) -> None:
        self._waiting -= count
        self._waiting_bytes -= batch.bytes
        self._answer(batch, error)
        if self.store.needs_flush() and not self._is_closed:
            # Removals are written only after the messages that caused them are durable.
            self._commit.mark(self.store)

    def _show(self, batch: Batch) -> None:
        """Show a durable batch to readers."""
        if not self._is_closed:
            self.show(batch.last_sequence)
        if batch.interested:
            self._stream.wake(batch.interested)

    def _answer(self, batch: Batch, error: JetlakeError | None) -> None:
        """Acknowledge a durable batch, or refuse a failed one."""
        rules = self._stream.rules
        if error is not None:
            refusal = encode_pub_ack_error(rules.config.name, api_error(10077, err=str(error)))
            batch.acks = [(reply, ack if ack.startswith(b'{"error"') else refusal) for reply, ack in batch.acks]
            batch.acks += [(reply, refusal) for reply in batch.replies if reply]
            batch.replies = []
            self._stream.after_rollback()
        if rules.acknowledges:
            if batch.replies:
                self._account.acknowledge(batch.replies, rules.ack_prefix, batch.first_sequence)
            if batch.acks:
                self._account.answer(batch.acks)
        if error is None:
            for subject, header, payload in batch.republished:
                self._account.publish(subject, b"", header, payload)
        if batch.on_durable is not None:
            batch.on_durable(error)

    def show(self, sequence: int) -> None:
        """Make messages up to the sequence visible: they are durable."""
        self.visible_sequence = max(self.visible_sequence, sequence)

    def close(self) -> None:
        """Show nothing more to readers."""
        self._is_closed = True


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
        rolls_up: a message rolled up others, and its acknowledgement waits for their tombstones.
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
        self.interested: dict[AnyConsumer, int] = {}
        self.last_sequence = 0
        self.keeps_ids = False
        self.checks_room = checks_room
        self.rolls_up = False


class _HeldBatch:
    """A batch that is durable and not acknowledged.

    Attributes:
        is_ready: the batch waits only for those before it.
    """

    __slots__ = ("batch", "count", "error", "is_ready")

    def __init__(self, count: int, batch: Batch, error: JetlakeError | None, *, is_ready: bool) -> None:
        self.count = count
        self.batch = batch
        self.error = error
        self.is_ready = is_ready
