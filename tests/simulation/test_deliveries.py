"""A bounded part of the histories in which every frame is foretold, and that one frame too many is noticed.

`make simulate SEED=… STEPS=…` runs as much of them as one likes.
"""

import pytest

from jetlake.server.engine.consumer.ack_tracker import AckTracker, RedeliveryQueue
from jetlake.server.engine.consumer.pull_queue import PullQueue
from tests.simulation.delivery_history import DeliveryHistory

STEPS = 200


# Each was wrong once: 5 lost messages of a work queue with a restart, 9 dropped messages at max_deliver too early, 20
# redelivered in another order, 24 skipped messages when filters changed, 29 left a pull without an answer.
@pytest.mark.parametrize("seed", [5, 9, 20, 24, 29])
def test_every_frame_comes_as_foretold(seed):
    history = DeliveryHistory(seed)
    try:
        history.run(STEPS)
    except AssertionError as error:
        command = f"run_simulation --only deliveries --seed {seed} --steps {STEPS}"
        raise AssertionError(f"{error}\nreplay: python -m tests.simulation.{command}") from error
    assert history.delivered > 20


def find_a_surprise():
    for seed in range(1, 8):
        DeliveryHistory(seed).run(120)


def test_another_order_of_redeliveries_is_noticed(monkeypatch):
    put = RedeliveryQueue.put
    monkeypatch.setattr(RedeliveryQueue, "put", lambda self, sequences: put(self, sorted(sequences, reverse=True)))
    with pytest.raises(AssertionError):
        find_a_surprise()


def test_a_floor_that_stays_is_noticed(monkeypatch):
    monkeypatch.setattr(AckTracker, "_raise_floor_to_lowest", lambda self: None)
    with pytest.raises(AssertionError):
        find_a_surprise()


def test_a_pull_without_an_answer_is_noticed(monkeypatch):
    monkeypatch.setattr(PullQueue, "end_one_shots", lambda self: None)
    with pytest.raises(AssertionError):
        find_a_surprise()
