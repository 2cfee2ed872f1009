"""When a consumer that nobody uses goes."""

from jetlake.server.engine.consumer.consumer import Inactivity


def test_without_a_threshold_it_never_goes():
    idleness = Inactivity(5, 100)
    assert idleness.due_ns == 0
    assert not idleness.is_over(10**18)


def test_use_begins_the_time_anew():
    idleness = Inactivity(5, 100)
    idleness.threshold_ns = 50
    assert idleness.due_ns == 155
    assert not idleness.is_over(154) and idleness.is_over(155)
    idleness.used_ns = 120
    assert idleness.due_ns == 175
    assert not idleness.is_over(174) and idleness.is_over(175)
