"""Messages of a read buffer as Arrow columns, without a Python object for any of them.

Every field is found as a pair of positions in the buffer for all messages at once; Arrow's `take` then copies the bytes
of a field together, and Arrow's casts turn digits and times into numbers.

Deliveries of a consumer have a shorter way, because nearly always all their control lines have one form. The reply
subject is `$JS.ACK.….<stream>.<consumer>.<count>.<sequence>.<count>.<time>.<pending>`; if the numbers of the first and
the last line have as many digits, all positions follow from the end of the line. They are then proved: each byte that
should be the same in every line is compared, and every number must be made of digits. Leading digits that the first
and the last sequence or time share are compared too, which is cheaper than reading them; where times are not ascending,
all digits are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jetlake.client.tables.arrow_values import arrow_of, cut_bytes, numpy_of
from jetlake.client.tables.frames import DIGITS_MAX, WORD_BYTES, Split, read_decimals
from jetlake.errors import ProtocolError
from jetlake.protocol.headers import Headers

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class MessageColumns:
    """Messages of one stream, column by column.

    Attributes:
        sequence: int64.
        time_ns: int64, nanoseconds since 1970.
        subject: binary, as on the wire.
        header: binary, the header block or nothing.
        payload: binary.
        pending: how many messages the server says are left after the last of these; -1 when it does not say.
        value: the decoded payloads of messages of an archive that has not kept their bytes; `payload` is then empty.
    """

    sequence: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    subject: pa.Array
    header: pa.Array
    payload: pa.Array
    pending: int = -1
    value: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    def slice(self, first: int, end: int) -> MessageColumns:
        """Return the messages from number `first` up to but not including number `end`."""
        length = end - first
        return MessageColumns(
            self.sequence[first:end],
            self.time_ns[first:end],
            self.subject.slice(first, length),
            self.header.slice(first, length),
            self.payload.slice(first, length),
            self.pending,
            self.value.slice(first, length) if self.value is not None else None,
        )

    def take(self, rows: NDArray[np.int64]) -> MessageColumns:
        """Return the messages of these numbers."""
        chosen = arrow_of(rows)
        return MessageColumns(
            self.sequence[rows],
            self.time_ns[rows],
            self.subject.take(chosen),
            self.header.take(chosen),
            self.payload.take(chosen),
        )


def joined(parts: list[MessageColumns]) -> MessageColumns:
    """Return the messages of all parts, one part behind the other."""
    return MessageColumns(
        np.concatenate([part.sequence for part in parts]),
        np.concatenate([part.time_ns for part in parts]),
        pa.concat_arrays([part.subject for part in parts]),
        pa.concat_arrays([part.header for part in parts]),
        pa.concat_arrays([part.payload for part in parts]),
    )


def in_order(parts: list[MessageColumns]) -> MessageColumns:
    """Return the messages of all parts, each sequence once, in the order of their sequences."""
    whole = joined(parts)
    return whole.take(np.unique(whole.sequence, return_index=True)[1])


def gather(buffer: Any, start: Positions, end: Positions) -> pa.Array:
    """Return the bytes between each start and end as a binary array; the pairs are in order and do not overlap."""
    count = len(start)
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = start
    edges[1:-1:2] = end
    edges[-1] = edges[-2] if count else 0
    parts = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(buffer)])
    return parts.take(arrow_of(np.arange(0, 2 * count, 2, dtype=np.int64)))


def _bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], Positions]:
    """Return the bytes of a binary array that begins at its buffer's beginning, and the edges of its elements."""
    _, edges, data = array.buffers()
    offsets = np.frombuffer(edges, np.int32, len(array) + 1).astype(np.int64)
    octets = np.frombuffer(data, np.uint8, int(offsets[-1])) if data is not None else np.empty(0, np.uint8)
    return octets, offsets


def _integers(buffer: Any, start: Positions, end: Positions) -> NDArray[np.int64]:
    try:
        numbers = gather(buffer, start, end).cast(pa.string()).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the server's answer lacks an expected number: {error}") from None
    return numpy_of(numbers)


