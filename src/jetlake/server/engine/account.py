"""An account: the subject space that its clients, listeners and streams share, and the routing within it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from jetlake.protocol.encoder import hmsg, msg
from jetlake.protocol.subjects import is_valid_subscribe, matches
from jetlake.server.engine.route import Interest, Route, is_congested
from jetlake.server.engine.sublist import Sublist
from jetlake.server.engine.subscription import Capture, Handler, Listener, Sink, Subscriber, Subscription

__all__ = ["Account", "JetStreamGate", "Message", "RoutingStats", "Watch"]

# Subject, reply, header, payload; empty bytes where there is none.
Message = tuple[bytes, bytes, bytes, bytes]

# The route of all subjects with one prefix, and the last tokens to which it does not apply.
Family = tuple[Route, tuple[Mapping[bytes, object], ...]]

# Routes kept by literal subject, and by all tokens but the last; full tables are emptied.
_LITERALS_MAX = 8192
_FAMILIES_MAX = 8192

_NOWHERE = Route()


class JetStreamGate(Protocol):
    """What an account needs from its JetStream: a taker for the subjects below `$JS.`."""

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Handle one message to `$JS.…` (never `$JS.EVENT.…`); False when it is not for JetStream."""
        ...


class Watch:
    """A wish to hear when the interest in one literal subject may have changed; made by `Account.watch_interest`."""

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


