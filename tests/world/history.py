"""One history: a world, servers that come and go, clients at work, a calm end, and the checks.

Every decision comes from the seed. What a step does depends on the seed and the step's own name only, so that a
history without some of its steps or faults is still a history: that is how a failing one is shortened.
"""

import asyncio
import errno
import os
from random import Random

from jetlake.server.config.secret import Secret
from tests.world.book import BrokenPromiseError
from tests.world.edge import Edge, EdgeWorker, join_servers
from tests.world.followers import Follower, Instance
from tests.world.servers import (
    ServerMachine,
    make_clients_narrow,
    make_files_small,
    make_sockets_narrow,
    make_turns_short,
)
from tests.world.threads import BlockingWorker, SparkQuery
from tests.world.workload import Setup, Worker
from tests.world.world import Process, World

__all__ = ["History"]

_LAST_TIMERS_S = 5
"""When the last timer of a client that was closed is over."""
SETTLE_S = 150
"""How long anything may take once the world is calm."""
PARTS = {
    "small files": 0.6,
    "compression": 0.25,
    "encryption": 0.15,
    "edge": 0.3,
    "mover": 0.5,
    "followers": 0.4,
    "blocking": 0.35,
    "spark": 0.35,
    "keys": 0.5,
    "counters": 0.3,
    "ids": 0.4,
    "batches": 0.4,
    "queue": 0.4,
    "release": 0.5,
    "removals": 0.5,
    "copies": 0.35,
    "objects": 0.3,
    "memory": 0.25,
    "pushes": 0.4,
    "priorities": 0.4,
    "fast": 0.4,
    "schedules": 0.3,
    "groups": 0.25,
    "backups": 0.35,
    "short turns": 0.05,
    "narrow sockets": 0.05,
    "bursts": 0.1,
    "quick lines": 0.25,
    "narrow clients": 0.15,
}
"""What a world may consist of, and how often it does: a world of some parts has more of what each of them does."""
_NARROW = {
    "short turns": make_turns_short,
    "narrow sockets": make_sockets_narrow,
    "narrow clients": make_clients_narrow,
}


def parts_of(seed):
    """Return the parts of a seed's world."""
    chance = Random(f"{seed} parts")
    parts = {part for part, often in PARTS.items() if chance.random() < often}
    # A burst fills several small files before the first of them is synced.
    return parts | {"small files"} if "bursts" in parts else parts


