"""Timers run when due, in order, once; cancelled ones never."""

import pytest

from jetlake.server.engine.core.timers import Timers


def test_what_is_due_runs_in_the_order_of_deadlines():
    timers, ran = Timers(), []
    for deadline in (30, 10, 20, 40):
        timers.schedule(deadline, lambda _, deadline=deadline: ran.append(deadline))
    assert timers.next_ns == 10
    assert timers.run_due(30) == 3
    assert ran == [10, 20, 30]
    assert timers.next_ns == 40
    assert len(timers) == 1


def test_a_cancelled_timer_never_runs():
    timers, ran = Timers(), []
    timer = timers.schedule(10, lambda _: ran.append("cancelled"))
    timers.schedule(20, lambda _: ran.append("kept"))
    timers.cancel(timer)
    timers.cancel(timer)
    timers.cancel(None)
    assert len(timers) == 1
    assert timers.next_ns == 20
    timers.run_due(100)
    assert ran == ["kept"]
    assert timers.next_ns is None


def test_a_callback_may_cancel_a_timer_that_is_due_too():
    timers, ran = Timers(), []
    timers.schedule(10, lambda _: timers.cancel(second))
    second = timers.schedule(11, lambda _: ran.append("second"))
    assert timers.run_due(50) == 1
    assert ran == []
    assert len(timers) == 0


def test_what_a_callback_schedules_waits_for_the_next_run():
    timers, ran = Timers(), []

    def again(_):
        ran.append("x")
        timers.schedule(0, again)

    timers.schedule(0, again)
    assert timers.run_due(5) == 1
    assert timers.run_due(5) == 1
    assert len(timers) == 1
    assert ran == ["x", "x"]


def test_a_failing_callback_leaves_the_rest_scheduled():
    timers, ran = Timers(), []
    timers.schedule(1, lambda _: 1 / 0)
    timers.schedule(2, lambda _: ran.append("rest"))
    with pytest.raises(ZeroDivisionError):
        timers.run_due(5)
    assert timers.run_due(5) == 1
    assert ran == ["rest"]


def test_cancelled_timers_do_not_pile_up():
    timers = Timers()
    keep = timers.schedule(10**12, lambda _: None)
    for deadline in range(10_000):
        timers.cancel(timers.schedule(10**9 + deadline, lambda _: None))
    assert len(timers._heap) < 200
    assert timers.next_ns == keep.deadline_ns


def test_the_next_deadline_is_known_whatever_a_callback_schedules_or_cancels():
    timers = Timers()
    later = timers.schedule(60, lambda _: None)
    timers.schedule(10, lambda _: timers.cancel(later))
    timers.schedule(11, lambda _: timers.schedule(5, lambda _: None))
    timers.run_due(20)
    assert timers.next_ns == 5
    timers.run_due(20)
    assert timers.next_ns is None


def test_what_is_left_when_there_is_no_more_time_runs_next():
    timers, ran = Timers(), []
    for number in range(5):
        timers.schedule(10, lambda _, number=number: ran.append(number))
    left = iter([True, False])
    assert timers.run_due(10, lambda: next(left)) == 2
    assert ran == [0, 1]
    assert timers.next_ns == 10
    assert timers.run_due(10) == 3
    assert ran == [0, 1, 2, 3, 4]


def test_cancelled_timers_do_not_pile_up_and_the_others_run_in_order():
    timers, ran = Timers(), []
    kept = [timers.schedule(deadline, lambda now_ns: ran.append(now_ns)) for deadline in range(1000, 0, -10)]

    def cancel_all_but_the_last(_now_ns):
        for timer in kept[:-1]:
            timers.cancel(timer)

    timers.schedule(5, cancel_all_but_the_last)
    others = [timers.schedule(2000, ran.append) for _ in range(5000)]
    for timer in others[1:]:
        timers.cancel(timer)
    assert len(timers._heap) < 2 * len(timers) + 100
    assert timers.run_due(10) == 2
    assert ran == [10]
    assert timers.next_ns == 2000 and len(timers) == 1
    assert len(timers._heap) <= 2 * len(timers) + 64
    assert timers.run_due(2000) == 1
