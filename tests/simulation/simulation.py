"""Random histories: clients publish, pull, acknowledge and manage, the clock moves, disks fail, servers come and go.

After every step everything at rest is compared with the book (`model.py`). A seed replays its history exactly.

The reasons are in decision 20 (docs/decisions).
"""

import json

from tests.simulation.history import History
from tests.simulation.model import ConsumerBook, Delivery, Pull, StreamBook

SECOND = 1_000_000_000
GRACE_NS = 1_000_000

STREAMS = {
    "L": {"retention": "limits", "max_msgs": 60},
    "W": {"retention": "workqueue"},
    "I": {"retention": "interest"},
}
TOKENS = ("a", "b", "c")


class Simulation(History):
    """One history."""

    weights = {
        "publish": 30,
        "create_consumer": 5,
        "delete_consumer": 1,
        "pull": 30,
        "leave": 2,
        "acknowledge": 30,
        "delete_message": 3,
        "purge": 1,
        "wait": 12,
        "stop": 1,
        "kill": 1,
        "cut_power": 1,
        "cut_power_soon": 1,
        "fail_disk": 1,
    }

    def __init__(self, seed):
        super().__init__(seed)
        self.streams = {}
        self.consumers = {}
        self.pulls = {}
        self.published = 0
        self.delivered = 0
        self.confirmed = 0
        for name, config in STREAMS.items():
            answer = self._api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"], **config})
            assert answer and "error" not in answer, answer
            self.streams[name] = StreamBook(name, config["retention"], config.get("max_msgs", 0))

    # What happens

    def publish(self):
        """A few messages, most of them with a reply."""
        book = self.streams[self.random.choice(list(STREAMS))]
        sent = {}
        for _ in range(self.random.randint(1, 8)):
            self.published += 1
            subject = f"{book.name}.{self.random.choice(TOKENS)}".encode()
            payload = b"%d" % self.published
            if book.retention == "interest" and not self._wanted(book, subject):
                # Nobody would keep it; its sequence is used up all the same.
                payload = b"nobody " + payload
            reply = self.world.inbox() if self.random.random() < 0.8 else b""
            book.in_flight.add(payload)
            sent[reply or payload] = (subject, payload)
            self.world.publish(subject, payload, reply)
        self._turn()
        for frame in self.frames():
            if frame.subject in sent:
                self._pub_ack(book, *sent[frame.subject], json.loads(frame.payload))
        self._look(book)

    def _pub_ack(self, book, subject, payload, answer):
        if "error" in answer:
            assert self.disk_failed, answer
            return
        if payload.startswith(b"nobody "):
            book.in_flight.discard(payload)
            return
        if answer["seq"] not in book.messages:
            book.stored(answer["seq"], subject, payload)
        if book.retention == "workqueue" or book.retention == "interest":
            self._retain(book, answer["seq"])

    def _wanted(self, book, subject):
        return any(one.wants(subject) for key, one in self.consumers.items() if key[0] == book.name)

    def create_consumer(self):
        """A consumer with some settings, at most a few on each stream."""
        stream = self.random.choice(list(STREAMS))
        if sum(key[0] == stream for key in self.consumers) >= 3:
            return
        token = self.random.choice(TOKENS)
        filter_subject = f"{stream}.{token}" if stream == "W" or self.random.random() < 0.5 else ""
        taken = {one.filter for key, one in self.consumers.items() if key[0] == stream}
        if stream == "W" and filter_subject in taken:
            return
        name = f"c{self.world.inboxes}"
        policy = "explicit" if stream == "W" else self.random.choice(["explicit", "explicit", "all", "none"])
        config = {
            "durable_name": name,
            "ack_policy": policy,
            "filter_subject": filter_subject,
            "deliver_policy": "new" if stream == "L" and self.random.random() < 0.3 else "all",
        }
        if policy != "none":
            config["ack_wait"] = self.random.choice([2, 10]) * SECOND
            config["max_deliver"] = self.random.choice([-1, -1, 1, 3])
            config["max_ack_pending"] = self.random.choice([3, 20, 1000])
        book = self.streams[stream]
        first = book.last_sequence + 1 if config["deliver_policy"] == "new" else 1
        answer = self._api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        if answer is None or "error" in answer:
            assert self.disk_failed, answer
            return
        self.consumers[(stream, name)] = ConsumerBook(
            name,
            stream,
            policy,
            filter_subject,
            config.get("ack_wait", 0),
            config.get("max_deliver", -1),
            config.get("max_ack_pending", 0),
            max(first, answer["delivered"]["stream_seq"] + 1),
        )

    def delete_consumer(self):
        """A consumer goes, and with it what only it wanted."""
        if not self.consumers:
            return
        key = self.random.choice(list(self.consumers))
        self.consumers[key].leaving = True
        answer = self._api(f"CONSUMER.DELETE.{key[0]}.{key[1]}")
        if answer is None or "error" in answer:
            assert self.disk_failed, answer
            if key[1] in self.world.jetstream.streams[key[0]].consumers:
                self.consumers[key].leaving = False
                return
        self._forget_consumer(key)

    def _forget_consumer(self, key):
        book = self.streams[key[0]]
        del self.consumers[key]
        if book.retention == "interest":
            for sequence in list(book.messages):
                self._retain(book, sequence)

    def _doubt_without(self, key):
        """A consumer is back whose removal was asked for and not answered: what only it wanted may be gone already."""
        book = self.streams[key[0]]
        consumer = self.consumers.pop(key)
        if book.retention == "interest":
            for sequence, message in list(book.messages.items()):
                self._retain(book, sequence)
                if sequence not in book.messages:
                    book.unsure[sequence] = message
        self.consumers[key] = consumer

    def pull(self):
        """A pull request with some settings."""
        if not self.consumers:
            return
        key = self.random.choice(list(self.consumers))
        inbox = self.world.inbox().replace(b"_INBOX", b"pull")
        sid = inbox.split(b".")[1]
        body = {"batch": self.random.choice([1, 1, 2, 5, 30])}
        if self.random.random() < 0.6:
            body["expires"] = self.random.randint(1, 20) * SECOND
        if self.random.random() < 0.3:
            body["no_wait"] = True
        if self.random.random() < 0.2:
            body["max_bytes"] = self.random.randint(30, 400)
        if body.get("expires", 0) > 4 * SECOND and self.random.random() < 0.3:
            body["idle_heartbeat"] = 2 * SECOND
        subscription = self.world.account.subscribe(inbox, sid, self.world.client)
        if self.random.random() < 0.1:
            self.world.account.unsubscribe(subscription, max=self.random.randint(1, 3))
        deadline_ns = self.world.clock.now_ns() + body["expires"] if "expires" in body else 0
        self.pulls[sid] = Pull(
            key, inbox, body["batch"], deadline_ns, "no_wait" in body, subscription, body.get("max_bytes", 0)
        )
        self.world.publish(f"$JS.API.CONSUMER.MSG.NEXT.{key[0]}.{key[1]}".encode(), json.dumps(body).encode(), inbox)
        self._turn()

    def leave(self):
        """A client that waits goes away."""
        if self.pulls:
            sid = self.random.choice(list(self.pulls))
            self.world.account.unsubscribe(self.pulls.pop(sid).subscription)

    def acknowledge(self):
        """Something is said about a message that was delivered, sometimes with a wish for an answer."""
        chosen = [key for key, one in self.consumers.items() if one.deliveries and one.ack_policy != "none"]
        if not chosen:
            return
        key = self.random.choice(chosen)
        book = self.consumers[key]
        if self.random.random() < 0.3:
            self._acknowledge_run(key, book)
            return
        for _ in range(self.random.randint(1, 6)):
            waiting = [sequence for sequence in book.deliveries if sequence not in book.confirmed]
            if not waiting or key not in self.consumers:
                return
            self._acknowledge(key, book, self.random.choice(waiting))

    def _acknowledge_run(self, key, book):
        """Several messages are acknowledged in any order with one write, some of them twice."""
        waiting = [sequence for sequence in book.deliveries if sequence not in book.confirmed]
        chosen = self.random.choices(waiting, k=self.random.randint(2, 12)) if waiting else []
        acks = self.world.jetstream.streams[key[0]].consumers[key[1]].ack_tracker
        chosen = [sequence for sequence in chosen if sequence <= acks.delivered_stream]
        floor_before = acks.floor_stream
        replies = [book.deliveries[sequence].reply for sequence in chosen]
        self.world.acknowledge(replies, self.random.choice([b"", b"+ACK"]))
        if book.ack_policy == "explicit":
            covered = set(chosen)
        else:
            covered = self._up_to(book, acks.floor_stream) if acks.floor_stream > floor_before else set()
        book.done |= covered
        for one in covered:
            self._retain(self.streams[key[0]], one)
        self._turn()

    def _acknowledge(self, key, book, sequence):
        delivery = book.deliveries[sequence]
        body = self.random.choice([b"", b"", b"+ACK", b"-NAK", b"-NAK 3s", b"+WPI", b"+TERM no", b"what"])
        reply = self.world.inbox() if self.random.random() < 0.5 else b""
        acks = self.world.jetstream.streams[key[0]].consumers[key[1]].ack_tracker
        is_known = sequence <= acks.delivered_stream
        floor_before = acks.floor_stream
        self.world.publish(delivery.reply, body, reply)
        ends = body in (b"", b"+ACK", b"+TERM no")
        covered = self._covered(book, sequence, delivery, floor_before) if ends and is_known else set()
        if body.startswith(b"-NAK"):
            delivery.refused = True
        elif body == b"+WPI" and sequence in acks.pending and not acks.is_queued(sequence):
            delivery.time_ns = self.world.clock.now_ns()
        book.done |= covered
        for one in covered:
            self._retain(self.streams[key[0]], one)
        self._turn()
        answers = [frame for frame in self.frames() if frame.subject == reply]
        answered = any(not frame.header for frame in answers)
        if reply and is_known:
            assert answered or self.disk_failed, f"{key}: no answer to {body!r} of {sequence}"
        if answered and ends:
            self.confirmed += len(covered)
            book.confirmed |= covered
            book.safe_floor = acks.floor_stream
            for one in covered:
                self._retain(self.streams[key[0]], one)

    def _covered(self, book, sequence, delivery, floor):
        """The sequences that an acknowledgement of this one ends."""
        if book.ack_policy == "explicit":
            return {sequence}
        consumer_sequence = int(delivery.reply.split(b".")[6])
        acks = self.world.jetstream.streams[book.stream].consumers[book.name].ack_tracker
        if sequence <= floor or consumer_sequence > acks.delivered_consumer:
            return set()
        if acks.floor_stream < sequence:
            return set()
        return self._up_to(book, sequence)

    def _up_to(self, book, sequence):
        """All that an acknowledgement of everything before it covers, also what was lost on its way to the client."""
        stream = self.streams[book.stream]
        known = book.deliveries.keys() | stream.messages.keys() | stream.unsure.keys()
        return {one for one in known if one <= sequence}

    def _retain(self, book, sequence):
        """What the retention policy makes of a message after somebody was done with it, or went."""
        if book.retention == "limits" or (sequence not in book.messages and sequence not in book.unsure):
            return
        subject = (book.messages.get(sequence) or book.unsure.get(sequence))[0]
        wanting = [one for key, one in self.consumers.items() if key[0] == book.name and one.wants(subject)]
        if book.retention == "workqueue" and not wanting:
            return
        if any(one.needs(sequence, subject) for one in wanting):
            return
        if all(sequence in one.confirmed for one in wanting if sequence >= one.first_sequence):
            book.removed(sequence) if wanting else book.doubt(sequence)
        else:
            book.doubt(sequence)

    def delete_message(self):
        """A message is deleted on request."""
        book = self.streams[self.random.choice(list(STREAMS))]
        if not book.messages:
            return
        sequence = self.random.choice(list(book.messages))
        book.doubt(sequence)
        answer = self._api(f"STREAM.MSG.DELETE.{book.name}", {"seq": sequence})
        if answer is not None and answer.get("success"):
            book.removed(sequence)
        else:
            assert self.disk_failed, answer

    def purge(self):
        """A part of a stream is purged on request."""
        book = self.streams[self.random.choice(list(STREAMS))]
        body = {}
        if self.random.random() < 0.6:
            body["filter"] = f"{book.name}.{self.random.choice(TOKENS)}"
        if self.random.random() < 0.5 and book.last_sequence:
            body["seq"] = self.random.randint(1, book.last_sequence + 1)
        gone = [
            sequence
            for sequence, (subject, _) in {**book.messages, **book.unsure}.items()
            if sequence < body.get("seq", sequence + 1) and subject.decode() == body.get("filter", subject.decode())
        ]
        for sequence in gone:
            book.doubt(sequence)
        answer = self._api(f"STREAM.PURGE.{book.name}", body)
        if answer is not None and answer.get("success"):
            for sequence in gone:
                book.removed(sequence)
        else:
            assert self.disk_failed, answer

    def wait(self):
        """Time passes."""
        for _ in range(self.random.randint(1, 4)):
            self.world.advance(self.random.choice([0.05, 0.5, 1, 3, 11]))
            self._read()

    # Bad days

    def stop(self):
        """The server is stopped cleanly and started again; those who wait are told."""
        self._told = set(self._waiting())
        super().stop()

    def stopped(self):
        self._read(stopping=True)
        assert not self._told & set(self.pulls), "a pull was not told that the server stops"

    def crashed(self, *, safe):
        self.pulls.clear()
        self.world.client.take()
        for book in self.consumers.values():
            book.crash()
            if not safe:
                for delivery in book.deliveries.values():
                    # That it was delivered may have been forgotten too.
                    delivery.refused = True
                    delivery.count = 0

    def started(self):
        self.pulls.clear()
        for name, book in self.streams.items():
            stream = self.world.jetstream.streams.get(name)
            assert stream is not None, f"stream {name} is gone"
            for known in list(stream.consumers):
                if (name, known) not in self.consumers:
                    # It was being made or removed when the server died.
                    self._api(f"CONSUMER.DELETE.{name}.{known}")
            for key in [key for key in self.consumers if key[0] == name]:
                if self.consumers[key].leaving and key[1] not in stream.consumers:
                    self._forget_consumer(key)
                    continue
                assert key[1] in stream.consumers, f"consumer {key} is gone"
                if self.consumers[key].leaving:
                    self._doubt_without(key)
                    self.consumers[key].leaving = False
                if self.consumers[key].ack_policy == "none":
                    # What it had delivered is done, whether it reached anybody before the server died or not.
                    delivered = stream.consumers[key[1]].ack_tracker.delivered_stream
                    self.consumers[key].maybe_done |= self._up_to(self.consumers[key], delivered)
                    for sequence in self._up_to(self.consumers[key], delivered):
                        self._retain(book, sequence)
            self._look(book)

    # What comes back

    def _turn(self):
        self.world.turn()
        self._read()

    def _api(self, verb, body=None):
        answer, frames = self.world.api(verb, body)
        self._others = []
        self._take(frames)
        return answer

    def _read(self, *, stopping=False):
        self._others = []
        self._take(self.world.client.take(), stopping=stopping)

    def frames(self):
        """What came besides deliveries and statuses."""
        return self._others

    def _take(self, frames, *, stopping=False):
        for frame in frames:
            if frame.reply.startswith(b"$JS.ACK."):
                self._take_message(frame)
            elif frame.sid in self.pulls and frame.header:
                self._take_status(frame, stopping)
            else:
                self._others.append(frame)
        for sid in [sid for sid, pull in self.pulls.items() if not pull.subscription.active]:
            # Its subscription ended with the number of messages that it was made for.
            del self.pulls[sid]

    def _take_message(self, frame):
        tokens = frame.reply.split(b".")
        key = (tokens[2].decode(), tokens[3].decode())
        count, sequence = int(tokens[4]), int(tokens[5])
        now_ns = self.world.clock.now_ns()
        where = f"{key} message {sequence}, delivery {count}"
        self.delivered += 1
        stream, book = self.streams[key[0]], self.consumers.get(key)
        assert book is not None, f"{where}: from a consumer that is gone"
        stream.see(sequence, frame.payload)
        assert book.wants(frame.subject), f"{where}: does not pass {book.filter}"
        assert sequence >= book.first_sequence, f"{where}: before the start at {book.first_sequence}"
        assert sequence not in book.confirmed, f"{where}: its acknowledgement was confirmed"
        assert sequence not in book.done, f"{where}: it was acknowledged, and nothing has crashed since"
        assert book.max_deliver < 0 or count <= book.max_deliver, f"{where}: only {book.max_deliver} are allowed"
        previous = book.deliveries.get(sequence)
        if previous is not None and book.ack_policy != "none":
            if previous.count:
                assert count == previous.count + 1, f"{where}: after {previous.count}"
            waited_ns = now_ns - previous.time_ns
            assert previous.refused or waited_ns >= book.ack_wait_ns, f"{where}: after {waited_ns} ns"
        elif previous is None:
            assert count == 1 or book.crashed, f"{where}: and never before"
        book.maybe_done.discard(sequence)
        book.deliveries[sequence] = Delivery(count, now_ns, self.world.starts, frame.reply)
        if book.ack_policy == "none":
            book.done.add(sequence)
            self._retain(stream, sequence)
        pull = self.pulls.get(frame.sid)
        assert pull is not None, f"{where}: to nobody who asked"
        assert pull.consumer == key, f"{where}: to somebody who asked {pull.consumer}"
        pull.batch -= 1
        if pull.max_bytes:
            pull.max_bytes -= len(frame.subject) + len(frame.reply) + len(frame.header) + len(frame.payload)
            assert pull.max_bytes >= 0, f"{where}: more bytes than were asked for"
            if not pull.max_bytes:
                # Filled to the last byte: that ends it without a word.
                pull.batch = 0
        if not pull.batch and not pull.max_bytes:
            del self.pulls[frame.sid]

    def _take_status(self, frame, stopping):
        status = frame.header.split(b"\r\n")[0][9:]
        pull = self.pulls[frame.sid]
        now_ns = self.world.clock.now_ns()
        if status.startswith(b"100 "):
            return
        if status.startswith(b"404"):
            assert pull.no_wait, "404 for a pull that waits"
        elif status == b"408 Request Timeout":
            assert pull.deadline_ns and pull.deadline_ns <= now_ns, "408 before its time"
        elif status == b"408 Requests Pending":
            assert pull.no_wait, "requests pending for a pull that waits"
        elif status == b"409 Server Shutdown":
            assert stopping, "no server stops"
        else:
            assert status.startswith(b"409 "), status
        del self.pulls[frame.sid]

    # What must hold at rest

    def _waiting(self):
        by_inbox = {pull.inbox: sid for sid, pull in self.pulls.items()}
        for stream in self.world.jetstream.streams.values():
            for consumer in stream.consumers.values():
                for request in consumer.delivery.queue:
                    if request.reply in by_inbox:
                        yield by_inbox[request.reply]

    def _look(self, book):
        store = self.world.jetstream.streams[book.name].store
        if not self.disk_failed:
            book.look(store)
            if book.retention != "limits":
                for sequence in list(book.messages):
                    self._retain(book, sequence)

    def check(self):
        """Everything that can be checked when nothing is under way."""
        for name, book in self.streams.items():
            stream = self.world.jetstream.streams[name]
            self._look(book)
            for consumer in stream.consumers.values():
                self._check_consumer(stream, consumer)
            if name == "W":
                pending = [set(consumer.ack_tracker.pending) for consumer in stream.consumers.values()]
                assert len(set().union(*pending)) == sum(map(len, pending)), "a message of the queue is with two"
        waiting = set(self._waiting())
        alive = {sid for sid, pull in self.pulls.items() if pull.subscription.active}
        assert alive == waiting, f"pulls unanswered and not waiting: {alive - waiting}"

    def _check_consumer(self, stream, consumer):
        book = self.consumers[(stream.name, consumer.name)]
        acks, cursor, store = consumer.ack_tracker, consumer.cursor, stream.store
        where = f"({stream.name}, {consumer.name})"
        assert acks.floor_stream >= book.floor, f"{where}: floor back from {book.floor} to {acks.floor_stream}"
        book.floor = acks.floor_stream
        assert acks.floor_stream <= acks.delivered_stream, where
        assert acks.floor_consumer <= acks.delivered_consumer, where
        if not self.disk_failed:
            ahead = sum(
                1
                for sequence in range(cursor.position, store.last_sequence + 1)
                if (message := store.get(sequence)) is not None and cursor.wants(message.subject)
            )
            assert cursor.pending == ahead, f"{where}: counts {cursor.pending}, {ahead} are there"
            for sequence in acks.pending:
                assert store.has(sequence), f"{where}: {sequence} is pending and gone"
        assert all(sequence <= acks.delivered_stream for sequence in acks.pending), where
        if book.max_ack_pending:
            assert len(acks.pending) <= book.max_ack_pending, f"{where}: {len(acks.pending)} are pending"
        assert not acks.exhausted & acks.pending.keys(), where
        assert not book.confirmed & acks.pending.keys(), f"{where}: confirmed and pending"

    # The end

    def finish(self):
        """Nothing fails any more, everybody works: every message that somebody must get has been got."""
        for _ in range(400):
            progress = self.delivered
            self.world.advance(12)
            self._read()
            for key, book in list(self.consumers.items()):
                self._drain(key, book)
            self.check()
            if self.delivered == progress:
                break
        else:
            raise AssertionError("the consumers never come to an end")
        for key, book in self.consumers.items():
            if book.ack_policy == "none" and book.crashed:
                # What was on its way when the server died counts as delivered.
                continue
            exhausted = self.world.jetstream.streams[key[0]].consumers[key[1]].ack_tracker.exhausted
            for sequence, (subject, _) in self.streams[key[0]].messages.items():
                if book.wants(subject) and sequence >= book.first_sequence:
                    got = sequence in book.done or sequence in exhausted or sequence in book.deliveries
                    assert got, f"{key} never got {sequence}"

    def _drain(self, key, book):
        inbox = self.world.inbox().replace(b"_INBOX", b"pull")
        sid = inbox.split(b".")[1]
        subscription = self.world.account.subscribe(inbox, sid, self.world.client)
        self.pulls[sid] = Pull(key, inbox, 500, 0, True, subscription)
        body = b'{"batch":500,"no_wait":true}'
        self.world.publish(f"$JS.API.CONSUMER.MSG.NEXT.{key[0]}.{key[1]}".encode(), body, inbox)
        self._turn()
        if book.ack_policy == "none":
            return
        acks = self.world.jetstream.streams[key[0]].consumers[key[1]].ack_tracker
        for sequence in sorted(acks.pending):
            if sequence in book.deliveries and sequence in acks.pending:
                reply = self.world.inbox()
                self.world.publish(book.deliveries[sequence].reply, b"", reply)
                covered = {sequence}
                if book.ack_policy == "all":
                    covered = self._up_to(book, acks.floor_stream)
                book.done |= covered
                for one in covered:
                    self._retain(self.streams[key[0]], one)
        self._turn()
