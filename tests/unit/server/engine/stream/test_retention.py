"""Retention by interest: which consumers want a subject, and what a change of consumers costs."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.stream import StreamConfig
from jetlake.protocol.subjects import matches, overlaps
from jetlake.server.engine.stream import retention as module
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.memory_store import MemoryStore
from jetlake.store.steps import finish


class Unvisited(dict):
    """Consumers that must not be gone through."""

    def values(self):
        raise AssertionError("all consumers were looked at")


class Interested:
    """A consumer that counts how often it is asked about a subject."""

    passed_sequence = 0

    def __init__(self, *filters, **config):
        self.asked = 0
        self.read(*filters, **config)

    def read(self, *filters, **config):
        self.config = ConsumerConfig(filter_subjects=filters, **config)

    def wants(self, subject):
        self.asked += 1
        return any(matches(pattern.encode(), subject) for pattern in self.config.filters or (">",))


@pytest.fixture
def retention():
    return make_retention()


def make_retention():
    stream = SimpleNamespace(
        store=MemoryStore(),
        services=None,
        consumers=Unvisited({"c": None}),
        storage=SimpleNamespace(missing=set()),
        config=StreamConfig(name="S"),
    )
    return Retention(stream)


def test_neither_a_subject_nor_a_change_costs_a_look_at_all_consumers(retention):
    consumers = [Interested(f"s.{number}.*") for number in range(1000)]
    for consumer in consumers:
        retention.add(consumer)
    assert retention.interested(b"s.7.x") == (consumers[7],)
    retention.discard(consumers[7])
    assert retention.interested(b"s.7.x") == ()
    assert not any(consumer.asked for consumer in consumers)


FILTERS = st.lists(st.sampled_from(["s.a", "s.*", "s.>", "*.a", "s.a.b", "t.*", ">"]), unique=True, max_size=4)
SUBJECTS = [b"s.a", b"s.b", b"s.a.b", b"t.a", b"u"]


@given(st.lists(st.tuples(FILTERS, FILTERS | st.none()), max_size=6), st.integers(0, 3))
def test_those_are_interested_whose_filters_match(changes, filters_max):
    """Filters come, change and go, of consumers with few and with many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FILTERS_MAX", filters_max)
        retention, consumers = make_retention(), []
        for first, then in changes:
            consumer = Interested(*first)
            retention.add(consumer)
            if then is None:
                retention.discard(consumer)
            else:
                consumer.read(*then)
                retention.add(consumer)
                consumers.append(consumer)
        for subject in SUBJECTS:
            interested = retention.interested(subject)
            assert len(interested) == len(set(interested))
            assert set(interested) == {consumer for consumer in consumers if consumer.wants(subject)}


@given(st.lists(FILTERS, max_size=5), FILTERS, st.integers(0, 3))
def test_a_rival_is_found_where_there_is_one(known, filters, filters_max):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FILTERS_MAX", filters_max)
        retention = make_retention()
        consumers = [Interested(*each) for each in known]
        for consumer in [*consumers, copying := Interested(direct=True, deliver_subject="d")]:
            retention.add(consumer)
        rivals = finish(retention.rivals(None, tuple(filters)))
        assert copying not in rivals
        for own in (None, *consumers):
            found = finish(retention.rivals(own, tuple(filters)))
            true = [other for other in consumers if other is not own and _overlap(other.config.filters, filters)]
            assert own not in found
            assert any(_overlap(rival.config.filters, filters) for rival in found) == bool(true)


def _overlap(some, others):
    return any(overlaps(a.encode(), b.encode()) for a in some or (">",) for b in others or (">",))
