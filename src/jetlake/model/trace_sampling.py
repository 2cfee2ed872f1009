"""Traced messages: the header that asks for a trace, and those whose trace context says that they are sampled."""

from __future__ import annotations

import re
from random import Random

__all__ = ["TRACE_DESTINATION", "TRACE_DISABLED", "TraceSampling"]

TRACE_DESTINATION = b"Nats-Trace-Dest"
"""The header with the subject for the report on a message."""
TRACE_DISABLED = b"trace disabled"
"""In place of that subject: the message is not to be traced any further."""

_SAMPLED = re.compile(rb"\r\ntraceparent:[ \t]*[^-\r\n]*-[^-\r\n]*-[^-\r\n]*-01[ \t]*\r\n", re.IGNORECASE)


class TraceSampling:
    """Chooses messages by their `traceparent`, and of those a share.

    Args:
        destination: the subject of the reports.
        percent: how many of a hundred.
        random: draws the share.
    """

    def __init__(self, destination: bytes, percent: int, random: Random) -> None:
        self._destination = destination
        self._percent = percent
        self._random = random

    def find_destination(self, header: bytes) -> bytes:
        """Return the subject for the report on a message with this header; empty when it is not to be traced."""
        if _SAMPLED.search(header) is None or self._random.random() * 100 >= self._percent:
            return b""
        return self._destination
