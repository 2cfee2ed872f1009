"""Waiting pull requests: how they are read, whose turn it is, which expire, which get a heartbeat.

Requests wait on levels, served in order; within a level they take turns, one message each. Without priorities all are
on level 0. The queue chooses requests and answers them with statuses; it knows nothing of messages but their size. A
request that ends is marked and dropped when its turn comes, so that ending one costs the same however many wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from jetlake.errors import ConfigError, DecodeError
from jetlake.model.encoding.codec import decode
from jetlake.model.requests import PullRequest
from jetlake.server.engine.consumer import statuses

_INT64_MAX = 2**63 - 1


class WaitingPull(msgspec.Struct, eq=False):
    """One pull request and its state while it waits.

    Durations are nanoseconds; a deadline of 0 means there is none.
    """

    reply: bytes = b""
    """The inbox that gets messages and statuses."""
    batch: int = 1
    """Messages still to come; 0 and less count as 1."""
    max_bytes: int = 0
    """Bytes still allowed; 0 = no limit."""
    expires_ns: int = 0
    """How long the request may wait; 0 = for ever."""
    no_wait: bool = False
    idle_heartbeat_ns: int = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    """The pin that the client was assigned."""
    priority: int = 0

    deadline_ns: int = 0
    next_heartbeat_ns: int = 0
    delivered: int = 0
    """Messages sent to the request."""
    waiting: bool = False
    """The request is in the queue."""
    client: dict[str, Any] | None = None
    """The client, for advisories."""

    @property
    def is_conditional(self) -> bool:
        """Whether the request wants messages only while enough are pending."""
        return self.min_pending > 0 or self.min_ack_pending > 0

    @property
    def is_one_shot(self) -> bool:
        """Whether the request ends as soon as no message is left to deliver."""
        return self.no_wait and (not self.deadline_ns or self.delivered > 0)


def parse_pull_request(reply: bytes, body: bytes) -> WaitingPull:
    """Parse a body: empty for one message, a number of messages, or a JSON object.

    `expires` of zero or less means that the request does not expire (NATS ADR-13).

    Raises:
        ConfigError: the object is invalid; the text is the detail of a 400.
    """
    body = body.strip()
    if not body.startswith(b"{"):
        return WaitingPull(reply=reply, batch=_number(body))
    try:
        read = decode(PullRequest, body)
    except DecodeError as error:
        raise ConfigError(str(error)) from None
    if read.idle_heartbeat > 0 and read.idle_heartbeat * 2 > read.expires:
        raise ConfigError("heartbeat value too large")
    return WaitingPull(
        reply=reply,
        batch=read.batch,
        max_bytes=max(read.max_bytes, 0),
        expires_ns=max(read.expires, 0),
        no_wait=read.no_wait,
        idle_heartbeat_ns=max(read.idle_heartbeat, 0),
        group=read.group,
        min_pending=read.min_pending,
        min_ack_pending=read.min_ack_pending,
        id=read.id,
        priority=read.priority,
    )


def _number(body: bytes) -> int:
    """Return the batch of a body that is not JSON; anything but a number counts as 1."""
    digits = body.removeprefix(b"-") if body.startswith(b"-") else body.removeprefix(b"+")
    if not digits.isdigit() or len(digits) > 19 or int(digits) > _INT64_MAX:
        return 1
    return int(body)


# A full queue is searched for requests without a subscriber at most once in this time.
_REAP_EVERY_NS = 1_000_000_000
# So few requests may be searched at every call.
_REAPED_ALWAYS = 64
# Most requests that expire or get a heartbeat at once; the others follow in the next turns.
_DUE_AT_ONCE = 512
# Ended requests that are always tolerated in the levels: a sweep for fewer costs more than it frees.
_GONE_MIN = 32


class InboxState(IntEnum):
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
        inbox_state: returns the state of an inbox.
    """

    def __init__(
        self, limit: int, answer: Callable[[bytes, bytes], None], inbox_state: Callable[[bytes], InboxState]
    ) -> None:
        self.limit = limit
        self.counts_bytes = 0
        """Number of waiting requests with a limit of bytes."""
        self.held_back = False
        """The last search for a request passed over one whose inbox was congested."""
        self._answer: Callable[[bytes, bytes], None] = answer
        self._inbox_state: Callable[[bytes], InboxState] = inbox_state
        self._levels: list[deque[WaitingPull]] = [deque()]
        self._size = 0
        self._one_shots: list[WaitingPull] = []
        self._reaped_ns = 0
        # A heap of deadlines and heartbeats; each waiting request that has one is in it once, and perhaps too early.
        self._due: list[tuple[int, int, WaitingPull]] = []
        self._added = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[WaitingPull]:
        for level in self._levels:
            for request in level:
                if request.waiting:
                    yield request

    @property
    def next_due_ns(self) -> int:
        """Earliest deadline or heartbeat of a request, or a time before it; 0 = none."""
        return self._due[0][0] if self._due else 0

    # Adding

    def is_full(self, now_ns: int) -> bool:
        """Return whether no more requests may wait; expired ones and those without a subscriber are ended first."""
        if self._size < self.limit:
            return False
        if now_ns - self._reaped_ns >= _REAP_EVERY_NS:
            self._reap(now_ns)
        return self._size >= self.limit

    def add(self, request: WaitingPull, now_ns: int, level: int = 0) -> None:
        """Append a request to its level; its expiry and heartbeats count from now."""
        if request.expires_ns:
            request.deadline_ns = now_ns + request.expires_ns
        if request.idle_heartbeat_ns:
            request.next_heartbeat_ns = now_ns + request.idle_heartbeat_ns
        self._expect(request)
        if request.max_bytes:
            self.counts_bytes += 1
        if request.is_one_shot:
            self._remember_one_shot(request)
        while len(self._levels) <= level:
            self._levels.append(deque())
        self._levels[level].append(request)
        request.waiting = True
        self._size += 1

    def _expect(self, request: WaitingPull) -> None:
        due_ns, heartbeat_ns = request.deadline_ns, request.next_heartbeat_ns
        if heartbeat_ns and (not due_ns or heartbeat_ns < due_ns):
            due_ns = heartbeat_ns
        if due_ns:
            if len(self._due) > 2 * self._size + _GONE_MIN:
                self._due = [entry for entry in self._due if entry[2].waiting]
                heapify(self._due)
            self._added += 1
            heappush(self._due, (due_ns, self._added, request))

    def _remember_one_shot(self, request: WaitingPull) -> None:
        if len(self._one_shots) > 2 * self._size + _GONE_MIN:
            self._one_shots = [one for one in self._one_shots if one.waiting]
        self._one_shots.append(request)

    def open_requests(self) -> Iterator[WaitingPull]:
        """Yield the requests whose inboxes can take a message now; those without a subscriber end."""
        self.held_back = False
        for request in list(self):
            inbox_state = self._inbox_state(request.reply)
            if inbox_state is InboxState.OPEN:
                yield request
            elif inbox_state is InboxState.GONE:
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
                inbox_state = self._inbox_state(request.reply)
                if inbox_state is InboxState.GONE:
                    self._leave(request)
                    continue
                if inbox_state is InboxState.CONGESTED:
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
        """End every request with this status, for good, and forget who delivers."""
        for request in list(self):
            self._leave(request)
            self._answer(request.reply, header)
        self._answer, self._inbox_state = _answer_nobody, _no_inbox

    def shut_down(self) -> None:
        """End every request because the server stops."""
        for request in list(self):
            self.reject(request, statuses.SERVER_SHUTDOWN)

    def reap(self, now_ns: int) -> None:
        """End requests that have expired or lost their subscriber; of many, at most once in a while."""
        if self._size <= _REAPED_ALWAYS or now_ns - self._reaped_ns >= _REAP_EVERY_NS:
            self._reap(now_ns)

    def _reap(self, now_ns: int) -> None:
        self._reaped_ns = now_ns
        for request in list(self):
            if not self._times_out(request, now_ns) and self._inbox_state(request.reply) is InboxState.GONE:
                self._leave(request)
        self._drop_ended()

    def run_due(self, now_ns: int, heartbeat: bytes) -> None:
        """End requests that have expired or lost their subscriber, and send heartbeats, as far as they are due.

        Of very many some are left, and are due at once. In place of its heartbeat, a request that had a message and
        does not wait for more ends: no room for more deliveries came up in all that time.

        Args:
            now_ns: the time.
            heartbeat: the status to send.
        """
        due = self._due
        for _ in range(_DUE_AT_ONCE):
            if not due or due[0][0] > now_ns:
                break
            request = heappop(due)[2]
            if not request.waiting or self._times_out(request, now_ns):
                continue
            if self._inbox_state(request.reply) is InboxState.GONE:
                self._leave(request)
                continue
            if request.next_heartbeat_ns and request.next_heartbeat_ns <= now_ns:
                if request.is_one_shot:
                    self._leave(request)
                    self._answer(request.reply, statuses.NO_MESSAGES)
                    continue
                request.next_heartbeat_ns = now_ns + request.idle_heartbeat_ns
                self._answer(request.reply, heartbeat)
            self._expect(request)
            due = self._due
        self._drop_ended()

    def _drop_ended(self) -> None:
        """Let the first request of the heap be one that waits."""
        while self._due and not self._due[0][2].waiting:
            heappop(self._due)


def _answer_nobody(_reply: bytes, _header: bytes) -> None:
    """Answer for a queue that was closed."""


def _no_inbox(_reply: bytes) -> InboxState:
    """Return that no inbox is reached from a queue that was closed."""
    return InboxState.GONE
