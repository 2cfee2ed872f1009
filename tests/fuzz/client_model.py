"""What the client fuzz knows of a history: every message published, what became of it, and what readers saw."""

import itertools
import random
import threading

STREAM = "F"


class PromiseError(AssertionError):
    """A promise of the client does not hold."""


class Model:
    """Messages by number. Threads may use it together.

    Attributes:
        acknowledged: numbers whose publish succeeded.
        unknown: numbers whose publish raised or was cut off: stored once at most.
        pending: number and acknowledgement under way, of `publish_async`.
        seen: numbers that the worker's readers were handed.
        ordered: what the ordered read gave, in order.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.acknowledged = set()
        self.unknown = set()
        self.pending = []
        self.seen = set()
        self.ordered = []
        self.counts = {}

    def new(self):
        """The number of the next message; until its publish succeeds nobody knows what becomes of it."""
        number = next(self._numbers)
        self.unknown.add(number)
        return number

    def stored(self, number):
        """Its publish succeeded."""
        with self._lock:
            self.unknown.discard(number)
            self.acknowledged.add(number)

    def count(self, name):
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1

    def check(self, stored, left):
        """Compare with the stream's messages in order, and those that the worker's consumer still gave at the end."""
        times = {}
        for number in stored:
            times[number] = times.get(number, 0) + 1
        _none("acknowledged and not stored", self.acknowledged - set(times))
        _none("stored more than once", {number for number, count in times.items() if count > 1})
        _none("stored and never published", set(times) - self.acknowledged - self.unknown)
        _none("stored, not seen and not there any more", set(times) - self.seen - set(left))
        if self.ordered != stored[: len(self.ordered)]:
            position = next(i for i, pair in enumerate(zip(self.ordered, stored, strict=False)) if pair[0] != pair[1])
            raise PromiseError(f"the ordered read gave {self.ordered[position]} for {stored[position]} at {position}")


def _none(what, numbers):
    if numbers:
        raise PromiseError(f"{len(numbers)} messages {what}, such as {sorted(numbers)[:5]}")
