"""The subscriptions of one client."""

from __future__ import annotations

from weakref import WeakSet

from jetlake.protocol.encoder import OK, err
from jetlake.protocol.subjects import is_valid_subscribe
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import EndListener, Subscriber, Subscription
from jetlake.server.shell.access.permissions import PermissionCheck
from jetlake.server.shell.connection.gone import GONE
from jetlake.server.shell.connection.peer_connection import ConnectionWriter
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection.session import Session, may_subscribe
from jetlake.server.shell.connection.traces import readable
from jetlake.store.steps import Steps

__all__ = ["ClientSubscriptions"]

# Subscriptions of a client that has disconnected are removed in groups, between which others go first.
_GROUP = 100


class ClientSubscriptions:
    """What a client subscribes, by its sid, in the account of its session.

    Args:
        subscriber: receives the messages.

    Attributes:
        end_listeners: called when all subscriptions have ended with their connection.
    """

    def __init__(
        self, session: Session, subscriber: Subscriber, writer: ConnectionWriter, services: ConnectionServices
    ) -> None:
        self._session = session
        self._subscriber = subscriber
        self._writer = writer
        self._settings = services.settings
        self._engine_loop = services.engine_loop
        self._by_sid: dict[bytes, Subscription] = {}
        self.end_listeners: WeakSet[EndListener] = WeakSet()

    def active(self) -> list[Subscription]:
        """List the subscriptions."""
        return list(self._by_sid.values())

    def subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        """Handle SUB."""
        session, send = self._session, self._writer.send
        if not may_subscribe(subject, queue, session.permissions):
            using = f' using queue "{readable(queue)}"' if queue else ""
            send(session.deny(f'Subscription to "{readable(subject)}"{using}'))
            return
        if not is_valid_subscribe(subject):
            send(err("Invalid Subject"))
            return
        limit = session.limits.max_subscriptions
        if limit < 0:
            limit = self._settings.options.max_subscriptions or -1
        if limit >= 0 and sid not in self._by_sid and len(self._by_sid) >= limit:
            send(err("maximum subscriptions exceeded"))
            return
        if session.options.verbose:
            send(OK)
        if sid in self._by_sid:
            return
        subscription = Subscription(subject, sid, self._subscriber, queue)
        if session.permissions is not None:
            subscription.admits = session.permissions.filter_for(subject)
        subscription.on_end = self._remove
        self._by_sid[sid] = subscription
        session.account.add(subscription)

    def unsubscribe(self, sid: bytes, max: int) -> None:
        """Handle UNSUB: end the subscription, or let it end after this many messages."""
        subscription = self._by_sid.get(sid)
        if subscription is not None:
            self._session.account.unsubscribe(subscription, max)
            if not subscription.active:
                self._remove(subscription)
        if self._session.options.verbose:
            self._writer.send(OK)

    def _remove(self, subscription: Subscription) -> None:
        self._by_sid.pop(subscription.sid, None)

    def move(self, account: Account, permissions: PermissionCheck | None) -> None:
        """End the subscriptions that another account or other permissions do not allow, before the session changes."""
        session = self._session
        for subscription in self.active():
            subject, queue = subscription.subject, subscription.queue
            is_allowed = may_subscribe(subject, queue, permissions)
            if account is session.account and is_allowed:
                subscription.admits = permissions.filter_for(subject) if permissions is not None else None
                continue
            session.account.unsubscribe(subscription)
            self._remove(subscription)
            if not is_allowed:
                self._writer.send(session.deny(f'Subscription to "{readable(subject)}"'))

    def close(self) -> None:
        """End all subscriptions, in steps when there are many."""
        subscriptions, self._by_sid = self._by_sid, {}
        self._engine_loop.work.begin(self._end(list(subscriptions.values()), self._subscriber))

    def detach(self) -> None:
        """Release the connection, which is gone."""
        self._subscriber = GONE

    def _end(self, subscriptions: list[Subscription], subscriber: Subscriber) -> Steps[None]:
        yield from _unsubscribe_all(self._session.account, subscriptions)
        # Only now: what a listener delivers again must not reach an inbox of this client.
        for listener in list(self.end_listeners):
            listener.subscriber_ended(subscriber)
        if subscriber.congested:
            # Deliveries that waited for it resume with the other subscribers of their subject.
            self._engine_loop.drained()


def _unsubscribe_all(account: Account, subscriptions: list[Subscription]) -> Steps[None]:
    for place, subscription in enumerate(subscriptions, 1):
        account.unsubscribe(subscription)
        if not place % _GROUP:
            yield
