"""A Spark session that knows the source, from any script: Spark's Python processes are the ones that run the script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from jetlake.spark.data_source import JetStream
from jetlake.spark.java import check_java
from jetlake.spark.plan.cluster_size import CORES_VARIABLE
from jetlake.spark.unpacked_home import use_unpacked_home

__all__ = ["LOCAL_SETTINGS", "is_local", "local_defaults", "prepare_environment", "session"]

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default starts a process for every file of a checkpoint that it renames: a third of a small micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""A machine of one's own needs no web page and no other address than its own, and renames files itself."""

# Spark sets it for its tasks alone. In the process that follows a stream numpy would start a thread for every core,
# which takes that process a sixth of its start; it computes nothing with them.
_THREADS_VARIABLE = "OMP_NUM_THREADS"

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")


def session(master: str = "", *, app_name: str = "jetlake", conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the Spark session of this process, made when there is none, with `format("jetstream")` registered.

    A new session starts its Python processes with the interpreter of this one, unless `PYSPARK_PYTHON` names another,
    so a virtual environment need not be activated; it tells the source how many cores there are. On a local master a
    shuffle has as many partitions as the master has threads, not 200.

    Args:
        master: where to run; default what `spark-submit` or `SPARK_REMOTE` say, and else `local[*]`.
        app_name: what Spark calls the application.
        conf: Spark's settings, which win over these defaults.

    Raises:
        SparkError: there is no Java here that can run Spark.
    """
    given = dict(conf or {})
    builder = SparkSession.builder
    fresh = SparkContext._active_spark_context is None and "SPARK_REMOTE" not in os.environ
    if fresh:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        if not submitted:
            check_java()
            master = master or os.environ.get("MASTER", "local[*]")
        if master:
            builder = builder.master(master)
            prepare_environment(master)
            given = {**local_defaults(master), **given}
        builder = builder.appName(app_name)
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if fresh:
        # The environment goes with the registered source into the processes that plan its reads.
        context = spark.sparkContext
        context.environment[CORES_VARIABLE] = str(context.defaultParallelism)
        if _THREADS_VARIABLE not in os.environ:
            context.environment.setdefault(_THREADS_VARIABLE, "1")
    spark.dataSource.register(JetStream)
    return spark


def prepare_environment(master: str) -> None:
    """Let a Spark that this process starts run its Python processes with this interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        use_unpacked_home()


def is_local(master: str) -> bool:
    """Return whether everything runs on this machine."""
    return master.startswith("local")


def local_defaults(master: str) -> dict[str, str]:
    """Return what a local master is set to; nothing for any other."""
    if not is_local(master):
        return {}
    found = _LOCAL.fullmatch(master)
    threads = found[1] if found is not None else "*"
    count = (os.cpu_count() or 1) if threads == "*" else int(threads or 1)
    return {**LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(count)}
