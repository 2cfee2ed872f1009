"""The defaults of a session that scripts ask for."""

import os
import zipfile
from pathlib import Path

import pyspark
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


def test_the_manager_of_checkpoint_files_is_one_that_spark_has():
    name = local_defaults("local")["spark.sql.streaming.checkpointFileManagerClass"]
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-sql_*.jar")
    with zipfile.ZipFile(jar) as classes:
        assert f"{name.replace('.', '/')}.class" in classes.namelist()
