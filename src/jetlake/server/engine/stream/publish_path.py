"""A stream's way in: messages are received, checked, stored as a batch, and acknowledged.

`receive` only collects; `store_received` does the work once per cycle of the engine. Messages that ask for nothing, on
a stream without special rules, take the short path: one call of the store for all of them, and acknowledgements that
are made when they leave. They leave when their batch is durable; until then nobody sees its messages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import ApiError, JetlakeError, StoreError, api_error
from jetlake.model.enums import PersistMode, RetentionPolicy
from jetlake.model.publish import DUPLICATE_SUFFIX, encode_pub_ack_error, pub_ack_prefix
from jetlake.model.transforms import compile_transform
from jetlake.protocol.headers import strip_status
from jetlake.server.engine.stream.admission import HEADER_BYTES_MAX, Admission
from jetlake.server.engine.stream.counters import count
from jetlake.server.engine.stream.message_headers import MSG_ID, ROLLUP, has_only_id, read_id, read_wishes
from jetlake.server.engine.stream.message_ids import MessageIds
from jetlake.server.engine.stream.message_lifetimes import TTL
from jetlake.server.engine.stream.republish import Republisher
from jetlake.store.interface import Incoming
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.routing.subscription import Subscriber
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["Batch", "Intake"]

# Messages that may wait for the disk; what comes beyond is refused rather than kept in memory.
WAITING_MAX = 100_000
WAITING_BYTES_MAX = 128 * 1024 * 1024

# What a message of a counter says.
_TOTAL = b'{"val":"%b"}'

_TOO_MANY_REQUESTS = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


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
        keeps_ids: ids of messages that nobody wanted are to be durable as well.
        checks_room: account or server are so full that every message is measured.
    """

    __slots__ = (
        "acks",
        "announced",
        "bytes",
        "checks_room",
        "first_sequence",
        "interested",
        "keeps_ids",
        "last_sequence",
        "replies",
        "republished",
        "subjects",
    )

    def __init__(self, *, checks_room: bool = False) -> None:
        self.acks: list[tuple[bytes, bytes]] = []
        self.replies: list[bytes] = []
        self.first_sequence = 0
        self.subjects: list[bytes] = []
        self.announced = 0
        self.bytes = 0
        self.republished: list[tuple[bytes, bytes, bytes]] = []
        self.interested: dict[Consumer, None] = {}
        self.last_sequence = 0
        self.keeps_ids = False
        self.checks_room = checks_room


