"""The two servers of the conformance suite: ours, in this process or in its own, and nats-server."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from jetlake.server import Server
from jetlake.server.config.assemble import assemble
from jetlake.server.shell.log import LineLog
from jetlake.testing import ManualClock

BIN = Path(sys.executable).parent
START_S = 60


class ServerClock:
    """The time of a server under test: moved by hand on ours, which then waits for nothing; real on nats-server."""

    def __init__(self, kind):
        self.manual = ManualClock() if kind == "embedded" else None

    def advance(self, seconds):
        """Let so much time pass at once where that can be; whoever awaits what is due then waits on nats-server."""
        if self.manual is not None:
            # A deadline is met a little after its moment.
            self.manual.advance(seconds + 0.01)

    async def passes(self, seconds):
        """Let so much time pass on both servers."""
        if self.manual is None:
            await asyncio.sleep(seconds)
        else:
            self.advance(seconds)


class Running:
    """A server under test.

    Attributes:
        kind: `embedded` or `nats-server`.
        folder: where it keeps its data; it goes with the server.
    """

    kind = ""
    host = "127.0.0.1"

    def __init__(self, config, flags):
        self.folder = Path(tempfile.mkdtemp(prefix="jetlake-conformance-"))
        self.port = 0
        self.monitor_port = 0
        self.websocket_url = ""
        self._config = config.replace("STORE_DIR", str(self.folder / "data"))
        self._flags = list(flags)
        if config:
            (self.folder / "server.conf").write_text(self._config)

    @property
    def is_embedded(self):
        return self.kind == "embedded"

    @property
    def url(self):
        return f"nats://{self.host}:{self.port}"

    @property
    def log_file(self):
        return self.folder / "log"

    @property
    def log(self):
        """What it has logged so far."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def arguments(self):
        """The command line that both servers understand."""
        arguments = ["-a", self.host, "-p", str(self.port or -1), "-m", str(self.monitor_port or -1)]
        if self._config:
            arguments += ["-c", str(self.folder / "server.conf")]
        if "jetstream" not in self._config and "no_jetstream" not in self._flags:
            arguments += ["-js", "-sd", str(self.folder / "data")]
        return arguments + [flag for flag in self._flags if flag != "no_jetstream"]

    async def restart(self):
        """Stop cleanly and start again with the same folder on the same port."""
        await self.stop()
        await self.start()

    async def discard(self):
        """Stop, and remove the folder."""
        await self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class InProcess(Running):
    """Our server in the test's own loop."""

    kind = "embedded"

    def __init__(self, config, flags, clock=None):
        super().__init__(config, flags)
        self.server = None
        self._clock = clock
        if clock is not None:
            clock.on_move(lambda: self.server and self.server.clock_moved())

    async def start(self):
        from jetlake.server.config.flags import parse_flags

        flags = parse_flags(self.arguments())
        if "no_jetstream" in self._flags:
            flags["no_jetstream"] = True
        options = assemble(flags).options
        log = LineLog(str(self.log_file), debugging=options.debug, tracing=options.trace)
        try:
            self.server = Server(options=options, log=log, clock=self._clock)
            await self.server.start()
        except BaseException:
            log.close()
            raise
        self.port = self.server.port
        self.monitor_port = self.server.monitoring.port
        self.websocket_url = self.server.websocket_url

    async def stop(self):
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop()
            server.log.close()
            assert server.defects == 0, self.log

    async def reload(self, config):
        """Take over another configuration."""
        from jetlake.server.config.flags import parse_flags

        (self.folder / "server.conf").write_text(config.replace("STORE_DIR", str(self.folder / "data")))
        self.server.reload(assemble(parse_flags(self.arguments())).options)

    def enter_lame_duck(self):
        self.server.enter_lame_duck()

    async def kill(self):
        raise RuntimeError("a server in this process cannot be killed: start it with process=True")


class Process(Running):
    """A server in a process of its own."""

    def __init__(self, kind, config, flags):
        super().__init__(config, flags)
        self.kind = kind
        self.process = None

    async def start(self):
        async with asyncio.timeout(START_S):
            # Another process may be given a port while a server is down, and soon returns it.
            while not (ports := await self._listen()):
                await asyncio.sleep(0.1)
        self.port = int(ports["nats"][0].rsplit(":", 1)[1])
        self.monitor_port = int(ports["monitoring"][0].rsplit(":", 1)[1])
        self.websocket_url = ports.get("websocket", [""])[0]

    async def _listen(self):
        """Start the process and return its ports; None when one of them is in use."""
        command = [str(BIN / "jetlake"), "serve"] if self.is_embedded else [str(BIN / "nats-server")]
        if self.is_embedded and "no_jetstream" in self._flags:
            command.append("--no_jetstream")
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.arguments(), "--ports_file_dir", str(self.folder)], stderr=log, stdout=log
            )
        while self.process.poll() is None:
            for path in self.folder.glob(f"*_{self.process.pid}.ports"):
                try:
                    return json.loads(path.read_text())
                except ValueError:
                    pass
            await asyncio.sleep(0.005)
        last = self.log.splitlines()[-1:]
        assert self.port and "address already in use" in "".join(last).lower(), self.log
        return None

    async def stop(self):
        await self._end(signal.SIGTERM)

    async def kill(self):
        """As if the machine had lost this process: no flush, no goodbye."""
        await self._end(9)  # SIGKILL has no name on Windows

    async def _end(self, number):
        if self.process is not None:
            process, self.process = self.process, None
            if process.poll() is None:
                process.send_signal(number)
            await asyncio.get_running_loop().run_in_executor(None, process.wait, START_S)
            for path in self.folder.glob("*.ports"):
                path.unlink()

    async def reload(self, config):
        """Take over another configuration."""
        before = self.log.count("Reloaded server configuration")
        (self.folder / "server.conf").write_text(config.replace("STORE_DIR", str(self.folder / "data")))
        self.process.send_signal(signal.SIGHUP)
        while self.log.count("Reloaded server configuration") == before:
            assert "Failed to reload" not in self.log, self.log
            await asyncio.sleep(0.005)

    def enter_lame_duck(self):
        self.process.send_signal(signal.SIGUSR2)


def make_server(kind, config="", flags=(), process=False, clock=None):
    """A server that is not started yet; ours may have a clock that is moved by hand."""
    if kind == "embedded" and not process:
        return InProcess(config, flags, clock)
    return Process(kind, config, flags)
