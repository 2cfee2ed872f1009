"""A stream that moves to a cluster, where it has three copies, and back; more in `full_migrate.py`."""

from tests.support.moving import moved_there_and_back


async def test_a_stream_moves_to_the_cluster_and_back(cluster):
    await moved_there_and_back(cluster)
