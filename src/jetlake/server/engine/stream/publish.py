"""The publish path of a stream: messages are received, checked, stored as a batch, and acknowledged when durable.

`receive` and `receive_run` only collect; `store_received` does the work once per cycle of the engine:

    receive ─┐                     ┌ no control headers, no rules: one `append_run` ──┐
    receive ─┼─> store_received ───┤                                                  ├─> enforce limits ─> Release
    run ─────┘   (one Batch)       └ otherwise one by one: check, `write` ────────────┘

    Release: stored ── sync of the messages ──> visible ──(rolls up)── sync of the tombstones ──> acknowledged
                                                   └───────────────(nothing held back)─────────────────┘

What is always true:

- Messages are stored in the order in which they were received, in all streams, plain ones and checked ones alike.
- A message is checked against all messages before it, in the same cycle as well: where a check depends on removals by
  the limits, these are enforced before it.
- A batch is answered once: with PubAcks when it is durable, or with an error after its messages were rolled back. A
  `StoreError` while a batch is stored rolls the whole batch back; a message that cannot be checked because the disk
  cannot be read is refused alone. Duplicates of messages that are stored share neither fate: they are acknowledged,
  or a client that publishes again after a lost PubAck would take a stored message for a refused one.
- `visible_sequence` never passes the newest durable message. A reader sees no newer one, so a sequence that anyone has
  seen is never given to another message, also when the disk refuses and appended messages are rolled back.
- PubAcks and republished messages leave in the order of the batches, and of the messages of each. A batch that rolls up
  older messages waits for a second sync, of their tombstones; until then a power cut brings these messages back.
  Batches behind it wait with it.
- Tombstones are written after the messages that caused them are durable: a crash leaves both, never neither.
- Consumers count a stored message (`_announce`) before it can be removed, and counted as removed.
- An atomic batch is appended as one group, of which a crash keeps all or none. What follows from its messages, such as
  the purge of a roll-up, may flush the store, and so comes after the last of them is appended.
- Messages that wait for the disk are bounded; while there are more, publishers are refused (`is_overloaded`).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import ApiError, JetlakeError, StoreError, api_error
from jetlake.model.encoding.codec import encode
from jetlake.model.publish import encode_pub_ack_error
from jetlake.protocol.frames import PubRun
from jetlake.protocol.headers import remove_key, strip_status
from jetlake.server.engine.batch.atomic_batches import BATCH_ID, AtomicBatches, StagedBatch
from jetlake.server.engine.batch.fast_batches import SUFFIX, FastBatches
from jetlake.server.engine.core.api_level import REQUIRED_LEVEL
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.stream.admission import HEADER_BYTES_MAX, Admission, Checked
from jetlake.server.engine.stream.counters import TOTAL, count, keep_sources
from jetlake.server.engine.stream.headers import (
    MSG_ID,
    ROLLUP,
    TTL,
    has_only_id,
    read_bare_id,
    read_control_headers,
    read_id,
)
from jetlake.server.engine.stream.retention import AnyConsumer
from jetlake.server.engine.stream.rules import StreamRules
from jetlake.store.interface import Incoming
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

AMPLE_ROOM = 2 * 1024 * 1024
"""With more room than this per message, account and server limits are not checked message by message."""

# Headers whose check takes long: the next time of a schedule, the newest message of a pattern of subjects. Such a
# message is stored at once, rather than at the end of the turn with hundreds of others: the turn counts what it costs.
_SLOW_TO_CHECK = (b"\r\nNats-Schedule", b"\r\nNats-Expected-Last-Subject-Sequence-Subject")

_NO_CONTROL: dict[bytes, bytes] = {}

_TOO_MANY_REQUESTS = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


class PublishPath:
    """The publish path of one stream.

    Attributes:
        admission: the checks of messages.
        fast: the open fast batches.
        replaces: a message may replace older ones of its subject.
    """

    def __init__(self, stream: Stream) -> None:
        services = stream.services
        self.admission = Admission(stream)
        self.fast = FastBatches(services, stream.name, stream.rules.ack_prefix)
        self._atomic = AtomicBatches(services, stream.on_batch_abandoned)
        self._stream = stream
        self._store = stream.store
        self._account = stream.account
        self._queue = services.received
        self._store_all_received = services.store_received
        self._usage = stream.usage
        self._consumers = stream.consumers
        self._ids = stream.ids
        self._retention = stream.retention
        self._removal = stream.removal
        self._expiry = stream.expiry
        self._schedules = stream.schedules
        self._release = stream.release
        self._received: list[Incoming] = []  # The second field of each is its reply.
        self._bare_ids: list[bytes] = []  # Of the received messages whose header is a message id and nothing else.
        self._has_ids = False  # A received message has a message id.
        self._has_control = False  # A received message has other control headers, or is too large.
        self._has_fast = False  # A received message belongs to a fast batch.
        self.apply(stream.rules)

    def apply(self, rules: StreamRules) -> None:
        """Apply the stream's rules, new or changed."""
        self._rules = rules
        self._largest = rules.largest  # Each message asks for it.
        self.replaces = rules.replaces
        self._atomic.allow(is_enabled=rules.config.allow_atomic)
        self.fast.allow(is_enabled=rules.config.allow_batched)

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Collect one published message; `store_received` stores it."""
        received = self._received
        if not received:
            self._queue.append(self)
        is_slow = False
        if reply[-4:] == SUFFIX:
            self._has_fast = True
        if header:
            if len(header) > HEADER_BYTES_MAX or len(header) + len(payload) > self._largest:
                self._has_control = True
            elif message_id := read_bare_id(header):
                self._bare_ids.append(message_id)
                self._has_ids = True
            elif header[8:9] == b" ":
                self._has_control = True
                is_slow = any(key in header for key in _SLOW_TO_CHECK)
            elif header.find(b"\r\nNats-") >= 0:  # half the price of `in`
                if has_only_id(header):
                    self._has_ids = True
                else:
                    self._has_control = True
                    is_slow = any(key in header for key in _SLOW_TO_CHECK)
        elif len(payload) > self._largest:
            self._has_control = True
        received.append((subject, reply, header, payload))
        if is_slow:
            self._store_all_received()

    def receive_run(self, run: PubRun) -> None:
        """Collect a run of published messages."""
        if not self._received:
            self._queue.append(self)
        if SUFFIX in run.words:
            self._has_fast = True
        if run.size_max > self._largest:
            self._has_control = True
        if run.ids:
            self._bare_ids += run.ids
            self._has_ids = True
        self._received += zip(run.subjects, run.replies, run.headers, run.payloads, strict=True)

    def store_received(self, now_ns: int) -> None:
        """Store all messages received so far as one batch, acknowledged when the batch is durable."""
        received, self._received = self._received, []
        bare_ids, self._bare_ids = self._bare_ids, []
        has_control, self._has_control = self._has_control, False
        has_ids, self._has_ids = self._has_ids, False
        has_fast, self._has_fast = self._has_fast, False
        if not received:
            return
        if self._release.is_overloaded:
            self._refuse_overload(received)
            return
        store, rules = self._store, self._rules
        now_ns = max(now_ns, store.last_time_ns)
        last_before, bytes_before = store.last_sequence, store.bytes
        batch = Batch(checks_room=not self._usage.has_room(len(received) * AMPLE_ROOM))
        try:
            if (
                has_control
                or rules.checks_each
                or batch.checks_room
                or (has_ids and has_fast)
                or (rules.is_interest and not self.are_wanted(received))
            ):
                for subject, reply, header, payload in received:
                    self._store_checked(subject, reply, header, payload, now_ns, batch)
                    if rules.enforces_each:
                        self.enforce_limits(batch, now_ns)
            elif has_fast:
                if run := self._accept_fast_run(received, now_ns, batch):
                    self._store_run(run, now_ns, batch)
                    self._ids.last = b""
            elif has_ids:
                are_bare = len(bare_ids) == len(received)
                ids = bare_ids if are_bare else [read_id(message[2]) for message in received]
                self._store_run_with_ids(received, ids, now_ns, batch)
            else:
                self._store_run(received, now_ns, batch)
                self._ids.last = b""
            batch.bytes = max(store.bytes - bytes_before, 0)
            if batch.subjects or self._removal.store_limits is not None:
                self.enforce_limits(batch, now_ns)
        except StoreError as error:
            self._refuse_all(received, error, now_ns)
            return
        if batch.answers and rules.acknowledges:
            self._account.answer(batch.answers)
        batch.last_sequence = store.last_sequence
        self._usage.set_used(store.bytes)
        self._release.when_durable(batch, len(received), has_stored=batch.last_sequence != last_before)

    def store_own(self, messages: list[tuple[bytes, bytes, bytes]], now_ns: int) -> None:
        """Store messages that the server itself publishes: subject, header and payload of each.

        Raises:
            StoreError: they could not be stored.
            ApiError: account or server have no room for one of them; that one and those after it are not stored.
        """
        store, rules = self._store, self._rules
        now_ns = max(now_ns, store.last_time_ns)
        last_before, bytes_before = store.last_sequence, store.bytes
        batch = Batch(checks_room=not self._usage.has_room(len(messages) * AMPLE_ROOM))
        refusal: ApiError | None = None
        try:
            for subject, header, payload in messages:
                if rules.transform is not None:
                    subject = rules.transform.apply(subject) or subject
                is_wanted = not rules.is_interest or self._retention.is_wanted(subject)
                size = rules.record_size(subject, header, payload)
                refusal = self.check_room(subject, size, _NO_CONTROL, now_ns, batch, is_wanted=is_wanted)
                if refusal is not None:
                    break
                self.write((subject, header, payload, read_control_headers(header), is_wanted), now_ns, batch)
                if rules.enforces_each:
                    self.enforce_limits(batch, now_ns)
            batch.bytes = max(store.bytes - bytes_before, 0)
            self.enforce_limits(batch, now_ns)
        except StoreError as error:
            self._refuse_all([], error, now_ns)
            raise
        batch.last_sequence = store.last_sequence
        self._usage.set_used(store.bytes)
        self._release.when_durable(batch, len(messages), has_stored=batch.last_sequence != last_before)
        if refusal is not None:
            raise refusal

    # Runs: messages without control headers, in a stream without rules

    def _store_run(self, received: list[Incoming], now_ns: int, batch: Batch) -> None:
        """Store a run of messages with one call of the store."""
        batch.first_sequence = self._store.append_run(received, now_ns)
        batch.replies = [message[1] for message in received]
        if self._consumers or self._schedules.is_enabled:
            batch.subjects = [message[0] for message in received]
            self._schedules.stored_plain(batch.subjects)

    def _store_run_with_ids(
        self, received: list[Incoming], message_ids: list[bytes], now_ns: int, batch: Batch
    ) -> None:
        """Store a run of messages of which some have ids; duplicates are acknowledged as such.

        Args:
            message_ids: of each message; empty for a message without one.
        """
        ids = self._ids
        ids.expect()
        if not ids.window.window_ns:
            self._store_run(received, now_ns, batch)
        elif ids.claim_run(message_ids, self._store.last_sequence + 1, now_ns):
            try:
                self._store_run(received, now_ns, batch)
            except BaseException:
                # An id without a message would have the next attempt to publish it acknowledged as a duplicate.
                ids.forget_from(self._store.last_sequence + 1)
                raise
        else:
            received, sequences = self._without_duplicates(received, message_ids, now_ns, batch)
            if not received:
                return
            self._store_run(received, now_ns, batch)
            ids.remember_run(sequences, now_ns)
        ids.last = read_id(received[-1][2])

    def _without_duplicates(
        self, received: list[Incoming], message_ids: list[bytes], now_ns: int, batch: Batch
    ) -> tuple[list[Incoming], dict[bytes, int]]:
        """Return the messages to store, and the sequences of their ids; all are acknowledged in their order."""
        find = self._ids.window.finder(now_ns)
        fresh: list[Incoming] = []
        sequences: dict[bytes, int] = {}
        next_sequence = self._store.last_sequence + 1
        for message, message_id in zip(received, message_ids, strict=True):
            if message_id:
                sequence = find(message_id) or sequences.get(message_id)
                if sequence:
                    # sometimes: a message of a run is stored already
                    if message[1]:
                        batch.acks.append((message[1], self._ack_duplicate(sequence, batch)))
                    continue
                sequences[message_id] = next_sequence
            fresh.append(self._acknowledged_apart(message, next_sequence, batch))
            next_sequence += 1
        return fresh, sequences

    def _acknowledged_apart(self, message: Incoming, sequence: int, batch: Batch) -> Incoming:
        """Acknowledge a message of a run among the answers to others; return it without its reply."""
        subject, reply, header, payload = message
        if reply:
            batch.acks.append((reply, self._rules.ack_template % sequence))
        return subject, b"", header, payload

    def _accept_fast_run(self, received: list[Incoming], now_ns: int, batch: Batch) -> list[Incoming]:
        """Return the messages to store of a run of which some belong to fast batches.

        Those get acknowledgements of the batch instead of their own; all leave in the order of the messages.
        """
        fast = self.fast
        run: list[Incoming] = []
        last_before = self._store.last_sequence
        for message in received:
            reply = message[1]
            if reply[-4:] != SUFFIX:
                run.append(self._acknowledged_apart(message, last_before + len(run) + 1, batch))
                continue
            open_batch = fast.accept(reply, message[2], now_ns, batch.acks)
            if open_batch is not None:
                run.append((message[0], b"", message[2], message[3]))
                fast.stored(open_batch, reply, last_before + len(run), batch.acks)
        return run

    def are_wanted(self, messages: list[Incoming]) -> bool:
        """Return whether each message has an interested consumer."""
        is_wanted = self._retention.is_wanted
        return all(is_wanted(subject) for subject in {message[0] for message in messages})

    # Messages with control headers, or in a stream with rules

    def _store_checked(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int, batch: Batch
    ) -> None:
        """Check one message in nats-server's order and store it; the first failed check decides the answer."""
        rules = self._rules
        if rules.transform is not None:
            subject = rules.transform.apply(subject) or subject
        control = _NO_CONTROL
        if header:
            if header[8:9] == b" ":
                header = strip_status(header)
            control = read_control_headers(header)
        if reply[-4:] == SUFFIX or BATCH_ID in control:
            self._store_batched((subject, reply, header, payload), control, now_ns, batch)
            return
        outcome = self._try_to_store(subject, header, payload, control, now_ns, batch)
        if isinstance(outcome, ApiError):
            self._refuse(reply, outcome, batch)
        elif reply:
            sequence, is_duplicate, total = outcome
            if is_duplicate:
                ack = self._ack_duplicate(sequence, batch)
            else:
                ack = rules.total_template % (sequence, total) if total else rules.ack_template % sequence
            batch.acks.append((reply, ack))

    def _try_to_store(
        self, subject: bytes, header: bytes, payload: bytes, control: dict[bytes, bytes], now_ns: int, batch: Batch
    ) -> ApiError | tuple[int, bool, bytes]:
        """Store one message; return its or its original's sequence, whether it is a duplicate, a counter's total."""
        admission, rules = self.admission, self._rules
        size = rules.record_size(subject, header, payload)
        error = admission.check_record(subject, size) or admission.check_size(header, payload)
        if control and error is None:
            error, duplicate = self._check_control(control, header, subject, payload, now_ns, batch)
            if duplicate:
                return duplicate, True, b""
            header = admission.complete(control, header)
        total = b""
        if rules.config.allow_msg_counter and error is None:
            counted = count(self._store, subject, control)
            if isinstance(counted, ApiError):
                error = counted
            else:
                total, payload = counted, TOTAL % counted
                header = keep_sources(self._store, subject, header)
                size = rules.record_size(subject, header, payload)
                error = admission.check_size(header, payload)
        is_wanted = not rules.is_interest or self._retention.is_wanted(subject)
        if error is None:
            error = self.check_room(subject, size, control, now_ns, batch, is_wanted=is_wanted)
        if error is not None:
            return error
        return self.write((subject, header, payload, control, is_wanted), now_ns, batch), False, total

    def _check_control(
        self, control: dict[bytes, bytes], header: bytes, subject: bytes, payload: bytes, now_ns: int, batch: Batch
    ) -> tuple[ApiError | None, int]:
        """Check the control headers; return the error, and the sequence of the original when this is a duplicate."""
        message_id = control.get(MSG_ID)
        has_more = len(control) > 1 or not message_id
        if has_more:
            if batch.subjects and self._removal.store_limits is not None:
                # Neither an expectation nor a rollup may meet messages that the limits would have removed by now.
                self.enforce_limits(batch, now_ns)
            try:
                error = self.admission.check_control_headers(control, header, subject, payload, now_ns)
            except StoreError as unread:
                # Nothing was rolled back: the messages stored before this one stay, and are acknowledged.
                error = api_error(10077, err=str(unread))
            if error is not None:
                return error, 0
        if message_id and (sequence := self._ids.window.find(message_id, now_ns)):
            return None, sequence
        return self.admission.check_replacement(control, self._ids.last) if has_more else None, 0

    def check_room(
        self, subject: bytes, size: int, control: dict[bytes, bytes], now_ns: int, batch: Batch, *, is_wanted: bool
    ) -> ApiError | None:
        """Check the limits of server, account and stream; a message without interest takes no room of the last two."""
        admission = self.admission
        error = admission.check_server_room() if batch.checks_room else None
        if error is not None or not is_wanted:
            return error
        if batch.checks_room:
            error = admission.check_account_room(size)
        if error is None and self._rules.refuses_when_full:
            if batch.subjects:
                self.enforce_limits(batch, now_ns)
            error = admission.check_full(subject, size, control.get(ROLLUP, b""))
        return error

    # Batches: a fast one is stored as its messages arrive, an atomic one with its commit

    def _store_batched(self, message: Incoming, control: dict[bytes, bytes], now_ns: int, batch: Batch) -> None:
        """Store or stage one message of a batch, after the checks that concern every message."""
        subject, reply, header, payload = message
        admission = self.admission
        size = self._rules.record_size(subject, header, payload)
        error = admission.check_record(subject, size)
        if error is None and batch.checks_room:
            error = admission.check_server_room() or admission.check_account_room(size)
        error = error or admission.check_size(header, payload)
        if error is not None:
            self._refuse(reply, error, batch)
        elif reply[-4:] == SUFFIX:
            self._store_fast(message, control, now_ns, batch)
        else:
            self._stage(message, control, now_ns, batch)

    def _store_fast(self, message: Incoming, control: dict[bytes, bytes], now_ns: int, batch: Batch) -> None:
        subject, reply, header, payload = message
        fast = self.fast
        open_batch = fast.accept(reply, header, now_ns, batch.acks)
        if open_batch is None:
            return
        header = remove_key(header, REQUIRED_LEVEL)
        outcome = self._try_to_store(subject, header, payload, control, now_ns, batch)
        if isinstance(outcome, ApiError):
            fast.refused(open_batch, reply, outcome, batch.acks)
        elif outcome[1]:
            fast.skipped(open_batch, reply, outcome[0], batch.acks)
        else:
            fast.stored(open_batch, reply, outcome[0], batch.acks)

    def _stage(self, message: Incoming, control: dict[bytes, bytes], now_ns: int, batch: Batch) -> None:
        """Stage one message of an atomic batch, and store the batch with its last one."""
        subject, reply, header, payload = message
        outcome = self._atomic.stage((subject, header, payload), control, now_ns)
        if isinstance(outcome, StagedBatch):
            outcome = self._store_staged(outcome, reply, now_ns, batch)
        elif outcome is None and reply:
            batch.answers.append((reply, b""))
        if outcome is not None:
            self._refuse(reply, outcome, batch)

    def _store_staged(self, staged: StagedBatch, reply: bytes, now_ns: int, batch: Batch) -> ApiError | None:
        """Store a whole atomic batch, or nothing of it."""
        if batch.subjects:
            self.enforce_limits(batch, now_ns)
        messages = self.admission.check_batch(staged.messages, now_ns)
        if isinstance(messages, ApiError):
            return messages
        self._store.begin_group(len(messages))
        sequences = [self._append(message, now_ns, batch) for message in messages]
        for message, sequence in zip(messages, sequences, strict=True):
            self._follow(message, sequence, now_ns, batch)
        if reply:
            batch_id = encode(staged.batch_id.decode("utf-8", "replace"))
            batch.acks.append((reply, self._rules.batch_template % (sequences[-1], batch_id, len(messages))))
        return None

    # Writing

    def write(self, message: Checked, now_ns: int, batch: Batch) -> int:
        """Store one message with its id, or skip its sequence for lack of interest; return the sequence."""
        sequence = self._append(message, now_ns, batch)
        self._follow(message, sequence, now_ns, batch)
        return sequence

    def _append(self, message: Checked, now_ns: int, batch: Batch) -> int:
        subject, header, payload, control, is_wanted = message
        store, ids = self._store, self._ids
        message_id = control.get(MSG_ID, b"")
        if message_id:
            ids.expect()
        if is_wanted:
            if TTL in control:
                header = self._expiry.prolong(header, control[TTL])
            republisher = self._rules.republisher
            previous = store.last_sequence_for(subject) if republisher is not None else 0
            sequence = store.append(subject, header, payload, now_ns)
            batch.subjects.append(subject)
            if header and self._rules.config.allow_msg_ttl:
                self._expiry.stored(sequence, header, now_ns)
            if republisher is not None:
                again = republisher.apply(subject, header, payload, sequence, now_ns, previous)
                if again is not None:
                    batch.republished.append(again)
        else:
            store.skip(1, now_ns)
            sequence = store.last_sequence
            if message_id:
                batch.keeps_ids |= ids.keep([(message_id, sequence, now_ns)])
        ids.last = message_id
        if message_id:
            ids.remember(message_id, sequence, now_ns)
        return sequence

    def _follow(self, message: Checked, sequence: int, now_ns: int, batch: Batch) -> None:
        """Remove what a message rolls up, stored or skipped for lack of interest, and index a stored schedule."""
        subject, header, _, control, is_wanted = message
        rollup = control.get(ROLLUP, b"").lower()
        if rollup:
            batch.rolls_up = True
            self._announce(batch)
            subject_filter = SubjectFilter([subject]) if rollup == b"sub" else None
            self._store.flush()
            self._removal.roll_up(subject_filter, sequence, now_ns)
        if is_wanted and self._schedules.is_enabled:
            self._announce(batch)
            self._schedules.stored(sequence, subject, header, now_ns)

    def _announce(self, batch: Batch) -> None:
        """Let consumers count the stored messages, before any of these can be removed and counted as removed."""
        if self._consumers and len(batch.subjects) > batch.announced:
            news = batch.subjects[batch.announced :] if batch.announced else batch.subjects
            batch.interested.update(self._retention.announce(news))
        batch.announced = len(batch.subjects)

    def enforce_limits(self, batch: Batch, now_ns: int) -> None:
        """Enforce the stream's limits after the messages stored so far.

        Raises:
            StoreError: the messages could not be written.
        """
        self._announce(batch)
        if self._removal.store_limits is not None:
            # Written before the removals that they cause: a crash in between leaves both.
            self._store.flush()
            self._removal.enforce(now_ns)

    def _ack_duplicate(self, sequence: int, batch: Batch) -> bytes:
        """Return the PubAck of a message whose original is stored, or about to be."""
        ack = self._rules.duplicate_template % sequence
        batch.originals[ack] = sequence
        return ack

    # Refusals

    def _refuse(self, reply: bytes, error: ApiError, batch: Batch) -> None:
        if reply:
            batch.acks.append((reply, encode_pub_ack_error(self._stream.name, error)))

    def _refuse_all(self, received: list[Incoming], error: StoreError, now_ns: int) -> None:
        """Roll back and refuse messages; a duplicate of one that stays is acknowledged with it."""
        # The ids of what is rolled back are forgotten before duplicates are looked for.
        self._release.roll_back(Batch(), error)
        refused, duplicates = Batch(), Batch()
        for _, reply, header, _ in received:
            message_id = read_id(header) if has_only_id(header) and reply[-4:] != SUFFIX else b""
            sequence = self._ids.window.find(message_id, now_ns) if message_id else 0
            if sequence and reply:
                duplicates.acks.append((reply, self._ack_duplicate(sequence, duplicates)))
            else:
                self._refuse(reply, api_error(10077, err=str(error)), refused)
        if refused.acks and self._rules.acknowledges:
            self._account.answer(refused.acks)
        if duplicates.acks:
            duplicates.last_sequence = self._release.visible_sequence
            self._release.when_durable(duplicates, len(duplicates.acks), has_stored=False)

    def _refuse_overload(self, received: list[Incoming]) -> None:
        refusal = encode_pub_ack_error(self._stream.name, api_error(10167))
        for _, reply, _, _ in received:
            if reply and self._rules.acknowledges:
                self._account.publish(reply, b"", _TOO_MANY_REQUESTS, refusal)

    def close(self) -> None:
        """Store and acknowledge nothing more, and drop all open batches."""
        self._received.clear()
        self._atomic.close()
        self.fast.close()