def columns_of_deliveries(buffer: bytearray, split: Split, stream: str, consumer: str) -> tuple[MessageColumns, Split]:
    """Return the columns of a consumer's deliveries, and the statuses among them as a split of their own.

    Sequence and time come from the reply subject, `$JS.ACK.….<stream>.<consumer>.<count>.<sequence>.<…>.<time>.<…>`.

    Raises:
        ProtocolError: a reply subject is not of that form.
    """
    uniform = read_uniform_lines(buffer, split, stream, consumer)
    if uniform is not None:
        return _columns_of_lines(buffer, split, uniform), _EMPTY
    lines = gather(buffer, split.subject, split.sizes)
    octets, edges = _bytes_of(lines)
    spaces = np.flatnonzero(octets == 32)
    statuses = _EMPTY
    if len(spaces) != 2 * len(split):
        spaces_of = np.diff(np.searchsorted(spaces, edges))
        statuses = _subset(split, spaces_of == 1)
        split = _subset(split, spaces_of == 2)
        if len(split) + len(statuses) != len(spaces_of):
            raise ProtocolError("the server sent a message line with neither two nor three arguments")
        if not len(split):
            return NO_COLUMNS, statuses
        lines = gather(buffer, split.subject, split.sizes)
        octets, edges = _bytes_of(lines)
        spaces = np.flatnonzero(octets == 32)
    line_bytes = lines.buffers()[2]
    pairs = spaces.reshape(-1, 2)
    after = _tokens_after_time(lines[0].as_py(), stream, consumer)
    dots = np.flatnonzero(octets == 46)
    last_dot = np.searchsorted(dots, edges[1:]) - after
    if (dots[last_dot - 3] < pairs[:, 1]).any():
        raise ProtocolError("the server sent a message whose reply subject is not an acknowledgement subject")
    sequence = _integers(line_bytes, dots[last_dot - 3] + 1, dots[last_dot - 2])
    time_ns = _integers(line_bytes, dots[last_dot - 1] + 1, dots[last_dot])
    columns = MessageColumns(
        sequence=sequence,
        time_ns=time_ns,
        subject=gather(line_bytes, edges[:-1], pairs[:, 0]),
        header=_headers(buffer, split),
        payload=gather(buffer, split.payload, split.end),
        pending=int(bytes(octets[dots[last_dot[-1]] + 1 : edges[-1]]).split(b".")[0]),
    )
    return columns, statuses


def _columns_of_lines(buffer: bytearray, split: Split, lines: DeliveryLines) -> MessageColumns:
    return MessageColumns(
        sequence=lines.sequence,
        time_ns=lines.time_ns,
        subject=gather(buffer, split.subject, lines.subject_end),
        header=_headers(buffer, split),
        payload=gather(buffer, split.payload, split.end),
        pending=lines.pending,
    )


def _headers(buffer: bytearray, split: Split) -> pa.Array:
    """Return the header blocks; most streams have none, and then there is nothing to copy."""
    if (split.payload != split.header).any():
        return gather(buffer, split.header, split.payload)
    return cut_bytes(b"", np.zeros(len(split), np.int64))


def statuses_of(buffer: bytearray, split: Split) -> list[Headers]:
    """Return the header blocks of statuses, parsed."""
    return [Headers(bytes(buffer[start:end])) for start, end in zip(split.header, split.payload, strict=True)]


def _tokens_after_time(line: bytes, stream: str, consumer: str) -> int:
    """Return how many dots follow the time in the reply subjects: 1 today, more when a server appends tokens."""
    reply = line.split(b" ")[-1]
    name = f".{stream}.{consumer}.".encode()
    position = reply.find(name)
    after = reply[position + len(name) :].count(b".") - 3
    if not reply.startswith(b"$JS.ACK.") or position < 0 or after < 1:
        raise ProtocolError(
            f"the server sent a message with the reply subject {reply[:120]!r}, which is not an acknowledgement subject"
        )
    return after