class History:
    """A history from its seed.

    Args:
        skip: names of steps and faults that do not happen.
        keeps_trace: who sent what when is kept.
    """

    def __init__(self, seed, *, skip=(), keeps_trace=False):
        self.seed = seed
        self.skip = frozenset(skip)
        self.world = World(seed, keeps_trace=keeps_trace)
        self.random = Random(f"{seed} history")
        self.parts = parts_of(seed)
        self.steps = []
        self.faults = []
        self.clients = []
        self.servers = []
        self.queries = []
        self.is_calm = False
        self.has_unreadable = False  # streams and consumers may be missing, since the disk could not read them

    def chance(self, name):
        """Random numbers of one name's own."""
        return Random(f"{self.seed} {name}")

    def run(self):
        """Run it to its end; raises when a promise is broken."""
        return self.world.run(self._conduct)

    # The conductor

    def _wait(self, what, is_done, seconds=SETTLE_S):
        scheduler = self.world.scheduler
        began_ns, pause_s = scheduler.now_ns, 0.001
        while not is_done():
            if scheduler.now_ns - began_ns > seconds * 1e9:
                raise BrokenPromiseError(f"{what} did not come within {seconds} s{self._stuck()}")
            scheduler.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.1)
            self._check_defects()

    def _stuck(self):
        return "".join(f"; {client.name} is at {client.where()}" for client in self.clients if not client.has_ended)

    def _check_defects(self):
        world = self.world
        if world.defects:
            message, error = world.defects[0]
            raise BrokenPromiseError(f"an event loop was told: {message}") from error
        for client in self.clients:
            if client.error is not None:
                raise client.error
        for server in self.servers:
            if server.server is not None and server.server.defects:
                raise BrokenPromiseError(f"{server.name} had an internal error: {server.log_lines[-5:]}")
            server.check_memory()

    def _conduct(self):
        world, random = self.world, self.random
        self._make_narrow()
        has_edge = "edge" in self.parts
        key = Secret("the key of this world") if "encryption" in self.parts else None
        if has_edge:
            self.servers = join_servers(world, random, key, 0.01 if "quick lines" in self.parts else 0.5)
        else:
            self.servers = [ServerMachine(world, "hub", key)]
        self.hub = self.servers[0]
        for server in self.servers:
            server.start()
        self._wait("the servers' start", lambda: all(server.is_ready() for server in self.servers))
        self.setup = Setup(self)
        if has_edge:
            self.setup.edge = Edge(self.setup)
        self._run_client("setup", self.setup.run)
        for number in range(random.randrange(1, 4)):
            self._start_client(f"c{number}", Worker)
        if has_edge:
            self._start_client("e", EdgeWorker)
            if "mover" in self.parts:
                self._run_beside("mover", self.setup.edge.move, lambda: self.setup.edge.move)
        if "followers" in self.parts:
            self._run_beside("f", Follower(self, "f").run, None)
        if "groups" in self.parts:
            for number in range(2):
                self._start_client(f"i{number}", Instance)
        if "blocking" in self.parts:
            self._start_thread("b", BlockingWorker)
        if "spark" in self.parts:
            self._start_thread("spark", SparkQuery)
        world.scheduler.sleep(0.05)
        self._make_faults()
        self._calm()
        self._wait("the end of the clients' work", lambda: all(client.has_ended for client in self.clients))
        for client in self.clients:
            if client.error is not None:
                raise client.error
        self._run_client("verifier", self.setup.verify)
        self._end()
        return world

    def _make_narrow(self):
        """Make limits of this process small, so that worlds reach them."""
        if "small files" in self.parts:
            make_files_small(self.random)
        for part, make in _NARROW.items():
            if part in self.parts:
                make()

    def _run_client(self, name, work):
        runner = ClientProcess(self, name, work)
        self.clients.append(runner)
        runner.start()
        self._wait(f"the end of {name}", lambda: runner.has_ended)
        self.clients.remove(runner)
        if runner.error is not None:
            raise runner.error

    def _start_thread(self, name, kind):
        client = ThreadProcess(self, name, kind(self, name).run)
        self.clients.append(client)
        client.start()

    def working(self):
        """Return the clients that may still publish."""
        return [client for client in self.clients if not client.has_ended and client.name not in ("spark", "f")]

    def _start_client(self, name, kind):
        self._run_beside(name, kind(self, name).run, lambda: kind(self, f"{name}+").run)

    def _run_beside(self, name, work, make_successor):
        client = ClientProcess(self, name, work)
        client.make_successor = make_successor
        self.clients.append(client)
        client.start()

    def start_successor(self, client):
        """Start a client in the place of one that was killed."""
        self._run_beside(f"{client.name}+", client.make_successor(), client.make_successor)

    # Faults

    def _make_faults(self):
        """Let things go wrong for a while."""
        world, random = self.world, self.random
        enabled = [fault for fault in FAULTS if random.random() < 0.6]
        enabled += [cut_power_in_sync] * 8 if "bursts" in self.parts else []
        enabled += [reset_leaf] * 4 if {"edge", "quick lines"} <= self.parts else []
        enabled += [pause_instance] * 5 if "groups" in self.parts else []
        for number in range(random.randrange(0, 11)):
            wait_s, fault, chance = random.uniform(0.02, 1.2), random.choice(enabled or FAULTS), random.random()
            world.scheduler.sleep(wait_s)
            self._check_defects()
            name = f"fault.{number}"
            self.faults.append(name)
            if name in self.skip:
                continue
            world.count(f"fault {fault.__name__}")
            fault(self, Random(f"{self.seed} {name} {chance}"))
        world.scheduler.sleep(random.uniform(0.2, 2))

    def _calm(self):
        world = self.world
        world.trace("--- calm")
        world.network.heal()
        for machine in world.machines.values():
            if not machine.is_on:
                machine.power_on()
            machine.disk.fault = None
            machine.disk.capacity = None
            machine.disk.cut_at = None
            machine.sync_s = 0.004
            machine.wall_offset_ns = 0
            for process in machine.processes:
                process.resume()
        for server in self.servers:
            self.ensure_up(server)
        self.is_calm = True

    def ensure_up(self, server):
        """Start a server that is down or going down."""
        server.notice_end()
        if server.server is not None and server.server.engine is None:
            self._wait(f"the stop of {server.name}", server.has_ended)
        is_starting = server.process is not None and server.server is None and server.process.is_alive
        if server.has_ended() and not is_starting:
            server.server = None
            server.start()
        self._wait(f"the start of {server.name}", server.is_ready)

    # The end

    def _end(self):
        """Stop everything, and look for what is left."""
        world = self.world
        # A server learns of connections that were cut in silence by its own pings.
        self._wait("the end of all connections", lambda: not any(server.server.connections for server in self.servers))
        machines = {server.machine for server in self.servers}
        links = world.network.open_links()
        if left := [str(link) for link in links if not {end.process.machine for end in link.ends} <= machines]:
            raise BrokenPromiseError(f"connections of clients are left: {left}")
        for server in self.servers:
            server.check_interest()
        for server in self.servers:
            server.stop()
        self._wait("the servers' stop", lambda: all(server.has_ended() for server in self.servers))
        world.scheduler.sleep(1)
        self._check_defects()
        if links := world.network.open_links():
            raise BrokenPromiseError(f"connections are left: {[str(link) for link in links]}")
        for server in self.servers:
            if handles := server.machine.disk.open_handles():
                raise BrokenPromiseError(f"{server.name} left {handles} files open")
            if left := [*server.process.ends, *server.left_running()]:
                raise BrokenPromiseError(f"{server.name} left behind: {left}")


