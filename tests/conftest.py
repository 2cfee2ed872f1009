"""For the whole suite: tests that share a costly fixture run in one process when the suite runs in several."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: examples have no deadline, however slow they are.
settings.register_profile("jetlake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("jetlake")

TESTS = Path(__file__).parent
# One Spark session and one browser a run.
_TOGETHER = {"spark", "browser"}


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder, *rest = item.path.relative_to(TESTS).parts
        item.add_marker(pytest.mark.xdist_group(folder if folder in _TOGETHER else "/".join((folder, *rest))))
