"""One fetch as a pure state machine: when it is complete, why it ended, and what to tell."""

from __future__ import annotations

from jetlake.client.pull.pull_options import FetchOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify
from jetlake.errors import ConsumeError, ConsumerDeletedError, HeartbeatMissedError, PullStatusError

__all__ = ["FetchState"]

# The server ends a pull by itself when it expires; this much later it has failed to.
_GRACE_S = 1.0
_NO_WAIT_S = 5.0


class FetchState:
    """What one fetch has received.

    Attributes:
        is_over: nothing more will come.
        error: why it ended early, or None.
        status: the last status that the server sent, or None.
        is_unavailable: nobody answers for the consumer.
    """

    __slots__ = (
        "_bytes_left",
        "_consumer",
        "_end_at",
        "_last_heard",
        "_messages_left",
        "_options",
        "_stream",
        "error",
        "is_over",
        "is_unavailable",
        "status",
    )

    def __init__(self, options: FetchOptions, stream: str, consumer: str, now: float) -> None:
        self._options = options
        self._stream = stream
        self._consumer = consumer
        self._messages_left = options.max_messages
        self._bytes_left = options.max_bytes
        self._last_heard = now
        self._end_at = now + (options.expires_s or _NO_WAIT_S) + _GRACE_S
        self.is_over = False
        self.is_unavailable = False
        self.error: ConsumeError | None = None
        self.status: PullStatus | None = None

    def received(self, messages: int, size: int, now: float) -> None:
        """Count received messages and their bytes."""
        self._last_heard = now
        self._messages_left -= messages
        if self._options.max_bytes:
            self._bytes_left -= size
            self.is_over = self._bytes_left <= 0
        if self._messages_left <= 0:
            self.is_over = True

    def heard(self, status: PullStatus, now: float) -> None:
        """Read a status."""
        self._last_heard = now
        outcome = classify(status)
        if outcome is PullOutcome.HEARTBEAT:
            return
        self.status = status
        self.is_over = True
        if outcome is PullOutcome.DELETED:
            self.error = ConsumerDeletedError(self._stream, self._consumer)
        elif outcome is PullOutcome.UNAVAILABLE:
            self.is_unavailable = True
        elif outcome is not PullOutcome.ENDED:
            self.error = PullStatusError(status.status, status.description)

    def deadline(self) -> float:
        """When to look again."""
        if self._options.idle_heartbeat_s:
            return min(self._end_at, self._last_heard + 2 * self._options.idle_heartbeat_s)
        return self._end_at

    def expire(self, now: float) -> None:
        """Time has come to `deadline`: the server is silent beyond what it promised, or the fetch is simply over."""
        silence_s = 2 * self._options.idle_heartbeat_s
        if silence_s and now - self._last_heard >= silence_s:
            self.error = HeartbeatMissedError(silence_s)
        elif now < self._end_at:
            return
        self.is_over = True
