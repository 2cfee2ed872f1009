"""Positions of consumers, between the store's form and the archive's."""

from __future__ import annotations

from jetlake.model.archive.items import ConsumerPosition, PendingMessage, SequencePair
from jetlake.store.journal.consumer_state import ConsumerState

__all__ = ["archived_position", "stored_state"]


def archived_position(state: ConsumerState, last_sequence: int) -> ConsumerPosition:
    """Return a consumer's position as an archive holds it.

    Args:
        state: where the consumer stands.
        last_sequence: the last one in the archive; the consumer knows nothing of newer messages.
    """
    redelivered = {
        sequence: max(count - 1, 1)
        for sequence, count in state.deliveries.items()
        if sequence <= last_sequence and (count > 1 or sequence not in state.pending)
    }
    return ConsumerPosition(
        delivered=SequencePair(
            consumer_seq=state.delivered_consumer, stream_seq=min(state.delivered_stream, last_sequence)
        ),
        ack_floor=SequencePair(consumer_seq=state.floor_consumer, stream_seq=min(state.floor_stream, last_sequence)),
        pending={
            sequence: PendingMessage(sequence=consumer, timestamp=time_ns)
            for sequence, (consumer, time_ns, _) in state.pending.items()
            if sequence <= last_sequence
        },
        redelivered=redelivered,
    )


def stored_state(position: ConsumerPosition, max_deliver: int) -> ConsumerState:
    """Return an archived position as a journal holds it.

    Args:
        position: where the consumer stood.
        max_deliver: most deliveries of a message. A message that is not pending and was delivered again reached it;
            without a limit there is no such message.
    """
    redelivered = position.redelivered
    return ConsumerState(
        delivered_consumer=position.delivered.consumer_seq,
        delivered_stream=position.delivered.stream_seq,
        floor_consumer=position.ack_floor.consumer_seq,
        floor_stream=position.ack_floor.stream_seq,
        pending={
            sequence: (pending.sequence, max(pending.timestamp, 0), redelivered.get(sequence, 0) + 1)
            for sequence, pending in sorted(position.pending.items())
        },
        deliveries={
            sequence: count + 1
            for sequence, count in redelivered.items()
            if count and (sequence in position.pending or max_deliver > 0)
        },
    )
