"""What a batch reads: ranges of sequences, how they are cut into tasks and by which reader each is read.

All of this is pure: the state that the server reported, the options and the offset before go in, values come out. The
same arguments give the same tasks, so a batch that is planned again after a crash is the same batch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Protocol

from jetlake.client.tables.stream_api import Link
from jetlake.errors import UnsupportedStreamError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig


@dataclass(frozen=True)
class Backlog:
    """What a stream has to offer beyond the offset of a query.

    Attributes:
        first: the sequence that comes next.
        end: the sequence after the stream's last.
        bytes_per_sequence: average bytes for each sequence, gaps included.
    """

    first: int
    end: int
    bytes_per_sequence: float = 0.0

    @property
    def sequences(self) -> int:
        """How many sequences there are to read: never fewer than messages."""
        return max(self.end - self.first, 0)

    @property
    def bytes(self) -> float:
        """About how many bytes there are to read."""
        return self.sequences * self.bytes_per_sequence


@dataclass(frozen=True)
class SequenceRange:
    """Sequences from `first` up to but not including `end`."""

    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)


def admit(backlogs: dict[str, Backlog], max_messages: int = 0, max_bytes: int = 0) -> dict[str, int]:
    """Return how far each stream may be read in one micro-batch: the end, exclusive, by stream.

    The limits (0 means none) are shared in proportion to the streams' backlogs; every stream with a backlog gets at
    least one sequence, so that none starves. Both limits count sequences, so deleted messages make a batch smaller,
    never larger; where that would make many small batches, the driver measures the messages instead.
    """
    share = 1.0
    total = sum(backlog.sequences for backlog in backlogs.values())
    total_bytes = sum(backlog.bytes for backlog in backlogs.values())
    if max_messages and total > max_messages:
        share = max_messages / total
    if max_bytes and total_bytes > max_bytes:
        share = min(share, max_bytes / total_bytes)
    ends = {}
    for name, backlog in backlogs.items():
        # Rounding up by itself would let three streams take three more than the limit.
        wanted = backlog.sequences if share == 1.0 else max(math.floor(backlog.sequences * share), 1)
        ends[name] = backlog.first + min(wanted, backlog.sequences)
    return ends


def waits_for_more(backlogs: dict[str, Backlog], min_messages: int, waited_s: float, max_delay_s: float) -> bool:
    """Return whether a micro-batch should wait for more messages to come."""
    total = sum(backlog.sequences for backlog in backlogs.values())
    return total < min_messages and waited_s < max_delay_s


def cut(
    whole: SequenceRange,
    size_bytes: float,
    *,
    messages_per_partition: int,
    bytes_per_partition: int,
    min_partitions: int,
    max_partitions: int,
) -> list[SequenceRange]:
    """Cut the range into equal parts, as few as keep each near the wanted messages and bytes; [] for an empty range.

    The same arguments give the same parts, so a batch that is planned again has the same tasks.
    """
    length = len(whole)
    if length <= 0:
        return []
    wanted = max(
        math.ceil(length / messages_per_partition),
        math.ceil(size_bytes / bytes_per_partition),
        min_partitions,
    )
    parts = max(1, min(wanted, max_partitions, length))
    edges = [whole.first + length * index // parts for index in range(parts + 1)]
    return [SequenceRange(first, end) for first, end in itertools.pairwise(edges)]


@dataclass(frozen=True)
class BatchRange:
    """What the batch that ends at an offset reads of one stream, up to the offset's `next`.

    Attributes:
        first: the first sequence; None only in offsets of version 1, where it is the `next` of the offset before.
        bytes: about how many bytes the range holds; planning cuts by it.
        messages: how many messages matched the filters when the batch was planned; None where they were not counted.
        soft: whether the range begins at the stream's beginning (`earliest`): messages that the stream's limits remove
            from there before they are read are no loss. Every other message that goes away is one.
        expiring: for a soft range of a stream with an age limit, pairs `(seconds, sequence)`: within that many seconds
            after `seen`, no message from that sequence on can expire.
        taken: the sequences of the batch, as runs `(first, last)`; only where a durable consumer hands them out.
        partitions: most tasks that the batch is cut into, where the cluster decided that; so a batch that is repeated
            on another cluster has the same tasks. None where the options decide.
    """

    first: int | None
    bytes: int = 0
    messages: int | None = None
    soft: bool = False
    taken: tuple[tuple[int, int], ...] | None = None
    partitions: int | None = None
    expiring: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class StreamOffset:
    """How far one stream is read.

    Attributes:
        created: when the stream was created, as the server wrote it; another time means another stream.
        next: the sequence that comes next (the end of a batch is exclusive).
        held: whether `next` was a message that the query wants, and that was there when the batch was planned.
        seen: the stream's last sequence when the batch was planned, and the server's time then; a newer message without
            a higher sequence proves that the stream was restored from an older state. None in offsets of version 1,
            and where the server does not report its time.
        lost: messages so far that were removed before they were read (an upper bound under filters).
        owner: the query that holds the stream's durable consumer, for work queues and interest streams; tasks note
            losses under this name.
        batch: the range of the batch that ends here; None when it reads nothing of this stream.
        subjects: the filters by which a work queue or interest stream is read, because every message before `next` that
            matches them is released; none means all. None for other streams, and in offsets of earlier releases.
    """

    created: str
    next: int
    held: bool = False
    seen: tuple[int, str] | None = None
    lost: int = 0
    owner: str = ""
    batch: BatchRange | None = None
    subjects: tuple[str, ...] | None = None

    @property
    def position(self) -> StreamOffset:
        """The lasting part alone."""
        return replace(self, batch=None) if self.batch is not None else self

    @property
    def known_unread(self) -> int:
        """The most messages that the stream is known to have had behind this offset."""
        return max(self.seen[0] + 1 - self.next, 0) if self.seen is not None else 0

    @property
    def given_up(self) -> StreamOffset:
        """The position behind the last known message of the stream; the messages up to it are counted as lost."""
        return replace(
            self.position, next=self.next + self.known_unread, lost=self.lost + self.known_unread, held=False
        )

    def range_after(self, before: StreamOffset | None) -> tuple[int, int]:
        """Return the first sequence, and the one behind the last, of the batch between `before` and this offset."""
        # In version 1 a stream without anything in a batch kept its whole entry.
        if self.batch is None or self == before:
            return self.next, self.next
        if self.batch.first is not None:
            return self.batch.first, self.next
        return (before.next if before is not None else 1), self.next


@dataclass
class ReadPartition:
    """A range of one stream's sequences, and how to read and account for it.

    Attributes:
        stream: name of the stream.
        first: first sequence.
        end: the sequence after the last.
        subjects: filters; none means all.
        reader: `consumer`, `direct` or `leader`.
        created: when the stream was created; another time at the end means that another stream was read.
        bytes_per_message: about how large a message is; readers ask for as many as they can take.
        beginning: what it means that the range's first messages are gone when the task starts: `strict`, they are
            lost; `limits`, they are lost unless the stream's limits explain it; `open`, the range begins with the
            first message that is there, because other readers may remove messages.
        may_count: whether the server may be asked to count, by consumers that change nothing; in limits streams.
        messages: how many messages matched the filters when the range was planned; None where they were not counted.
        removed: sequences that were deleted in the middle of the stream when the range was planned, as runs.
        seen: the stream's last sequence and the server's time when the range was planned.
        expiring: how far the stream's age limit may get in which time, as in `BatchRange`.
        note: key under which the task notes what it found lost; empty to log it only.
        runs: read only these sequences, as runs `(first, last)`; None for all between `first` and `end`.
    """

    stream: str
    first: int
    end: int
    subjects: tuple[str, ...]
    reader: str
    created: str = ""
    bytes_per_message: float = 0.0
    beginning: str = "strict"
    may_count: bool = False
    messages: int | None = None
    removed: tuple[tuple[int, int], ...] = ()
    seen: tuple[int, str] | None = None
    expiring: tuple[tuple[int, int], ...] = ()
    note: str = ""
    runs: tuple[tuple[int, int], ...] | None = None


class ReadOptions(Protocol):
    """Which messages are read and how: the options of a table over a link, and the options of Spark's source."""

    @property
    def connection(self) -> Link:
        """The connections to the servers."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Filters; none means all."""

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether messages that are gone before they were read are an error."""

    @property
    def reader(self) -> str:
        """`auto`, `consumer`, `direct` or `leader`."""

    @property
    def direct_below(self) -> int:
        """Ranges of fewer messages than this are read by direct gets, with `auto`."""


Version = tuple[int, int, int]
SERVER_MIN: Version = (2, 9, 0)
"""The oldest server that is read from: the first with named consumers."""
BATCH_DIRECT_GET: Version = (2, 11, 0)


def parse_version(text: str) -> Version:
    """`2.15.1` or `2.12.0-RC.1` as numbers; what is no version counts as the oldest."""
    numbers = []
    for part in text.split("-")[0].split(".")[:3]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return (*numbers, 0, 0, 0)[:3]  # type: ignore[return-value]


def check_server(version: Version) -> None:
    """Refuse servers that are too old.

    Raises:
        UnsupportedStreamError: the server lacks what every way of reading needs.
    """
    if version < SERVER_MIN:
        raise UnsupportedStreamError(
            f"the server is {version_text(version)}; bulk reads need {version_text(SERVER_MIN)} or newer: upgrade it"
        )


def choose_reader(config: StreamConfig, version: Version, options: ReadOptions, sequences: int) -> str:
    """Return how a range of that many sequences is read: `consumer`, `direct` or `leader`.

    Raises:
        UnsupportedStreamError: the stream cannot be read that way, with what to change.
    """
    wanted = options.reader
    may_direct = config.allow_direct and version >= BATCH_DIRECT_GET
    if config.retention is RetentionPolicy.LIMITS:
        if wanted == "auto":
            small = sequences < options.direct_below and len(options.subjects) <= 1
            return "direct" if small and may_direct else "consumer"
    elif wanted == "consumer":
        raise UnsupportedStreamError(
            f"stream {config.name} has {config.retention} retention, where a consumer takes messages away by reading "
            "them: option reader may be direct or leader there"
        )
    elif wanted == "auto":
        if may_direct:
            return "direct"
        raise UnsupportedStreamError(_no_direct(config, version) + ", or use option reader=leader (slow)")
    if wanted == "direct" and not may_direct:
        raise UnsupportedStreamError(_no_direct(config, version) + ", or leave option reader at auto")
    return wanted


def _no_direct(config: StreamConfig, version: Version) -> str:
    if version < BATCH_DIRECT_GET:
        return (
            f"stream {config.name} ({config.retention} retention) would be read by batches of direct gets, which need "
            f"a server {version_text(BATCH_DIRECT_GET)} or newer, and this one is {version_text(version)}: upgrade it"
        )
    return (
        f"stream {config.name} ({config.retention} retention) would be read by direct gets, which it does not allow: "
        "set allow_direct on the stream"
    )


def version_text(version: Version) -> str:
    """Return the version as it is written: `2.11.0`."""
    return ".".join(map(str, version))
