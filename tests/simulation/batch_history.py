"""Random histories of atomic batches, fast batches and schedules, on disks that fail and servers that come and go."""

import json

from jetlake.protocol.headers import encode_headers, find_value
from tests.simulation.history import History

CONFIG = {
    "name": "B",
    "subjects": ["b.>"],
    "allow_atomic": True,
    "allow_batched": True,
    "allow_msg_schedules": True,
    "allow_msg_ttl": True,
}


class BatchHistory(History):
    """One history of one stream; every payload names its batch and how many messages that has.

    Attributes:
        acknowledged: payloads of messages that the stream has promised to keep.
        published: batches begun so far.
        fired: messages that schedules have published, as (subject of the schedule, time that was planned next).
    """

    weights = {
        "atomic": 30,
        "fast_batch": 20,
        "schedule": 10,
        "purge": 3,
        "wait": 15,
        "stop": 3,
        "kill": 4,
        "cut_power": 4,
        "cut_power_soon": 8,
        "fail_disk": 4,
    }
    cut_within = 12

    def __init__(self, seed):
        super().__init__(seed)
        self.published = 0
        self.acknowledged = set()
        self.sizes = {}
        self.removed = set()
        self.fast = {}
        self.schedules = {}
        self.fired = set()
        answer, _ = self.world.api("STREAM.CREATE.B", CONFIG)
        assert answer and "error" not in answer, answer

    # What clients do

    def send(self, subject, payload, headers=None, reply=b""):
        header = encode_headers(headers) if headers else b""
        self.world.account.publish(subject, reply, header, payload, self.world.client)

    def atomic(self):
        """One atomic batch, sometimes without its end, among other messages."""
        self.published += 1
        name, size = f"a{self.published}", self.random.randint(1, 6)
        self.sizes[name] = size
        left_out = self.random.choice([0, 0, 0, 0, size])
        for number in range(1, size + 1):
            if number == left_out:
                continue
            headers = {
                "Nats-Batch-Id": name,
                "Nats-Batch-Sequence": str(number),
                "Fill": "x" * self.random.choice([1, 900]),
            }
            if number == size:
                headers["Nats-Batch-Commit"] = "1"
            self.send(b"b.a.%d" % number, f"{name} {number}".encode(), headers, b"_INBOX.%d.c" % self.published)
            if self.random.random() < 0.2:
                self.send(b"b.plain", b"plain %d" % self.published)
        self.world.turn()
        for frame in self.world.client.take():
            if frame.subject == b"_INBOX.%d.c" % self.published and frame.payload:
                answer = json.loads(frame.payload)
                if "error" not in answer:
                    assert (answer["batch"], answer["count"]) == (name, size), answer
                    self.acknowledged |= {f"{name} {number}" for number in range(1, size + 1)}

    def fast_batch(self):
        """Some messages of a fast batch, which may be committed now or in a later step."""
        if not self.fast or self.random.random() < 0.5:
            self.published += 1
            self.fast[f"f{self.published}"] = 0
        name = self.random.choice(list(self.fast))
        for _ in range(self.random.randint(1, 12)):
            self.fast[name] += 1
            number = self.fast[name]
            ends = self.random.random() < 0.1
            operation = 2 if ends else 1 if number > 1 else 0
            self.send(
                b"b.f", f"{name} {number}".encode(), None, f"_INBOX.f.{name}.4.fail.{number}.{operation}.$FI".encode()
            )
            if ends:
                break
        self.world.turn()
        for frame in self.world.client.take():
            if frame.subject.endswith(b"$FI"):
                self.take_fast(frame.subject.split(b".")[2].decode(), json.loads(frame.payload))

    def take_fast(self, name, answer):
        if "error" in answer or "batch" in answer:
            self.fast.pop(name, None)
        count = answer["count"] if "batch" in answer else answer.get("seq", 0) if answer.get("type") == "ack" else 0
        self.acknowledged |= {f"{name} {number}" for number in range(1, count + 1)}

    def schedule(self):
        """A schedule is stored, replaces another one, or is cancelled."""
        subject = b"b.s.%d" % self.random.randint(1, 4)
        self.published += 1
        reply = b"_INBOX.%d.s" % self.published
        choice = self.random.random()
        if choice < 0.2:
            self.send(subject, b"plain", None, reply)
        else:
            pattern = self.random.choice(["@every 7s", "@every 40s", "*/15 * * * * *", "@at 2020-01-01T00:00:00Z"])
            headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": "b.t", "Nats-Schedule-TTL": "1h"}
            self.send(subject, b"tick", headers, reply)
        self.world.turn()
        self.world.client.take()

    def purge(self):
        """Part of the stream is purged."""
        subject = self.random.choice(["b.t", "b.s.1", "b.a.2"])
        if subject == "b.a.2":
            self.removed |= {f"{name} 2" for name in self.sizes}
        self.world.api("STREAM.PURGE.B", {"filter": subject})

    def wait(self):
        for _ in range(self.random.randint(1, 4)):
            self.world.advance(self.random.choice([0.5, 5, 11, 60]))
        self.world.client.take()

    def started(self):
        self.fast.clear()

    # What must hold

    def check(self):
        stream = self.world.jetstream.streams.get("B")
        assert stream is not None, "the stream is gone"
        store = stream.store
        found, ticks = set(), {}
        for sequence in range(max(store.first_sequence, 1), stream.visible_sequence + 1):
            message = store.get(sequence)
            if message is None:
                continue
            found.add(message.payload.decode())
            following = find_value(message.header, b"Nats-Schedule-Next") if message.header else None
            if following and following != b"purge":
                scheduler = find_value(message.header, b"Nats-Scheduler")
                key = (scheduler, message.time_ns, following)
                assert key not in ticks, f"{scheduler} has published twice for {following}"
                ticks[key] = sequence
        self.fired |= ticks.keys()
        assert self.acknowledged - self.removed <= found, f"lost: {self.acknowledged - self.removed - found}"
        for name, size in self.sizes.items():
            members = {f"{name} {number}" for number in range(1, size + 1)} - self.removed
            assert not members & found or members <= found, f"of {name} only {members & found}"
