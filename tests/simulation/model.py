"""What must hold, whatever happens: a small book of promises for streams and consumers.

The book knows what a client knows: what it sent, what it was told, and when the server died. Where a crash leaves open
whether something happened, both are allowed until the world has been looked at again.
"""

from dataclasses import dataclass, field

from jetlake.protocol.subjects import matches


@dataclass
class Delivery:
    """The last delivery of a message to a consumer."""

    count: int
    time_ns: int
    start: int  # which run of the server it came from
    reply: bytes
    refused: bool = False  # it may come again before its wait is over


@dataclass
class Pull:
    """A request that was sent and has not been answered in full."""

    consumer: tuple
    inbox: bytes
    batch: int
    deadline_ns: int
    no_wait: bool
    subscription: object
    max_bytes: int = 0  # what it may still take; 0 = not limited


@dataclass
class ConsumerBook:
    """What one consumer was told, and what it has promised."""

    name: str
    stream: str
    ack_policy: str
    filter: str
    ack_wait_ns: int
    max_deliver: int
    max_ack_pending: int
    first_sequence: int
    confirmed: set = field(default_factory=set)  # acknowledgements that were answered: these never come again
    done: set = field(default_factory=set)  # acknowledged or terminated, answered or not
    maybe_done: set = field(default_factory=set)  # acknowledged before a crash, and not confirmed
    deliveries: dict = field(default_factory=dict)
    leaving: bool = False  # its removal was asked for
    crashed: bool = False  # what was on its way to clients is lost with the server
    floor: int = 0
    safe_floor: int = 0  # the floor at the last confirmation: no crash takes it below that

    def wants(self, subject):
        return not self.filter or matches(self.filter.encode(), subject)

    def needs(self, sequence, subject):
        """Whether an interest stream must keep the message for it."""
        if sequence < self.first_sequence or not self.wants(subject):
            return False
        return sequence not in self.done and sequence not in self.maybe_done

    def crash(self):
        """What was not confirmed may have been forgotten, or not."""
        self.maybe_done |= self.done - self.confirmed
        self.done = set(self.confirmed)
        self.crashed = True
        self.floor = self.safe_floor


@dataclass
class StreamBook:
    """What one stream holds, as far as a client can know."""

    name: str
    retention: str
    max_msgs: int
    messages: dict = field(default_factory=dict)  # sequence to (subject, payload), of what must be there
    unsure: dict = field(default_factory=dict)  # of what may be there: its removal was not confirmed
    seen: dict = field(default_factory=dict)  # sequence to payload, of everything that anyone was ever shown
    in_flight: set = field(default_factory=set)  # payloads that were published and not (yet) acknowledged
    last_sequence: int = 0

    def see(self, sequence, payload):
        """Somebody was shown this message: no other one may ever have its sequence."""
        known = self.seen.setdefault(sequence, payload)
        assert known == payload, f"{self.name}: sequence {sequence} was {known!r} and is {payload!r}"

    def stored(self, sequence, subject, payload):
        """A publish was acknowledged, and whoever wants it can count on it."""
        assert sequence > self.last_sequence, f"{self.name}: sequence {sequence} after {self.last_sequence}"
        self.last_sequence = sequence
        self.in_flight.discard(payload)
        self.see(sequence, payload)
        self.messages[sequence] = (subject, payload)
        self.trim()

    def trim(self):
        """The limit on messages takes the oldest."""
        if 0 < self.max_msgs < len(self.messages):
            for oldest in sorted(self.messages)[: len(self.messages) - self.max_msgs]:
                del self.messages[oldest]

    def removed(self, sequence):
        """Its removal was confirmed."""
        self.messages.pop(sequence, None)
        self.unsure.pop(sequence, None)

    def doubt(self, sequence):
        """It was removed, and nobody has confirmed it: a crash may bring it back."""
        if sequence in self.messages:
            self.unsure[sequence] = self.messages.pop(sequence)

    def look(self, store):
        """Compare with what the store holds, at rest; what was open is settled by what is found."""
        held = {seq: store.get(seq) for seq in range(max(store.first_sequence, 1), store.last_sequence + 1)}
        held = {seq: message for seq, message in held.items() if message is not None}
        assert store.last_sequence >= self.last_sequence, f"{self.name}: lost its place: {store.last_sequence}"
        assert store.messages == len(held), f"{self.name}: counts {store.messages}, holds {len(held)}"
        for sequence, message in held.items():
            if sequence not in self.messages and sequence not in self.unsure:
                assert message.payload in self.in_flight, f"{self.name}: {sequence} came back from the dead"
                self.messages[sequence] = (message.subject, message.payload)
                self.in_flight.discard(message.payload)
            if sequence in self.unsure:
                self.messages[sequence] = self.unsure.pop(sequence)
            assert message.payload == self.messages[sequence][1], f"{self.name}: {sequence} has another payload"
            self.see(sequence, message.payload)
        self.last_sequence = store.last_sequence
        self.trim()
        missing = self.messages.keys() - held.keys()
        assert not missing, f"{self.name}: lost {sorted(missing)}"
