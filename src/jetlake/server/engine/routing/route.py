"""A route: the recipients of one subject's messages, resolved once and valid until interest changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.server.engine.routing.remote import Remote, RemoteRoute
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

__all__ = ["Interest", "Member", "Route", "is_congested"]

Interest = Subscription | Listener | RunListener | Capture | Relay | Remote
Member = Subscription | Listener | Relay
Receive = Callable[[bytes, bytes, bytes, bytes, Subscriber | None], None]


class Route:
    """The recipients of a subject, by kind.

    Attributes:
        sinks: the streams that capture the subject, as their `receive`.
        handlers: the listeners inside the server.
        run_handlers: handlers that take whole runs.
        relays: the interest of other accounts.
        plain: subscriptions without a queue group; each gets a copy.
        groups: the members of each queue group, of which one gets the message.
        remote: the servers that want the messages too; None = none does.
        is_plain: there are at most streams and plain subscriptions.
        only_subscription: the only recipient, when that is one plain subscription: the usual case of deliveries.
        only_sink: the only recipient, when that is one stream: the usual case of publishes to streams.
        recipients: number of recipients.
    """

    __slots__ = (
        "groups",
        "handlers",
        "is_plain",
        "only_sink",
        "only_subscription",
        "plain",
        "recipients",
        "relays",
        "remote",
        "run_handlers",
        "sinks",
    )

    def __init__(self, interests: Iterable[Interest] = ()) -> None:
        sinks: dict[int, Sink] = {}
        handlers: list[Handler] = []
        run_handlers: list[Callable[[list[Message]], None]] = []
        plain: list[Subscription] = []
        relays: list[Relay] = []
        groups: dict[bytes, list[Member]] = {}
        remotes: list[Remote] = []
        for interest in interests:
            if isinstance(interest, Capture):
                # A stream whose subjects overlap receives a message once.
                if not interest.is_closed:
                    sinks[id(interest.sink)] = interest.sink
            elif isinstance(interest, RunListener):
                run_handlers.append(interest.receive)
            elif isinstance(interest, Remote):
                remotes.append(interest)
            elif interest.queue:
                groups.setdefault(interest.queue, []).append(interest)
            elif isinstance(interest, Listener):
                handlers.append(interest.handler)
            elif isinstance(interest, Relay):
                relays.append(interest)
            else:
                plain.append(interest)
        self.sinks: tuple[Receive, ...] = tuple(sink.receive for sink in sinks.values())
        self.handlers = tuple(handlers)
        self.run_handlers = tuple(run_handlers)
        self.relays = tuple(relays)
        self.plain = tuple(plain)
        self.groups = tuple(tuple(members) for members in groups.values())
        self.remote = RemoteRoute(remotes, groups) if remotes else None
        self.recipients = len(sinks) + len(handlers) + len(run_handlers) + len(relays) + len(plain) + len(groups)
        if self.remote is not None:
            self.recipients += self.remote.recipients
        self.is_plain = self.recipients == len(sinks) + len(plain)
        self.only_subscription = self.plain[0] if self.plain and self.recipients == 1 else None
        self.only_sink = next(iter(sinks.values())) if sinks and self.recipients == 1 else None

    @property
    def congested(self) -> bool:
        """A plain subscription's subscriber, another account or server, or all members of a group are congested."""
        for subscription in self.plain:
            if subscription.subscriber.congested:
                return True
        for relay in self.relays:
            if relay.is_congested():
                return True
        if self.remote is not None and self.remote.congested:
            return True
        return any(all(is_congested(member) for member in members) for members in self.groups)

    def subscriptions(self) -> list[tuple[Subscription, ...]]:
        """Return the subscriptions of clients: one of each tuple gets a message."""
        groups = [tuple(member for member in members if isinstance(member, Subscription)) for members in self.groups]
        return [*((subscription,) for subscription in self.plain), *filter(None, groups)]


def is_congested(member: Member) -> bool:
    """Return whether a group's member is, or relays to, a subscriber that is closed or congested."""
    if isinstance(member, Relay):
        return member.is_congested()
    return isinstance(member, Subscription) and (member.subscriber.congested or member.subscriber.closed)
