"""Direct get: stored messages sent as messages, one or many, with stream, subject and sequence in their headers."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from msgspec.structs import replace

from jetlake.errors import ConfigError, DecodeError, JetlakeError, StoreError
from jetlake.model.encoding.codec import decode
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.enums import StorageType
from jetlake.model.requests import DirectGetRequest
from jetlake.protocol.subjects import has_wildcards
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.api.request import last_message
from jetlake.server.engine.core.api_level import requires_newer_api
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.message import StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["direct_get"]

MULTI_LAST_MAX = 1024

# Most that a batch sends in one turn of the loop.
_RUN_MESSAGES = 1024
_RUN_BYTES = 1024 * 1024

_EMPTY_REQUEST = b"NATS/1.0 408 Empty Request\r\n\r\n"
_MALFORMED_REQUEST = b"NATS/1.0 408 Malformed Request\r\n\r\n"
_BAD_REQUEST = b"NATS/1.0 408 Bad Request\r\n\r\n"
_REQUIRED_API_LEVEL = b"NATS/1.0 412 Required Api Level\r\n\r\n"
_MESSAGE_NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_NO_RESULTS = b"NATS/1.0 404 No Results\r\n\r\n"
_TOO_MANY_RESULTS = b"NATS/1.0 413 Too Many Results\r\n\r\n"


def direct_get(jetstream: JetStream, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
    """Answer `$JS.API.DIRECT.GET.<stream>[.<subject>]`; False when the stream is missing or has no direct get."""
    name, _, by_subject = subject.removeprefix(b"$JS.API.DIRECT.GET.").partition(b".")
    stream = jetstream.direct_reader(name)
    if stream is None:
        return False
    if reply:
        jetstream.services.long_work.begin(_serve(jetstream, stream, reply, by_subject, header, payload))
    return True


def _serve(
    jetstream: JetStream,
    stream: Stream,
    reply: bytes,
    by_subject: bytes,
    header: bytes,
    payload: bytes,
    *,
    is_refused: bool = False,
) -> Steps[None]:
    """Send the answer, in steps if it takes long to find.

    Args:
        is_refused: the disk refused what the stream had when it was asked first.
    """
    answer: list[_Answer] | _BatchDelivery
    try:
        found = _answer(stream, reply, by_subject, header, payload)
        answer = (yield from found) if isinstance(found, Generator) else found
    except ConfigError:  # an invalid time
        answer = [_MALFORMED_REQUEST]
    except StoreError as error:
        answer = [b"NATS/1.0 500 %b\r\n\r\n" % str(error).replace("\r", " ").replace("\n", " ").encode()]
    services = jetstream.services
    if isinstance(answer, _BatchDelivery):
        services.commit.when_settled(partial(services.deliveries.make_ready, answer))
        return
    messages = _messages(reply, answer)

    def send(error: JetlakeError | None) -> None:
        if error is None:
            jetstream.account.send_to(reply, messages)
        else:
            # A message that was rolled back must not be shown: another one gets its sequence.
            services.long_work.begin(_serve(jetstream, stream, reply, by_subject, header, payload, is_refused=True))

    if is_refused or stream.visible_sequence >= stream.store.last_sequence:
        services.commit.when_settled(lambda: send(None))
    else:
        services.commit.when_durable(stream.store, send)


# A status is its header block; a message is header and payload.
_Answer = bytes | tuple[bytes, bytes]


def _messages(reply: bytes, answers: list[_Answer]) -> list[Message]:
    return [(reply, b"", answer, b"") if isinstance(answer, bytes) else (reply, b"", *answer) for answer in answers]


def _answer(
    stream: Stream, reply: bytes, by_subject: bytes, header: bytes, payload: bytes
) -> list[_Answer] | Steps[list[_Answer] | _BatchDelivery]:
    """Return the answers, the steps that find them, or a batch delivery for a request that asks for many messages."""
    if requires_newer_api(header):
        return [_REQUIRED_API_LEVEL]
    stripped = payload.strip()
    if not stripped and not by_subject:
        return [_EMPTY_REQUEST]
    try:
        request = decode(DirectGetRequest, payload) if stripped else DirectGetRequest()
    except DecodeError:
        return [_MALFORMED_REQUEST]
    if by_subject:
        if request.last_by_subj:
            return [_BAD_REQUEST]
        request = replace(request, last_by_subj=by_subject.decode("utf-8", "surrogateescape"))
    if not (request.seq or request.last_by_subj or request.next_by_subj or request.start_time or request.multi_last):
        return [_EMPTY_REQUEST]
    if _contradicts_itself(request):
        return [_BAD_REQUEST]
    if request.multi_last:
        return _newest_of_each(stream, request)
    if request.batch:
        return _batch(stream, reply, request)
    if request.last_by_subj and not has_wildcards(pattern := _bytes(request.last_by_subj)):
        return _as_answers(stream, stream.store.last_for(pattern), request)
    return _single(stream, request)


def _contradicts_itself(request: DirectGetRequest) -> bool:
    if request.last_by_subj:
        return bool(
            request.seq or request.next_by_subj or request.start_time or request.multi_last or request.batch > 0
        )
    if request.multi_last:
        return bool(request.next_by_subj or (request.up_to_seq and request.up_to_time))
    return bool(request.start_time and request.seq)


# One message


def _single(stream: Stream, request: DirectGetRequest) -> Steps[list[_Answer] | _BatchDelivery]:
    store = stream.store
    if request.last_by_subj:
        return _as_answers(stream, (yield from last_message(store, _bytes(request.last_by_subj))), request)
    if request.seq and not request.next_by_subj:
        return _as_answers(stream, store.get(request.seq), request)
    subject_filter = _filter(request)
    yield from store.prepare(subject_filter)
    run = store.read(_first_sequence(stream, request), subject_filter, 1, 1)
    return _as_answers(stream, run.messages[0] if run.messages else None, request)


def _as_answers(stream: Stream, message: StoredMessage | None, request: DirectGetRequest) -> list[_Answer]:
    if message is None:
        return [_MESSAGE_NOT_FOUND]
    if request.no_hdr:
        return [(b"", message.payload)]
    return [(_origin(stream, message) + b"\r\n", message.payload)]


def _origin(stream: Stream, message: StoredMessage) -> bytes:
    """Return the message's headers with its stream, subject, sequence and time, without the empty line at the end."""
    return b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n" % (
        message.header[:-2] if message.header else b"NATS/1.0\r\n",
        stream.name.encode(),
        message.subject,
        message.sequence,
        format_time(message.time_ns).encode(),
    )