class Intake:
    """The publish path of one stream.

    Attributes:
        ids: the message ids that the stream has seen.
    """

    def __init__(self, stream: Stream) -> None:
        self.ids = MessageIds(stream)
        self._stream = stream
        self._store = stream.store
        self._engine = stream.engine
        self._admission = Admission(stream)
        self._received: list[Incoming] = []  # the second of each is its reply
        self._has_ids = False  # something received has a message id
        self._asks = False  # something received asks for more than that by its headers, or is too large
        self._waiting = 0
        self._waiting_bytes = 0
        self.configure()

    def configure(self) -> None:
        """Read the stream's configuration, new or changed, into what the path looks at for each message."""
        config = self._stream.config
        self.ids.window.resize(config.duplicate_window)
        self._admission.configure()
        self._largest = self._admission.largest
        self._ack_prefix = pub_ack_prefix(config.name, self._engine.options.domain)
        template = self._ack_prefix.replace(b"%", b"%%")
        self._ack_template = template + b"%d}"
        self._duplicate_template = template + b"%d" + DUPLICATE_SUFFIX
        self._total_template = template + b'%d,"val":"%b"}'
        self._counts = config.allow_msg_counter
        transform = config.subject_transform
        self._transform = compile_transform(transform.src, transform.dest) if transform is not None else None
        self._republisher = Republisher.of(config)
        self._is_interest = config.retention is RetentionPolicy.INTEREST
        self._waits_for_disk = self._store.durable and config.persist_mode is not PersistMode.ASYNC
        self._has_rules = bool(
            config.sealed or self._counts or self._admission.refuses_when_full or self._transform or self._republisher
        )

    # In

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Take one published message; it is stored with the rest of its cycle."""
        received = self._received
        if not received:
            self._engine.received(self)
        if header:
            if header[8:9] == b" " or len(header) > HEADER_BYTES_MAX or len(header) + len(payload) > self._largest:
                self._asks = True
            elif header.find(b"\r\nNats-") >= 0:  # half the price of `in`
                if has_only_id(header):
                    self._has_ids = True
                else:
                    self._asks = True
        elif len(payload) > self._largest:
            self._asks = True
        received.append((subject, reply, header, payload))

    def store_received(self, now_ns: int) -> None:
        """Store everything received so far as one batch, and have it acknowledged when it is durable."""
        received, self._received = self._received, []
        asks, self._asks = self._asks, False
        has_ids, self._has_ids = self._has_ids, False
        if not received:
            return
        if self._waiting > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._refuse_flood(received)
            return
        store = self._store
        now_ns = max(now_ns, store.last_time_ns)
        last_before, bytes_before = store.last_sequence, store.bytes
        batch = Batch(checks_room=not self._admission.has_ample_room(len(received)))
        try:
            if asks or self._has_rules or batch.checks_room or (self._is_interest and not self._are_wanted(received)):
                for subject, reply, header, payload in received:
                    self._take(subject, reply, header, payload, now_ns, batch)
            elif has_ids:
                self._store_run_with_ids(received, now_ns, batch)
            else:
                self._store_run(received, now_ns, batch)
                self.ids.last = b""
            batch.bytes = max(store.bytes - bytes_before, 0)
            self._settle(batch, now_ns)
        except StoreError as error:
            self._refuse_all(received, error)
            return
        batch.last_sequence = store.last_sequence
        self._stream.account_for_bytes()
        self._commit(batch, len(received), has_stored=batch.last_sequence != last_before)

    def _store_run(self, received: list[Incoming], now_ns: int, batch: Batch) -> None:
        """The short path: messages that ask for nothing, and no rule that one of them could break."""
        batch.first_sequence = self._store.append_run(received, now_ns)
        batch.replies = [message[1] for message in received]
        if self._stream.consumers:
            batch.subjects = [message[0] for message in received]

    def _store_run_with_ids(self, received: list[Incoming], now_ns: int, batch: Batch) -> None:
        """The same for messages of which some have ids: those that are known are left out and told so."""
        ids = self.ids
        ids.expect()
        known = ids.window.known(now_ns)
        counts = ids.window.window_ns > 0
        fresh: list[Incoming] = []
        sequences: dict[bytes, int] = {}
        last_before = self._store.last_sequence
        for message in received:
            message_id = read_id(message[2])
            if message_id and counts:
                sequence = known.get(message_id) or sequences.get(message_id)
                if sequence:
                    if message[1]:
                        batch.acks.append((message[1], self._duplicate_template % sequence))
                    continue
                sequences[message_id] = last_before + len(fresh) + 1
            fresh.append(message)
        if fresh:
            self._store_run(fresh, now_ns, batch)
            ids.last = read_id(fresh[-1][2])
            ids.remember_run(sequences, now_ns)

    def _are_wanted(self, received: list[Incoming]) -> bool:
        """Whether some consumer wants each of the messages."""
        is_wanted = self._stream.retention.is_wanted
        return all(is_wanted(subject) for subject in {message[0] for message in received})

    def _commit(self, batch: Batch, count: int, *, has_stored: bool) -> None:
        commit = self._engine.commit
        if not self._waits_for_disk:
            if self._store.durable:
                commit.mark(self._store)
            self._release(batch, None)
            return
        self._waiting += count
        self._waiting_bytes += batch.bytes
        if has_stored:
            commit.mark(self._store)
        release = partial(self._release_waiting, count, batch)
        if batch.keeps_ids:
            self.ids.when_kept(release)
        else:
            commit.when_durable(self._store, release)

    def _refuse_all(self, received: list[Incoming], error: StoreError) -> None:
        """The disk refused: what was appended since the last flush is undone, in this batch and in those before it."""
        self._engine.commit.fail(self._store, error)
        self._engine.commit.failed(self._store, error)
        batch = Batch()
        for _, reply, _, _ in received:
            self._refuse(reply, api_error(10077, err=str(error)), batch)
        self._release(batch, error)

    def _refuse_flood(self, received: list[Incoming]) -> None:
        refusal = encode_pub_ack_error(self._stream.name, api_error(10167))
        for _, reply, _, _ in received:
            if reply and not self._stream.config.no_ack:
                self._stream.account.publish(reply, b"", _TOO_MANY_REQUESTS, refusal)

    # One message by the rules

    def _take(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int, batch: Batch) -> None:
        """Check one message in the server's order and store it; the first failure answers and stops."""
        admission = self._admission
        if self._transform is not None:
            subject = self._transform.apply(subject) or subject
        wishes: dict[bytes, bytes] | None = None
        if header:
            if header[8:9] == b" ":
                header = strip_status(header)
            wishes = read_wishes(header)
        size = admission.record_size(subject, header, payload)
        error = admission.check_record(size)
        message_id = rollup = b""
        if wishes and error is None:
            message_id = wishes.get(MSG_ID, b"")
            has_more = len(wishes) > 1 or not message_id
            if has_more:
                rollup = wishes.get(ROLLUP, b"").lower()
                if batch.subjects and self._stream.has_limits:
                    # What the limits would have removed by now must not be found by an expectation.
                    self._settle(batch, now_ns)
                error = admission.check_wishes(wishes, subject, payload)
            if message_id and error is None:
                sequence = self.ids.window.find(message_id, now_ns)
                if sequence:
                    if reply:
                        batch.acks.append((reply, self._duplicate_template % sequence))
                    return
            if has_more and error is None:
                error = admission.check_replacement(wishes, self.ids.last)
        total = b""
        if self._counts and error is None:
            counted = count(self._store, subject, wishes)
            if isinstance(counted, ApiError):
                error = counted
            else:
                total, payload = counted, _TOTAL % counted
                size = admission.record_size(subject, header, payload)
        if error is None:
            error = admission.check_size(header, payload)
        if error is None and batch.checks_room:
            error = admission.check_server_room()
        is_wanted = not self._is_interest or self._stream.retention.is_wanted(subject)
        if error is None and is_wanted:
            error = self._check_room(subject, size, rollup, now_ns, batch)
        if error is not None:
            self._refuse(reply, error, batch)
            return
        if message_id:
            self.ids.expect()
        if wishes and TTL in wishes and self._stream.markers.life_ns:
            header = self._stream.markers.prolong(header, wishes[TTL])
        if is_wanted:
            sequence = self._append(subject, header, payload, rollup, now_ns, batch)
        else:
            self._store.skip()
            sequence = self._store.last_sequence
            if message_id:
                batch.keeps_ids |= self.ids.keep([(message_id, sequence, now_ns)])
        self.ids.last = message_id
        if message_id:
            self.ids.remember(message_id, sequence, now_ns)
        if reply:
            ack = self._total_template % (sequence, total) if total else self._ack_template % sequence
            batch.acks.append((reply, ack))

    def _check_room(self, subject: bytes, size: int, rollup: bytes, now_ns: int, batch: Batch) -> ApiError | None:
        error = self._admission.check_account_room(size) if batch.checks_room else None
        if error is None and self._admission.refuses_when_full:
            if batch.subjects:
                self._settle(batch, now_ns)
            error = self._admission.check_full(subject, size, rollup)
        return error

    def _append(self, subject: bytes, header: bytes, payload: bytes, rollup: bytes, now_ns: int, batch: Batch) -> int:
        store = self._store
        republisher = self._republisher
        previous = store.last_sequence_for(subject) if republisher is not None else 0
        sequence = store.append(subject, header, payload, now_ns)
        batch.subjects.append(subject)
        if header and self._stream.config.allow_msg_ttl:
            self._stream.lifetimes.stored(sequence, header, now_ns)
        if rollup:
            self._announce(batch)
            subject_filter = SubjectFilter([subject]) if rollup == b"sub" else None
            store.purge(subject_filter, below=sequence, follows_append=True)
        if republisher is not None:
            again = republisher.apply(subject, header, payload, sequence, now_ns, previous)
            if again is not None:
                batch.republished.append(again)
        return sequence

    def _announce(self, batch: Batch) -> None:
        """Have consumers count what was stored; before anything of it can be removed, or they would count wrong."""
        if self._stream.consumers and len(batch.subjects) > batch.announced:
            news = batch.subjects[batch.announced :] if batch.announced else batch.subjects
            batch.interested.update(self._stream.retention.announce(news))
        batch.announced = len(batch.subjects)

    def _settle(self, batch: Batch, now_ns: int) -> None:
        """Bring the stream to where its limits want it after what was stored so far."""
        self._announce(batch)
        self._stream.enforce_limits(now_ns)

    def _refuse(self, reply: bytes, error: ApiError, batch: Batch) -> None:
        if reply:
            batch.acks.append((reply, encode_pub_ack_error(self._stream.name, error)))

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
            self._turn_into_refusals(batch, error)
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

    def _turn_into_refusals(self, batch: Batch, error: JetlakeError) -> None:
        refusal = encode_pub_ack_error(self._stream.name, api_error(10077, err=str(error)))
        batch.acks = [(reply, ack if ack.startswith(b'{"error"') else refusal) for reply, ack in batch.acks]
        batch.acks += [(reply, refusal) for reply in batch.replies if reply]
        batch.replies = []
        self.ids.window.forget_from(self._store.last_sequence + 1)
        self._stream.lifetimes.forget_from(self._store.last_sequence + 1)
        self._stream.recount()

    def close(self) -> None:
        """Nothing comes in any more."""
        self._received.clear()
        self.ids.close()
