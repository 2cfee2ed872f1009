"""A bounded part of the histories of mirrors and sources, and that a broken promise is noticed at all."""

import pytest
from copying_history import CopyingHistory

from jetlake.server.engine.sourcing.mirror import Mirror
from jetlake.server.engine.sourcing.positions import Positions

pytestmark = pytest.mark.usefixtures("small_segments")

STEPS = 150


# Those but the first broke promises once: what a power cut took before it was safe, from the end or out of the middle.
@pytest.mark.parametrize("seed", [1, 9, 34, 40, 44])
def test_a_history_keeps_every_promise(seed):
    history = CopyingHistory(seed)
    try:
        history.run(STEPS)
    except AssertionError as error:
        raise AssertionError(f"{error}\nreplay: CopyingHistory({seed}).run({STEPS})") from error
    assert history.published > 50 and len(history.copied) > 50


def find_a_broken_promise():
    for seed in range(21, 35):  # Many of them break each of these promises, and always the same ones.
        CopyingHistory(seed).run(STEPS)


def test_a_position_that_is_forgotten_is_noticed(monkeypatch):
    def read_nothing(self, *_):
        yield
        return {}

    monkeypatch.setattr(Positions, "_read_headers", read_nothing)
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_position_that_is_not_saved_is_noticed(monkeypatch):
    monkeypatch.setattr(Positions, "_may_forget", lambda self, first, last: True)
    monkeypatch.setattr(Positions, "save", lambda self: None)
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_copy_that_is_skipped_is_noticed(monkeypatch):
    start = Mirror.start
    monkeypatch.setattr(Mirror, "start", lambda self: start(self)._replace(sequence=start(self).sequence + 1))
    with pytest.raises(AssertionError):
        find_a_broken_promise()