class ClientProcess:
    """A process with an asyncio loop that runs a client's work.

    Attributes:
        error: how the work failed.
    """

    def __init__(self, history, name, work):
        self.history = history
        self.name = name
        self.has_ended = False
        self.error = None
        self.make_successor = None
        self._work = work
        machine = history.world.machines.get(f"m-{name}") or history.world.machine(f"m-{name}")
        self.process = Process(machine, name)

    def start(self):
        async def run():
            try:
                await self._work()
                await asyncio.sleep(_LAST_TIMERS_S)
                self._check_nothing_is_left()
            except Exception as error:
                self.error = error
            self.has_ended = True

        self.process.start_loop(run)

    def _check_nothing_is_left(self):
        """No task, timer or socket of the clients is left, since all of them were closed."""
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]
        left = [*(asyncio.all_tasks() - {asyncio.current_task()}), *timers, *self.process.ends]
        if left:
            raise BrokenPromiseError(f"{self.name} left behind: {left}")

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.has_ended = True

    def where(self):
        """Name the calls that its tasks wait in."""
        loops = self.process.loops
        tasks = [task for loop in loops for task in asyncio.all_tasks(loop)]
        return [waits_at(task) for task in tasks]


class ThreadProcess(ClientProcess):
    """A process whose main thread does a client's work."""

    def start(self):
        def run():
            try:
                self._work()
            except Exception as error:
                self.error = error
            self.has_ended = True
            # Spark's executors keep connections until the process ends.
            self.process.exit()

        self.process.start(run)


def waits_at(task):
    """Where a task stands: the calls that wait for each other, the innermost last."""
    places, waiting = [], task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame is not None else type(waiting).__name__)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return " > ".join(places)


# Faults: each does its damage, and repairs it itself unless the calm does


def kill_server(history, random):
    server = random.choice(history.servers)
    server.kill()
    history.world.scheduler.sleep(random.choice((0.001, 0.1, 1, 3)))
    history.ensure_up(server)


def power_cut(history, random):
    server = random.choice(history.servers)
    server.power_cut()
    history.world.scheduler.sleep(random.choice((0.1, 1, 3)))
    server.machine.power_on()
    history.ensure_up(server)


def restart_server(history, random):
    server = random.choice(history.servers)
    server.stop()
    history.world.scheduler.sleep(random.choice((0, 0.002, 0.05)))
    if random.random() < 0.2:
        server.kill()
    else:
        history._wait("a stop", server.has_ended)
    history.ensure_up(server)


