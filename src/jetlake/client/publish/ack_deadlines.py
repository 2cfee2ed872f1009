"""How long each message of a publish window waits for its acknowledgement, with one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from jetlake.client.publish.single_message import SingleMessage
from jetlake.errors import PublishTimeoutError

__all__ = ["AckDeadlines"]


class AckDeadlines:
    """The deadlines of the messages under way: each has two halves of its time, and is repeated between them.

    Args:
        loop: the event loop.
        pending: the messages by their reply subject; those without a timeout of their own by their deadline.
        ack_timeout_s: how long a message waits that has no timeout of its own.
        is_connected: whether messages go to a server; without one nothing is overdue.
        repeat: called with a message whose time is half over.
        give_up: takes out messages whose time is over.
        split_runs: puts the messages of runs whose time is half over among the others, and returns when the next run
            is due.

    Attributes:
        timer: fires at the next deadline; None while nothing has one.
    """

    __slots__ = (
        "_ack_timeout_s",
        "_give_up",
        "_is_connected",
        "_loop",
        "_own",
        "_pending",
        "_repeat",
        "_split_runs",
        "timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pending: dict[bytes, SingleMessage],
        ack_timeout_s: float,
        *,
        is_connected: Callable[[], bool],
        repeat: Callable[[bytes, SingleMessage], None],
        give_up: Callable[[list[bytes], Exception], None],
        split_runs: Callable[[float], float | None],
    ) -> None:
        self._loop = loop
        self._pending = pending
        self._ack_timeout_s = ack_timeout_s
        self._is_connected = is_connected
        self._repeat = repeat
        self._give_up = give_up
        self._split_runs = split_runs
        self._own: list[tuple[float, bytes]] = []
        self.timer: asyncio.TimerHandle | None = None

    def arm(self, at: float) -> None:
        """Look at the deadlines at this time, and not before."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self._loop.call_at(at, self._sweep)

    def clear(self) -> None:
        """Forget the messages' own deadlines: all messages are sent anew."""
        self._own.clear()

    def stop(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def restart(self, reply: bytes, pending: SingleMessage) -> None:
        """Start the wait of a message that is sent now; one that has a timeout of its own may need an earlier timer."""
        pending.is_late = False
        self._wait_half(reply, pending)
        if pending.timeout_s is not None and (self.timer is None or self.timer.when() > pending.deadline):
            self.arm(pending.deadline)

    def _wait_half(self, reply: bytes, pending: SingleMessage) -> None:
        """Give the message half of its time: the first, or the second."""
        wait_s = self._ack_timeout_s if pending.timeout_s is None else pending.timeout_s
        pending.deadline = self._loop.time() + wait_s / 2
        if pending.timeout_s is not None:
            heappush(self._own, (pending.deadline, reply))

    def _sweep(self) -> None:
        """Give up what is overdue, after a second try if it may be sent twice."""
        self.timer = None
        if not self._is_connected():
            return
        now = self._loop.time()
        overdue = []
        next_at = None
        run_at = self._split_runs(now)
        # Of those without a timeout of their own, the one that is due next stands first.
        for reply, pending in self._pending.items():
            if pending.timeout_s is None:
                if pending.deadline > now:
                    next_at = pending.deadline
                    break
                overdue.append(reply)
        own = self._own
        while own and (own[0][0] <= now or own[0][1] not in self._pending):
            deadline, reply = heappop(own)
            if reply in self._pending and self._pending[reply].deadline == deadline:
                overdue.append(reply)
        self._time_out([reply for reply in overdue if self._pending[reply].is_late])
        self._begin_second_half([reply for reply in overdue if reply in self._pending])
        if next_at is None and self._pending:
            next_at = now + self._ack_timeout_s / 2
        times = [at for at in (next_at, run_at, own[0][0] if own else None) if at is not None]
        if times:
            self.arm(max(min(times), now + 0.001))

    def _time_out(self, replies: list[bytes]) -> None:
        by_wait: dict[float, list[bytes]] = {}
        for reply in replies:
            wait_s = self._pending[reply].timeout_s
            by_wait.setdefault(self._ack_timeout_s if wait_s is None else wait_s, []).append(reply)
        for wait_s, late in by_wait.items():
            self._give_up(late, PublishTimeoutError(f"no acknowledgement within {wait_s:g} s"))

    def _begin_second_half(self, replies: list[bytes]) -> None:
        for reply in replies:
            self._pending[reply] = pending = self._pending.pop(reply)
            pending.is_late = True
            self._wait_half(reply, pending)
            self._repeat(reply, pending)
