"""A world from one seed: machines with disks and clocks, processes that are killed and paused, and what they sent."""

import errno
import hashlib
import itertools
from collections import deque
from random import Random

from tests.support.faulty_disk import FaultyDisk, PowerCut
from tests.world.network import Network
from tests.world.scheduler import BEGIN_NS, Scheduler
from tests.world.virtual_loop import VirtualLoop

__all__ = ["Machine", "Process", "World"]

_EPOCH_NS = 1_790_000_000_000_000_000
_TRACE_BYTES = 160
_SYNC_MAX_S = 2.0
"""The longest sync, so that one that a calm world finds under way ends before answers are overdue."""


class Machine:
    """A computer: an address, a disk, a wall clock.

    Attributes:
        wall_offset_ns: how far its wall clock is from the right time.
        is_on: whether it answers at all.
        sync_s: how long a sync takes at most, most of the time.
    """

    def __init__(self, world, name, address):
        self.world = world
        self.name = name
        self.address = address
        self.disk = FaultyDisk(Random(world.network.random.getrandbits(64)))
        self.wall_offset_ns = 0
        self.is_on = True
        self.sync_s = 0.004
        self.processes = []
        self.locks = {}

    def power_cut(self):
        """Everything in memory is gone, and what was not synced with it; nobody is told."""
        self.world.trace(f"FAULT power cut of {self.name}")
        self.is_on = False
        for process in self.processes:
            process.kill(tells=False)
        self.disk.cut_power()

    def power_on(self):
        """Let processes start again; connections of before are answered with resets."""
        self.is_on = True
        for link in self.world.network.links:
            if not link.is_dead and any(end.process.machine is self and end.is_gone for end in link.ends):
                link.reset()


class Process:
    """A process on a machine.

    Attributes:
        ends: its open sockets.
        loops: its event loops.
    """

    def __init__(self, machine, name):
        self.machine = machine
        self.world = machine.world
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.ends = {}
        self.loops = []
        self.kept = []  # what a killed process leaves: nothing of it may be collected, and run finalizers
        self._held = []
        machine.processes.append(self)

    def holds(self, thread):
        """Return whether a thread that could run may not; the scheduler then forgets it."""
        if not self.is_alive:
            return True
        if self.is_paused:
            self._held.append(thread)
        return self.is_paused

    def start(self, work, name="main"):
        """Run a function in a new thread of the process."""
        return self.world.scheduler.spawn(self, f"{self.name}:{name}", work)

    def start_loop(self, make_coroutine):
        """Run a coroutine in an event loop and a thread of its own."""

        def run():
            loop = VirtualLoop(self.world, self)
            loop.set_exception_handler(self.world.loop_failed)
            loop.run_until_complete(make_coroutine())
            loop.close()

        return self.start(run)

    def kill(self, *, tells=True):
        """End it at once, as SIGKILL does; the system closes its sockets (if `tells`) and its files."""
        if not self.is_alive:
            return
        self.world.trace(f"FAULT kill {self.name}")
        self.is_alive = False
        self.kept.append((self.loops, self._held))
        listeners = self.world.network.listeners
        for place, listener in list(listeners.items()):
            if listener.process is self:
                del listeners[place]
        for end in list(self.ends):
            if tells:
                end.release()
            else:
                end.is_gone = True
        self.machine.locks = {key: owner for key, owner in self.machine.locks.items() if owner is not self}

    def exit(self):
        """The process ends, and the system closes what it left open."""
        for end in list(self.ends):
            end.release()

    def pause(self):
        """Stop it where it is, as SIGSTOP does."""
        self.world.trace(f"FAULT pause {self.name}")
        self.is_paused = True

    def resume(self):
        """Let it go on."""
        if self.is_paused:
            self.world.trace(f"FAULT resume {self.name}")
            self.is_paused = False
            held, self._held = self._held, []
            for thread in held:
                thread.is_ready = False
                self.world.scheduler.make_ready(thread)


class ProcessDisk:
    """A process's way to its machine's disk: each step takes time, in which others run."""

    def __init__(self, process):
        self._process = process
        self._disk = process.machine.disk
        self.hashing = self._disk.hashing
        self._handles = set()

    def __getattr__(self, name):
        operation = getattr(self._disk, name)

        def run(*arguments, **options):
            self._pass_time(name)
            try:
                return operation(*arguments, **options)
            except PowerCut:
                self._process.machine.power_cut()
                self._process.world.scheduler.abandon()

        self.__dict__[name] = run
        return run

    def _pass_time(self, name):
        process = self._process
        scheduler, random = process.world.scheduler, process.world.disk_random
        if process.world.scheduler.current.process is not process:
            raise OSError(errno.EBADF, "a disk of another process")
        if name in ("sync", "sync_folder"):
            times = 50 if random.random() < 0.01 else 1
            scheduler.sleep(min(random.random() * times * process.machine.sync_s, _SYNC_MAX_S))
        elif (chance := random.random()) < 0.1:
            scheduler.sleep(1e-6 + chance * 3e-4)
        else:
            scheduler.now_ns += int(chance * 5000)


