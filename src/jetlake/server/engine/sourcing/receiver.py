"""The receiver of a mirror or source: asks the origin for a consumer, and stores the messages that it delivers.

A receiver asks again, for the messages after those it has stored, whenever something is missing: a delivery, an answer,
or any message of the origin for some seconds:

    asked ── answer ──> connected ── gap, silence, full stream, store error ──> (pause, jitter) ──> asked again
      └── error, no answer ──> (back-off) ──> asked again

What is always true:

- Copies are stored in the origin's order without a gap: deliveries are counted, and one that is missing ends the run.
- A request starts after the last durable copy: while copies wait for the disk, no request is sent.
- A flow control request is answered when all messages delivered before it are on disk, so that the origin may remove
  them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jetlake.errors import DecodeError, JetlakeError, StoreError, api_error
from jetlake.model.api import API_PREFIX
from jetlake.model.consumer import ConsumerConfig, SequenceInfo
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.encoding.fields import SEQUENCE_MAX, Count, Value
from jetlake.model.enums import AckPolicy, DeliverPolicy
from jetlake.model.requests import ConsumerCreateRequest
from jetlake.model.stream import ErrorBody, StreamSource, StreamSourceInfo
from jetlake.protocol.headers import append_pair, find_value
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.routing.subscription import Listener, RunListener, Subscriber
from jetlake.server.engine.sourcing.copies import Copies, Mirror, Source, Start
from jetlake.server.engine.stream.stream import Stream

CAUGHT_UP = 10
"""With fewer messages to come than this, a mirror answers direct gets for its origin."""

_STREAM_IDENTITY = b"Nats-Stream-Identity"
_REQUIRED_LEVEL = b"Nats-Required-Api-Level"
# The API levels that a source requires, one after the other from origins that refuse the level before.
_LEVELS = (5, 4, 0)

_SECOND_NS = 1_000_000_000
_ACK_WAIT_NS = 22 * 3600 * _SECOND_NS
_PAUSE_NS = 2 * _SECOND_NS  # between two requests
_BACKOFF_STEP_NS = 10 * _SECOND_NS
_BACKOFF_MAX_NS = 120 * _SECOND_NS
_ANSWER_NS = 30 * _SECOND_NS
_RESET_ANSWER_NS = 5 * _SECOND_NS
_SILENCE_NS = 10 * _SECOND_NS
_JITTER_NS = (100_000_000, 200_000_000)
# Anybody may publish to a deliver subject: a message with a time that no store can hold is no delivery.
_TIME_MAX_NS = 2**63 - 1
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# An origin that does not know the API level, or a field of the request, is asked in an older form.
_TOO_NEW = (10185, 10025)
_OTHER_ORIGIN = 10225


class OriginReceiver:
    """The receiver of one mirror or source.

    Args:
        target: the mirror or source, which stores the copies.
        stream: the stream that copies.

    Attributes:
        is_caught_up: fewer messages than `CAUGHT_UP` were to come at the last delivery.
    """

    def __init__(self, target: Mirror | Source, stream: Stream) -> None:
        self.target = target
        self.is_caught_up = False
        self._stream = stream
        self._services = stream.services
        self._account = stream.account
        self._timer: Timer | None = None
        self._answers: Listener | None = None
        self._deliveries: RunListener | None = None
        self._consumer = b""
        self._delivered = 0  # The consumer's last sequence.
        self._level = 0  # Index into _LEVELS.
        self._failures = 0
        self._asked_ns = 0
        self._heard_ns = 0
        self._pending = 0  # Messages after the last one that was delivered.
        self._error: ErrorBody | None = None
        # Runs that wait for the disk, and flow control requests that wait for these: runs before, subject, sequences.
        self._begun = self._durable = 0
        self._requests: deque[tuple[int, bytes, int, int]] = deque()
        self._is_closed = False

    def open(self) -> None:
        """Begin to copy."""
        self._ask_in(0)

    def close(self, *, deleted: bool = False) -> None:
        """Stop; with `deleted`, the origin's consumer is deleted as well."""
        self._is_closed = True
        self._disconnect()
        if deleted and self.target.source.consumer is None:
            source = self.target.source
            subject = f"{_prefix(source)}.CONSUMER.DELETE.{source.name}.{self.target.consumer_name}"
            self._account.publish(subject.encode(), b"", b"", b"")

    def info(self, now_ns: int) -> StreamSourceInfo:
        """Return the state of the copying, as stream info shows it."""
        target, source = self.target, self.target.source
        return StreamSourceInfo(
            name=source.name,
            external=source.external,
            lag=max(self._pending - 1, 0),  # As nats-server counts.
            seq=0 if target.is_mirror else target.last_sequence,
            active=now_ns - self._heard_ns if self._heard_ns else -1,
            error=self._error,
            filter_subject=source.filter_subject,
            subject_transforms=source.subject_transforms,
        )

    # Requests

    def _ask_in(self, delay_ns: int) -> None:
        """Ask for a consumer after a delay and jitter, and not before the pause between two requests is over."""
        self._disconnect()
        now_ns = self._services.clock.now_ns()
        due_ns = max(now_ns + delay_ns, self._asked_ns + _PAUSE_NS if self._asked_ns else 0)
        self._set_timer(due_ns + self._services.random.randint(*_JITTER_NS), self._ask)

    def _set_timer(self, deadline_ns: int, act: Callable[[int], None]) -> None:
        self._services.timers.cancel(self._timer)
        self._timer = self._services.timers.schedule(deadline_ns, act)

    def _disconnect(self) -> None:
        self._services.timers.cancel(self._timer)
        for listener in (self._answers, self._deliveries):
            if listener is not None:
                self._account.unlisten(listener)
        self._answers = self._deliveries = None
        self._consumer = b""
        self._delivered = 0
        self._requests.clear()

    def _ask(self, now_ns: int) -> None:
        target = self.target
        if self._begun > self._durable:
            # The position is certain only when the disk has answered.
            self._set_timer(now_ns + _JITTER_NS[0], self._ask)
            return
        self._asked_ns = now_ns
        try:
            start = target.start()
        except StoreError as error:
            self._services.report(f"JetStream - finding the position of stream {self._stream.name}: {error}")
            self._retry_after_failure()
            return
        reply = b"$JSC.R." + self._token()
        level = _LEVELS[self._level]
        if target.source.consumer is not None:
            deliver_subject = target.source.consumer.deliver_subject.encode()
            asked, timeout_ns = self._reset_request(), _RESET_ANSWER_NS
        else:
            external = target.source.external
            prefix = external.deliver.encode() if external is not None and external.deliver else b"$JS"
            deliver_subject = b"%b.%b.%b" % (prefix, b"M" if target.is_mirror else b"S", self._token())
            name = target.consumer_name if level else f"{target.consumer_name}_{self._token().decode()}"
            asked = self._create_request(name, deliver_subject, start, level)
            timeout_ns = _ANSWER_NS
        # Before the request, which an origin in this server may answer at once.
        self._set_timer(now_ns + timeout_ns, self._on_no_answer)
        self._answers = self._account.listen(reply, partial(self._on_answer, deliver_subject))
        self._account.publish(asked.subject, reply, asked.header, asked.body)

    def _create_request(self, name: str, deliver_subject: bytes, start: Start, level: int) -> _Request:
        """Return the request that creates the consumer at the origin.

        Args:
            name: the consumer's name.
            level: the API level to require; 0 for an origin that knows neither levels nor sourcing consumers.
        """
        target, source = self.target, self.target.source
        filters = _filters(source)
        kind = "mirror" if target.is_mirror else "src"
        metadata = {f"_nats.{kind}.acc": self._account.name, f"_nats.{kind}.stream": self._stream.name}
        if domain := self._services.options.domain:
            metadata[f"_nats.{kind}.domain"] = domain
        config = ConsumerConfig(
            name=name,
            ack_policy=AckPolicy.NONE,
            ack_wait=_ACK_WAIT_NS,
            max_deliver=1,
            flow_control=True,
            deliver_subject=deliver_subject.decode(),
            idle_heartbeat=_SECOND_NS,
            inactive_threshold=10 * _SECOND_NS,
            direct=True,
            sourcing=level > 0,
            metadata=metadata,
            deliver_policy=_policy(start),
            opt_start_seq=start.sequence,
            opt_start_time=None if start.sequence else start.time or None,
            filter_subject=filters[0] if len(filters) == 1 else "",
            filter_subjects=filters if len(filters) > 1 else (),
        )
        subject = f"{_prefix(source)}.CONSUMER.CREATE.{source.name}"
        if len(filters) == 1:
            subject += f".{name}.{filters[0]}"
        header = append_pair(b"", _REQUIRED_LEVEL, b"%d" % min(level, 4 if target.is_mirror else 5)) if level else b""
        if level >= 5 and not target.is_mirror:
            header = append_pair(header, _STREAM_IDENTITY, target.identity.encode())
        return _Request(subject.encode(), header, encode(ConsumerCreateRequest(stream_name=source.name, config=config)))

    def _reset_request(self) -> _Request:
        """Return the request that restarts a pre-created consumer after the messages that it knows to be stored."""
        target, source = self.target, self.target.source
        assert source.consumer is not None
        header = append_pair(b"", _REQUIRED_LEVEL, b"4" if target.is_mirror else b"5")
        header = append_pair(header, _STREAM_IDENTITY, target.identity.encode())
        subject = f"{_prefix(source)}.CONSUMER.RESET.{source.name}.{source.consumer.name}"
        return _Request(subject.encode(), header, b"")

    def _token(self) -> bytes:
        return "".join(self._services.random.choices(_LETTERS, k=8)).encode()

    def _on_answer(
        self,
        deliver_subject: bytes,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> None:
        if self._answers is None:
            return
        self._account.unlisten(self._answers)
        self._answers = None
        answer = _read_answer(payload)
        error = answer.error or self._check_consumer(answer)
        if error is None:
            self._connect(answer, deliver_subject, (find_value(header, _STREAM_IDENTITY) or b"").decode())
        elif error.err_code in _TOO_NEW and self._level + 1 < len(_LEVELS):
            self._level += 1 if self._level or not self.target.is_mirror else 2
            self._ask_in(0)
        elif error.err_code == _OTHER_ORIGIN:
            self.target.forget()
            self._ask_in(0)
        else:
            self._error = error
            self._retry_after_failure()

    def _check_consumer(self, answer: _Answer) -> ErrorBody | None:
        """Return the error of a pre-created consumer that is not acknowledged through flow control."""
        if self.target.source.consumer is None or answer.config.ack_policy is AckPolicy.FLOW_CONTROL:
            return None
        error = api_error(10214 if self.target.is_mirror else 10217)
        return ErrorBody(code=error.code, err_code=error.err_code, description=error.description)

    def _on_no_answer(self, now_ns: int) -> None:
        self._retry_after_failure()

    def _retry_after_failure(self) -> None:
        # sometimes: the origin of a copy does not answer
        self._failures += 1
        self._ask_in(_PAUSE_NS + min(self._failures * _BACKOFF_STEP_NS, _BACKOFF_MAX_NS))

    def _connect(self, answer: _Answer, deliver_subject: bytes, identity: str) -> None:
        target = self.target
        self._error = None
        self._failures = 0
        if identity and target.identity and identity != target.identity:
            target.forget()
        try:
            target.connected(min(answer.delivered.stream_seq, SEQUENCE_MAX), identity)
        except JetlakeError:
            self._ask_in(0)
            return
        self._consumer = answer.name.encode()
        self.is_caught_up = answer.num_pending < CAUGHT_UP
        now_ns = self._heard_ns = self._services.clock.now_ns()
        self._set_timer(now_ns + _SILENCE_NS, self._check_silence)
        self._deliveries = self._account.listen_to_runs(deliver_subject, self._receive)

    def _check_silence(self, now_ns: int) -> None:
        if now_ns - self._heard_ns >= _SILENCE_NS:
            self._ask_in(0)
        else:
            self._set_timer(now_ns + _SILENCE_NS, self._check_silence)

    # Deliveries

    def _receive(self, messages: list[Message]) -> None:
        """Store a run of deliveries; flow control requests and heartbeats among them are answered behind it."""
        self._heard_ns = self._services.clock.now_ns()
        copies = Copies([], [], [])
        for message in messages:
            if not message[3] and message[2].startswith(b"NATS/1.0 100 "):
                if not self._store(copies):
                    return
                copies = Copies([], [], [])
                self._on_status(message[1], message[2])
            elif not self._take(message, copies):
                # A delivery is missing.
                self._store(copies)
                self._ask_in(0)
                return
            if self._deliveries is None:
                return
        self._store(copies)

    def _take(self, message: Message, copies: Copies) -> bool:
        """Add a delivery to the run, unless it was copied before; False when one before it is missing."""
        tokens = message[1].split(b".")
        if len(tokens) == 9:
            consumer, count, sequence, delivered, time_ns, pending = tokens[3:]
        elif len(tokens) >= 11:
            consumer, count, sequence, delivered, time_ns, pending = tokens[5:11]
        else:
            return True
        if consumer != self._consumer or count != b"1":
            return True
        try:
            number, stream_sequence, stored_ns, left = int(delivered), int(sequence), int(time_ns), int(pending)
        except ValueError:
            return True
        if not 0 < stream_sequence <= SEQUENCE_MAX or not 0 <= stored_ns <= _TIME_MAX_NS:
            return True
        if number != self._delivered + 1:
            return number <= self._delivered
        self._delivered = number
        assert copies.sequences is not None
        assert copies.times_ns is not None
        last = copies.sequences[-1] if copies.sequences else self.target.last_sequence
        if stream_sequence > last:
            copies.messages.append(message)
            copies.sequences.append(stream_sequence)
            copies.times_ns.append(stored_ns)
            self._pending = left
        return True

    def _store(self, copies: Copies) -> bool:
        """Store a run; when the stream stores only a part, the rest is asked for again."""
        if not copies.messages:
            return True
        self._begun += 1
        self.is_caught_up = self._pending < CAUGHT_UP
        stored = self.target.store(copies, self._on_durable)
        if stored == len(copies.messages):
            return True
        self._pending += len(copies.messages) - 1 - stored
        self._ask_in(0)
        return False

    def _on_durable(self, error: JetlakeError | None) -> None:
        self._durable += 1
        if error is not None:
            self.target.recover()
            if not self._is_closed:
                self._ask_in(0)
        while self._requests and self._requests[0][0] <= self._durable:
            _, subject, delivered, sequence = self._requests.popleft()
            self._answer_flow_control(subject, delivered, sequence)

    def _on_status(self, reply: bytes, header: bytes) -> None:
        """Handle a flow control request, or a heartbeat, which reveals missing deliveries."""
        if reply:
            self._request_flow_control(reply)
            return
        stalled = find_value(header, b"Nats-Consumer-Stalled")
        if stalled:
            self._request_flow_control(stalled)
        last = find_value(header, b"Nats-Last-Consumer") or b"0"
        if last.isdigit() and last != b"0" and last != b"%d" % self._delivered:
            self._ask_in(0)

    def _request_flow_control(self, subject: bytes) -> None:
        """Answer a request once all messages delivered before it are on disk."""
        if any(subject == waiting[1] for waiting in self._requests):
            return
        stored = (self._delivered, self.target.last_sequence)
        if self._begun == self._durable:
            self._answer_flow_control(subject, *stored)
        else:
            self._requests.append((self._begun, subject, *stored))

    def _answer_flow_control(self, subject: bytes, delivered: int, sequence: int) -> None:
        header = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % (delivered, sequence)
        self._account.publish(subject, b"", header, b"")


class _Request(NamedTuple):
    """A request to an API."""

    subject: bytes
    header: bytes
    body: bytes


class _Answer(Value, frozen=True):
    """The fields that a receiver reads of the answer to its request."""

    name: str = ""
    config: ConsumerConfig = ConsumerConfig()
    delivered: SequenceInfo = SequenceInfo()
    num_pending: Count = 0
    error: ErrorBody | None = None


def _read_answer(payload: bytes) -> _Answer:
    """Decode an answer; a malformed one becomes an error."""
    try:
        return decode(_Answer, payload)
    except DecodeError as error:
        return _Answer(error=ErrorBody(code=500, description=f"malformed answer: {error}"))


def _prefix(source: StreamSource) -> str:
    return source.external.api if source.external is not None and source.external.api else API_PREFIX


def _policy(start: Start) -> DeliverPolicy:
    if start.sequence:
        return DeliverPolicy.BY_START_SEQUENCE
    return DeliverPolicy.BY_START_TIME if start.time else DeliverPolicy.ALL


def _filters(source: StreamSource) -> tuple[str, ...]:
    filters = tuple(transform.src or ">" for transform in source.subject_transforms) or (source.filter_subject,)
    return () if ">" in filters or "" in filters else filters
