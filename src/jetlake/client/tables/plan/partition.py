"""The part of a stream that one task, or one read, reads."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReadPartition"]


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
        beginning: what it means that the range's first messages are gone when the task begins: `strict`, they are
            lost; `open`, the range begins with what is there; `pushed`, the same if the stream's limits explain it.
        may_count: whether the server may be asked to count, by consumers that change nothing; in limits streams.
        messages: how many messages matched the filters when the range was planned; None where nobody counted.
        removed: sequences that were deleted in the middle of the stream when the range was planned, as runs.
        seen: the stream's last sequence and the server's time when the range was planned.
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
    note: str = ""
    runs: tuple[tuple[int, int], ...] | None = None