class World:
    """Everything that a seed decides.

    Attributes:
        digest: of everything that was sent, with its time.
        defects: what no process should ever do: an error that reached an event loop's handler.
    """

    def __init__(self, seed, *, keeps_trace=False):
        self.seed = seed
        self.random = Random(seed)  # the product's own
        self.scheduler = Scheduler(Random(seed * 4 + 1))
        self.network = Network(self, Random(seed * 4 + 2))
        self.disk_random = Random(seed * 4 + 3)
        self.digest = hashlib.blake2b(digest_size=16)
        self._lines = [] if keeps_trace else deque(maxlen=0)
        self.event_handles = []
        self.defects = []
        self.counts = {}
        self.machines = {}
        self._locked = {}
        self._addresses = itertools.count(1)
        self._pass = Random(seed * 4 + 5).random

    def machine(self, name):
        """Add a machine; its name is its host name."""
        machine = Machine(self, name, f"10.0.0.{next(self._addresses)}")
        self.machines[name] = machine
        self.network.machines[machine.address] = machine
        self.network.names[name] = [machine.address]
        return machine

    # What the interposed functions ask

    def tick(self):
        """Look at a counter of the running thread, for which a little time passes; now and then more."""
        scheduler, chance = self.scheduler, self._pass()
        scheduler.now_ns += 50 + int(chance * 1450) if chance >= 0.001 else 300_000 + int(chance * 7.7e9)
        return scheduler.now_ns

    def wall_ns(self):
        """Read the wall clock of the running process's machine."""
        return _EPOCH_NS + self.scheduler.now_ns + self.scheduler.current.process.machine.wall_offset_ns

    def disk(self):
        """Return the disk for the running process."""
        return ProcessDisk(self.scheduler.current.process)

    def lock_folder(self, handle, key):
        """Lock a folder for the running process, until it closes the handle or is killed."""
        process = self.scheduler.current.process
        locks = process.machine.locks
        if locks.setdefault(key, process) is not process:
            raise BlockingIOError(errno.EAGAIN, "locked")
        self._locked[handle] = (process, key)

    def unlock_folder(self, handle):
        """A handle is closed that may have locked a folder."""
        process, key = self._locked.pop(handle, (None, None))
        if process is not None and process.machine.locks.get(key) is process:
            del process.machine.locks[key]

    # What happened

    def sent(self, pipe, segment):
        """Note what was sent."""
        now_ns = self.scheduler.now_ns
        self.digest.update(b"%d %d %d " % (now_ns, pipe.link.number, pipe.sender is pipe.link.ends[0]))
        self.digest.update(segment if segment is not None else b"<end>")
        self._lines.append((now_ns, (pipe, segment)))

    def trace(self, text):
        """Add a line to the trace."""
        self._lines.append((self.scheduler.now_ns, text))

    def lines(self):
        """Return the trace as text: written only when it is asked for, since most worlds keep their promises."""
        return [
            f"{(time_ns - BEGIN_NS) / 1e9:12.6f} {line if isinstance(line, str) else _told(*line)}"
            for time_ns, line in self._lines
        ]

    def count(self, name, number=1):
        """Count something that a run reports."""
        self.counts[name] = self.counts.get(name, 0) + number

    def loop_failed(self, _loop, context):
        """Take what reached an event loop's exception handler."""
        error = context.get("exception")
        self.trace(f"DEFECT {context.get('message')}: {error!r}")
        self.defects.append((context.get("message"), error))

    def run(self, work):
        """Run the world: `work` is its first thread, on a machine of its own."""
        conductor = Process(self.machine("conductor"), "conductor")
        return self.scheduler.run(conductor, work)


def _told(pipe, segment):
    """Say who sent what to whom."""
    names = [end.process.name for end in pipe.link.ends]
    if pipe.sender is not pipe.link.ends[0]:
        names.reverse()
    text = "<end>" if segment is None else repr(segment[:_TRACE_BYTES])[2:-1]
    return f"#{pipe.link.number} {names[0]} > {names[1]}: {text}"
