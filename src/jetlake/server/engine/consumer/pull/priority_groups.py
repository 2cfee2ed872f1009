"""Priority groups (ADR-42): which of the waiting pull requests may have the next message.

Three policies share one shape: a request is checked when it arrives, is put on a level of the queue, and is admitted or
not when a message is there. A consumer without a policy has the first shape, which lets everybody in.
"""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import PriorityPolicy, UnpinReason
from jetlake.server.engine.consumer.pull import pull_status
from jetlake.server.engine.consumer.pull.pull_queue import PullQueue
from jetlake.server.engine.consumer.pull.pull_request import WaitingPull

__all__ = ["OpenToAll", "Overflow", "PinnedClient", "Prioritized"]


class OpenToAll:
    """No policy: first come, first served, in turns."""

    is_open = True
    """Whether every request may always be served, so that nobody needs to ask."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config

    def check(self, request: WaitingPull) -> None:
        """Refuse a request that does not fit the policy.

        Raises:
            ConfigError: with the detail of the 400 that answers it.
        """
        policy = self.config.priority_policy
        if request.is_conditional and policy is not PriorityPolicy.OVERFLOW:
            raise ConfigError("Not a Overflow Priority consumer")
        if request.id and policy is not PriorityPolicy.PINNED_CLIENT:
            raise ConfigError("Not a Pinned Client Priority consumer")
        if not 0 <= request.priority <= 9:
            raise ConfigError("Priority must be between 0 and 9")
        if policy is PriorityPolicy.NONE or request.is_plain:
            return
        if not request.group:
            raise ConfigError("Priority Group missing")
        if request.group not in self.config.priority_groups:
            raise ConfigError("Invalid Priority Group")

    def level(self, request: WaitingPull) -> int:
        """The level of the queue on which the request waits."""
        return 0

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        """Whether the request may have the message that is there, which is counted in `num_pending`."""
        return True

    def chosen(self, request: WaitingPull, now_ns: int) -> None:
        """The request was admitted and gets the message."""

    def states(self) -> tuple[PriorityGroupState, ...]:
        """What the consumer's info says about its groups."""
        return tuple(PriorityGroupState(group=group) for group in self.config.priority_groups[:1])


class Overflow(OpenToAll):
    """A request may wait for a backlog; requests that do not are served before all that do."""

    is_open = False

    def level(self, request: WaitingPull) -> int:
        return 1 if request.is_conditional else 0

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        if not request.is_conditional:
            return True
        return (0 < request.min_pending <= num_pending) or (0 < request.min_ack_pending <= num_ack_pending)


class Prioritized(OpenToAll):
    """Requests of a better (lower) priority are served before all others."""

    def level(self, request: WaitingPull) -> int:
        return request.priority


class PinnedClient(OpenToAll):
    """One client gets everything; when it stops pulling, or is unpinned, the next one in the queue takes over.

    On a switch what was already handed to the old client stays its own: it can still be acknowledged, and is
    delivered again, to the new client, when its ack wait passes.

    Args:
        config: the consumer's.
        queue: where the requests wait.
        new_id: makes the pins.
        on_pinned: told about a new pin and the request that got it.
        on_unpinned: told why the pin is gone.
    """

    is_open = False

    def __init__(
        self,
        config: ConsumerConfig,
        queue: PullQueue,
        new_id: Callable[[], str],
        on_pinned: Callable[[str, WaitingPull], None],
        on_unpinned: Callable[[UnpinReason], None],
    ) -> None:
        super().__init__(config)
        self.pin = ""
        self.pinned_ns = 0
        self.deadline_ns = 0
        """When the pin is lost unless its client pulls again; 0 = there is no pin."""
        self._queue = queue
        self._new_id = new_id
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned

    def welcomes(self, request: WaitingPull, now_ns: int) -> bool:
        """Whether a request that came in may wait; one of the pinned client gives it its full time again."""
        if request.id and self.pin:
            if request.id != self.pin:
                return False
            self.deadline_ns = now_ns + self.config.priority_timeout
        return True

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        if request.id == self.pin:
            # Also when neither is set: whoever is chosen now gets the pin.
            return True
        if request.id:
            self._queue.reject(request, pull_status.WRONG_PIN_ID)
        return False

    def chosen(self, request: WaitingPull, now_ns: int) -> None:
        if self.pin:
            return
        self.pin = request.id = self._new_id()
        self.pinned_ns = now_ns
        self.deadline_ns = now_ns + self.config.priority_timeout
        for waiting in list(self._queue):
            if waiting.id and waiting.id != self.pin:
                self._queue.reject(waiting, pull_status.WRONG_PIN_ID)
        self._on_pinned(self.pin, request)

    def unpin(self, reason: UnpinReason) -> None:
        """Take the pin back, if somebody has it; that it was asked for is told in any case."""
        self.pin = ""
        self.pinned_ns = self.deadline_ns = 0
        self._on_unpinned(reason)

    def expire(self, now_ns: int) -> bool:
        """Take the pin back when its client was silent for too long; whether that was so."""
        if not self.deadline_ns or self.deadline_ns > now_ns:
            return False
        self.unpin(UnpinReason.TIMEOUT)
        return True

    def states(self) -> tuple[PriorityGroupState, ...]:
        pinned_ts = format_time(self.pinned_ns) if self.pin else ZERO_TIME
        return tuple(
            PriorityGroupState(group=group, pinned_client_id=self.pin, pinned_ts=pinned_ts)
            for group in self.config.priority_groups[:1]
        )
