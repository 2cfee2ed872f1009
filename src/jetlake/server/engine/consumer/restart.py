"""How a consumer is written down as a whole, and how it goes on from that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.server.engine.consumer.delivery import RUN_BYTES, RUN_MESSAGES
from jetlake.server.engine.consumer.start_position import StartPosition, last_of_subjects
from jetlake.store.journal.consumer_state import ConsumerState

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.acks.ack_tracker import AckTracker
    from jetlake.server.engine.consumer.consumer import Consumer

__all__ = ["go_on_from", "state_of"]


def state_of(acks: AckTracker) -> ConsumerState:
    """Where a consumer with these acknowledgements stands."""
    return ConsumerState(
        delivered_consumer=acks.delivered_consumer,
        delivered_stream=acks.delivered_stream,
        floor_consumer=acks.floor_consumer,
        floor_stream=acks.floor_stream,
        pending=acks.pending_state(),
        deliveries=dict(acks.deliveries),
    )


def go_on_from(consumer: Consumer, state: ConsumerState, start: int, resume: int) -> bool:
    """Bring a new consumer to where it stood; whether the stream has changed so that it now stands elsewhere.

    Args:
        start: the first sequence that it ever looked at.
        resume: where it was to go on after the messages chosen at its start; 0 when it chose none.

    Raises:
        StoreError: the stream's messages cannot be read.
    """
    acks, cursor, store = consumer.acks, consumer.cursor, consumer.stream.store
    stream = max(state.delivered_stream, start - 1)
    floor = (state.floor_consumer, max(state.floor_stream, start - 1))
    if not consumer.acknowledgements.are_wanted:
        floor = (state.delivered_consumer, stream)
    acks.restore((state.delivered_consumer, stream), floor, state.pending, state.deliveries)
    if resume > stream + 1:
        chosen = last_of_subjects(store, cursor.subject_filter, stream + 1, resume - 1)
        cursor.go_to(chosen if chosen.chosen else StartPosition(resume))
    else:
        cursor.go_to(StartPosition(stream + 1), waits=stream > store.last_sequence)
    cursor.on_purged()
    if state.uncertain:
        acks.recall(_wanted_among(consumer, state.uncertain))
    gone = [sequence for sequence in (*acks.pending, *acks.exhausted) if not store.has(sequence)]
    for sequence in gone:
        acks.ack(sequence, acks.pending.get(sequence, 0))
    return bool(gone or state.uncertain)


def _wanted_among(consumer: Consumer, ranges: list[tuple[int, int]]) -> list[int]:
    """The messages in these ranges of sequences that are still there and pass the filters."""
    store, subject_filter = consumer.stream.store, consumer.cursor.subject_filter
    wanted: list[int] = []
    for first, last in ranges:
        while first <= last:
            run = store.read(first, subject_filter, RUN_MESSAGES, RUN_BYTES, last)
            if not run.messages:
                break
            wanted += [message.sequence for message in run.messages]
            first = run.messages[-1].sequence + 1
    return wanted
