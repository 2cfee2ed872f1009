"""Which client has which message, so that those of a client whose connection closed are delivered again at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.server.engine.consumer.acks.ack_tracker import AckTracker
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["LostClients"]

# Settled messages that are always tolerated: a clean-up for fewer costs more than it frees.
_STALE_MIN = 1024


class LostClients:
    """Remembers the recipient of each pending message of one consumer.

    Messages that reached their client through another account or server have no recipient here, and wait for their
    ack wait.

    Args:
        tracker: the consumer's ack tracker.
        account: knows the subscriber of an inbox.
        on_lost: called when messages were queued for redelivery.
    """

    def __init__(self, tracker: AckTracker, account: Account, on_lost: Callable[[], None]) -> None:
        self._tracker = tracker
        self._account = account
        self._on_lost = on_lost
        self._recipients: dict[int, Subscriber] = {}
        self._watched: set[Subscriber] = set()
        self.is_on = True

    def delivered(self, inbox: bytes, sequences: Iterable[int]) -> None:
        """Remember the recipient of messages that were just sent to an inbox."""
        taker = self._account.route(inbox).lone
        if taker is None:
            for sequence in sequences:
                self._recipients.pop(sequence, None)
            return
        client = taker.subscriber
        self._recipients.update(dict.fromkeys(sequences, client))
        if client not in self._watched:
            self._watched.add(client)
            client.notify_of_end(self)
        pending = self._tracker.pending
        if len(self._recipients) > 2 * len(pending) + _STALE_MIN:
            self._recipients = {number: one for number, one in self._recipients.items() if number in pending}

    def subscriber_ended(self, subscriber: Subscriber) -> None:
        """Queue the messages of a closed client for redelivery."""
        self._watched.discard(subscriber)
        lost = [sequence for sequence, one in self._recipients.items() if one is subscriber]
        for sequence in lost:
            del self._recipients[sequence]
        if self.is_on and self._tracker.redeliver(lost):
            self._on_lost()
