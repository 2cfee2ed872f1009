"""Sampled traces: which messages of an account are traced because their trace context says so."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["TraceSampling"]

_SAMPLED = re.compile(rb"\r\ntraceparent:[ \t]*[^-\r\n]*-[^-\r\n]*-[^-\r\n]*-01[ \t]*\r\n", re.IGNORECASE)


class TraceSampling:
    """Chooses messages by their `traceparent`, and of those a share.

    Args:
        destination: the subject of the reports.
        percent: how many of a hundred.
        chance: returns a random number from 0 to 1.
    """

    def __init__(self, destination: bytes, percent: int, chance: Callable[[], float]) -> None:
        self._destination = destination
        self._percent = percent
        self._chance = chance

    def find_destination(self, header: bytes) -> bytes:
        """Return the subject for the report on a message with this header; empty when it is not to be traced."""
        if _SAMPLED.search(header) is None or self._chance() * 100 >= self._percent:
            return b""
        return self._destination
