"""Which messages a range holds, and how large they are, without reading their payloads.

Limits streams are surveyed by ephemeral consumers that deliver headers only. In work queues and interest streams a
consumer would take part in retention; there direct gets list the messages.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jetlake.client.tables.arrow_values import numpy_of
from jetlake.client.tables.frames import split_frames
from jetlake.client.tables.message_columns import MessageColumns, columns_of_deliveries, statuses_of
from jetlake.client.tables.message_gets import MergedGets
from jetlake.client.tables.planning import SequenceRange
from jetlake.client.tables.read_buffer import ReadBuffer
from jetlake.client.tables.stream_api import StreamApi
from jetlake.errors import ApiError, PermissionsError, PullStatusError, StreamNotFoundError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.enums import AckPolicy, DeliverPolicy, RetentionPolicy
from jetlake.model.requests import PullRequest
from jetlake.model.stream import StreamInfo
from jetlake.protocol.nuid import next_nuid

# The header of a delivery without payload that holds the payload's size, and the length of that header itself.
_SIZE_HEADER_BYTES = 36
_SIZE_HEADER = r"\r\nNats-Msg-Size: (?P<size>[0-9]+)\r\n\r\n$"
_COUNT_ATTEMPTS_MAX = 16
_INACTIVE_S = 60.0
_PORTION_MAX = 10_000
Numbers = NDArray[np.int64]


def count_matching(api: StreamApi, stream: str, subjects: tuple[str, ...], edges: list[int]) -> list[int] | None:
    """Return how many messages match between each edge and the next, on a limits stream; None when that is unknown.

    The server counts up to the stream's end, and messages that arrive there meanwhile count too. So the last edge is
    counted before and after every other one, and the count between is right only if both answers are the same.
    """
    try:
        behind = _pending(api, stream, subjects, edges[-1])
        until_end = []
        for edge in edges[:-1]:
            for _ in range(_COUNT_ATTEMPTS_MAX):
                count, before = _pending(api, stream, subjects, edge), behind
                behind = _pending(api, stream, subjects, edges[-1])
                if behind == before:
                    break
            else:
                return None
            until_end.append(count - behind)
    except (ApiError, PermissionsError) as error:
        if isinstance(error, StreamNotFoundError):
            raise
        return None
    return [max(first - second, 0) for first, second in pairwise([*until_end, 0])]


def _pending(api: StreamApi, stream: str, subjects: tuple[str, ...], sequence: int) -> int:
    """Return how many messages match from that sequence on."""
    probe = api.create_consumer(stream, _config(subjects, sequence))
    api.forget_consumer(stream, probe.name)
    return probe.num_pending


def _config(subjects: tuple[str, ...], sequence: int) -> ConsumerConfig:
    return ConsumerConfig(
        name=f"jetlake-{next_nuid()}",
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=max(sequence, 1),
        ack_policy=AckPolicy.NONE,
        filter_subject=subjects[0] if len(subjects) == 1 else "",
        filter_subjects=subjects if len(subjects) > 1 else (),
        headers_only=True,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=nanoseconds(_INACTIVE_S),
    )


def list_messages(
    api: StreamApi, info: StreamInfo, subjects: tuple[str, ...], whole: SequenceRange, wanted: int
) -> Generator[tuple[Numbers, Numbers]]:
    """Yield sequences and sizes (subject, headers and payload) of at most `wanted` messages of a range, in order.

    Raises:
        ApiError, PermissionsError: the login may not ask.
    """
    stream = info.config.name
    if info.config.retention is not RetentionPolicy.LIMITS:
        yield from _list_by_direct_gets(api, stream, subjects, whole, wanted)
        return
    consumer = api.create_consumer(stream, _config(subjects, whole.first)).name
    try:
        while wanted > 0:
            parts = pull_now(api, stream, consumer, min(wanted, _PORTION_MAX))
            wanted = wanted if parts else 0
            for columns in parts:
                inside = int(np.searchsorted(columns.sequence, whole.end))
                if inside:
                    yield columns.sequence[:inside], _sizes(columns.slice(0, inside))
                wanted = wanted - inside if inside == len(columns) else 0
    finally:
        api.forget_consumer(stream, consumer)


def _list_by_direct_gets(
    api: StreamApi, stream: str, subjects: tuple[str, ...], whole: SequenceRange, wanted: int
) -> Generator[tuple[Numbers, Numbers]]:
    gets = MergedGets(api, stream, subjects, whole)
    try:
        while wanted > 0 and not gets.done:
            columns = gets.next_messages(min(wanted, _PORTION_MAX))
            if len(columns):
                yield columns.sequence, _sizes(columns)
                wanted -= len(columns)
    finally:
        gets.close()


def _sizes(columns: MessageColumns) -> Numbers:
    """Return the bytes of each message; a delivery without payload has the payload's size in its last header."""
    # Imported where it is used: most processes that Spark starts never compute, and would wait for it.
    import pyarrow.compute as pc

    def lengths(column: pa.Array) -> Numbers:
        return numpy_of(pc.binary_length(column).cast(pa.int64()))

    told = pc.struct_field(pc.extract_regex(columns.header, _SIZE_HEADER), [0]).cast(pa.string())
    payload = lengths(columns.payload) + numpy_of(pc.fill_null(told, "0").cast(pa.int64()))
    return lengths(columns.subject) + np.maximum(lengths(columns.header) - _SIZE_HEADER_BYTES, 0) + payload


