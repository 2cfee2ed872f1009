"""The flow control of consume as a pure state machine: messages requested and received, and when to pull again.

Pending, as NATS ADR-37 calls it, is the sum of two counts: messages requested and not received (`outstanding`, kept
here), and messages received and not handed out (`buffered`, passed in). When pending falls to the threshold, one pull
fills it up to the limit. All counts are messages, or bytes when the consume is limited by bytes.

Always true:

- `outstanding` is the sum of the open pulls, and never negative: a server that sends more than was requested, or whose
  statuses count twice, cannot make the client request more than the limit.
- Received messages are subtracted from the oldest pull, since the server serves pulls in order. A pull that is refused
  on arrival comes without counts; it can only be the newest one, which is therefore still whole.
- While the connection is lost nothing is outstanding: pulls do not survive their server.

A rate is a token bucket, one token for each message that may come now: no more than these are requested, so that the
others stay on the server, where other readers find them and no ack wait runs.

The reasons are in decision 14 (docs/decisions).
"""

from __future__ import annotations

from collections import deque

from jetlake.client.pull.options import BATCH_UNLIMITED, ConsumeOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.requests import PullRequest

_NO_END = 1 << 62
_RETRY_FIRST_S = 0.25
_RETRY_MAX_S = 5.0
_SHUTDOWN_WAIT_S = 1.0
_BURST_S = 0.1
"""The token bucket holds the messages of this many seconds, which may come together."""


