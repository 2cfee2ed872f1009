"""A replicated stream whose leader is killed, with every kind of publisher and reader; more in `full_failover.py`."""

from workload import STREAM


async def test_publishers_and_readers_survive_the_kill_of_a_leader(cluster, workload):
    js = (await workload.connect()).jetstream()
    await cluster.kill_leader(js, STREAM, down_s=0.5)
    await workload.progress()
    await cluster.step_down(js, STREAM)
    await workload.progress()
    await workload.finish()
    assert workload.errors == []