# Many messages


def _batch(stream: Stream, reply: bytes, request: DirectGetRequest) -> Steps[list[_Answer] | _BatchDelivery]:
    """Return the delivery of up to `batch` messages; at least one, whatever its size."""
    subject_filter = _filter(request)
    sequence = _first_sequence(stream, request)
    if subject_filter is None:
        pending = stream.store.count(sequence)
    else:
        pending = yield from stream.count_in_steps(sequence, subject_filter)
    if not pending:
        return [_MESSAGE_NOT_FOUND]
    return _BatchDelivery(stream, reply, request, subject_filter, sequence, pending)


class _BatchDelivery:
    """A batch in delivery: a bounded run in each turn of the loop, paused while the subscriber is congested."""

    def __init__(
        self,
        stream: Stream,
        reply: bytes,
        request: DirectGetRequest,
        subject_filter: SubjectFilter | None,
        sequence: int,
        pending: int,
    ) -> None:
        self._stream = stream
        self._reply = reply
        self._filter = subject_filter
        self._sequence = sequence
        self._last_sequence = stream.store.last_sequence
        self._wanted = request.batch
        self._batch = _Batch(stream, request, pending)

    def deliver(self, now_ns: int) -> bool:
        """Send the next run; True when more follow."""
        stream = self._stream
        route = stream.account.route(self._reply)
        if stream.is_closed or not route.recipients:
            return False
        if route.congested:
            stream.services.deliveries.wait_for_drain(self)
            return False
        is_last = self._wanted <= 0
        if not is_last:
            wanted = min(self._wanted, _RUN_MESSAGES)
            last = min(self._last_sequence, stream.visible_sequence)
            run = stream.store.read(self._sequence, self._filter, wanted, _RUN_BYTES, last)
            for message in run.messages:
                self._batch.add(message)
                if self._batch.is_full:
                    break
            self._wanted -= len(run.messages)
            self._sequence = run.next_sequence
            is_last = not run.messages or self._wanted <= 0 or self._batch.is_full or run.next_sequence > last
        answers = self._batch.finished() if is_last else self._batch.take()
        stream.account.send_to(self._reply, _messages(self._reply, answers))
        return not is_last


