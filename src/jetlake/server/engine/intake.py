"""A stream's way in: messages are received, checked in the server's order, stored as a batch, and acknowledged.

`receive` only collects; `store_received` does the work once per cycle of the engine. A message without headers on a
stream without special rules takes the short path: one append, one acknowledgement made of bytes. Acknowledgements leave
when their batch is durable; until then nobody sees its messages.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import ApiError, JetlakeError, StoreError, api_error
from jetlake.model.enums import DiscardPolicy, PersistMode, RetentionPolicy, StorageType
from jetlake.model.publish import DUPLICATE_SUFFIX, encode_pub_ack_error, pub_ack_prefix
from jetlake.model.transforms import compile_transform
from jetlake.protocol.headers import find_value, strip_status
from jetlake.server.engine.deduplication import Deduplication
from jetlake.server.engine.expectations import check_last_message_id, check_sequences, check_stream
from jetlake.server.engine.message_headers import (
    BATCH_ID,
    MSG_ID,
    ROLLUP,
    SOURCE,
    check_increment,
    check_schedule,
    check_ttl,
    read_wishes,
)
from jetlake.server.engine.republish import Republisher
from jetlake.server.engine.storage import SavedIds
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.consumer import Consumer
    from jetlake.server.engine.stream import Stream
    from jetlake.server.engine.subscription import Subscriber
    from jetlake.server.engine.timers import Timer

__all__ = ["Batch", "Intake"]

HEADER_BYTES_MAX = 65_535
RECORD_BYTES_MAX = 32 * 1024 * 1024

# Acknowledgements that may wait for the disk; what comes beyond is refused rather than kept in memory.
WAITING_MAX = 100_000
WAITING_BYTES_MAX = 128 * 1024 * 1024

_TOO_MANY_REQUESTS = b"NATS/1.0 429 Too Many Requests\r\n\r\n"

# Bytes that a message takes in the store besides its own: without headers, with headers.
_RECORD_OVERHEAD = {StorageType.FILE: (30, 34), StorageType.MEMORY: (16, 16)}

# With more room than this per message the limits of account and server need no look at each one.
_AMPLE_ROOM = 2 * 1024 * 1024

# How much recovery reads at once.
_RECOVERY_MESSAGES = 4096
_RECOVERY_BYTES = 8 * 1024 * 1024

Received = tuple[bytes, bytes, bytes, bytes]


class Batch:
    """What one cycle stored, and who hears of it when it is durable.

    Attributes:
        acks: where each acknowledgement goes, and what it says; of messages that were looked at one by one.
        replies: where the acknowledgements go of messages that were stored as one run; empty for those without.
        first_sequence: of the run's first message.
        subjects: of the messages stored, for the consumers to count.
        announced: so many of them were counted.
        bytes: what the messages take.
        republished: what is to be published again.
        interested: the consumers that have something new to see.
        last_sequence: the stream's, when all of them were stored.
    """

    __slots__ = (
        "acks",
        "announced",
        "bytes",
        "first_sequence",
        "interested",
        "last_sequence",
        "replies",
        "republished",
        "subjects",
    )

    def __init__(self) -> None:
        self.acks: list[tuple[bytes, bytes]] = []
        self.replies: list[bytes] = []
        self.first_sequence = 0
        self.subjects: list[bytes] = []
        self.announced = 0
        self.bytes = 0
        self.republished: list[tuple[bytes, bytes, bytes]] = []
        self.interested: dict[Consumer, None] = {}
        self.last_sequence = 0


class Intake:
    """The publish path of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.deduplication = Deduplication(stream.config.duplicate_window)
        self.last_message_id = b""
        self._stream = stream
        self._store = stream.store
        self._engine = stream.engine
        self._received: list[Received] = []
        self._is_plain = True  # nothing received so far has headers, or is too large
        self._waiting = 0
        self._waiting_bytes = 0
        self._sweep_timer: Timer | None = None
        self._uses_ids = False
        self.configure()

    def configure(self) -> None:
        """Read the stream's configuration, new or changed, into what the path looks at for each message."""
        config = self._stream.config
        self.deduplication.resize(config.duplicate_window)
        self._name = config.name.encode()
        self._ack_prefix = pub_ack_prefix(config.name, self._engine.options.domain)
        prefix = self._ack_prefix.replace(b"%", b"%%")
        self._ack_template = prefix + b"%d}"
        self._duplicate_template = prefix + b"%d" + DUPLICATE_SUFFIX
        transform = config.subject_transform
        self._transform = compile_transform(transform.src, transform.dest) if transform is not None else None
        self._republisher = Republisher.of(config)
        self._overhead, self._overhead_with_header = _RECORD_OVERHEAD[config.storage]
        self._largest = config.max_msg_size if config.max_msg_size >= 0 else RECORD_BYTES_MAX
        self._is_interest = config.retention is RetentionPolicy.INTEREST
        self._refuses_when_full = config.discard is DiscardPolicy.NEW and (
            config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        )
        self._waits_for_disk = self._store.durable and config.persist_mode is not PersistMode.ASYNC
        self._has_rules = bool(
            config.sealed or self._is_interest or self._refuses_when_full or self._transform or self._republisher
        )

    # In

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Take one published message; it is stored with the rest of its cycle."""
        received = self._received
        if not received:
            self._engine.received(self)
        if header or len(payload) > self._largest:
            self._is_plain = False
        received.append((subject, reply, header, payload))

    def store_received(self, now_ns: int) -> None:
        """Store everything received so far as one batch, and have it acknowledged when it is durable."""
        received, self._received = self._received, []
        is_plain, self._is_plain = self._is_plain, True
        if not received:
            return
        stream = self._stream
        store = self._store
        now_ns = max(now_ns, store.last_time_ns)
        if self._waiting > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._refuse_flood(received)
            return
        last_before, bytes_before = store.last_sequence, store.bytes
        batch = Batch()
        try:
            has_rules = self._has_rules or not self._has_ample_room(len(received))
            if is_plain and not has_rules:
                self._store_run(received, now_ns, batch)
            else:
                self._store_each(received, now_ns, batch, has_rules)
            batch.bytes = max(store.bytes - bytes_before, 0)
            self._settle(batch, now_ns)
        except StoreError as error:
            self._refuse_all(received, error)
            return
        batch.last_sequence = store.last_sequence
        stream.account_for_bytes()
        if not self._waits_for_disk:
            if store.durable:
                self._engine.commit.mark(store)
            self._release(batch, None)
            return
        self._waiting += len(received)
        self._waiting_bytes += batch.bytes
        if batch.last_sequence != last_before:
            self._engine.commit.mark(store)
        self._engine.commit.when_durable(store, partial(self._release_waiting, len(received), batch))

    def _store_run(self, received: list[Received], now_ns: int, batch: Batch) -> None:
        """The short path: messages without headers, and no rule that one of them could break."""
        batch.first_sequence = self._store.append_run(received, now_ns)
        batch.replies = [message[1] for message in received]
        if self._stream.consumers:
            batch.subjects = [message[0] for message in received]
        self.last_message_id = b""

    def _store_each(self, received: list[Received], now_ns: int, batch: Batch, has_rules: bool) -> None:
        """One message after the other, each by the rules that apply to it."""
        append = self._store.append
        template = self._ack_template
        acknowledge = batch.acks.append
        stored = batch.subjects.append
        largest = self._largest
        for subject, reply, header, payload in received:
            if has_rules or header or len(payload) > largest:
                self._take(subject, reply, header, payload, now_ns, batch)
                continue
            sequence = append(subject, b"", payload, now_ns)
            stored(subject)
            self.last_message_id = b""
            if reply:
                acknowledge((reply, template % sequence))

    def _refuse_all(self, received: list[Received], error: StoreError) -> None:
        """The disk refused: what was appended since the last flush is undone, in this batch and in those before it."""
        self._engine.commit.fail(self._store, error)
        batch = Batch()
        for _, reply, _, _ in received:
            self._refuse(reply, api_error(10077, err=str(error)), batch)
        self._release(batch, error)

    def _refuse_flood(self, received: list[Received]) -> None:
        refusal = encode_pub_ack_error(self._stream.name, api_error(10167))
        for _, reply, _, _ in received:
            if reply and not self._stream.config.no_ack:
                self._stream.account.publish(reply, b"", _TOO_MANY_REQUESTS, refusal)

    # One message by the rules

    def _take(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int, batch: Batch) -> None:
        """Check one message in the server's order; the first failure answers and stops."""
        store = self._store
        if self._transform is not None:
            subject = self._transform.apply(subject) or subject
        if header[8:9] == b" ":
            header = strip_status(header)
        size = len(subject) + len(header) + len(payload)
        size += self._overhead_with_header if header else self._overhead
        wishes = read_wishes(header) if header else None
        message_id = b""
        error = self._check_stream(size)
        if error is None and wishes is not None:
            error = self._check_expectations(wishes, subject, payload, now_ns, batch)
            message_id = wishes.get(MSG_ID, b"")
            if error is None and message_id:
                sequence = self.deduplication.find(message_id, now_ns)
                if sequence:
                    if reply:
                        batch.acks.append((reply, self._duplicate_template % sequence))
                    return
            if error is None:
                error = self._check_replacement(wishes)
        if error is None:
            error = self._check_size(header, payload) or self._check_server_room()
        if error is not None:
            self._refuse(reply, error, batch)
            return
        if message_id and not self._uses_ids:
            # Before the message: from now on a start has to look for ids, even one after a crash.
            self._stream.home.save_ids(SavedIds())
            self._uses_ids = True
        if self._is_interest and not self._stream.retention.interested(subject):
            store.skip()
            sequence = store.last_sequence
        else:
            rollup = wishes.get(ROLLUP, b"").lower() if wishes is not None else b""
            error = self._check_room(subject, size, rollup, now_ns, batch)
            if error is not None:
                self._refuse(reply, error, batch)
                return
            sequence = self._append(subject, header, payload, rollup, now_ns, batch)
        self.last_message_id = message_id
        if message_id:
            self._remember(message_id, sequence, now_ns)
        if reply:
            batch.acks.append((reply, self._ack_template % sequence))

    def _append(self, subject: bytes, header: bytes, payload: bytes, rollup: bytes, now_ns: int, batch: Batch) -> int:
        store = self._store
        republisher = self._republisher
        previous = store.last_sequence_for(subject) if republisher is not None else 0
        sequence = store.append(subject, header, payload, now_ns)
        batch.subjects.append(subject)
        if rollup:
            self._announce(batch)
        if rollup == b"sub":
            store.purge(SubjectFilter([subject]), below=sequence, follows_append=True)
        elif rollup == b"all":
            store.purge(below=sequence, follows_append=True)
        if republisher is not None:
            again = republisher.apply(subject, header, payload, sequence, now_ns, previous)
            if again is not None:
                batch.republished.append(again)
        return sequence

    def _announce(self, batch: Batch) -> None:
        """Have consumers count what was stored; before anything of it can be removed, or they would count wrong."""
        if len(batch.subjects) > batch.announced:
            news = batch.subjects[batch.announced :] if batch.announced else batch.subjects
            batch.announced = len(batch.subjects)
            batch.interested.update(self._stream.retention.announce(news))

    def _settle(self, batch: Batch, now_ns: int) -> None:
        """Bring the stream to where its limits want it after what was stored so far."""
        self._announce(batch)
        self._stream.enforce_limits(now_ns)

    def _refuse(self, reply: bytes, error: ApiError, batch: Batch) -> None:
        if reply:
            batch.acks.append((reply, encode_pub_ack_error(self._stream.name, error)))

    # The checks, in the server's order

    def _check_stream(self, size: int) -> ApiError | None:
        if size > RECORD_BYTES_MAX:
            return api_error(10077, err="message too large")
        return api_error(10109) if self._stream.config.sealed else None

    def _check_expectations(
        self, wishes: dict[bytes, bytes], subject: bytes, payload: bytes, now_ns: int, batch: Batch
    ) -> ApiError | None:
        if BATCH_ID in wishes:
            return api_error(10174)
        if batch.subjects:
            # What the limits would have removed by now must not be found by an expectation.
            self._settle(batch, now_ns)
        return (
            check_increment(wishes)
            or check_stream(wishes, self._name)
            or check_ttl(wishes)
            or check_sequences(wishes, subject, self._store)
            or check_schedule(wishes)
            or (api_error(10227) if SOURCE in wishes else None)
        )

    def _check_replacement(self, wishes: dict[bytes, bytes]) -> ApiError | None:
        error = check_last_message_id(wishes, self.last_message_id)
        rollup = wishes.get(ROLLUP)
        if error is not None or rollup is None:
            return error
        config = self._stream.config
        if not config.allow_rollup_hdrs or config.deny_purge:
            return api_error(10111, err="rollup not permitted")
        if rollup.lower() not in (b"sub", b"all"):
            return api_error(10111, err=f'rollup value invalid: "{rollup.decode("utf-8", "replace")}"')
        return None

    def _check_size(self, header: bytes, payload: bytes) -> ApiError | None:
        if len(header) + len(payload) > self._largest:
            return api_error(10054)
        return api_error(10097) if len(header) > HEADER_BYTES_MAX else None

    def _has_ample_room(self, count: int) -> bool:
        storage = self._stream.config.storage
        for usage in (self._engine.usage, self._stream.jetstream.usage):
            room = usage.room(storage)
            if room is not None and room < count * _AMPLE_ROOM:
                return False
        return True

    def _check_server_room(self) -> ApiError | None:
        self._stream.account_for_bytes()
        room = self._engine.usage.room(self._stream.config.storage)
        return api_error(10023) if room is not None and room < 0 else None

    def _check_room(self, subject: bytes, size: int, rollup: bytes, now_ns: int, batch: Batch) -> ApiError | None:
        room = self._stream.jetstream.usage.room(self._stream.config.storage)
        if room is not None and room < size:
            return api_error(10002)
        return self._check_full(subject, size, rollup, now_ns, batch) if self._refuses_when_full else None

    def _check_full(self, subject: bytes, size: int, rollup: bytes, now_ns: int, batch: Batch) -> ApiError | None:
        """Discard new: a full stream refuses, unless the message will push out one of its own subject."""
        config = self._stream.config
        store = self._store
        if batch.subjects:
            self._settle(batch, now_ns)
        displaces = False
        if config.max_msgs_per_subject > 0:
            displaces = store.subjects(subject).get(subject, 0) >= config.max_msgs_per_subject
            if displaces and config.discard_new_per_subject and not rollup:
                return api_error(10077, err="maximum messages per subject exceeded")
        if config.max_msgs > 0 and store.messages >= config.max_msgs and not displaces:
            return api_error(10077, err="maximum messages exceeded")
        is_full = config.max_bytes > 0 and store.bytes + size > config.max_bytes
        if is_full and (not displaces or self._oldest_size(subject) < size):
            return api_error(10077, err="maximum bytes exceeded")
        return None

    def _oldest_size(self, subject: bytes) -> int:
        """Bytes of the subject's oldest message, which the next one will push out."""
        run = self._store.read(self._store.first_sequence, SubjectFilter([subject]), 1, RECORD_BYTES_MAX)
        if not run.messages:
            return 0
        message = run.messages[0]
        overhead = self._overhead_with_header if message.header else self._overhead
        return overhead + len(message.subject) + len(message.header) + len(message.payload)

    # Out

    def _release_waiting(self, count: int, batch: Batch, error: JetlakeError | None) -> None:
        self._waiting -= count
        self._waiting_bytes -= batch.bytes
        self._release(batch, error)
        if self._store.needs_flush() and not self._stream.is_closed:
            # What the limits removed is only written down now that the messages which caused it are safe.
            self._engine.commit.mark(self._store)

    def _release(self, batch: Batch, error: JetlakeError | None) -> None:
        """The batch is durable, or never will be: answer its publishers, and show it to readers or to nobody."""
        stream = self._stream
        if error is not None:
            refusal = encode_pub_ack_error(stream.name, api_error(10077, err=str(error)))
            batch.acks = [(reply, ack if ack.startswith(b'{"error"') else refusal) for reply, ack in batch.acks]
            batch.acks += [(reply, refusal) for reply in batch.replies if reply]
            batch.replies = []
            self.deduplication.forget_from(self._store.last_sequence + 1)
            stream.recount()
        elif not stream.is_closed:
            stream.show(batch.last_sequence)
        if not stream.config.no_ack:
            if batch.replies:
                stream.account.acknowledge(batch.replies, self._ack_prefix, batch.first_sequence)
            if batch.acks:
                stream.account.answer(batch.acks)
        if error is None:
            for subject, header, payload in batch.republished:
                stream.account.publish(subject, b"", header, payload)
            stream.wake(batch.interested)

    # Message ids

    def _remember(self, message_id: bytes, sequence: int, now_ns: int) -> None:
        self.deduplication.remember(message_id, sequence, now_ns)
        if self._sweep_timer is None:
            self._arm_sweep()

    def _arm_sweep(self) -> None:
        expiry_ns = self.deduplication.next_expiry_ns()
        if expiry_ns is not None:
            # A little later than due: a sweep takes several groups of ids, not one at a time.
            pause_ns = max(self.deduplication.window_ns // 8, 50_000_000)
            self._sweep_timer = self._engine.timers.schedule(expiry_ns + pause_ns, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        self.deduplication.forget_expired(self._engine.clock.now_ns())
        self._arm_sweep()

    def recover(self) -> None:
        """Know the ids again that were known before the stop: from the last clean one, and from newer headers."""
        store = self._store
        last = store.get(store.last_sequence) if store.last_sequence else None
        if last is not None and last.header:
            self.last_message_id = find_value(last.header, MSG_ID) or b""
        saved = self._stream.home.load_ids()
        if saved is None:
            return
        self._uses_ids = True
        if not self.deduplication.window_ns:
            return
        horizon_ns = self._engine.clock.now_ns() - self.deduplication.window_ns
        for message_id, sequence, time_ns in saved.entries:
            if time_ns > horizon_ns:
                self.deduplication.remember(message_id, sequence, time_ns)
        sequence = max(saved.last_sequence + 1, store.first_at_or_after(horizon_ns))
        while sequence <= store.last_sequence:
            run = store.read(sequence, None, _RECOVERY_MESSAGES, _RECOVERY_BYTES)
            for message in run.messages:
                message_id_or_none = find_value(message.header, MSG_ID) if message.header else None
                if message_id_or_none:
                    self.deduplication.remember(message_id_or_none, message.sequence, message.time_ns)
            sequence = max(run.next_sequence, sequence + 1)
        self._arm_sweep()

    def close(self) -> None:
        """Nothing comes in any more."""
        self._received.clear()
        self._engine.timers.cancel(self._sweep_timer)
        self._sweep_timer = None

    def save_ids(self) -> None:
        """Keep the ids for the next start; when the disk refuses, that start finds them in the headers."""
        if self._uses_ids:
            saved = SavedIds(self._store.last_sequence, self.deduplication.entries())
            with suppress(StoreError):
                self._stream.home.save_ids(saved)
