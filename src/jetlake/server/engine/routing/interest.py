"""Interest: subscriptions, listeners and captures by subject, and the routes resolved from them.

The reasons are in decision 10 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from jetlake.protocol.subjects import is_valid_subscribe
from jetlake.server.engine.routing.remote import Remote, RemoteLink
from jetlake.server.engine.routing.route import Interest, Route
from jetlake.server.engine.routing.sublist import Sublist
from jetlake.server.engine.routing.subscription import (
    Capture,
    Handler,
    Listener,
    Message,
    Relay,
    RunListener,
    Sink,
    Subscriber,
    Subscription,
)

__all__ = ["Imported", "InterestObserver", "Routing", "RoutingStats", "Watch", "queue_of"]

# The route of all subjects with one prefix, and the last tokens that it does not apply to.
Family = tuple[Route, tuple[Mapping[bytes, object], ...]]

# Cached routes, by literal subject and by all tokens but the last; a full cache is emptied.
LITERALS_MAX = 8192
_FAMILIES_MAX = 8192
# Consumers of which is known whether anybody but JetStream hears their acknowledgements.
_HEARD_MAX = 1024

_NOWHERE = Route()


class Watch:
    """A callback for changes of interest in one literal subject, created by `Account.watch_interest`."""

    __slots__ = ("callback", "subject")

    def __init__(self, subject: bytes, callback: Callable[[], None]) -> None:
        self.subject = subject
        self.callback = callback


class RoutingStats:
    """Counters of the routing, as `/subsz` shows them."""

    __slots__ = ("inserts", "misses", "removes")

    def __init__(self) -> None:
        self.inserts = 0
        self.removes = 0
        self.misses = 0


class Imported(Protocol):
    """The streams that an account imports, as its interest knows them."""

    def added(self, pattern: bytes, interest: Interest) -> None:
        """Extend new interest to the accounts whose streams it matches."""
        ...

    def removed(self, interest: Interest) -> None:
        """End the extension."""
        ...


class InterestObserver(Protocol):
    """An observer of an account's interest, which announces it to other servers."""

    def added(self, subject: bytes, queue: bytes) -> None:
        """Count one more recipient of the subject."""
        ...

    def removed(self, subject: bytes, queue: bytes) -> None:
        """Count one recipient less."""
        ...


