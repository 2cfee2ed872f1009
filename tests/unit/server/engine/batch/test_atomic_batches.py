"""Atomic batches with a clock moved by hand: timeouts, limits, crashes and disk faults."""

import json
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.model.rules.limits import ServerLimits
from jetlake.server.engine.core import open_batches
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk, PowerCut


def create(harness, **config):
    return harness.create(allow_atomic=True, **config)


def send(harness, batch, sequence, commit=None, payload=b"x", subject="s.a", **more):
    """The answer to one message of a batch; None for the empty one."""
    headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(sequence)}
    if commit:
        headers["Nats-Batch-Commit"] = commit
    headers |= {key.replace("_", "-"): value for key, value in more.items()}
    (frame,) = harness.request(subject, payload, headers)
    return json.loads(frame.payload) if frame.payload else None


def code(answer):
    return answer["error"]["err_code"]


def test_an_idle_batch_is_dropped_and_told_of(harness):
    create(harness)
    assert send(harness, "slow", 1) is None
    harness.advance(9)
    assert send(harness, "slow", 2) is None
    harness.advance(5)
    assert send(harness, "quick", 1) is None
    harness.account.subscribe(b"$JS.EVENT.ADVISORY.STREAM.>", b"9", harness.client)
    harness.client.take()
    harness.advance(5)
    (advisory,) = harness.client.take()
    body = json.loads(advisory.payload)
    assert advisory.subject == b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S"
    assert (body["stream"], body["batch"], body["reason"]) == ("S", "slow", "timeout")
    assert code(send(harness, "slow", 3)) == 10176
    assert send(harness, "quick", 2, "1")["count"] == 2
    assert harness.engine.services.open_batches.atomic == 0
    assert harness.engine.services.open_batches.staged_bytes == 0


def test_open_batches_are_limited(harness):
    create(harness)
    for number in range(50):
        assert send(harness, f"b{number}", 1) is None
    assert code(send(harness, "more", 1)) == 10210
    assert send(harness, "b0", 2, "1")["count"] == 2
    assert send(harness, "more", 1) is None


def test_open_batches_of_all_streams_are_limited(make_harness):
    harness = make_harness(server_limits=ServerLimits(batches_total=2))
    create(harness)
    harness.create("T", subjects=["t.>"], allow_atomic=True)
    assert send(harness, "a", 1) is None
    assert send(harness, "a", 1, subject="t.a") is None
    assert code(send(harness, "b", 1, subject="t.a")) == 10210
    harness.api("STREAM.DELETE.S")
    assert send(harness, "b", 1, subject="t.a") is None


def test_staged_bytes_are_limited(harness, monkeypatch):
    monkeypatch.setattr(open_batches, "STAGED_BYTES_MAX", 1000)
    create(harness)
    assert send(harness, "a", 1, payload=bytes(600)) is None
    assert code(send(harness, "b", 1, payload=bytes(600))) == 10210
    assert send(harness, "a", 2, "eob")["count"] == 1
    assert send(harness, "b", 1, payload=bytes(600)) is None


def test_limits_of_the_server(make_harness):
    limits = ServerLimits(batches_per_stream=1, batch_messages=2, batch_timeout=1_000_000_000)
    harness = make_harness(server_limits=limits)
    create(harness)
    assert send(harness, "a", 1) is None
    assert code(send(harness, "b", 1)) == 10210
    send(harness, "a", 2)
    assert code(send(harness, "a", 3)) == 10199
    send(harness, "a", 1)
    harness.advance(1)
    assert code(send(harness, "a", 2)) == 10176


def test_turning_batches_off_drops_the_open_ones(harness):
    create(harness)
    send(harness, "a", 1)
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]})
    assert code(send(harness, "a", 2)) == 10174
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
    assert code(send(harness, "a", 2)) == 10176
    assert harness.engine.services.open_batches.atomic == 0


def test_counters_count_through_a_batch(harness):
    create(harness, allow_msg_counter=True)
    harness.store("s.a", b"", {"Nats-Incr": "5"})
    send(harness, "a", 1, payload=b"", Nats_Incr="2")
    send(harness, "a", 2, payload=b"", Nats_Incr="3")
    assert send(harness, "a", 3, "1", payload=b"", subject="s.b", Nats_Incr="1")["count"] == 3
    store = harness.jetstream.streams["S"].store
    payloads = [store.get(sequence).payload for sequence in range(1, 5)]
    assert payloads == [b'{"val":"5"}', b'{"val":"7"}', b'{"val":"10"}', b'{"val":"1"}']


