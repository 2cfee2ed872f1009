"""The moment at which the command was typed, from which durations such as `--deliver 2m` count."""

from __future__ import annotations

import time

_began_ns = 0


def began() -> None:
    """Note that the process of the command has begun.

    Python had to start before this is called. It spends that time computing, so it is about the CPU time so far.
    """
    global _began_ns
    _began_ns = time.time_ns() - time.process_time_ns()


def typed_at_ns() -> int:
    """Return when the command was typed; now, where there is no process of its own."""
    return _began_ns or time.time_ns()
