"""A route: the recipients of one subject's messages, resolved once and valid until interest changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.server.engine.routing.subscription import (
    Capture,
    Handler,
    Listener,
    Message,
    RunListener,
    Subscriber,
    Subscription,
)

__all__ = ["Interest", "Route", "is_congested"]

Interest = Subscription | Listener | RunListener | Capture
Receive = Callable[[bytes, bytes, bytes, bytes, Subscriber | None], None]


class Route:
    """The recipients of a subject, by kind.

    Attributes:
        sinks: the streams that capture the subject, as their `receive`.
        handlers: the listeners inside the server.
        run_handlers: those that take whole runs.
        plain: subscriptions without a queue group; each gets a copy.
        groups: the members of each queue group, of which one gets the message.
        lone: the only recipient, when that is one plain subscription: the usual case of deliveries.
        only_sink: the only recipient, when that is one stream: the usual case of publishes to streams.
        takers: number of recipients.
    """

    __slots__ = ("groups", "handlers", "lone", "only_sink", "plain", "run_handlers", "sinks", "takers")

    def __init__(self, interests: Iterable[Interest] = ()) -> None:
        sinks: dict[int, Receive] = {}
        handlers: list[Handler] = []
        run_handlers: list[Callable[[list[Message]], None]] = []
        plain: list[Subscription] = []
        groups: dict[bytes, list[Subscription | Listener]] = {}
        for interest in interests:
            if isinstance(interest, Capture):
                # A stream whose subjects overlap receives a message once.
                sinks[id(interest.sink)] = interest.sink.receive
            elif isinstance(interest, RunListener):
                run_handlers.append(interest.receive)
            elif interest.queue:
                groups.setdefault(interest.queue, []).append(interest)
            elif isinstance(interest, Listener):
                handlers.append(interest.handler)
            else:
                plain.append(interest)
        self.sinks = tuple(sinks.values())
        self.handlers = tuple(handlers)
        self.run_handlers = tuple(run_handlers)
        self.plain = tuple(plain)
        self.groups = tuple(tuple(members) for members in groups.values())
        self.takers = len(self.sinks) + len(handlers) + len(run_handlers) + len(plain) + len(self.groups)
        self.lone = self.plain[0] if self.plain and self.takers == 1 else None
        self.only_sink = self.sinks[0] if self.sinks and self.takers == 1 else None

    @property
    def congested(self) -> bool:
        """A plain subscription's subscriber, or all members of a group, are congested."""
        for subscription in self.plain:
            if subscription.subscriber.congested:
                return True
        return any(all(is_congested(member) for member in members) for members in self.groups)

    def has_queue(self, queue: bytes) -> bool:
        """Return whether the queue group is among the recipients."""
        return any(members[0].queue == queue for members in self.groups)


def is_congested(member: Subscription | Listener) -> bool:
    """Return whether a group's member is a subscription whose subscriber is closed or congested."""
    return isinstance(member, Subscription) and (member.subscriber.congested or member.subscriber.closed)
