"""Delete markers over the wire: what a subject's last message leaves behind when it grows too old."""

import pytest

from tests.support.pair import Pair
from tests.support.workbench import SECOND, Workbench

MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m30s\r\nNats-Rollup: sub\r\n\r\n"


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


async def test_age_leaves_a_marker(server, clock):
    bench = await Workbench.open(server, max_age=SECOND, subject_delete_marker_ttl=90 * SECOND)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", ack_policy="none")
    await bench.store("s.a", "s.a")
    await bench.store("s.purged", header=b"NATS/1.0\r\nKV-Operation: PURGE\r\n\r\n")
    await bench.store("s.deleted", header=b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")
    await bench.take(4)
    clock.advance(1)
    markers = sorted((message.subject, message.header, message.payload) for message in await bench.take(2))
    assert markers == [("s.a", MARKER, b""), ("s.deleted", MARKER, b"")]
    assert (await bench.api("STREAM.INFO.S"))["state"]["last_seq"] == 6
    await bench.close()


async def test_a_republished_marker_names_the_message_that_ended(server, clock):
    republish = {"src": "s.>", "dest": "again.>"}
    bench = await Workbench.open(server, max_age=SECOND, subject_delete_marker_ttl=90 * SECOND, republish=republish)
    await bench.data.subscribe("again.>", "7")
    await bench.data.ping()  # Messages are stored over another connection.
    await bench.store("s.a")
    await bench.take()
    clock.advance(1)
    marker = await bench.take()
    assert b"\r\nNats-Sequence: 2\r\n" in marker.header
    assert b"\r\nNats-Last-Sequence: 1\r\n" in marker.header
    await bench.close()


async def test_lives_shorter_than_a_markers(pair):
    for name, config in (("MANY", {}), ("ONE", {"max_msgs_per_subject": 1})):
        config = {"subject_delete_marker_ttl": 90 * SECOND, **config}
        await pair.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
        for number, life in enumerate(("30s", "89", "90s", "2m", "never", "x"), 1):
            await pair.store(f"{name}.{number}", b"", {"A": "b", "Nats-TTL": life, "C": "d"})
            await pair.api(f"STREAM.MSG.GET.{name}", {"seq": number})
