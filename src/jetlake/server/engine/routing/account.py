"""An account: the subject space of its clients, listeners and streams, and the delivery of messages within it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Protocol

from jetlake.model.trace_sampling import TraceSampling
from jetlake.model.weighted_mappings import WeightedMappings
from jetlake.protocol.encoder import HMSG_FRAME, HMSG_REPLY_FRAME, MSG_FRAME, MSG_REPLY_FRAME, hmsg, msg
from jetlake.protocol.frames import AckRun, PubRun
from jetlake.server.engine.routing.interest import LITERALS_MAX, Routing, RoutingStats, Watch
from jetlake.server.engine.routing.remote import Remote
from jetlake.server.engine.routing.route import Member, Route, is_congested
from jetlake.server.engine.routing.subscription import Message, Relay, Subscriber, Subscription

__all__ = ["Account", "JetStreamGate", "Message", "MessageRun", "RoutingStats", "Watch"]

# Acknowledgements with more than one reply among this many are looked at in halves.
_HALVED_MIN = 64


class JetStreamGate(Protocol):
    """The contract of an account's JetStream: handles the subjects below `$JS.`."""

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Handle one message to `$JS.…` (never `$JS.EVENT.…`); False when it is not for JetStream."""
        ...

    def receive_acks(self, prefix: bytes, sequences: list[int], consumer_sequences: list[int]) -> bool:
        """Handle plain acknowledgements of the consumer named in the prefix; False when none was handled."""
        ...

    def subjects(self) -> list[bytes]:
        """List the subjects below `$JS.` that are handled here and that other servers may want to know."""
        ...


class MessageRun(ABC):
    """Messages to one address that are encoded together, without a value for each of them."""

    @abstractmethod
    def messages(self) -> list[Message]:
        """Return the messages one by one."""

    @abstractmethod
    def encode(self, sid: bytes, *, headers: bool) -> tuple[bytes, int, int]:
        """Return the frames for a subscription, their number, and the size of payloads and any headers it takes."""


class Account(Routing):
    """One tenant's subject space, isolated from other accounts.

    Args:
        name: as in the configuration; `$G` is the account of servers without any.
        random: picks the members of queue groups.

    Attributes:
        label: the name for people.
        mappings: where messages of clients go; None = where they are published to. A publish for a client
            applies them first.
        trace: which messages of clients are traced by their trace context; None = none.
    """

    def __init__(self, name: str = "$G", *, random: Random | None = None) -> None:
        super().__init__()
        self.name = name
        self.label = name
        self.js: JetStreamGate | None = None
        self.mappings: WeightedMappings | None = None
        self.trace: TraceSampling | None = None
        self._random = (random or Random()).random

    # Publishing

    def publish(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None = None
    ) -> int:
        """Route one message to all interest, and return the number of recipients.

        An origin without echo does not get its own message back; one with `no_responders` gets a 503 for a request
        without a recipient.
        """
        route = self.literals.get(subject)
        if route is None:
            if subject.startswith(b"$JS.") and self.js is not None and not subject.startswith(b"$JS.EVENT."):
                return self._publish_to_jetstream(subject, reply, header, payload, origin)
            route = self.route(subject)
            if not subject.startswith(b"_INBOX."):
                # Replies are unique, and would only fill the cache.
                if len(self.literals) >= LITERALS_MAX:
                    self.literals.clear()
                self.literals[subject] = route
        for receive in route.sinks:
            receive(subject, reply, header, payload, origin)
        taken = len(route.sinks)
        if route.recipients > taken:
            taken += self._fan_out(route, subject, reply, header, payload, origin)
        if not taken and reply and origin is not None and origin.no_responders:
            self._tell_no_responders(subject, reply, origin)
        return taken

    def publish_run(self, run: PubRun) -> bool:
        """Route publishes that only one stream receives as a run; False for other publishes."""
        routes: set[Route | None] = set(map(self.literals.get, run.subjects))
        if None in routes:
            found = {subject: self.route(subject) for subject in set(run.subjects)}
            if len(self.literals) + len(found) <= LITERALS_MAX:
                self.literals.update(found)
            routes = set(found.values())
        sinks = {route.only_sink for route in routes if route is not None}
        sink = sinks.pop()
        if sink is None or sinks:
            return False
        sink.receive_run(run)
        return True

    def publish_acks(self, run: AckRun, origin: Subscriber | None) -> None:
        """Route acknowledgements of one consumer: as a run without other subscribers, otherwise one by one."""
        js = self.js
        if (
            js is None
            or self._is_heard(run.prefix)
            or not js.receive_acks(run.prefix, run.sequences, run.consumer_sequences)
        ):
            for message in run.messages():
                self.publish(message.subject, b"", b"", message.payload, origin)

    def publish_apart(self, message: Message, kept_reply: bytes, kept_header: bytes, origin: Subscriber | None) -> int:
        """Route a message with another reply and header for streams than for subscribers; the number of recipients."""
        subject, reply, header, payload = message
        route = self.route(subject)
        for receive in route.sinks:
            receive(subject, kept_reply, kept_header, payload, origin)
        return len(route.sinks) + self._fan_out(route, subject, reply, header, payload, origin)

    def _publish_to_jetstream(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None
    ) -> int:
        js = self.js
        taken = 1 if js is not None and js.receive(subject, reply, header, payload, origin) else 0
        # Not through the cache: ack subjects are unique.
        if self._wide and (interests := self._sublist.match(subject)):
            route = Route(interests)
            for receive in route.sinks:
                receive(subject, reply, header, payload, origin)
            taken += len(route.sinks) + self._fan_out(route, subject, reply, header, payload, origin)
        if not taken and reply and origin is not None and origin.no_responders:
            self._tell_no_responders(subject, reply, origin)
        return taken

    def _fan_out(
        self, route: Route, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None
    ) -> int:
        """Send a copy to each plain subscription and handler, and to one member of each group."""
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
            shown = header if subscriber.headers else b""
            subscriber.out_msgs += 1
            subscriber.out_bytes += len(shown) + len(payload)
            subscriber.send(_frame(subject, subscription.sid, reply, shown, payload))
        if route.is_plain:
            return taken
        for handler in route.handlers:
            if handler(subject, reply, header, payload, origin) is not False:
                taken += 1
        for receive in route.run_handlers:
            receive([(subject, reply, header, payload)])
            taken += 1
        for relay in route.relays:
            if relay.take(subject, subject, reply, header, payload, origin):
                taken += 1
        wanted = origin.groups if origin is not None else None
        refused = []
        for members in route.groups:
            if wanted is not None and members[0].queue not in wanted:
                continue
            if self._give_to_one(members, subject, subject, reply, header, payload, origin):
                taken += 1
            else:
                refused.append(members[0].queue)
        if route.remote is not None:
            message = (subject, reply, header, payload)
            taken += route.remote.deliver(self._random, subject, [message], origin, refused)
        return taken

    def _give_to_one(
        self,
        members: tuple[Member, ...],
        address: bytes,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> bool:
        """Send the message to a random member of the group, preferably an uncongested one; False when none can."""
        start = int(self._random() * len(members))
        order = members[start:] + members[:start] if start else members
        if len(order) > 1 and is_congested(order[0]):
            order = tuple(sorted(order, key=is_congested))
        for member in order:
            if isinstance(member, Subscription):
                if self.deliver(member, subject, reply, header, payload, origin):
                    return True
            elif isinstance(member, Relay):
                if member.take(address, subject, reply, header, payload, origin):
                    return True
            elif member.handler(address, reply, header, payload, origin) is not False:
                return True
        return False

    def deliver(
        self,
        subscription: Subscription,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> bool:
        """Send one message to one subscription; False when it may not or cannot have it."""
        subscriber = subscription.subscriber
        if subscriber.closed or (subscriber is origin and not origin.echo):
            return False
        if subscription.admits is not None and not subscription.admits(subject, reply):
            return False
        if subscription.max and not self._may_take(subscription, 1):
            return False
        subscription.delivered += 1
        shown = header if subscriber.headers else b""
        subscriber.out_msgs += 1
        subscriber.out_bytes += len(shown) + len(payload)
        subscriber.send(_frame(subject, subscription.sid, reply, shown, payload))
        return True

    def forward_for(self, remote: Remote, address: bytes, message: Message, origin: Subscriber | None) -> bool:
        """Forward a message that meets each remote of a subject, with the first of them; False when it was not sent."""
        route = self.route(address).remote
        if route is None or route.lead is not remote:
            return False
        return route.deliver(self._random, address, [message], origin) > 0

    def _may_take(self, subscription: Subscription, count: int) -> int:
        """Return how many of `count` deliveries a subscription with a maximum may get; the last one ends it."""
        left = subscription.max - subscription.delivered
        if left <= count and subscription.active:
            self._remove(subscription.subject, subscription)
            if subscription.on_end is not None:
                subscription.on_end(subscription)
        return max(min(left, count), 0)

    def _tell_no_responders(self, subject: bytes, reply: bytes, origin: Subscriber) -> None:
        """Send a 503 to the origin's own subscription on the reply subject, if there is one."""
        for subscription in self.route(reply).plain:
            if subscription.subscriber is origin:
                if subscription.max and not self._may_take(subscription, 1):
                    continue
                subscription.delivered += 1
                header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
                origin.send(_frame(reply, subscription.sid, b"", header, b""))
                return

    # Delivery in runs

    def send_run_to(self, address: bytes, run: MessageRun) -> None:
        """Deliver a run to the subscribers of `address`, encoded at once for the usual one: one plain subscription."""
        recipient = self.route(address).only_subscription
        if recipient is None or recipient.max or recipient.admits is not None:
            self.send_to(address, run.messages())
        else:
            _send(recipient, *run.encode(recipient.sid, headers=recipient.subscriber.headers))

    def send_to(self, address: bytes, messages: list[Message], origin: Subscriber | None = None) -> int:
        """Deliver a run of messages to the subscribers of `address`; each frame carries the message's own subject.

        The address is looked up once, and the run is sent as one piece per subscriber.

        Args:
            origin: the server that the run comes from; None = a stream here.

        Returns:
            How many messages, counted from the first, had a recipient; 0 = no subscriber.
        """
        route = self.literals.get(address) or self.route(address)
        subscription = route.only_subscription
        if subscription is not None:
            return self._send_run(subscription, messages)
        if not route.recipients:
            return 0
        taken = 0
        for subscription in route.plain:
            taken = max(taken, self._send_run(subscription, messages))
        for receive_run in route.run_handlers:
            receive_run(messages)
            taken = len(messages)
        if route.remote is not None:
            taken = max(taken, route.remote.deliver(self._random, address, messages, origin))
        wanted = origin.groups if origin is not None else None
        for index, (subject, reply, header, payload) in enumerate(messages, 1):
            reached = False
            for receive in route.sinks:
                receive(address, reply, header, payload, origin)
                reached = True
            for handler in route.handlers:
                reached = handler(address, reply, header, payload, origin) is not False or reached
            for relay in route.relays:
                reached = relay.take(address, subject, reply, header, payload, origin) or reached
            for members in route.groups:
                if wanted is None or members[0].queue in wanted:
                    reached = self._give_to_one(members, address, subject, reply, header, payload, origin) or reached
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
        size = 0
        for subject, reply, header, payload in messages:
            length = len(payload)
            size += length
            if header and headers:
                header_length = len(header)
                size += header_length
                length += header_length
                if reply:
                    append(HMSG_REPLY_FRAME % (subject, sid, reply, header_length, length, header, payload))
                else:
                    append(HMSG_FRAME % (subject, sid, header_length, length, header, payload))
            elif reply:
                append(MSG_REPLY_FRAME % (subject, sid, reply, length, payload))
            else:
                append(MSG_FRAME % (subject, sid, length, payload))
        subscription.delivered += len(messages)
        subscriber.out_msgs += len(messages)
        subscriber.out_bytes += size
        subscriber.send(frames[0] if len(frames) == 1 else b"".join(frames))
        return len(messages)

    def answer(self, replies: list[tuple[bytes, bytes]]) -> None:
        """Publish many short answers, (subject, payload) each: the PubAcks of a batch.

        Consecutive answers to one inbox, such as one publisher's, are looked up once and sent together.
        """
        frames: list[bytes] = []
        size = 0
        recipient: Subscription | None = None
        inbox: bytes | None = None
        for subject, payload in replies:
            prefix = subject.rpartition(b".")[0]
            if prefix != inbox:
                if recipient is not None and frames:
                    _send_frames(recipient, frames, size)
                    frames, size = [], 0
                recipient, inbox = self._inbox(prefix), prefix
            if recipient is None:
                self.publish(subject, b"", b"", payload)
            else:
                frames.append(MSG_FRAME % (subject, recipient.sid, len(payload), payload))
                size += len(payload)
        if recipient is not None and frames:
            _send_frames(recipient, frames, size)

    def acknowledge(self, replies: list[bytes], text: bytes, first_sequence: int) -> None:
        """Acknowledge consecutive messages of a stream with `<text><sequence>}` each; empty replies get nothing.

        As with `answer`, consecutive acknowledgements to one inbox are sent as one piece.
        """
        if replies[0] == replies[-1] and self._acknowledge_one(replies, text, first_sequence):
            return
        if len(replies) == 1:
            if replies[0]:
                self.publish(replies[0], b"", b"", b"%b%d}" % (text, first_sequence))
            return
        if len(replies) >= _HALVED_MIN and (replies[0] == replies[1] or replies[-1] == replies[-2]):
            # Several publishers, each with one reply for many messages: a half may be all of one.
            half = len(replies) // 2
            self.acknowledge(replies[:half], text, first_sequence)
            self.acknowledge(replies[half:], text, first_sequence + half)
            return
        frames: list[bytes] = []
        append = frames.append
        recipient: Subscription | None = None
        inbox: bytes | None = None
        middle = b""  # what stands between reply and sequence
        digits = len(b"%d" % first_sequence)
        limit = 10**digits
        for sequence, reply in enumerate(replies, first_sequence):
            dot = reply.rfind(b".")
            if reply[:dot] != inbox or sequence >= limit:
                if recipient is not None and frames:
                    _send_frames(recipient, frames, len(frames) * (len(text) + digits + 1))
                    frames.clear()
                if sequence >= limit:
                    digits += 1
                    limit *= 10
                inbox = reply[:dot]
                recipient = self._inbox(inbox) if dot > 0 else None
                if recipient is not None:
                    middle = b" %b %d\r\n%b" % (recipient.sid, len(text) + digits + 1, text)
            if recipient is not None:
                append(b"MSG %b%b%d}\r\n" % (reply, middle, sequence))
            elif reply:
                self.publish(reply, b"", b"", b"%b%d}" % (text, sequence))
        if recipient is not None and frames:
            _send_frames(recipient, frames, len(frames) * (len(text) + digits + 1))

    def _acknowledge_one(self, replies: list[bytes], text: bytes, first_sequence: int) -> bool:
        """Acknowledge messages that share one reply, in one piece; False when they do not, or it is no plain inbox."""
        reply = replies[0]
        recipient = self._inbox(reply.rpartition(b".")[0])
        if recipient is None:
            return False
        after = first_sequence + len(replies)
        size = len(b"%b%d}" % (text, first_sequence))
        if len(b"%b%d}" % (text, after - 1)) != size or replies.count(reply) != len(replies):
            return False
        start = b"MSG %b %b %d\r\n%b" % (reply, recipient.sid, size, text)
        template = start.replace(b"%", b"%%") + b"%d}\r\n"
        frames = template * len(replies) % tuple(range(first_sequence, after))
        _send(recipient, frames, len(replies), len(replies) * size)
        return True

    def _inbox(self, prefix: bytes) -> Subscription | None:
        """Return the one plain subscription on all of `prefix.<token>`; None when there is other interest."""
        if not prefix:
            return None
        route, exceptions = self._families.get(prefix) or self._resolve_family(prefix)
        recipient = route.only_subscription
        if recipient is None or exceptions or recipient.max or recipient.admits is not None:
            return None
        return recipient


def _send_frames(recipient: Subscription, frames: list[bytes], size: int) -> None:
    """Send frames whose payloads have this size together."""
    _send(recipient, b"".join(frames), len(frames), size)


def _send(recipient: Subscription, data: bytes, count: int, size: int) -> None:
    """Send this many frames, encoded one behind the other, whose payloads have this size together."""
    subscriber = recipient.subscriber
    recipient.delivered += count
    subscriber.out_msgs += count
    subscriber.out_bytes += size
    subscriber.send(data)


def _frame(subject: bytes, sid: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    return hmsg(subject, sid, reply, header, payload) if header else msg(subject, sid, reply, payload)
