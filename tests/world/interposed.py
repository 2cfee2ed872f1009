"""Puts a world under everything that the product asks of its system: time, chance, threads, sockets, disks.

Imported before any module of jetlake, since many bind what they need when they are imported. Outside of a world all of
it behaves as ever. The product is not changed: what is replaced is the standard library's, and the store's `RealDisk`.
"""

import _thread
import asyncio
import builtins
import collections.abc
import fcntl
import importlib.machinery
import os
import pkgutil
import queue
import random
import re
import socket
import threading
import time

from tests.world.scheduler import VirtualLock

__all__ = ["enter", "world"]

world = None
"""The world that this process runs; None outside."""

_EVENT_HANDLES = 1_000_000
_SPARK = ("spark.source", "spark.sink", "spark.options")
_LOADED = tuple(
    f"jetlake.{name}"
    for name in (
        "protocol",
        "model",
        "store",
        "server",
        "client",
        "blocking",
        "spark.source",
        "spark.sink",
        "spark.options",
    )
)
_real = {
    "urandom": os.urandom,
    "read": os.read,
    "close": os.close,
    "flock": fcntl.flock,
    "allocate_lock": _thread.allocate_lock,
    "start_new_thread": _thread.start_new_thread,
    "create_connection": socket.create_connection,
    "create_server": socket.create_server,
    "getaddrinfo": socket.getaddrinfo,
    "sleep": time.sleep,
    "join": threading.Thread.join,
    "new_event_loop": asyncio.new_event_loop,
}


def enter(new_world):
    """Make this world the one that the process runs."""
    global world
    world = new_world


def _inside():
    return world is not None and world.scheduler.is_inside()


# Time

for _name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"):
    _real[_name] = getattr(time, _name)


def _monotonic():
    return world.scheduler.now_ns / 1e9 if world is not None else _real["monotonic"]()


def _monotonic_ns():
    return world.scheduler.now_ns if world is not None else _real["monotonic_ns"]()


def _perf_counter():
    return world.tick() / 1e9 if world is not None else _real["perf_counter"]()


def _perf_counter_ns():
    return world.tick() if world is not None else _real["perf_counter_ns"]()


def _time():
    return world.wall_ns() / 1e9 if world is not None else _real["time"]()


def _time_ns():
    return world.wall_ns() if world is not None else _real["time_ns"]()


def _sleep(seconds):
    if _inside():
        world.scheduler.sleep(seconds)
    else:
        _real["sleep"](seconds)


time.monotonic, time.monotonic_ns = _monotonic, _monotonic_ns
time.perf_counter, time.perf_counter_ns = _perf_counter, _perf_counter_ns
time.time, time.time_ns, time.sleep = _time, _time_ns, _sleep


# Chance


class SeededRandom(random.Random):
    """Random numbers that come from the world's seed where no seed is given."""

    def __init__(self, x=None):
        super().__init__(world.random.getrandbits(64) if x is None and world is not None else x)


def _urandom(size):
    return world.random.randbytes(size) if world is not None else _real["urandom"](size)


random.Random = SeededRandom
random._urandom = os.urandom = _urandom


# Threads


def _lock():
    return VirtualLock(lambda: world.scheduler) if _inside() else _real["allocate_lock"]()


def _start(function, arguments=(), keywords=None):
    if not _inside():
        return _real["start_new_thread"](function, arguments, keywords or {})
    owner = getattr(function, "__self__", None)
    name = getattr(owner, "name", None) or getattr(function, "__qualname__", "thread")
    thread = world.scheduler.spawn(
        world.scheduler.current.process, str(name), lambda: function(*arguments, **(keywords or {}))
    )
    if isinstance(owner, threading.Thread):
        owner.world_thread = thread
    return 0


def _join(self, timeout=None):
    thread = getattr(self, "world_thread", None)
    if thread is None:
        _real["join"](self, timeout)
    elif thread.done is not None:
        thread.done.append(world.scheduler.current)
        world.scheduler.wait(timeout)


threading.Lock = threading._allocate_lock = _lock
threading.RLock = threading._PyRLock
threading._start_new_thread = _thread.start_new_thread = _start
threading.Thread.join = _join
queue.SimpleQueue = queue._PySimpleQueue


class EventHandle:
    """What `os.eventfd` gives."""

    def __init__(self):
        self.count = 0
        self.waiting = []


def _eventfd(_count=0, flags=0):
    if world is None:
        raise OSError("no eventfd here")
    if flags & os.EFD_NONBLOCK:
        raise OSError("no asynchronous I/O in this world: threads do it")
    handle = _EVENT_HANDLES + len(world.event_handles)
    world.event_handles.append(EventHandle())
    return handle


