"""Atomic batches: messages are staged in memory by batch id and handed over as a whole when their commit arrives."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import ApiError, api_error
from jetlake.protocol.headers import append_pair, find_value, remove_key
from jetlake.server.engine.core.api_level import REQUIRED_LEVEL, requires_newer_api
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer

BATCH_ID = b"Nats-Batch-Id"
BATCH_SEQUENCE = b"Nats-Batch-Sequence"
BATCH_COMMIT = b"Nats-Batch-Commit"

ID_BYTES_MAX = 64

StagedMessage = tuple[bytes, bytes, bytes]
"""Subject, header and payload."""

# Commits with this value end the batch without being part of it.
_END_OF_BATCH = b"eob"


class StagedBatch:
    """The messages of one open batch.

    Attributes:
        batch_id: as the publisher chose it.
        messages: in the order of their batch sequences.
        bytes: bytes of their headers and payloads.
        used_ns: when the last one arrived.
    """

    __slots__ = ("batch_id", "bytes", "messages", "used_ns")

    def __init__(self, batch_id: bytes) -> None:
        self.batch_id = batch_id
        self.messages: list[StagedMessage] = []
        self.bytes = 0
        self.used_ns = 0


class AtomicBatches:
    """The open atomic batches of one stream, in the order of their last use, so that the first one expires next.

    Args:
        services: the engine's limits of batches, the count of all open ones, and its timers.
        abandon: publishes the advisory of a dropped batch, by its id and the reason.
    """

    def __init__(self, services: Services, abandon: Callable[[bytes, str], None]) -> None:
        limits = services.options.limits
        self._is_enabled = False
        self._count_max = limits.batches_per_stream
        self._messages_max = limits.batch_messages
        self._timeout_ns = limits.batch_timeout
        self._server = services.open_batches
        self._timers = services.timers
        self._abandon = abandon
        self._batches: dict[bytes, StagedBatch] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def allow(self, *, is_enabled: bool) -> None:
        """Allow or refuse batches; refusing drops the open ones."""
        self._is_enabled = is_enabled
        if not is_enabled:
            self.close()

    def stage(self, message: StagedMessage, control: dict[bytes, bytes], now_ns: int) -> StagedBatch | ApiError | None:
        """Stage one message; return the whole batch with its commit, an error, or None while the batch is open."""
        batch_id = control[BATCH_ID]
        if not self._is_enabled:
            return api_error(10174)
        if len(batch_id) > ID_BYTES_MAX:
            return api_error(10179)
        number = control.get(BATCH_SEQUENCE, b"")
        if not number.isdigit() or len(number) > 20:
            return api_error(10175)
        sequence = int(number)
        commit = find_value(message[1], BATCH_COMMIT)
        batch = self._batches.get(batch_id)
        if batch is not None and now_ns - batch.used_ns >= self._timeout_ns:
            self._expire(now_ns)
            batch = None
        if batch is None:
            if sequence != 1:
                return (
                    api_error(10199, size=self._messages_max)
                    if self._is_too_large(sequence, commit)
                    else api_error(10176)
                )
            if len(self._batches) >= self._count_max or not self._server.may_open_atomic():
                return api_error(10210)
            batch = self._open(batch_id)
        error = self._check(batch, sequence, commit, message[1])
        if error is None and not self._server.may_stage(len(message[1]) + len(message[2])):
            error = api_error(10210)
        if error is not None:
            self._drop(batch)
            return error
        return self._add(batch, message, commit, now_ns)

    def _is_too_large(self, sequence: int, commit: bytes | None) -> bool:
        return sequence - (commit == _END_OF_BATCH) > self._messages_max

    def _check(self, batch: StagedBatch, sequence: int, commit: bytes | None, header: bytes) -> ApiError | None:
        """Return why the batch has to be dropped."""
        if commit is not None and commit not in (b"1", _END_OF_BATCH):
            return api_error(10200)
        if requires_newer_api(header):
            self._abandon(batch.batch_id, "unsupported")
            return api_error(10185)
        if sequence != len(batch.messages) + 1 or (commit == _END_OF_BATCH and sequence == 1):
            self._abandon(batch.batch_id, "incomplete")
            return api_error(10176)
        if self._is_too_large(sequence, commit):
            self._abandon(batch.batch_id, "large")
            return api_error(10199, size=self._messages_max)
        return None

    def _add(self, batch: StagedBatch, message: StagedMessage, commit: bytes | None, now_ns: int) -> StagedBatch | None:
        subject, header, payload = message
        if commit == _END_OF_BATCH:
            subject, header, payload = batch.messages[-1]
            batch.messages[-1] = (subject, append_pair(header, BATCH_COMMIT, b"1"), payload)
        else:
            header = remove_key(header, REQUIRED_LEVEL)
            batch.messages.append((subject, header, payload))
        if commit is not None:
            self._drop(batch)
            return batch
        size = len(header) + len(payload)
        batch.bytes += size
        self._server.staged_bytes += size
        batch.used_ns = now_ns
        self._batches[batch.batch_id] = self._batches.pop(batch.batch_id)
        if self._timer is None:
            self._timer = self._timers.schedule(now_ns + self._timeout_ns, self._on_timer)
        return None

    def _open(self, batch_id: bytes) -> StagedBatch:
        batch = self._batches[batch_id] = StagedBatch(batch_id)
        self._server.atomic += 1
        return batch

    def _drop(self, batch: StagedBatch) -> None:
        del self._batches[batch.batch_id]
        self._server.atomic -= 1
        self._server.staged_bytes -= batch.bytes

    def _on_timer(self, now_ns: int) -> None:
        self._timer = None
        self._expire(now_ns)
        if self._batches:
            oldest = next(iter(self._batches.values()))
            self._timer = self._timers.schedule(oldest.used_ns + self._timeout_ns, self._on_timer)

    def _expire(self, now_ns: int) -> None:
        """Drop the batches that have waited too long for their next message."""
        for batch in list(self._batches.values()):
            if now_ns - batch.used_ns < self._timeout_ns:
                break
            self._drop(batch)
            self._abandon(batch.batch_id, "timeout")

    def close(self) -> None:
        """Drop all open batches without an advisory."""
        for batch in list(self._batches.values()):
            self._drop(batch)
        self._timers.cancel(self._timer)
        self._timer = None