# Messages that may wait for the disk; more are refused.
WAITING_MAX = 100_000
WAITING_BYTES_MAX = 128 * 1024 * 1024


class Release:
    """The batches of one stream that wait for the disk, and how far its messages are released to readers.

    Attributes:
        visible_sequence: the newest durable message; readers see no newer one.
    """

    def __init__(self, stream: Stream) -> None:
        self._store = stream.store
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
        commit, store = self._commit, self._store
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
        self._store.roll_back(error)
        self._commit.fail(self._store, error)
        self._commit.failed(self._store, error)
        self._answer(batch, error)

    def _release_waiting(self, count: int, batch: Batch, error: JetlakeError | None) -> None:
        store = self._store
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
        if self._store.needs_flush() and not self._is_closed:
            # Removals are written only after the messages that caused them are durable. Nothing waits for them: what a
            # crash brings back is removed again. So they share the next message's write and sync.
            self._commit.mark_soon(self._store)

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
            # A duplicate of a message that is durable is acknowledged: a refused message is not in the stream.
            kept = {ack for ack, sequence in batch.originals.items() if sequence <= self.visible_sequence}
            batch.acks = [
                (reply, ack if ack in kept or ack.startswith(b'{"error"') else refusal) for reply, ack in batch.acks
            ]
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
        originals: sequence of the original by the PubAck of its duplicates.
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
        "originals",
        "replies",
        "republished",
        "rolls_up",
        "subjects",
    )

    def __init__(self, *, checks_room: bool = False, on_durable: Action | None = None) -> None:
        self.on_durable = on_durable
        self.acks: list[tuple[bytes, bytes]] = []
        self.originals: dict[bytes, int] = {}
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
