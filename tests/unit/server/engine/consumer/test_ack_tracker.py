"""Floors, counts, deadlines and redelivery, step by step and against a slow and obvious model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetlake.model.consumer import ConsumerConfig
from jetlake.server.engine.consumer.ack_tracker import AckTracker

SECOND = 1_000_000_000
GRACE = 1_000_000


def tracker(**options):
    return AckTracker(ConsumerConfig.of(**{"ack_policy": "explicit", "ack_wait": 30, "max_deliver": None, **options}))


def floors(acks):
    return (acks.floor_consumer, acks.floor_stream)


def delivered(acks):
    return (acks.delivered_consumer, acks.delivered_stream)


def redeliver(acks, now_ns):
    sequence = acks.take_redelivery()
    return sequence, acks.deliver_again(sequence, now_ns)


def test_the_numbers_of_the_deep_dive_as_servers_count_them_today():
    acks = tracker()
    acks.deliver_run([1], 0)
    assert acks.ack(1, 1)
    assert (delivered(acks), floors(acks)) == ((1, 1), (1, 1))
    acks.deliver_run([2], 0)
    assert (delivered(acks), floors(acks), len(acks.pending)) == ((2, 2), (1, 1), 1)
    for count in (2, 3):
        acks.expire(acks.next_deadline_ns)
        assert redeliver(acks, 0) == (2, count)
    assert (delivered(acks), len(acks.deliveries)) == ((4, 2), 1)
    assert acks.ack(2, 4)
    assert (delivered(acks), floors(acks), acks.pending, acks.deliveries) == ((4, 2), (4, 2), {}, {})


def test_floors_out_of_order():
    acks = tracker()
    acks.deliver_run([1, 2, 3, 4, 5], 0)
    for now_ns in (100 * SECOND, 200 * SECOND):
        acks.expire(now_ns)
        assert [redeliver(acks, now_ns)[0] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert delivered(acks) == (15, 5)
    acks.ack(3, 13)
    assert floors(acks) == (0, 0)
    acks.ack(1, 11)
    assert floors(acks) == (1, 1)
    acks.ack(2, 12)
    assert floors(acks) == (3, 3)


def test_floors_jump_gaps_of_a_filtered_consumer():
    acks = tracker()
    acks.deliver_run([10, 1_000_000, 2_000_000], 0)
    acks.ack(10, 1)
    assert floors(acks) == (1, 999_999)


def test_an_ack_of_something_not_pending_says_so():
    acks = tracker()
    acks.deliver_run([1, 2], 0)
    assert acks.ack(1, 1)
    assert not acks.ack(1, 1)
    assert floors(acks) == (1, 1)


def test_ack_all_covers_what_came_before():
    acks = tracker()
    acks.deliver_run([1, 2, 5, 9], 0)
    assert acks.ack_all(5, 3) == [1, 2, 5]
    assert (floors(acks), list(acks.pending)) == ((3, 5), [9])
    assert acks.ack_all(2, 2) == []
    assert acks.ack_all(9, 99) == []
    assert acks.ack_all(9, 4) == [9]
    assert (floors(acks), acks.next_deadline_ns) == ((4, 9), 0)


def test_a_run_expires_together_and_in_order():
    acks = tracker()
    acks.deliver_run([1, 2, 3], 0)
    acks.ack(2, 2)
    assert acks.next_deadline_ns == 30 * SECOND + GRACE
    assert acks.expire(30 * SECOND + GRACE - 1) == []
    assert acks.next_redelivery() is None
    acks.expire(30 * SECOND + GRACE)
    assert (acks.queue_length, acks.next_deadline_ns) == (2, 0)
    assert redeliver(acks, 40 * SECOND) == (1, 2)
    assert acks.next_deadline_ns == 70 * SECOND + GRACE
    assert redeliver(acks, 40 * SECOND) == (3, 2)


def test_expired_ones_queue_behind_a_nak():
    acks = tracker()
    acks.deliver_run([1, 2, 3], 0)
    assert acks.nak(3, 3, None, SECOND)
    acks.expire(60 * SECOND)
    assert [acks.take_redelivery() for _ in range(4)] == [3, 1, 2, None]


def test_backoff_replaces_the_ack_wait_and_its_last_entry_stays():
    acks = tracker(backoff=[0.2, 0.6])
    acks.deliver_run([1], 0)
    assert acks.next_deadline_ns == SECOND // 5 + GRACE
    acks.expire(SECOND)
    redeliver(acks, SECOND)
    assert acks.next_deadline_ns == SECOND + 600_000_000 + GRACE
    acks.expire(2 * SECOND)
    redeliver(acks, 2 * SECOND)
    assert acks.next_deadline_ns == 2 * SECOND + 600_000_000 + GRACE


def test_a_changed_ack_wait_counts_for_what_is_pending_but_not_for_what_is_delayed():
    acks = tracker()
    acks.deliver_run([1, 2, 3], 0)
    assert acks.nak(1, 1, None, SECOND)
    redeliver(acks, 2 * SECOND)
    assert acks.nak(2, 2, 100 * SECOND, SECOND)
    acks.configure(ConsumerConfig.of(ack_policy="explicit", ack_wait=5, max_deliver=None))
    acks.deliver_run([4], 3 * SECOND)
    found = []
    while acks.next_deadline_ns:
        now_ns = acks.next_deadline_ns
        acks.expire(now_ns)
        found.append((acks.take_redelivery(), now_ns - GRACE))
    assert found == [(3, 5 * SECOND), (1, 7 * SECOND), (4, 8 * SECOND), (2, 101 * SECOND - GRACE)]


def test_progress_gives_the_full_wait_again():
    acks = tracker()
    acks.deliver_run([1, 2], 0)
    acks.progress(1, 20 * SECOND)
    acks.expire(31 * SECOND)
    assert acks.take_redelivery() == 2
    assert acks.take_redelivery() is None
    assert acks.next_deadline_ns == 50 * SECOND + GRACE


def test_a_nak_with_a_delay_waits_also_when_it_was_queued_already():
    acks = tracker()
    acks.deliver_run([1], 0)
    assert acks.nak(1, 1, None, 0)
    assert acks.nak(1, 1, 5 * SECOND, 0)
    assert acks.next_redelivery() is None
    acks.expire(5 * SECOND)
    assert redeliver(acks, 5 * SECOND) == (1, 2)


@pytest.mark.parametrize(("sequence", "consumer_sequence"), [(7, 7), (1, 0), (1, 99)])
def test_a_nak_of_what_is_not_pending_is_refused(sequence, consumer_sequence):
    acks = tracker()
    acks.deliver_run([1], 0)
    assert not acks.nak(sequence, consumer_sequence, None, 0)


def test_one_delivery_only_is_exhausted_when_the_wait_is_over():
    acks = tracker(max_deliver=1)
    acks.deliver_run([1, 2], 0)
    assert acks.expire(31 * SECOND) == [1, 2]
    assert acks.exhaust(1)
    assert not acks.exhaust(1)
    assert (list(acks.pending), acks.exhausted, floors(acks)) == ([2], {1}, (0, 0))


def test_a_late_ack_of_an_exhausted_message_forgets_it():
    acks = tracker(max_deliver=2)
    acks.deliver_run([1], 0)
    acks.exhaust(1)
    assert acks.deliveries == {1: 1}
    assert not acks.ack(1, 1)
    assert (acks.exhausted, acks.deliveries, floors(acks)) == (set(), {}, (1, 1))


def test_ack_all_takes_whole_runs_and_parts_of_them():
    acks = tracker(ack_policy="all")
    for first in (1, 11, 21):
        acks.deliver_run(list(range(first, first + 10)), first * SECOND)
    acks.lose(3)
    acks.lose(12)
    assert acks.ack_all(5, 5) == [1, 2, 4, 5]
    assert acks.ack_all(14, 14) == [6, 7, 8, 9, 10, 11, 13, 14]
    assert (floors(acks), min(acks.pending), len(acks.pending)) == ((14, 14), 15, 16)
    assert acks.next_deadline_ns == (11 + 30) * SECOND + GRACE
    assert acks.ack_all(30, 30) == list(range(15, 31))
    assert (acks.pending, acks.next_deadline_ns) == ({}, 0)


def test_ack_all_covers_exhausted_messages_too():
    acks = tracker(max_deliver=2)
    acks.deliver_run([1, 2, 3], 0)
    acks.exhaust(2)
    assert acks.ack_all(3, 3) == [1, 2, 3]
    assert not acks.exhausted


def test_a_lost_message_takes_no_other_below_the_floor_with_ack_all():
    acks = AckTracker(ConsumerConfig.of(ack_policy="all", ack_wait=30, max_deliver=1))
    acks.deliver_run([1, 2, 3], 0)
    for sequence in (1, 2, 3):
        acks.exhaust(sequence)
    assert acks.lose(1)
    assert not acks.lose(1)
    assert floors(acks) == (0, 0)
    assert acks.ack_all(2, 2) == [2]
    assert acks.lose(3)
    assert (floors(acks), acks.exhausted) == ((3, 3), set())


def test_a_purge_acknowledges_what_is_gone():
    acks = tracker()
    acks.deliver_run([1, 2, 3, 4], 0)
    acks.nak(2, 2, None, 0)
    assert acks.forget_missing(7, None) == [1, 2, 3, 4]
    assert (delivered(acks), floors(acks), acks.queue_length) == ((4, 6), (4, 6), 0)


def test_a_filtered_purge_leaves_the_rest_pending():
    acks = tracker()
    acks.deliver_run([1, 2, 3], 0)
    assert acks.forget_missing(1, lambda sequence: sequence == 2) == [2]
    assert (list(acks.pending), floors(acks)) == ([1, 3], (2, 0))


def test_a_changed_deliver_subject_sends_everything_again():
    acks = tracker()
    acks.deliver_run([1, 2, 3], 0)
    acks.nak(3, 3, None, 0)
    acks.redeliver_all()
    assert [acks.take_redelivery() for _ in range(4)] == [3, 1, 2, None]


def test_a_restart_keeps_counts_floors_and_deadlines():
    acks = tracker(max_deliver=5)
    acks.deliver_run([1, 2, 3, 4], 0)
    acks.ack(1, 1)
    acks.nak(3, 3, None, 0)
    redeliver(acks, 10 * SECOND)
    acks.exhaust(4)
    again = tracker(max_deliver=5)
    again.restore(delivered(acks), floors(acks), acks.pending_state(), acks.deliveries)
    assert (delivered(again), floors(again)) == (delivered(acks), floors(acks))
    assert (again.pending, again.deliveries, again.exhausted) == ({2: 2, 3: 3}, {3: 2, 4: 1}, {4})
    assert again.pending_state() == acks.pending_state() == {2: (2, 0, 1), 3: (3, 10 * SECOND, 2)}
    assert again.next_deadline_ns == 30 * SECOND + GRACE
    again.expire(30 * SECOND + GRACE)
    assert (again.take_redelivery(), again.take_redelivery()) == (2, None)
    again.expire(40 * SECOND + GRACE)
    assert redeliver(again, 0) == (3, 3)


def test_the_time_of_the_last_delivery_is_known():
    acks = tracker()
    acks.deliver_run([1, 2], 5)
    acks.deliver_run([4, 9], 7)
    acks.expire(31 * SECOND)
    acks.deliver_run([10], 9)
    assert [acks.delivered_ns(sequence) for sequence in (1, 2, 4, 9, 10)] == [5, 5, 7, 7, 9]
    redeliver(acks, 11)
    assert acks.delivered_ns(1) == 11


def test_a_message_at_the_front_that_nobody_acks_costs_no_memory():
    acks = tracker()
    acks.deliver_run([1], 0)
    for start in range(2, 200_002, 500):
        sequences = list(range(start, start + 500))
        acks.deliver_run(sequences, 0)
        for sequence in sequences:
            acks.ack(sequence, sequence)
    assert (len(acks.pending), floors(acks)) == (1, (0, 0))
    assert acks._runs.tracked < 5_000
    acks.ack(1, 1)
    assert floors(acks) == (200_001, 200_001)


class AgainstTheModel(RuleBasedStateMachine):
    """Random operations against dictionaries that are scanned from end to end."""

    def __init__(self):
        super().__init__()
        self.acks = tracker()
        self.now_ns = SECOND
        self.next_sequence = 1
        self.entries = {}  # stream sequence: [consumer sequence, deadline or None when queued]
        self.counts = {}
        self.consumer = 0
        self.floor = (0, 0)
        self.queue = []

    def set_deadline(self, sequence, wait_ns):
        self.entries[sequence][1] = self.now_ns + wait_ns

    @rule(count=st.integers(1, 6), gap=st.integers(0, 3))
    def deliver(self, count, gap):
        sequences = [self.next_sequence + index * (gap + 1) for index in range(count)]
        self.next_sequence = sequences[-1] + 1
        for sequence in sequences:
            self.consumer += 1
            self.entries[sequence] = [self.consumer, self.now_ns + 30 * SECOND + GRACE]
        self.acks.deliver_run(sequences, self.now_ns)

    @rule(data=st.data())
    def ack(self, data):
        sequence = data.draw(st.integers(1, self.next_sequence))
        entry = self.entries.pop(sequence, None)
        consumer_sequence = entry[0] if entry else 0
        self.counts.pop(sequence, None)
        if sequence in self.queue:
            self.queue.remove(sequence)
        if not self.entries:
            self.floor = (self.consumer, self.next_sequence - 1)
        elif consumer_sequence == self.floor[0] + 1:
            lowest = min(self.entries)
            self.floor = (self.entries[lowest][0] - 1, lowest - 1)
        assert self.acks.ack(sequence, consumer_sequence) == (entry is not None)

    @rule(data=st.data())
    def ack_run(self, data):
        sequences = data.draw(st.lists(st.integers(1, self.next_sequence), max_size=8))
        known = [sequence for sequence in dict.fromkeys(sequences) if sequence in self.entries]
        assert self.acks.ack_run(sequences) == known
        firsts = {self.entries.pop(sequence)[0] for sequence in known}
        for sequence in known:
            self.counts.pop(sequence, None)
        self.queue = [sequence for sequence in self.queue if sequence not in known]
        if known and not self.entries:
            self.floor = (self.consumer, self.next_sequence - 1)
        elif self.floor[0] + 1 in firsts:
            lowest = min(self.entries)
            self.floor = (self.entries[lowest][0] - 1, lowest - 1)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), delay=st.sampled_from([None, 0, 7 * SECOND]))
    def nak(self, data, delay):
        sequence = data.draw(st.sampled_from(sorted(self.entries)))
        taken = self.acks.nak(sequence, self.entries[sequence][0], delay, self.now_ns)
        assert taken == (self.entries[sequence][0] > self.floor[0])
        if not taken:
            return
        if delay is not None:
            if sequence in self.queue:
                self.queue.remove(sequence)
            self.set_deadline(sequence, delay)
        elif sequence not in self.queue:
            self.queue.append(sequence)
            self.entries[sequence][1] = None

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def progress(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.entries)))
        self.acks.progress(sequence, self.now_ns)
        if sequence not in self.queue:
            self.set_deadline(sequence, 30 * SECOND + GRACE)

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds):
        self.now_ns += seconds * SECOND
        due = sorted(s for s, (_, deadline) in self.entries.items() if deadline is not None and deadline <= self.now_ns)
        for sequence in due:
            self.entries[sequence][1] = None
        self.queue += due
        assert self.acks.expire(self.now_ns) == []

    @precondition(lambda self: self.queue)
    @rule()
    def redeliver(self):
        assert self.acks.next_redelivery() in self.queue
        sequence = self.acks.take_redelivery()
        self.queue.remove(sequence)
        self.consumer += 1
        self.counts[sequence] = self.counts.get(sequence, 1) + 1
        self.set_deadline(sequence, 30 * SECOND + GRACE)
        assert self.acks.deliver_again(sequence, self.now_ns) == self.counts[sequence]

    @rule()
    def restart(self):
        self.acks.restore(
            (self.acks.delivered_consumer, self.acks.delivered_stream),
            floors(self.acks),
            self.acks.pending_state(),
            dict(self.acks.deliveries),
        )
        # Waits begin anew from the last delivery, also for those that were queued or delayed.
        for sequence, (_, time_ns, _) in self.acks.pending_state().items():
            self.entries[sequence][1] = time_ns + 30 * SECOND + GRACE
        self.queue = []

    @invariant()
    def same_state(self):
        assert self.acks.pending == {sequence: entry[0] for sequence, entry in self.entries.items()}
        assert self.acks.deliveries == self.counts
        assert floors(self.acks) == self.floor
        assert delivered(self.acks) == (self.consumer, self.next_sequence - 1)
        assert self.acks.queue_length == len(self.queue)
        deadlines = [deadline for _, deadline in self.entries.values() if deadline is not None]
        reported = self.acks.next_deadline_ns
        # It may come early, for something that is done by now, but never late.
        assert not deadlines or 0 < reported <= min(deadlines)


TestAgainstTheModel = AgainstTheModel.TestCase
TestAgainstTheModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
