"""Runs of messages that are published at once: built, sent and acknowledged in columns, without an object for each.

A run is only a shorter way to write what single messages are. Whatever is not an acknowledgement in the order of
publishing (a refusal, a lost connection, a deadline) splits it into `PendingAck`s, which have their own rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from jetlake.client.publish.pending_ack import PendingAck
from jetlake.protocol import encoder

__all__ = ["PublishRun", "PublishRuns"]


class PublishRun:
    """Messages without headers and ids, sent with one write.

    Args:
        subjects: the subject of each.
        payloads: the payload of each.
        position: how many messages the publisher gave before these.

    Attributes:
        bytes_left: bytes of the frames that are not acknowledged.
        deadline: when half of the time for the acknowledgements is over.
        is_observed: the publisher learns of failures itself; nobody else is told.
        pendings: the messages that were not acknowledged when the run was split, with their positions.
        replies: the reply subject of each.
        stored: how many are acknowledged, from the first on.
    """

    __slots__ = (
        "_payloads",
        "_position",
        "_subjects",
        "bytes_left",
        "deadline",
        "is_observed",
        "pendings",
        "replies",
        "stored",
    )

    def __init__(self, subjects: Sequence[bytes], payloads: Sequence[bytes], position: int) -> None:
        self._subjects = subjects
        self._payloads = payloads
        self._position = position
        self.bytes_left = 0
        self.deadline = 0.0
        self.is_observed = True
        self.pendings: list[tuple[int, PendingAck]] = []
        self.replies: list[bytes] = []
        self.stored = 0

    def __len__(self) -> int:
        return len(self._payloads)

    def frames(self, prefix: bytes, first: int) -> bytes:
        """Encode all messages, which get reply subjects of this prefix and of consecutive numbers."""
        count = len(self)
        lines = (prefix.replace(b"%", b"%%") + b"%d\n") * count  # One call formats all.
        self.replies = (lines % tuple(range(first, first + count))).split()
        data = encoder.pub_run(self._subjects, self.replies, self._payloads)
        self.bytes_left = len(data)
        return data

    def take(self, replies: list[bytes], start: int) -> int:
        """Acknowledge the next messages, whose replies stand from `start` on; returns how many, 0 if others do."""
        stored = self.stored
        expected = self.replies[stored : stored + len(replies) - start]
        count = len(expected)
        if replies[start] != expected[0] or replies[start : start + count] != expected:
            return 0
        self.bytes_left -= self.bytes_left * count // (len(self) - stored)
        self.stored = stored + count
        return count

    def split(self, pending: dict[bytes, PendingAck], deadline: float, *, is_late: bool) -> int:
        """Put the messages that are not acknowledged among the single ones; returns the bytes of their frames."""
        size = 0
        for number in range(self.stored, len(self)):
            reply, subject = self.replies[number], self._subjects[number]
            frame = encoder.pub(subject, reply, self._payloads[number])
            size += len(frame)
            pending[reply] = one = PendingAck(subject, frame, False, deadline)
            one._is_late = is_late
            one._observed = self.is_observed
            self.pendings.append((self._position + number, one))
        self.stored = len(self)
        self.bytes_left = 0
        return size


class PublishRuns:
    """The runs of a publish window that are under way, oldest first.

    Attributes:
        messages: how many messages of them are not acknowledged.
        size: the bytes of their frames.
    """

    __slots__ = ("_runs", "messages", "size")

    def __init__(self) -> None:
        self._runs: deque[PublishRun] = deque()
        self.messages = 0
        self.size = 0

    def add(self, run: PublishRun) -> None:
        """Add a run that was sent."""
        self._runs.append(run)
        self.messages += len(run)
        self.size += run.bytes_left

    def acknowledge(self, replies: list[bytes]) -> list[int]:
        """Acknowledge messages of the runs; returns which of the replies are not the next ones of a run."""
        runs = self._runs
        others: list[int] = []
        start, count = 0, len(replies)
        while runs and start < count:
            run = runs[0]
            size = run.bytes_left
            taken = run.take(replies, start)
            if not taken:
                others.append(start)
                start += 1
                continue
            start += taken
            self.messages -= taken
            self.size -= size - run.bytes_left
            if run.stored == len(run):
                runs.popleft()
        others += range(start, count)
        return others

    def next_deadline(self) -> float | None:
        """Return when the oldest run has to be split; None without a run."""
        return self._runs[0].deadline if self._runs else None

    def pop(self) -> PublishRun | None:
        """Take out the oldest run, to be split."""
        if not self._runs:
            return None
        run = self._runs.popleft()
        self.messages -= len(run) - run.stored
        self.size -= run.bytes_left
        return run