def pause_server(history, random):
    server = random.choice(history.servers)
    process = server.process
    process.pause()
    history.world.scheduler.sleep(random.choice((0.05, 0.5, 3, 7)))
    process.resume()


def pause_client(history, random):
    if running := [client for client in history.clients if not client.has_ended]:
        process = random.choice(running).process
        process.pause()
        history.world.scheduler.sleep(random.choice((0.05, 0.5, 3)))
        process.resume()


def pause_instance(history, random):
    """An instance of a member is frozen for longer than its ack wait, and another one takes over."""
    if running := [client for client in history.clients if client.name[0] == "i" and not client.has_ended]:
        process = random.choice(running).process
        process.pause()
        history.world.scheduler.sleep(random.uniform(1, 4))
        process.resume()


def kill_client(history, random):
    """A client is killed in the middle of whatever it does, and another one begins."""
    if running := [client for client in history.clients if client.make_successor is not None and not client.has_ended]:
        client = random.choice(running)
        client.kill()
        history.world.scheduler.sleep(random.choice((0, 0.1, 1)))
        history.start_successor(client)


def reset_links(history, random):
    for link in history.world.network.open_links():
        if random.random() < 0.5:
            history.world.trace(f"FAULT reset {link}")
            link.reset()


def cut_links(history, random):
    for link in history.world.network.open_links():
        if random.random() < 0.5:
            history.world.trace(f"FAULT silent cut {link}")
            link.cut()


def stall_links(history, random):
    for link in history.world.network.open_links():
        if random.random() < 0.5:
            history.world.trace(f"FAULT stall {link}")
            link.stall(random.uniform(0.05, 3))


def end_half_links(history, random):
    """Something between client and server ends one direction of a connection, and what the other end sends is lost."""
    for link in history.world.network.open_links():
        if random.random() < 0.5:
            history.world.trace(f"FAULT half an end of {link}")
            random.choice(link.ends).pipe.end_early()


def part_network(history, random):
    machines = list(history.world.machines.values())
    server = random.choice(history.servers).machine
    for machine in machines:
        if machine is not server and random.random() < 0.6:
            history.world.trace(f"FAULT part {server.name} and {machine.name}")
            history.world.network.part(server, machine)
    history.world.scheduler.sleep(random.choice((0.2, 2, 6)))
    history.world.network.parted.clear()
    history.world.trace("FAULT parts heal")


def slow_disk(history, random):
    server = random.choice(history.servers)
    server.machine.sync_s = random.choice((0.05, 0.4))
    history.world.scheduler.sleep(random.uniform(0.2, 2))
    server.machine.sync_s = 0.004


def fail_disk(history, random):
    """The disk refuses some of what it is asked, or is full, for a while."""
    server = random.choice(history.servers)
    disk = server.machine.disk
    number = random.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.ENOMEM))
    kinds = random.choice(
        (
            ("sync", "sync_folder"),
            ("write",),
            ("read",),
            ("open", "create"),
            ("write", "sync", "create", "replace", "add_folder"),
        )
    )
    # Where some reads fail and others do not, messages are told as lost, and skipped until the next start.
    rate = 1 if "read" in kinds else random.choice((0.05, 0.5, 1))
    history.world.trace(f"FAULT disk of {server.name}: {kinds} fail")
    history.has_unreadable |= not {"read", "open"}.isdisjoint(kinds)
    if random.random() < 0.3:
        disk.capacity = disk.used() + random.randrange(5000)
    else:

        def fault(operation, path):
            if operation in kinds and random.random() < rate:
                raise OSError(number, os.strerror(number), str(path))

        disk.drops_failed_syncs = True
        disk.fault = fault
    history.world.scheduler.sleep(random.choice((0.01, 0.3, 2)))
    disk.fault = disk.capacity = None


def cut_power_within(history, random):
    """The power goes in the middle of a change of the disk, also while a server starts."""
    server = random.choice(history.servers)
    server.machine.disk.cut_at = server.machine.disk.operations + random.randrange(1, 200)
    if random.random() < 0.4:
        server.kill(keeps_cut=True)
        server.start()
    deadline_ns = history.world.scheduler.now_ns + 2_000_000_000
    while server.machine.is_on and history.world.scheduler.now_ns < deadline_ns:
        history.world.scheduler.sleep(0.01)
    server.machine.disk.cut_at = None
    if not server.machine.is_on:
        history.world.count("cut within")
        server.machine.power_on()
    history.ensure_up(server)


