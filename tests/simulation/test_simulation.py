"""A bounded part of the simulation: some seeds, and that a broken promise is noticed at all.

`make simulate SEED=… STEPS=…` runs as much of it as one likes.
"""

import pytest

from jetlake.server.engine.consumer.ack_tracker import AckTracker
from jetlake.server.engine.consumer.pull_queue import PullQueue
from tests.simulation.simulation import Simulation

STEPS = 200


# Some broke promises once: 11 by a floor that was not written down, 34 by a message dealt to nobody, 39 by a failed
# flush; 4 and 84 told of removals in danger and of a lost message where a power cut had torn an erasure.
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 11, 34, 39, 84, 1000])
def test_a_history_keeps_every_promise(seed):
    simulation = Simulation(seed)
    try:
        simulation.run(STEPS)
    except AssertionError as error:
        replay = f"make simulate SEED={seed} STEPS={STEPS}"
        raise AssertionError(f"{error}\nreplay: {replay}") from error
    assert simulation.published > 50
    assert simulation.delivered > 50


def test_the_same_seed_gives_the_same_history():
    first, second = Simulation(5), Simulation(5)
    first.run(60)
    second.run(60)
    assert first.steps == second.steps
    assert (first.published, first.delivered) == (second.published, second.delivered)


def find_a_broken_promise():
    for seed in range(1, 15):
        Simulation(seed).run(150)


def test_an_ack_that_is_forgotten_is_noticed(monkeypatch):
    monkeypatch.setattr(AckTracker, "ack", lambda self, sequence, consumer_sequence: sequence in self.pending)
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_run_of_acks_that_is_forgotten_is_noticed(monkeypatch):
    monkeypatch.setattr(AckTracker, "ack_run", lambda self, sequences: [*{*sequences} & self.pending.keys()])
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_message_that_is_skipped_is_noticed(monkeypatch):
    deal = PullQueue.deal

    def deal_too_few(self, count, now_ns):
        dealt = deal(self, count, now_ns)
        return dealt[:-1] if len(dealt) > 2 else dealt

    monkeypatch.setattr(PullQueue, "deal", deal_too_few)
    with pytest.raises(AssertionError):
        find_a_broken_promise()
