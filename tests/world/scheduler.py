"""The scheduler of a world: real threads of which one runs at a time, chosen by the seed, and time that is a number.

Always true:

- Exactly one thread runs. It keeps running until it waits, sleeps or yields here; whoever gives up the turn chooses the
  next thread itself, so that a thread without competitors never really switches.
- Time passes only here: to the earliest event when nobody can run, and by a little with each turn and each look at a
  counter, so that a loop that polls does not stand still.
- A thread of a killed process is never chosen again. It stays where it was, as after SIGKILL: no `finally` runs. The
  whole world is a forked process that ends with `os._exit`, which takes them along.
"""

import _thread
import heapq
import sys
import threading
from collections import deque

__all__ = ["BEGIN_NS", "Scheduler", "StuckError", "VirtualLock", "VirtualThread"]

_allocate_lock = _thread.allocate_lock
_start_new_thread = _thread.start_new_thread

BEGIN_NS = 1_000_000_000_000
"""The time at which a world begins."""
STEPS_MAX = 3_000_000
"""Turns after which a world is said to go round in circles."""


class StuckError(AssertionError):
    """Nobody can run and nothing is to come, or nobody gets anywhere."""


class VirtualThread:
    """A thread of the world.

    Attributes:
        process: the process that it belongs to; killed and paused with it.
        waits: counts the waits, so that a wake-up that comes too late is recognised.
        is_woken: whether the last wait was ended by somebody, and not by time.
    """

    __slots__ = ("done", "gate", "is_ready", "is_waiting", "is_woken", "name", "process", "waits")

    def __init__(self, process, name):
        self.process = process
        self.name = name
        self.gate = _allocate_lock()
        self.gate.acquire()
        self.waits = 0
        self.is_ready = False
        self.is_waiting = False
        self.is_woken = False
        self.done = []


class _Slot:
    """A thread of the system: what it runs next, and the lock that it waits for until then."""

    __slots__ = ("gate", "work")

    def __init__(self):
        self.work = None
        self.gate = _allocate_lock()
        self.gate.acquire()


