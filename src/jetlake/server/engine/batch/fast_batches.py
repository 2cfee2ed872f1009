"""Fast batches: messages are stored as they arrive, and flow control acknowledgements tell the publisher how far.

The reply subject of every message names its batch: `<prefix>.<id>.<flow>.<gap>.<sequence>.<operation>.$FI`. All answers
go to the reply of the message that caused them.
"""

from __future__ import annotations

from jetlake.errors import ApiError, api_error
from jetlake.model.encoding.codec import encode
from jetlake.model.publish import DUPLICATE_MEMBER, encode_pub_ack_error
from jetlake.model.stream import ErrorBody
from jetlake.server.engine.batch.atomic_batches import ID_BYTES_MAX
from jetlake.server.engine.core.api_level import requires_newer_api
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer

SUFFIX = b".$FI"
"""The end of every reply subject of a message in a fast batch."""

Answers = list[tuple[bytes, bytes]]
"""Subject and payload of each."""

BATCHES_MAX = 1000
"""Fast batches that a stream may have open at once."""
TIMEOUT_NS = 10_000_000_000
"""How long a batch waits for its next message."""

# Messages between two acknowledgements, shared by the stream's open batches.
_WINDOW = 500
_FLOW_DEFAULT = 10
_FLOW_MAX = 65_535
_SEQUENCE_MAX = 2**64 - 2

_START, _APPEND, _COMMIT, _END, _PING = range(5)


class FastBatch:
    """One open batch.

    Attributes:
        batch_id: as the publisher chose it.
        flow: messages between two acknowledgements that the publisher asked for.
        allows_gaps: missing messages are reported and do not end the batch.
        interval: messages between two acknowledgements as they are sent now.
        received: the batch sequence of the newest message.
        acknowledged: the batch sequence in the newest acknowledgement.
        last_sequence: the stream sequence of the last stored message.
        duplicate: the stream sequence of the original, when the newest message was a duplicate.
        is_committing: the message that is being stored is the last one.
        used_ns: when the newest message arrived.
        head: the part of the reply that all messages of the batch share.
    """

    __slots__ = (
        "acknowledged",
        "allows_gaps",
        "batch_id",
        "duplicate",
        "flow",
        "head",
        "interval",
        "is_committing",
        "last_sequence",
        "received",
        "used_ns",
    )

    def __init__(self, head: bytes, batch_id: bytes, flow: int, *, allows_gaps: bool, interval: int) -> None:
        self.head = head
        self.batch_id = batch_id
        self.flow = flow
        self.allows_gaps = allows_gaps
        self.interval = interval
        self.received = 0
        self.acknowledged = 0
        self.last_sequence = 0
        self.duplicate = 0
        self.is_committing = False
        self.used_ns = 0


