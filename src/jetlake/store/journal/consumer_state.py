"""Where a consumer stands: what survives a restart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

import msgspec

__all__ = ["ConsumerState"]


class ConsumerState(msgspec.Struct, kw_only=True):
    """The position, the floor, and every message that is neither new nor done.

    Attributes:
        delivered_consumer, delivered_stream: the last consumer sequence, and the highest stream sequence handed out.
        floor_consumer, floor_stream: everything up to here is acknowledged.
        pending: stream sequence to consumer sequence of the first delivery, time of the last, and their number.
        deliveries: delivery counts of messages that were redelivered or are exhausted; one that
            is here and not pending was delivered as often as allowed.
        uncertain: stream sequences, ascending, as (first, last), whose deliveries were in a damaged record:
            they count as delivered and are neither acknowledged nor known to be pending, so that they have to be
            delivered again if they are the consumer's.
        lost_track: consumer sequences were skipped: the records of some deliveries are lost.
        latest_ns: when the last delivery was that a record of its own describes; 0 when none does.
    """

    delivered_consumer: int = 0
    delivered_stream: int = 0
    floor_consumer: int = 0
    floor_stream: int = 0
    pending: dict[int, tuple[int, int, int]] = {}
    deliveries: dict[int, int] = {}
    uncertain: list[tuple[int, int]] = []
    lost_track: bool = False
    latest_ns: int = 0

    def deliver_run(self, first_consumer: int, sequences: Iterable[int], time_ns: int) -> None:
        """Apply first deliveries, with consecutive consumer sequences."""
        consumer = first_consumer
        stream = self.delivered_stream
        lost_track = self.lost_track or first_consumer > self.delivered_consumer + 1
        for sequence in sequences:
            if lost_track and sequence > stream + 1:
                self.uncertain.append((stream + 1, sequence - 1))
            lost_track = False
            self.pending[sequence] = (consumer, time_ns, 1)
            stream = max(stream, sequence)
            consumer += 1
        self.lost_track = False
        self.latest_ns = max(self.latest_ns, time_ns)
        self.delivered_consumer = max(self.delivered_consumer, consumer - 1)
        self.delivered_stream = stream

    def deliver_again(self, consumer: int, sequence: int, time_ns: int, count: int) -> None:
        """Apply another delivery of a message."""
        first = self.pending[sequence][0] if sequence in self.pending else consumer
        self.pending[sequence] = (first, time_ns, count)
        if count > 1:
            self.deliveries[sequence] = count
        if consumer > self.delivered_consumer + 1:
            self.lost_track = True
        self._reach(sequence, is_gap=self.lost_track)
        self.delivered_consumer = max(self.delivered_consumer, consumer)
        self._resolve(sequence)

    def exhaust(self, sequence: int) -> None:
        """Apply the last allowed delivery of a message."""
        if self.pending.pop(sequence, None) is not None:
            self.deliveries.setdefault(sequence, 1)
        self._resolve(sequence)

    def acknowledge(self, first: int, last: int) -> None:
        """Apply acknowledgements."""
        # An acknowledged message must have been delivered: a record is missing.
        self._reach(last, is_gap=True)
        if last - first > len(self.pending) + len(self.deliveries):
            for held in (self.pending, self.deliveries):
                for sequence in [sequence for sequence in held if first <= sequence <= last]:
                    del held[sequence]
        else:
            for sequence in range(first, last + 1):
                self.pending.pop(sequence, None)
                self.deliveries.pop(sequence, None)
        if self.uncertain:
            self._resolve_range(first, last)

    def move(self, consumer: int, stream: int) -> None:
        """Apply a position: deliveries have come to it, and none before it is pending."""
        self.delivered_consumer, self.delivered_stream = consumer, stream

    def raise_floor(self, consumer: int, stream: int) -> None:
        """Apply an ack floor: everything up to it is acknowledged."""
        self.floor_consumer, self.floor_stream = consumer, stream
        if stream > self.delivered_stream:
            self.delivered_consumer, self.delivered_stream = max(self.delivered_consumer, consumer), stream

    def _reach(self, sequence: int, *, is_gap: bool) -> None:
        """Deliveries came at least to here; in a gap, those in between are not known."""
        if is_gap and sequence > self.delivered_stream + 1:
            self.uncertain.append((self.delivered_stream + 1, sequence - 1))
        self.delivered_stream = max(self.delivered_stream, sequence)

    def _resolve(self, sequence: int) -> None:
        if self.uncertain:
            self._resolve_range(sequence, sequence)

    def _resolve_range(self, first: int, last: int) -> None:
        """Take sequences out of the uncertain ones: their outcome is known."""
        uncertain = self.uncertain
        start = stop = bisect_left(uncertain, first, key=itemgetter(1))
        left: list[tuple[int, int]] = []
        while stop < len(uncertain) and uncertain[stop][0] <= last:
            low, high = uncertain[stop]
            if low < first:
                left.append((low, first - 1))
            if high > last:
                left.append((last + 1, high))
            stop += 1
        uncertain[start:stop] = left
