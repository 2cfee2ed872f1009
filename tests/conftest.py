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
# Fixtures that start a nats-server beside the server under test.
WITH_NATS_SERVER = {"ends", "operator_server", "other_server"}


def pytest_collection_modifyitems(items):
    for item in items:
        if _needs_nats_server(item):
            item.add_marker(pytest.mark.flaky(reruns=1))


def _needs_nats_server(item):
    servers = item.callspec.id if hasattr(item, "callspec") else ""
    if item.path.match("tests/cluster/test_*.py") or any(kind in servers for kind in NOT_OURS):
        return True
    # A pair compares both servers, and the hub of an edge is a nats-server.
    helpers, fixtures = vars(item.module), set(item.fixturenames)
    is_compared = "Pair" in helpers and "start" not in fixtures
    return is_compared or "Edge" in helpers or bool(WITH_NATS_SERVER & fixtures)
