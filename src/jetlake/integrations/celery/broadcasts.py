"""Queues of what is broadcast: remote control, events, and tasks that every worker runs.

An exchange is a subject, and each queue that is bound to it a subscription; the queue's own process selects by routing
key. Nothing is stored: a message reaches the processes that are connected. A queue holds `_WAITING_MAX` messages that
its process has not taken; when there are more, the oldest is dropped and the log says so.

Always true: `_arrive` runs on the loop of the blocking client, everything else on the threads of kombu; a deque is all
that they share.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.json import loads

from jetlake.integrations.celery.queues import QueueOptions

if TYPE_CHECKING:
    import jetlake.blocking
    from jetlake.client import Subscription

_WAITING_MAX = 10_000

logger = logging.getLogger("jetlake.celery")


class Broadcasts:
    """The subscriptions of one connection.

    Args:
        client: the connection.
        queues: the names of subjects.
        wake: called on the client's loop when a message has come.
    """

    def __init__(self, client: jetlake.blocking.Client, queues: QueueOptions, wake: Callable[[], None]) -> None:
        self._client = client
        self._queues = queues
        self._wake = wake
        self._candidates: set[str] = set()
        self._waiting: dict[str, deque[bytes]] = {}
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._consumed: set[str] = set()
        self._overflowed: set[str] = set()

    def may_have(self, queue: str) -> None:
        """Note that a queue ends with who declared it."""
        self._candidates.add(queue)

    def has(self, queue: str) -> bool:
        """Whether the queue is one of broadcasts."""
        return queue in self._waiting

    def size(self, queue: str) -> int:
        """Return how many messages wait."""
        return len(self._waiting[queue])

    def bind(self, queue: str, exchange: str, kind: str, routing_key: str, pattern: str | None) -> bool:
        """Receive what is broadcast to an exchange; False if the queue is to outlive who declared it.

        Args:
            kind: `fanout`, or `direct` and `topic`, which select by routing key.
            pattern: the regular expression of a topic's routing key.
        """
        if queue not in self._candidates:
            return False
        self._waiting.setdefault(queue, deque())
        wanted = None if kind == "fanout" else pattern if kind == "topic" else f"^{re.escape(routing_key)}$"
        arrive = partial(self._arrive, queue, None if wanted is None else re.compile(wanted))
        subscribe = self._client._inner.subscribe(self._queues.broadcast_subject(exchange), arrive)
        self._subscriptions.setdefault(queue, []).append(self._client._thread.call(subscribe))
        return True

    def unbind(self, queue: str) -> None:
        """Receive nothing for a queue any more."""
        self._candidates.discard(queue)
        self._consumed.discard(queue)
        self._waiting.pop(queue, None)
        for subscription in self._subscriptions.pop(queue, ()):
            if not self._client.is_closed:
                self._client._thread.call(subscription.unsubscribe())

    def publish(self, exchange: str, payload: bytes) -> None:
        """Send a message to all queues of an exchange."""
        self._client.publish(self._queues.broadcast_subject(exchange), payload)

    def take(self, queues: Sequence[str], limit: int | None) -> list[tuple[str, bytes]]:
        """Return waiting messages with their queues, up to a limit."""
        taken: list[tuple[str, bytes]] = []
        for queue in queues:
            waiting = self._waiting.get(queue)
            if waiting is None:
                continue
            self._consumed.add(queue)
            while waiting and (limit is None or len(taken) < limit):
                taken.append((queue, waiting.popleft()))
            if not waiting:
                self._overflowed.discard(queue)
        return taken

    def _arrive(self, queue: str, wanted: re.Pattern[str] | None, message: Any) -> None:
        waiting = self._waiting.get(queue)
        if waiting is None or not (wanted is None or wanted.match(_routing_key(message.data))):
            return
        if len(waiting) >= _WAITING_MAX:
            waiting.popleft()
            # Once until the queue has been emptied. A producer declares queues that it never reads.
            if queue in self._consumed and queue not in self._overflowed:
                self._overflowed.add(queue)
                logger.warning("queue %s: %d broadcasts wait; the oldest are dropped", queue, _WAITING_MAX)
        waiting.append(message.data)
        self._wake()


def _routing_key(payload: bytes) -> str:
    """Return the routing key of a message; empty if it is no message of kombu's."""
    try:
        return str(loads(payload)["properties"]["delivery_info"]["routing_key"])
    except (ValueError, KeyError, TypeError):
        return ""
