"""A pipeline at a real terminal: what it shows, and how it ends when it is told to."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

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
