"""A pipeline at a real terminal: what it shows, and how it ends when it is told to."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from jetlake.spark.pipelines.archive import Archive
from jetlake.spark.pipelines.verify import Verify

pytestmark = [pytest.mark.spark, pytest.mark.own_process]


class Terminal:
    """A command that runs at a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.text = ""
        self._end, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jetlake", *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)

    def read_until(self, words: str) -> None:
        while words not in self.text:
            self.text += os.read(self._end, 4096).decode(errors="replace")

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def exit_code(self) -> int:
        """Read to the end of the process; Java may hold the terminal for a moment longer."""
        with contextlib.suppress(OSError):  # which is how a terminal says that nobody is left on its other side
            while select.select([self._end], [], [], 0.05)[0] or self.process.poll() is None:
                if select.select([self._end], [], [], 0)[0]:
                    self.text += os.read(self._end, 4096).decode(errors="replace")
        os.close(self._end)
        return self.process.wait()


def test_ctrl_c_finishes_the_batch_and_sigterm_ends_what_has_not_begun(server_of, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    admin.publish([("orders.new", b"%d" % number) for number in range(10)])
    lake = tmp_path / "lake"
    words = ["archive", "ORDERS", str(lake), "--master", "local[1]", "--follow", "--every", "100ms"]
    command = ["-s", server.url, "pipeline", *words]

    early = Terminal(*command)
    early.read_until("starting Spark at local[1]")
    early.process.send_signal(signal.SIGTERM)
    assert early.exit_code() == 143
    assert "Traceback" not in early.text

    running = Terminal(*command)
    running.read_until("waiting for messages")
    assert "batch 0, 10 rows" in running.text
    running.press_ctrl_c()
    assert running.exit_code() == 130
    assert "stopped: 10 rows in 1 batch" in running.text
    assert "Traceback" not in running.text and "ERROR" not in running.text
    assert (lake / "_jetlake" / "checkpoint" / "commits" / "0").exists()


def processes_of(pid: int) -> list[int]:
    """Return a process and all that it has started, and these."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [pid]
    for known in found:
        found += [child for child, parent in parents if parent == known]
    return found


def test_a_sigterm_to_every_process_stops_as_one_to_the_command_does(server_of, run_on, tmp_path):
    """As systemd stops a service: Spark's Python processes end with the signal, the batch may be abandoned."""
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    admin.publish([("orders.new", b"first")])
    lake = tmp_path / "lake"
    words = ["archive", "ORDERS", str(lake), "--master", "local[1]", "--follow", "--every", "100ms"]
    running = Terminal("-s", server.url, "pipeline", *words)
    running.read_until("waiting for messages")
    admin.publish([("orders.new", b"%d" % number) for number in range(2000)])
    while not (lake / "_jetlake" / "checkpoint" / "offsets" / "1").exists():
        time.sleep(0.005)
    for process in reversed(processes_of(running.process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    assert running.exit_code() == 143
    assert "stopped: " in running.text
    assert "Traceback" not in running.text and "ERROR" not in running.text
    run_on(server, Archive("ORDERS", str(lake)))
    assert dict(run_on(server, Verify("ORDERS", str(lake))).summary.facts) == {"the same": 2001}
