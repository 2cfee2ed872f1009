"""Reading consumers with the client on both servers: fetch, consume, ordered reads, acknowledgements, groups."""

import asyncio

import pytest

from jetlake.errors import (
    AlreadyAcknowledgedError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    InvalidOptionError,
    NoRespondersError,
    PullStatusError,
    StreamReplacedError,
)
from tests.support.clients import cancelled_in_first_turn, filled, numbers, until

# Fetch


async def test_fetch(js):
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c")
    messages = await consumer.fetch(4)
    assert numbers(messages) == [0, 1, 2, 3]
    assert [message.metadata.pending for message in messages] == [9, 8, 7, 6]
    for message in messages:
        await message.ack()
    # Fewer than asked for: what is there, after the expiry.
    assert numbers(await consumer.fetch(100, expires=1)) == [4, 5, 6, 7, 8, 9]
    assert await consumer.fetch(1, expires=0.05) == []

    async def has_counted():
        info = await consumer.info()
        return (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (6, 0, 4)

    await until(has_counted)


async def test_fetch_without_waiting(js):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    fetch = consumer.fetch(10, no_wait=True)
    assert numbers(await fetch) == [0, 1, 2]
    assert fetch.status.status == 404
    assert await consumer.fetch(10, no_wait=True) == []
    waiting = asyncio.ensure_future(asyncio.wait_for(consumer.fetch(10, no_wait=True, expires=5), 10))
    await asyncio.sleep(0.05)
    await js.publish("s.0", b"3")
    assert numbers(await waiting) == [3]


async def test_fetch_by_bytes(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    for _ in range(10):
        await js.publish("s.1", b"x" * 100)
    consumer = await stream.create_consumer("c", ack_policy="none")
    messages = await consumer.fetch(max_bytes=600, expires=10)
    sizes = [message.size for message in messages]
    assert 600 - max(sizes) < sum(sizes) <= 600
    # Both limits: the bytes take precedence.
    assert len(await consumer.fetch(100, max_bytes=sizes[0] + 10, expires=10)) == 1
    # A first message that is too large gives nothing, and the status says why.
    fetch = consumer.fetch(max_bytes=50, expires=10)
    assert await fetch == []
    assert "MaxBytes" in fetch.status.description


async def test_fetch_as_they_come(js):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    received = []
    async for message in consumer.fetch(5, expires=5):
        received.append(int(message.payload))
        await message.ack()
        if len(received) == 3:
            await js.publish("s.1", b"3")
            await js.publish("s.1", b"4")
    assert received == [0, 1, 2, 3, 4]


async def test_many_fetches_one_after_the_other(js):
    stream = await filled(js, 2000)
    consumer = await stream.create_consumer("c", max_ack_pending=-1)
    received = []
    while len(received) < 2000:
        messages = await consumer.fetch(40)
        for message in messages:
            message.ack()
        received += numbers(messages)
    assert received == list(range(2000))


async def test_fetches_at_once(js):
    stream = await filled(js, 100)
    consumer = await stream.create_consumer("c")
    batches = await asyncio.gather(*(asyncio.wait_for(consumer.fetch(10), 10) for _ in range(10)))
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(100))


async def test_fetch_from_a_deleted_consumer(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    waiting = asyncio.ensure_future(asyncio.wait_for(consumer.fetch(10, expires=30), 60))
    await until(lambda: _has_delivered(consumer))
    await consumer.delete()
    # What came before the end is not lost.
    assert numbers(await waiting) == [0]
    with pytest.raises(ConsumerNotFoundError):
        await consumer.fetch(1)
    with pytest.raises(ConsumerNotFoundError):
        await consumer.next(1)


async def _has_delivered(consumer):
    return (await consumer.info()).num_ack_pending == 1


async def test_next(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    assert (await consumer.next(10)).payload == b"0"
    assert await consumer.next(0.05) is None


async def test_limits_of_the_consumer_are_errors(js):
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c", max_batch=5, max_expires=10)
    with pytest.raises(PullStatusError, match="Exceeded MaxRequestBatch of 5"):
        await consumer.fetch(6)
    with pytest.raises(PullStatusError, match="MaxRequestExpires"):
        await consumer.fetch(1, expires=20)
    assert len(await consumer.fetch(5, expires=5)) == 5
    async with consumer.consume(max_messages=100, expires=10) as messages:
        with pytest.raises(PullStatusError, match="MaxRequestBatch"):
            await messages.next(5)


# Consume


@pytest.mark.parametrize(("limit", "threshold"), [(1, None), (2, None), (7, 3), (100, 100), (1000, None), (5000, 1)])
async def test_consume_everything(js, limit, threshold):
    stream = await filled(js, 1500)
    consumer = await stream.create_consumer("c", max_ack_pending=-1)
    received = []
    async with consumer.consume(max_messages=limit, threshold_messages=threshold) as messages:
        async for message in messages:
            await message.ack()
            received.append(int(message.payload))
            if len(received) == 1500:
                break
    assert received == list(range(1500))
    await until(lambda: _is_idle(consumer))


async def _is_idle(consumer):
    info = await consumer.info()
    return info.num_ack_pending == 0 and info.num_waiting == 0


async def test_consume_by_bytes(js):
    stream = await filled(js, 1000)
    consumer = await stream.create_consumer("c", max_ack_pending=-1)
    received = []
    async with consumer.consume(max_bytes=1000) as messages:
        async for message in messages:
            message.ack()
            received.append(int(message.payload))
            if len(received) == 1000:
                break
    assert received == list(range(1000))


async def test_refills_come_with_consumption_and_not_with_a_timer(js):
    """A known trap of the peers: the refill is polled ten times a second, so 500 ahead give 5000 a second."""
    stream = await filled(js, 3000)
    consumer = await stream.create_consumer("c", max_ack_pending=-1)
    loop = asyncio.get_running_loop()
    timers = []
    original = loop.call_at
    async with consumer.consume(max_messages=10) as messages:
        first = await messages.next(5)
        first.ack()
        loop.call_at = lambda *arguments, **options: timers.append(arguments) or original(*arguments, **options)
        try:
            received = 1
            async for message in messages:
                message.ack()
                received += 1
                if received == 3000:
                    break
        finally:
            loop.call_at = original
    # 300 refills and more, and never a timer for them; the one that watches for silence is set now and then.
    names = [getattr(callback, "__qualname__", "") for _, callback, *_ in timers]
    assert len([name for name in names if name.startswith("ContinuousPull.")]) < 5


async def test_batches(js):
    stream = await filled(js, 3000)
    consumer = await stream.create_consumer("c", max_ack_pending=-1)
    received = []
    async with consumer.consume() as messages:
        async for batch in messages.batches():
            for message in batch:
                message.ack()
            received += numbers(batch)
            if len(received) == 3000:
                break
    assert received == list(range(3000))


async def test_consume_waits_for_new_messages(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer("c")
    async with consumer.consume() as messages:
        for number in range(5):
            await js.publish("s.1", b"%d" % number)
            message = await messages.next(5)
            assert int(message.payload) == number
            await message.ack()


async def test_handlers(js):
    stream = await filled(js, 500)
    consumer = await stream.create_consumer("c")
    seen = []

    async def handle(message):
        await asyncio.sleep(0)
        seen.append(int(message.payload))
        await message.ack()

    async with consumer.consume(handle, concurrency=10) as messages:
        await until(lambda: messages.handled == 500)
    assert sorted(seen) == list(range(500))


async def test_leaving_gives_back_what_was_fetched_ahead(js):
    stream = await filled(js, 100)
    consumer = await stream.create_consumer("c", ack_wait=60)
    async with consumer.consume(max_messages=50) as messages:
        for _ in range(10):
            await (await messages.next(5)).ack()
    # Long before their ack wait, all others can be had.
    received = []
    while len(received) < 90:
        batch = await consumer.fetch(90, expires=2)
        assert batch
        for message in batch:
            await message.ack()
        received += numbers(batch)
    assert sorted(received) == list(range(10, 100))


async def test_a_rate_leaves_the_others_on_the_server(js):
    stream = await filled(js, 500)
    consumer = await stream.create_consumer("c", ack_wait=600)
    handled = []

    def handle(message):
        handled.append(int(message.payload))
        message.ack()

    async with consumer.consume(handle, max_rate=10):
        await until(lambda: len(handled) >= 4)
        info = await consumer.info()
    assert handled == list(range(len(handled)))
    assert info.num_pending > 100  # Without a rate, all would be fetched ahead.


async def test_a_handler_that_drains_its_own_client_ends_the_read_quietly(js, server, clients):
    stream = await filled(js, 3)
    await stream.create_consumer("c")
    client = await clients(server)
    handled = []

    async def handle(message):
        message.ack()
        handled.append(int(message.payload))
        await client.drain()

    async with (await client.jetstream().consumer("S", "c")).consume(handle, max_messages=1) as reading:
        await reading.wait()
    assert client.is_closed
    assert handled[0] == 0


async def test_what_need_not_be_awaited_can_be_made_a_task(js, server, clients):
    stream = await filled(js, 4)
    consumer = await stream.create_consumer("c", ack_wait=60)
    batch = await asyncio.create_task(consumer.fetch(4))
    assert numbers(batch) == list(range(4))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(batch[0].ack())
        tasks.create_task(batch[1].nak(delay=60))
        tasks.create_task((await clients(server)).publish("other"))
        tasks.create_task((await clients(server)).publish("other", bytes(900_000)))
    assert await asyncio.create_task(batch[2].ack()) is None
    assert len(await asyncio.create_task(stream.ordered().fetch(2))) == 2
    for begins in (False, True):
        task = asyncio.create_task(consumer.fetch(5, expires=60))
        await asyncio.sleep(0.05 if begins else 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_client_drain_that_is_cancelled_at_once_gives_back_what_was_fetched_ahead(js, server, clients):
    stream = await filled(js, 5)
    await stream.create_consumer("c")
    other = await clients(server)
    reading = (await (await other.jetstream().stream("S")).consumer("c")).consume(max_messages=5).start()
    await until(lambda: reading.pending_messages == 5)
    await cancelled_in_first_turn(other.drain())
    assert other.is_closed
    again = await (await stream.consumer("c")).fetch(5, expires=20)
    assert sorted(numbers(again)) == list(range(5))
    assert {message.metadata.delivered for message in again} == {2}


async def test_drain_loses_nothing_and_gives_nothing_back(js):
    stream = await filled(js, 100)
    consumer = await stream.create_consumer("c", ack_wait=60)
    received = []
    async with consumer.consume(max_messages=40, threshold_messages=1) as messages:
        await until(lambda: messages.pending_messages == 40)
        await messages.drain()
        async for message in messages:
            await message.ack()
            received.append(int(message.payload))
    assert received == list(range(40))
    info = await consumer.info()
    assert (info.num_redelivered, info.num_pending) == (0, 60)


async def test_a_deleted_consumer_ends_the_loop_with_an_error(js):
    """A known trap of the peers: the iterator just ends, or waits for ever."""
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    async with consumer.consume() as messages:
        received = []
        deleted = False
        with pytest.raises(ConsumerDeletedError):
            async for message in messages:
                received.append(int(message.payload))
                if len(received) == 3 and not deleted:
                    deleted = True
                    await consumer.delete()
        assert received == [0, 1, 2]


async def test_a_deleted_stream_ends_the_loop_with_an_error(js):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    async with consumer.consume() as messages:
        for _ in range(3):
            await messages.next(5)
        await stream.delete()
        with pytest.raises(ConsumerDeletedError):
            await messages.next(5)


async def test_an_empty_stream_is_quiet(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer("c")
    async with consumer.consume(expires=4, idle_heartbeat=2) as messages:
        await until(lambda: _waits(consumer))
        assert messages.pending_messages == 0


async def _waits(consumer):
    return (await consumer.info()).num_waiting == 1


# Acknowledgements


async def test_ack_sync(js):
    stream = await filled(js, 2)
    consumer = await stream.create_consumer("c")
    for message in await consumer.fetch(2):
        await message.ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 2)


@pytest.mark.parametrize("first", ["ack", "term"])
async def test_what_was_acknowledged_without_confirmation_can_be_confirmed(js, first):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    (message,) = await consumer.fetch(1)
    await getattr(message, first)()
    await getattr(message, f"{first}_sync")()
    assert (await consumer.info()).num_ack_pending == 0
    await js.delete_stream("S")
    await getattr(message, f"{first}_sync")()  # It was confirmed.


async def test_a_confirmation_of_what_the_server_ignores_is_refused(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    (message,) = await consumer.fetch(1)
    message.nak()
    for call in (message.ack_sync, message.term_sync, message.nak_sync, message.in_progress_sync):
        with pytest.raises(AlreadyAcknowledgedError, match="nak, which was sent first"):
            await call()
    (message,) = await consumer.fetch(1, expires=20)
    assert message.metadata.delivered == 2
    message.ack()
    await js.delete_stream("S")
    with pytest.raises(NoRespondersError):
        await message.ack_sync()


async def test_nak_and_its_delay(js, clock):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c", ack_wait=60)
    (message,) = await consumer.fetch(1)
    await message.nak()
    (message,) = await consumer.fetch(1, expires=5)
    assert message.metadata.delivered == 2
    await message.nak(delay=1.5)
    assert await consumer.fetch(1, no_wait=True) == []
    clock.advance(1.5)
    (message,) = await consumer.fetch(1, expires=5)
    assert message.metadata.delivered == 3


async def test_term_with_a_reason(js, server, clients):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    listener = await clients(server)
    advisories = await listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c")
    await listener.flush()
    (message,) = await consumer.fetch(1)
    await message.term("poison")
    assert b'"reason":"poison"' in (await advisories.next(5)).payload
    await until(lambda: _has_nothing_pending(consumer))


async def _has_nothing_pending(consumer):
    return (await consumer.info()).num_ack_pending == 0


async def test_in_progress(js, clock):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c", ack_wait=2.5)
    (message,) = await consumer.fetch(1)
    for _ in range(2):
        await clock.passes(1.3)
        await message.in_progress_sync()
    assert await consumer.fetch(1, no_wait=True) == []
    await message.ack_sync()


async def test_ack_policy_none(js, server, clients):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c", ack_policy="none")
    messages = await consumer.fetch(3)
    listener = await clients(server)
    acks = await listener.subscribe("$JS.ACK.>")
    await listener.flush()
    for message in messages:
        message.ack()
        await message.ack_sync()
    await listener.flush()
    assert acks.pending_messages == 0


async def test_ack_policy_all(js):
    stream = await filled(js, 5)
    consumer = await stream.create_consumer("c", ack_policy="all")
    messages = await consumer.fetch(5)
    await messages[3].ack_sync()
    info = await consumer.info()
    assert (info.ack_floor.stream_seq, info.num_ack_pending) == (4, 1)


async def test_acking_a_gone_consumer(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    (message,) = await consumer.fetch(1)
    await consumer.delete()
    with pytest.raises(NoRespondersError):
        await message.ack_sync()


# Ordered reads


async def test_ordered(js):
    stream = await filled(js, 2500)
    received = []
    async for message in stream.ordered():
        received.append(int(message.payload))
        if len(received) == 2500:
            break
    assert received == list(range(2500))
    await until(lambda: _has_no_consumers(stream))


async def _has_no_consumers(stream):
    return await stream.consumer_names() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 90}, list(range(89, 100))),
        ({"deliver_policy": "last"}, [99]),
        ({"filter_subject": "s.3"}, list(range(3, 100, 10))),
        ({"filter_subjects": ["s.3", "s.4"]}, sorted([*range(3, 100, 10), *range(4, 100, 10)])),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.>"}, list(range(90, 100))),
        ({"deliver_policy": "last_per_subject"}, list(range(90, 100))),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}, list(range(100))),
    ],
)
async def test_ordered_from_anywhere(js, options, expected):
    stream = await filled(js, 100)
    async with stream.ordered(**options).consume() as messages:
        assert numbers([await messages.next(5) for _ in expected]) == expected


async def test_ordered_is_entered_like_consume(js):
    stream = await filled(js, 10)
    ordered = stream.ordered(deliver_policy="by_start_sequence", opt_start_seq=4)
    for _ in range(2):
        async with ordered as messages:
            assert [int((await messages.next(5)).payload) for _ in range(7)] == list(range(3, 10))
            with pytest.raises(InvalidOptionError, match="already entered"):
                async with ordered:
                    pass
        assert messages.is_stopped


async def test_ordered_new_messages(js):
    stream = await filled(js, 5)
    async with stream.ordered(deliver_policy="new").consume() as messages:
        await until(lambda: _has_a_consumer(stream))
        await js.publish("s.1", b"new")
        assert (await messages.next(5)).payload == b"new"


async def _has_a_consumer(stream):
    return bool(await stream.consumer_names())


async def test_ordered_fetches(js):
    stream = await filled(js, 10)
    ordered = stream.ordered()
    assert numbers(await ordered.fetch(4)) == [0, 1, 2, 3]
    assert (await ordered.next(10)).payload == b"4"
    # Somebody deletes the consumer: the next fetch makes another and goes on.
    for name in await stream.consumer_names():
        await stream.delete_consumer(name)
    assert numbers(await ordered.fetch(3)) == [5, 6, 7]
    assert numbers([message async for message in ordered.fetch(5, expires=0.2)]) == [8, 9]
    await ordered.delete()
    assert await stream.consumer_names() == []


@pytest.mark.parametrize("count", [3, 30], ids=["shorter", "longer"])
async def test_ordered_does_not_mix_a_stream_with_the_one_that_replaced_it(js, count):
    stream = await filled(js, 10)
    ordered = stream.ordered()
    assert numbers(await ordered.fetch(10)) == list(range(10))
    await stream.delete()
    await filled(js, count)
    with pytest.raises(StreamReplacedError, match="last sequence read: 10"):
        await ordered.fetch(1)
    await until(lambda: _has_no_consumers(stream))
    assert numbers(await stream.ordered().fetch(3)) == [0, 1, 2]


async def test_ordered_survives_the_deletion_of_its_consumer(js):
    stream = await filled(js, 100)
    received = []
    async with stream.ordered().consume(max_messages=10) as messages:
        async for message in messages:
            received.append(int(message.payload))
            if len(received) == 30:
                for name in await stream.consumer_names():
                    await stream.delete_consumer(name)
            if len(received) == 100:
                break
        assert messages.resets >= 1
    assert received == list(range(100))


async def test_both_versions_of_the_ack_subject(start, clients):
    """A known trap of the peers: ordered reads do not understand the second version."""
    server = await start("feature_flags { js_ack_fc_v2: true }")
    js = (await clients(server)).jetstream()
    stream = await filled(js, 50)
    consumer = await stream.create_consumer("c")
    messages = await consumer.fetch(50)
    metadata = messages[9].metadata
    assert (metadata.stream, metadata.consumer, metadata.stream_seq, metadata.domain) == ("S", "c", 10, None)
    assert len(metadata.account_hash) == 8
    for message in messages:
        await message.ack_sync()
    assert (await consumer.info()).ack_floor.stream_seq == 50
    received = []
    async for message in stream.ordered():
        received.append(int(message.payload))
        if len(received) == 50:
            break
    assert received == list(range(50))
    subscription = await js.subscribe("s.>")
    assert numbers([await subscription.next(5) for _ in range(50)]) == list(range(50))
    await subscription.unsubscribe()


async def test_a_filter_that_is_no_subject_is_refused_at_once(js):
    stream = await filled(js, 0)
    for subject in ("a..b", "../../etc", ".a", "a b"):
        with pytest.raises(InvalidOptionError, match="filter_subject"):
            await stream.create_consumer("c", filter_subject=subject)


# Priority groups


async def test_overflow(js):
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c", priority_policy="overflow", priority_groups=["jobs"])
    with pytest.raises(InvalidOptionError, match="pass group"):
        consumer.fetch(1)
    with pytest.raises(InvalidOptionError, match="no group 'x'"):
        consumer.consume(group="x")
    assert await consumer.fetch(1, group="jobs", min_pending=100, expires=0.1) == []
    assert len(await consumer.fetch(1, group="jobs", min_pending=5, expires=10)) == 1
    assert len(await consumer.fetch(1, group="jobs", min_ack_pending=1, expires=10)) == 1
    async with consumer.consume(group="jobs") as messages:
        assert len([await messages.next(5) for _ in range(8)]) == 8


async def test_pinned_clients(js):
    stream = await filled(js, 5)
    consumer = await stream.create_consumer(
        "c", priority_policy="pinned_client", priority_groups=["jobs"], priority_timeout=60
    )
    events = []
    with pytest.raises(InvalidOptionError, match="pinned_client"):
        consumer.fetch(1, group="jobs")

    def reader(name):
        return consumer.consume(
            group="jobs",
            max_messages=10,
            on_pinned=lambda pin: events.append((name, "pinned")),
            on_unpinned=lambda: events.append((name, "unpinned")),
        )

    async with reader("first") as first:
        for _ in range(5):
            await (await first.next(5)).ack()
        assert events == [("first", "pinned")]
        assert (await consumer.info()).priority_groups[0].pinned_client_id == first.pin_id != ""
        async with reader("second") as second:
            await until(lambda: _has_waiting(consumer, 2))
            await js.publish("s.1", b"5")
            await (await first.next(5)).ack()
            assert second.pending_messages == 0
            await consumer.unpin("jobs")
            # The pull of the first one carries a pin that is no more: the second one gets what comes.
            await js.publish("s.1", b"6")
            await until(lambda: ("second", "pinned") in events)
            assert (await second.next(5)).payload == b"6"
            await js.publish("s.1", b"7")
            assert (await second.next(5)).payload == b"7"
            await until(lambda: ("first", "unpinned") in events)
            assert first.pin_id == ""
            assert second.pin_id == (await consumer.info()).priority_groups[0].pinned_client_id


@pytest.mark.parametrize("policy", ["pinned_client", "overflow"])
async def test_a_pin_that_a_message_was_stored_with_is_none(js, policy):
    stream = await js.create_stream("S", subjects=["s.>"])
    for pin in ("of another consumer", "\udcff"):
        await js.publish("s.1", headers={"Nats-Pin-Id": pin})
    consumer = await stream.create_consumer("c", priority_policy=policy, priority_groups=["jobs"])
    pins = []
    async with consumer.consume(group="jobs", on_pinned=pins.append) as messages:
        for _ in range(2):
            await (await messages.next(5)).ack()
    pinned = (await consumer.info()).priority_groups
    assert pins == ([pinned[0].pinned_client_id] if policy == "pinned_client" else [])


async def _has_waiting(consumer, count):
    return (await consumer.info()).num_waiting >= count


async def test_prioritized(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer("c", priority_policy="prioritized", priority_groups=["jobs"])
    async with consumer.consume(group="jobs", priority=5) as low:
        await until(lambda: _has_waiting(consumer, 1))
        async with consumer.consume(group="jobs", priority=1) as high:
            await until(lambda: _has_waiting(consumer, 2))
            for number in range(5):
                await js.publish("s.1", b"%d" % number)
            assert numbers([await high.next(5) for _ in range(5)]) == [0, 1, 2, 3, 4]
            assert low.pending_messages == 0