def cut_power_in_create(history, random):
    """The power goes while the folder of a new stream or consumer gets its files."""
    server = random.choice(history.servers)
    disk, changes = server.machine.disk, random.randrange(1, 6)

    def cut_soon(operation, _path):
        if operation == "add_folder" and disk.cut_at is None:
            disk.cut_at = disk.operations + changes

    disk.fault = cut_soon
    deadline_ns = history.world.scheduler.now_ns + 3_000_000_000
    while server.machine.is_on and history.world.scheduler.now_ns < deadline_ns:
        history.world.scheduler.sleep(0.01)
    disk.fault = disk.cut_at = None
    if not server.machine.is_on:
        history.world.count("cut in create")
        server.machine.power_on()
    history.ensure_up(server)


def cut_power_in_sync(history, random):
    """The power goes while much is written and little is synced."""
    for server in history.servers:
        server.machine.sync_s = 0.4
    history.world.scheduler.sleep(random.uniform(0.05, 0.5))
    cut = random.choice(history.servers)
    cut.power_cut()
    for server in history.servers:
        # A start that syncs hundreds of small files would take minutes.
        server.machine.sync_s = 0.004
    history.world.scheduler.sleep(random.choice((0.1, 1, 3)))
    cut.machine.power_on()
    history.ensure_up(cut)


def reset_leaf(history, random):
    """The connection between the servers breaks some times; what is under way is lost."""
    machines = {server.machine for server in history.servers}
    for _ in range(random.randrange(1, 8)):
        for link in history.world.network.open_links():
            if {end.process.machine for end in link.ends} == machines:
                history.world.trace(f"FAULT reset {link}")
                link.reset()
        history.world.scheduler.sleep(random.uniform(0.01, 0.2))


def fail_reads_at_start(history, random):
    """A server starts while the disk cannot read some configurations: their streams are set aside until a restart."""
    server = random.choice(history.servers)
    server.kill()
    history.has_unreadable = True
    rate = random.choice((0.1, 0.5))

    def fault(operation, path):
        if operation == "read" and path.name.startswith("meta.") and random.random() < rate:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    server.machine.disk.fault = fault
    server.start()
    history.world.scheduler.sleep(random.choice((0.05, 1)))
    server.machine.disk.fault = None
    server.kill()
    history.ensure_up(server)


def jump_clock(history, random):
    machine = random.choice(history.servers).machine
    # An hour that comes back is longer than the stream remembers ids that Spark writes to.
    seconds = random.choice((-3600, -10, -0.5, 0.5, 3, 20)[("spark" in history.parts) :])
    machine.wall_offset_ns += int(seconds * 1e9)
    history.world.trace(f"FAULT clock of {machine.name} is off by {machine.wall_offset_ns / 1e9:g} s")


def fail_names(history, random):
    """No name is known for a while, or a server's name has an address where nobody answers, or nobody listens."""
    network, name = history.world.network, random.choice(history.servers).name
    wrong = random.choice((None, "10.9.9.9", history.world.machines["conductor"].address))
    if wrong is None:
        network.dns_fails = True
    else:
        own = network.names[name]
        network.names[name] = random.choice(([wrong], [*own, wrong]))
        history.world.trace(f"FAULT {name} is at {network.names[name]}")
    if random.random() < 0.5:
        reset_links(history, random)
    history.world.scheduler.sleep(random.uniform(0.2, 2))
    network.dns_fails = False
    network.names[name] = [history.world.machines[name].address]


FAULTS = [
    kill_server,
    power_cut,
    restart_server,
    pause_server,
    pause_client,
    kill_client,
    reset_links,
    cut_links,
    end_half_links,
    stall_links,
    part_network,
    slow_disk,
    fail_disk,
    cut_power_within,
    cut_power_in_create,
    fail_reads_at_start,
    jump_clock,
    fail_names,
]
