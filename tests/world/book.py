"""What a history promised to its clients: what they were told, and when; checked against what is there at the end."""

import contextlib
from collections import Counter

from jetlake.errors import ApiError

__all__ = ["BrokenPromiseError", "Publishes", "Reads"]


_STORE_FAILED = 10077
_NOT_WRITTEN = "cannot write to the stream's log"
"""Otherwise a message is written, and what failed is its sync, or that of its id: a later sync may make it visible."""


class BrokenPromiseError(AssertionError):
    """A promise of the product does not hold."""


def none(what, found):
    """Raise with examples when there are any."""
    found = sorted(found, key=repr)
    if found:
        raise BrokenPromiseError(f"{len(found)} {what}, such as {found[:5]}")


class Publishes:
    """Messages published to one stream, by number.

    Attributes:
        acknowledged: the sequence by the message's number.
        unknown: numbers of which nobody was told what became of them.
        refused: numbers that the server refused.
    """

    def __init__(self):
        self.acknowledged = {}
        self.unknown = set()
        self.refused = set()

    def begin(self, number):
        self.unknown.add(number)

    def acked(self, number, sequence):
        self.unknown.discard(number)
        known = self.acknowledged.setdefault(number, sequence)
        if known != sequence:
            raise BrokenPromiseError(f"message {number} was acknowledged as {known} and as {sequence}")

    @contextlib.contextmanager
    def may_refuse(self, number):
        """Note a message as refused when the server says so; the error goes on to the caller."""
        try:
            yield
        except ApiError as error:
            if error.err_code != _STORE_FAILED or _NOT_WRITTEN in error.description:
                self.unknown.discard(number)
                self.refused.add(number)
            raise

    def check(self, stored, *, kept=True):
        """Compare with what is stored: (sequence, number) in order.

        Args:
            kept: everything that was acknowledged is still there.
        """
        times = Counter(number for _, number in stored)
        none("messages are stored more than once", [number for number, count in times.items() if count > 1])
        none("refused messages are stored", self.refused & set(times))
        none("stored messages were never published", set(times) - self.refused - self.unknown - set(self.acknowledged))
        places = {number: sequence for sequence, number in stored}
        none(
            "messages are stored elsewhere than acknowledged",
            [
                (number, sequence, places[number])
                for number, sequence in self.acknowledged.items()
                if number in places and places[number] != sequence
            ],
        )
        if kept:
            none("acknowledged messages are gone", set(self.acknowledged) - set(places))
        sequences = [sequence for sequence, _ in stored]
        if sequences != sorted(set(sequences)):
            raise BrokenPromiseError("the stream's sequences are out of order")


class Reads:
    """What the readers of one consumer were handed, and what they settled.

    Attributes:
        confirmed: sequences whose ack was confirmed, and when.
        seen: sequences that somebody was handed.
    """

    def __init__(self):
        self.confirmed = {}
        self.seen = {}

    def confirm(self, sequence, now_ns):
        self.confirmed.setdefault(sequence, now_ns)

    def saw(self, sequence, payload, asked_ns):
        """Note a message that somebody was handed who had asked for messages at that time."""
        if self.confirmed.get(sequence, asked_ns) < asked_ns:
            raise BrokenPromiseError(f"sequence {sequence} was delivered again after its ack was confirmed")
        known = self.seen.setdefault(sequence, payload)
        if known != payload:
            raise BrokenPromiseError(f"sequence {sequence} was {known!r} and is {payload!r}")

    def check_again(self, sequences):
        """Compare with what the consumer still delivered once the world was calm."""
        none("confirmed acknowledgements were undone", set(self.confirmed) & set(sequences))