class PullState:
    """The outstanding pulls of one consume, and when the next one is due.

    Attributes:
        outstanding: messages (or bytes) requested and not received.
        pin_id: the pin of this client in its priority group; empty while it has none.
        is_connected: pulls can be sent.
        wanted: number of tasks that wait for a message, when nothing may be fetched ahead; None fetches ahead.
    """

    __slots__ = (
        "_burst",
        "_expires_ns",
        "_heartbeat_ns",
        "_last_heard",
        "_left",
        "_limit",
        "_misfit",
        "_open",
        "_options",
        "_rate",
        "_retry_at",
        "_retry_s",
        "_silence_s",
        "_threshold",
        "_tokens",
        "_tokens_at",
        "by_bytes",
        "is_connected",
        "outstanding",
        "pin_id",
        "wanted",
    )

    def __init__(self, options: ConsumeOptions, now: float) -> None:
        self._options = options
        self.by_bytes = options.max_bytes > 0
        self._limit = options.max_bytes or options.max_messages
        self._threshold = options.threshold_bytes or options.threshold_messages
        self._expires_ns = nanoseconds(options.expires_s)
        self._heartbeat_ns = nanoseconds(options.idle_heartbeat_s)
        self._silence_s = 2 * options.idle_heartbeat_s
        self._last_heard = now
        self._retry_at = 0.0
        self._retry_s = _RETRY_FIRST_S
        self._misfit = 0
        self._left = options.stop_after or _NO_END
        self._rate = options.max_rate
        self._burst = max(1, int(options.max_rate * _BURST_S))
        self._tokens = float(self._burst)
        self._tokens_at = now
        # The outstanding part of each pull, oldest first.
        self._open: deque[int] = deque()
        self.outstanding = 0
        self.pin_id = ""
        self.is_connected = True
        self.wanted: int | None = None

    @property
    def silence_s(self) -> float:
        """The seconds of silence after which a server with open pulls counts as stalled."""
        return self._silence_s

    @property
    def last_heard(self) -> float:
        """When the server last sent anything to the pulls' inbox."""
        return self._last_heard

    # Requests

    def refill_at(self) -> int:
        """Return the number of buffered messages at which a pull is due; negative when none is."""
        return self._threshold - self.outstanding if self.is_connected and self.wanted is None else -1

    def next_request(self, buffered: int, now: float) -> PullRequest | None:
        """Return the pull to send now, if one is due; it counts as sent.

        Args:
            buffered: messages (or bytes) received and not handed out.
            now: the time.
        """
        if not self.is_connected or now < self._retry_at:
            return None
        pending = self.outstanding + buffered
        left = self._left - self.outstanding
        if self.wanted is None:
            room = min(self._limit - pending, left)
            # A message that did not fit into `_misfit` bytes will not fit now.
            if pending > self._threshold or room <= self._misfit:
                return None
        else:
            room = min(min(self._limit, self.wanted) - pending, left)
            if room <= 0:
                return None
        if self._rate:
            allowed = self._allowed(now)
            if allowed < min(room, self._step):
                return None
            room = min(room, allowed)
        if not self.outstanding:
            self._last_heard = now
        self.outstanding += room
        self._open.append(room)
        group = self._options.group
        return PullRequest(
            batch=BATCH_UNLIMITED if self.by_bytes else room,
            expires=self._expires_ns,
            max_bytes=room if self.by_bytes else 0,
            idle_heartbeat=self._heartbeat_ns,
            group=group.group,
            min_pending=group.min_pending,
            min_ack_pending=group.min_ack_pending,
            priority=group.priority,
            id=self.pin_id,
        )

    # The rate

    @property
    def _step(self) -> int:
        """The fewest messages of a pull: with a high rate, not one pull for each message."""
        return max(1, self._burst // 2)

    def _allowed(self, now: float) -> int:
        """Return how many messages may be requested beside the outstanding ones."""
        self._tokens = min(float(self._burst), self._tokens + self._rate * max(0.0, now - self._tokens_at))
        self._tokens_at = now
        # A little more, since a timer may fire a rounding error early.
        return int(self._tokens + 1e-6) - self.outstanding

    def _allowed_at(self, now: float) -> float | None:
        """Return when the next pull is allowed; None while the bucket could not hold enough tokens for one."""
        if not self._rate or self._burst - self.outstanding < self._step:
            return None
        missing = self._step + self.outstanding - self._tokens
        return None if missing <= 0 else now + missing / self._rate

    # Answers

    def accepted(self, messages: int) -> bool:
        """Count accepted messages; True once `stop_after` is reached."""
        self._left -= messages
        return self._left <= 0

    def received(self, amount: int, now: float) -> None:
        """Count received messages (or bytes)."""
        self._last_heard = now
        self._retry_s = _RETRY_FIRST_S
        self._misfit = 0
        self._subtract(amount)
        if self._rate:
            self._allowed(now)
            self._tokens -= amount

    def heard(self, status: PullStatus, now: float) -> PullOutcome:
        """Read a status, and adjust the counts."""
        self._last_heard = now
        outcome = classify(status)
        if outcome is PullOutcome.ENDED:
            return self._ended(status, now)
        if outcome is PullOutcome.UNPINNED:
            self.pin_id = ""
            self._over(status)
        elif outcome in (PullOutcome.REFUSED, PullOutcome.UNAVAILABLE):
            self._over(status)
            self._back_off(now)
        elif outcome is PullOutcome.LOST:
            # Each lost pull gets a status without counts; new pulls wait until all these statuses have come.
            self._reset()
            self._back_off(now)
        return outcome

    def _ended(self, status: PullStatus, now: float) -> PullOutcome:
        words = status.description.lower()
        if self.by_bytes and "size exceeds" in words:
            left = status.pending_bytes or 0
            if left >= self._limit:
                return PullOutcome.TERMINAL  # The whole limit was free and the message did not fit: it never will.
            self._misfit = left
        elif "shutdown" in words:
            # The connection is lost with the server, so a pull sent now would be too.
            self._retry_at = now + _SHUTDOWN_WAIT_S
        self._over(status)
        return PullOutcome.ENDED

    def _over(self, status: PullStatus) -> None:
        """End one pull: the status has its outstanding part, or the pull was refused as a whole on arrival."""
        left = status.pending_bytes if self.by_bytes else status.pending_messages
        if left is not None:
            self._subtract(left)
        elif self._open:
            self.outstanding -= self._open.pop()

    def _subtract(self, amount: int) -> None:
        """Subtract an amount that is no longer outstanding, from the oldest pull on."""
        amount = min(amount, self.outstanding)
        self.outstanding -= amount
        pulls = self._open
        while amount > 0:
            first = pulls[0]
            if first > amount:
                pulls[0] = first - amount
                return
            pulls.popleft()
            amount -= first

    def _back_off(self, now: float) -> None:
        self._retry_at = now + self._retry_s
        self._retry_s = min(_RETRY_MAX_S, self._retry_s * 2)

    def _reset(self) -> None:
        self.outstanding = 0
        self._open.clear()

    # Time and connection

    def deadline(self, now: float) -> float | None:
        """Return when something is due: a missed heartbeat, a retry, or the rate's next pull; None for never."""
        if not self.is_connected:
            return None
        times = [self._last_heard + self._silence_s] if self.outstanding else []
        if self._retry_at > now:
            times.append(self._retry_at)
        elif (allowed_at := self._allowed_at(now)) is not None:
            times.append(allowed_at)
        return min(times, default=None)

    def missed_heartbeat(self, now: float) -> bool:
        """Return whether the server was silent for two intervals with pulls open."""
        return self.is_connected and self.outstanding > 0 and now >= self._last_heard + self._silence_s

    def start_over(self, now: float) -> None:
        """Forget all outstanding pulls, and measure silence from now."""
        self._reset()
        self._last_heard = now
        self._retry_at = 0.0

    def disconnected(self) -> None:
        """Drop all pulls with the lost connection; silence is not measured until the next one."""
        self.is_connected = False
        self._reset()

    def reconnected(self, now: float) -> None:
        """Start again: a server is connected and the consumer exists."""
        # sometimes: a pull is asked again after a reconnect
        self.is_connected = True
        self.start_over(now)
