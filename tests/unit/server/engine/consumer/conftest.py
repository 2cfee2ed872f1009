"""A worker on one consumer: requests to it, what came back, and acknowledgements; driven by hand like the engine."""

import json

import pytest

from jetlake.protocol.parser import ServerParser

SECOND = 1_000_000_000


class Worker:
    """The client's side of one consumer."""

    def __init__(self, harness, consumer, stream, inbox="_INBOX.w"):
        self.harness = harness
        self.name = consumer
        self.stream = stream
        self.inbox = inbox

    @property
    def consumer(self):
        """The engine's own object."""
        return self.harness.jetstream.streams[self.stream].consumers[self.name]

    @property
    def is_there(self):
        return self.name in self.harness.jetstream.streams[self.stream].consumers

    def ask(self, body=b"", inbox=None):
        """Send a pull request without ending the cycle."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        reply = (inbox or self.inbox).encode()
        self.harness.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}", body, reply=reply)

    def pull(self, body=b"", inbox=None):
        """Send a pull request and return what came."""
        self.harness.client.take()
        self.ask(body, inbox)
        self.harness.turn()
        return self.taken()

    def taken(self):
        """What came since the last look."""
        return self.harness.client.take()

    def answer(self, frame, body=b"", reply=b""):
        """Acknowledge in some way."""
        self.harness.publish(frame.reply, body, reply=reply)
        self.harness.turn()

    def answer_run(self, frames, body=b""):
        """Acknowledge many with the bytes of one read."""
        data = b"".join(b"PUB %b %d\r\n%b\r\n" % (frame.reply, len(body), body) for frame in frames)
        (run,) = ServerParser(ack_runs=True).feed(data)
        self.harness.account.publish_acks(run, self.harness.client)
        self.harness.turn()

    def double_ack(self, frame, body=b""):
        """Acknowledge with a reply, and return what came to it."""
        self.harness.client.take()
        self.answer(frame, body, b"_INBOX.acked")
        return self.taken()

    def info(self):
        """The consumer's info, without what was sent in the meantime being lost."""
        kept = self.harness.client.take()
        info = self.harness.api(f"CONSUMER.INFO.{self.stream}.{self.name}")
        self.harness.client._frames[:0] = kept
        return info

    @staticmethod
    def of(frame):
        """What an ack subject says: deliveries, stream sequence, consumer sequence, pending."""
        tokens = frame.reply.split(b".")
        return int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[8])

    @staticmethod
    def sequences(frames):
        """The stream sequences of messages; statuses are left out."""
        return [int(frame.reply.split(b".")[5]) for frame in frames if frame.reply.startswith(b"$JS.ACK.")]

    @staticmethod
    def statuses(frames):
        """The status lines among the frames."""
        lines = [frame.header.split(b"\r\n")[0].decode() for frame in frames]
        return [line[9:] for line in lines if line.startswith("NATS/1.0 ")]

    def numbers(self):
        """Delivered and floor as pairs, then pending, ack pending, redelivered and waiting."""
        info = self.info()
        return (
            (info["delivered"]["consumer_seq"], info["delivered"]["stream_seq"]),
            (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]),
            info["num_pending"],
            info["num_ack_pending"],
            info["num_redelivered"],
            info["num_waiting"],
        )


@pytest.fixture
def make_worker(harness):
    """A function that creates a consumer and gives its worker; the stream is made, with `messages`, if need be."""
    harness.engine.random.seed(7)

    def make(name="c", *, stream="S", messages=0, on=None, **config):
        on = on or harness
        if stream not in on.jetstream.streams:
            on.create(stream)
        for number in range(messages):
            on.store(f"s.{number}", b"m%d" % (number + 1))
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        answer = on.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        assert "error" not in answer, answer
        on.client.take()
        return Worker(on, name, stream)

    return make


@pytest.fixture
def heard(harness):
    """A function that listens to a pattern from now on; what it returns gives the JSON of what was published."""

    class Ear:
        def __init__(self, pattern):
            self.messages = []
            harness.account.listen(pattern.encode(), self._take)

        def _take(self, subject, reply, header, payload, origin):
            self.messages.append((subject.decode(), json.loads(payload)))

        def __call__(self):
            messages, self.messages = self.messages, []
            return messages

    return Ear
