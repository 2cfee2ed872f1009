"""Consumers driven by hand: created through the API, pulled from, acknowledged, with the clock moved."""

import json

import pytest

SECOND = 1_000_000_000


class Worker:
    """A client's side of one pull consumer: an inbox, requests, and what came."""

    def __init__(self, harness, consumer="c", stream="S", inbox="_INBOX.w"):
        self.harness = harness
        self.path = f"{stream}.{consumer}"
        self.inbox = inbox

    def pull(self, body=b"", inbox=None):
        self.ask(body, inbox)
        return self.harness.client.take()

    def ask(self, body=b"", inbox=None):
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        self.harness.client.take()
        reply = (inbox or self.inbox).encode()
        self.harness.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.path}", body, reply=reply)
        self.harness.turn()

    def info(self):
        return self.harness.api(f"CONSUMER.INFO.{self.path}")

    def ack(self, frame, body=b""):
        self.harness.publish(frame.reply, body)
        self.harness.turn()


@pytest.fixture
def stream(harness):
    return harness.create()


def add_consumer(harness, name="c", stream="S", **config):
    config = {"durable_name": name, "ack_policy": "explicit", **config}
    answer = harness.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    assert "error" not in answer, answer
    return harness.jetstream.streams[stream].consumers[name]


def test_a_pull_gets_what_is_there(harness, stream):
    harness.store("s.a", b"one")
    add_consumer(harness)
    (frame,) = Worker(harness).pull()
    assert (frame.subject, frame.payload) == (b"s.a", b"one")
    assert frame.reply.startswith(b"$JS.ACK.S.c.1.1.1.")
    assert frame.reply.endswith(b".0")
