"""Retention by interest: what a change of consumers costs."""

from jetlake.model.enums import RetentionPolicy
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.memory_store import MemoryStore
from jetlake.store.steps import finish


class Unvisited(dict):
    """Consumers that must not be gone through."""

    def values(self):
        raise AssertionError("all consumers were looked at")


def test_a_consumer_that_comes_or_goes_does_not_cost_a_look_at_all_the_others():
    store = MemoryStore()
    unvisited = Unvisited({"c": None})
    retention = Retention(
        RetentionPolicy.LIMITS, store, unvisited, set(), lambda _soon: None, finish, lambda _error: None
    )
    retention.on_consumers_changed()
