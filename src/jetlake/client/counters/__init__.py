"""Counters: streams whose messages are increments, and whose last message of a subject is the sum."""

from __future__ import annotations

from jetlake.client.counters.counters import CounterEntry, Counters

__all__ = ["CounterEntry", "Counters"]


def __dir__() -> list[str]:
    return sorted(__all__)
