"""The part of the contract that both stores share: their index answers, and nothing is asked of the disk."""

from __future__ import annotations

import builtins
from functools import partial
from operator import attrgetter
from typing import Generic, Protocol

from jetlake.store.index.index import BlockType, Index
from jetlake.store.index.message_remover import MessageRemover
from jetlake.store.index.stepwise_count import StepwiseCount
from jetlake.store.interface import Run, StepwiseStore, StoreHooks, StoreLimits
from jetlake.store.message import StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["IndexedStore"]


class Reader(Protocol):
    """What gives messages back; see `interface.MessageStore` for the promises."""

    def get(self, sequence: int) -> StoredMessage | None: ...

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run: ...


class _Stepwise:
    """The calls of a store that go in steps; see `interface.StepwiseStore` for the promises.

    Attributes:
        removals_per_step: how many messages a step of a purge removes.
    """

    def __init__(self, index: Index[BlockType], remover: MessageRemover[BlockType]) -> None:
        self.removals_per_step = 128
        self._remover = remover
        self.count = partial(StepwiseCount, index)
        self.prepare = index.prepare
        self.last_per_subject = index.last_per_subject_in_steps
        self.last_sequence_for = index.last_sequence_in_steps
        self.subjects = index.subjects_in_steps

    def purge(
        self, subject_filter: SubjectFilter | None = None, *, below: int | None = None, keep: int | None = None
    ) -> Steps[int]:
        return self._remover.purge_in_steps(subject_filter, below, keep, self.removals_per_step)

    def enforce(self, limits: StoreLimits) -> Steps[int]:
        return self._remover.enforce_in_steps(limits, self.removals_per_step)


class IndexedStore(Generic[BlockType]):
    """State, questions and removals of a store; see `interface.MessageStore` for the promises.

    The methods of index, remover and reader are bound once, so that a call of the store is a call of theirs.
    """

    first_sequence = property(attrgetter("_index.first_sequence"))
    last_sequence = property(attrgetter("_index.last_sequence"))
    messages = property(attrgetter("_index.messages"))
    bytes = property(attrgetter("_index.bytes"))
    first_time_ns = property(attrgetter("_index.first_time_ns"))
    last_time_ns = property(attrgetter("_index.last_time_ns"))
    deleted_count = property(attrgetter("_index.deleted_count"))
    aging_sequence = property(attrgetter("_remover.aging_sequence"))
    aging_time_ns = property(attrgetter("_remover.aging_time_ns"))

    def __init__(self, index: Index[BlockType], remover: MessageRemover[BlockType], reader: Reader) -> None:
        self._index = index
        self._remover = remover
        self.hooks: StoreHooks = index.hooks
        self.in_steps: StepwiseStore = _Stepwise(index, remover)
        self.has = index.has
        self.count = index.count
        self.count_on = index.count_on
        self.deleted = index.deleted
        self.first_at_or_after = index.first_at_or_after
        self.last_sequence_for = index.last_sequence_for
        self.last_per_subject = index.last_per_subject
        self.subjects = index.counts
        self.remove = remover.remove
        self.purge = remover.purge
        self.enforce = remover.enforce
        self.skip = remover.skip
        self.advance_to = remover.advance_to
        self.get = reader.get
        self.read = reader.read

    def last_for(self, pattern: builtins.bytes) -> StoredMessage | None:
        sequence = self.last_sequence_for(pattern)
        while sequence:
            message = self.get(sequence)
            if message is not None:
                return message
            sequence = self.last_sequence_for(pattern)
        return None

    @property
    def subject_count(self) -> int:
        return len(self._index.subjects)
