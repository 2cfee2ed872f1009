"""A consumer's state from entries of which some are lost: nothing that was delivered in them is forgotten."""

from random import Random

import pytest

from jetlake.store.journal.consumer_state import ConsumerState


def test_a_redelivery_after_a_lost_record_leaves_what_lies_between_uncertain():
    state = ConsumerState(delivered_consumer=40, delivered_stream=20)
    # Lost: 21 to 27 were delivered as 41 to 47.
    state.deliver_again(48, 23, 1, 2)
    assert state.uncertain == [(21, 22)]
    assert state.delivered_stream == 23
    state.deliver_run(49, [28], 2)
    assert state.uncertain == [(21, 22), (24, 27)]


def test_redeliveries_of_older_messages_do_not_hide_that_a_record_is_lost():
    state = ConsumerState(delivered_consumer=40, delivered_stream=20, pending={5: (5, 0, 1)})
    state.deliver_again(48, 5, 1, 2)
    state.deliver_run(49, [28, 29], 2)
    assert state.uncertain == [(21, 27)]


def test_an_acknowledgement_of_what_was_never_seen_delivered_counts():
    state = ConsumerState(delivered_consumer=40, delivered_stream=20)
    state.acknowledge(23, 23)
    assert (state.delivered_stream, state.uncertain) == (23, [(21, 22)])
    state.raise_floor(47, 27)
    assert (state.delivered_consumer, state.delivered_stream) == (47, 27)


def test_gaps_of_a_filter_are_no_lost_records():
    state = ConsumerState()
    state.deliver_run(1, [3, 7], 1)
    state.deliver_again(3, 3, 2, 2)
    state.deliver_run(4, [12], 3)
    assert state.uncertain == []


@pytest.mark.parametrize("seed", range(20))
def test_what_is_uncertain_is_what_nobody_told_of(seed):
    random = Random(seed)
    state = ConsumerState()
    told = set()
    for _ in range(60):
        first = random.randint(1, 200)
        last = first + random.choice([0, 0, 0, 5, 40])
        state.acknowledge(first, last)
        told.update(range(first, last + 1))
    uncertain = [sequence for first, last in state.uncertain for sequence in range(first, last + 1)]
    assert uncertain == [sequence for sequence in range(1, max(told)) if sequence not in told]
