"""For the whole suite: how property tests run, and which tests are given a second try."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: examples have no deadline, however slow they are.
settings.register_profile("jetlake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("jetlake")

# What nats-server answers between two of its goroutines, or two of its nodes, is settled eventually: a test that holds
# our knowledge against it may fail once on a busy machine. Such a test is run again, and named in the summary. A test
# of the embedded server has one try.
NOT_OURS = ("nats-server", "cluster")


def pytest_collection_modifyitems(items):
    for item in items:
        servers = item.callspec.id if hasattr(item, "callspec") else ""
        is_of_cluster = item.path.match("tests/cluster/test_*.py")
        if is_of_cluster or any(kind in servers for kind in NOT_OURS):
            item.add_marker(pytest.mark.flaky(reruns=1))
