"""The start position of a new consumer: a sequence, and for last per subject the messages chosen before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import parse_time
from jetlake.model.enums import DeliverPolicy
from jetlake.store.interface import MessageStore
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["StartPosition", "last_of_subjects", "start_position"]


class StartPosition(msgspec.Struct, frozen=True):
    """A start position.

    Attributes:
        sequence: the first sequence to read.
        chosen: sequences before `resume`; only these are delivered first.
        resume: where to continue after the chosen messages.
        pending: how many messages there are from the first sequence on; None where nobody has counted them.
    """

    sequence: int
    chosen: Sequence[int] = ()
    resume: int = 0
    pending: int | None = None


def start_position(config: ConsumerConfig, store: MessageStore, last_sequence: int) -> Steps[StartPosition]:
    """Find the start position of a deliver policy; messages after `last_sequence` count as not yet stored.

    On an empty stream a consumer starts at the next message, unless the policy is a start sequence: a consumer may
    wait for one beyond the end.
    """
    subject_filter = SubjectFilter.of(subject.encode() for subject in config.filters)
    yield from store.in_steps.prepare(subject_filter)
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
        return StartPosition(_last(store, subject_filter, first, last_sequence))
    newest = yield from store.in_steps.last_per_subject(subject_filter, last_sequence)
    return _from_newest(newest, first, last_sequence)


def _last(store: MessageStore, subject_filter: SubjectFilter | None, first_sequence: int, last_sequence: int) -> int:
    """Return the newest message that passes; without a filter the newest sequence, stored or not."""
    if subject_filter is None:
        return last_sequence
    newest = max(store.last_sequence_for(pattern) for pattern in subject_filter.patterns)
    if newest > last_sequence:
        # The newest message is not visible yet: use the newest visible one.
        visible = store.last_per_subject(subject_filter, last_sequence)
        newest = visible[-1] if visible else 0
    return newest or first_sequence


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
