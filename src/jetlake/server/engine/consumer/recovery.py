"""The recovery of a consumer's position from its journal after a restart."""

from __future__ import annotations

from jetlake.server.engine.consumer.ack_tracker import AckTracker, Pending
from jetlake.server.engine.consumer.feed import Cursor, StartPosition, last_of_subjects
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.message_store import MessageStore
from jetlake.store.subject_filter import SubjectFilter

# Messages whose acknowledgement is unknown are looked up in pieces of this size.
_READ_MESSAGES = 512
_READ_BYTES = 1024 * 1024


def recover_position(
    tracker: AckTracker,
    cursor: Cursor,
    store: MessageStore,
    state: ConsumerState,
    *,
    start: int,
    resume: int,
    now_ns: int,
) -> bool:
    """Move a new consumer's tracker and cursor to the recovered state.

    Args:
        tracker: the consumer's ack tracker.
        cursor: the consumer's cursor.
        store: the stream's messages.
        state: what the journal returned.
        start: the first sequence that the consumer ever looked at.
        resume: where the cursor continues after the messages chosen at its start; 0 when none were chosen.

    Returns:
        Whether the state differs from the journal's, because the stream has changed since.

    Raises:
        StoreError: the stream's messages cannot be read.
    """
    stream = max(state.delivered_stream, start - 1)
    floor = (state.floor_consumer, max(state.floor_stream, start - 1))
    if not tracker.wants_acks:
        floor = (state.delivered_consumer, stream)
    pending = _by_this_clock(state.pending, max(state.latest_ns, store.last_time_ns), now_ns)
    tracker.restore((state.delivered_consumer, stream), floor, pending, state.deliveries)
    if resume > stream + 1:
        chosen = last_of_subjects(store, cursor.subject_filter, stream + 1, resume - 1)
        cursor.go_to(chosen if chosen.chosen else StartPosition(resume))
    else:
        cursor.go_to(StartPosition(stream + 1), waits=stream > store.last_sequence)
    cursor.on_purged()
    if state.uncertain:
        tracker.queue_uncertain(_stored_among(state.uncertain, store, cursor.subject_filter))
    gone = [sequence for sequence in (*tracker.pending, *tracker.exhausted) if not store.has(sequence)]
    for sequence in gone:
        tracker.ack(sequence, tracker.pending.get(sequence, 0))
    return bool(gone or state.uncertain)


def _by_this_clock(pending: dict[int, Pending], latest_ns: int, now_ns: int) -> dict[int, Pending]:
    """Return pending messages with the times in the future moved back by as much as the clock was set back.

    Otherwise their ack waits would last that much longer.

    Args:
        latest_ns: the latest time known to have passed.
    """
    set_back_ns = latest_ns - now_ns
    if set_back_ns <= 0:
        return pending
    return {
        sequence: (first, min(time_ns, max(now_ns, time_ns - set_back_ns)), count)
        for sequence, (first, time_ns, count) in pending.items()
    }


def _stored_among(
    ranges: list[tuple[int, int]], store: MessageStore, subject_filter: SubjectFilter | None
) -> list[int]:
    """Return the sequences in these ranges that are still stored and pass the filter."""
    stored: list[int] = []
    for first, last in ranges:
        while first <= last:
            run = store.read(first, subject_filter, _READ_MESSAGES, _READ_BYTES, last)
            if not run.messages:
                break
            stored += [message.sequence for message in run.messages]
            first = run.messages[-1].sequence + 1
    return stored
