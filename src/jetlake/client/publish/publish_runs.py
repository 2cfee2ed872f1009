"""Runs of messages that are published at once: encoded, sent and acknowledged in columns.

A run is only a shorter way to write what single messages are. Whatever is not an acknowledgement in the order of
publishing (a refusal, a lost connection, a deadline) splits it into single messages, which have their own rules.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.single_message import SingleMessage
from jetlake.protocol import encoder

__all__ = ["RUN_MAX", "PublishRun", "PublishRuns"]

RUN_MAX = 1000
"""Most messages of a run."""

_NUMBERS = [b"%03d" % number for number in range(RUN_MAX)]


class PublishRun:
    """Messages without headers and ids, sent with one write, and what became of them: `SentMessages`.

    Args:
        subjects: the subject of each; both lists may grow until `end`.
        payloads: the payload of each.
        position: how many messages the publisher gave before these.
        is_observed: the publisher learns of failures itself, and asks for no acknowledgement: none is kept.

    Attributes:
        size: bytes of subjects and payloads that are not acknowledged.
        deadline: when half of the time for the acknowledgements is over.
        is_all_observed: the publisher learns of failures itself; nobody else is told.
        pendings: the messages that were not acknowledged when the run was split, with their positions.
        stored: how many are acknowledged, from the first on.
    """

    __slots__ = (
        "_answers",
        "_head",
        "_is_encoded",
        "_keeps_answers",
        "_observed",
        "_payloads",
        "_position",
        "_singles",
        "_split_from",
        "_subjects",
        "_waiters",
        "deadline",
        "is_all_observed",
        "pendings",
        "size",
        "stored",
    )

    def __init__(
        self, subjects: Sequence[bytes], payloads: Sequence[bytes], position: int = 0, *, is_observed: bool = False
    ) -> None:
        self._subjects = subjects
        self._payloads = payloads
        self._position = position
        self._keeps_answers = not is_observed
        self._answers: list[bytes] = []
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._observed: set[int] = set()
        self._singles: list[SingleMessage] = []
        self._split_from = 0
        self._head = b""
        self._is_encoded = False
        self.size = 0
        self.deadline = 0.0
        self.is_all_observed = is_observed
        self.pendings: list[tuple[int, PendingAck]] = []
        self.stored = 0

    def __len__(self) -> int:
        return len(self._subjects)

    @property
    def is_over(self) -> bool:
        """Whether all messages are acknowledged, or the run is split."""
        return self.stored == len(self._subjects)

    def end(self, head: bytes, deadline: float) -> None:
        """Add no more messages to the run.

        Args:
            head: what their reply subjects begin with; three digits follow, from 000 on.
            deadline: when half of the time for the acknowledgements is over.
        """
        self._head = head
        self.size = sum(map(len, self._payloads)) + sum(map(len, self._subjects))
        self.deadline = deadline

    def frames(self) -> bytes:
        """Encode all messages, after `end`."""
        frames = encoder.pub_run(self._subjects, self._head, _NUMBERS[: len(self)], self._payloads)
        self._is_encoded = True
        self._forget_payloads()
        return frames

    def _forget_payloads(self) -> None:
        """Let go of the payloads, which a `PendingAck` would hold, if they are needed no more."""
        if self._is_encoded and self.is_over:
            self._payloads = ()

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
        if self._keeps_answers:
            self._answers += answers[start : start + count]
            if self._waiters:
                self._wake()
        self._forget_payloads()
        return count

    def _wake(self) -> None:
        """Wake those who await a message that is acknowledged."""
        for number in [number for number in self._waiters if number < self.stored]:
            waiter = self._waiters.pop(number)
            if not waiter.done():
                waiter.set_result(None)

    def split(self, singles: dict[bytes, SingleMessage], deadline: float, *, is_late: bool) -> int:
        """Put the messages that are not acknowledged among the single ones; returns their bytes."""
        numbers = range(self.stored, len(self))
        split = [SingleMessage(self._subjects[number], self._payloads[number]) for number in numbers]
        for number, one in zip(numbers, split, strict=True):
            one.deadline = deadline
            one.is_late = is_late
            one.observed = self.is_all_observed or number in self._observed
            one.waiter = self._waiters.pop(number, None)
            singles[self._head + _NUMBERS[number]] = one
        # Other threads may look meanwhile: the list is whole when they see it.
        self._split_from = self.stored
        self._singles = split
        self.pendings = [(self._position + number, PendingAck(self, number)) for number in numbers]
        self.stored = len(self)
        self.size = 0
        self._forget_payloads()
        return sum(one.size for one in split)

    # What the messages' `PendingAck`s ask

    def _single(self, number: int) -> SingleMessage | None:
        """Return the message if it is a single one since the run was split."""
        return self._singles[number - self._split_from] if self._singles and number >= self._split_from else None

    def subject_of(self, number: int) -> bytes:
        return self._subjects[number]

    def answer_of(self, number: int) -> bytes | None:
        if number < len(self._answers):
            return self._answers[number]
        single = self._single(number)
        return None if single is None else single.answer

    def error_of(self, number: int) -> Exception | None:
        single = self._single(number)
        return None if single is None else single.error

    def is_observed(self, number: int) -> bool:
        single = self._single(number)
        return self.is_all_observed or number in self._observed if single is None else single.observed

    def observe(self, number: int, *, is_observed: bool) -> None:
        single = self._single(number)
        if single is not None:
            single.observed = is_observed
        elif number >= len(self._answers):
            (self._observed.add if is_observed else self._observed.discard)(number)

    def outcome(self, number: int) -> asyncio.Future[None]:
        single = self._single(number)
        if single is not None:
            return single.outcome(number)
        waiter = self._waiters.get(number)
        if waiter is None:
            waiter = self._waiters[number] = asyncio.get_running_loop().create_future()
        return waiter


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
