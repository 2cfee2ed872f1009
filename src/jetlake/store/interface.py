"""What a stream's store promises; `memory_store` and `file_store` keep it and run the same tests."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import msgspec

from jetlake.errors import StoreError
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.store.index.running_count import RunningCount

__all__ = [
    "BULK_REMOVAL",
    "SUBJECT_BYTES_MAX",
    "Incoming",
    "MessageStore",
    "Run",
    "StoreHooks",
    "StoreLimits",
    "rising_times",
]

Incoming = tuple[bytes, bytes, bytes, bytes]
"""A message on its way in: subject, something that does not concern the store, header, payload."""

BULK_REMOVAL = 1024
"""When one call removes more messages than this, `on_purged` is called once instead of `on_removed` for each."""

SUBJECT_BYTES_MAX = 65_535
"""The longest subject that a record can tell."""


def rising_times(times: Sequence[int], last_time_ns: int) -> list[int]:
    """Raise each time that is before its predecessor's to that one."""
    return list(accumulate(times, max, initial=last_time_ns))[1:]


class Run(msgspec.Struct, gc=False, frozen=True):
    """Consecutive matching messages of a stream, in order.

    Attributes:
        messages: the messages; empty only when nothing that matches is left up to the end of the read.
        next_sequence: where the next read continues.
    """

    messages: list[StoredMessage]
    next_sequence: int


