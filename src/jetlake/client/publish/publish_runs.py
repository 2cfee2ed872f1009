"""Runs of messages that are published at once: encoded, sent and acknowledged in columns.

A run is only a shorter way to write what single messages are. Whatever is not an acknowledgement in the order of
publishing (a refusal, a lost connection, a deadline) splits it into single messages, which have their own rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from jetlake.client.publish.pending_ack import PendingAck
from jetlake.protocol import encoder

__all__ = ["RUN_MAX", "PublishRun", "PublishRuns"]

RUN_MAX = 1000
"""Most messages of a run."""

_NUMBERS = [b"%03d" % number for number in range(RUN_MAX)]


class PublishRun:
    """Messages without headers and ids, sent with one write.

    Args:
        subjects: the subject of each.
        payloads: the payload of each.
        position: how many messages the publisher gave before these.

    Attributes:
        gathered: subject, payload and `PendingAck` of each message, one behind the other, while they are added singly.
        size: bytes of subjects and payloads that are not acknowledged.
        deadline: when half of the time for the acknowledgements is over.
        is_observed: the publisher learns of failures itself; nobody else is told.
        pendings: the messages that were not acknowledged when the run was split, with their positions.
        stored: how many are acknowledged, from the first on.
    """

    __slots__ = (
        "_acks",
        "_head",
        "_payloads",
        "_position",
        "_subjects",
        "deadline",
        "gathered",
        "is_observed",
        "pendings",
        "size",
        "stored",
    )

    def __init__(self, subjects: Sequence[bytes] = (), payloads: Sequence[bytes] = (), position: int = 0) -> None:
        self._subjects = subjects
        self._payloads = payloads
        self._acks: Sequence[PendingAck] = ()
        self._position = position
        self.size = 0
        self.deadline = 0.0
        self.gathered: list[Any] = []
        self.is_observed = bool(payloads)
        self.pendings: list[tuple[int, PendingAck]] = []
        self._head = b""
        self.stored = 0

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def gathered_messages(self) -> int:
        """How many messages were added singly."""
        return len(self.gathered) // 3

    @property
    def is_over(self) -> bool:
        """Whether all messages are acknowledged, or the run is split."""
        return self.stored == len(self._payloads)

    def end(self, head: bytes, deadline: float) -> None:
        """Add no more messages to the run.

        Args:
            head: what their reply subjects begin with; three digits follow, from 000 on.
            deadline: when half of the time for the acknowledgements is over.
        """
        if self.gathered:
            self._subjects, self._payloads, self._acks = (self.gathered[column::3] for column in range(3))
            self.gathered = []
        self._head = head
        self.size = sum(map(len, self._payloads)) + sum(map(len, self._subjects))
        self.deadline = deadline

    def frames(self) -> bytes:
        """Encode all messages, after `end`."""
        return encoder.pub_run(self._subjects, self._head, _NUMBERS[: len(self)], self._payloads)

    def take(self, replies: list[bytes], answers: list[bytes], start: int) -> int:
        """Acknowledge the next messages, whose answers stand from `start` on; returns how many, 0 if others do."""
        stored = self.stored
        if replies[start] != self._head + _NUMBERS[stored]:
            return 0
        count = min(len(self) - stored, len(replies) - start)
        # All are compared at once; a reply subject has no blank.
        head = b" " + self._head
        if b" " + b" ".join(replies[start : start + count]) != head + head.join(_NUMBERS[stored : stored + count]):
            return 0
        self.size -= self.size * count // (len(self) - stored)
        self.stored = stored + count
        if self._acks:
            acks = self._acks[stored : stored + count]
            for pending, answer in zip(acks, answers[start : start + count], strict=True):
                pending._answer = answer
                if pending._waiter is not None:
                    pending.release()
        return count

    def split(self, pending: dict[bytes, PendingAck], deadline: float, *, is_late: bool) -> int:
        """Put the messages that are not acknowledged among the single ones; returns their bytes."""
        size = 0
        acks = self._acks or list(map(PendingAck, self._subjects))
        for number in range(self.stored, len(self)):
            pending[self._head + _NUMBERS[number]] = one = acks[number]
            one._payload = self._payloads[number]
            one._deadline = deadline
            one._is_late = is_late
            if self.is_observed:
                one._observed = True
            self.pendings.append((self._position + number, one))
            size += one.size
        self.stored = len(self)
        self.size = 0
        return size


class PublishRuns:
    """The runs of a publish window that are under way, oldest first.

    Attributes:
        messages: how many messages of them are not acknowledged.
        size: their bytes.
    """

    __slots__ = ("_runs", "messages", "size")

    def __init__(self) -> None:
        self._runs: deque[PublishRun] = deque()
        self.messages = 0
        self.size = 0

    def __iter__(self) -> Iterator[PublishRun]:
        return iter(self._runs)

    def add(self, run: PublishRun) -> None:
        """Add a run that is sent."""
        self._runs.append(run)
        self.messages += len(run)
        self.size += run.size

    def acknowledge(self, replies: list[bytes], answers: list[bytes]) -> list[int]:
        """Acknowledge messages of the runs; returns which of the replies are not the next ones of a run."""
        runs = self._runs
        others: list[int] = []
        start, count = 0, len(replies)
        while runs and start < count:
            run = runs[0]
            size = run.size
            taken = run.take(replies, answers, start)
            if not taken:
                others.append(start)
                start += 1
                continue
            start += taken
            self.messages -= taken
            self.size -= size - run.size
            if run.is_over:
                runs.popleft()
        others += range(start, count)
        return others

    def next_deadline(self) -> float | None:
        """Return when the oldest run has to be split; None without a run."""
        return self._runs[0].deadline if self._runs else None

    def pop(self) -> PublishRun:
        """Take out the oldest run, to be split; there has to be one."""
        run = self._runs.popleft()
        self.messages -= len(run) - run.stored
        self.size -= run.size
        return run
