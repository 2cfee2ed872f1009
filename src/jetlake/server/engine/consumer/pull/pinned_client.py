"""The policy `pinned_client` (NATS ADR-42): one client gets every message until another one takes over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import UnpinReason
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.consumer import statuses
from jetlake.server.engine.consumer.acks.ack_tracker import AckTracker
from jetlake.server.engine.consumer.events import ConsumerEvents
from jetlake.server.engine.consumer.pull.group_policies import GroupPolicy
from jetlake.server.engine.consumer.pull.pull_queue import PullQueue
from jetlake.server.engine.consumer.pull.pull_request import WaitingPull
from jetlake.server.engine.routing.account import Account, Message
from jetlake.server.engine.routing.interest import Watch
from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["Handover", "PinStore", "PinnedClient"]

_PIN_ID = b"Nats-Pin-Id"


class PinStore(Protocol):
    """The stored pin of a consumer.

    Attributes:
        id: the pin; empty = no client is pinned.
        pinned_ns: when the client was pinned.
    """

    id: str
    pinned_ns: int

    def set(self, id: str, pinned_ns: int, on_stored: Callable[[], None]) -> None:
        """Replace the pin; `on_stored` is called when it is on disk, which may be at once."""
        ...


class Handover:
    """The wait until the messages in flight to the previous pinned client are acked, nakked, terminated or timed out.

    A client whose inbox has no subscriber any more is gone, and is not waited for.

    Attributes:
        inbox: where the pinned client got its last message; empty = unknown, since the server was restarted.

    Args:
        tracker: knows which messages are in flight.
        account: knows the interest in the inbox.
        on_change: called when the wait may be over because the client is gone.
    """

    def __init__(self, tracker: AckTracker, account: Account, on_change: Callable[[], None]) -> None:
        self.inbox = b""
        self._tracker = tracker
        self._account = account
        self._on_change = on_change
        self._watch: Watch | None = None

    def is_over(self) -> bool:
        """Return whether the next client may be pinned; if not, the consumer is made ready when that may change."""
        is_gone = self.inbox and not self._account.has_interest(self.inbox)
        if is_gone or not self._tracker.in_flight:
            self.stop()
            return True
        self._tracker.is_awaited = True
        if self._watch is None and self.inbox:
            self._watch = self._account.watch_interest(self.inbox, self._on_change)
        return False

    def stop(self) -> None:
        """End the wait."""
        self._tracker.is_awaited = False
        if self._watch is not None:
            self._account.unwatch(self._watch)
            self._watch = None


class PinnedClient(GroupPolicy):
    """One client gets every message; when it stops pulling, or is unpinned, the next in the queue is pinned.

    Args:
        config: the consumer's configuration.
        queue: the waiting requests.
        new_pin: returns a new pin.
        events: publishes pinned and unpinned advisories.
        handover: the wait between two pinned clients.
        store: keeps the pin over a restart.
        now_ns: the time; a client that was pinned before a restart has the whole timeout to come back.
        make_ready: called when a pin is on disk, so that its client gets the first message.
    """

    admits_all = False

    def __init__(
        self,
        config: ConsumerConfig,
        queue: PullQueue,
        new_pin: Callable[[], str],
        events: ConsumerEvents,
        handover: Handover,
        store: PinStore,
        now_ns: int,
        make_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.deadline_ns = now_ns + config.priority_timeout if store.id else 0
        """When the pin is lost unless its client pulls again; 0 = no client is pinned."""
        self._queue = queue
        self._new_pin = new_pin
        self._events = events
        self._handover = handover
        self._store = store
        self._make_ready = make_ready
        self._chosen: WaitingPull | None = None
        """The request that was pinned and has had no message yet."""
        self._is_storing = False

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a changed configuration; a changed timeout counts for the pinned client too, from its last pull on."""
        if self.deadline_ns:
            self.deadline_ns += config.priority_timeout - self.config.priority_timeout
        super().configure(config)

    def accepts(self, request: WaitingPull, origin: Subscriber | None, now_ns: int) -> bool:
        if request.id and self._store.id:
            if request.id != self._store.id:
                return False
            self.deadline_ns = now_ns + self.config.priority_timeout
        request.client = origin.client_info() if origin is not None else None
        return True

    def is_handing_over(self) -> bool:
        return not self._store.id and not self._handover.is_over()

    def prepare(self, now_ns: int) -> bool:
        """Pin a client if none is pinned; False until the pin is on disk, and while no client can be pinned."""
        self.vacate()
        if not self._store.id:
            self._pin_next(now_ns)
        return bool(self._store.id) and not self._is_storing

    def vacate(self) -> bool:
        if self._chosen is None or self._chosen.waiting or self._is_storing:
            return False
        self._chosen = None
        self.deadline_ns = 0
        self._store.set("", 0, _do_nothing)
        return True

    def _pin_next(self, now_ns: int) -> None:
        for request in self._queue.open_requests():
            if request.id:
                self._queue.reject(request, statuses.WRONG_PIN_ID)
                continue
            self._chosen = request
            request.id = self._new_pin()
            self.deadline_ns = now_ns + self.config.priority_timeout
            self._is_storing = True
            self._store.set(request.id, now_ns, partial(self._on_stored, request.id))
            return

    def _on_stored(self, pin: str) -> None:
        if pin == self._store.id:
            self._is_storing = False
            self._make_ready()

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        if request.id == self._store.id:
            return True
        if request.id:
            self._queue.reject(request, statuses.WRONG_PIN_ID)
        return False

    def assign(self, request: WaitingPull, message: Message, now_ns: int) -> Message:
        if self._chosen is not None:
            self._announce(request)
        self._handover.inbox = request.reply
        subject, reply, header, payload = message
        return subject, reply, append_pair(header, _PIN_ID, self._store.id.encode()), payload

    def _announce(self, request: WaitingPull) -> None:
        """Tell the other clients, and publish the advisory, with the first message for the pinned one."""
        self._chosen = None
        pin = self._store.id
        for waiting in list(self._queue):
            if waiting.id and waiting.id != pin:
                self._queue.reject(waiting, statuses.WRONG_PIN_ID)
        self._events.pinned(self._group, pin, request.client)

    def unpin(self, reason: UnpinReason) -> bool:
        self._chosen = None
        self.deadline_ns = 0
        self._is_storing = False
        if self._store.id:
            self._store.set("", 0, _do_nothing)
        # Also without a pin: the advisory answers the request to unpin.
        self._events.unpinned(self._group, reason)
        return True

    def expire(self, now_ns: int) -> bool:
        if not self.deadline_ns or self.deadline_ns > now_ns:
            return False
        return self.vacate() or self.unpin(UnpinReason.TIMEOUT)

    def states(self) -> tuple[PriorityGroupState, ...]:
        pin = self._store.id
        pinned_ts = format_time(self._store.pinned_ns) if pin else ZERO_TIME
        return tuple(
            PriorityGroupState(group=group, pinned_client_id=pin, pinned_ts=pinned_ts)
            for group in self.config.priority_groups[:1]
        )

    def close(self) -> None:
        self._handover.stop()

    @property
    def _group(self) -> str:
        return next(iter(self.config.priority_groups), "")


def _do_nothing() -> None:
    pass
