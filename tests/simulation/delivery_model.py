"""A model of streams and consumers that foretells every frame: which inbox gets which message or status, and when.

It is written from the protocol documents, not from the engine, and prefers the plain over the fast: lists are scanned,
counts are counted. Time, the clients and the names of pins come from outside.
"""

SECOND = 1_000_000_000
GRACE_NS = 1_000_000
INT_MAX = 2**62


def matches(pattern, subject):
    """Whether a subject passes a pattern of tokens with `*` and `>`."""
    pattern, subject = pattern.split("."), subject.split(".")
    for place, token in enumerate(pattern):
        if token == ">":
            return len(subject) > place
        if place >= len(subject) or token not in ("*", subject[place]):
            return False
    return len(pattern) == len(subject)


class Stored:
    """A message of a stream."""

    def __init__(self, sequence, subject, payload, time_ns):
        self.sequence, self.subject, self.payload, self.time_ns = sequence, subject, payload, time_ns


class StreamModel:
    """The messages of a stream, and the consumers that read it."""

    def __init__(self, name, retention, max_msgs=0):
        self.name, self.retention, self.max_msgs = name, retention, max_msgs
        self.messages = {}
        self.last = 0
        self.first = 0
        self.consumers = {}

    def _refirst(self):
        self.first = min(self.messages) if self.messages else self.last + 1

    def publish(self, subject, payload, now_ns):
        """Store a message, unless this is an interest stream and nobody wants it."""
        self.last += 1
        if self.retention == "interest" and not any(one.wants(subject) for one in self.consumers.values()):
            self._refirst()
            return
        self.messages[self.last] = Stored(self.last, subject, payload, now_ns)
        self._refirst()
        if self.max_msgs and len(self.messages) > self.max_msgs:
            self.remove(min(self.messages))

    def remove(self, sequence):
        """A message goes by itself: by a limit, a request or retention."""
        del self.messages[sequence]
        self._refirst()
        for consumer in self.consumers.values():
            consumer.lost(sequence)

    def purge(self, wanted):
        """Many messages go at once."""
        for sequence in [one for one in self.messages if wanted(self.messages[one])]:
            del self.messages[sequence]
        self._refirst()
        for consumer in self.consumers.values():
            consumer.purged()

    def done(self, consumer, sequence):
        """A consumer is done with a message."""
        if self.retention == "limits" or sequence not in self.messages:
            return
        subject = self.messages[sequence].subject
        others = [one for one in self.consumers.values() if one is not consumer]
        if self.retention == "interest" and any(one.needs(sequence, subject) for one in others):
            return
        self.remove(sequence)

    def sweep(self):
        """Interest has changed: what nobody needs goes."""
        if self.retention != "interest":
            return
        for sequence, stored in list(self.messages.items()):
            interested = [one for one in self.consumers.values() if one.wants(stored.subject)]
            if not any(one.needs(sequence, stored.subject) for one in interested):
                self.remove(sequence)


class Request:
    """A pull request that waits."""

    def __init__(self, inbox, now_ns, body):
        self.inbox = inbox
        self.batch = body.get("batch", 1)
        self.no_wait = body.get("no_wait", False)
        expires = body.get("expires", 0)
        self.deadline = now_ns + expires if expires else 0
        self.heartbeat = body.get("idle_heartbeat", 0)
        self.next_heartbeat = now_ns + self.heartbeat if self.heartbeat else 0
        self.max_bytes = body.get("max_bytes", 0)
        self.min_pending = body.get("min_pending", 0)
        self.min_ack_pending = body.get("min_ack_pending", 0)
        self.priority = body.get("priority", 0)
        self.pin = body.get("id")
        self.delivered = 0

    @property
    def is_conditional(self):
        return bool(self.min_pending or self.min_ack_pending)

    @property
    def is_one_shot(self):
        return self.no_wait and (not self.deadline or self.delivered > 0)


class Pin:
    """The pin of a group; `name` is what clients see."""

    name = None


