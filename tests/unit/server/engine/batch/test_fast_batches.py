"""Fast batches with a clock moved by hand: timeouts, limits and failures."""

import json

from jetlake.errors import StoreError
from jetlake.server.engine.batch import fast_batches
from jetlake.server.engine.core import open_batches


def create(harness, **config):
    return harness.create(allow_batched=True, **config)


def send(harness, batch, sequence, operation, flow=100):
    """All answers to one message of a batch."""
    harness.client.take()
    harness.publish("s.a", b"x", reply=f"_INBOX.f.{batch}.{flow}.fail.{sequence}.{operation}.$FI".encode())
    harness.turn()
    return [json.loads(frame.payload) for frame in harness.client.take()]


def test_an_idle_batch_is_forgotten(harness):
    create(harness)
    send(harness, "a", 1, 0)
    harness.advance(9)
    assert send(harness, "a", 2, 1) == []
    send(harness, "b", 1, 0)
    harness.advance(9)
    assert send(harness, "a", 3, 1) == []
    harness.advance(2)
    assert send(harness, "b", 2, 1)[0]["error"]["err_code"] == 10208
    assert send(harness, "a", 4, 2)[0]["count"] == 4
    assert harness.engine.services.open_batches.fast == 0


def test_open_batches_are_limited(harness, monkeypatch):
    monkeypatch.setattr(fast_batches, "BATCHES_MAX", 2)
    create(harness)
    assert [send(harness, name, 1, 0)[0].get("type") for name in "ab"] == ["ack", "ack"]
    assert send(harness, "c", 1, 0)[0]["error"]["err_code"] == 10211
    send(harness, "a", 2, 2)
    monkeypatch.setattr(open_batches, "FAST_MAX", 1)
    assert send(harness, "c", 1, 0)[0]["error"]["err_code"] == 10211


def test_one_turn_is_stored_as_one_run(harness, monkeypatch):
    stream = create(harness)
    runs = []
    original = stream.store.append_run
    monkeypatch.setattr(stream.store, "append_run", lambda run, *more: runs.append(len(run)) or original(run, *more))
    for number in range(1, 1001):
        operation = {1: 0, 1000: 2}.get(number, 1)
        harness.publish("s.a", b"x", reply=f"_INBOX.f.a.1000.fail.{number}.{operation}.$FI".encode())
    harness.turn()
    assert runs == [1000]
    answers = [json.loads(frame.payload) for frame in harness.client.take()]
    assert [answer.get("seq") for answer in answers] == [0, 500, 1000]
    assert answers[-1]["count"] == 1000


def test_acknowledgements_wait_for_the_disk(durable):
    create(durable)
    durable.publish("s.a", b"x", reply=b"_INBOX.f.a.1.fail.1.0.$FI")
    durable.publish("s.a", b"x", reply=b"_INBOX.f.a.1.fail.2.2.$FI")
    durable.engine.flush()
    assert durable.client.take() == []
    durable.turn()
    assert len(durable.client.take()) == 3


def test_a_failed_sync_ends_the_batches(durable):
    stream = create(durable)
    send(durable, "a", 1, 0)
    stream.store.sync_error = StoreError("sync", "input/output error")
    answers = send(durable, "a", 2, 2)
    assert answers[0]["error"]["err_code"] == 10077
    stream.store.sync_error = None
    assert durable.engine.services.open_batches.fast == 0
