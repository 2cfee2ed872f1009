"""A server in a process of its own that is made to be killed: ours, or nats-server, with one line of configuration."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
START_S = 60

KINDS = {
    "jetlake": ("jetlake", ""),
    "nats-server": ("nats-server", ""),
    "nats-server always": ("nats-server", 'sync_interval: "always"'),
}
"""What can be killed, with what its `jetstream` block says besides the folder; an empty text leaves the defaults."""


class KillableServer:
    """A server with a folder that outlives its process.

    Args:
        kind: a key of `KINDS`.
        config: more lines of configuration.
        store_dir: where its streams are; None for its own folder.
        command: what starts it instead of the installed program.
        sync: what its `jetstream` block says instead of what the kind has.
    """

    def __init__(self, kind, config="", store_dir=None, command=None, sync=None):
        self.kind = kind
        self.program, usual_sync = KINDS[kind]
        self.folder = Path(tempfile.mkdtemp(prefix="jetlake-faults-"))
        self.process = None
        self.port = 0
        self._command = command
        data = store_dir or self.folder / "data"
        (self.folder / "server.conf").write_text(
            f'jetstream {{ store_dir: "{data}", max_file: 4GB, {usual_sync if sync is None else sync} }}\n{config}\n'
        )

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def cpu_s(self):
        """The CPU time that the process has used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def start(self):
        """Start it and wait until it listens; the folder is as the last process left it."""
        installed = [str(BIN / "jetlake"), "serve"] if self.program == "jetlake" else [str(BIN / "nats-server")]
        program = self._command or installed
        listening = ["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(self.folder)]
        for path in self.folder.glob("*.ports"):
            path.unlink()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*program, *listening, "-c", str(self.folder / "server.conf")],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.kind} ended by itself:\n{self.log}")
            for path in self.folder.glob(f"*_{self.process.pid}.ports"):
                try:
                    self.port = int(json.loads(path.read_text())["nats"][0].rsplit(":", 1)[1])
                    return
                except (ValueError, LookupError):
                    pass  # it is being written
            time.sleep(0.005)
        raise TimeoutError(f"{self.kind} does not listen after {START_S} s:\n{self.log}")

    def kill(self):
        """End it as a crash does: no flush, no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self):
        """End it as an administrator does."""
        self._end(signal.SIGTERM)

    def _end(self, number):
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(number)
            process.wait(30)

    def message_files(self):
        """The files that hold the messages of its streams, oldest first."""
        suffix = "seg" if self.program == "jetlake" else "blk"
        return sorted(self.folder.glob(f"data/**/msgs/*.{suffix}"), key=lambda path: (len(path.name), path.name))
