"""A consumer's way through its stream: what comes next, and how much is still to come."""

from __future__ import annotations

from collections import deque

from jetlake.server.engine.start_position import StartPosition, last_of_subjects
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
    """

    def __init__(self, store: MessageStore, subject_filter: SubjectFilter | None, start: StartPosition) -> None:
        self._store = store
        self._filter = subject_filter
        self._wish = 0
        self.go_to(start)

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
        self._chosen = deque(start.chosen)
        self._chosen_left = set(start.chosen)
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
            self.pending = len(self._chosen_left) + self._store.count(self._resume, self._filter)
        else:
            self.pending = self._store.count(self.position, self._filter)

    def wants(self, subject: bytes) -> bool:
        """Whether messages on this subject pass the filter."""
        return self._filter is None or self._filter.matches(subject)

    def is_ahead(self, sequence: int) -> bool:
        """Whether a message that passes the filter is still to come."""
        if self._resume:
            return sequence >= self._resume or sequence in self._chosen_left
        return sequence >= self.position

    # Reading

    def read(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        """The next messages, none after `last_sequence`, and the sequence to move to when all of them are taken."""
        if self._resume:
            return self._read_chosen(max_messages, max_bytes, last_sequence)
        run = self._store.read(self.position, self._filter, max_messages, max_bytes, last_sequence)
        return run.messages, run.next_sequence

    def _read_chosen(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        messages: list[StoredMessage] = []
        for sequence in self._chosen:
            if len(messages) >= max_messages or max_bytes <= 0 or sequence > last_sequence:
                break
            message = self._store.get(sequence) if sequence in self._chosen_left else None
            if message is not None:
                messages.append(message)
                max_bytes -= len(message.subject) + len(message.header) + len(message.payload)
        else:
            if not messages:
                # Nothing of the chosen ones is there any more.
                self._end_chosen()
                return self.read(max_messages, max_bytes, last_sequence)
        return messages, messages[-1].sequence + 1 if messages else self.position

    def move_past(self, taken: int, next_sequence: int) -> None:
        """So many messages were taken, and the next one to look at is this."""
        self.pending -= taken
        if self.pending < 0:
            self.pending = 0
        if self._resume:
            while self._chosen and self._chosen[0] < next_sequence:
                self._chosen_left.discard(self._chosen.popleft())
            if not self._chosen:
                self._end_chosen()
                return
        if next_sequence > self.position:
            self.position = next_sequence

    def _end_chosen(self) -> None:
        self.position = max(self._resume, self.position)
        self._chosen.clear()
        self._chosen_left.clear()
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
            if sequence in self._chosen_left:
                self._chosen_left.discard(sequence)
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
            self._chosen_left.intersection_update(store.last_per_subject(self._filter, self._resume - 1))
        self._count()
