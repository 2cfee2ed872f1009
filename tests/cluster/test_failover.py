"""A replicated stream whose leader is killed, with every kind of publisher and reader; more in `full_failover.py`."""

import jetlake
from tests.support.patient_client import PatientClient, lose_quorum
from tests.support.workload import STREAM


async def test_publishers_and_readers_survive_the_kill_of_a_leader(cluster, workload):
    js = (await workload.connect()).jetstream()
    await cluster.kill_leader(js, STREAM, down_s=0.5)
    await workload.progress()
    await cluster.step_down(js, STREAM)
    await workload.progress()
    await workload.finish()
    assert workload.errors == []


async def test_a_client_outlasts_a_lost_quorum_and_a_frozen_leader(cluster):
    async with PatientClient().reading(cluster.urls, expires=4, idle_heartbeat=2) as client:
        await client.publish()
        await lose_quorum(cluster, client, down_s=14)
        # The end of silence is told, not raised.
        assert any(getattr(error, "code", 0) == 503 or isinstance(error, TimeoutError) for error in client.errors)
        leader = await cluster.leader_of(client.js, "S")
        other = next(node for node in cluster.nodes if node is not leader)
        async with jetlake.connect(other.url, discover_servers=False) as publisher:
            leader.pause()
            try:
                ack = await publisher.jetstream(timeout=1).publish("s.2", b"frozen", msg_id="frozen")
            finally:
                leader.resume()
        assert not ack.duplicate
        await cluster.ready()
        await (await cluster.leader_of(client.js, "S")).kill()
        async with client.js.batch() as batch:
            for number in range(3):
                batch.publish("s.3", b"batch %d" % number)
        assert batch.ack.count == 3
        await client.publish()
