"""The publish path of a stream: messages are received, checked, stored as a batch, and acknowledged.

`receive` only collects; `store_received` does the work once per cycle of the engine. Messages without control headers,
in a stream without special rules, take the short path: one call of the store for all of them, and PubAcks that are
formatted when they are sent. PubAcks are sent when their batch is durable; until then no reader sees its messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from jetlake.errors import ApiError, StoreError, api_error
from jetlake.model.enums import RetentionPolicy
from jetlake.model.publish import DUPLICATE_SUFFIX, encode_pub_ack_error, pub_ack_prefix
from jetlake.model.stream import StreamConfig
from jetlake.model.transforms import compile_transform
from jetlake.protocol.frames import PubRun
from jetlake.protocol.headers import strip_status
from jetlake.server.engine.batch.atomic_batches import BATCH_ID, AtomicBatches
from jetlake.server.engine.batch.fast_batches import SUFFIX, FastBatches
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.schedule.schedules import Schedules
from jetlake.server.engine.stream.admission import HEADER_BYTES_MAX, Admission
from jetlake.server.engine.stream.batch_path import BatchPath
from jetlake.server.engine.stream.batch_release import Batch, BatchRelease
from jetlake.server.engine.stream.consumer_contract import StreamConsumer
from jetlake.server.engine.stream.counters import TOTAL, count, keep_sources
from jetlake.server.engine.stream.group_admission import GroupAdmission
from jetlake.server.engine.stream.ids.message_ids import MessageIds
from jetlake.server.engine.stream.limits import Limits
from jetlake.server.engine.stream.message_headers import (
    MSG_ID,
    ROLLUP,
    has_only_id,
    read_control_headers,
    read_id,
    read_lone_id,
)
from jetlake.server.engine.stream.message_writer import MessageWriter
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.interface import Incoming, MessageStore

__all__ = ["AMPLE_ROOM", "PublishPath"]

# With more room than this per message, account and server limits are not checked message by message.
AMPLE_ROOM = 2 * 1024 * 1024

_NO_CONTROL: dict[bytes, bytes] = {}

_TOO_MANY_REQUESTS = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


class PublishPath:
    """The publish path of one stream.

    Args:
        config: the stream's configuration.
        store: the stream's messages.
        services: the engine's queue of receivers and options.
        account: sends refusals and other answers that wait for no disk.
        usage: the stream's share of account and server usage.
        consumers: the stream's consumers by name.
        ids: the stream's message ids.
        retention: knows which subjects consumers want.
        limits: removes what the new messages displace.
        schedules: the stream's schedules.
        writer: appends messages to the store.
        atomic: the stream's open atomic batches.
        fast: the stream's open fast batches.
        release: acknowledges and shows what is durable.
    """

    def __init__(
        self,
        config: StreamConfig,
        store: MessageStore,
        services: Services,
        account: Account,
        usage: StreamUsage,
        *,
        consumers: Mapping[str, StreamConsumer],
        ids: MessageIds,
        retention: Retention,
        limits: Limits,
        schedules: Schedules,
        writer: MessageWriter,
        atomic: AtomicBatches,
        fast: FastBatches,
        release: BatchRelease,
    ) -> None:
        self._store = store
        self._account = account
        self._queue = services.received
        self._domain = services.options.domain
        self._usage = usage
        self._admission = Admission(config, store, usage, schedules.holds_schedule)
        self._consumers = consumers
        self._ids = ids
        self._retention = retention
        self._limits = limits
        self._schedules = schedules
        self._writer = writer
        self._batches = BatchPath(
            self._admission,
            GroupAdmission(config, store, self._admission, ids.window, retention),
            writer,
            atomic,
            fast,
            self._try_to_store,
        )
        self._release = release
        self._received: list[Incoming] = []  # The second field of each is its reply.
        self._lone_ids: list[bytes] = []  # Of the received messages whose header is a message id and nothing else.
        self._has_ids = False  # A received message has a message id.
        self._has_control = False  # A received message has other control headers, or is too large.
        self._has_fast = False  # A received message belongs to a fast batch.
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed."""
        self._name = config.name
        self._acknowledges = not config.no_ack
        self._ids.window.resize(config.duplicate_window)
        self._admission.configure(config)
        self._writer.configure(config)
        self._largest = self._admission.largest
        ack_prefix = pub_ack_prefix(config.name, self._domain)
        template = ack_prefix.replace(b"%", b"%%")
        self._ack_template = template + b"%d}"
        self._duplicate_template = template + b"%d" + DUPLICATE_SUFFIX
        self._total_template = template + b'%d,"val":"%b"}'
        self._batches.configure(config, ack_prefix)
        self._release.configure(config, ack_prefix)
        self._counts = config.allow_msg_counter
        transform = config.subject_transform
        self._transform = compile_transform(transform.src, transform.dest) if transform is not None else None
        self._is_interest = config.retention is RetentionPolicy.INTEREST
        self.replaces = config.max_msgs_per_subject > 0 or config.allow_rollup_hdrs
        # A message that pushes others out and is then replaced on its subject must have pushed them out.
        self._settles_each = config.max_msgs_per_subject > 0 and max(config.max_msgs, config.max_bytes) > 0
        self._has_rules = bool(
            config.sealed
            or self._counts
            or self._settles_each
            or self._admission.refuses_when_full
            or self._transform
            or config.republish
        )

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Collect one published message; `store_received` stores it."""
        received = self._received
        if not received:
            self._queue.append(self)
        if reply[-4:] == SUFFIX:
            self._has_fast = True
        if header:
            if len(header) > HEADER_BYTES_MAX or len(header) + len(payload) > self._largest:
                self._has_control = True
            elif message_id := read_lone_id(header):
                self._lone_ids.append(message_id)
                self._has_ids = True
            elif header[8:9] == b" ":
                self._has_control = True
            elif header.find(b"\r\nNats-") >= 0:  # half the price of `in`
                if has_only_id(header):
                    self._has_ids = True
                else:
                    self._has_control = True
        elif len(payload) > self._largest:
            self._has_control = True
        received.append((subject, reply, header, payload))

    def receive_run(self, run: PubRun) -> None:
        """Collect a run of published messages."""
        if not self._received:
            self._queue.append(self)
        if SUFFIX in run.words:
            self._has_fast = True
        if run.size_max > self._largest:
            self._has_control = True
        if run.ids:
            self._lone_ids += run.ids
            self._has_ids = True
        self._received += zip(run.subjects, run.replies, run.headers, run.payloads, strict=True)

    def store_received(self, now_ns: int) -> None:
        """Store all messages received so far as one batch, acknowledged when the batch is durable."""
        received, self._received = self._received, []
        lone_ids, self._lone_ids = self._lone_ids, []
        has_control, self._has_control = self._has_control, False
        has_ids, self._has_ids = self._has_ids, False
        has_fast, self._has_fast = self._has_fast, False
        if not received:
            return
        if self._release.is_overloaded:
            self._refuse_overload(received)
            return
        store = self._store
        now_ns = max(now_ns, store.last_time_ns)
        last_before, bytes_before = store.last_sequence, store.bytes
        batch = Batch(checks_room=not self._usage.has_room(len(received) * AMPLE_ROOM))
        try:
            if (
                has_control
                or self._has_rules
                or batch.checks_room
                or (has_ids and has_fast)
                or (self._is_interest and not self._are_wanted(received))
            ):
                for subject, reply, header, payload in received:
                    self._store_checked(subject, reply, header, payload, now_ns, batch)
                    if self._settles_each:
                        self._writer.settle(batch, now_ns)
            elif has_fast:
                if run := self._batches.accept_run(received, now_ns, batch):
                    self._store_run(run, now_ns, batch)
                    self._ids.last = b""
            elif has_ids:
                all_lone = len(lone_ids) == len(received)
                ids = lone_ids if all_lone else [read_id(message[2]) for message in received]
                self._store_run_with_ids(received, ids, now_ns, batch)
            else:
                self._store_run(received, now_ns, batch)
                self._ids.last = b""
            batch.bytes = max(store.bytes - bytes_before, 0)
            if batch.subjects or self._limits.store_limits is not None:
                self._writer.settle(batch, now_ns)
        except StoreError as error:
            self._refuse_all(received, error)
            return
        if batch.answers and self._acknowledges:
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
        store = self._store
        now_ns = max(now_ns, store.last_time_ns)
        bytes_before = store.bytes
        batch = Batch(checks_room=not self._usage.has_room(len(messages) * AMPLE_ROOM))
        refusal: ApiError | None = None
        last_before = store.last_sequence
        try:
            for subject, header, payload in messages:
                if self._transform is not None:
                    subject = self._transform.apply(subject) or subject
                is_wanted = not self._is_interest or self._retention.is_wanted(subject)
                size = self._admission.record_size(subject, header, payload)
                refusal = self.check_room(subject, size, _NO_CONTROL, now_ns, batch, is_wanted=is_wanted)
                if refusal is not None:
                    break
                self._writer.write((subject, header, payload, read_control_headers(header), is_wanted), now_ns, batch)
                if self._settles_each:
                    self._writer.settle(batch, now_ns)
            batch.bytes = max(store.bytes - bytes_before, 0)
            self._writer.settle(batch, now_ns)
        except StoreError as error:
            self._refuse_all([], error)
            raise
        batch.last_sequence = store.last_sequence
        self._usage.set_used(store.bytes)
        self._release.when_durable(batch, len(messages), has_stored=batch.last_sequence != last_before)
        if refusal is not None:
            raise refusal

    def _store_run(self, received: list[Incoming], now_ns: int, batch: Batch) -> None:
        """Store messages without control headers, in a stream without rules, with one call of the store."""
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
                ids.forget_undone(self._store.last_sequence + 1)
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
        """Return the messages that are to be stored, and the sequences that their ids get."""
        find = self._ids.window.finder(now_ns)
        fresh: list[Incoming] = []
        sequences: dict[bytes, int] = {}
        last_before = self._store.last_sequence
        for message, message_id in zip(received, message_ids, strict=True):
            if message_id:
                sequence = find(message_id) or sequences.get(message_id)
                if sequence:
                    if message[1]:
                        batch.acks.append((message[1], self._duplicate_template % sequence))
                    continue
                sequences[message_id] = last_before + len(fresh) + 1
            fresh.append(message)
        return fresh, sequences

    def _are_wanted(self, received: list[Incoming]) -> bool:
        """Return whether each message has an interested consumer."""
        is_wanted = self._retention.is_wanted
        return all(is_wanted(subject) for subject in {message[0] for message in received})

    def _refuse_all(self, received: list[Incoming], error: StoreError) -> None:
        batch = Batch()
        for _, reply, _, _ in received:
            self._refuse(reply, api_error(10077, err=str(error)), batch)
        self._release.undo(batch, error)

    def _refuse_overload(self, received: list[Incoming]) -> None:
        refusal = encode_pub_ack_error(self._name, api_error(10167))
        for _, reply, _, _ in received:
            if reply and self._acknowledges:
                self._account.publish(reply, b"", _TOO_MANY_REQUESTS, refusal)

    # Messages with control headers, or in a stream with rules

    def _store_checked(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int, batch: Batch
    ) -> None:
        """Check one message in nats-server's order and store it; the first failed check decides the answer."""
        if self._transform is not None:
            subject = self._transform.apply(subject) or subject
        control = _NO_CONTROL
        if header:
            if header[8:9] == b" ":
                header = strip_status(header)
            control = read_control_headers(header)
        if reply[-4:] == SUFFIX or BATCH_ID in control:
            self._batches.store((subject, reply, header, payload), control, now_ns, batch)
            return
        outcome = self._try_to_store(subject, header, payload, control, now_ns, batch)
        if isinstance(outcome, ApiError):
            self._refuse(reply, outcome, batch)
        elif reply:
            sequence, is_duplicate, total = outcome
            template = self._duplicate_template if is_duplicate else self._ack_template
            ack = self._total_template % (sequence, total) if total else template % sequence
            batch.acks.append((reply, ack))

    def _try_to_store(
        self, subject: bytes, header: bytes, payload: bytes, control: dict[bytes, bytes], now_ns: int, batch: Batch
    ) -> ApiError | tuple[int, bool, bytes]:
        """Store one message; return its or its original's sequence, whether it is a duplicate, a counter's total."""
        admission = self._admission
        size = admission.record_size(subject, header, payload)
        error = admission.check_record(subject, size) or admission.check_size(header, payload)
        if control and error is None:
            error, duplicate = self._check_control(control, header, subject, payload, now_ns, batch)
            if duplicate:
                return duplicate, True, b""
            header = admission.complete(control, header)
        total = b""
        if self._counts and error is None:
            counted = count(self._store, subject, control)
            if isinstance(counted, ApiError):
                error = counted
            else:
                total, payload = counted, TOTAL % counted
                header = keep_sources(self._store, subject, header)
                size = admission.record_size(subject, header, payload)
                error = admission.check_size(header, payload)
        is_wanted = not self._is_interest or self._retention.is_wanted(subject)
        if error is None:
            error = self.check_room(subject, size, control, now_ns, batch, is_wanted=is_wanted)
        if error is not None:
            return error
        return self._writer.write((subject, header, payload, control, is_wanted), now_ns, batch), False, total

    def _check_control(
        self, control: dict[bytes, bytes], header: bytes, subject: bytes, payload: bytes, now_ns: int, batch: Batch
    ) -> tuple[ApiError | None, int]:
        """Check the control headers; return the error, and the sequence of the original when this is a duplicate."""
        message_id = control.get(MSG_ID)
        has_more = len(control) > 1 or not message_id
        if has_more:
            if batch.subjects and self._limits.store_limits is not None:
                # Neither an expectation nor a rollup may meet messages that the limits would have removed by now.
                self._writer.settle(batch, now_ns)
            try:
                error = self._admission.check_control_headers(control, header, subject, payload, now_ns)
            except StoreError as unread:
                # Nothing was undone: what was stored before this message stays, and is acknowledged.
                error = api_error(10077, err=str(unread))
            if error is not None:
                return error, 0
        if message_id and (sequence := self._ids.window.find(message_id, now_ns)):
            return None, sequence
        return self._admission.check_replacement(control, self._ids.last) if has_more else None, 0

    def check_room(
        self, subject: bytes, size: int, control: dict[bytes, bytes], now_ns: int, batch: Batch, *, is_wanted: bool
    ) -> ApiError | None:
        """Check the limits of server, account and stream; a message without interest takes no room of the last two."""
        admission = self._admission
        error = admission.check_server_room() if batch.checks_room else None
        if error is not None or not is_wanted:
            return error
        if batch.checks_room:
            error = admission.check_account_room(size)
        if error is None and admission.refuses_when_full:
            if batch.subjects:
                self._writer.settle(batch, now_ns)
            error = admission.check_full(subject, size, control.get(ROLLUP, b""))
        return error

    def _refuse(self, reply: bytes, error: ApiError, batch: Batch) -> None:
        if reply:
            batch.acks.append((reply, encode_pub_ack_error(self._name, error)))

    def close(self) -> None:
        """Store and acknowledge nothing more."""
        self._release.close()
        self._received.clear()
        self._batches.close()