class Routing:
    """The interest of one subject space, with a cache of routes.

    Attributes:
        imported: notified of the interest of this account; None = no stream is imported.
        observer: notified of all recipients in this account that other servers may want to know; None = there are no
            other servers.
        literals: cached routes by whole subject; changed in place, so that a hot loop may hold the dict.
        removal_listeners: called with the pattern of each interest that ends.
    """

    def __init__(self) -> None:
        self.stats = RoutingStats()
        self.imported: Imported | None = None
        self.observer: InterestObserver | None = None
        self.literals: dict[bytes, Route] = {}
        self.removal_listeners: dict[object, Callable[[bytes], None]] = {}
        self._sublist: Sublist[Interest] = Sublist()
        self._families: dict[bytes, Family] = {}
        self._watches: Sublist[Watch] = Sublist()
        # Patterns that could match a subject below `$JS.`; without any, acks need no look-up.
        self._wide = 0
        self._heard: dict[bytes, bool] = {}

    # Interest

    def subscribe(self, subject: bytes, sid: bytes, subscriber: Subscriber, queue: bytes = b"") -> Subscription | None:
        """Register a client's subscription; None when the subject is not valid for one."""
        if not is_valid_subscribe(subject):
            return None
        subscription = Subscription(subject, sid, subscriber, queue)
        self.add(subscription)
        return subscription

    def add(self, subscription: Subscription) -> None:
        """Register a validated subscription."""
        self._insert(subscription.subject, subscription)

    def unsubscribe(self, subscription: Subscription, max: int = 0) -> None:
        """End a subscription: now, or with its `max`-th delivery counted since it began."""
        if max > subscription.delivered:
            subscription.max = max
        else:
            self._remove(subscription.subject, subscription)

    def listen(self, pattern: bytes, handler: Handler, queue: bytes = b"") -> Listener:
        """Call `handler` for each message whose subject matches."""
        listener = Listener(pattern, handler, queue)
        self._insert(pattern, listener)
        return listener

    def unlisten(self, listener: Listener | RunListener) -> None:
        """Remove a listener."""
        self._remove(listener.subject, listener)

    def listen_to_runs(self, subject: bytes, receive: Callable[[list[Message]], None]) -> RunListener:
        """Call `receive` with each run of messages that is delivered to the subject."""
        listener = RunListener(subject, receive)
        self._insert(subject, listener)
        return listener

    def capture(self, pattern: bytes, sink: Sink) -> Capture:
        """Send every message whose subject matches to the sink, which counts as a recipient."""
        capture = Capture(pattern, sink)
        self._insert(pattern, capture)
        return capture

    def release(self, capture: Capture) -> None:
        """Remove a capture."""
        self._remove(capture.subject, capture)

    def close_captures(self, captures: Iterable[Capture]) -> None:
        """Send nothing more to the captures' sinks; each capture has yet to be released."""
        for capture in captures:
            capture.is_closed = True
        self.literals.clear()
        self._families.clear()

    def link(self, relay: Relay) -> None:
        """Register the interest of another account."""
        self._insert(relay.subject, relay)

    def unlink(self, relay: Relay) -> None:
        """Remove the interest of another account; removing it again is ignored."""
        self._remove(relay.subject, relay)

    def add_remote(self, subject: bytes, link: RemoteLink, queue: bytes, weight: int) -> Remote:
        """Register the interest of another server."""
        remote = Remote(subject, link, queue, weight)
        self._insert(subject, remote)
        return remote

    def remove_remote(self, remote: Remote) -> None:
        """Remove the interest of another server; removing it again is ignored."""
        self._remove(remote.subject, remote)

    def announce(self, subject: bytes) -> None:
        """Tell the observer of a subject that is handled here without a subscription."""
        if self.observer is not None:
            self.observer.added(subject, b"")

    def retract(self, subject: bytes) -> None:
        """Tell the observer that a subject that was announced is not handled any more."""
        if self.observer is not None:
            self.observer.removed(subject, b"")

    def interests(self) -> list[Interest]:
        """Return all subscriptions, listeners, captures, relays and the interest of other servers."""
        return self._sublist.items()

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Watch:
        """Call `callback` after the interest in the literal subject may have changed."""
        watch = Watch(subject, callback)
        self._watches.insert(subject, watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Remove a watch; removing it again is ignored."""
        self._watches.remove(watch.subject, watch)

    def has_interest(self, subject: bytes) -> bool:
        """Return whether a message on the subject has a recipient."""
        return self.route(subject).recipients > 0

    def has_literal_interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return whether the subject itself is subscribed, in the queue group or, where that is empty, in none.

        Clients create a consumer or ask for a backup before they subscribe to the subject that it delivers to, and
        many have a wildcard for the answers to their requests that covers this subject as well. What is sent before
        the subject itself is subscribed is lost.
        """
        return any(queue_of(interest) == queue for interest in self._sublist.at(subject))

    @property
    def interest_count(self) -> int:
        """How many subscriptions, listeners, captures and relays there are."""
        return len(self._sublist)

    @property
    def cached_routes(self) -> int:
        """Number of cached routes."""
        return len(self.literals) + len(self._families)

    def known_routes(self) -> list[Route]:
        """Return the cached routes."""
        return [*self.literals.values(), *(family[0] for family in self._families.values())]

    def _insert(self, pattern: bytes, interest: Interest) -> None:
        self._sublist.insert(pattern, interest)
        self.stats.inserts += 1
        self._wide += _reaches_jetstream(pattern)
        self._changed(pattern)
        if self.imported is not None and not isinstance(interest, Relay):
            self.imported.added(pattern, interest)
        if self.observer is not None and not isinstance(interest, Remote):
            self.observer.added(pattern, queue_of(interest))

    def _remove(self, pattern: bytes, interest: Interest) -> None:
        if not interest.active:
            return
        interest.active = False
        self._sublist.remove(pattern, interest)
        self.stats.removes += 1
        self._wide -= _reaches_jetstream(pattern)
        self._changed(pattern)
        for listener in self.removal_listeners.values():
            listener(pattern)
        if self.imported is not None:
            self.imported.removed(interest)
        if self.observer is not None and not isinstance(interest, Remote):
            self.observer.removed(pattern, queue_of(interest))

    def _is_heard(self, prefix: bytes) -> bool:
        """Return whether a pattern could match an ack subject with this prefix, which ends with a dot."""
        if not self._wide:
            return False
        heard = self._heard.get(prefix)
        if heard is None:
            if len(self._heard) >= _HEARD_MAX:
                self._heard.clear()
            heard = self._heard[prefix] = self._sublist.has_below(prefix[:-1])
        return heard

    def _changed(self, pattern: bytes) -> None:
        """Drop the cached routes that the pattern may affect, then call the watches."""
        if self._heard and _reaches_jetstream(pattern):
            self._heard.clear()
        if b"*" in pattern or b">" in pattern:
            self.literals.clear()
            self._families.clear()
        else:
            self.literals.pop(pattern, None)
            self._families.pop(pattern.rpartition(b".")[0], None)
        for watch in self._watches.within(pattern) if self._watches else ():
            watch.callback()

    # Routes

    def route(self, subject: bytes) -> Route:
        """Return the current route of a subject, valid until interest changes.

        Subjects that differ only in their last token share one route where no pattern tells them apart, so that unique
        replies and ids do not fill the cache of literals.
        """
        route = self.literals.get(subject)
        if route is not None:
            return route
        prefix, dot, token = subject.rpartition(b".")
        if dot:
            if not token:
                return _NOWHERE
            family = self._families.get(prefix)
            if family is None:
                family = self._resolve_family(prefix)
            for exceptions in family[1]:
                if token in exceptions:
                    break
            else:
                return family[0]
        return self._resolve(subject)

    def _resolve(self, subject: bytes) -> Route:
        self.stats.misses += 1
        interests = self._sublist.match(subject)
        route = Route(interests) if interests else _NOWHERE
        if len(self.literals) >= LITERALS_MAX:
            self.literals.clear()
        self.literals[subject] = route
        return route

    def _resolve_family(self, prefix: bytes) -> Family:
        self.stats.misses += 1
        interests, exceptions = self._sublist.match_family(prefix)
        family = (Route(interests) if interests else _NOWHERE, exceptions)
        if len(self._families) >= _FAMILIES_MAX:
            self._families.clear()
        self._families[prefix] = family
        return family


def queue_of(interest: Interest) -> bytes:
    """Return the queue group of a recipient; empty where it has none."""
    return b"" if isinstance(interest, Capture | RunListener) else interest.queue


def _reaches_jetstream(pattern: bytes) -> int:
    return int(pattern.startswith((b"$JS.", b"*.", b">")))