def _newest_of_each(stream: Stream, request: DirectGetRequest) -> Steps[list[_Answer] | _BatchDelivery]:
    """Return the newest message of every matching subject, in the order of sequences, as of a sequence or time."""
    store = stream.store
    up_to = request.up_to_seq or store.last_sequence
    if request.up_to_time is not None:
        up_to = store.first_at_or_after(parse_time(request.up_to_time)) - 1
    # As in nats-server, a sequence beyond the end has no results in a file, and stands for the end in memory.
    is_ahead = up_to > store.last_sequence and stream.config.storage is StorageType.FILE
    if up_to < 1 or is_ahead:
        return [_NO_RESULTS]
    subject_filter = SubjectFilter.of([_bytes(pattern) for pattern in request.multi_last])
    sequences = yield from store.last_per_subject_in_steps(subject_filter, up_to)
    if not sequences:
        return [_NO_RESULTS]
    if len(sequences) > MULTI_LAST_MAX:
        return [_TOO_MANY_RESULTS]
    sequences = [sequence for sequence in sequences if sequence >= request.seq]
    answers = _Batch(stream, replace(request, no_hdr=False), len(sequences), up_to)
    for sequence in sequences[: request.batch] if request.batch > 0 else sequences:
        yield
        if stream.is_closed:
            return [_NO_RESULTS]
        message = store.get(sequence)
        if message is not None and not answers.is_full:
            answers.add(message)
    return answers.finished()


class _Batch:
    """The answers to a request for several messages, each with the number of messages left after it."""

    def __init__(self, stream: Stream, request: DirectGetRequest, pending: int, up_to_sequence: int = 0) -> None:
        self.is_full = False
        self._stream = stream
        self._request = request
        self._pending = pending
        self._last_sequence = 0
        self._up_to_sequence = up_to_sequence
        self._bytes = 0
        self._answers: list[_Answer] = []

    def add(self, message: StoredMessage) -> None:
        """Append a message; the one that reaches `max_bytes` is the last."""
        if self._request.no_hdr:
            self._answers.append((b"", message.payload))
        else:
            self._pending -= 1
            header = _origin(self._stream, message) + self._numbers() + b"\r\n"
            self._answers.append((header, message.payload))
        self._last_sequence = message.sequence
        self._bytes += len(message.subject) + len(message.header) + len(message.payload)
        self.is_full = 0 < self._request.max_bytes <= self._bytes

    def take(self) -> list[_Answer]:
        """Return the answers added since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def finished(self) -> list[_Answer]:
        """Return the last answers and the one that ends the batch."""
        up_to = b"Nats-UpTo-Sequence: %d\r\n" % self._up_to_sequence if self._up_to_sequence else b""
        return [*self.take(), b"NATS/1.0 204 EOB\r\n" + self._numbers() + up_to + b"\r\n"]

    def _numbers(self) -> bytes:
        return b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (self._pending, self._last_sequence)


def _first_sequence(stream: Stream, request: DirectGetRequest) -> int:
    store = stream.store
    first = store.first_at_or_after(parse_time(request.start_time)) if request.start_time else request.seq
    return max(first, store.first_sequence)


def _filter(request: DirectGetRequest) -> SubjectFilter | None:
    return SubjectFilter.of([_bytes(request.next_by_subj)]) if request.next_by_subj else None


def _bytes(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
