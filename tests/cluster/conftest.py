"""Clusters of three nats-servers, with publishers and readers at work."""

import pytest

from tests.support.nats_cluster import Cluster
from tests.support.workload import Workload


@pytest.fixture
async def cluster():
    """A cluster that just came up."""
    cluster = Cluster()
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.discard()


@pytest.fixture
async def workload(cluster, request):
    """Publishers and readers at work; a test's parameter is how they connect and how long they wait."""
    workload = Workload(cluster.urls, **getattr(request, "param", {}))
    try:
        await workload.start()
        await workload.progress()
        yield workload
    finally:
        await workload.stop()
