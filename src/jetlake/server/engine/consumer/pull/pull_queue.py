"""The queue of waiting pull requests: whose turn it is, which expire, which get a heartbeat.

Requests wait on levels, served in order; within a level they take turns, one message each. Without priorities all are
on level 0. The queue chooses requests and answers them with statuses; it knows nothing of messages but their size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum

from jetlake.server.engine.consumer import statuses
from jetlake.server.engine.consumer.pull.pull_request import WaitingPull

__all__ = ["PullQueue", "Reach"]

# A full queue is searched for requests without a subscriber at most once in this time.
_REAP_EVERY_NS = 1_000_000_000
# Ended requests that are always tolerated in the levels: a sweep for fewer costs more than it frees.
_GONE_MIN = 32


class Reach(IntEnum):
    """State of an inbox."""

    GONE = 0
    """No subscriber is left."""
    CONGESTED = 1
    """The subscriber's buffer is full; the request must wait."""
    OPEN = 2


class PullQueue:
    """Waiting requests.

    A request that ends is marked and dropped when its turn comes, so that ending one costs the same however many wait.

    Args:
        limit: most requests that may wait at once.
        answer: sends a status to an inbox.
        reach: returns the state of an inbox.
    """

    def __init__(self, limit: int, answer: Callable[[bytes, bytes], None], reach: Callable[[bytes], Reach]) -> None:
        self.limit = limit
        self.next_due_ns = 0
        """Earliest deadline or heartbeat of a request, or a time before it; 0 = none."""
        self.counts_bytes = 0
        """Number of waiting requests with a limit of bytes."""
        self.held_back = False
        """The last search for a request passed over one whose inbox was congested."""
        self._answer = answer
        self._reach = reach
        self._levels: list[deque[WaitingPull]] = [deque()]
        self._size = 0
        self._one_shots: list[WaitingPull] = []
        self._reaped_ns = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[WaitingPull]:
        for level in self._levels:
            for request in level:
                if request.waiting:
                    yield request

    # Adding

    def is_full(self, now_ns: int) -> bool:
        """Return whether no more requests may wait; expired ones and those without a subscriber are ended first."""
        if self._size < self.limit:
            return False
        if now_ns - self._reaped_ns >= _REAP_EVERY_NS:
            self._reaped_ns = now_ns
            self.reap(now_ns)
        return self._size >= self.limit

    def add(self, request: WaitingPull, now_ns: int, level: int = 0) -> None:
        """Append a request to its level; its expiry and heartbeats count from now."""
        if request.expires_ns:
            request.deadline_ns = now_ns + request.expires_ns
            self._expect(request.deadline_ns)
        if request.idle_heartbeat_ns:
            request.next_heartbeat_ns = now_ns + request.idle_heartbeat_ns
            self._expect(request.next_heartbeat_ns)
        if request.max_bytes:
            self.counts_bytes += 1
        if request.is_one_shot:
            self._remember_one_shot(request)
        while len(self._levels) <= level:
            self._levels.append(deque())
        self._levels[level].append(request)
        request.waiting = True
        self._size += 1

    def _expect(self, due_ns: int) -> None:
        if not self.next_due_ns or due_ns < self.next_due_ns:
            self.next_due_ns = due_ns

    def _remember_one_shot(self, request: WaitingPull) -> None:
        if len(self._one_shots) > 2 * self._size + _GONE_MIN:
            self._one_shots = [one for one in self._one_shots if one.waiting]
        self._one_shots.append(request)

    def open_requests(self) -> Iterator[WaitingPull]:
        """Yield the requests whose inboxes can take a message now; those without a subscriber end."""
        self.held_back = False
        for request in list(self):
            reach = self._reach(request.reply)
            if reach is Reach.OPEN:
                yield request
            elif reach is Reach.GONE:
                self._leave(request)
            else:
                self.held_back = True

    def batch_total(self) -> int:
        """Return how many messages the waiting requests still want."""
        return sum(request.batch for request in self)

    # Serving

    def deal(self, count: int, now_ns: int) -> list[WaitingPull]:
        """Return the requests that get the next `count` messages, one for each; fewer when fewer are wanted.

        Requests take turns, and their batches are reduced. Only for queues in which no request counts bytes, and for
        inboxes that are known to be open.
        """
        dealt: list[WaitingPull] = []
        for level in self._levels:
            while level and len(dealt) < count:
                turn = self._front(level, count - len(dealt), now_ns)
                if not turn:
                    break
                rounds = 1
                if not level:
                    smallest = min([request.batch for request in turn])
                    rounds = max(min(smallest, (count - len(dealt)) // len(turn)), 1)
                dealt += turn * rounds
                for request in turn:
                    self._charge(request, rounds, now_ns)
                    if request.batch > 0:
                        level.append(request)
                    else:
                        self._leave(request)
        return dealt

    def _front(self, level: deque[WaitingPull], count: int, now_ns: int) -> list[WaitingPull]:
        """Take the first `count` requests from a level, and drop ended and expired ones on the way."""
        front: list[WaitingPull] = []
        while level and len(front) < count:
            request = level.popleft()
            if request.waiting and not self._times_out(request, now_ns):
                front.append(request)
        return front

    def choose(self, size: int, now_ns: int, admits: Callable[[WaitingPull], bool] | None = None) -> WaitingPull | None:
        """Return the request that gets the next message of `size` bytes; None when no request can have it now.

        Requests whose limit of bytes is too small are ended with a status. A request that `admits` refuses keeps
        waiting, unless `admits` ended it, and the next one is tried. The chosen request's batch and bytes are reduced.
        """
        self.held_back = False
        for level in self._levels:
            for _ in range(len(level)):
                if not level:
                    break
                request = level.popleft()
                if not request.waiting or self._times_out(request, now_ns):
                    continue
                reach = self._reach(request.reply)
                if reach is Reach.GONE:
                    self._leave(request)
                    continue
                if reach is Reach.CONGESTED:
                    self.held_back = True
                    level.append(request)
                    continue
                if admits is not None and not admits(request):
                    if request.waiting:
                        level.append(request)
                    continue
                if request.max_bytes and size > request.max_bytes:
                    self.reject(request, statuses.SIZE_EXCEEDS_MAX_BYTES)
                    continue
                self._charge(request, 1, now_ns)
                if request.max_bytes:
                    request.max_bytes -= size
                    if not request.max_bytes:
                        # Exactly filled: the request ends without a status.
                        request.batch = 0
                        self.counts_bytes -= 1
                if request.batch > 0:
                    level.append(request)
                else:
                    self._leave(request)
                return request
        return None

    def complete(self, request: WaitingPull) -> None:
        """After a message was sent, end a request with a status when its batch is complete but its bytes are not."""
        if not request.waiting and request.max_bytes > 0:
            self._answer(
                request.reply, statuses.with_pending(statuses.BATCH_COMPLETED, request.batch, request.max_bytes)
            )

    def _times_out(self, request: WaitingPull, now_ns: int) -> bool:
        """End the request if it has expired, and return whether it had."""
        if not request.deadline_ns or request.deadline_ns > now_ns:
            return False
        self.reject(request, statuses.REQUEST_TIMEOUT)
        return True

    def _charge(self, request: WaitingPull, count: int, now_ns: int) -> None:
        if not request.delivered and request.no_wait and request.deadline_ns:
            self._remember_one_shot(request)
        request.batch -= count
        request.delivered += count
        if request.idle_heartbeat_ns:
            request.next_heartbeat_ns = now_ns + request.idle_heartbeat_ns

    # Ending

    def reject(self, request: WaitingPull, line: bytes) -> None:
        """End the request with a status that says how many messages and bytes were still to come."""
        self._leave(request)
        self._answer(request.reply, statuses.with_pending(line, request.batch, request.max_bytes))

    def _leave(self, request: WaitingPull) -> None:
        if not request.waiting:
            return
        request.waiting = False
        self._size -= 1
        if request.max_bytes:
            self.counts_bytes -= 1
        standing = sum(map(len, self._levels))
        if standing > 2 * self._size + _GONE_MIN:
            for level in self._levels:
                living = [request for request in level if request.waiting]
                level.clear()
                level.extend(living)

    def end_one_shots(self) -> None:
        """End requests that do not wait for more messages, because no message is left to deliver now."""
        if self._one_shots:
            one_shots, self._one_shots = self._one_shots, []
            for request in one_shots:
                if request.waiting:
                    self._leave(request)
                    self._answer(request.reply, statuses.NO_MESSAGES)

    def close(self, header: bytes) -> None:
        """End every request with this status."""
        for request in list(self):
            self._leave(request)
            self._answer(request.reply, header)

    def shut_down(self) -> None:
        """End every request because the server stops."""
        for request in list(self):
            self.reject(request, statuses.SERVER_SHUTDOWN)

    def reap(self, now_ns: int, heartbeat: bytes = b"") -> None:
        """End requests that have expired or lost their subscriber, and send due heartbeats.

        In place of its heartbeat, a request that had a message and does not wait for more ends: no room for more
        deliveries came up in all that time.

        Args:
            now_ns: the time.
            heartbeat: the status to send; empty = send no heartbeats now.
        """
        next_ns = 0
        for request in list(self):
            if self._times_out(request, now_ns):
                continue
            if self._reach(request.reply) is Reach.GONE:
                self._leave(request)
                continue
            if heartbeat and request.next_heartbeat_ns and request.next_heartbeat_ns <= now_ns:
                if request.is_one_shot:
                    self._leave(request)
                    self._answer(request.reply, statuses.NO_MESSAGES)
                    continue
                request.next_heartbeat_ns = now_ns + request.idle_heartbeat_ns
                self._answer(request.reply, heartbeat)
            for due_ns in (request.deadline_ns, request.next_heartbeat_ns):
                if due_ns and (not next_ns or due_ns < next_ns):
                    next_ns = due_ns
        self.next_due_ns = next_ns
