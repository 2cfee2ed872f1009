"""Which sequences a micro-batch takes and how they are cut into tasks: pure arithmetic over what the server said."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

__all__ = ["Backlog", "SequenceRange", "admit", "cut", "waits_for_more"]


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

    The limits (0 means none) are shared in proportion to what each stream has; every stream that has something gets at
    least one sequence, so none waits for ever. Both limits count sequences, so messages removed in between make a
    batch smaller, never larger.
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
    """Cut the range into equal pieces, as few as keep each near the wanted messages and bytes; [] for an empty one.

    The same arguments give the same pieces, so a batch that is planned again has the same tasks.
    """
    length = len(whole)
    if length <= 0:
        return []
    wanted = max(
        math.ceil(length / messages_per_partition),
        math.ceil(size_bytes / bytes_per_partition),
        min_partitions,
    )
    pieces = max(1, min(wanted, max_partitions, length))
    edges = [whole.first + length * index // pieces for index in range(pieces + 1)]
    return [SequenceRange(first, end) for first, end in itertools.pairwise(edges)]
