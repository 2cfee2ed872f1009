"""A Spark session that knows the source, from any script: its Python processes run with the interpreter of the script.

Before Spark starts, `check_java` says what is wrong with Java, and a local Spark gets a SPARK_HOME without
`pyspark.zip`. Spark puts that archive before everything else on the path of every Python process; Python caches
compiled code of files, never of archives, so each process would compile all of pyspark again: two thirds of its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from jetlake import platform
from jetlake.errors import SparkError
from jetlake.spark.data_source import JetStream
from jetlake.spark.options.source_options import CORES_VARIABLE

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default starts a process for every file of a checkpoint that it renames: a third of a small micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a local master: no web UI, the loopback address, and checkpoint files renamed without a process."""

# Spark sets it for its tasks alone. In the process that plans a stream's batches numpy would start a thread for every
# core, a sixth of the start of that process, and never use them.
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
    """Set the environment so that Spark's Python processes run with this interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        use_installed_pyspark()


def is_local(master: str) -> bool:
    """Return whether everything runs on this machine."""
    return master.startswith("local")


def local_defaults(master: str) -> dict[str, str]:
    """Return the settings of a local master; none for any other."""
    if not is_local(master):
        return {}
    found = _LOCAL.fullmatch(master)
    threads = found[1] if found is not None else "*"
    count = (os.cpu_count() or 1) if threads == "*" else int(threads or 1)
    return {**LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(count)}


JAVA_VERSION_MIN = 17


def find_java() -> str | None:
    """Return the program that Spark would start: the one in JAVA_HOME, or on the PATH."""
    folder = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(folder) / "bin") if folder else None)


def missing_java() -> str:
    """Return advice where there is no Java; empty where there is one."""
    if find_java() is not None:
        return ""
    folder = os.environ.get("JAVA_HOME")
    where = f"in JAVA_HOME={folder}" if folder else "on the PATH"
    return f"there is no Java {where}: install Java {JAVA_VERSION_MIN} or newer, or set JAVA_HOME to where it is"


def check_java() -> None:
    """Refuse a machine whose Java cannot run Spark.

    Raises:
        SparkError: there is none, or one that is too old.
    """
    program = find_java()
    if program is None:
        raise SparkError(missing_java())
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    # "1.8.0_392" is Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < JAVA_VERSION_MIN:
        raise SparkError(
            f"{program} is Java {found[1]}, and Spark needs Java {JAVA_VERSION_MIN} or newer: install one, or set "
            "JAVA_HOME to where it is"
        )


def use_installed_pyspark() -> None:
    """Set SPARK_HOME so that Spark's Python processes import the installed pyspark instead of `pyspark.zip`.

    Changes nothing where SPARK_HOME is set, and where the cache directory cannot be written.
    """
    if "SPARK_HOME" not in os.environ:
        with contextlib.suppress(OSError):
            os.environ["SPARK_HOME"] = str(_linked_spark_home(Path(pyspark.__file__).parent, _cache_directory()))


def _cache_directory() -> Path:
    return platform.user_folder("XDG_CACHE_HOME", ".cache") / "jetlake"


def _linked_spark_home(installed: Path, cache: Path) -> Path:
    """Return a directory of links to the installation without its `python` archives; created once per installation."""
    key = hashlib.sha256(f"{installed}\n{pyspark.__version__}".encode()).hexdigest()[:16]
    home = cache / f"spark-home-{key}"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    # Created aside and renamed: another process may create it at the same time.
    fresh = Path(tempfile.mkdtemp(dir=cache))
    try:
        for entry in installed.iterdir():
            if entry.name != "python":
                (fresh / entry.name).symlink_to(entry)
        fresh.rename(home)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not home.is_dir():
            raise
    return home
