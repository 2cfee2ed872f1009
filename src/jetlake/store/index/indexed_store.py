"""What both stores share: the index answers questions, the remover removes, and the reader loads messages."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Generic

from jetlake.store.index.index import BlockType, Index
from jetlake.store.index.message_reader import MessageReader
from jetlake.store.index.message_remover import MessageRemover
from jetlake.store.index.running_count import RunningCount
from jetlake.store.interface import Run, StoreHooks, StoreLimits
from jetlake.store.message import StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["IndexedStore"]


class IndexedStore(Generic[BlockType]):
    """State, questions and removals of a store; see `interface.MessageStore` for the promises.

    Attributes:
        removals_per_step: how many messages a step of a purge removes.
    """

    def __init__(
        self, index: Index[BlockType], remover: MessageRemover[BlockType], reader: MessageReader[BlockType]
    ) -> None:
        self._index = index
        self._remover = remover
        self._reader = reader
        self.hooks: StoreHooks = index.hooks
        self.removals_per_step = 128

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
        return self._remover.aging_sequence

    @property
    def aging_time_ns(self) -> int:
        return self._remover.aging_time_ns

    # Questions

    def has(self, sequence: int) -> bool:
        return self._index.has(sequence)

    def get(self, sequence: int) -> StoredMessage | None:
        return self._reader.get(sequence)

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        return self._reader.read(first_sequence, subject_filter, max_messages, max_bytes, last_sequence)

    def last_for(self, pattern: builtins.bytes) -> StoredMessage | None:
        while sequence := self.last_sequence_for(pattern):
            message = self.get(sequence)
            if message is not None:
                return message
        return None

    def last_sequence_for(self, pattern: builtins.bytes) -> int:
        return self._index.last_sequence_for(pattern)

    def first_at_or_after(self, time_ns: int) -> int:
        return self._index.first_at_or_after(time_ns)

    def last_per_subject(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> list[int]:
        return self._index.last_per_subject(subject_filter, up_to_sequence)

    def subjects(self, pattern: builtins.bytes | None = None) -> dict[builtins.bytes, int]:
        return self._index.counts(pattern)

    def count_on(self, subject: builtins.bytes) -> int:
        return self._index.count_on(subject)

    def count(self, first_sequence: int, subject_filter: SubjectFilter | None = None) -> int:
        return self._index.count(first_sequence, subject_filter)

    def deleted(self, first: int, end: int) -> list[int]:
        return self._index.deleted(first, end)

    # Removals

    def skip(self, count: int = 1, time_ns: int = 0) -> None:
        self._remover.skip(count, time_ns)

    def advance_to(self, first_sequence: int) -> None:
        self._remover.advance_to(first_sequence)

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        return self._remover.remove(sequence, erase=erase)

    def purge(
        self,
        subject_filter: SubjectFilter | None = None,
        *,
        below: int | None = None,
        keep: int | None = None,
        follows_append: bool = False,
    ) -> int:
        return self._remover.purge(subject_filter, below=below, keep=keep, follows_append=follows_append)

    def enforce(self, limits: StoreLimits, now_ns: int, ageless: Sequence[int] = ()) -> int:
        return self._remover.enforce(limits, now_ns, ageless)

    # Long calls, in steps between which others are served

    def prepare(self, subject_filter: SubjectFilter | None) -> Steps[None]:
        return self._index.prepare(subject_filter)

    def last_per_subject_in_steps(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> Steps[list[int]]:
        return self._index.last_per_subject_in_steps(subject_filter, up_to_sequence)

    def last_sequence_in_steps(self, pattern: builtins.bytes) -> Steps[int]:
        return self._index.last_sequence_in_steps(pattern)

    def subjects_in_steps(self, pattern: builtins.bytes | None = None) -> Steps[list[builtins.bytes]]:
        return self._index.subjects_in_steps(pattern)

    def purge_in_steps(
        self, subject_filter: SubjectFilter | None = None, *, below: int | None = None, keep: int | None = None
    ) -> Steps[int]:
        return self._remover.purge_in_steps(subject_filter, below, keep, self.removals_per_step)

    def enforce_in_steps(self, limits: StoreLimits) -> Steps[int]:
        return self._remover.enforce_in_steps(limits, self.removals_per_step)

    def running_count(self, first_sequence: int, subject_filter: SubjectFilter) -> RunningCount:
        return RunningCount(self._index, first_sequence, subject_filter)
