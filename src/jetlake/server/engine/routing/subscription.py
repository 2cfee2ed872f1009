"""The recipients of messages: subscriptions, listeners inside the server, captures of streams, relays to accounts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from jetlake.protocol.frames import PubRun

__all__ = [
    "Capture",
    "Crossing",
    "EndListener",
    "Handler",
    "Listener",
    "Message",
    "Relay",
    "RunListener",
    "Sink",
    "Subscriber",
    "Subscription",
]


class EndListener(ABC):
    """A listener for the end of subscribers."""

    @abstractmethod
    def subscriber_ended(self, subscriber: Subscriber) -> None:
        """React to the end of a subscriber."""
        ...


class Subscriber(ABC):
    """The owner of subscriptions and the origin of publishes: a connection, or a test double.

    Attributes:
        headers: supports `HMSG`; for others headers are stripped.
        echo: receives its own messages.
        no_responders: receives a 503 when a request has no recipient.
        closed: nothing that is sent arrives any more.
        congested: the outgoing buffer is above its high-water mark; deliveries should pause.
        groups: the queue groups that its message is for, while it publishes one; None = all.
        out_msgs: messages delivered so far; a 503 for a request without a recipient is none.
        out_bytes: the bytes of their headers and payloads.
    """

    headers: bool = True
    echo: bool = True
    no_responders: bool = False
    closed: bool = False
    congested: bool = False
    groups: tuple[bytes, ...] | None = None
    out_msgs: int = 0
    out_bytes: int = 0

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Append whole frames to the outgoing buffer without blocking; a peer that is too slow is disconnected."""

    def subscriptions(self) -> list[Subscription]:
        """Return the active subscriptions."""
        return []

    def notify_of_end(self, listener: EndListener) -> bool:
        """Call the listener, which is not kept alive, once the subscriber is closed and its subscriptions have ended.

        Returns:
            Whether the end of this subscriber can be seen.
        """
        return False

    def client_info(self) -> dict[str, Any]:
        """Return the `client` object of advisories."""
        return {}


class Subscription:
    """A client's interest in a subject.

    Attributes:
        max: the subscription ends with this many deliveries, counted since it began; 0 = never.
        admits: returns whether the user may receive a delivery, by subject and reply; None = all.
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


# Called with subject, reply, header, payload, origin; False = not handled, as if there were no listener.
Handler = Callable[[bytes, bytes, bytes, bytes, "Subscriber | None"], "bool | None"]


Message = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, header, payload; empty bytes where there is none."""


class Listener:
    """A subscription inside the server: a function that is called with each message."""

    __slots__ = ("active", "handler", "queue", "subject")

    def __init__(self, subject: bytes, handler: Handler, queue: bytes = b"") -> None:
        self.subject = subject
        self.handler = handler
        self.queue = queue
        self.active = True


class RunListener:
    """A listener that is called with whole runs of messages; a message of its own is a run of one."""

    __slots__ = ("active", "receive", "subject")

    def __init__(self, subject: bytes, receive: Callable[[list[Message]], None]) -> None:
        self.subject = subject
        self.receive = receive
        self.active = True


class Sink(Protocol):
    """The receiver of captured messages: a stream's publish path."""

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Receive one published message; the sink answers to `reply` itself."""
        ...

    def receive_run(self, run: PubRun) -> None:
        """Receive published messages, in their order, as `receive` does."""
        ...


class Capture:
    """A stream's interest in the subjects of a pattern.

    Attributes:
        is_closed: the stream receives nothing more, and the capture is about to be released.
    """

    __slots__ = ("active", "is_closed", "sink", "subject")

    def __init__(self, subject: bytes, sink: Sink) -> None:
        self.subject = subject
        self.sink = sink
        self.active = True
        self.is_closed = False


# Called with address, subject, reply, header, payload, origin; whether there was a recipient. The address is what the
# message is routed by; the subject, which streams' deliveries keep, is what the recipient's frame carries.
Take = Callable[[bytes, bytes, bytes, bytes, bytes, "Subscriber | None"], bool]


class Crossing(Struct, frozen=True):
    """How a relay's messages get into the target account, for message traces."""

    account: str
    """The target account."""
    is_service: bool
    """The messages are requests to a service; otherwise a stream's messages."""
    rename: Callable[[bytes], bytes | None]
    """Return the subject in the target account of a subject here."""
    find_recipients: Callable[[bytes], list[tuple[Subscription, ...]]]
    """Return the target account's subscriptions to a subject of that account; one of each tuple gets a message."""
    allows_trace: bool
    """Whether a trace may show them."""


class Relay:
    """The interest of another account: passes each message across the border.

    Attributes:
        take: passes one message on; False = it had no recipient, as if there were no relay.
        is_congested: whether the recipients beyond the border cannot take more for now.
        crossing: the way that a trace shows; None = it shows none.
    """

    __slots__ = ("active", "crossing", "is_congested", "queue", "subject", "take")

    def __init__(
        self,
        subject: bytes,
        take: Take,
        is_congested: Callable[[], bool],
        queue: bytes = b"",
        crossing: Crossing | None = None,
    ) -> None:
        self.subject = subject
        self.take = take
        self.is_congested = is_congested
        self.queue = queue
        self.crossing = crossing
        self.active = True
