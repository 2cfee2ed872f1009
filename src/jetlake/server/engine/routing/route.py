"""A route: who takes the messages of one subject, resolved once and used until interest changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.server.engine.routing.subscription import Capture, Handler, Listener, Subscriber, Subscription

__all__ = ["Interest", "Route", "is_congested"]

Interest = Subscription | Listener | Capture
Receive = Callable[[bytes, bytes, bytes, bytes, Subscriber | None], None]


class Route:
    """The takers of a subject, sorted by what is done for them.

    Attributes:
        sinks: the streams that capture the subject, as their `receive`.
        handlers: the listeners inside the server.
        plain: subscriptions that each get a copy.
        groups: per queue group its members, of which one gets the message.
        lone: the only taker, when that is one subscription without a queue; what deliveries usually find.
        only_sink: the only taker, when that is one stream; what publishes to streams usually find.
        takers: how many copies a message makes.
    """

    __slots__ = ("groups", "handlers", "lone", "only_sink", "plain", "sinks", "takers")

    def __init__(self, interests: Iterable[Interest] = ()) -> None:
        sinks: dict[int, Receive] = {}
        handlers: list[Handler] = []
        plain: list[Subscription] = []
        groups: dict[bytes, list[Subscription | Listener]] = {}
        for interest in interests:
            if isinstance(interest, Capture):
                # A stream whose subjects overlap takes a message once.
                sinks[id(interest.sink)] = interest.sink.receive
            elif interest.queue:
                groups.setdefault(interest.queue, []).append(interest)
            elif isinstance(interest, Listener):
                handlers.append(interest.handler)
            else:
                plain.append(interest)
        self.sinks = tuple(sinks.values())
        self.handlers = tuple(handlers)
        self.plain = tuple(plain)
        self.groups = tuple(tuple(members) for members in groups.values())
        self.takers = len(self.sinks) + len(self.handlers) + len(self.plain) + len(self.groups)
        self.lone = self.plain[0] if self.plain and self.takers == 1 else None
        self.only_sink = self.sinks[0] if self.sinks and self.takers == 1 else None

    @property
    def congested(self) -> bool:
        """Whether a delivery now would find a subscriber that has too much unwritten: any, or in a group all."""
        for subscription in self.plain:
            if subscription.subscriber.congested:
                return True
        return any(all(is_congested(member) for member in members) for members in self.groups)

    def has_queue(self, queue: bytes) -> bool:
        """Whether members of this queue group are among the takers."""
        return any(members[0].queue == queue for members in self.groups)


def is_congested(member: Subscription | Listener) -> bool:
    """Whether this member of a group is a subscription whose subscriber is gone or has too much unwritten."""
    return isinstance(member, Subscription) and (member.subscriber.congested or member.subscriber.closed)
