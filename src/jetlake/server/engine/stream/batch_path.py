"""The publish path of batches: messages of fast batches are stored as they come, those of atomic ones at the commit."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import ApiError
from jetlake.model.encoding.codec import encode
from jetlake.model.publish import encode_pub_ack_error
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import remove_key
from jetlake.server.engine.batch.atomic_batches import AtomicBatches, StagedBatch
from jetlake.server.engine.batch.fast_batches import SUFFIX, FastBatches
from jetlake.server.engine.core.api_level import REQUIRED_LEVEL
from jetlake.server.engine.stream.admission import Admission
from jetlake.server.engine.stream.batch_release import Batch
from jetlake.server.engine.stream.group_admission import GroupAdmission
from jetlake.server.engine.stream.message_writer import MessageWriter
from jetlake.store.interface import Incoming

__all__ = ["BatchPath", "StoreOne"]

StoreOne = Callable[[bytes, bytes, bytes, dict[bytes, bytes], int, Batch], ApiError | tuple[int, bool, bytes]]
"""Checks and stores one message: its sequence, whether it is a duplicate, and a counter's total; or the error."""


class BatchPath:
    """The batches of one stream.

    Args:
        admission: the checks of single messages.
        group_admission: the checks of atomic batches.
        writer: appends messages to the store.
        atomic: the stream's open atomic batches.
        fast: the stream's open fast batches.
        store_one: checks and stores a message of a fast batch.
    """

    def __init__(
        self,
        admission: Admission,
        group_admission: GroupAdmission,
        writer: MessageWriter,
        atomic: AtomicBatches,
        fast: FastBatches,
        store_one: StoreOne,
    ) -> None:
        self._admission = admission
        self._group_admission = group_admission
        self._writer = writer
        self._atomic = atomic
        self._fast = fast
        self._store_one = store_one

    def configure(self, config: StreamConfig, ack_prefix: bytes) -> None:
        """Apply the stream's configuration, new or changed.

        Args:
            ack_prefix: the start of the stream's PubAcks, up to the sequence.
        """
        self._name = config.name
        self._group_template = ack_prefix.replace(b"%", b"%%") + b'%d,"batch":%b,"count":%d}'
        self._group_admission.configure(config)
        self._atomic.configure(is_enabled=config.allow_atomic)
        self._fast.configure(config.name, ack_prefix, is_enabled=config.allow_batched)

    def accept_run(self, received: list[Incoming], now_ns: int, batch: Batch) -> list[Incoming]:
        """Return what is to be stored of a run of which some messages belong to fast batches.

        Those get acknowledgements of the batch instead of their own.
        """
        fast = self._fast
        run: list[Incoming] = []
        last_before = self._writer.last_sequence
        for message in received:
            reply = message[1]
            if reply[-4:] != SUFFIX:
                run.append(message)
                continue
            open_batch = fast.accept(reply, message[2], now_ns, batch.acks)
            if open_batch is not None:
                run.append((message[0], b"", message[2], message[3]))
                fast.stored(open_batch, reply, last_before + len(run), batch.acks)
        return run

    def store(self, message: Incoming, control: dict[bytes, bytes], now_ns: int, batch: Batch) -> None:
        """Store or stage one message of a batch, after the checks that concern every message."""
        reply = message[1]
        error = self._check(message, batch)
        if error is not None:
            self._refuse(reply, error, batch)
        elif reply[-4:] == SUFFIX:
            self._store_fast(message, control, now_ns, batch)
        else:
            self._stage(message, control, now_ns, batch)

    def _check(self, message: Incoming, batch: Batch) -> ApiError | None:
        subject, _, header, payload = message
        admission = self._admission
        size = admission.record_size(subject, header, payload)
        error = admission.check_record(subject, size)
        if error is None and batch.checks_room:
            error = admission.check_server_room() or admission.check_account_room(size)
        return error or admission.check_size(header, payload)

    def _store_fast(self, message: Incoming, control: dict[bytes, bytes], now_ns: int, batch: Batch) -> None:
        subject, reply, header, payload = message
        open_batch = self._fast.accept(reply, header, now_ns, batch.acks)
        if open_batch is None:
            return
        header = remove_key(header, REQUIRED_LEVEL)
        outcome = self._store_one(subject, header, payload, control, now_ns, batch)
        if isinstance(outcome, ApiError):
            self._fast.refused(open_batch, reply, outcome, batch.acks)
        elif outcome[1]:
            self._fast.skipped(open_batch, reply, outcome[0], batch.acks)
        else:
            self._fast.stored(open_batch, reply, outcome[0], batch.acks)

    def _stage(self, message: Incoming, control: dict[bytes, bytes], now_ns: int, batch: Batch) -> None:
        """Stage one message of an atomic batch, and store the batch with its last one."""
        subject, reply, header, payload = message
        outcome = self._atomic.stage((subject, header, payload), control, now_ns)
        if isinstance(outcome, StagedBatch):
            outcome = self._store_group(outcome, reply, now_ns, batch)
        elif outcome is None and reply:
            batch.answers.append((reply, b""))
        if outcome is not None:
            self._refuse(reply, outcome, batch)

    def _store_group(self, staged: StagedBatch, reply: bytes, now_ns: int, batch: Batch) -> ApiError | None:
        """Store a whole atomic batch, or nothing of it."""
        if batch.subjects:
            self._writer.settle(batch, now_ns)
        messages = self._group_admission.check(staged.messages, now_ns)
        if isinstance(messages, ApiError):
            return messages
        sequence = self._writer.write_group(messages, now_ns, batch)
        if reply:
            batch_id = encode(staged.batch_id.decode("utf-8", "replace"))
            batch.acks.append((reply, self._group_template % (sequence, batch_id, len(messages))))
        return None

    def _refuse(self, reply: bytes, error: ApiError, batch: Batch) -> None:
        if reply:
            batch.acks.append((reply, encode_pub_ack_error(self._name, error)))

    def close(self) -> None:
        """Drop all open batches."""
        self._atomic.close()
        self._fast.close()
