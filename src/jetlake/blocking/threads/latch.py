"""Something that happens once, and the threads that wait for it."""

from __future__ import annotations

from threading import TIMEOUT_MAX, Lock

__all__ = ["Latch"]


class Latch:
    """An event that stays set. Unlike `threading.Event`, Ctrl-C at any point of `wait` leaves it usable."""

    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiters: list[Lock] = []

    def set(self) -> None:
        """Open the latch: all waiters go on, now and later."""
        self.is_set = True
        # Each waiter has a lock of its own, so one that was interrupted holds up nobody.
        while self._waiters:
            try:
                self._waiters.pop().release()
            except IndexError:
                return  # Another thread sets it too.

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False if the time ran out before."""
        if self.is_set:
            return True
        waiter = Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if not self.is_set:
            waiter.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), TIMEOUT_MAX))
        return self.is_set