class StoreLimits(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """How much a store keeps; zero and negative numbers mean without limit."""

    max_messages: int = -1
    max_bytes: int = -1
    max_per_subject: int = -1
    max_age_ns: int = 0


class StoreHooks(msgspec.Struct):
    """What a store calls, all from the thread that uses it; None for nothing.

    Attributes:
        on_removed: called with sequence, subject and size of each message that goes (but see `BULK_REMOVAL`).
        on_purged: called once after many messages went in one go.
        may_forget: asked before a file goes that holds the records of removed messages between two sequences, for good
            or by a rewrite without them; it is asked again after False.
        on_full: called when a segment is full, so that house-keeping can spill its index and compress it.
        on_rolled_back: called with the reason after the appends since the last flush were rolled back.
    """

    on_removed: Callable[[int, bytes, int], None] | None = None
    on_purged: Callable[[], None] | None = None
    may_forget: Callable[[int, int], bool] | None = None
    on_full: Callable[[], None] | None = None
    on_rolled_back: Callable[[StoreError], None] | None = None


class MessageStore(Protocol):
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
        lost: sequences whose messages the disk no longer returns, ascending; at most 100,000.
        lost_bytes: how many bytes of the files could not be understood.
        torn_sequence: the first message that a crash took before it was safe, though newer ones are there; 0 for none.
        unsure_since_ns: the time of the oldest message that may not have been synced before the start; 0 for none.
        durable: whether acknowledgements have to wait for `sync`.
        changes_names: whether a sync creates, renames or removes files.
        compresses: whether house-keeping compresses what is on disk; what is compressed stays so.
        failure: set when a sync fails: nothing more is taken before `retry` and another sync.
        hooks: what the store calls when messages go.
        removals_per_step: how many messages a step of `purge_in_steps` or `enforce_in_steps` removes.
    """

    durable: bool
    changes_names: bool
    compresses: bool
    hooks: StoreHooks
    removals_per_step: int
    unsure_since_ns: int

    @property
    def first_sequence(self) -> int: ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def messages(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def last_time_ns(self) -> int: ...

    @property
    def lost(self) -> list[int]: ...

    @property
    def lost_bytes(self) -> int: ...

    @property
    def torn_sequence(self) -> int: ...

    def headers_since(self, time_ns: int) -> Iterator[list[tuple[int, int, builtins.bytes]]]:
        """Sequence, time and header of every record that has one and is not older, of removed messages as well.

        They come in runs, some of them empty, each of few records; messages may be stored between two.

        Raises:
            StoreError: the disk does not give them back.
        """
        ...

    @property
    def failure(self) -> StoreError | None: ...

    @property
    def first_time_ns(self) -> int: ...

    @property
    def subject_count(self) -> int: ...

    @property
    def deleted_count(self) -> int: ...

    def append(self, subject: builtins.bytes, header: builtins.bytes, payload: builtins.bytes, time_ns: int) -> int:
        """Store a message under the next sequence, which is returned.

        It can be read at once; it reaches the disk with the next `flush`.

        Raises:
            StoreError: an earlier `sync` failed, so that nothing more can be promised.
        """
        ...

    def append_run(self, messages: Sequence[Incoming], time_ns: int | Sequence[int]) -> int:
        """Store messages under consecutive sequences and return the first; the same as one `append` for each.

        Args:
            messages: at least one.
            time_ns: the time of all, or of each.

        Raises:
            StoreError: as with `append`; none of them is stored.
        """
        ...

    def begin_group(self, count: int) -> None:
        """Make the next `count` sequences atomic: after a crash all or none of them are there.

        They are used one by one, by `append` and `skip`, before the next flush, which rolls back all when it fails.

        Raises:
            StoreError: an earlier `sync` failed, so that nothing more can be promised.
        """
        ...

    def roll_back(self, error: StoreError) -> None:
        """Undo the appends since the last flush, because of an error, as a flush does that fails."""
        ...

    def skip(self, count: int = 1, time_ns: int = 0) -> None:
        """Use up sequences without storing anything.

        Args:
            time_ns: when the last of them was used, for `last_time_ns`; 0 = unknown.

        Raises:
            StoreError: several sequences would pass `SEQUENCE_MAX`.
        """
        ...

    def advance_to(self, first_sequence: int) -> None:
        """Remove everything and make `first_sequence` the next one to be used; it must lie ahead of the last.

        Raises:
            StoreError: it is above `SEQUENCE_MAX`; nothing was removed.
        """
        ...

    def flush(self) -> None:
        """Hand everything that changed to the operating system, with one write in the usual case.

        Removals that `enforce` or a purge with `follows_append` made are held back until what caused them is durable.

        Raises:
            StoreError: the disk is full, read-only or failing. The appends since the last flush are undone,
                removals stay and are tried again with the next flush.
        """
        ...

    def sync(self) -> None:
        """Return when everything flushed before the call is on the disk. May run in another thread.

        Raises:
            StoreError: the disk failed. The store then refuses appends; what it holds stays readable.
        """
        ...

    def needs_flush(self) -> bool:
        """Return whether `flush` would write something."""
        ...

    def needs_sync(self) -> bool:
        """Return whether something was flushed that is not known to be on the disk."""
        ...

    def has(self, sequence: int) -> bool:
        """Return whether there is a message of that sequence; the disk is not asked."""
        ...

    def get(self, sequence: int) -> StoredMessage | None:
        """Return the message of that sequence, if it is there.

        Raises:
            StoreError: the disk does not answer.
        """
        ...

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
        ...

    def read_columns(
        self, first_sequence: int, max_messages: int, max_bytes: int, last_sequence: int
    ) -> MessageColumns | None:
        """Return the next messages as `read` without a filter does, column by column, or only the first of them.

        None: only `read` can tell which are next.

        Raises:
            StoreError: the disk does not answer.
        """
        ...

    def last_for(self, pattern: builtins.bytes) -> StoredMessage | None:
        """Return the newest message whose subject the pattern covers."""
        ...

    def last_sequence_for(self, pattern: builtins.bytes) -> int:
        """Return the sequence of the newest message whose subject the pattern covers; 0 when there is none."""
        ...

    def first_at_or_after(self, time_ns: int) -> int:
        """Return the first sequence with a message of that time or later; the one after the last when there is none."""
        ...

    def last_per_subject(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> list[int]:
        """Return the sequence of the newest message of every subject that passes, ascending.

        With `up_to_sequence`, newer messages are treated as if they were not there.
        """
        ...

    def subjects(self, pattern: builtins.bytes | None = None) -> dict[builtins.bytes, int]:
        """Return the subjects that the pattern covers, each with the number of its messages."""
        ...

    def count_on(self, subject: builtins.bytes) -> int:
        """Return how many messages one subject has."""
        ...

    def count(self, first_sequence: int, subject_filter: SubjectFilter | None = None) -> int:
        """Return how many messages from `first_sequence` on pass the filter."""
        ...

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Remove one message; False when it is not there. With `erase` its bytes are overwritten on the disk too.

        Raises:
            StoreError: the bytes could not be overwritten; the message is removed all the same.
        """
        ...

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
        ...

    @property
    def aging_sequence(self) -> int:
        """Where the messages begin that can grow too old; those before were passed by as ageless."""
        ...

    @property
    def aging_time_ns(self) -> int:
        """The time of the oldest of them; 0 when there is none."""
        ...

    def enforce(self, limits: StoreLimits, now_ns: int, ageless: Sequence[int] = ()) -> int:
        """Remove the oldest messages until the limits hold, and return how many went.

        A call removes a bounded number of too old messages; `aging_time_ns` shows whether there are more. Appends
        are flushed first: nothing makes room for a message that cannot be stored.

        Args:
            ageless: sequences, ascending, of messages that do not grow too old; the other limits take them too.

        Raises:
            StoreError: that flush failed, and nothing was removed.
        """
        ...

    def deleted(self, first: int, end: int) -> list[int]:
        """Return the sequences from `first` up to before `end` that have no message."""
        ...

    # Long calls, in steps between which others are served

    def prepare(self, subject_filter: SubjectFilter | None) -> Steps[None]:
        """Find which subjects pass a filter, so that questions with that filter are quick."""
        ...

    def last_per_subject_in_steps(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> Steps[list[int]]:
        """As `last_per_subject`; messages removed meanwhile may be included or not."""
        ...

    def last_sequence_in_steps(self, pattern: builtins.bytes) -> Steps[int]:
        """As `last_sequence_for`; a message removed meanwhile may be returned or not."""
        ...

    def subjects_in_steps(self, pattern: builtins.bytes | None = None) -> Steps[list[builtins.bytes]]:
        """Return the subjects that the pattern covers, sorted."""
        ...

    def purge_in_steps(
        self, subject_filter: SubjectFilter | None = None, *, below: int | None = None, keep: int | None = None
    ) -> Steps[int]:
        """As `purge`; messages appended meanwhile stay."""
        ...

    def enforce_in_steps(self, limits: StoreLimits) -> Steps[int]:
        """Remove the oldest messages until all limits except the age limit hold, and return how many were removed.

        `enforce` has to follow, for messages appended meanwhile.
        """
        ...

    def running_count(self, first_sequence: int, subject_filter: SubjectFilter) -> RunningCount:
        """Return a count as `count` makes it, to be run in steps."""
        ...

    def compact_step(self, *, sync_here: bool = True) -> bool:
        """Do a bounded step of house-keeping (compaction, checks); True when there is more to do.

        Args:
            sync_here: sync in this thread where the next step needs it; otherwise `needs_sync` tells.

        Raises:
            StoreError: the disk refused; nothing is lost.
        """
        ...

    def is_behind(self) -> bool:
        """Return whether house-keeping lags behind the writes, so that the index grows in memory."""
        ...

    def retry(self) -> None:
        """Try again after the disk refused; when this returns, the next sync decides whether all is well.

        Raises:
            StoreError: the disk still refuses.
        """
        ...

    def close(self) -> None:
        """Stop cleanly, so that the next start is quick."""
        ...

    def delete(self) -> None:
        """Remove everything, files included."""
        ...