def columns_of_direct_gets(buffer: bytearray, split: Split, stream: str) -> tuple[MessageColumns, Split]:
    """Return the columns of answers to direct gets, and the statuses among them as a split of their own.

    Answers of another stream, a mirror of the requested one, are left out.

    Raises:
        ProtocolError: an answer lacks the headers that say subject, sequence and time.
    """
    octets = np.frombuffer(buffer, np.uint8)
    # A status stands in the version line, behind `NATS/1.0`.
    has_header = split.payload - split.header >= 12
    if not has_header.all():
        raise ProtocolError("the server answered a direct get without headers")
    is_status = octets[split.header + 8] != 13
    statuses = _EMPTY
    if is_status.any():
        statuses = _subset(split, is_status)
        split = _subset(split, ~is_status)
        if not len(split):
            return NO_COLUMNS, statuses
    blocks = gather(buffer, split.header, split.payload)
    block_octets, edges = _bytes_of(blocks)
    block_bytes = blocks.buffers()[2]
    line_feeds = np.flatnonzero(block_octets == 10)
    last = np.searchsorted(line_feeds, edges[1:]) - 1
    first = np.searchsorted(line_feeds, edges[:-1])
    # A batch appends six lines, a single get four: stream, subject, sequence, time [, pending, last sequence].
    extra = _lines_after_time(blocks[0].as_py())
    ends = [line_feeds[np.maximum(last - extra - back, 0)] for back in range(5)]
    if (last - extra - 4 < first).any():
        raise ProtocolError("the server answered a direct get without its headers")
    time_end, sequence_end, subject_end, stream_end, own_end = ends
    is_own = _equals(_value(block_octets, block_bytes, b"Nats-Stream: ", own_end, stream_end), stream.encode())
    if not is_own.all():
        own = _subset(split, is_own)
        return columns_of_direct_gets(buffer, own, stream)[0] if len(own) else NO_COLUMNS, statuses
    subject = _value(block_octets, block_bytes, b"Nats-Subject: ", stream_end, subject_end)
    sequence = _value(block_octets, block_bytes, b"Nats-Sequence: ", subject_end, sequence_end)
    time = _value(block_octets, block_bytes, b"Nats-Time-Stamp: ", sequence_end, time_end)
    try:
        numbers = numpy_of(sequence.cast(pa.string()).cast(pa.int64()))
        times = numpy_of(time.cast(pa.string()).cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()))
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the server answered a direct get with a bad sequence or time: {error}") from None
    columns = MessageColumns(
        sequence=numbers,
        time_ns=times,
        subject=subject,
        header=_own_headers(block_bytes, edges, own_end, line_feeds[first] == own_end),
        payload=gather(buffer, split.payload, split.end),
    )
    return columns, statuses


def _lines_after_time(block: bytes) -> int:
    """Return how many lines, the empty one included, follow the one with the time."""
    lines = block.split(b"\r\n")
    for index in range(len(lines) - 1, 0, -1):
        if lines[index].startswith(b"Nats-Time-Stamp: "):
            return len(lines) - 2 - index
    raise ProtocolError("the server answered a direct get without a time")


def _value(octets: NDArray[np.uint8], data: Any, key: bytes, before: Positions, line_feed: Positions) -> pa.Array:
    """Return the values of the lines that begin behind `before` and end with `line_feed`; all have that key."""
    words = np.ndarray((len(octets) - 7,), np.dtype("<u8"), octets, strides=(1,))
    start = before + 1
    if (words[start] != int.from_bytes(key[:8], "little")).any():
        raise ProtocolError(f"the server answered a direct get without {key.decode()[:-2]} in its place")
    return gather(data, start + len(key), line_feed - 1)


def _equals(values: pa.Array, wanted: bytes) -> NDArray[np.bool_]:
    """Return which of the values are the wanted one; without Arrow's functions, which take long to load."""
    octets, edges = _bytes_of(values)
    if octets.tobytes() == wanted * len(values) and (np.diff(edges) == len(wanted)).all():
        return np.ones(len(values), np.bool_)
    return np.array([value == wanted for value in values.to_pylist()], np.bool_)


