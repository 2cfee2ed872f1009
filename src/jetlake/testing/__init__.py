"""For tests that use jetlake: a clock that is moved by hand, helpers that fill streams, and a pytest plugin."""

from __future__ import annotations

from jetlake.testing.clock import ManualClock
from jetlake.testing.messages import fill, make_stream

__all__ = ["ManualClock", "fill", "make_stream"]


def __dir__() -> list[str]:
    return sorted(__all__)