class Measured(NamedTuple):
    """The beginning of a range, up to what limits allow.

    Attributes:
        end: the sequence after it: the first message beyond the limits, or the end of the range.
        messages: how many messages it holds.
        bytes: how many bytes they are.
    """

    end: int
    messages: int
    bytes: int


def measure(
    api: StreamApi,
    info: StreamInfo,
    subjects: tuple[str, ...],
    whole: SequenceRange,
    messages_max: int,
    bytes_max: int,
) -> Measured:
    """Return the beginning of a range within both limits (0 for no limit), with at least one message."""
    messages = size = 0
    wanted = messages_max + 1 if messages_max else len(whole)
    with closing(list_messages(api, info, subjects, whole, wanted)) as portions:
        for sequences, sizes in portions:
            totals = size + np.cumsum(sizes)
            fits = int(np.searchsorted(totals, bytes_max, side="right")) if bytes_max else len(sizes)
            if messages_max:
                fits = min(fits, messages_max - messages)
            fits = max(fits, 1 - messages)
            if fits < len(sizes):
                return Measured(int(sequences[fits]), messages + fits, int(totals[fits - 1]) if fits else size)
            messages += len(sizes)
            size = int(totals[-1])
    return Measured(whole.end, messages, size)


def sequence_of_last(api: StreamApi, info: StreamInfo, subjects: tuple[str, ...], count: int) -> int:
    """Return the first sequence of the newest `count` matching messages; the stream's first when there are fewer."""
    first, end = max(info.state.first_seq, 1), info.state.last_seq + 1
    if info.config.retention is not RetentionPolicy.LIMITS:
        whole = SequenceRange(first, end)
        found = [sequence for sequence, _ in list_messages(api, info, subjects, whole, end - first)]
        sequences = np.concatenate(found) if found else np.empty(0, np.int64)
        return int(sequences[-count]) if len(sequences) >= count > 0 else (first if count else end)
    # Binary search: at least `count` messages match from `first` on, fewer from `end` on.
    if not count or _pending(api, info.config.name, subjects, first) < count:
        return first if count else end
    while end - first > 1:
        middle = (first + end) // 2
        if _pending(api, info.config.name, subjects, middle) >= count:
            first = middle
        else:
            end = middle
    return first


def pull_now(api: StreamApi, stream: str, consumer: str, wanted: int, expires_s: float = 0.0) -> list[MessageColumns]:
    """Pull at most `wanted` messages that the consumer has right now, in the order of their delivery, by one request.

    Args:
        expires_s: how long the server may hold the request; a consumer that waits for acknowledgements would hold it
            for ever, and say nothing. 0 for a consumer that waits for none.

    Raises:
        PullStatusError: the consumer is gone, or does not allow such a request.
    """
    connection = api.connection
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox)
    request = PullRequest(batch=wanted, no_wait=True, expires=nanoseconds(expires_s))
    connection.publish(api.subject("CONSUMER.MSG.NEXT", stream, consumer), encode(request), reply=inbox)
    buffer = ReadBuffer()
    found: list[MessageColumns] = []
    count = 0
    ended = False
    while count < wanted and not ended:
        buffer.receive(connection, api.timeout_s)
        split = split_frames(buffer.data, buffer.fill)
        for line in split.lines:
            connection.handle_line(line)
        if len(split):
            messages, statuses = columns_of_deliveries(buffer.data, split, stream, consumer)
            if len(messages):
                found.append(messages)
                count += len(messages)
            for status in statuses_of(buffer.data, statuses):
                if status.status not in (404, 408):
                    raise PullStatusError(status.status or 0, status.description)
                ended = True
        buffer.discard(split.consumed)
    connection.unsubscribe(sid)
    buffer.drain(connection)
    return found
