"""The Spark session of a pipeline: settings that suit streams of messages, and logs that leave the terminal alone."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.conf import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jetlake.errors import SparkError
from jetlake.spark.unpacked_home import use_unpacked_home

__all__ = ["DEFAULTS", "build_session"]

DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    # Dates of partitions and windows mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Pipelines group by minute and consumer, not by billions of keys; the number is fixed by the first checkpoint.
    "spark.sql.shuffle.partitions": "4",
    # The size of a batch would be summed up again after every row, over all maps that are null.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.streaming.stopTimeout": "30s",
}
"""What a pipeline's session is set to; `--conf` wins."""

# A machine of one's own needs no web page and no other address than its own.
_LOCAL = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{{1}}: %m%n
"""


def build_session(name: str, master: str, conf: Mapping[str, str], *, log_level: str = "off") -> SparkSession:
    """A session for one pipeline; the one of this process, if there is one already.

    Args:
        log_level: what of Spark's own log is shown: `off`, `error`, `warn`, `info`, `debug`.

    Raises:
        SparkError: Spark does not start; the text says what to do.
    """
    # Spark's Python side logs every refused query with its Java stack; what matters of it is in the exception.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**DEFAULTS, **(_LOCAL if master.startswith("local") else {}), **conf}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        use_unpacked_home()
    with tempfile.TemporaryDirectory(prefix="jetlake-spark-") as folder:
        log_settings = Path(folder) / "log4j2.properties"
        log_settings.write_text(_LOG4J.format(level=log_level))
        options = f"-Dlog4j2.configurationFile={log_settings.as_uri()}"
        key = "spark.driver.extraJavaOptions"
        settings[key] = f"{settings[key]} {options}" if key in settings else options
        _launch_quietly(settings, log_level)
        builder = SparkSession.builder.master(master).appName(name)
        for setting, value in settings.items():
            builder = builder.config(setting, value)
        try:
            session = builder.getOrCreate()
        except (PySparkException, OSError) as error:
            raise SparkError(f"Spark does not start at {master}: {str(error).splitlines()[0]}") from None
    session.sparkContext.setLogLevel(log_level.upper())
    return session


def _launch_quietly(settings: Mapping[str, str], log_level: str) -> None:
    """Start the JVM with its words before logging begins going nowhere, unless Spark's log is asked for."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False)
    for setting, value in settings.items():
        conf.set(setting, value)
    with Path(os.devnull).open("wb") as nowhere:
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stderr": nowhere} if log_level == "off" else None
            )
        except (PySparkException, OSError) as error:
            raise SparkError(
                f"Java does not start ({str(error).splitlines()[0]}): Spark needs Java 17 or newer, "
                "found by JAVA_HOME or on the PATH"
            ) from None
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm
