"""Spark's standalone cluster on loopback: a master, two workers that can be killed, and drivers that are run again."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.nats_cluster import free_ports

ENVIRONMENT = {
    **os.environ,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    # A worker that dies with its executor is the machine's fault, not the query's.
    "spark.task.maxFailures": "20",
}
START_S = 120


class Standalone:
    """A master and two workers of one core each.

    Attributes:
        url: what drivers connect to.
    """

    def __init__(self, folder):
        from jetlake.spark.session import use_unpacked_home

        use_unpacked_home()
        self._folder = Path(folder)
        port, web_port, *self._worker_ports = free_ports(4)
        self.url = f"spark://127.0.0.1:{port}"
        self._master = ["master.Master", "--port", str(port), "--webui-port", str(web_port)]
        self._processes = {}
        self._drivers = []

    async def start(self):
        self._start("master", self._master)
        for number in (0, 1):
            await self.start_worker(number)

    async def start_worker(self, number):
        """Start a worker and wait until the master knows it."""
        name = f"worker{number}"
        port = str(self._worker_ports[number])
        options = ["--cores", "1", "--memory", "1g", "--webui-port", port, "-d", str(self._folder / name)]
        registered = self._log(name).count("registered with master")
        self._start(name, ["worker.Worker", self.url, *options])
        async with asyncio.timeout(START_S):
            while self._log(name).count("registered with master") == registered:
                await asyncio.sleep(0.1)

    async def kill_worker(self, number):
        """Kill a worker with its executor and their Python processes."""
        await self._kill(self._processes.pop(f"worker{number}"))

    def run(self, *command):
        """Start a driver in a process group of its own."""
        with (self._folder / "driver.log").open("ab") as log:
            driver = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, start_new_session=True)
        self._drivers.append(driver)
        return driver

    async def kill_driver(self, driver):
        """Kill a driver's Python and Java at once."""
        await self._kill(driver)

    async def discard(self):
        for process in (*self._drivers, *self._processes.values()):
            await self._kill(process)

    def driver_log(self):
        return self._log("driver")

    def _log(self, name):
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _environment(self):
        return {**ENVIRONMENT, "SPARK_HOME": os.environ["SPARK_HOME"]}

    def _start(self, name, arguments):
        role, *options = arguments
        command = [str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*command, *options, "--host", "127.0.0.1"],
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @staticmethod
    async def _kill(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await asyncio.to_thread(process.wait, 30)