def test_nothing_is_seen_before_the_whole_is_durable(durable):
    stream = create(durable)
    for number in (1, 2):
        durable.publish("s.a", b"x", {"Nats-Batch-Id": "a", "Nats-Batch-Sequence": str(number)})
    headers = {"Nats-Batch-Id": "a", "Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"}
    durable.publish("s.a", b"x", headers, reply=b"_INBOX.1")
    durable.engine.flush()
    assert stream.visible_sequence == 0
    assert durable.client.take() == []
    durable.turn()
    assert stream.visible_sequence == 3
    assert json.loads(durable.client.take()[0].payload)["seq"] == 3


def test_messages_without_interest_use_up_their_sequences(harness):
    create(harness, retention="interest")
    config = {"durable_name": "c", "name": "c", "ack_policy": "explicit", "filter_subject": "s.b"}
    harness.api("CONSUMER.CREATE.S.c.s.b", {"stream_name": "S", "config": config})
    send(harness, "a", 1)
    send(harness, "a", 2, subject="s.b")
    assert send(harness, "a", 3, "1")["seq"] == 3
    assert (harness.state()["messages"], harness.state()["last_seq"]) == (1, 3)


@pytest.mark.parametrize("block", range(4))
def test_a_power_cut_keeps_all_of_a_batch_or_nothing(make_harness, block):
    for seed in range(block * 25, block * 25 + 25):
        random = Random(seed)
        disk = FaultyDisk(random)
        harness = make_harness(FolderStorage(StoreFolder(disk, Path("/data")), report=print))
        limits = random.choice([{}, {"max_msgs": 20}, {"max_msgs_per_subject": 1}])
        create(harness, **limits)
        acknowledged = publish_until_power_cut(harness, disk, random)
        disk.cut_power()
        again = make_harness(FolderStorage(StoreFolder(disk, Path("/data")), report=print))
        store = again.jetstream.streams["S"].store
        found = {}
        for sequence in range(1, store.last_sequence + 1):
            message = store.get(sequence)
            if message is not None:
                found.setdefault(message.payload, []).append(message.subject)
        for payload, subjects in found.items():
            is_trimmed = "max_msgs" in limits and payload == next(iter(found))
            assert len(subjects) == int(payload.split(b"/")[1]) or is_trimmed, (seed, payload, subjects)
        numbers = {int(payload.split(b"/")[0]) for payload in found}
        assert not acknowledged or acknowledged - 1 in numbers, seed


def publish_until_power_cut(harness, disk, random):
    """The number of batches that were acknowledged; each payload tells its batch and how many messages it has."""
    acknowledged = 0
    disk.cut_at = disk.operations + random.randint(1, 40)
    try:
        for number in range(30):
            size = random.randint(2, 6)
            for at in range(1, size + 1):
                headers = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": str(at)}
                if at == size:
                    headers["Nats-Batch-Commit"] = "1"
                payload = b"%d/%d/" % (number, size)
                harness.publish(f"s.{number}.{at}", payload, headers | {"Fill": "x" * 500}, reply=b"_INBOX.%d" % at)
            harness.turn()
            answers = [json.loads(frame.payload) for frame in harness.client.take() if frame.payload]
            acknowledged += sum("batch" in answer for answer in answers)
    except PowerCut:
        pass
    return acknowledged


def test_a_store_error_refuses_the_whole_batch(make_harness, monkeypatch):
    disk = FaultyDisk(Random(1))
    harness = make_harness(FolderStorage(StoreFolder(disk, Path("/data")), report=print))
    stream = create(harness)
    harness.store("s.before")
    send(harness, "a", 1)

    def refuse(_count):
        raise StoreError("write", "no space")

    with monkeypatch.context() as patch:
        patch.setattr(stream.store, "begin_group", refuse)
        assert code(send(harness, "a", 2, "1")) == 10077
    assert harness.state()["messages"] == 1
