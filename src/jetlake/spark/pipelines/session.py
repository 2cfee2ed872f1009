"""The Spark session of a pipeline: settings that suit streams of messages, and logs that leave the terminal alone."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.conf import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jetlake.errors import SparkError
from jetlake.spark.pipelines.runner import explain
from jetlake.spark.session import LOCAL_SETTINGS, is_local, missing_java, prepare_environment

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
    # Java writes names of files in the locale's encoding, and in the locale `C` only ASCII.
    "spark.executorEnv.LC_ALL": "C.UTF-8",
}
"""What a pipeline's session is set to; `--conf` wins."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def build_session(name: str, master: str, conf: Mapping[str, str], *, log_level: str = "off") -> SparkSession:
    """Return a session for one pipeline; the one of this process, if there is one already.

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
    prepare_environment(master)
    settings = {**DEFAULTS, **(LOCAL_SETTINGS if is_local(master) else {}), **conf}
    if "UTF-8" not in _locale(os.environ).upper().replace("UTF8", "UTF-8"):
        os.environ["LC_ALL"] = "C.UTF-8"
    log_options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Djetlake.log.level={log_level}"
    settings[_JAVA_OPTIONS] = f"{settings.get(_JAVA_OPTIONS, '')} {log_options}".strip()
    _launch_quietly(settings, log_level)
    context_conf = SparkConf().setMaster(master).setAppName(name).setAll(list(settings.items()))
    try:
        with _keeping_ctrl_c():
            SparkContext.getOrCreate(context_conf)
        session = SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkError(f"Spark does not start at {master}: {explain(error)}") from None
    session.sparkContext.setLogLevel(log_level.upper())
    return session


def _locale(environment: Mapping[str, str]) -> str:
    """Return the locale that decides about characters, as every program finds it out."""
    return environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"


@contextmanager
def _keeping_ctrl_c() -> Iterator[None]:
    """Keep the handler of Ctrl-C: Spark's context would replace it, and cancel jobs in the middle of a batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _why_java_ended(said: str) -> str:
    """Return what a person can do about a Java that did not come up, from what it said before it ended."""
    if missing := missing_java():
        return missing
    lines = [line.strip().rstrip(".") for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "WARNING"))]
    reason = "; ".join(told[:2]) or "it does not say why"
    return f"Java does not start: {reason}. Spark needs Java 17 or newer; --spark-log warn shows all that it says"


def _launch_quietly(settings: Mapping[str, str], log_level: str) -> None:
    """Start the JVM with its words before logging begins going nowhere, unless Spark's log is asked for."""
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False)
    for setting, value in settings.items():
        conf.set(setting, value)
    with tempfile.TemporaryFile() as said:
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stderr": said} if log_level == "off" else None
            )
        except (PySparkException, OSError):
            said.seek(0)
            raise SparkError(_why_java_ended(said.read().decode(errors="replace"))) from None
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm
    _ignore_sigterm(gateway.jvm)


def _ignore_sigterm(jvm: Any) -> None:
    """Let Java, and what it starts, ignore SIGTERM: systemd and others send it to all processes of a command.

    The command stops Spark when its batch is finished, and Java ends with the command, however that ends.
    """
    java = jvm.sun.misc
    # With -Xrs among its options, Java leaves signals to the system.
    with suppress(Py4JError):
        java.Signal.handle(java.Signal("TERM"), java.SignalHandler.SIG_IGN)