def _own_headers(data: Any, edges: Positions, own_end: Positions, has_none: NDArray[np.bool_]) -> pa.Array:
    """Return the messages' own header blocks: without the lines of the direct get, empty where nothing is left."""
    start = edges[:-1]
    end = np.where(has_none, start, own_end + 1)
    own = gather(data, start, end)
    if has_none.all():
        return own
    sizes = np.where(has_none, 0, 2)
    closing, separator = cut_bytes(b"\r\n" * (int(sizes.sum()) // 2), sizes), cut_bytes(b"", np.zeros_like(sizes))
    # Imported where it is used: most processes that Spark starts never compute, and would wait for it.
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(own, closing, separator)


def _subset(split: Split, chosen: NDArray[np.bool_]) -> Split:
    return Split(
        split.subject[chosen],
        split.sizes[chosen],
        split.header[chosen],
        split.payload[chosen],
        split.end[chosen],
        [],
        0,
    )


_NO_POSITIONS = np.empty(0, np.int64)
_EMPTY = Split(_NO_POSITIONS, _NO_POSITIONS, _NO_POSITIONS, _NO_POSITIONS, _NO_POSITIONS, [], 0)
# Not `pa.nulls`, whose first call loads all that Arrow can compute.
_NO_BYTES = cut_bytes(b"", _NO_POSITIONS)
NO_COLUMNS = MessageColumns(_NO_POSITIONS, _NO_POSITIONS, _NO_BYTES, _NO_BYTES, _NO_BYTES)


_Integers = NDArray[np.int64]


class DeliveryLines(NamedTuple):
    """What the control lines say.

    Attributes:
        subject_end: where each subject ends.
        sequence: the messages' sequences.
        time_ns: when they were stored, in nanoseconds since 1970.
        pending: how many messages the server says are left after the last of these.
    """

    subject_end: _Integers
    sequence: _Integers
    time_ns: _Integers
    pending: int


class _Form(NamedTuple):
    """A line from the end of its subject on: ` <sid> $JS.ACK.….`, and the numbers."""

    head: bytes
    numbers: list[bytes]

    def template(self, shared: dict[int, int]) -> bytes:
        """Return the line with a zero byte for each digit of a number that is not shared by all lines."""
        return self.head + b".".join(
            number[: shared.get(index, 0)].ljust(len(number), b"\0") for index, number in enumerate(self.numbers)
        )


_NONE_SHARED: dict[int, int] = {}
_SEQUENCE, _TIME, _PENDING = 1, 3, 4


def read_uniform_lines(buffer: bytearray, split: Split, stream: str, consumer: str) -> DeliveryLines | None:
    """Read the control lines; None when their forms differ, or they are no deliveries."""
    form, last = (_form_of(bytes(buffer[split.subject[i] : split.sizes[i]]), stream, consumer) for i in (0, -1))
    if form is None or last is None or (template := form.template(_NONE_SHARED)) != last.template(_NONE_SHARED):
        return None
    width = -(-len(template) // WORD_BYTES) * WORD_BYTES
    subject_end = split.sizes - len(template)
    if (subject_end <= split.subject).any() or subject_end[-1] + width > len(buffer):
        return None
    lines = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))[subject_end]
    shared = {index: _shared_digits(form.numbers[index], last.numbers[index]) for index in (_SEQUENCE, _TIME)}
    if not _match(lines, form.template(shared), width):
        shared = _NONE_SHARED
        if not _match(lines, template, width):
            return None
    ends = list(accumulate((len(number) + 1 for number in form.numbers), initial=len(form.head) - 1))[1:]
    found = []
    for index in (_SEQUENCE, _TIME):
        number, known = form.numbers[index], shared.get(index, 0)
        rest = read_decimals(lines, ends[index], width, len(lines), len(number) - known)
        if rest is None:
            return None
        found.append(rest + np.uint64(number[:known].ljust(len(number), b"0")).astype(np.int64) if known else rest)
    return DeliveryLines(subject_end, found[0], found[1], int(last.numbers[_PENDING]))


def _match(lines: NDArray[np.void], template: bytes, width: int) -> bool:
    """Return whether all lines, each `width` bytes long, have the bytes of the template that are not zero."""
    expected = template.ljust(width, b"\0")
    compared = bytes(255 * (octet > 0) for octet in expected)
    words = lines.view(np.uint64).reshape(-1, width // WORD_BYTES)
    return not ((words & np.frombuffer(compared, np.uint64)) != np.frombuffer(expected, np.uint64)).any()


def _shared_digits(one: bytes, other: bytes) -> int:
    """Return how many leading digits two numbers share."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _form_of(line: bytes, stream: str, consumer: str) -> _Form | None:
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"$JS.ACK."):
        return None
    before, name, behind = words[2].partition(f".{stream}.{consumer}.".encode())
    numbers = behind.split(b".")[:5]
    if len(numbers) < 5 or not all(number.isdigit() and len(number) <= DIGITS_MAX for number in numbers):
        return None
    # Tokens that a server appends would have to be the same in every line.
    return _Form(b" %b %b%b" % (words[1], before, name), behind.split(b"."))
