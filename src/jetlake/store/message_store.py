"""A stream's messages: what every store promises, and what the stores in memory and on disk have in common.

The index answers questions, the remover removes, and blocks load messages from wherever their bytes lie.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jetlake.errors import StoreError
from jetlake.store.index.block import Block, DamagedBlockError
from jetlake.store.index.index import Index
from jetlake.store.index.message_remover import MessageRemover
from jetlake.store.index.running_count import RunningCount
from jetlake.store.interface import Incoming, Run, StoreHooks, StoreLimits
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["MessageStore"]

_SCAN_ROWS = 1024
_SCAN_ROWS_MAX = 4096


class MessageStore(ABC):
    """The messages of one stream, by sequence and by subject.

    All calls come from one thread, but for `sync`, which may run in another while the first one continues.
    Sequences only grow: one that was handed out is never handed out again, whatever is removed or lost.
    Times never go back either: a message that comes with an earlier time than its predecessor gets its predecessor's.

    Attributes:
        first_sequence: of the oldest message; when empty, the next one to be used; 0 when nothing ever happened.
        last_sequence: the highest one ever used, whether its message is still there or not.
        messages: how many there are.
        bytes: what they take, by the formula of the storage type.
        first_time_ns: when the oldest message was stored; 0 when there is none.
        last_time_ns: when the newest was stored, also after its removal; 0 when there never was one.
        subject_count: how many different subjects the messages have.
        deleted_count: how many sequences between the first and the last have no message.
        unsure_since_ns: the time of the oldest message that may not have been synced before the start; 0 for none.
        durable: whether acknowledgements have to wait for `sync`.
        changes_names: whether a sync creates, renames or removes files.
        compresses: whether house-keeping compresses what is on disk; what is compressed stays so.
        hooks: what the store calls when messages go.
        removals_per_step: how many messages a step of `purge_in_steps` or `enforce_in_steps` removes.
    """

    durable: bool
    changes_names: bool
    compresses: bool

    def __init__(self, index: Index[Any], remover: MessageRemover[Any]) -> None:
        self._index = index
        self._remover = remover
        self.hooks: StoreHooks = index.hooks
        self.removals_per_step = 128
        self.unsure_since_ns = 0

    # State

    @property
    def first_sequence(self) -> int:
        return self._index.first_sequence

    @property
    def last_sequence(self) -> int:
        return self._index.last_sequence

    @property
    def messages(self) -> int:
        return self._index.messages

    @property
    def bytes(self) -> int:
        return self._index.bytes

    @property
    def first_time_ns(self) -> int:
        return self._index.first_time_ns

    @property
    def last_time_ns(self) -> int:
        return self._index.last_time_ns

    @property
    def subject_count(self) -> int:
        return len(self._index.subjects)

    @property
    def deleted_count(self) -> int:
        return self._index.deleted_count

    @property
    def aging_sequence(self) -> int:
        """Where the messages begin that can grow too old; those before were passed by as ageless."""
        return self._remover.aging_sequence

    @property
    def aging_time_ns(self) -> int:
        """The time of the oldest of them; 0 when there is none."""
        return self._remover.aging_time_ns

    @property
    @abstractmethod
    def lost(self) -> list[int]:
        """Sequences whose messages the disk no longer returns, ascending; at most 100,000."""

    @property
    @abstractmethod
    def lost_bytes(self) -> int:
        """How many bytes of the files could not be understood."""

    @property
    @abstractmethod
    def torn_sequence(self) -> int:
        """The first message that a crash took before it was safe, though newer ones are there; 0 for none."""

    @property
    @abstractmethod
    def failure(self) -> StoreError | None:
        """Set when a sync fails: nothing more is taken before `retry` and another sync."""

    # Writing

    @abstractmethod
    def append(self, subject: builtins.bytes, header: builtins.bytes, payload: builtins.bytes, time_ns: int) -> int:
        """Store a message under the next sequence, which is returned.

        It can be read at once; it reaches the disk with the next `flush`.

        Raises:
            StoreError: an earlier `sync` failed, so that nothing more can be promised.
        """

    @abstractmethod
    def append_run(self, messages: Sequence[Incoming], time_ns: int | Sequence[int]) -> int:
        """Store messages under consecutive sequences and return the first; the same as one `append` for each.

        Args:
            messages: at least one.
            time_ns: the time of all, or of each.

        Raises:
            StoreError: as with `append`; none of them is stored.
        """

    @abstractmethod
    def begin_group(self, count: int) -> None:
        """Make the next `count` sequences atomic: after a crash all or none of them are there.

        They are used one by one, by `append` and `skip`, before the next flush, which rolls back all when it fails.

        Raises:
            StoreError: an earlier `sync` failed, so that nothing more can be promised.
        """

    @abstractmethod
    def roll_back(self, error: StoreError) -> None:
        """Undo the appends since the last flush, because of an error, as a flush does that fails."""

    def skip(self, count: int = 1, time_ns: int = 0) -> None:
        """Use up sequences without storing anything.

        Args:
            time_ns: when the last of them was used, for `last_time_ns`; 0 = unknown.

        Raises:
            StoreError: several sequences would pass `SEQUENCE_MAX`.
        """
        self._remover.skip(count, time_ns)

    def advance_to(self, first_sequence: int) -> None:
        """Remove everything and make `first_sequence` the next one to be used; it must lie ahead of the last.

        Raises:
            StoreError: it is above `SEQUENCE_MAX`; nothing was removed.
        """
        self._remover.advance_to(first_sequence)

    @abstractmethod
    def flush(self) -> None:
        """Hand everything that changed to the operating system, with one write in the usual case.

        Removals that `enforce` or a purge with `follows_append` made are held back until what caused them is durable.

        Raises:
            StoreError: the disk is full, read-only or failing. The appends since the last flush are undone,
                removals stay and are tried again with the next flush.
        """

    @abstractmethod
    def sync(self) -> None:
        """Return when everything flushed before the call is on the disk. May run in another thread.

        Raises:
            StoreError: the disk failed. The store then refuses appends; what it holds stays readable.
        """

    @abstractmethod
    def needs_flush(self) -> bool:
        """Return whether `flush` would write something."""

    @abstractmethod
    def needs_sync(self) -> bool:
        """Return whether something was flushed that is not known to be on the disk."""

    @abstractmethod
    def retry(self) -> None:
        """Try again after the disk refused; when this returns, the next sync decides whether all is well.

        Raises:
            StoreError: the disk still refuses.
        """

    # Reading: the index decides which messages a read returns, and their blocks load them

    def get(self, sequence: int) -> StoredMessage | None:
        """Return the message of that sequence, if it is there.

        Raises:
            StoreError: the disk does not answer.
        """
        checked: Block | None = None
        while True:
            try:
                return self._load(sequence)
            except DamagedBlockError as damage:
                checked = self._look_again(damage.block, checked)
            except OSError as error:
                raise StoreError.of(f"read message {sequence}", error) from error

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        """Return the next messages from `first_sequence` on that pass the filter, at least one if there is one.

        Args:
            max_messages: how many at most.
            max_bytes: how many bytes of stored size; the first message comes whatever its size.
            last_sequence: do not look beyond; None for the end of the stream.

        Raises:
            StoreError: the disk does not answer.
        """
        checked: Block | None = None
        while True:
            try:
                return self._read(first_sequence, subject_filter, max_messages, max_bytes, last_sequence)
            except DamagedBlockError as damage:
                checked = self._look_again(damage.block, checked)
            except OSError as error:
                raise StoreError.of(f"read messages from {first_sequence} on", error) from error

    def read_columns(
        self, first_sequence: int, max_messages: int, max_bytes: int, last_sequence: int
    ) -> MessageColumns | None:
        """Return the next messages as `read` without a filter does, column by column, up to the end of their block.

        None: only `read` can tell which are next, because some are gone or must be looked at first.
        """
        index = self._index
        end = min(last_sequence, index.last_sequence)
        start = max(first_sequence, index.first_sequence)
        if start > end or not index.messages:
            return None
        blocks = index.blocks
        block: Block = blocks[-1] if start >= index.starts[-1] else blocks[index.block_index(start)]
        try:
            if not (block.is_ready or self._trust(block)) or block.live_count < len(block.live):
                return None
            row = block.row_at_or_after(start)
            stop = min(block.row_at_or_after(end + 1), row + max_messages)
            if row >= stop:
                return None
            return block.load_run_columns(row, stop, max_bytes, index.subjects.numbers.names)
        except (OSError, DamagedBlockError):
            return None  # `read` looks again, and says what is wrong.

    @abstractmethod
    def headers_since(self, time_ns: int) -> Iterator[list[tuple[int, int, builtins.bytes]]]:
        """Sequence, time and header of every record that has one and is not older, of removed messages as well.

        They come in runs, some of them empty, each of few records; messages may be stored between two.

        Raises:
            StoreError: the disk does not give them back.
        """

    def _load(self, sequence: int) -> StoredMessage | None:
        found = self._index.locate(sequence)
        if found is None:
            return None
        block: Block = found[0]
        if not block.is_ready:
            self._prepare(block)
        return block.load(found[1], self._index.subjects.numbers.name_of)

    def _read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None,
    ) -> Run:
        index = self._index
        end = index.last_sequence
        if last_sequence is not None and last_sequence < end:
            end = last_sequence
        start = max(first_sequence, index.first_sequence)
        if start > end or not index.messages:
            return Run([], max(first_sequence, end + 1))
        if subject_filter is None:
            return self._read_all(start, end, max_messages, max_bytes)
        passing = index.subjects.numbers.matches.passing(subject_filter)
        if len(passing) == len(index.subjects.numbers.ids):
            return self._read_all(start, end, max_messages, max_bytes)
        if len(passing) > 1:
            return self._read_several(passing, start, end, max_messages, max_bytes)
        for number in passing:
            return self._read_subject(number, start, end, max_messages, max_bytes)
        return Run([], end + 1)

    def _read_all(self, start: int, end: int, max_messages: int, max_bytes: int) -> Run:
        messages: list[StoredMessage] = []
        index = self._index
        names, blocks = index.subjects.numbers.names, index.blocks
        # Most runs are read from the newest block.
        position = len(blocks) - 1 if start >= index.starts[-1] else index.block_index(start)
        while position < len(blocks):
            block = blocks[position]
            if block.first > end:
                break
            limit = block.row_at_or_after(end + 1)
            row = block.next_live(block.row_at_or_after(start))
            if row < 0 or row >= limit:
                position += 1
                continue
            if not (block.is_ready or self._trust(block)):
                continue
            wanted = max_messages - len(messages)
            if block.live_count == len(block.live):
                asked = min(limit - row, wanted)
                got = block.load_run(row, row + asked, max_bytes, names)
            else:
                rows = block.live_rows(row, min(limit, row + wanted + _SCAN_ROWS))[:wanted]
                asked = len(rows)
                got = block.load_rows(rows, max_bytes, names)
            messages += got
            start = got[-1].sequence + 1
            max_bytes -= _stored_bytes(block, row, got)
            if len(got) < asked or len(messages) >= max_messages or max_bytes <= 0:
                return Run(messages, start)
        return Run(messages, end + 1)

    def _read_subject(self, number: int, start: int, end: int, max_messages: int, max_bytes: int) -> Run:
        sequences = self._index.subjects.from_(number, start, max_messages)
        if sequences and sequences[-1] > end:
            del sequences[bisect_right(sequences, end) :]
        complete = len(sequences) < max_messages
        messages, cut = self._load_sequences(sequences, max_bytes)
        if messages and (cut or not complete):
            return Run(messages, messages[-1].sequence + 1)
        if sequences and not messages:
            # The messages found turned out to be lost.
            literal = SubjectFilter((self._index.subjects.numbers.names[number],))
            return self._read(start, literal, max_messages, max_bytes, end)
        return Run(messages, end + 1)

    def _load_sequences(self, sequences: list[int], max_bytes: int) -> tuple[list[StoredMessage], bool]:
        """Return the messages of these sequences and whether the bytes did not suffice for all."""
        messages: list[StoredMessage] = []
        if len(sequences) == 1:
            message = self._load(sequences[0])
            return [message] if message is not None else [], False
        index = self._index
        names = index.subjects.numbers.names
        position = 0
        while position < len(sequences):
            at = index.block_index(sequences[position])
            block = index.blocks[at]
            if not (block.is_ready or self._trust(block)):
                sequences = [sequence for sequence in sequences[position:] if index.has(sequence)]
                position = 0
                continue
            is_last = at + 1 == len(index.blocks)
            stop = len(sequences) if is_last else bisect_left(sequences, index.starts[at + 1], position)
            if block.sequences is None:
                rows = [sequence - block.first for sequence in sequences[position:stop]]
            else:
                rows = [block.row_of(sequence) for sequence in sequences[position:stop]]
            got = block.load_rows(rows, max_bytes, names)
            messages += got
            if len(got) < len(rows):
                return messages, True
            max_bytes -= sum(block.sizes[row] for row in rows)
            position = stop
            if max_bytes <= 0 and position < len(sequences):
                return messages, True
        return messages, False

    def _read_several(
        self, passing: set[int] | tuple[int, ...], start: int, end: int, max_messages: int, max_bytes: int
    ) -> Run:
        """Look at row after row; after a long stretch without a hit, ask each subject where it continues."""
        numbers = passing if isinstance(passing, set) else set(passing)
        index = self._index
        messages: list[StoredMessage] = []
        rows_max = rows_left = _SCAN_ROWS_MAX + 4 * len(passing)
        while start <= end:
            position = index.block_index(start)
            block = index.blocks[position]
            row = block.row_at_or_after(start)
            limit = min(block.row_at_or_after(end + 1), row + _SCAN_ROWS)
            if row >= limit:
                if position + 1 == len(index.blocks):
                    break
                start = max(index.starts[position + 1], start)
                continue
            rows = [
                at
                for at, number, live in zip(
                    range(row, limit), block.subject_ids[row:limit], block.live[row:limit], strict=True
                )
                if live and number in numbers
            ]
            if rows and not (block.is_ready or self._trust(block)):
                continue
            if not rows:
                start = block.sequence_of(limit - 1) + 1
                rows_left -= limit - row
                if rows_left <= 0:
                    rows_left = rows_max
                    start = self._next_of(passing, start)
                    if not start:
                        break
                continue
            rows_left = rows_max
            wanted = rows[: max_messages - len(messages)]
            got = block.load_rows(wanted, max_bytes, index.subjects.numbers.names)
            messages += got
            start = got[-1].sequence + 1
            if len(got) < len(wanted) or len(messages) >= max_messages:
                return Run(messages, start)
            max_bytes -= sum(block.sizes[at] for at in wanted)
            if max_bytes <= 0:
                return Run(messages, start)
            start = block.sequence_of(limit - 1) + 1
        return Run(messages, end + 1)

    def _next_of(self, passing: Iterable[int], sequence: int) -> int:
        """Return the lowest sequence from this one on that one of the subjects has, or 0."""
        at_or_after = self._index.subjects.at_or_after
        return min(filter(None, (at_or_after(number, sequence) for number in passing)), default=0)

    # Called for blocks that are not ready, or damaged: only a store on disk has such

    def _prepare(self, block: Any) -> None:
        """Get ready to load a single row of a block, which is verified by itself."""
        raise NotImplementedError

    def _trust(self, block: Any) -> bool:
        """Ensure that the living rows of a block can be loaded; False when some can not, and were removed as lost."""
        raise NotImplementedError

    def _look_again(self, block: Any, checked: Block | None) -> Block:
        """Look at the records of a block after one was found to be damaged; the block is returned.

        Args:
            checked: the block that was looked at before, for the same read.

        Raises:
            StoreError: the block was found intact twice, but the disk returns different bytes each time.
        """
        raise NotImplementedError

    # Questions, which the index answers

    def has(self, sequence: int) -> bool:
        """Return whether there is a message of that sequence; the disk is not asked."""
        return self._index.has(sequence)

    def last_for(self, pattern: builtins.bytes) -> StoredMessage | None:
        """Return the newest message whose subject the pattern covers."""
        while sequence := self.last_sequence_for(pattern):
            message = self.get(sequence)
            if message is not None:
                return message
        return None

    def last_sequence_for(self, pattern: builtins.bytes) -> int:
        """Return the sequence of the newest message whose subject the pattern covers; 0 when there is none."""
        return self._index.last_sequence_for(pattern)

    def first_at_or_after(self, time_ns: int) -> int:
        """Return the first sequence with a message of that time or later; the one after the last when there is none."""
        return self._index.first_at_or_after(time_ns)

    def last_per_subject(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> list[int]:
        """Return the sequence of the newest message of every subject that passes, ascending.

        With `up_to_sequence`, newer messages are treated as if they were not there.
        """
        return self._index.last_per_subject(subject_filter, up_to_sequence)

    def subjects(self, pattern: builtins.bytes | None = None) -> dict[builtins.bytes, int]:
        """Return the subjects that the pattern covers, each with the number of its messages."""
        return self._index.counts(pattern)

    def count_on(self, subject: builtins.bytes) -> int:
        """Return how many messages one subject has."""
        return self._index.count_on(subject)

    def count(self, first_sequence: int, subject_filter: SubjectFilter | None = None) -> int:
        """Return how many messages from `first_sequence` on pass the filter."""
        return self._index.count(first_sequence, subject_filter)

    def deleted(self, first: int, end: int) -> list[int]:
        """Return the sequences from `first` up to before `end` that have no message."""
        return self._index.deleted(first, end)

    # Removals

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Remove one message; False when it is not there. With `erase` its bytes are overwritten on the disk too.

        Raises:
            StoreError: the bytes could not be overwritten; the message is removed all the same.
        """
        return self._remover.remove(sequence, erase=erase)

    def purge(
        self,
        subject_filter: SubjectFilter | None = None,
        *,
        below: int | None = None,
        keep: int | None = None,
        follows_append: bool = False,
    ) -> int:
        """Remove the messages that pass the filter and return how many there were.

        Args:
            below: only those with a lower sequence. Beyond the end and without a filter, it moves the end there.
            keep: the number of newest matching messages that stay.
            follows_append: an append made it necessary (a rollup): it must not survive a crash that the append did not.

        Raises:
            StoreError: with `follows_append`, the flush of the appends failed and nothing was removed; the same when
                `below` would move the end beyond `SEQUENCE_MAX`.
        """
        return self._remover.purge(subject_filter, below=below, keep=keep, follows_append=follows_append)

    def enforce(self, limits: StoreLimits, now_ns: int, ageless: Sequence[int] = ()) -> int:
        """Remove the oldest messages until the limits hold, and return how many went.

        A call removes a bounded number of too old messages; `aging_time_ns` shows whether there are more. Appends
        are flushed first: nothing makes room for a message that cannot be stored.

        Args:
            ageless: sequences, ascending, of messages that do not grow too old; the other limits take them too.

        Raises:
            StoreError: that flush failed, and nothing was removed.
        """
        return self._remover.enforce(limits, now_ns, ageless)

    # Long calls, in steps between which others are served

    def prepare(self, subject_filter: SubjectFilter | None) -> Steps[None]:
        """Find which subjects pass a filter, so that questions with that filter are quick."""
        return self._index.prepare(subject_filter)

    def last_per_subject_in_steps(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> Steps[list[int]]:
        """As `last_per_subject`; messages removed meanwhile may be included or not."""
        return self._index.last_per_subject_in_steps(subject_filter, up_to_sequence)

    def last_sequence_in_steps(self, pattern: builtins.bytes) -> Steps[int]:
        """As `last_sequence_for`; a message removed meanwhile may be returned or not."""
        return self._index.last_sequence_in_steps(pattern)

    def subjects_in_steps(self, pattern: builtins.bytes | None = None) -> Steps[list[builtins.bytes]]:
        """Return the subjects that the pattern covers, sorted."""
        return self._index.subjects_in_steps(pattern)

    def purge_in_steps(
        self, subject_filter: SubjectFilter | None = None, *, below: int | None = None, keep: int | None = None
    ) -> Steps[int]:
        """As `purge`; messages appended meanwhile stay."""
        return self._remover.purge_in_steps(subject_filter, below, keep, self.removals_per_step)

    def enforce_in_steps(self, limits: StoreLimits) -> Steps[int]:
        """Remove the oldest messages until all limits except the age limit hold, and return how many were removed.

        `enforce` has to follow, for messages appended meanwhile.
        """
        return self._remover.enforce_in_steps(limits, self.removals_per_step)

    def running_count(self, first_sequence: int, subject_filter: SubjectFilter) -> RunningCount:
        """Return a count as `count` makes it, to be run in steps."""
        return RunningCount(self._index, first_sequence, subject_filter)

    # House-keeping, and the end

    @abstractmethod
    def compact_step(self, *, sync_here: bool = True) -> bool:
        """Do a bounded step of house-keeping (compaction, checks); True when there is more to do.

        Args:
            sync_here: sync in this thread where the next step needs it; otherwise `needs_sync` tells.

        Raises:
            StoreError: the disk refused; nothing is lost.
        """

    @abstractmethod
    def is_behind(self) -> bool:
        """Return whether house-keeping lags behind the writes, so that the index grows in memory."""

    @abstractmethod
    def close(self) -> None:
        """Stop cleanly, so that the next start is quick."""

    @abstractmethod
    def delete(self) -> None:
        """Remove everything, files included."""


def _stored_bytes(block: Block, row: int, messages: list[StoredMessage]) -> int:
    """Return what the messages of a run take, the first of which is in that row."""
    last = block.row_of(messages[-1].sequence)
    if last - row + 1 == len(messages):
        return sum(block.sizes[row : last + 1])
    return sum(block.sizes[block.row_of(message.sequence)] for message in messages)
