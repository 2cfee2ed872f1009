"""The parts of the ack tracker: runs, deadlines of one's own, the queue for redelivery; and that none of them grows."""

from jetlake.server.engine.consumer.ack_tracker import DeliveryRuns, MessageDeadlines, RedeliveryQueue


def test_runs_know_what_is_lowest_and_drop_what_is_done():
    runs = DeliveryRuns()
    runs.add([1, 2, 3], 10)
    runs.add([5, 6], 20)
    assert runs.lowest({2: 2, 6: 5}) == 2
    assert runs.tracked == 5
    assert runs.lowest({6: 5}) == 6
    assert runs.tracked == 2
    assert [run.sequences for run in runs] == [[5, 6]]


def test_runs_expire_in_order_and_stay():
    runs = DeliveryRuns()
    runs.add([1, 2], 10)
    runs.add([4], 20)
    assert runs.waits_since_ns == 10
    assert runs.expire(9) == []
    assert runs.expire(10) == [1, 2]
    assert runs.waits_since_ns == 20
    assert [runs.delivered_ns(sequence) for sequence in (1, 2, 4, 9)] == [10, 10, 20, 20]
    assert runs.expire(500) == [4]
    assert runs.waits_since_ns is None
    assert runs.lowest({1: 1}) == 1, "what has expired is still pending"


def test_runs_that_are_replaced_or_swept():
    runs = DeliveryRuns()
    runs.add([1, 2], 10)
    runs.replace([7, 8, 9])
    runs.add([10, 11], 30)
    runs.sweep({8: 1, 11: 2})
    assert ([run.sequences for run in runs], runs.tracked) == ([[8], [11]], 2)
    assert (runs.delivered_ns(8), runs.delivered_ns(11)) == (0, 30)
    runs.replace([])
    assert ([*runs], runs.tracked, runs.delivered_ns(1)) == ([], 0, 0)


def test_deadlines_can_be_moved_and_dropped():
    deadlines = MessageDeadlines()
    for sequence, deadline_ns in ((1, 50), (2, 40), (3, 60), (1, 70), (2, 30)):
        deadlines.set(sequence, deadline_ns)
    assert deadlines.next_ns == 30
    del deadlines.times_ns[2]
    assert deadlines.next_ns == 60
    assert deadlines.take_due(65) == [3]
    assert deadlines.take_due(70) == [1]
    assert (deadlines.next_ns, deadlines.times_ns) == (0, {})


def test_a_deadline_that_is_moved_forever_takes_no_more_room():
    deadlines = MessageDeadlines()
    for number in range(20_000):
        deadlines.set(1, number)
    assert len(deadlines._heap) < 5_000
    assert deadlines.next_ns == 19_999


def test_the_queue_keeps_its_order_when_members_leave():
    queue = RedeliveryQueue()
    queue.put([3, 1, 2])
    queue.discard(3)
    assert queue.head() == 1
    queue.put((3,))
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == [1, 2, 3, None]
    assert not queue.members


def test_a_member_that_is_put_again_keeps_its_place():
    queue = RedeliveryQueue()
    members = queue.members
    queue.put([1, 2])
    queue.put([2, 1, 3])
    assert list(members) == [1, 2, 3]
    queue.clear()
    assert queue.members is members, "whoever looks at the members looks at these"
