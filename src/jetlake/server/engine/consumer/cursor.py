"""A consumer's way through its stream: what comes next, and how much is still to come."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from jetlake.server.engine.consumer.start_position import StartPosition, last_of_subjects
from jetlake.store.interface import MessageStore
from jetlake.store.message import StoredMessage
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Cursor"]


class Cursor:
    """Reads the messages that pass a filter, in order, each once.

    Reading does not move it; `move_past` does, so that what could not be delivered is read again.

    Attributes:
        position: everything before it was passed; the next message has this sequence or a later one.
        pending: how many messages are still to come; kept by counting, not by looking.

    Args:
        store: the stream's messages.
        subject_filter: which of them; None for all.
        start: where to begin.
        waits: see `go_to`.
    """

    def __init__(
        self,
        store: MessageStore,
        subject_filter: SubjectFilter | None,
        start: StartPosition,
        *,
        waits: bool = False,
    ) -> None:
        self._store = store
        self._filter = subject_filter
        self._wish = 0
        # The chosen ones, ascending; which of them is next; and those to come whose messages are gone.
        self._chosen: Sequence[int] = ()
        self._next_chosen = 0
        self._gone: set[int] = set()
        self.go_to(start, waits=waits)

    @property
    def subject_filter(self) -> SubjectFilter | None:
        """Which messages it reads."""
        return self._filter

    @property
    def resume(self) -> int:
        """Where it goes on after the chosen ones; 0 when there are none (left)."""
        return self._resume

    def go_to(self, start: StartPosition, *, waits: bool = False) -> None:
        """Begin there; `waits` means that a sequence beyond the end is meant and will be waited for."""
        self.position = start.sequence
        self._chosen = start.chosen
        self._next_chosen = 0
        self._gone = set()
        self._resume = start.resume if start.chosen else 0
        self._wish = start.sequence if waits else 0
        self._count()

    def filter_by(self, subject_filter: SubjectFilter | None) -> None:
        """Read what passes this filter from now on."""
        self._filter = subject_filter
        if self._resume:
            self.go_to(last_of_subjects(self._store, subject_filter, self.position, self._resume - 1))
        else:
            self._count()

    def _count(self) -> None:
        """Find out how much is still to come by asking the store."""
        if self._resume:
            chosen_left = len(self._chosen) - self._next_chosen - len(self._gone)
            self.pending = chosen_left + self._store.count(self._resume, self._filter)
        else:
            self.pending = self._store.count(self.position, self._filter)

    def wants(self, subject: bytes) -> bool:
        """Whether messages on this subject pass the filter."""
        return self._filter is None or self._filter.matches(subject)

    def is_ahead(self, sequence: int) -> bool:
        """Whether a message that passes the filter is still to come."""
        if self._resume:
            return sequence >= self._resume or self._is_chosen(sequence)
        return sequence >= self.position

    def _is_chosen(self, sequence: int) -> bool:
        """Whether it is one of the chosen ones that are still to come."""
        place = bisect_left(self._chosen, sequence, self._next_chosen)
        return place < len(self._chosen) and self._chosen[place] == sequence and sequence not in self._gone

    # Reading

    def read(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        """The next messages, none after `last_sequence`, and the sequence to move to when all of them are taken."""
        if self._resume:
            return self._read_chosen(max_messages, max_bytes, last_sequence)
        run = self._store.read(self.position, self._filter, max_messages, max_bytes, last_sequence)
        return run.messages, run.next_sequence

    def _read_chosen(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        messages: list[StoredMessage] = []
        for place in range(self._next_chosen, len(self._chosen)):
            sequence = self._chosen[place]
            if len(messages) >= max_messages or max_bytes <= 0 or sequence > last_sequence:
                break
            message = self._store.get(sequence) if sequence not in self._gone else None
            if message is not None:
                messages.append(message)
                max_bytes -= len(message.subject) + len(message.header) + len(message.payload)
        else:
            if messages:
                return messages, self._resume
            # Nothing of the chosen ones is there any more.
            self.move_past(0, self._resume)
            return self.read(max_messages, max_bytes, last_sequence)
        return messages, messages[-1].sequence + 1 if messages else self.position

    def move_past(self, taken: int, next_sequence: int) -> None:
        """So many messages were taken, and the next one to look at is this."""
        if self._resume:
            # With those that went unnoticed, before this consumer was told of removals.
            taken = self._pass_chosen(next_sequence)
        self.pending = max(self.pending - taken, 0)
        if self._resume and self._next_chosen == len(self._chosen):
            self._end_chosen()
        elif next_sequence > self.position:
            self.position = next_sequence

    def _pass_chosen(self, next_sequence: int) -> int:
        """Pass the chosen ones before a sequence; how many of them were counted as pending."""
        passed = 0
        while self._next_chosen < len(self._chosen) and self._chosen[self._next_chosen] < next_sequence:
            sequence = self._chosen[self._next_chosen]
            self._next_chosen += 1
            if sequence in self._gone:
                self._gone.discard(sequence)
            else:
                passed += 1
        return passed

    def _end_chosen(self) -> None:
        self.position = max(self._resume, self.position)
        self._chosen = ()
        self._next_chosen = 0
        self._gone.clear()
        self._resume = 0

    # What happens to the stream

    def on_stored(self, count: int) -> None:
        """So many messages that pass the filter were stored at the end."""
        if not self._wish:
            self.pending += count
            return
        # It waits for a sequence beyond these, or among them.
        self._count()
        if self._store.last_sequence + 1 >= self._wish:
            self._wish = 0

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """A message was removed."""
        if self._resume:
            if self._is_chosen(sequence):
                self._gone.add(sequence)
                self.pending -= 1
            elif sequence >= self._resume and self.wants(subject):
                self.pending -= 1
        elif sequence >= self.position and self.pending and self.wants(subject):
            self.pending -= 1

    def on_purged(self) -> None:
        """Many messages were removed, or the newest were taken back because the disk refused them."""
        store = self._store
        if self.position < store.first_sequence:
            self.position = store.first_sequence
        end = max(store.last_sequence + 1, self._wish)
        if self.position > end:
            self.position = end
        if self._resume:
            self._resume = min(self._resume, end)
            to_come = self._chosen[self._next_chosen :]
            self._gone = {sequence for sequence in to_come if not store.has(sequence)}
        self._count()
