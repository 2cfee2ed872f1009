"""Replicated streams while servers die, freeze and are cut off, at length: `make test-cluster` runs it.

Nothing that was acknowledged is lost, nothing is stored twice, ordered reads have no gap, nobody stays silent, and no
error reaches a user for what resolves itself.
"""

import asyncio
import os

import pytest

import jetlake
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import ObjectError, ObjectNotFoundError
from tests.support.dashboard_pages import is_behind, shown
from tests.support.patient_client import PatientClient, lose_quorum
from tests.support.workload import STREAM

KILLS = int(os.environ.get("CLUSTER_KILLS", "20"))


async def test_the_kills_of_leaders(cluster, workload):
    js = (await workload.connect()).jetstream()
    for _ in range(KILLS):
        await cluster.kill_leader(js, STREAM, down_s=0.5)
        await workload.progress()
    await workload.finish()
    assert workload.errors == []


async def test_a_rolling_restart(cluster, workload):
    await cluster.restart_one_by_one()
    await workload.progress()
    await workload.finish()
    assert workload.errors == []


# A server that is there and does nothing is noticed by pings, and given up by calls when their time is over.
PATIENT = {"timeout": 60, "ping_interval": 1, "on_missed_heartbeat": "continue"}
patient = pytest.mark.parametrize("workload", [PATIENT], ids=["patient"], indirect=True)


def unexpected(errors):
    """The errors but those that readers report while they wait: silence, and a consumer without a leader for long."""
    waiting = ("HeartbeatMissedError", "err_code 10008", "no answer on '$JS.API.CONSUMER.INFO")
    return [
        error for error in errors if not (error.startswith("on_error: ") and any(each in error for each in waiting))
    ]


@patient
async def test_a_leader_that_freezes(cluster, workload):
    """Its sockets stay open, so that only silence tells; clients connected to it notice by their pings."""
    js = (await workload.connect()).jetstream()
    leader = await cluster.leader_of(js, STREAM)
    leader.pause()
    try:
        await workload.progress_elsewhere()
    finally:
        leader.resume()
    await cluster.ready()
    await workload.progress()
    await workload.finish()
    assert unexpected(workload.errors) == []


@patient
async def test_a_leader_that_is_cut_off(cluster, workload):
    """Its clients stay connected to a server that has no quorum any more, and go on when it is back."""
    js = (await workload.connect()).jetstream()
    leader = await cluster.leader_of(js, STREAM)
    cluster.cut_off(leader)
    try:
        await workload.progress_elsewhere()
    finally:
        cluster.restore(leader)
    await cluster.ready()
    await workload.progress()
    await workload.finish()
    assert unexpected(workload.errors) == []


async def test_a_quorum_that_is_lost_for_long(cluster):
    async with PatientClient().reading(cluster.urls) as client:
        await client.publish()
        await lose_quorum(cluster, client, down_s=100)
        assert client.errors


async def read(store, name):
    """The object's content; a replica that has just started answers before it has caught up."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await store.get(name)
            except (ObjectError, ObjectNotFoundError):
                await asyncio.sleep(0.05)


async def test_objects_and_the_kills_of_leaders(cluster, workload):
    js = (await workload.connect()).jetstream(timeout=30)
    store = await js.create_object_store("O", num_replicas=3)
    content = os.urandom(3 * 1024 * 1024)
    for number in range(3):
        await store.put(f"object-{number}", content)
        await cluster.kill_leader(js, "OBJ_O", down_s=0.2)
        assert await read(store, f"object-{number}") == content


async def test_an_object_that_is_written_while_leaders_are_killed(cluster):
    async with jetlake.connect(cluster.urls) as client:
        js = client.jetstream(timeout=60)
        store = await js.create_object_store("O", num_replicas=3)
        content = os.urandom(16 * 1024 * 1024)
        for number in range(2):
            put = asyncio.create_task(store.put(f"object-{number}", content))
            stored = (await js.stream("OBJ_O")).cached_info.state.messages
            while (await js.stream("OBJ_O")).cached_info.state.messages < stored + 3 and not put.done():
                await asyncio.sleep(0)
            await cluster.kill_leader(js, "OBJ_O", down_s=0.2)
            await put
            assert await read(store, f"object-{number}") == content


async def test_a_replica_that_is_away_is_shown_on_the_dashboard(cluster):
    async with jetlake.connect(cluster.urls) as client:
        js = client.jetstream(timeout=30)
        await js.create_stream("S", subjects=["s.>"], num_replicas=3)
        leader = await cluster.leader_of(js, "S")
        away = next(node for node in cluster.nodes if node is not leader)
        collector = Collector(ServerApi(client), interval_s=0.05)
        await collector.start()
        try:
            await away.kill()
            await shown(collector, lambda page: is_behind(page, away.name))
            away.start()
            await cluster.ready()
            await shown(collector, lambda page: not is_behind(page, away.name))
        finally:
            await collector.stop()