class Scheduler:
    """Runs the threads of a world.

    Attributes:
        now_ns: the time, which never jumps; whoever works may let a little pass.
        current: the thread that runs.
        failure: what ended the world early.
    """

    def __init__(self, random):
        self.random = random
        self._chance = random.random
        self.now_ns = BEGIN_NS
        self.current = None
        self.failure = None
        self.main = None
        self.steps = 0
        self._ready = []
        self._events = []
        self._idle = []
        self._numbers = 0
        self._local = threading.local()

    # Time

    def at(self, time_ns, event):
        """Call `event` at that time; it must not wait."""
        self._numbers += 1
        heapq.heappush(self._events, (time_ns, self._numbers, event))

    def after(self, seconds, event):
        """Call `event` after so many seconds."""
        self.at(self.now_ns + int(seconds * 1e9), event)

    # Threads

    def spawn(self, process, name, work):
        """Start a thread; it runs when its turn comes."""
        thread = VirtualThread(process, name)
        if self._idle:
            slot = self._idle.pop()
            slot.work = (thread, work)
            slot.gate.release()
        else:
            slot = _Slot()
            slot.work = (thread, work)
            begun = _allocate_lock()
            begun.acquire()
            _start_new_thread(self._serve, (slot, begun))
            begun.acquire()
        self.make_ready(thread)
        return thread

    def _serve(self, slot, begun):
        """Run one thread of the world after the other in a thread of the system, which never ends.

        Threads that begin and end beside the one that runs would move objects in memory, and with them the order of
        sets: a seed would not be the same history again.
        """
        begun.release()
        if (trace := threading.gettrace()) is not None:
            sys.settrace(trace)  # what measures coverage
        while True:
            thread, work = slot.work
            slot.work = None
            thread.gate.acquire()
            self._local.thread = thread
            try:
                work()
            except BaseException as error:
                if self.failure is None:
                    self.failure = error
            # What it held must go in its turn.
            work = None
            self._idle.append(slot)
            self._leave(thread)
            thread = None
            slot.gate.acquire()

    def make_ready(self, thread):
        """Let a thread have a turn."""
        if not thread.is_ready:
            thread.is_ready = True
            if thread.process.holds(thread):
                return
            self._ready.append(thread)

    def wake(self, thread):
        """End the wait of a thread; nothing when it does not wait."""
        if thread.is_waiting:
            thread.is_woken = True
            thread.waits += 1
            self.make_ready(thread)

    def wait(self, seconds=None):
        """Wait until somebody wakes this thread; False when the time is over first."""
        thread = self.current
        thread.is_woken = False
        if seconds is not None:
            waits = thread.waits

            def end():
                if thread.waits == waits:
                    thread.waits += 1
                    self.make_ready(thread)

            self.at(self.now_ns + int(max(seconds, 0) * 1e9) + 1, end)
        thread.is_waiting = True
        self._switch(thread)
        thread.is_waiting = False
        return thread.is_woken

    def sleep(self, seconds):
        """Do nothing for so long."""
        self.wait(seconds)

    def yield_turn(self):
        """Let others run that can."""
        if self._ready or (self._events and self._events[0][0] <= self.now_ns):
            thread = self.current
            self.make_ready(thread)
            self._switch(thread)

    def abandon(self):
        """End this thread where it stands: its process was killed."""
        self._switch(self.current)

    def _leave(self, thread):
        for waiting in thread.done:
            self.wake(waiting)
        thread.done = None
        chosen = self._choose()
        self.current = chosen
        chosen.gate.release()

    def _switch(self, thread):
        chosen = self._choose()
        if chosen is not thread:
            self.current = chosen
            chosen.gate.release()
            thread.gate.acquire()
        if self.failure is not None and thread is self.main:
            raise self.failure

    def _choose(self):
        """Return who runs next, after the events that are due; time advances when nobody can run."""
        ready, events = self._ready, self._events
        self.steps += 1
        if self.steps > STEPS_MAX and self.failure is None:
            self.failure = StuckError(f"no end after {self.steps} turns")
        if self.failure is not None:
            return self._end()
        self.now_ns += 200 + int(self._chance() * 3800)
        while True:
            while events and events[0][0] <= self.now_ns:
                try:
                    heapq.heappop(events)[2]()
                except BaseException as error:
                    self.failure = error
                    return self._end()
            if ready:
                index = int(self._chance() * len(ready)) if len(ready) > 1 else 0
                thread = ready.pop(index)
                thread.is_ready = False
                if thread.process.holds(thread):
                    continue
                return thread
            if not events:
                self.failure = StuckError("everybody waits, and nothing is to come")
                return self._end()
            self.now_ns = max(self.now_ns, events[0][0])

    # The world's own thread

    def run(self, process, work):
        """Run the world in the calling thread, as its first thread; returns when `work` has, or raises the failure."""
        self.main = thread = VirtualThread(process, "main")
        self._local.thread = thread
        self.current = thread
        result = None
        try:
            result = work()
        except BaseException as error:
            if self.failure is None:
                self.failure = error
        if self.failure is not None:
            raise self.failure
        return result

    def is_inside(self):
        """Return whether the calling thread is one of the world's."""
        return getattr(self._local, "thread", None) is not None

    def _end(self):
        """The world failed: only its first thread goes on, and raises."""
        self.main.is_ready = False
        return self.main


class VirtualLock:
    """A lock whose waiting threads are the scheduler's; made instead of every `threading.Lock` of the world."""

    __slots__ = ("_is_locked", "_scheduler", "_waiting")

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self._is_locked = False
        self._waiting = deque()

    def acquire(self, blocking=True, timeout=-1):
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking:
            return False
        scheduler = self._scheduler()
        thread = scheduler.current
        deadline_ns = None if timeout is None or timeout < 0 else scheduler.now_ns + int(timeout * 1e9)
        while self._is_locked:
            self._waiting.append(thread)
            left_s = None if deadline_ns is None else (deadline_ns - scheduler.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                self._waiting.remove(thread)
                return False
            if not scheduler.wait(left_s) and thread in self._waiting:
                self._waiting.remove(thread)
        self._is_locked = True
        return True

    def release(self):
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiting:
            self._scheduler().wake(self._waiting.popleft())

    def locked(self):
        return self._is_locked

    def _at_fork_reinit(self):
        self._is_locked = False
        self._waiting.clear()

    def __enter__(self):
        self.acquire()
        return True

    def __exit__(self, *_):
        self.release()
