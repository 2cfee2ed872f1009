"""The flow control of consume as a pure state machine: what was asked for, what was received, when to pull again.

Two counts make up what NATS ADR-37 calls pending: what was asked for and not received (kept here), and what was
received and not handed out yet (passed in by the shell). When pending falls to the threshold, a pull fills it up to the
limit. Both are messages, or bytes when the consume is limited by bytes.

The reasons are in decision 14 (docs/decisions).
"""

from __future__ import annotations

from collections import deque

from jetlake.client.pull.pull_options import BATCH_UNLIMITED, ConsumeOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.requests import PullRequest

__all__ = ["PullState"]

_NO_END = 1 << 62
_RETRY_FIRST_S = 0.25
_RETRY_MAX_S = 5.0
_SHUTDOWN_WAIT_S = 1.0


class PullState:
    """The outstanding pulls of one consume, and when the next one is due.

    Attributes:
        outstanding: messages (or bytes) asked for and not received.
        pin_id: the pin of this client in its priority group; empty while it has none.
        is_connected: pulls can be sent.
        wanted: how many messages are waited for, when nothing may be fetched ahead of them; None fetches ahead.
    """

    __slots__ = (
        "_expires_ns",
        "_heartbeat_ns",
        "_last_heard",
        "_left",
        "_limit",
        "_misfit",
        "_open",
        "_options",
        "_retry_at",
        "_retry_s",
        "_silence_s",
        "_threshold",
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
        # What is left of each pull, oldest first. What comes is taken off the oldest, so that the newest, the only one
        # that can be refused on arrival without a word about its size, is still whole.
        self._open: deque[int] = deque()
        self.outstanding = 0
        self.pin_id = ""
        self.is_connected = True
        self.wanted: int | None = None

    @property
    def silence_s(self) -> float:
        """The silence after which a server that owes an answer is taken for stalled."""
        return self._silence_s

    @property
    def last_heard(self) -> float:
        """When the server gave its last sign of life on the pulls' inbox."""
        return self._last_heard

    # Asking

    def refill_at(self) -> int:
        """Return how much may wait to be handed out, at most, for a pull to be due; negative when none is."""
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
            # A message that did not fit into so many bytes will not fit now.
            if pending > self._threshold or room <= self._misfit:
                return None
        else:
            room = min(min(self._limit, self.wanted) - pending, left)
            if room <= 0:
                return None
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

    # Hearing

    def accepted(self, messages: int) -> bool:
        """Count accepted messages; True once `stop_after` is reached."""
        self._left -= messages
        return self._left <= 0

    def received(self, amount: int, now: float) -> None:
        """Count received messages (or bytes)."""
        self._last_heard = now
        self._retry_s = _RETRY_FIRST_S
        self._misfit = 0
        self._settle(amount)

    def heard(self, status: PullStatus, now: float) -> PullOutcome:
        """Read a status; the counts follow."""
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
            # Each pull is told apart and without numbers; the new ones wait until all have been.
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
            # The connection goes with the server; asking a server that stops is in vain.
            self._retry_at = now + _SHUTDOWN_WAIT_S
        self._over(status)
        return PullOutcome.ENDED

    def _over(self, status: PullStatus) -> None:
        """End one pull. The server says how much of it was left, or it was refused as a whole on arrival."""
        left = status.pending_bytes if self.by_bytes else status.pending_messages
        if left is not None:
            self._settle(left)
        elif self._open:
            self.outstanding -= self._open.pop()

    def _settle(self, amount: int) -> None:
        """Subtract what is no longer outstanding, from the oldest pull on."""
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
        """Return when to look again, for a missed heartbeat or to ask again after a refusal; None for never."""
        if not self.is_connected:
            return None
        silent_at = self._last_heard + self._silence_s if self.outstanding else None
        if self._retry_at > now:
            return self._retry_at if silent_at is None else min(silent_at, self._retry_at)
        return silent_at

    def missed_heartbeat(self, now: float) -> bool:
        """Return whether the server was silent for two intervals while it owed an answer."""
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
        """There is a server again and the consumer is known to be there."""
        self.is_connected = True
        self.start_over(now)
