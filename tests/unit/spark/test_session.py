"""The defaults of a session that scripts ask for."""

import os

import pytest

from jetlake.spark.session import local_defaults


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[2,4]", 2),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", os.cpu_count()),
    ],
)
def test_a_local_shuffle_has_a_partition_for_each_thread(master, partitions):
    assert local_defaults(master)["spark.sql.shuffle.partitions"] == str(partitions)


def test_a_cluster_keeps_its_own_settings():
    assert local_defaults("spark://host:7077") == {}