class FastBatches:
    """The open fast batches of one stream.

    `accept` returns the batch of a message that the stream has to store; `stored`, `skipped` or `refused` follows.

    Args:
        services: the count of the engine's open batches, and its timers.
        stream: the stream's name.
        ack_prefix: the start of the stream's PubAcks, up to the sequence.
    """

    def __init__(self, services: Services, stream: str, ack_prefix: bytes) -> None:
        self._is_enabled = False
        self._server = services.open_batches
        self._timers = services.timers
        self._stream = stream
        self._ack_prefix = ack_prefix
        self._batches: dict[bytes, FastBatch] = {}
        self._by_head: dict[bytes, FastBatch] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def allow(self, *, is_enabled: bool) -> None:
        """Allow or refuse batches; refusing forgets the open ones."""
        self._is_enabled = is_enabled
        if not is_enabled:
            self.close()

    def accept(self, reply: bytes, header: bytes, now_ns: int, answers: Answers) -> FastBatch | None:
        """Return the batch of a message to store; None for a message that ends here, with its answers added."""
        parts = reply.rsplit(b".", 3)
        batch = self._by_head.get(parts[0])
        if (
            batch is not None
            and parts[2] == b"1"
            and not header
            and parts[1].isdigit()
            and int(parts[1]) == batch.received + 1
        ):
            batch.received += 1
            batch.used_ns = now_ns
            return batch
        return self._accept_other(reply, header, now_ns, answers)

    def _accept_other(self, reply: bytes, header: bytes, now_ns: int, answers: Answers) -> FastBatch | None:
        """Accept a message that is not simply the next one of a known batch."""
        parts = reply.rsplit(b".", 6)
        numbers = _read_numbers(parts)
        batch = self._find(parts, numbers, header, now_ns)
        if isinstance(batch, ApiError):
            self._refuse(reply, batch, answers)
            return None
        sequence, kind = numbers or (0, 0)
        if kind == _START and not batch.received:
            answers.append((reply, _ack(0, batch.interval)))
        batch.used_ns = now_ns
        expected = batch.received + 1
        arrived = max(sequence + 1, expected) if kind == _PING else sequence
        is_broken = arrived != expected and (arrived < expected or not batch.allows_gaps)
        if arrived != expected:
            answers.append((reply, b'{"type":"gap","last_seq":%d,"seq":%d}' % (expected, arrived)))
        if is_broken or kind == _END:
            if not is_broken:
                batch.received = sequence - 1
            self._finish(batch, reply, answers)
            return None
        if kind == _PING:
            batch.received = arrived - 1
            self._acknowledge(batch, reply, answers)
            return None
        batch.received = sequence
        batch.is_committing = kind == _COMMIT
        return batch

    def _find(
        self, parts: list[bytes], numbers: tuple[int, int] | None, header: bytes, now_ns: int
    ) -> FastBatch | ApiError:
        """Return the batch that a split reply names, which is opened by its first message."""
        if not self._is_enabled:
            return api_error(10205)
        if numbers is None:
            return api_error(10206)
        batch_id = parts[1]
        if len(batch_id) > ID_BYTES_MAX:
            return api_error(10207)
        batch = self._batches.get(batch_id)
        if batch is not None:
            if requires_newer_api(header):
                self._forget(batch)
                return api_error(10185)
            return batch
        sequence, kind = numbers
        if sequence != 1 or kind == _PING:
            return api_error(10208)
        if len(self._batches) >= BATCHES_MAX or not self._server.may_open_fast():
            return api_error(10211)
        return api_error(10185) if requires_newer_api(header) else self._open(parts, now_ns)

    def stored(self, batch: FastBatch, reply: bytes, sequence: int, answers: Answers) -> None:
        """Note that the message is in the stream, and acknowledge it when that is due."""
        batch.last_sequence = sequence
        if batch.is_committing:
            self._finish(batch, reply, answers)
        elif batch.received - batch.acknowledged >= batch.interval:
            self._acknowledge(batch, reply, answers)

    def skipped(self, batch: FastBatch, reply: bytes, original: int, answers: Answers) -> None:
        """Note that the stream has the message already, under the sequence of the original."""
        if batch.received == 1 and batch.is_committing and not batch.allows_gaps:
            batch.last_sequence = batch.duplicate = original
        self.stored(batch, reply, batch.last_sequence, answers)

    def refused(self, batch: FastBatch, reply: bytes, error: ApiError, answers: Answers) -> None:
        """Report a message that the stream refused; without gaps the batch ends."""
        if batch.received == 1 and not batch.allows_gaps:
            self._refuse(reply, error, answers)
            self._forget(batch)
            return
        body = ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
        answers.append((reply, b'{"type":"err","seq":%d,"error":%b}' % (batch.received, encode(body))))
        if batch.is_committing or not batch.allows_gaps:
            batch.received -= 1
            self._finish(batch, reply, answers)

    def _acknowledge(self, batch: FastBatch, reply: bytes, answers: Answers) -> None:
        """Acknowledge as many whole intervals as were received, and bring the next interval nearer to its share."""
        intervals = (batch.received - batch.acknowledged) // batch.interval
        batch.acknowledged += intervals * batch.interval
        target = max(min(_WINDOW // len(self._batches), batch.flow), 1)
        if batch.interval < target:
            batch.interval = min(batch.interval * 2, target)
        elif batch.interval > target:
            batch.interval = max(batch.interval // 2, target)
        answers.append((reply, _ack(batch.acknowledged, batch.interval)))

    def _finish(self, batch: FastBatch, reply: bytes, answers: Answers) -> None:
        """Acknowledge the whole batch and forget it."""
        duplicate = DUPLICATE_MEMBER if batch.duplicate else b""
        answers.append(
            (
                reply,
                b'%b%d%b,"batch":%b,"count":%d}'
                % (
                    self._ack_prefix,
                    batch.last_sequence,
                    duplicate,
                    encode(batch.batch_id.decode("utf-8", "replace")),
                    batch.received,
                ),
            )
        )
        self._forget(batch)

    def _refuse(self, reply: bytes, error: ApiError, answers: Answers) -> None:
        answers.append((reply, encode_pub_ack_error(self._stream, error)))

    def _open(self, parts: list[bytes], now_ns: int) -> FastBatch:
        batch_id, flow_text, gap = parts[1:4]
        head = b".".join(parts[:4])
        flow = int(flow_text[:8]) if flow_text.isdigit() else 0
        flow = min(flow or _FLOW_DEFAULT, _FLOW_MAX)
        interval = 1 if self._batches else min(_WINDOW, flow)
        batch = FastBatch(head, batch_id, flow, allows_gaps=gap == b"ok", interval=interval)
        self._batches[batch_id] = self._by_head[head] = batch
        self._server.fast += 1
        if self._timer is None:
            self._timer = self._timers.schedule(now_ns + TIMEOUT_NS, self._expire)
        return batch

    def _forget(self, batch: FastBatch) -> None:
        del self._batches[batch.batch_id]
        del self._by_head[batch.head]
        self._server.fast -= 1

    def _expire(self, now_ns: int) -> None:
        """Forget the batches that have waited too long for their next message."""
        self._timer = None
        for batch in [batch for batch in self._batches.values() if now_ns - batch.used_ns >= TIMEOUT_NS]:
            self._forget(batch)
        if self._batches:
            oldest_ns = min(batch.used_ns for batch in self._batches.values())
            self._timer = self._timers.schedule(oldest_ns + TIMEOUT_NS, self._expire)

    def close(self) -> None:
        """Forget all open batches."""
        for batch in list(self._batches.values()):
            self._forget(batch)
        self._timers.cancel(self._timer)
        self._timer = None


def _ack(sequence: int, interval: int) -> bytes:
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (sequence, interval)


def _read_numbers(parts: list[bytes]) -> tuple[int, int] | None:
    """Read the sequence and the operation of a split reply; None when it is malformed."""
    if len(parts) != 7 or parts[3] not in (b"ok", b"fail"):
        return None
    number, operation = parts[4:6]
    if not number.isdigit() or len(number) > 20 or operation not in (b"0", b"1", b"2", b"3", b"4"):
        return None
    sequence, kind = int(number), int(operation)
    if not 1 <= sequence <= _SEQUENCE_MAX or (kind == _START and sequence != 1):
        return None
    return None if kind in (_APPEND, _END) and sequence < 2 else (sequence, kind)
