"""The servers of a world: the real shell, started and started again on what its machine's disk holds."""

import asyncio
import tempfile
from functools import partial
from pathlib import Path

from jetlake.client.connection import outbox, wire_protocol
from jetlake.server.config.options import JetStreamOptions, Options
from jetlake.server.engine.consumer import flow_control
from jetlake.server.engine.core import long_work
from jetlake.server.engine.routing.remote import Remote
from jetlake.server.engine.routing.subscription import Subscription
from jetlake.server.engine.storage import folder_stream_storage
from jetlake.server.shell import jetstream
from jetlake.server.shell.connection import peer_connection
from jetlake.server.shell.log import Log
from jetlake.server.shell.server import Server
from jetlake.store import stream_folder
from jetlake.store.file_store import FileStore
from jetlake.store.journal.file_journal import FileJournal
from jetlake.store.journal.id_log import IdLog
from jetlake.store.redo.redo_log import RedoLog
from tests.world.book import BrokenPromiseError
from tests.world.world import Process

__all__ = [
    "MEMORY_BYTES",
    "ServerMachine",
    "make_clients_narrow",
    "make_files_small",
    "make_sockets_narrow",
    "make_turns_short",
]

_TURN_BYTES = 1 << 20
"""What one turn may add before a client that takes nothing is cut off."""
MEMORY_BYTES = 20_000
"""What streams in memory may take together."""
# The redo log's files of eight megabytes would not be full within a world, and take long to write for the first time.
jetstream.RedoLog = partial(RedoLog, file_bytes=640 * 1024, entry_bytes_max=512 * 1024)
_OPTIONS = {"host": "0.0.0.0", "port": 4222, "ping_interval_s": 10.0}


def make_files_small(random):
    """Let segments, journals and logs of ids of this process's servers be full soon."""
    segment_bytes, tail_bytes = random.choice(((1200, 300), (5000, 1000)))

    def open_store(*arguments, **options):
        store = FileStore(*arguments, **{**options, "segment_bytes": segment_bytes, "tail_bytes": tail_bytes})
        store.removals_per_step = 2
        return store

    flow_control.WINDOW_START = random.choice((300, 3000))
    stream_folder.FileStore = open_store
    stream_folder.FileJournal = partial(FileJournal, grown_bytes=400)
    folder_stream_storage.IdLog = partial(IdLog, file_bytes=500)


def make_turns_short():
    """Let everything that is done in steps take many turns."""
    long_work.SLICE_NS = 0


def make_sockets_narrow():
    """Let deliveries to a connection pause soon."""
    peer_connection._HIGH_WATER, peer_connection._LOW_WATER = 3000, 1000


def make_clients_narrow():
    """Let publishers wait soon for a socket that takes no more."""
    outbox._TURN_BYTES_MAX, wire_protocol._WRITE_BUFFER_HIGH = 500, 1000


class _WorldLog(Log):
    """Log lines in the trace; errors of the server itself are kept."""

    def __init__(self, owner, process):
        self._owner = owner
        self._process = process

    def write(self, level, text):
        self._owner.world.trace(f"{self._process.name} [{level}] {text}")
        self._owner.log_lines.append((level, text))


class ServerMachine:
    """A machine that runs a server.

    Attributes:
        process: the server's process; None while it is down.
        server: the server in it.
    """

    def __init__(self, world, name, key, *, domain="", options=None):
        self.world = world
        self.name = name
        self.machine = world.machine(name)
        self.log_lines = []
        self.process = None
        self.server = None
        self.starts = 0
        self.started_ns = 0
        self.failed_start = None
        self._folder = Path(tempfile.gettempdir()) / "jetlake-world" / name
        # The same for every run, since names are hashed; only lock files lie there, the data is on the world's disk.
        (self._folder / "jetstream").mkdir(parents=True, exist_ok=True)
        self.machine.disk.make_folder(self._folder / "jetstream")
        limits = {"max_storage": 1 << 32, "max_memory": MEMORY_BYTES}
        stored = JetStreamOptions(store_dir=str(self._folder), domain=domain, key=key, **limits)
        self.options = Options(**{**_OPTIONS, **(options or {})}, server_name=name, jetstream=stored)

    @property
    def url(self):
        return f"nats://{self.name}:4222"

    def start(self):
        """Start a server on what the disk holds; it is ready in a while."""
        self.starts += 1
        self.started_ns = self.world.scheduler.now_ns
        self.process = process = Process(self.machine, f"{self.name}/{self.starts}")
        self.world.trace(f"start {process.name}")
        log = _WorldLog(self, process)

        async def serve():
            server = Server(options=self.options, log=log)
            await server.start()
            self.server = server
            await server.wait_stopped()
            await asyncio.sleep(0.3)  # more than a socket lingers

        process.start_loop(serve)

    def check_memory(self):
        """Check what waits in memory for clients against the server's limits."""
        connections = self.server.connections.values() if self.server is not None else ()
        for connection in connections:
            if connection.pending_bytes() > self.options.max_pending + _TURN_BYTES:
                raise BrokenPromiseError(f"{self.name} keeps {connection.pending_bytes()} bytes for {connection}")

    def check_interest(self):
        """Check that nobody's subscriptions are left of the clients that have gone."""
        interest = list(self.server.accounts["$G"]._sublist.items())
        left = [each for each in interest if isinstance(each, Subscription) and each.subscriber.closed]
        left += [each for each in interest if isinstance(each, Remote) and each.link.closed]
        if left:
            raise BrokenPromiseError(f"{self.name} has subscriptions of connections that have ended: {left}")

    def left_running(self):
        """Return the tasks and timers in the loop of a server that has stopped."""
        (loop,) = self.process.loops
        tasks = [] if loop.is_closed() else list(asyncio.all_tasks(loop))
        return tasks + [timer for timer in loop._scheduled if not timer.cancelled()]

    def is_ready(self):
        return self.process is not None and self.process.is_alive and self.server is not None and self.server.running

    def notice_end(self):
        """Forget a process that the power took."""
        if self.process is not None and not self.process.is_alive:
            self.process = self.server = None

    def kill(self, *, keeps_cut=False):
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            cut_at = self.machine.disk.cut_at
            self.machine.disk.kill()
            self.machine.disk.cut_at = cut_at if keeps_cut else None
            self.process = self.server = None

    def power_cut(self):
        self.machine.power_cut()
        self.process = self.server = None

    def stop(self):
        """Ask the server to stop; it does so in its own time."""
        if self.is_ready():
            server, loop = self.server, self.process.loops[0]
            self.world.trace(f"FAULT stop {self.process.name}")
            loop.call_soon_threadsafe(lambda: loop.create_task(server.stop()))

    def has_ended(self):
        return self.process is None or self.server is None or self.server.has_stopped
