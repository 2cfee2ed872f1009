"""The processes of the demonstration: a server and a pipeline that can be killed, and are never left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jetlake.errors import JetlakeError
from jetlake.testing.ports import free_port

_READY_S = 30.0


def _jetlake(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "jetlake", *arguments]


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise JetlakeError(f"a process of the demonstration did not start; see {log}") from None
            time.sleep(0.02)


class ServerProcess:
    """The embedded server on a folder of its own.

    Args:
        flags: more flags of `jetlake serve`.
    """

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self._words = ["serve", "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(self.port), *flags]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def words(self) -> str:
        """What a person types behind `jetlake` to start it again."""
        return " ".join(self._words)

    @property
    def pid(self) -> int:
        """The process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when clients can connect."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                _jetlake(*self._words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_for_port(self.port, self._process, self.log)

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it in an orderly way; one that does not run is fine."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class PipelineProcess:
    """A `jetlake pipeline …` command in a process of its own, whose progress is read as it comes."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.rows = 0
        self.ended: dict[str, Any] | None = None
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                _jetlake(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "batch":
                self.rows = event["rows_total"]
            elif event.get("event") == "ended":
                self.ended = event

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> None:
        """`kill -9` for the command and its Java."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def finish(self) -> dict[str, Any]:
        """Wait for its end and return its summary.

        Raises:
            JetlakeError: it failed.
        """
        code = self._process.wait()
        self._reader.join()
        if code != 0 or self.ended is None:
            error = (self.ended or {}).get("error", f"see {self._log}")
            raise JetlakeError(f"the pipeline ended with exit code {code}: {error}")
        return self.ended


def start_dashboard(url: str, log: Path) -> tuple[str, int]:
    """Return the dashboard as a process that stays: its address and its process id."""
    port = free_port()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            _jetlake("-s", url, "dashboard", "--listen", f"127.0.0.1:{port}"),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    _wait_for_port(port, process, log)
    return f"http://127.0.0.1:{port}/", process.pid
