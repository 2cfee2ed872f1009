"""Backup and restore by hand: chunks taken from one harness and given to another."""

import json
from random import Random

import pytest


class Backup:
    """What a backup sent: the answer, the archive, and the message that ended it."""

    def __init__(self, answer, archive, end):
        self.answer = answer
        self.archive = archive
        self.end = end


def take_backup(harness, stream="S", **request):
    """Take a backup, with every chunk acknowledged."""
    subscription = harness.account.subscribe(b"backup", b"7", harness.client)
    frames = harness.request(f"$JS.API.STREAM.SNAPSHOT.{stream}", {"deliver_subject": "backup", **request})
    answer, archive = json.loads(frames[0].payload), b""
    frames = frames[1:]
    while True:
        for frame in frames:
            archive += frame.payload
            if not frame.payload:
                harness.account.unsubscribe(subscription)
                return Backup(answer, archive, frame)
            if frame.reply:
                harness.publish(frame.reply, b"")
        harness.turn()
        frames = harness.client.take()
        assert frames, "the backup stands still"


def begin_restore(harness, name="S", **config):
    """The subject of the chunks."""
    answer = harness.api(f"STREAM.RESTORE.{name}", {"config": {"name": name, "subjects": ["s.>"], **config}})
    assert "error" not in answer, answer
    return answer["deliver_subject"]


def give_archive(harness, archive, name="S", chunk_bytes=5000, **config):
    """Restore a stream; the answer to the end of the archive."""
    subject = begin_restore(harness, name, **config)
    for start in range(0, len(archive), chunk_bytes):
        (acknowledgement,) = harness.request(subject, archive[start : start + chunk_bytes])
        assert acknowledgement.payload == b""
    (frame,) = harness.request(subject, b"")
    return json.loads(frame.payload)


@pytest.fixture
def backup():
    return take_backup


@pytest.fixture
def restore():
    return give_archive


@pytest.fixture
def begin():
    return begin_restore


@pytest.fixture
def filled(make_harness):
    """A harness with a stream of some messages and a consumer in the middle of them."""
    harness = make_harness()
    fill(harness)
    return harness


def fill(harness, count=300):
    noise = Random(1)
    harness.create()
    for number in range(1, count + 1):
        headers = {"Nats-Msg-Id": str(number)} if not number % 10 else None
        harness.publish(f"s.{number % 7}", b"%d words " % number + noise.randbytes(30), headers)
    harness.turn()
    harness.api("STREAM.MSG.DELETE.S", {"seq": 20})
    config = {"durable_name": "c", "name": "c", "ack_policy": "explicit", "max_deliver": 2, "filter_subject": "s.>"}
    harness.api("CONSUMER.CREATE.S.c.s.>", {"stream_name": "S", "config": config})
    frames = harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 6, "no_wait": True})
    for number, body in enumerate((b"+ACK", b"", b"", b"-NAK", b"+TERM")):
        if body:
            harness.publish(frames[number].reply, body)
    harness.turn()
    harness.client.take()
    harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "no_wait": True})
    harness.client.take()


@pytest.fixture(name="fill")
def fill_fixture():
    return fill
