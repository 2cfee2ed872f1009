"""A consumer's cursor: where it starts, its position in the stream, and the number of messages after it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import parse_time
from jetlake.model.enums import DeliverPolicy
from jetlake.store.interface import MessageStore
from jetlake.store.message import StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

_CHOSEN_PER_STEP = 1024


class Cursor:
    """The position of one consumer among the messages that pass its filter.

    Reading does not move the cursor; `move_past` does, so that messages that could not be delivered are read again.

    Attributes:
        position: the next message has this sequence or a later one.
        pending: number of messages after the cursor; kept by counting.

    Args:
        store: the stream's messages.
        subject_filter: which messages to read; None = all.
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
        self._awaited = 0
        # The messages chosen at the start, ascending; the index of the next one; and those ahead that were removed.
        self._chosen: Sequence[int] = ()
        self._next_chosen = 0
        self._gone: set[int] = set()
        self._chosen_end = 0
        self.go_to(start, waits=waits)

    @property
    def subject_filter(self) -> SubjectFilter | None:
        """Which messages to read; None = all."""
        return self._filter

    @property
    def resume(self) -> int:
        """Where to continue after the chosen messages; 0 when none are left."""
        return self._resume

    def go_to(self, start: StartPosition, *, waits: bool = False) -> None:
        """Move to a start position; with `waits`, a sequence beyond the end is waited for."""
        self.position = start.sequence
        self._chosen = start.chosen
        self._next_chosen = 0
        self._gone = set()
        self._chosen_end = 0
        self._resume = start.resume if start.chosen else 0
        self._awaited = start.sequence if waits else 0
        if start.pending is None:
            self._count()
        else:
            self.pending = start.pending

    def return_to(self, sequence: int) -> None:
        """Go back to a sequence, over messages that did not pass the filter; never to those before `resume`."""
        if not self._resume:
            self.position = min(self.position, max(sequence, self._chosen_end))

    def filter_by(self, subject_filter: SubjectFilter | None, pending: int | None = None) -> None:
        """Change the filter.

        Args:
            pending: the number of messages after the cursor that pass; None when they were not counted.
        """
        self._filter = subject_filter
        if self._resume:
            self.go_to(last_of_subjects(self._store, subject_filter, self.position, self._resume - 1))
        elif pending is not None:
            self.pending = pending
        else:
            self._count()

    def _count(self) -> None:
        """Have the store count the messages after the cursor."""
        if self._resume:
            chosen_left = len(self._chosen) - self._next_chosen - len(self._gone)
            self.pending = chosen_left + self._store.count(self._resume, self._filter)
        else:
            self.pending = self._store.count(self.position, self._filter)

    def wants(self, subject: bytes) -> bool:
        """Return whether messages on this subject pass the filter."""
        return self._filter is None or self._filter.matches(subject)

    def is_ahead(self, sequence: int) -> bool:
        """Return whether a message that passes the filter is after the cursor."""
        if self._resume:
            return sequence >= self._resume or self._is_chosen(sequence)
        return sequence >= self.position

    def _is_chosen(self, sequence: int) -> bool:
        """Return whether a message is chosen, stored and after the cursor."""
        index = bisect_left(self._chosen, sequence, self._next_chosen)
        return index < len(self._chosen) and self._chosen[index] == sequence and sequence not in self._gone

    # Reading

    def read(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        """Read the next messages up to `last_sequence`; also returns the sequence after them, for `move_past`."""
        if self._resume:
            return self._read_chosen(max_messages, max_bytes, last_sequence)
        run = self._store.read(self.position, self._filter, max_messages, max_bytes, last_sequence)
        return run.messages, run.next_sequence

    def _read_chosen(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        messages: list[StoredMessage] = []
        for index in range(self._next_chosen, len(self._chosen)):
            sequence = self._chosen[index]
            if len(messages) >= max_messages or max_bytes <= 0 or sequence > last_sequence:
                break
            message = self._store.get(sequence) if sequence not in self._gone else None
            if message is not None:
                messages.append(message)
                max_bytes -= len(message.subject) + len(message.header) + len(message.payload)
        else:
            if messages:
                return messages, self._resume
            # All chosen messages were removed.
            self.move_past(0, self._resume)
            return self.read(max_messages, max_bytes, last_sequence)
        return messages, messages[-1].sequence + 1 if messages else self.position

    def move_past(self, taken: int, next_sequence: int) -> None:
        """Move to a sequence past this many delivered messages."""
        if self._resume:
            # Counts removed ones too that were not announced to this consumer.
            taken = self._pass_chosen(next_sequence)
        self.pending = max(self.pending - taken, 0)
        if self._resume and self._next_chosen == len(self._chosen):
            self._end_chosen()
        elif next_sequence > self.position:
            self.position = next_sequence

    def _pass_chosen(self, next_sequence: int) -> int:
        """Pass the chosen messages before a sequence, and return how many of them were counted as pending."""
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
        self.position = self._chosen_end = max(self._resume, self.position)
        self._chosen = ()
        self._next_chosen = 0
        self._gone.clear()
        self._resume = 0

    # Changes of the stream

    def on_stored(self, count: int) -> None:
        """Count newly stored messages that pass the filter."""
        if not self._awaited:
            self.pending += count
            return
        # The cursor waits for a sequence among these or beyond.
        self._count()
        if self._store.last_sequence + 1 >= self._awaited:
            self._awaited = 0

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """Count a removed message."""
        if self._resume:
            if self._is_chosen(sequence):
                self._gone.add(sequence)
                self.pending -= 1
            elif sequence >= self._resume and self.wants(subject):
                self.pending -= 1
        elif sequence >= self.position and self.pending and self.wants(subject):
            self.pending -= 1

    def count_in_steps(self, count: Callable[[int, SubjectFilter], Steps[int]]) -> Steps[int]:
        """Count the messages after the cursor, which does not move meanwhile; the chosen ones are looked for first.

        Args:
            count: counts the messages from a sequence on that pass a filter.
        """
        first = max(self._resume or self.position, self._store.first_sequence)
        for start in range(self._next_chosen, len(self._chosen), _CHOSEN_PER_STEP):
            some = self._chosen[start : start + _CHOSEN_PER_STEP]
            self._gone.update(sequence for sequence in some if not self._store.has(sequence))
            yield
        if self._filter is None:
            found = self._store.count(first)
        else:
            found = yield from count(first, self._filter)
        return len(self._chosen) - self._next_chosen - len(self._gone) + found

    def on_purged(self, pending: int | None = None) -> None:
        """Recount after many messages were removed, or the newest were undone because the disk refused them.

        Args:
            pending: the number of messages after the cursor, where they were counted in steps.
        """
        store = self._store
        if self.position < store.first_sequence:
            self.position = store.first_sequence
        end = max(store.last_sequence + 1, self._awaited)
        if self.position > end:
            self.position = end
        self._resume = min(self._resume, end)
        if pending is not None:
            self.pending = pending
            return
        to_come = self._chosen[self._next_chosen :]
        self._gone = {sequence for sequence in to_come if not store.has(sequence)}
        self._count()


class StartPosition(msgspec.Struct, frozen=True):
    """A start position.

    Attributes:
        sequence: the first sequence to read.
        chosen: sequences before `resume`; only these are delivered first.
        resume: where to continue after the chosen messages.
        pending: how many messages there are from the first sequence on; None when they were not counted.
    """

    sequence: int
    chosen: Sequence[int] = ()
    resume: int = 0
    pending: int | None = None


def start_position(
    config: ConsumerConfig, store: MessageStore, subject_filter: SubjectFilter | None, last_sequence: int
) -> Steps[StartPosition]:
    """Find the start position of a deliver policy; messages after `last_sequence` count as not yet stored.

    On an empty stream a consumer starts at the next message, unless the policy is a start sequence: a consumer may
    wait for one beyond the end.
    """
    yield from store.prepare(subject_filter)
    policy = config.deliver_policy
    first = max(store.first_sequence, 1)
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        return StartPosition(max(config.opt_start_seq, first))
    if policy is DeliverPolicy.ALL or last_sequence < first:
        return StartPosition(first)
    if policy is DeliverPolicy.NEW:
        return StartPosition(last_sequence + 1)
    if policy is DeliverPolicy.BY_START_TIME:
        assert config.opt_start_time is not None
        return StartPosition(min(store.first_at_or_after(parse_time(config.opt_start_time)), last_sequence + 1))
    if policy is DeliverPolicy.LAST:
        # Without a filter the newest sequence, stored or not.
        if subject_filter is None:
            return StartPosition(last_sequence)
        newest = yield from store.last_per_subject_in_steps(subject_filter, last_sequence)
        return StartPosition(newest[-1] if newest else first)
    newest = yield from store.last_per_subject_in_steps(subject_filter, last_sequence)
    return _from_newest(newest, first, last_sequence)


def last_of_subjects(
    store: MessageStore, subject_filter: SubjectFilter | None, first_sequence: int, last_sequence: int
) -> StartPosition:
    """Choose the newest message of every subject that passes, from `first_sequence` on; all newer ones follow."""
    return _from_newest(store.last_per_subject(subject_filter, last_sequence), first_sequence, last_sequence)


def _from_newest(newest: list[int], first_sequence: int, last_sequence: int) -> StartPosition:
    chosen = newest[bisect_left(newest, first_sequence) :]
    if not chosen:
        return StartPosition(last_sequence)
    return StartPosition(chosen[0], chosen, last_sequence + 1)
