"""Blocking iteration: what the loop's thread brings while other threads take."""

from jetlake.blocking.reading import BlockingIterator


class Fill:
    """A look for more whose result is read while another thread takes all that is there."""

    error = None

    def __init__(self, taking, brought, taken):
        self._taking = taking
        self._brought = brought
        self._taken = taken

    @property
    def value(self):
        if self._taking._taken:
            self._taken += self._taking.next_batch()
        return self._brought


def test_nothing_is_lost_when_a_batch_is_taken_while_the_next_one_comes():
    taken = []
    taking = BlockingIterator(None, None)
    taking._filled(Fill(taking, ["first"], taken))
    taking._filled(Fill(taking, ["second"], taken))
    assert (taken, taking.next_batch()) == (["first"], ["second"])
