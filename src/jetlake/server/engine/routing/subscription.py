"""Who receives what is published: a client's subscription, a listener inside the server, a stream's capture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Capture", "Handler", "Listener", "Sink", "Subscriber", "Subscription"]


class Subscriber(ABC):
    """The far end of subscriptions and the origin of publishes: a connection, or a double in a test.

    Attributes:
        headers: it takes `HMSG`; to others headers are stripped.
        echo: it wants its own messages back.
        no_responders: it wants a 503 when nobody takes its request.
        closed: nothing sent will arrive any more.
        congested: more waits to be written than the high-water mark; deliveries should pause.
    """

    headers: bool = True
    echo: bool = True
    no_responders: bool = False
    closed: bool = False
    congested: bool = False

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Append whole frames to the outgoing buffer; never blocks, cuts the peer off when it holds too much."""

    def subscriptions(self) -> list[Subscription]:
        """The live subscriptions of this subscriber."""
        return []

    def client_info(self) -> dict[str, Any]:
        """Who this is, with the keys of the `client` object in advisories."""
        return {}


class Subscription:
    """A client's interest in a subject.

    Attributes:
        max: the subscription ends with this many deliveries, counted since it began; 0 = never.
        admits: looks at each delivery (subject, reply) and says whether the user may receive it; None = all.
        on_end: called once when the subscription ended by reaching `max`.
    """

    __slots__ = ("active", "admits", "delivered", "max", "on_end", "queue", "sid", "subject", "subscriber")

    def __init__(self, subject: bytes, sid: bytes, subscriber: Subscriber, queue: bytes = b"") -> None:
        self.subject = subject
        self.sid = sid
        self.subscriber = subscriber
        self.queue = queue
        self.delivered = 0
        self.max = 0
        self.active = True
        self.admits: Callable[[bytes, bytes], bool] | None = None
        self.on_end: Callable[[Subscription], None] | None = None

    def __repr__(self) -> str:
        return f"Subscription({self.subject!r}, sid={self.sid!r}, queue={self.queue!r})"


# Called with subject, reply, header, payload, origin; False means "as if nobody had listened".
Handler = Callable[[bytes, bytes, bytes, bytes, "Subscriber | None"], "bool | None"]


class Listener:
    """A subscription inside the server: a function that is called with each message."""

    __slots__ = ("active", "handler", "queue", "subject")

    def __init__(self, subject: bytes, handler: Handler, queue: bytes = b"") -> None:
        self.subject = subject
        self.handler = handler
        self.queue = queue
        self.active = True


class Sink(Protocol):
    """What a capture feeds: a stream."""

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Take one published message; the sink answers to `reply` itself."""
        ...


class Capture:
    """A stream's claim on the subjects of a pattern."""

    __slots__ = ("active", "sink", "subject")

    def __init__(self, subject: bytes, sink: Sink) -> None:
        self.subject = subject
        self.sink = sink
        self.active = True
