"""A store folder with streams in it, to be tampered with, and servers that start on copies of it."""

import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import nats

from jetlake.server import Options, Server
from jetlake.server.config.options import JetStreamOptions
from jetlake.server.shell.log import Log
from jetlake.server.shell.monitoring.jetstream_reports import health_report, jetstream_report
from jetlake.server.shell.monitoring.metrics import metrics_text
from jetlake.server.shell.monitoring.query import Query
from jetlake.store.steps import finish

PAYLOAD = bytes(2048)
MESSAGES = 20
SEGMENT_BYTES = 16_384
"""So short that the messages take three segments."""


class Lines(Log):
    """A log that is a list of (level, text)."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def write(self, level, text):
        self.lines.append((level, text))

    def about(self, *words):
        """The warnings and errors that have all these words."""
        return [text for level, text in self.lines if level in ("WRN", "ERR") and all(word in text for word in words)]


class Running:
    """A server on a folder, and what it tells."""

    def __init__(self, server, log, client):
        self.server = server
        self.log = log
        self.client = client
        self.jetstream = client.jetstream(timeout=20)

    def health(self):
        """Status and error of `/healthz`."""
        status, report = finish(health_report(self.server, Query("")))
        return status, report.get("error", "")

    def jsz(self):
        return finish(jetstream_report(self.server, Query("")))

    def metric(self, name):
        """All values of a metric, summed."""
        lines = [
            line for line in finish(metrics_text(self.server)).splitlines() if line.startswith((name + "{", name + " "))
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    @property
    def streams(self):
        return sorted(self.server.engine.jetstreams["$G"].streams)

    async def sequences(self, stream="A"):
        """The sequences of the messages that can be read."""
        store = self.server.engine.jetstreams["$G"].streams[stream].store
        return [message.sequence for message in store.read(1, None, 10_000, 1 << 30).messages]

    async def lost(self, stream="A"):
        """What stream info says is lost."""
        answer = await self.client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=20)
        return nats_json(answer).get("state", {}).get("lost", {}).get("msgs") or []


def nats_json(answer):
    import json

    return json.loads(answer.data)


@asynccontextmanager
async def running(folder: Path):
    """A server on this folder, for as long as it is needed."""
    log = Lines()
    jetstream = JetStreamOptions(store_dir=str(folder), max_storage=1 << 32)
    options = Options(host="127.0.0.1", port=-1, max_connections=10, jetstream=jetstream)
    async with Server(options=options, log=log) as server:
        client = await nats.connect(server.url)
        try:
            yield Running(server, log, client)
        finally:
            await client.close()


async def make_folder(folder: Path) -> tuple[Path, Path]:
    """Three streams with messages, A with two consumers as well; the folders after a kill and after a clean stop."""
    killed, stopped = folder / "killed", folder / "stopped"
    async with running(stopped) as made:
        for name in "ABC":
            await made.jetstream.add_stream(name=name, subjects=[f"{name.lower()}.>"])
            for number in range(MESSAGES if name == "A" else 3):
                await made.jetstream.publish(f"{name.lower()}.{number % 3}", PAYLOAD if name == "A" else b"small")
        for name in ("c1", "c2"):
            pull = await made.jetstream.pull_subscribe("a.>", durable=name)
            for message in await pull.fetch(4, timeout=20):
                await message.ack_sync(timeout=20)
        shutil.copytree(stopped, killed)
    return killed, stopped


def streams_of(folder: Path) -> Path:
    """Where the streams lie."""
    return folder / "jetstream" / "$G" / "streams"


def everything_in(folder: Path) -> dict[str, bytes | str]:
    """All that lies in a folder, links as what they point to."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
