"""Fixtures for tests that use jetlake: a clock that is moved by hand, a server in the test's own loop."""

from __future__ import annotations

from jetlake.testing.clock import ManualClock

__all__ = ["ManualClock"]
