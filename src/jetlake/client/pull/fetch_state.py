"""One fetch as a pure state machine: what to pull, when to pull again, when it is complete, why it ended."""

from __future__ import annotations

from jetlake.client.pull.pull_options import FetchOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify
from jetlake.errors import (
    ConsumerDeletedError,
    HeartbeatMissedError,
    JetlakeError,
    PullStatusError,
)
from jetlake.model.requests import PullRequest

__all__ = ["FetchState"]

# The server ends a pull by itself when it expires; this much later it has failed to.
_GRACE_S = 1.0
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 1.0


class FetchState:
    """What one fetch has asked for and received.

    A pull that is lost (with the connection, with the consumer's leader, or in silence) is sent again for what is left,
    as long as the fetch has time; only at the end of its time the loss is an error, if no message has come.

    Args:
        options: what was asked for.
        stream: the stream's name.
        consumer: the consumer's name.
        now: when the fetch began.
        no_wait_s: how long a fetch that does not wait for messages may wait for a server.
        is_patient: send a lost pull again; otherwise the fetch ends with it.

    Attributes:
        end_at: when the time of the fetch is over, except for what is under way by then.
        is_over: nothing more will come.
        error: why it ended early, or None.
        status: the last status that the server sent, or None.
        loss: why the last pull was lost, until the next one is sent.
        is_unavailable: the last pull was lost because nobody answers for the consumer.
    """

    __slots__ = (
        "_bytes_left",
        "_consumer",
        "_heartbeat_s",
        "_is_empty",
        "_is_patient",
        "_last_heard",
        "_messages_left",
        "_options",
        "_retry_s",
        "_stream",
        "end_at",
        "error",
        "is_over",
        "is_unavailable",
        "loss",
        "status",
    )

    def __init__(
        self,
        options: FetchOptions,
        stream: str,
        consumer: str,
        now: float,
        no_wait_s: float = 5.0,
        is_patient: bool = True,
    ) -> None:
        self._options = options
        self._is_patient = is_patient
        self._stream = stream
        self._consumer = consumer
        self._messages_left = options.max_messages
        self._bytes_left = options.max_bytes
        self._heartbeat_s = options.idle_heartbeat_s
        self._last_heard = now
        self._is_empty = True
        self._retry_s = _RETRY_FIRST_S
        self.end_at = now + (options.expires_s or no_wait_s)
        self.is_over = False
        self.is_unavailable = False
        self.error: JetlakeError | None = None
        self.loss: JetlakeError | None = None
        self.status: PullStatus | None = None

    # Asking

    def next_request(self, now: float) -> PullRequest:
        """Return the pull to send now: for everything at first, for what is left when the last pull was lost."""
        options = self._options if self.loss is None else self._options.within(self.end_at - now)
        self._last_heard = now
        self.loss = None
        self.is_unavailable = False
        self._heartbeat_s = options.idle_heartbeat_s
        return options.request(self._messages_left, self._bytes_left)

    def retry_wait_s(self) -> float:
        """Return how long to wait before the pull is sent again; longer each time."""
        wait_s, self._retry_s = self._retry_s, min(_RETRY_MAX_S, 2 * self._retry_s)
        return wait_s

    # Hearing

    def received(self, messages: int, size: int, now: float) -> None:
        """Count received messages and their bytes."""
        self._last_heard = now
        self._is_empty = False
        self._messages_left -= messages
        if self._options.max_bytes:
            self._bytes_left -= size
        # The status that ends the fetch may have come in the same read, and stays the end.
        if self._messages_left <= 0 or (self._options.max_bytes and self._bytes_left <= 0):
            self.is_over = True

    def heard(self, status: PullStatus, now: float) -> None:
        """Read a status."""
        self._last_heard = now
        outcome = classify(status)
        if outcome is PullOutcome.HEARTBEAT:
            return
        self.status = status
        is_shutdown = outcome is PullOutcome.ENDED and "shutdown" in status.description.lower()
        if is_shutdown or outcome in (PullOutcome.LOST, PullOutcome.UNAVAILABLE):
            self.is_unavailable = outcome is PullOutcome.UNAVAILABLE
            words = status.description or ("No Responders" if self.is_unavailable else "")
            self.lose(PullStatusError(status.status, words), now)
            return
        self.is_over = True
        if outcome is PullOutcome.DELETED:
            self.error = ConsumerDeletedError(self._stream, self._consumer)
        elif outcome is not PullOutcome.ENDED:
            self.error = PullStatusError(status.status, status.description)

    def lose(self, loss: JetlakeError, now: float) -> None:
        """Note that the pull is lost; the fetch is over if its time is, or if it takes what is there and has some."""
        self.loss = loss
        if now >= self.end_at or not self._is_patient or (self._options.no_wait and not self._is_empty):
            self.give_up()

    def give_up(self) -> None:
        """End the fetch; the last loss is an error if nothing came."""
        self.is_over = True
        if self._is_empty:
            self.error = self.loss

    # Time

    def deadline(self) -> float:
        """Return when to look again."""
        if self._heartbeat_s:
            return min(self.end_at + _GRACE_S, self._last_heard + 2 * self._heartbeat_s)
        return self.end_at + _GRACE_S

    def expire(self, now: float) -> None:
        """End the wait at `deadline`: the server is silent beyond what it promised, or the fetch is simply over."""
        silence_s = 2 * self._heartbeat_s
        if silence_s and now - self._last_heard >= silence_s and self.loss is None:
            self.lose(HeartbeatMissedError(silence_s), now)
        elif now >= self.end_at + _GRACE_S:
            self.give_up()
