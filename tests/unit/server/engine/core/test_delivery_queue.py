"""The queue of ready deliverers: none of them is forgotten, whatever becomes of the others."""

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.core.delivery_queue import DeliveryQueue
from jetlake.server.engine.core.timers import Timers


class StillClock:
    def now_ns(self):
        return 1


class Deliverer:
    def __init__(self, name, delivered, error=None):
        self.name, self.delivered, self.error = name, delivered, error

    def deliver(self, _now_ns):
        self.delivered.append(self.name)
        if self.error is not None:
            raise self.error
        return False


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def queue(timers):
    return DeliveryQueue(StillClock(), timers, lambda _text: None)


def test_an_internal_error_of_one_keeps_the_others_ready(queue):
    delivered = []
    for deliverer in (
        Deliverer("first", delivered),
        Deliverer("broken", delivered, ZeroDivisionError()),
        Deliverer("last", delivered),
    ):
        queue.make_ready(deliverer)
    with pytest.raises(ZeroDivisionError):
        queue.run()
    queue.run()
    assert delivered == ["first", "broken", "last"]
    assert not queue.ready


def test_a_store_error_of_one_is_tried_again(queue, timers):
    delivered = []
    refusal = StoreError("read message 1", "no disk")
    for deliverer in (Deliverer("unreadable", delivered, refusal), Deliverer("other", delivered)):
        queue.make_ready(deliverer)
    queue.run()
    assert delivered == ["unreadable", "other"]
    timers.run_due(2_000_000_000)
    assert [deliverer.name for deliverer in queue.ready] == ["unreadable"]
