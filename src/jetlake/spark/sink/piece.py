"""Rows that are published together: their frames, and how many of them are not acknowledged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jetlake.spark.sink.outgoing import Frames, OutgoingBatch

__all__ = ["Piece", "Rows"]

Rows = NDArray[np.int64]


class Piece:
    """Messages that are sent together, with their frames, until the last of them is acknowledged.

    Either every message has a reply subject of its own, which ends with its row, and it is known which are open; or all
    share one, which ends with the first row, and their answers are only counted.

    Attributes:
        first_row: the row of the first message.
        end_row: the row behind the last one.
        is_open: which messages are not acknowledged, where each has its own reply subject.
        open_rows: how many messages are not acknowledged, or not answered where they are only counted.
        stored: how many are known to be stored by this task without its being known which.
    """

    def __init__(self, batch: OutgoingBatch, inbox: bytes, first_row: int, *, counted: bool = False) -> None:
        self.batch = batch
        self.first_row = first_row
        self.end_row = first_row + len(batch)
        self.stored = 0
        self._set_open(batch.frames(b"%b%d" % (inbox, first_row)) if counted else batch.frames(inbox, first_row))

    def _set_open(self, frames: Frames) -> None:
        self.frames = frames
        self.is_open = np.ones(len(self.batch), np.bool_)
        self.open_rows = len(self.batch)

    def open_frames(self) -> memoryview | bytes:
        """Return the frames of the messages that are not acknowledged."""
        data, edges, _ = self.frames
        if self.open_rows == len(self.batch):
            return data
        return b"".join(data[edges[index] : edges[index + 1]] for index in np.flatnonzero(self.is_open))

    def close(self, rows: Rows) -> None:
        """Close these rows."""
        if len(rows):
            self.is_open[rows - self.first_row] = False
            self.open_rows = int(np.count_nonzero(self.is_open))

    def count_found(self, rows: Rows) -> int:
        """Return how many of these rows, which the stream had already, are open and were not stored by this task."""
        different = np.unique(rows - self.first_row)
        found = int(np.count_nonzero(self.is_open[different]))
        own = min(found, self.stored)
        self.stored -= own
        return found - own

    def count_answers(self, answers: int, stored: int) -> None:
        """Count answers to a shared reply subject, and how many of them say that a message was stored just now."""
        self.open_rows -= answers
        self.stored += stored

    def ask_by_row(self, inbox: bytes) -> None:
        """Open all messages again, each with a reply subject of its own."""
        self._set_open(self.batch.frames(inbox, self.first_row))
