"""The messages of a publish window that were sent and not answered: single ones by their reply subjects, and runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publish_runs import PublishRuns
from jetlake.client.publish.single_message import SingleMessage

__all__ = ["MessagesUnderWay"]


class MessagesUnderWay:
    """The messages that wait for their answers.

    Args:
        half_time: returns when half of the time of a message is over that is sent now.

    Attributes:
        singles: the single messages by their reply subjects; always this dictionary.
        runs: the runs.
    """

    __slots__ = ("_half_time", "_singles_size", "runs", "singles")

    def __init__(self, half_time: Callable[[], float]) -> None:
        self._half_time = half_time
        self.singles: dict[bytes, SingleMessage] = {}
        self._singles_size = 0
        self.runs = PublishRuns()

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.singles) + self.runs.messages

    @property
    def size(self) -> int:
        """The bytes of their subjects, headers and payloads."""
        return self._singles_size + self.runs.size

    def add(self, reply: bytes, pending: SingleMessage) -> None:
        """Add a single message."""
        self.singles[reply] = pending
        self._singles_size += pending.size

    def acknowledge(self, replies: list[bytes], answers: list[bytes]) -> None:
        """Settle the messages that a stream has stored."""
        if self.runs.messages:
            replies, answers = self._acknowledge_runs(replies, answers)
        pop = self.singles.pop
        for reply, answer in zip(replies, answers, strict=True):
            pending = pop(reply, None)
            if pending is not None:
                self._singles_size -= pending.size
                pending.answer = answer
                pending.release()

    def _acknowledge_runs(self, replies: list[bytes], answers: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Settle messages of runs; returns the acknowledgements of the others."""
        others = self.runs.acknowledge(replies, answers)
        if not others:
            return [], []
        replies = [replies[position] for position in others]
        if not self.singles.keys() >= set(replies):
            self.split_runs()  # Streams that share a run acknowledge it in another order.
        return replies, [answers[position] for position in others]

    def split_runs(self, *, is_late: bool = False, until: float | None = None) -> None:
        """Put the messages of runs, or only of those with a deadline up to a time, among the single ones.

        Args:
            is_late: half of their time is over.
        """
        deadline = self._half_time()
        while (due := self.runs.next_deadline()) is not None and (until is None or due <= until):
            self._singles_size += self.runs.pop().split(self.singles, deadline, is_late=is_late)

    def give_up(self, reply: bytes, error: Exception) -> PendingAck:
        """Settle a single message with an error."""
        pending = self.singles.pop(reply)
        self._singles_size -= pending.size
        pending.error = error
        pending.release()
        return PendingAck(pending, 0)

    async def settled(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Wait until all that are under way now are acknowledged or given up; `changed` waits for the next answers."""
        singles, runs = [PendingAck(one, 0) for one in self.singles.values()], list(self.runs)
        for run in runs:
            while not run.is_over:
                await changed()
        for pending in (*singles, *(one for run in runs for _, one in run.pendings)):
            while not pending.is_done:
                await changed()