def _eventfd_write(handle, value):
    event = world.event_handles[handle - _EVENT_HANDLES]
    event.count += value
    for thread in event.waiting:
        world.scheduler.wake(thread)
    event.waiting.clear()


def _read(handle, size):
    if handle < _EVENT_HANDLES:
        return _real["read"](handle, size)
    event = world.event_handles[handle - _EVENT_HANDLES]
    while not event.count:
        event.waiting.append(world.scheduler.current)
        world.scheduler.wait()
    value, event.count = event.count, 0
    return value.to_bytes(8, "little")


def _close(handle):
    if handle < _EVENT_HANDLES:
        if world is not None:
            world.unlock_folder(handle)
        _real["close"](handle)


if hasattr(os, "eventfd"):
    os.eventfd, os.eventfd_write, os.read, os.close = _eventfd, _eventfd_write, _read, _close


# Loops


def _new_event_loop():
    if not _inside():
        return _real["new_event_loop"]()
    from tests.world.virtual_loop import VirtualLoop

    loop = VirtualLoop(world, world.scheduler.current.process)
    loop.set_exception_handler(world.loop_failed)
    return loop


asyncio.new_event_loop = _new_event_loop


# Sockets


def _create_connection(address, timeout=None, *arguments, **keywords):
    if not _inside():
        return _real["create_connection"](address, timeout, *arguments, **keywords)
    return world.network.connect_socket(address[0], address[1], timeout)


def _create_server(address, **keywords):
    return world.network.listen(*address[:2]) if _inside() else _real["create_server"](address, **keywords)


def _getaddrinfo(host, port, *arguments, **keywords):
    if not _inside():
        return _real["getaddrinfo"](host, port, *arguments, **keywords)
    return [
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))
        for address in world.network.resolve(host)
    ]


socket.create_connection, socket.create_server, socket.getaddrinfo = _create_connection, _create_server, _getaddrinfo
socket.has_dualstack_ipv6 = lambda: False


# Disks


def _flock(handle, operation):
    """Nobody is kept out of a folder by a process that was killed."""
    if world is None:
        return _real["flock"](handle, operation)
    status = os.fstat(handle)
    return world.lock_folder(handle, (status.st_dev, status.st_ino))


fcntl.flock = _flock

# Marks of rare states: a comment in the code of the product, which costs nothing, is a statement here

_MARK = re.compile(rb"^( +)# sometimes: (.+)$", re.MULTILINE)
marks = set()
"""The rare states that the loaded modules have marks of."""


# Sets of objects are in the order of their addresses: a seed would be another history in another memory

_SET = re.compile(rb"^( +self\.\w+: set\[[A-Z].*\]) = set\(\)", re.MULTILINE)


class _OrderedSet(collections.abc.MutableSet):
    """What the product's sets of objects are in a world: in the order in which they were added."""

    def __init__(self, items=()):
        self._items = dict.fromkeys(items)

    def __contains__(self, item):
        return item in self._items

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)

    def add(self, item):
        self._items[item] = None

    def discard(self, item):
        self._items.pop(item, None)

    def update(self, items):
        self._items.update(dict.fromkeys(items))

    def difference_update(self, items):
        for item in list(items):
            self._items.pop(item, None)

    def copy(self):
        return _OrderedSet(self._items)


builtins._OrderedSet = _OrderedSet
_get_code = importlib.machinery.SourceFileLoader.get_code


def _get_marked_code(loader, name):
    if not name.startswith("jetlake."):
        return _get_code(loader, name)
    path = loader.get_filename(name)
    data = loader.get_data(path)
    found = {mark.decode() for _, mark in _MARK.findall(data)}
    changed = _SET.sub(rb"\1 = _OrderedSet()", _MARK.sub(rb'\1_sometimes("\2")', data))
    if changed == data:
        return _get_code(loader, name)
    marks.update(found)
    return loader.source_to_code(changed, path)


def _sometimes(name):
    if world is not None:
        world.count(f"sometimes {name}")


importlib.machinery.SourceFileLoader.get_code = _get_marked_code
builtins._sometimes = _sometimes

from jetlake.store.files import disk as _disk  # noqa: E402

_RealDisk = _disk.RealDisk


class WorldDisk(_RealDisk):
    """`RealDisk`, which is the world's inside of one."""

    def __new__(cls):
        return world.disk() if world is not None else super().__new__(cls)


_disk.RealDisk = WorldDisk

# A history is not to find files of its own that are newer than the process.
import jetlake  # noqa: E402

for _module in pkgutil.walk_packages(jetlake.__path__, "jetlake."):
    if _module.name.startswith(_LOADED):
        importlib.import_module(_module.name)
