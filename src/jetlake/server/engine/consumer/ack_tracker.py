"""The ack tracker: pending messages, ack floors, delivery counts, ack deadlines and the redelivery queue of a consumer.

    deliver_run ──► pending (in flight) ──ack, term──► done; the floors rise behind the lowest pending message
                      │  ▲
       ack wait, nak  ▼  │ deliver_again
                    redelivery queue ──max_deliver──► exhausted: still acknowledgeable, never redelivered

What is always true:

- A sequence is in `pending` exactly while it was delivered, is not acknowledged, and has not reached max_deliver.
- A message in the redelivery queue, or nakked with a delay, is pending and not in flight.
- Everything at or below the floors is acknowledged, removed or exhausted; floors and delivered positions only rise,
  except when the stream rolls back messages that the disk refused.
- Messages are delivered and tracked in runs: one time a run, one dictionary entry a message. Only a message that was
  redelivered, delayed or reported in progress has its own deadline, so that no operation scans all pending messages.

The tracker is memory only. The ack handler writes each change to the journal, from which `restore` continues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, repeat

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import AckPolicy
from jetlake.store.journal.consumer_state import ConsumerState

# Added to the ack wait, so that an acknowledgement sent in the last moment is in time.
_GRACE_NS = 1_000_000
# Stale entries that are always tolerated: a clean-up for fewer costs more than it frees.
_STALE_MIN = 1024
_NO_LIMIT = 2**62
_NOT_PENDING = -1

Pending = tuple[int, int, int]
"""A pending message as saved: consumer sequence of the first delivery, start of the ack wait, number of deliveries."""


class AckTracker:
    """The acknowledgement state of one consumer.

    Attributes:
        pending: stream sequence of each pending message, with the consumer sequence of its first delivery.
        deliveries: delivery counts of unacknowledged messages that were redelivered or reached max_deliver.
        exhausted: unacknowledged messages that reached max_deliver; they are no longer pending.
        wants_acks: whether the consumer takes acknowledgements at all.
        is_explicit: whether an acknowledgement covers its own message only.
        is_awaited: the consumer waits until no message is in flight, and must be made ready then.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.delivered_consumer = 0
        self.delivered_stream = 0
        self.floor_consumer = 0
        self.floor_stream = 0
        self.pending: dict[int, int] = {}
        self.deliveries: dict[int, int] = {}
        self.exhausted: set[int] = set()
        self._runs = DeliveryRuns()
        self._deadlines = MessageDeadlines()
        self._own_ns = self._deadlines.times_ns
        self._delivered_again_ns: dict[int, int] = {}
        self._waits_since_ns: dict[int, int] = {}
        self._queue = RedeliveryQueue()
        self._queued = self._queue.members
        self._nakked: set[int] = set()  # with a delay that is not over
        self.is_awaited = False
        self.configure(config)

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a configuration; a changed ack wait counts for pending messages too, but for those with a delay."""
        self._ack_wait_ns = config.ack_wait
        self._backoff = config.backoff
        self.max_deliver = config.max_deliver
        self.wants_acks = config.ack_policy is not AckPolicy.NONE
        self.is_explicit = config.ack_policy is AckPolicy.EXPLICIT
        # Without an ack wait, as with flow control in place of acknowledgements, no message is redelivered by time.
        self.has_ack_wait = self.wants_acks and bool(config.ack_wait or config.backoff)
        self.max_pending = config.max_ack_pending if self.wants_acks and config.max_ack_pending > 0 else _NO_LIMIT
        for sequence in self._own_ns.keys() - self._nakked:
            _, time_ns, count = self.saved(sequence)
            self._deadlines.set(sequence, time_ns + self._wait_ns(count))

    def room(self) -> int:
        """Return how many more messages may be pending."""
        return self.max_pending - len(self.pending)

    @property
    def in_flight(self) -> int:
        """Number of messages that a client has and has neither settled nor timed out on."""
        return len(self.pending) - len(self._queued) - len(self._nakked)

    # Deliveries

    def deliver_run(self, sequences: list[int], now_ns: int) -> None:
        """Track first deliveries, in ascending order, with the next consumer sequences."""
        first = self.delivered_consumer + 1
        self.delivered_consumer += len(sequences)
        self.delivered_stream = sequences[-1]
        self.pending.update(zip(sequences, range(first, first + len(sequences)), strict=True))
        runs = self._runs
        runs.add(sequences, now_ns)
        if runs.tracked > 2 * len(self.pending) + _STALE_MIN:
            runs.sweep(self.pending)

    def count_run(self, sequences: list[int]) -> None:
        """Count first deliveries of a consumer that takes no acknowledgements."""
        self.delivered_consumer += len(sequences)
        self.delivered_stream = sequences[-1]
        self.floor_consumer = self.delivered_consumer
        self.floor_stream = self.delivered_stream

    def deliver_again(self, sequence: int, now_ns: int) -> int:
        """Track the redelivery of a message, and return its delivery count."""
        self.delivered_consumer += 1
        count = self.deliveries.get(sequence, 1) + 1
        self.deliveries[sequence] = count
        self._delivered_again_ns[sequence] = now_ns
        self._waits_since_ns.pop(sequence, None)
        self._deadlines.set(sequence, now_ns + self._wait_ns(count))
        return count

    def delivery_count(self, sequence: int) -> int:
        """Return how often a message was delivered."""
        return self.deliveries.get(sequence, 1)

    def delivered_ns(self, sequence: int) -> int:
        """Return when a pending message was last delivered."""
        again_ns = self._delivered_again_ns.get(sequence)
        return again_ns if again_ns is not None else self._runs.delivered_ns(sequence)

    def _wait_ns(self, count: int) -> int:
        """Return the ack wait of a message's `count`-th delivery."""
        if self._backoff:
            return self._backoff[min(count, len(self._backoff)) - 1] + _GRACE_NS
        return self._ack_wait_ns + _GRACE_NS

    # Acknowledgements

    def ack(self, sequence: int, consumer_sequence: int) -> bool:
        """Acknowledge one message; returns whether it was pending. `consumer_sequence` is the acknowledgement's own."""
        first = self.pending.pop(sequence, None)
        if first is not None:
            consumer_sequence = first
        if self.deliveries or self._queued or self._own_ns or self._waits_since_ns:
            self._forget(sequence)
        if not self.pending:
            self._raise_floor_to_delivered()
        elif consumer_sequence == self.floor_consumer + 1:
            self._raise_floor_to_lowest()
        return first is not None

    def ack_run(self, sequences: list[int]) -> list[int]:
        """Acknowledge many messages, each by itself; return the pending ones. The floors move once."""
        pending = self.pending
        firsts = list(map(pending.pop, sequences, repeat(_NOT_PENDING)))
        if _NOT_PENDING in firsts:
            sequences = [sequence for sequence, first in zip(sequences, firsts, strict=True) if first != _NOT_PENDING]
        if self.deliveries or self._queued or self._own_ns or self._waits_since_ns:
            for sequence in sequences:
                self._forget(sequence)
        if not sequences:
            return sequences
        if not pending:
            self._raise_floor_to_delivered()
        elif self.floor_consumer + 1 in firsts:
            self._raise_floor_to_lowest()
        return sequences

    def ack_all(self, sequence: int, consumer_sequence: int) -> list[int]:
        """Acknowledge every message up to this one; returns the newly acknowledged sequences, ascending."""
        if sequence <= self.floor_stream or not self.floor_consumer < consumer_sequence <= self.delivered_consumer:
            return []
        self.floor_consumer, self.floor_stream = consumer_sequence, sequence
        done = self._runs.take_up_to(sequence, self.pending)
        if len(done) == len(self.pending):
            self.pending.clear()
        else:
            deque(map(self.pending.pop, done), maxlen=0)
        if self.deliveries or self._queued or self._own_ns or self._waits_since_ns:
            for acked in done:
                self._forget(acked)
        late = [exhausted for exhausted in self.exhausted if exhausted <= sequence]
        for exhausted in late:
            self._forget(exhausted)
        return sorted(done + late) if late else done

    def nak(self, sequence: int, consumer_sequence: int, delay_ns: int | None, now_ns: int) -> bool:
        """Queue a message for redelivery, at once or after a delay; False when the message is not pending."""
        if sequence not in self.pending or not self.floor_consumer < consumer_sequence <= self.delivered_consumer:
            return False
        if delay_ns is not None:
            self._queue.discard(sequence)
            self._nakked.add(sequence)
            self._deadlines.set(sequence, now_ns + delay_ns)
        elif sequence not in self._queued:
            self._enqueue((sequence,))
        self._waits_since_ns[sequence] = now_ns + (delay_ns or 0) - self._wait_ns(self.delivery_count(sequence))
        return True

    def progress(self, sequence: int, now_ns: int) -> bool:
        """Start the ack wait of a message again; False when the message is not pending or waits for redelivery."""
        if sequence not in self.pending or sequence in self._queued:
            return False
        self._waits_since_ns[sequence] = now_ns
        self._nakked.discard(sequence)
        self._deadlines.set(sequence, now_ns + self._wait_ns(self.delivery_count(sequence)))
        return True

    def saved(self, sequence: int) -> Pending:
        """Return a pending message as it is saved."""
        time_ns = self._waits_since_ns.get(sequence) or self.delivered_ns(sequence)
        return self.pending[sequence], time_ns, self.delivery_count(sequence)

    def is_open(self, sequence: int) -> bool:
        """Return whether a message behind the cursor can still be acknowledged."""
        if sequence in self.pending or sequence in self.exhausted:
            return True
        return self.wants_acks and not self.is_explicit and sequence > self.floor_stream

    # Redelivery

    def expire(self, now_ns: int) -> list[int]:
        """Queue messages whose ack wait is over; with a max_deliver of 1, return them instead."""
        pending, own_ns, queued = self.pending, self._own_ns, self._queued
        due = [
            sequence
            for sequence in self._runs.expire(now_ns - self._wait_ns(1))
            if sequence in pending and sequence not in own_ns and sequence not in queued
        ]
        due += self._deadlines.take_due(now_ns)
        due.sort()
        if self.max_deliver == 1:
            return due
        self._enqueue(due)
        return []

    def is_last_delivery(self, sequence: int) -> bool:
        """Return whether a message was delivered as often as max_deliver allows, so that it is not delivered again."""
        return 0 < self.max_deliver <= self.delivery_count(sequence)

    def exhaust(self, sequence: int) -> bool:
        """Count a message that reached max_deliver as exhausted; False when the message was not pending."""
        was_pending = self.pending.pop(sequence, None) is not None
        self.deliveries.setdefault(sequence, 1)
        self.exhausted.add(sequence)
        self._own_ns.pop(sequence, None)
        self._queue.discard(sequence)
        self._nakked.discard(sequence)
        return was_pending

    def next_redelivery(self) -> int | None:
        """Return the head of the redelivery queue without taking it."""
        return self._queue.head()

    def take_redelivery(self) -> int | None:
        """Take the head of the redelivery queue."""
        return self._queue.take()

    def is_queued(self, sequence: int) -> bool:
        """Return whether a message is queued for redelivery."""
        return sequence in self._queued

    @property
    def queue_length(self) -> int:
        """Number of messages queued for redelivery."""
        return len(self._queued)

    def redeliver_all(self) -> None:
        """Queue all pending messages for redelivery: their client is gone."""
        self._enqueue(sorted(self.pending.keys() - self._queued))

    def oldest(self, count: int) -> list[tuple[int, int, str, int]]:
        """List the pending messages of the lowest sequences: sequence, deliveries, state and deadline."""
        found = []
        for sequence in nsmallest(count, self.pending):
            state = "queued" if sequence in self._queued else "delayed" if sequence in self._nakked else "in_flight"
            deliveries = self.delivery_count(sequence)
            due_ns = self._own_ns.get(sequence) or self.delivered_ns(sequence) + self._wait_ns(deliveries)
            found.append((sequence, deliveries, state, due_ns))
        return found

    def redeliver(self, sequences: Iterable[int]) -> bool:
        """Queue pending messages for redelivery whose client is gone, but for those nakked with a delay."""
        lost = [
            sequence
            for sequence in sequences
            if sequence in self.pending and sequence not in self._queued and sequence not in self._nakked
        ]
        self._enqueue(sorted(lost))
        return bool(lost)

    def _enqueue(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._own_ns.pop(sequence, None)
        self._nakked.difference_update(sequences)
        self._queue.put(sequences)

    def queue_uncertain(self, sequences: Iterable[int]) -> None:
        """Queue messages for redelivery whose acknowledgement may be lost. Only right after `restore`."""
        unknown = [sequence for sequence in sequences if sequence > self.floor_stream and sequence not in self.pending]
        for sequence in unknown:
            self.pending[sequence] = self.delivered_consumer
        self._runs.replace(sorted(self.pending))
        self._enqueue(unknown)

    # Deadlines

    @property
    def next_deadline_ns(self) -> int:
        """When the first ack wait ends; 0 = never."""
        if not self.has_ack_wait:
            return 0
        deadline_ns = self._deadlines.next_ns if self._own_ns else 0
        if self.pending and (delivered_ns := self._runs.waits_since_ns) is not None:
            run_ns = delivered_ns + self._wait_ns(1)
            if not deadline_ns or run_ns < deadline_ns:
                return run_ns
        return deadline_ns

    # Messages removed from the stream

    def lose(self, sequence: int) -> bool:
        """Drop a message that is no longer stored; returns whether the message was pending or exhausted."""
        was_open = sequence in self.pending or sequence in self.exhausted
        if self.is_explicit:
            self.ack(sequence, self.pending.get(sequence, 0))
        else:
            self.pending.pop(sequence, None)
            self._forget(sequence)
            self._raise_floor_if_idle()
        return was_open

    def _raise_floor_if_idle(self) -> None:
        """Raise the ack floor to the last delivery when nothing is pending.

        With ack policy all, the floor stays below exhausted messages, which could not be acknowledged below it.
        """
        if not self.pending and (self.is_explicit or not self.exhausted):
            self._raise_floor_to_delivered()

    def forget_missing(self, first_sequence: int, is_missing: Callable[[int], bool] | None) -> list[int]:
        """Drop messages before `first_sequence` and missing ones; return the pending ones among them."""
        gone = [
            sequence
            for sequence in self.pending
            if sequence < first_sequence or (is_missing is not None and is_missing(sequence))
        ]
        highest = 0
        for sequence in gone:
            highest = max(highest, self.pending.pop(sequence))
            self._forget(sequence)
        for sequence in [
            late for late in self.exhausted if late < first_sequence or (is_missing is not None and is_missing(late))
        ]:
            self._forget(sequence)
        self.delivered_stream = max(self.delivered_stream, first_sequence - 1)
        self.floor_stream = max(self.floor_stream, first_sequence - 1)
        self.floor_consumer = max(self.floor_consumer, highest)
        self._raise_floor_if_idle()
        return gone

    def rewind_to(self, sequence: int) -> None:
        """Lower deliveries and floor to a sequence: the newer messages were undone, and others get their sequences."""
        self.delivered_stream = min(self.delivered_stream, sequence)
        self.floor_stream = min(self.floor_stream, sequence)

    def extent(self) -> tuple[int, ...]:
        """Return positions and numbers of messages, some of which differ after messages were forgotten or undone."""
        positions = self.delivered_consumer, self.delivered_stream, self.floor_consumer, self.floor_stream
        return *positions, len(self.pending), len(self.exhausted)

    # Saved state

    def state(self) -> ConsumerState:
        """Return the whole state as the journal keeps it."""
        return ConsumerState(
            delivered_consumer=self.delivered_consumer,
            delivered_stream=self.delivered_stream,
            floor_consumer=self.floor_consumer,
            floor_stream=self.floor_stream,
            pending=self.pending_state(),
            deliveries=dict(self.deliveries),
        )

    def pending_state(self) -> dict[int, Pending]:
        """Return all pending messages as they are saved, in ascending order of stream sequences."""
        state: dict[int, Pending] = {}
        for run in self._runs:
            for sequence in run.sequences:
                first = self.pending.get(sequence)
                if first is not None:
                    time_ns = self._delivered_again_ns.get(sequence, run.delivered_ns)
                    time_ns = self._waits_since_ns.get(sequence, time_ns)
                    state[sequence] = (first, time_ns, self.deliveries.get(sequence, 1))
        return state

    def restore(
        self,
        delivered: tuple[int, int],
        floor: tuple[int, int],
        pending: dict[int, Pending],
        deliveries: dict[int, int],
    ) -> None:
        """Continue from a saved state; `delivered` and `floor` are a consumer and a stream sequence each."""
        self.reset(*delivered)
        self.floor_consumer, self.floor_stream = floor
        self.deliveries.update(deliveries)
        self.exhausted.update(deliveries.keys() - pending.keys())
        sequences = sorted(pending)
        for sequence in sequences:
            first, time_ns, count = pending[sequence]
            self.pending[sequence] = first
            if count > 1:
                self.deliveries[sequence] = count
            self._delivered_again_ns[sequence] = time_ns
            self._deadlines.set(sequence, time_ns + self._wait_ns(count))
        self._runs.replace(sequences)

    def recognize_naks(self, now_ns: int) -> None:
        """Tell messages that were nakked with a long delay from those in flight; only right after `restore`.

        The ack wait of such a message counts from a time that is still to come.
        """
        self._nakked.update(sequence for sequence, time_ns in self._delivered_again_ns.items() if time_ns > now_ns)

    def reset(self, delivered_consumer: int, delivered_stream: int) -> None:
        """Forget all messages and set deliveries and floors to these sequences."""
        self.delivered_consumer = self.floor_consumer = delivered_consumer
        self.delivered_stream = self.floor_stream = delivered_stream
        for known in (self.pending, self.deliveries, self.exhausted, self._delivered_again_ns, self._waits_since_ns):
            known.clear()
        self._nakked.clear()
        self._runs.clear()
        self._deadlines.clear()
        self._queue.clear()

    def _forget(self, sequence: int) -> None:
        self.deliveries.pop(sequence, None)
        self._own_ns.pop(sequence, None)
        self._delivered_again_ns.pop(sequence, None)
        self._waits_since_ns.pop(sequence, None)
        self.exhausted.discard(sequence)
        self._queue.discard(sequence)
        self._nakked.discard(sequence)

    def _raise_floor_to_lowest(self) -> None:
        """Raise the ack floor to just before the lowest pending message."""
        lowest = self._runs.lowest(self.pending)
        self.floor_consumer = self.pending[lowest] - 1
        self.floor_stream = lowest - 1

    def _raise_floor_to_delivered(self) -> None:
        self.floor_consumer = self.delivered_consumer
        self.floor_stream = self.delivered_stream
        self._runs.clear()


class DeliveryRun:
    """Messages delivered for the first time together; sequences ascend within a run and from run to run."""

    __slots__ = ("delivered_ns", "sequences")

    def __init__(self, sequences: list[int], delivered_ns: int) -> None:
        self.sequences = sequences
        self.delivered_ns = delivered_ns


class DeliveryRuns:
    """All runs with pending messages, oldest first; which of their messages are pending is known to the ack tracker.

    Attributes:
        tracked: how many sequences the runs hold, pending or not.
    """

    __slots__ = ("_front", "_old", "_timed", "tracked")

    def __init__(self) -> None:
        self._old: deque[DeliveryRun] = deque()  # their wait is over, or each message has its own deadline
        self._timed: deque[DeliveryRun] = deque()
        self._front = 0  # the place in the first run up to which nothing is pending
        self.tracked = 0

    def __iter__(self) -> Iterator[DeliveryRun]:
        return chain(self._old, self._timed)

    def add(self, sequences: list[int], delivered_ns: int) -> None:
        """Append a run; its sequences are above all others."""
        self._timed.append(DeliveryRun(sequences, delivered_ns))
        self.tracked += len(sequences)

    def replace(self, sequences: list[int]) -> None:
        """Replace all runs by one with these sequences and no deadline."""
        self.clear()
        if sequences:
            self._old.append(DeliveryRun(sequences, 0))
            self.tracked = len(sequences)

    def clear(self) -> None:
        """Drop all runs."""
        self._old.clear()
        self._timed.clear()
        self._front = self.tracked = 0

    def delivered_ns(self, sequence: int) -> int:
        """Return when a message was first delivered; 0 when unknown."""
        # Runs ascend: the last one that begins at or before the sequence has it.
        for runs in (self._timed, self._old):
            for run in reversed(runs):
                if run.sequences[0] <= sequence:
                    return run.delivered_ns
        return 0

    @property
    def waits_since_ns(self) -> int | None:
        """When the first run was delivered whose wait is not over; None when there is none."""
        return self._timed[0].delivered_ns if self._timed else None

    def expire(self, delivered_ns: int) -> list[int]:
        """End the wait of the runs that were delivered up to that time, and return their sequences."""
        due: list[int] = []
        while self._timed and self._timed[0].delivered_ns <= delivered_ns:
            run = self._timed.popleft()
            due += run.sequences
            self._old.append(run)
        return due

    def lowest(self, pending: Mapping[int, int]) -> int:
        """Return the lowest pending sequence, and drop the runs before it; at least one must be pending."""
        while True:
            runs = self._old or self._timed
            sequences = runs[0].sequences
            for index in range(self._front, len(sequences)):
                if sequences[index] in pending:
                    self._front = index
                    return sequences[index]
            runs.popleft()
            self.tracked -= len(sequences)
            self._front = 0

    def take_up_to(self, sequence: int, pending: Mapping[int, int]) -> list[int]:
        """Return the pending sequences up to this one, ascending, and drop their runs."""
        taken: list[int] = []
        while runs := self._old or self._timed:
            sequences = runs[0].sequences
            end = bisect_right(sequences, sequence)
            taken += filter(pending.__contains__, sequences[self._front : end])
            if end < len(sequences):
                self._front = max(self._front, end)
                break
            runs.popleft()
            self.tracked -= len(sequences)
            self._front = 0
        return taken

    def sweep(self, pending: Mapping[int, int]) -> None:
        """Drop sequences that are no longer pending; pays off when most are not."""
        self.tracked = 0
        for runs in (self._old, self._timed):
            for run in runs:
                run.sequences = [sequence for sequence in run.sequences if sequence in pending]
                self.tracked += len(run.sequences)
            living = [run for run in runs if run.sequences]
            runs.clear()
            runs.extend(living)
        self._front = 0


# Stale heap entries that are always tolerated: a clean-up for fewer costs more than it frees.


class MessageDeadlines:
    """A heap of deadlines with lazy deletion.

    Attributes:
        times_ns: deadline of each sequence; always the same dictionary. Deleting an entry drops the deadline.
    """

    __slots__ = ("_heap", "times_ns")

    def __init__(self) -> None:
        self.times_ns: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # some entries are stale

    def set(self, sequence: int, deadline_ns: int) -> None:
        """Set or move a message's deadline."""
        self.times_ns[sequence] = deadline_ns
        heappush(self._heap, (deadline_ns, sequence))
        if len(self._heap) > 2 * len(self.times_ns) + _STALE_MIN:
            self._heap = [(deadline_ns, sequence) for sequence, deadline_ns in self.times_ns.items()]
            heapify(self._heap)

    @property
    def next_ns(self) -> int:
        """The first deadline; 0 = none."""
        heap, times_ns = self._heap, self.times_ns
        while heap and times_ns.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def take_due(self, now_ns: int) -> list[int]:
        """Remove and return the messages whose deadline has passed."""
        due: list[int] = []
        heap, times_ns = self._heap, self.times_ns
        while heap and heap[0][0] <= now_ns:
            deadline_ns, sequence = heappop(heap)
            if times_ns.get(sequence) == deadline_ns:
                del times_ns[sequence]
                due.append(sequence)
        return due

    def clear(self) -> None:
        """Drop all deadlines."""
        self._heap.clear()
        self.times_ns.clear()


class RedeliveryQueue:
    """A queue whose members can be removed anywhere; one that is put again goes to the end.

    Attributes:
        members: the sequences in the queue, in order; always the same dictionary.
    """

    __slots__ = ("members",)

    def __init__(self) -> None:
        # Unlike a plain dictionary, it finds its first key at once after many others were removed.
        self.members: OrderedDict[int, None] = OrderedDict()

    def put(self, sequences: Iterable[int]) -> None:
        """Append sequences; those in the queue keep their places."""
        self.members.update(dict.fromkeys(sequences))

    def head(self) -> int | None:
        """Return the head without removing it."""
        return next(iter(self.members), None)

    def take(self) -> int | None:
        """Remove and return the head."""
        return self.members.popitem(last=False)[0] if self.members else None

    def discard(self, sequence: int) -> None:
        """Remove a sequence if it is in the queue."""
        self.members.pop(sequence, None)

    def clear(self) -> None:
        """Remove all."""
        self.members.clear()
