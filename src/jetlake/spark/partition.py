"""What one task reads."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

__all__ = ["ReadPartition"]


@dataclass
class ReadPartition(InputPartition):
    """A range of one stream's sequences, and how to read it.

    Attributes:
        stream: name of the stream.
        first: first sequence.
        end: the sequence after the last.
        subjects: filters; none means all.
        reader: `consumer`, `direct` or `leader`.
        bytes_per_message: about how large a message is; readers ask for as many as they can take.
        guards_beginning: whether a gap at the range's beginning means lost messages, when the stream begins behind it.
        runs: read only these sequences, as runs `(first, last)`; None for all between `first` and `end`.
    """

    stream: str
    first: int
    end: int
    subjects: tuple[str, ...]
    reader: str
    bytes_per_message: float = 0.0
    guards_beginning: bool = False
    runs: tuple[tuple[int, int], ...] | None = None
