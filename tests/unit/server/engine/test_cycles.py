"""What comes and goes leaves no cycles: with the garbage collector off, memory is what it was before."""

import gc
import json
from pathlib import Path
from random import Random

import pytest

from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk

ROUNDS = 60
HOUR_NS = 3600 * 10**9
BATCH = b"NATS/1.0\r\nNats-Batch-Id: %d\r\nNats-Batch-Sequence: %d\r\n%b\r\n"


@pytest.fixture(params=["memory", "file"])
def harness(request, make_harness):
    storage = None
    if request.param == "file":
        storage = FolderStorage(StoreFolder(FaultyDisk(Random(1)), Path("/data")), lambda _line: None)
    harness = make_harness(storage)
    harness.create("S", allow_atomic=True, allow_batched=True, storage=request.param, allow_direct=True)
    harness.create("Q", subjects=["q"], retention="workqueue", storage=request.param)
    for _ in range(5):
        harness.store("s.a", b"x")
    harness.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D", "ack_policy": "explicit"}})
    return harness


def create(harness, stream="S", **config):
    answer = harness.api(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": {"name": "c", **config}})
    assert "error" not in answer, answer


def is_gone(harness, stream="S"):
    return "c" not in harness.jetstream.streams[stream].consumers


def expired(harness, number):
    create(harness, ack_policy="explicit", inactive_threshold=1, filter_subject="s.a")
    harness.advance(2)


def expired_push(harness, number):
    create(harness, deliver_subject="d", flow_control=True, idle_heartbeat=10**9, inactive_threshold=10**9)
    subscription = harness.account.subscribe(b"d", b"2", harness.client)
    harness.turn()
    harness.advance(1)
    harness.account.unsubscribe(subscription)
    harness.advance(3)


def expired_in_memory(harness, number):
    create(harness, mem_storage=True, ack_policy="none", deliver_policy="last", inactive_threshold=1)
    harness.advance(2)


def deleted_at_work(harness, number):
    """With a pull that waits, a delivery without its acknowledgement, and an acknowledgement on its way to the disk."""
    create(harness, "Q", ack_policy="explicit", ack_wait=HOUR_NS, metadata={"_jetlake.redeliver_lost": "true"})
    harness.publish("q", b"1")
    harness.publish("q", b"2")
    frames = harness.request("$JS.API.CONSUMER.MSG.NEXT.Q.c", {"batch": 5, "expires": HOUR_NS})
    acks = [frame.reply for frame in frames if frame.reply]
    assert len(acks) == 2
    harness.publish(acks[0], b"+ACK", reply=b"_INBOX.a")
    harness.request("$JS.API.CONSUMER.DELETE.Q.c")
    harness.api("STREAM.PURGE.Q")


def pinned(harness, number):
    create(harness, ack_policy="explicit", priority_groups=["g"], priority_policy="pinned_client")
    harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "group": "g", "expires": HOUR_NS})
    harness.api("CONSUMER.UNPIN.S.c", {"group": "g"})
    harness.api("CONSUMER.DELETE.S.c")


def updated(harness, number):
    for filter_subject in ("s.a", "s.b"):
        create(harness, durable_name="c", ack_policy="explicit", filter_subject=filter_subject)
    harness.api("CONSUMER.PAUSE.S.c", {"pause_until": "2999-01-01T00:00:00Z"})
    harness.api("CONSUMER.RESET.S.c", {"seq": 1})
    harness.api("CONSUMER.DELETE.S.c")


def pulls(harness, number):
    for body in ({"batch": 5, "expires": 10**8, "idle_heartbeat": 3 * 10**7}, {"batch": 1, "no_wait": True}):
        inbox = b"_INBOX.p.%d" % number
        harness.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", json.dumps(body).encode(), reply=inbox)
        harness.turn()
        harness.advance(0.2)


def subscriptions(harness, number):
    found = [harness.account.subscribe(subject, b"7", harness.client) for subject in (b"x.%d" % number, b"x.*")]
    harness.publish(f"x.{number}", b"")
    for subscription in found:
        harness.account.unsubscribe(subscription)


def batches(harness, number):
    """One that is committed, and one that is abandoned."""
    for batch_id, last in ((2 * number, b"Nats-Batch-Commit: 1\r\n"), (2 * number + 1, b"")):
        for sequence in (1, 2):
            header = BATCH % (batch_id, sequence, last if sequence == 2 else b"")
            harness.publish("s.b", b"x", header, reply=b"_INBOX.b")
            harness.turn()
    harness.advance(15)


def fast_batches(harness, number):
    harness.publish("s.b", b"x", reply=b"_INBOX.f%d.10.gap.1.0.$FI" % number)
    harness.advance(15)


def requests(harness, number):
    harness.api("STREAM.INFO.S")
    harness.api("CONSUMER.LIST.S")
    harness.api("STREAM.MSG.GET.S", {"seq": 1})
    harness.api("STREAM.MSG.GET.S", {"seq": 10**9})
    harness.request("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"]})


def backups(harness, number):
    """One that somebody takes, and one that nobody takes."""
    deliver = harness.account.subscribe(b"backup", b"8", harness.client)
    harness.request("$JS.API.STREAM.SNAPSHOT.S", {"deliver_subject": "backup"})
    harness.account.unsubscribe(deliver)
    harness.api("STREAM.SNAPSHOT.S", {"deliver_subject": "nowhere"})
    harness.advance(10)


KINDS = [
    expired,
    expired_push,
    expired_in_memory,
    deleted_at_work,
    pinned,
    updated,
    pulls,
    subscriptions,
    batches,
    fast_batches,
    requests,
    backups,
]


def count_objects():
    """Objects of ours, without those that are kept up to a bound: routes, and cancelled timers."""
    kinds = (type(found) for found in gc.get_objects())
    ours = (kind for kind in kinds if str(kind.__module__).startswith("jetlake."))
    return sum(kind.__name__ not in ("Route", "Timer") for kind in ours)


@pytest.mark.parametrize("come_and_go", KINDS)
def test_nothing_is_left_for_the_garbage_collector(harness, come_and_go):
    for number in range(3):
        come_and_go(harness, number)
        assert is_gone(harness) and is_gone(harness, "Q")
    gc.collect()
    gc.disable()
    try:
        harness.client.take()
        before = count_objects()
        for number in range(3, 3 + ROUNDS):
            come_and_go(harness, number)
        harness.client.take()
        assert count_objects() - before < ROUNDS / 2, "something is kept"
        assert gc.collect() < ROUNDS / 2, "cycles are left"
    finally:
        gc.enable()