class ConsumerModel:
    """One consumer: pulled from, or pushing where `deliver_subject` is configured.

    Args:
        stream: its stream.
        name: its name.
        config: as on the wire.
        world: `now_ns()`, `emit(inbox, frame)`, `advise(event)`, `has_interest(inbox)`, `new_pin()`.
    """

    def __init__(self, stream, name, config, world):
        self.stream, self.name, self.config, self.world = stream, name, dict(config), world
        self.chosen = []  # of last per subject
        self.resume = 0
        self.waiting = []
        self.pin = None
        self.pin_deadline = 0
        self.fresh = None  # the request that was pinned and has had nothing yet
        self.old_inbox = b""
        self.bound = False
        self.heartbeat_due = 0
        self.pause_until = 0
        self._begin(self._start())

    # Configuration

    @property
    def filters(self):
        if self.config.get("filter_subject"):
            return [self.config["filter_subject"]]
        return self.config.get("filter_subjects", [])

    def wants(self, subject):
        return not self.filters or any(matches(one, subject) for one in self.filters)

    @property
    def policy(self):
        return self.config.get("ack_policy")

    @property
    def max_deliver(self):
        return self.config.get("max_deliver", -1)

    @property
    def room(self):
        limit = self.config.get("max_ack_pending", 1000)
        return limit - len(self.pending) if self.policy != "none" and limit > 0 else INT_MAX

    @property
    def group(self):
        return self.config.get("priority_policy")

    def wait_ns(self, count):
        backoff = self.config.get("backoff")
        if backoff:
            return backoff[min(count, len(backoff)) - 1] + GRACE_NS
        return self.config["ack_wait"] + GRACE_NS

    def _passing(self):
        return [one for one in self.stream.messages.values() if self.wants(one.subject)]

    def _start(self):
        stream, policy = self.stream, self.config["deliver_policy"]
        first = max(stream.first, 1)
        if policy == "by_start_sequence":
            return max(self.config["opt_start_seq"], first)
        if policy == "all" or stream.last < first:
            return first
        if policy == "new":
            return stream.last + 1
        passing = self._passing()
        if policy == "by_start_time":
            later = [s.sequence for s in stream.messages.values() if s.time_ns >= self.config["start_ns"]]
            return min(later, default=stream.last + 1)
        if policy == "last":
            if not self.filters:
                return stream.last
            return max((one.sequence for one in passing), default=first)
        self.chosen = self._newest(0, stream.last)
        if not self.chosen:
            return stream.last
        self.resume = stream.last + 1
        return self.chosen[0]

    def _newest(self, after, last):
        newest = {one.subject: one.sequence for one in self._passing() if one.sequence <= last}
        return sorted(one for one in newest.values() if one > after)

    def _begin(self, start):
        self.cursor = start
        self.delivered = [0, start - 1]
        self.floor = [0, start - 1]
        self.pending = {}  # sequence to the consumer sequence of the first delivery
        self.since = {}  # sequence to the start of its ack wait
        self.delays = {}  # sequence to the end of a nak's delay
        self.counts = {}  # sequence to deliveries, of those that were delivered
        self.again = set()  # delivered more than once, or exhausted
        self.exhausted = set()
        self.queue = []  # to be redelivered

    # What is to come

    def to_come(self):
        """The messages that were never delivered, in order."""
        if self.resume:
            some = [self.stream.messages[one] for one in self.chosen if one in self.stream.messages]
            return some + [one for one in self._passing() if one.sequence >= self.resume]
        return [one for one in self._passing() if one.sequence >= self.cursor]

    def needs(self, sequence, subject):
        """Whether an interest stream keeps the message for this consumer."""
        if not self.wants(subject):
            return False
        if any(one.sequence == sequence for one in self.to_come()):
            return True
        if sequence in self.pending or sequence in self.exhausted:
            return True
        return self.policy == "all" and sequence > self.floor[1]

    # Requests

    def pull(self, inbox, body):
        """A request arrives."""
        now_ns = self.world.now_ns()
        if self.config.get("deliver_subject"):
            return self._status(inbox, "409 Consumer is push based")
        if 2 * body.get("idle_heartbeat", 0) > body.get("expires", 0):
            return self._status(inbox, "400 Bad Request - heartbeat value too large")
        if 0 < self.config.get("max_batch", 0) < body.get("batch", 1):
            return self._status(inbox, f"409 Exceeded MaxRequestBatch of {self.config['max_batch']}")
        request = Request(inbox, now_ns, body)
        if request.is_conditional and self.group != "overflow":
            return self._status(inbox, "400 Bad Request - Not a Overflow Priority consumer")
        if request.pin is not None and self.group != "pinned_client":
            return self._status(inbox, "400 Bad Request - Not a Pinned Client Priority consumer")
        if not 0 <= request.priority <= 9:
            return self._status(inbox, "400 Bad Request - Priority must be between 0 and 9")
        if self.group and not body.get("group"):
            return self._status(inbox, "400 Bad Request - Priority Group missing")
        if self.group and body["group"] != "jobs":
            return self._status(inbox, "400 Bad Request - Invalid Priority Group")
        if self.group == "pinned_client" and request.pin is not None and self.pin is not None:
            if request.pin is not self.pin:
                return self._status(inbox, "423 Nats-Pin-Id mismatch")
            self.pin_deadline = now_ns + self.config["priority_timeout"]
        if request.no_wait:
            available = len(self.to_come()) + len(self.queue)
            if not available and not request.deadline:
                return self._status(inbox, "404 No Messages")
            if available and self.waiting and available < sum(one.batch for one in self.waiting):
                return self._status(inbox, "408 Requests Pending")
        if len(self.waiting) >= self.config.get("max_waiting", 512):
            return None if request.heartbeat else self._status(inbox, "409 Exceeded MaxWaiting")
        self.waiting.append(request)
        return None

    def leave(self, inbox):
        """An inbox has lost its subscriber."""
        self.waiting = [one for one in self.waiting if one.inbox != inbox]

    def _status(self, inbox, line, *pairs):
        header = f"NATS/1.0 {line}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in pairs) + "\r\n"
        self.world.emit(inbox, (inbox, b"", header.encode(), b""))

    def _end(self, request, line):
        self.waiting.remove(request)
        pairs = ("Nats-Pending-Messages", request.batch), ("Nats-Pending-Bytes", request.max_bytes)
        self._status(request.inbox, line, *pairs)

    def _end_one_shots(self):
        for request in [one for one in self.waiting if one.is_one_shot]:
            self.waiting.remove(request)
            self._status(request.inbox, "404 No Messages")

    def end_requests(self, line):
        """All requests end with a status."""
        for request in self.waiting:
            self._status(request.inbox, line)

    # Delivery

    def settle(self):
        """Do what is due, and deliver what can be delivered."""
        now_ns = self.world.now_ns()
        self._expire(now_ns)
        if self.pause_until and self.pause_until <= now_ns:
            self.pause_until = 0
        self._keep_time(now_ns)
        self.deliver()

    def deliver(self):
        """Deliver what can be delivered."""
        now_ns = self.world.now_ns()
        if self.config.get("deliver_subject"):
            self._push(now_ns)
        else:
            self._serve(now_ns)

    def _expire(self, now_ns):
        """Ack waits that are over: those messages are queued, in the order of the stream."""
        if self.policy == "none":
            return
        due = []
        for sequence in self.pending:
            if sequence in self.queue:
                continue
            deadline = self.delays.get(sequence) or self.since[sequence] + self.wait_ns(self.counts[sequence])
            if deadline <= now_ns:
                due.append(sequence)
        for sequence in sorted(due):
            self.delays.pop(sequence, None)
            if self.max_deliver == 1:
                self._exhaust(sequence)
            else:
                self.queue.append(sequence)

    def _exhaust(self, sequence):
        del self.pending[sequence]
        self.again.add(sequence)
        self.exhausted.add(sequence)
        self.world.advise(("MAX_DELIVERIES", self.name, sequence, self.counts[sequence]))

    def _keep_time(self, now_ns):
        """Requests that expire, pins that are lost, heartbeats."""
        for request in sorted(self.waiting, key=self._level):
            if request.deadline and request.deadline <= now_ns:
                self._end(request, "408 Request Timeout")
            elif request.next_heartbeat and request.next_heartbeat <= now_ns:
                if request.is_one_shot:
                    self.waiting.remove(request)
                    self._status(request.inbox, "404 No Messages")
                    continue
                request.next_heartbeat = now_ns + request.heartbeat
                self._heartbeat(request.inbox)
        if self.heartbeat_due and self.heartbeat_due <= now_ns:
            self.heartbeat_due = now_ns + self.config["idle_heartbeat"]
            self._heartbeat(self.config["deliver_subject"].encode())
        if self.pin is not None and self.pin_deadline <= now_ns:
            if self.fresh is not None and self.fresh not in self.waiting:
                self._unset_pin()
            else:
                self.unpin("timeout")

    def _heartbeat(self, inbox):
        pairs = ("Nats-Last-Consumer", self.delivered[0]), ("Nats-Last-Stream", self.delivered[1])
        self._status(inbox, "100 Idle Heartbeat", *pairs)

    def is_paused(self):
        return self.pause_until > self.world.now_ns()

    def _next(self):
        """The next message to deliver, as (message, deliveries before); None when there is none now."""
        while self.queue:
            sequence = self.queue[0]
            if 0 < self.max_deliver <= self.counts[sequence]:
                del self.queue[0]
                self._exhaust(sequence)
                continue
            return self.stream.messages[sequence], self.counts[sequence]
        if self.room <= 0:
            return None
        to_come = self.to_come()
        return (to_come[0], 0) if to_come else None

    def _frame(self, stored, before):
        pending = len(self.to_come()) - (not before)
        tokens = (before + 1, stored.sequence, self.delivered[0] + 1, stored.time_ns, pending)
        reply = f"$JS.ACK.{self.stream.name}.{self.name}." + ".".join(map(str, tokens))
        header, payload = b"", stored.payload
        if self.config.get("headers_only"):
            header, payload = b"NATS/1.0\r\nNats-Msg-Size: %d\r\n\r\n" % len(payload), b""
        return stored.subject.encode(), reply.encode(), header, payload

    def _record(self, stored, before, now_ns):
        """Count a delivery."""
        sequence = stored.sequence
        self.delivered[0] += 1
        if before:
            self.queue.remove(sequence)
            self.again.add(sequence)
        else:
            self.delivered[1] = sequence
            if self.resume:
                self.chosen = [one for one in self.chosen if one > sequence]
                if not [one for one in self.chosen if one in self.stream.messages]:
                    self.cursor, self.resume, self.chosen = max(self.resume, sequence + 1), 0, []
            else:
                self.cursor = sequence + 1
        if self.policy == "none":
            self.floor = list(self.delivered)
            self.stream.done(self, sequence)
            return
        self.pending.setdefault(sequence, self.delivered[0])
        self.counts[sequence] = before + 1
        self.since[sequence] = now_ns

    def _serve(self, now_ns):
        """Serve waiting requests as long as there is something for them."""
        while self.waiting:
            if self.is_paused():
                return self._end_one_shots()
            if self.group == "pinned_client" and not self._choose_pin(now_ns):
                return None
            found = self._next()
            if not self.waiting:
                return None
            if found is None:
                return None if self.to_come() else self._end_one_shots()
            frame = self._frame(*found)
            request = self._choose(frame)
            if request is None:
                if self.fresh is not None and self.fresh not in self.waiting:
                    self._unset_pin()
                    self._end_one_shots()
                    continue
                return self._end_one_shots()
            self._record(*found, now_ns)
            if self.pin is not None:
                frame = self._pinned(request, frame)
            self.world.emit(request.inbox, frame)
            if request not in self.waiting and request.max_bytes > 0:
                pairs = ("Nats-Pending-Messages", request.batch), ("Nats-Pending-Bytes", request.max_bytes)
                self._status(request.inbox, "409 Batch Completed", *pairs)
        return None

    def _level(self, request):
        if self.group == "overflow":
            return int(request.is_conditional)
        return request.priority if self.group == "prioritized" else 0

    def _choose(self, frame):
        """The request whose turn it is; each that cannot have the message goes to the end of the line."""
        size = sum(map(len, frame))
        num_pending = len(self.to_come())
        for level in range(10):
            for request in [one for one in self.waiting if self._level(one) == level]:
                if not self._admits(request, num_pending):
                    if request in self.waiting:
                        self._rotate(request)
                    continue
                if request.max_bytes and size > request.max_bytes:
                    self._end(request, "409 Message Size Exceeds MaxBytes")
                    continue
                request.batch -= 1
                request.delivered += 1
                if request.heartbeat:
                    request.next_heartbeat = self.world.now_ns() + request.heartbeat
                if request.max_bytes:
                    request.max_bytes -= size
                    if not request.max_bytes:
                        request.batch = 0
                if request.batch > 0:
                    self._rotate(request)
                else:
                    self.waiting.remove(request)
                return request
        return None

    def _rotate(self, request):
        self.waiting.remove(request)
        self.waiting.append(request)

    def _admits(self, request, num_pending):
        if self.group == "overflow" and request.is_conditional:
            enough = 0 < request.min_pending <= num_pending
            return enough or 0 < request.min_ack_pending <= len(self.pending)
        if self.group == "pinned_client":
            if request.pin is not None and request.pin is not self.pin:
                self._end(request, "423 Nats-Wrong-Pin-Id")
            return request.pin is self.pin
        return True

    # The pinned client

    def _in_flight(self):
        return [one for one in self.pending if one not in self.queue and one not in self.delays]

    def _choose_pin(self, now_ns):
        """Whether a client is pinned; one is chosen if nothing is in flight to the one before."""
        if self.fresh is not None and self.fresh not in self.waiting:
            self._unset_pin()
        if self.pin is not None:
            return True
        is_gone = self.old_inbox and not self.world.has_interest(self.old_inbox)
        if self._in_flight() and not is_gone:
            self._end_one_shots()
            return False
        if not self.to_come() and not self.queue:
            return True
        for request in list(self.waiting):
            if request.pin is not None:
                self._end(request, "423 Nats-Wrong-Pin-Id")
                continue
            self.pin = request.pin = Pin()
            self.fresh = request
            self.pin_deadline = now_ns + self.config["priority_timeout"]
            return True
        return False

    def _unset_pin(self):
        self.pin = self.fresh = None
        self.pin_deadline = 0

    def unpin(self, reason):
        """The pinned client loses its pin."""
        self._unset_pin()
        self.world.advise(("UNPINNED", self.name, reason))

    def _pinned(self, request, frame):
        self.old_inbox = request.inbox
        if self.fresh is not None:
            self.fresh = None
            self.pin.name = self.world.new_pin()
            for other in [one for one in self.waiting if one.pin is not None and one.pin is not self.pin]:
                self._end(other, "423 Nats-Wrong-Pin-Id")
            self.world.advise(("PINNED", self.name, self.pin.name))
        subject, reply, header, payload = frame
        line = b"Nats-Pin-Id: " + self.pin.name + b"\r\n\r\n"
        return subject, reply, (header[:-2] or b"NATS/1.0\r\n") + line, payload

    # Push

    def bind(self, bound):
        """The deliver subject has gained or lost its subscriber."""
        if bound != self.bound:
            self.bound = bound
            heartbeat = self.config.get("idle_heartbeat", 0)
            self.heartbeat_due = self.world.now_ns() + heartbeat if bound and heartbeat else 0

    def _push(self, now_ns):
        subject = self.config["deliver_subject"].encode()
        while self.bound and not self.is_paused() and (found := self._next()) is not None:
            frame = self._frame(*found)
            self._record(*found, now_ns)
            self.world.emit(subject, frame)
            if self.config.get("idle_heartbeat"):
                self.heartbeat_due = now_ns + self.config["idle_heartbeat"]

    # Acknowledgements

    def acknowledge(self, reply, body):
        """An acknowledgement arrives; returns whether a reply subject gets an answer."""
        now_ns = self.world.now_ns()
        tokens = reply.decode().split(".")
        sequence, number = int(tokens[5]), int(tokens[6])
        if not 0 < sequence <= self.delivered[1]:
            return False
        if body in (b"", b"+ACK", b"+OK"):
            self._ack(sequence, number)
        elif body.startswith(b"+TERM"):
            count = self.counts.get(sequence, 1)
            self._ack(sequence, number)
            self.world.advise(("MSG_TERMINATED", self.name, sequence, count))
        elif body.startswith(b"-NAK"):
            self._nak(sequence, number, body[4:].decode().strip(), now_ns)
        elif body == b"+WPI" and sequence in self.pending and sequence not in self.queue:
            self.since[sequence] = now_ns
            self.delays.pop(sequence, None)
        return True

    def _forget(self, sequence):
        self.pending.pop(sequence, None)
        self.counts.pop(sequence, None)
        self.delays.pop(sequence, None)
        self.exhausted.discard(sequence)
        self.again.discard(sequence)
        if sequence in self.queue:
            self.queue.remove(sequence)

    def _ack(self, sequence, number):
        if self.policy == "all":
            if sequence <= self.floor[1] or not self.floor[0] < number <= self.delivered[0]:
                return
            self.floor = [number, sequence]
            done = sorted(one for one in {*self.pending, *self.exhausted} if one <= sequence)
            for one in done:
                self._forget(one)
        else:
            done = [sequence] if sequence in self.pending or sequence in self.exhausted else []
            self._settle_one(sequence, self.pending.get(sequence, number))
        for one in done:
            self.stream.done(self, one)

    def _settle_one(self, sequence, number):
        """A message is settled; the floor follows."""
        self._forget(sequence)
        if not self.pending:
            self.floor = list(self.delivered)
        elif number == self.floor[0] + 1:
            lowest = min(self.pending)
            self.floor = [self.pending[lowest] - 1, lowest - 1]

    def _nak(self, sequence, number, delay, now_ns):
        if sequence not in self.pending or not self.floor[0] < number <= self.delivered[0]:
            return
        count = self.counts[sequence]
        if delay:
            if sequence in self.queue:
                self.queue.remove(sequence)
            self.delays[sequence] = now_ns + int(float(delay.removesuffix("s")) * SECOND)
        elif sequence not in self.queue:
            self.delays.pop(sequence, None)
            self.queue.append(sequence)
        self.since[sequence] = self.delays.get(sequence, now_ns) - self.wait_ns(count)
        self.world.advise(("MSG_NAKED", self.name, sequence, count))

    # Changes of the stream

    def lost(self, sequence):
        """A message has left the stream."""
        if sequence in self.pending:
            self.world.advise(("MSG_TERMINATED", self.name, sequence, self.counts[sequence]))
        elif sequence not in self.exhausted:
            return
        if self.policy == "all":
            self._forget(sequence)
            if not self.pending and not self.exhausted:
                self.floor = list(self.delivered)
        else:
            self._settle_one(sequence, self.pending.get(sequence, 0))

    def purged(self):
        """Many messages have left the stream."""
        first = self.stream.first
        gone = [one for one in {*self.pending, *self.exhausted} if one not in self.stream.messages]
        highest = max((self.pending.get(one, 0) for one in gone), default=0)
        for sequence in gone:
            self._forget(sequence)
        self.cursor = max(self.cursor, first)
        self.delivered[1] = max(self.delivered[1], first - 1)
        self.floor = [max(self.floor[0], highest), max(self.floor[1], first - 1)]
        if not self.pending and (self.policy != "all" or not self.exhausted):
            self.floor = list(self.delivered)

    # Management

    def update(self, changes):
        """Other settings, None for those that are gone."""
        old = dict(self.config)
        filters = self.filters
        for name, value in changes.items():
            if value is None:
                self.config.pop(name, None)
            else:
                self.config[name] = value
        if self.filters != filters:
            self.stream.sweep()
        if old.get("deliver_subject") != self.config.get("deliver_subject"):
            self.delays.clear()
            self.queue += sorted(self.pending.keys() - set(self.queue))

    def pause(self, until_ns):
        """Deliver nothing before a time."""
        self.pause_until = until_ns

    def reset(self, sequence):
        """Begin anew at a sequence."""
        self.chosen, self.resume = [], 0
        self._begin(sequence)
        self.stream.sweep()

    def restart(self, *, clean):
        """The server stops, and another one starts on the same files."""
        for request in sorted(self.waiting, key=self._level):
            if clean:
                self._end(request, "409 Server Shutdown")
        self.waiting = []
        self.bound = False
        self.heartbeat_due = 0
        self.old_inbox = b""
        if self.pin is not None:
            self.pin_deadline = self.world.now_ns() + self.config["priority_timeout"]
            self.fresh = None
        if self.resume:
            # Chosen anew among what is left: an older message stands in for one that was removed.
            self.chosen = self._newest(self.delivered[1], self.resume - 1)
            if not self.chosen:
                self.cursor, self.resume = self.resume, 0
        # Of a delay and of the queue, only the ack wait is kept, which began so much earlier or later.
        now_ns = self.world.now_ns()
        self.delays = {one: end_ns for one, end_ns in self.delays.items() if self.since[one] > now_ns}
        self.queue = []

    # Info

    def numbers(self):
        """The numbers of the consumer's info."""
        return {
            "delivered": tuple(self.delivered),
            "ack_floor": tuple(self.floor),
            "num_ack_pending": len(self.pending),
            "num_redelivered": 0 if self.max_deliver == 1 else len(self.again),
            "num_waiting": len(self.waiting),
            "num_pending": len(self.to_come()),
            "push_bound": self.bound,
        }
