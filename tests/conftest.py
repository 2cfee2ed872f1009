"""For the whole suite: how property tests run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: examples have no deadline, however slow they are.
settings.register_profile("jetlake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("jetlake")
