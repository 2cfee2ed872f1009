"""The client's publishing and stream management on both servers."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from jetlake.errors import (
    ApiError,
    BadRequestError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    InvalidOptionError,
    JetStreamNotEnabledError,
    MessageNotFoundError,
    NoRespondersError,
    PublishWindowError,
    StreamNameInUseError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import DeliverPolicy
from jetlake.model.stream import StreamConfig
from tests.support.clients import LACKS, filled, until, with_partial_mirror


async def collect(iterator):
    return [item async for item in iterator]


# Publishing


async def test_publish_with_acknowledgement(js):
    await js.create_stream("ORDERS", subjects=["orders.>"])
    first = await js.publish("orders.new", b"1", headers={"A": "b"})
    assert (first.stream, first.seq, first.duplicate) == ("ORDERS", 1, False)
    assert (await js.publish("orders.new", b"2")).seq == 2


async def test_deduplication(js):
    await js.create_stream("S", subjects=["s.>"])
    assert not (await js.publish("s.1", b"x", msg_id="id")).duplicate
    again = await js.publish("s.1", b"x", msg_id="id")
    assert (again.seq, again.duplicate) == (1, True)


async def test_expectations(js):
    await js.create_stream("S", subjects=["s.>"])
    await js.publish("s.1", expected_last_sequence=0, expected_last_subject_sequence=0, expected_stream="S")
    await js.publish("s.1", expected_last_sequence=1, msg_id="m")
    await js.publish("s.1", expected_last_msg_id="m")
    with pytest.raises(WrongLastSequenceError, match="3") as caught:
        await js.publish("s.1", expected_last_sequence=1)
    assert caught.value.err_code == 10071
    with pytest.raises(WrongLastSequenceError):
        await js.publish("s.2", expected_last_subject_sequence=7)
    with pytest.raises(ApiError) as caught:
        await js.publish("s.1", expected_stream="OTHER")
    assert caught.value.err_code == 10060
    with pytest.raises(ApiError) as caught:
        await js.publish("s.1", expected_last_msg_id="nope")
    assert caught.value.err_code == 10070


async def test_no_stream(js):
    with pytest.raises(NoRespondersError, match="nowhere"):
        await js.publish("nowhere", retries=0)


async def test_a_stream_that_comes_late_is_found(js):
    task = asyncio.create_task(js.publish("s.1", b"x", retries=100))
    await asyncio.sleep(0.05)
    await js.create_stream("S", subjects=["s.>"])
    assert (await task).seq == 1


async def test_pipelined_publishing_keeps_order(js):
    stream = await filled(js, 5000)
    assert (await stream.info()).state.messages == 5000
    for sequence in (1, 2500, 5000):
        assert (await stream.get(sequence)).payload == b"%d" % (sequence - 1)


async def test_many_messages_keep_their_order(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    await js.create_stream("T", subjects=["t.>"])
    assert await js.publish_many((f"{'st'[number // 50 % 2]}.1", b"%d" % number) for number in range(2000)) == (2000, 0)
    assert (await stream.info()).state.messages == 1000
    assert [(await stream.get(sequence)).payload for sequence in (1, 51, 1000)] == [b"0", b"100", b"1949"]
    # Of two with one id the second is a duplicate.
    with_ids = [("s.2", b"", {"msg_id": f"{number // 2}"}) for number in range(20)]
    assert await js.publish_many(with_ids) == (20, 10)

    async def one_by_one():
        for number in range(20):
            await asyncio.sleep(0)
            yield f"s.{number}", b"x"

    assert await js.publish_many(one_by_one()) == (20, 0)


async def test_many_messages_of_which_some_are_refused(js):
    stream = await js.create_stream("S", subjects=["s.>"], max_msg_size=10)
    with pytest.raises(PublishWindowError, match=r"message 30, on 's\.1'") as caught:
        await js.publish_many(("s.1", b"x" * (30 if number in (30, 700) else 3)) for number in range(1000))
    assert caught.value.positions == [30, 700]
    assert (await stream.info()).state.messages == 998


async def test_pipelined_refusals_surface(js):
    await js.create_stream("S", subjects=["s.>"], max_msgs=3, discard="new")
    pending = [await js.publish_async("s.1", b"x") for _ in range(5)]
    with pytest.raises(PublishWindowError) as caught:
        await js.publish_async_complete()
    assert len(caught.value.failures) == 2
    assert [one.is_done for one in pending] == [True] * 5
    assert (await pending[2]).seq == 3
    with pytest.raises(ApiError, match="maximum messages exceeded"):
        await pending[4]


async def test_a_small_window_still_gets_everything_through(server, clients):
    js = (await clients(server)).jetstream(publish_window=5)
    stream = await filled(js, 500)
    assert (await stream.info()).state.messages == 500


# Streams


async def test_create_update_and_delete(js):
    stream = await js.create_stream("S", subjects=["s.>"], max_age=60, description="first", metadata={"k": "v"})
    assert stream.config.max_age == 60_000_000_000
    assert stream.config.metadata["k"] == "v"
    # The same again is fine, another one is not.
    await js.create_stream("S", subjects=["s.>"], max_age=60, description="first", metadata={"k": "v"})
    with pytest.raises(StreamNameInUseError, match="by update_stream or create_or_update_stream"):
        await js.create_stream("S", subjects=["t.>"])
    updated = await js.update_stream("S", max_msgs=5)
    assert (updated.config.max_msgs, updated.config.max_age, updated.config.description) == (5, 60_000_000_000, "first")
    await stream.update(description="second")
    info = await stream.info()
    assert (info.config.description, info.config.max_msgs) == ("second", 5)
    whole = await js.update_stream(StreamConfig(name="S", subjects=("s.>",)))
    assert (whole.config.max_msgs, whole.config.description) == (-1, "")
    await stream.delete()
    with pytest.raises(StreamNotFoundError):
        await js.stream("S")
    with pytest.raises(StreamNotFoundError):
        await js.delete_stream("S")


async def test_create_or_update(js):
    await js.create_or_update_stream("S", subjects=["a"])
    stream = await js.create_or_update_stream("S", subjects=["a", "b"])
    assert stream.config.subjects == ("a", "b")


async def test_lists(js):
    assert await js.stream_names() == []
    assert await js.streams() == []
    for number in range(5):
        await js.create_stream(f"S{number}", subjects=[f"s{number}.>"], storage="memory")
    assert await js.stream_names() == [f"S{number}" for number in range(5)]
    assert [info.config.name for info in await js.streams()] == [f"S{number}" for number in range(5)]
    assert await js.stream_names("s3.x") == ["S3"]
    assert [info.config.name for info in await js.streams("s4.x")] == ["S4"]


async def test_lists_longer_than_a_page(js):
    for start in range(0, 300, 50):
        await asyncio.gather(
            *(
                js.create_stream(f"S{number:04}", subjects=[f"s{number}"], storage="memory")
                for number in range(start, start + 50)
            )
        )
    assert len(await js.streams()) == 300
    assert len(await js.stream_names()) == 300


async def test_info_with_subjects(js):
    stream = await filled(js, 25)
    state = (await stream.info(subjects_filter="s.>")).state
    assert state.subjects == {f"s.{number}": 3 if number < 5 else 2 for number in range(10)}
    assert (await stream.info(subjects_filter="s.3")).state.subjects == {"s.3": 3}
    assert (await stream.info()).state.subjects == {}
    await stream.delete_message(5)
    assert (await stream.info(deleted_details=True)).state.deleted == (5,)


async def test_purge(js):
    stream = await filled(js, 30)
    assert await stream.purge(subject="s.1") == 3
    assert await stream.purge(subject="s.2", keep=1) == 2
    assert await stream.purge(before=11) == 8
    assert await stream.purge() == 17
    assert (await stream.info()).state.messages == 0
    with pytest.raises(InvalidOptionError):
        await stream.purge(before=5, keep=5)


@pytest.mark.parametrize("direct", [False, True])
async def test_get(js, direct):
    stream = await js.create_stream("S", subjects=["s.>"], allow_direct=direct)
    for number in range(20):
        await js.publish(f"s.{number % 10}", b"%d" % number, headers={"N": str(number)})
    message = await stream.get(5)
    assert (message.subject, message.sequence, message.payload) == ("s.4", 5, b"4")
    assert message.headers.items() == [("N", "4")]
    assert message.time_ns > 1_700_000_000_000_000_000
    assert (await stream.get(last_by_subject="s.4")).sequence == 15
    assert (await stream.get(last_by_subject="s.*")).sequence == 20
    assert (await stream.get(6, next_by_subject="s.4")).sequence == 15
    assert (await stream.get(start_time=datetime.now(UTC) - timedelta(hours=1))).sequence == 1
    for missing in ({"sequence": 99}, {"last_by_subject": "s.zz"}):
        with pytest.raises(MessageNotFoundError):
            await stream.get(**missing)
    with pytest.raises(InvalidOptionError):
        await stream.get()
    with pytest.raises(InvalidOptionError):
        await stream.get(5, last_by_subject="s.1")


async def test_direct_get_where_it_is_not_allowed(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    await js.publish("s.1")
    with pytest.raises(NoRespondersError):
        await stream.get(1, direct=True)


async def test_batches_of_direct_gets(js):
    stream = await filled(js, 50, allow_direct=True)
    batch = await collect(stream.get_batch(10, sequence=6))
    assert [message.sequence for message in batch] == list(range(6, 16))
    assert batch[0].payload == b"5"
    assert batch[0].header == b""
    assert [one.sequence for one in await collect(stream.get_batch(100, next_by_subject="s.3"))] == [4, 14, 24, 34, 44]
    newest = await collect(stream.get_batch(last_by_subjects=["s.1", "s.2"]))
    assert [message.sequence for message in newest] == [42, 43]
    last = await stream.get_last_for("s.1", "s.2", "other")
    assert {subject: message.sequence for subject, message in last.items()} == {"s.1": 42, "s.2": 43}
    assert len(await stream.get_last_for(">")) == 10
    assert await stream.get_last_for("other") == {}
    with pytest.raises(InvalidOptionError, match="needs subjects"):
        await stream.get_last_for()
    older = await collect(stream.get_batch(last_by_subjects=["s.1"], up_to_sequence=20))
    assert [message.sequence for message in older] == [12]
    assert await collect(stream.get_batch(5, sequence=1000)) == []
    assert len(await collect(stream.get_batch(50, max_bytes=200))) < 50
    with pytest.raises(InvalidOptionError):
        stream.get_batch()


async def test_delete_message(js):
    stream = await filled(js, 3)
    await stream.delete_message(2)
    await stream.delete_message(3, erase=False)
    assert (await stream.info()).state.messages == 1
    with pytest.raises(ApiError):
        await stream.delete_message(2)


async def test_account_info(js):
    await js.create_stream("S", subjects=["s.>"])
    info = await js.account_info()
    assert info.streams == 1
    assert info.api.total >= 1


async def test_a_domain_and_a_prefix(start, clients):
    server = await start('jetstream { store_dir: "STORE_DIR", domain: "hub" }')
    client = await clients(server)
    js = client.jetstream(domain="hub")
    await filled(js, 3)
    assert (await js.publish("s.1", b"x")).domain == "hub"
    assert await client.jetstream(prefix="$JS.hub.API").stream_names() == ["S"]
    consumer = await js.create_consumer("S", "c")
    assert len(await consumer.fetch(4, expires=10)) == 4
    with pytest.raises(InvalidOptionError):
        client.jetstream(domain="hub", prefix="x")
    with pytest.raises(InvalidOptionError):
        client.jetstream(domain="a.b")


async def test_without_jetstream(core, clients):
    js = (await clients(core)).jetstream()
    with pytest.raises(JetStreamNotEnabledError, match="is it enabled"):
        await js.account_info()


# Consumers


async def test_consumers(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer("worker", filter_subject="s.1", ack_wait=5, max_deliver=3)
    assert consumer.config.durable_name == "worker"
    assert consumer.config.ack_policy == "explicit"
    assert consumer.config.ack_wait == 5_000_000_000
    await stream.create_consumer("worker", filter_subject="s.1", ack_wait=5, max_deliver=3)
    with pytest.raises(ConsumerExistsError, match="by update_consumer or create_or_update_consumer"):
        await stream.create_consumer("worker", filter_subject="s.2")
    with pytest.raises(InvalidOptionError, match="the name is the first argument"):
        await stream.create_consumer(durable_name="other")
    updated = await stream.update_consumer("worker", ack_wait=10)
    assert (updated.config.ack_wait, updated.config.max_deliver) == (10_000_000_000, 3)
    again = await stream.create_or_update_consumer("worker", filter_subject="s.1", ack_wait=20, max_deliver=3)
    assert again.config.ack_wait == 20_000_000_000
    assert (await stream.consumer("worker")).name == "worker"
    assert (await js.consumer("S", "worker")).name == "worker"
    ephemeral = await stream.create_consumer()
    assert ephemeral.config.durable_name == ""
    named = await stream.create_consumer("named", durable=False, inactive_threshold=60)
    assert named.config.durable_name == ""
    assert sorted(await stream.consumer_names()) == sorted(["worker", "named", ephemeral.name])
    assert {info.name for info in await stream.consumers()} == {"worker", "named", ephemeral.name}
    await consumer.delete()
    await stream.delete_consumer("named")
    with pytest.raises(ConsumerNotFoundError):
        await consumer.info()
    with pytest.raises(ConsumerNotFoundError):
        await stream.consumer("nobody")


async def test_pause_and_resume(js):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    reply = await consumer.pause(3600)
    assert reply.paused
    assert (await consumer.info()).paused
    assert await consumer.fetch(1, expires=0.05) == []
    assert not (await consumer.resume()).paused
    assert len(await consumer.fetch(3, expires=10)) == 3


async def test_a_pause_of_centuries(js):
    consumer = await (await filled(js, 1)).create_consumer("c")
    assert (await consumer.pause("2999-01-01T00:00:00Z")).pause_remaining == 2**63 - 1
    await until(lambda: is_paused_for(consumer, 2**63 - 1))


async def is_paused_for(consumer, nanoseconds):
    return (await consumer.info()).pause_remaining == nanoseconds


async def test_reset(js):
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c")
    for message in await consumer.fetch(10, expires=10):
        await message.ack_sync()
    await consumer.reset(4)
    assert [message.metadata.stream_seq for message in await consumer.fetch(7, expires=10)] == [4, 5, 6, 7, 8, 9, 10]


async def test_names_are_checked_before_anything_is_sent(js):
    for bad in ("", "a.b", "a b", "a>", "a*", "a/b", "a\\b", "x" * 256, None, 5):
        with pytest.raises(InvalidOptionError):
            await js.stream(bad)
        with pytest.raises(InvalidOptionError):
            await js.create_stream(bad, subjects=["a"])
        with pytest.raises(InvalidOptionError):
            await js.consumer("S", bad)
    with pytest.raises(InvalidOptionError, match="max_agee"):
        await js.create_stream("S", subjects=["s.>"], max_agee=5)
    with pytest.raises(InvalidOptionError, match="retention"):
        await js.create_stream("S", subjects=["s.>"], retention="forever")
    with pytest.raises(InvalidOptionError, match="subjects"):
        await js.create_stream("S", subjects="s.>")


async def test_the_servers_refusals_carry_their_code(js):
    with pytest.raises(ApiError) as caught:
        await js.create_stream("S", subjects=["a.*", "a.b"])
    assert (caught.value.code, caught.value.err_code) == (500, 10052)
    assert "overlaps" in caught.value.description
    stream = await js.create_stream("S", subjects=["s.>"])
    with pytest.raises(ApiError) as caught:
        await stream.create_consumer("c", deliver_policy="by_start_sequence")
    assert caught.value.err_code == 10094
    assert issubclass(BadRequestError, ApiError)


@pytest.mark.parametrize("lack", LACKS)
async def test_a_mirror_does_not_answer_for_its_origin(server, clients, lack):
    client = await clients(server)
    stream = await with_partial_mirror(client, lack, 60)
    stored = [await stream.get(sequence, direct=False) for sequence in range(1, 61)]
    newest = {f"s.{number}": stored[50 + number] for number in range(10)}
    for _ in range(5):
        assert await stream.get(20) == stored[19]
        assert await stream.get(13, next_by_subject="s.5") == stored[15]
        assert await stream.get(last_by_subject="s.7") == stored[57]
        assert [message async for message in stream.get_batch(30, sequence=5)] == stored[4:34]
        assert [message async for message in stream.get_batch(3, next_by_subject="s.2")] == stored[2:23:10]
        assert [message async for message in stream.get_batch(9, sequence=1, max_bytes=1)] == stored[:1]
        assert await stream.get_last_for("s.*") == newest
        until_40 = stream.get_batch(last_by_subjects=["s.1", "s.2"], up_to_sequence=40)
        assert [message async for message in until_40] == stored[31:33]
        with pytest.raises(MessageNotFoundError):
            await stream.get(61)
        assert [message async for message in stream.get_batch(5, sequence=61)] == []


async def test_a_direct_get_of_a_message_that_was_republished_before(js):
    """Its own headers have the names of those that a direct get adds."""
    stream = await js.create_stream("S", subjects=["s.>"], allow_direct=True)
    own = {"Nats-Stream": "OTHER", "Nats-Subject": "other.x", "Nats-Sequence": "77", "Nats-Last-Sequence": "3"}
    await js.publish("s.1", b"x", headers=own)
    for message in [await stream.get(1), *[each async for each in stream.get_batch(5)]]:
        assert (message.stream, message.subject, message.sequence) == ("S", "s.1", 1)


FAR = ["9999-12-31T23:59:59Z", "2300-01-01T00:00:00Z", datetime.max]
LONG_AGO = ["0001-01-01T00:00:00Z", "1500-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)]


async def test_times_that_no_server_can_count(js):
    """Servers count nanoseconds from 1677 to 2262: the nearest of these times means the same messages."""
    stream = await filled(js, 3, allow_direct=True)
    for time in LONG_AGO:
        for direct in (True, False):
            assert (await stream.get(start_time=time, direct=direct)).sequence == 1
        assert [message.sequence async for message in stream.get_batch(5, start_time=time)] == [1, 2, 3]
        assert [message async for message in stream.get_batch(last_by_subjects=["s.>"], up_to_time=time)] == []
        consumer = await stream.create_consumer(deliver_policy="by_start_time", opt_start_time=time)
        assert (await consumer.info()).num_pending == 3
    for time in FAR:
        for direct in (True, False):
            with pytest.raises(MessageNotFoundError):
                await stream.get(start_time=time, direct=direct)
        assert [message async for message in stream.get_batch(5, start_time=time)] == []
        newest = stream.get_batch(last_by_subjects=["s.>"], up_to_time=time)
        assert [message.sequence async for message in newest] == [1, 2, 3]
        consumer = await stream.create_consumer(deliver_policy="by_start_time", opt_start_time=time)
        assert (await consumer.info()).num_pending == 0
    config = ConsumerConfig(name="whole", deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=FAR[0])
    assert (await (await stream.create_consumer(config)).info()).num_pending == 0


async def test_schedules_of_times_that_no_server_can_count(js):
    stream = await js.create_stream("S", subjects=["s.>"], allow_msg_schedules=True)
    await js.schedule("s.never", target="s.x", at=datetime.max)
    await js.schedule("s.once", target="s.y", at="1500-01-01T00:00:00Z")

    async def subjects():
        return set((await stream.info(subjects_filter=">")).state.subjects)

    async def is_sent():
        return "s.y" in await subjects()

    await until(is_sent)
    assert await subjects() == {"s.never", "s.y"}