class Account:
    """One tenant's subjects: nothing published here is seen in another account.

    Args:
        name: as in the configuration; `$G` is the account of servers without any.
        random: picks the members of queue groups.
    """

    def __init__(self, name: str = "$G", *, random: Random | None = None) -> None:
        self.name = name
        self.js: JetStreamGate | None = None
        self.stats = RoutingStats()
        self._random = (random or Random()).random
        self._sublist: Sublist[Interest] = Sublist()
        self._literals: dict[bytes, Route] = {}
        self._families: dict[bytes, Family] = {}
        self._watches: dict[bytes, list[Watch]] = {}
        # How many patterns could match a subject below `$JS.`: usually none, and then acks need no look-up.
        self._wide = 0

    # Interest

    def subscribe(self, subject: bytes, sid: bytes, subscriber: Subscriber, queue: bytes = b"") -> Subscription | None:
        """Register a client's subscription; None when the subject is not valid for one."""
        if not is_valid_subscribe(subject):
            return None
        subscription = Subscription(subject, sid, subscriber, queue)
        self.add(subscription)
        return subscription

    def add(self, subscription: Subscription) -> None:
        """Register a subscription that was made and checked elsewhere."""
        self._insert(subscription.subject, subscription)

    def unsubscribe(self, subscription: Subscription, max: int = 0) -> None:
        """End a subscription: now, or with its `max`-th delivery counted since it began."""
        if max > subscription.delivered:
            subscription.max = max
        else:
            self._remove(subscription.subject, subscription)

    def listen(self, pattern: bytes, handler: Handler, queue: bytes = b"") -> Listener:
        """Have `handler` called for each message whose subject matches."""
        listener = Listener(pattern, handler, queue)
        self._insert(pattern, listener)
        return listener

    def unlisten(self, listener: Listener) -> None:
        """End what `listen` began."""
        self._remove(listener.subject, listener)

    def capture(self, pattern: bytes, sink: Sink) -> Capture:
        """Give every message whose subject matches to the sink, which counts as a taker."""
        capture = Capture(pattern, sink)
        self._insert(pattern, capture)
        return capture

    def release(self, capture: Capture) -> None:
        """End what `capture` began."""
        self._remove(capture.subject, capture)

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Watch:
        """Have `callback` called after the interest in this literal subject may have changed."""
        watch = Watch(subject, callback)
        self._watches.setdefault(subject, []).append(watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """End what `watch_interest` began; twice does no harm."""
        watches = self._watches.get(watch.subject)
        if watches is not None and watch in watches:
            watches.remove(watch)
            if not watches:
                del self._watches[watch.subject]

    def has_interest(self, subject: bytes) -> bool:
        """Whether somebody would take a message on this subject."""
        return self.route(subject).takers > 0

    def has_queue_interest(self, subject: bytes, queue: bytes) -> bool:
        """Whether a member of this queue group would take a message on this subject."""
        return self.route(subject).has_queue(queue)

    @property
    def interest_count(self) -> int:
        """How many subscriptions, listeners and captures there are."""
        return len(self._sublist)

    @property
    def cached_routes(self) -> int:
        """How many routes are kept ready."""
        return len(self._literals) + len(self._families)

    def known_routes(self) -> list[Route]:
        """The routes that are kept ready."""
        return [*self._literals.values(), *(family[0] for family in self._families.values())]

    def _insert(self, pattern: bytes, interest: Interest) -> None:
        self._sublist.insert(pattern, interest)
        self.stats.inserts += 1
        self._wide += _reaches_jetstream(pattern)
        self._changed(pattern)

    def _remove(self, pattern: bytes, interest: Interest) -> None:
        if not interest.active:
            return
        interest.active = False
        self._sublist.remove(pattern, interest)
        self.stats.removes += 1
        self._wide -= _reaches_jetstream(pattern)
        self._changed(pattern)

    def _changed(self, pattern: bytes) -> None:
        """Forget the routes that the pattern may be part of, then tell those who watch."""
        if b"*" in pattern or b">" in pattern:
            self._literals.clear()
            self._families.clear()
            if self._watches:
                watched = [subject for subject in self._watches if matches(pattern, subject)]
                for watch in [watch for subject in watched for watch in self._watches[subject]]:
                    watch.callback()
        else:
            self._literals.pop(pattern, None)
            self._families.pop(pattern.rpartition(b".")[0], None)
            for watch in tuple(self._watches.get(pattern, ())):
                watch.callback()

    # Routes

    def route(self, subject: bytes) -> Route:
        """Who takes this subject now; good until interest changes, so ask again rather than keep it.

        Subjects that differ in their last token alone share one route where no pattern tells them apart: unique
        replies and ids find their takers without filling the table of literals.
        """
        route = self._literals.get(subject)
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
        if len(self._literals) >= _LITERALS_MAX:
            self._literals.clear()
        self._literals[subject] = route
        return route

    def _resolve_family(self, prefix: bytes) -> Family:
        self.stats.misses += 1
        interests, exceptions = self._sublist.match_family(prefix)
        family = (Route(interests) if interests else _NOWHERE, exceptions)
        if len(self._families) >= _FAMILIES_MAX:
            self._families.clear()
        self._families[prefix] = family
        return family

    # Publishing

    def publish(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None = None
    ) -> int:
        """Route one message to everybody interested, and say how many took it.

        The origin does not get its own message back when it wants no echo; when nobody takes its request and it
        wants to know, it gets the 503.
        """
        route = self._literals.get(subject)
        if route is None:
            if subject.startswith(b"$JS.") and self.js is not None and not subject.startswith(b"$JS.EVENT."):
                return self._publish_to_jetstream(subject, reply, header, payload, origin)
            route = self.route(subject)
            if not subject.startswith(b"_INBOX."):
                # Subjects come again, replies do not.
                if len(self._literals) >= _LITERALS_MAX:
                    self._literals.clear()
                self._literals[subject] = route
        for receive in route.sinks:
            receive(subject, reply, header, payload, origin)
        taken = len(route.sinks)
        if route.takers > taken:
            taken += self._fan_out(route, subject, reply, header, payload, origin)
        if not taken and reply and origin is not None and origin.no_responders:
            self._tell_no_responders(subject, reply, origin)
        return taken

    def _publish_to_jetstream(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None
    ) -> int:
        js = self.js
        taken = 1 if js is not None and js.receive(subject, reply, header, payload, origin) else 0
        if self._wide:
            # Not through the table: ack subjects never come twice.
            route = Route(self._sublist.match(subject))
            for receive in route.sinks:
                receive(subject, reply, header, payload, origin)
            taken += len(route.sinks) + self._fan_out(route, subject, reply, header, payload, origin)
        if not taken and reply and origin is not None and origin.no_responders:
            self._tell_no_responders(subject, reply, origin)
        return taken

    def _fan_out(
        self, route: Route, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None
    ) -> int:
        """One copy to each subscription and handler, one to a member of each group."""
        taken = 0
        for subscription in route.plain:
            subscriber = subscription.subscriber
            if subscriber is origin and not origin.echo:
                continue
            if subscription.admits is not None and not subscription.admits(subject, reply):
                continue
            if subscription.max and not self._may_take(subscription, 1):
                continue
            subscription.delivered += 1
            taken += 1
            subscriber.send(_frame(subject, subscription.sid, reply, header if subscriber.headers else b"", payload))
        for handler in route.handlers:
            if handler(subject, reply, header, payload, origin) is not False:
                taken += 1
        for members in route.groups:
            if self._give_to_one(members, subject, subject, reply, header, payload, origin):
                taken += 1
        return taken

    def _give_to_one(
        self,
        members: tuple[Subscription | Listener, ...],
        address: bytes,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> bool:
        """Give the message to a random member of the group, rather to one that keeps up; False when none can."""
        start = int(self._random() * len(members))
        order = members[start:] + members[:start] if start else members
        if len(order) > 1 and is_congested(order[0]):
            order = tuple(sorted(order, key=is_congested))
        for member in order:
            if isinstance(member, Listener):
                if member.handler(address, reply, header, payload, origin) is not False:
                    return True
                continue
            subscriber = member.subscriber
            if subscriber.closed or (subscriber is origin and not origin.echo):
                continue
            if member.admits is not None and not member.admits(subject, reply):
                continue
            if member.max and not self._may_take(member, 1):
                continue
            member.delivered += 1
            subscriber.send(_frame(subject, member.sid, reply, header if subscriber.headers else b"", payload))
            return True
        return False

    def _may_take(self, subscription: Subscription, count: int) -> int:
        """How many of `count` deliveries a subscription with a maximum may still get; it ends with the last."""
        left = subscription.max - subscription.delivered
        if left <= count and subscription.active:
            self._remove(subscription.subject, subscription)
            if subscription.on_end is not None:
                subscription.on_end(subscription)
        return max(min(left, count), 0)

    def _tell_no_responders(self, subject: bytes, reply: bytes, origin: Subscriber) -> None:
        """Send the 503 to the origin's own subscription on the reply, if it has one."""
        for subscription in self.route(reply).plain:
            if subscription.subscriber is origin:
                if subscription.max and not self._may_take(subscription, 1):
                    continue
                subscription.delivered += 1
                header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
                origin.send(_frame(reply, subscription.sid, b"", header, b""))
                return

    # Delivery in runs

    def send_to(self, address: bytes, messages: list[Message]) -> int:
        """Deliver a run of messages to whoever subscribes `address`; each frame carries the message's own subject.

        Returns how many of the messages, counted from the first, somebody took; 0 = nobody is there. The address is
        looked up once, and the run leaves as one piece per subscriber.
        """
        route = self._literals.get(address) or self.route(address)
        subscription = route.lone
        if subscription is not None:
            return self._send_run(subscription, messages)
        if not route.takers:
            return 0
        taken = 0
        for subscription in route.plain:
            taken = max(taken, self._send_run(subscription, messages))
        for index, (subject, reply, header, payload) in enumerate(messages, 1):
            reached = False
            for receive in route.sinks:
                receive(address, reply, header, payload, None)
                reached = True
            for handler in route.handlers:
                reached = handler(address, reply, header, payload, None) is not False or reached
            for members in route.groups:
                reached = self._give_to_one(members, address, subject, reply, header, payload, None) or reached
            if reached:
                taken = max(taken, index)
        return taken

    def _send_run(self, subscription: Subscription, messages: list[Message]) -> int:
        if subscription.admits is not None:
            admits = subscription.admits
            messages = [message for message in messages if admits(message[0], message[1])]
        if subscription.max:
            messages = messages[: self._may_take(subscription, len(messages))]
        if not messages:
            return 0
        subscriber = subscription.subscriber
        sid = subscription.sid
        headers = subscriber.headers
        frames: list[bytes] = []
        append = frames.append
        for subject, reply, header, payload in messages:
            if header and headers:
                total = len(header) + len(payload)
                if reply:
                    append(
                        b"HMSG %b %b %b %d %d\r\n%b%b\r\n" % (subject, sid, reply, len(header), total, header, payload)
                    )
                else:
                    append(b"HMSG %b %b %d %d\r\n%b%b\r\n" % (subject, sid, len(header), total, header, payload))
            elif reply:
                append(b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload))
            else:
                append(b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload))
        subscription.delivered += len(messages)
        subscriber.send(frames[0] if len(frames) == 1 else b"".join(frames))
        return len(messages)

    def answer(self, replies: list[tuple[bytes, bytes]]) -> None:
        """Publish many short answers, (subject, payload) each: the PubAcks of a batch.

        Neighbours that go to one inbox, as those of one publisher do, are looked up once and leave in one piece.
        """
        frames: list[bytes] = []
        taker: Subscription | None = None
        inbox: bytes | None = None
        for subject, payload in replies:
            prefix = subject.rpartition(b".")[0]
            if prefix != inbox:
                if taker is not None and frames:
                    taker.delivered += len(frames)
                    taker.subscriber.send(b"".join(frames))
                    frames = []
                taker, inbox = self._inbox(prefix), prefix
            if taker is None:
                self.publish(subject, b"", b"", payload)
            else:
                frames.append(b"MSG %b %b %d\r\n%b\r\n" % (subject, taker.sid, len(payload), payload))
        if taker is not None and frames:
            taker.delivered += len(frames)
            taker.subscriber.send(b"".join(frames))

    def acknowledge(self, replies: list[bytes], text: bytes, first_sequence: int) -> None:
        """Answer consecutive messages of a stream: to each reply goes `<text><sequence>}`, to an empty one nothing.

        As with `answer`, neighbours that go to one inbox leave in one piece.
        """
        frames: list[bytes] = []
        append = frames.append
        taker: Subscription | None = None
        inbox: bytes | None = None
        middle = b""  # what stands between reply and sequence
        digits = len(b"%d" % first_sequence)
        limit = 10**digits
        for sequence, reply in enumerate(replies, first_sequence):
            dot = reply.rfind(b".")
            if reply[:dot] != inbox or sequence >= limit:
                if sequence >= limit:
                    digits += 1
                    limit *= 10
                if taker is not None and frames:
                    taker.delivered += len(frames)
                    taker.subscriber.send(b"".join(frames))
                    frames.clear()
                inbox = reply[:dot]
                taker = self._inbox(inbox) if dot > 0 else None
                if taker is not None:
                    middle = b" %b %d\r\n%b" % (taker.sid, len(text) + digits + 1, text)
            if taker is not None:
                append(b"MSG %b%b%d}\r\n" % (reply, middle, sequence))
            elif reply:
                self.publish(reply, b"", b"", b"%b%d}" % (text, sequence))
        if taker is not None and frames:
            taker.delivered += len(frames)
            taker.subscriber.send(b"".join(frames))

    def _inbox(self, prefix: bytes) -> Subscription | None:
        """The one subscription that takes everything on `prefix.<token>`; None when it is not as simple as that."""
        if not prefix:
            return None
        route, exceptions = self._families.get(prefix) or self._resolve_family(prefix)
        taker = route.lone
        if taker is None or exceptions or taker.max or taker.admits is not None:
            return None
        return taker


def _frame(subject: bytes, sid: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    return hmsg(subject, sid, reply, header, payload) if header else msg(subject, sid, reply, payload)


def _reaches_jetstream(pattern: bytes) -> int:
    return int(pattern.startswith((b"$JS.", b"*.", b">")))
