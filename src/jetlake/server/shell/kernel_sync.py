"""Syncs that the kernel runs in threads of its own: one call begins many, and an eventfd tells when some are done.

A thread of ours wakes twice for each sync and waits for the interpreter each time; beside twenty busy streams that was
half of the server's CPU time. The interface is Linux's asynchronous I/O, which every process may use.

The reasons are in decision 7 (docs/decisions).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlake import platform
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.store.log.durability import FileSync

__all__ = ["KernelSync"]

# The numbers of io_setup, io_destroy, io_getevents and io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_FDATASYNC = 3
_NOTIFY_EVENTFD = 1
_SYNCS_MAX = 64
_WAIT_S = 5

Owner = TypeVar("Owner")


class _Request(ctypes.Structure):
    """The kernel's `struct iocb`, on a little-endian machine."""

    _fields_ = (
        ("number", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("operation", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("handle", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """The kernel's `struct io_event`."""

    _fields_ = (
        ("number", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Context:
    """The kernel's side: requests go in, events come out.

    Raises:
        OSError: the system has no such interface, or refuses it to this process.
    """

    def __init__(self) -> None:
        calls = _CALLS.get(os.uname().machine) if hasattr(os, "eventfd") else None
        if calls is None or sys.maxsize < 2**32:
            raise OSError("no asynchronous I/O on this system")
        setup, self._destroy, self._get_events, self._submit = calls
        # Others get the interpreter while a call waits, and no sooner.
        self._quick_call: Any = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting_call: Any = ctypes.CDLL(None, use_errno=True).syscall
        self._quick_call.restype = self._waiting_call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._requests = (_Request * _SYNCS_MAX)()
        self._events = (_Event * _SYNCS_MAX)()
        self._batch = (ctypes.c_void_p * _SYNCS_MAX)()
        self._addresses = [ctypes.addressof(request) for request in self._requests]
        for number, request in enumerate(self._requests):
            request.number, request.operation = number, _FDATASYNC
            request.flags, request.eventfd = _NOTIFY_EVENTFD, self.eventfd
        try:
            self._call(self._quick_call, setup, ctypes.c_long(_SYNCS_MAX), ctypes.byref(self._context))
        except OSError:
            os.close(self.eventfd)
            raise

    def _call(self, call: Any, number: int, *arguments: Any) -> int:
        result = int(call(ctypes.c_long(number), *arguments))
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result

    def submit(self, syncs: list[tuple[int, int]]) -> int:
        """Begin the syncs, each a number and a handle; how many of them the kernel took.

        Raises:
            OSError: the kernel took none.
        """
        for place, (number, handle) in enumerate(syncs):
            self._requests[number].handle = handle
            self._batch[place] = self._addresses[number]
        return self._call(self._quick_call, self._submit, self._context, ctypes.c_long(len(syncs)), self._batch)

    def events(self, wait_s: float = 0.0) -> list[tuple[int, int]]:
        """Return the numbers and results of syncs that have ended; wait for one at most so long."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)
        call, least = (self._waiting_call, 1) if wait_s else (self._quick_call, 0)
        span = _TimeSpec(int(wait_s), int(wait_s % 1 * 1e9))
        limits = ctypes.c_long(least), ctypes.c_long(_SYNCS_MAX)
        try:
            count = self._call(call, self._get_events, self._context, *limits, self._events, ctypes.byref(span))
        except InterruptedError:
            return []
        return [(event.number, event.result) for event in self._events[:count]]

    def close(self) -> None:
        """Release everything; no sync may be under way."""
        self._call(self._waiting_call, self._destroy, self._context)
        os.close(self.eventfd)


class KernelSync(Generic[Owner]):
    """Runs syncs of single files in the kernel, each with an owner that is notified of its end.

    Args:
        on_done: called on the loop when syncs have ended, with the owner, the error and the seconds of each.

    Raises:
        OSError: the system cannot do it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_done: Callable[[list[tuple[Owner, JetlakeError | None, float]]], None]
    ) -> None:
        self._context = _Context()
        self._loop = loop
        self._on_done = on_done
        self._lock = threading.Lock()
        self._free = list(range(_SYNCS_MAX))
        self._under_way: dict[int, tuple[Owner, FileSync, float]] = {}
        self._ended: list[tuple[Owner, JetlakeError | None, float]] = []
        self._is_closed = False
        try:
            self._probe()
        except OSError:
            self._context.close()
            raise
        loop.add_reader(self._context.eventfd, self._finish)

    def _probe(self) -> None:
        """Sync a file in memory, which older kernels refuse."""
        handle = os.memfd_create("probe")
        try:
            self._context.submit([(0, handle)])
            if self._context.events(_WAIT_S) != [(0, 0)]:
                raise OSError("the kernel syncs no files")
        finally:
            os.close(handle)

    @property
    def room(self) -> int:
        """How many more syncs may be begun."""
        return len(self._free)

    @property
    def is_busy(self) -> bool:
        """Whether a sync is under way, or its owner has not been notified of its end."""
        return bool(self._under_way or self._ended)

    def start(self, syncs: list[tuple[Owner, FileSync]]) -> None:
        """Begin syncs, no more than there is room for."""
        started_s = time.perf_counter()
        requests = []
        with self._lock:
            for owner, sync in syncs:
                number = self._free.pop()
                self._under_way[number] = (owner, sync, started_s)
                sync.wait = self._wait
                requests.append((number, sync.handle))
            try:
                begun = self._context.submit(requests)
            except OSError:
                begun = 0
            for number, handle in requests[begun:]:
                # Hardly ever: the kernel has no memory for it.
                self._end(number, _sync_here(handle))
            if self._ended:
                self._loop.call_soon(self._finish)

    def _wait(self, sync: FileSync) -> None:
        """Return when the sync has ended; its owner is notified later."""
        while not sync.has_ended:
            with self._lock:
                # Asked again: the thread that had the lock may have taken the event, and no other may come.
                if not sync.has_ended:
                    self._collect(_WAIT_S)
        # Here and not by the eventfd, which was read.
        self._loop.call_soon_threadsafe(self._finish)

    def _collect(self, wait_s: float = 0.0) -> None:
        for number, result in self._context.events(wait_s):
            self._end(number, OSError(-result, os.strerror(-result)) if result < 0 else None)

    def _end(self, number: int, error: OSError | None) -> None:
        owner, sync, started_s = self._under_way.pop(number)
        self._free.append(number)
        self._ended.append((owner, sync.end(error), time.perf_counter() - started_s))

    def _finish(self) -> None:
        if self._is_closed:
            return  # Called for syncs that were reported already.
        with self._lock:
            self._collect()
            ended, self._ended = self._ended, []
        if ended:
            self._on_done(ended)

    def close(self) -> None:
        """Release everything; no sync may be under way."""
        self._is_closed = True
        self._loop.remove_reader(self._context.eventfd)
        self._context.close()


def _sync_here(handle: int) -> OSError | None:
    try:
        platform.sync_data(handle)
    except OSError as error:
        return error
    return None
