"""Continuous consumption against a server that is a script: statuses, silence, gaps and broken connections."""

import asyncio

import pytest

from jetlake.client.pull.consumer import Consumer
from jetlake.errors import (
    ApiError,
    BadRequestError,
    ConnectionClosedError,
    ConsumerDeletedError,
    HeartbeatMissedError,
    InvalidOptionError,
    PullStatusError,
    RequestTimeoutError,
    SubscriptionClosedError,
)
from jetlake.protocol.frames import Unsub
from tests.support.fake_server import acks, consumer_of, delivery, ended, status


async def test_one_subscription_and_refills_by_counters(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=8, threshold_messages=4) as messages:
        inbox = fake.pull_reply()
        fake.deliver(inbox, *[delivery(number) for number in range(1, 9)])
        taken = []
        async for message in messages:
            taken.append(message.metadata.stream_seq)
            if len(taken) == 8:
                break
        assert taken == list(range(1, 9))
        # When four were left, four were asked for, at once and without any timer.
        assert [pull.batch for pull in fake.pulls()] == [8, 4, 4]
        assert {frame.reply for frame in fake.published("$JS.API.CONSUMER.MSG.NEXT.S.C")} == {inbox}
        assert fake.sid(fake.wire, inbox) is not None


async def test_a_refill_goes_out_at_once_with_the_acknowledgements_before_it(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=4, threshold_messages=2) as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 5)])
        writes = len(fake.wire.writes)
        count = 0
        async for message in messages:
            count += 1
            # No turn of the loop has passed since the first message, and yet the pull is out.
            if count == 3:
                assert [pull.batch for pull in fake.pulls()] == [4, 2]
                assert len(fake.wire.writes) == writes + 1
                assert acks(fake) == [b"+ACK"]
                break
            message.ack()


async def test_acknowledgements_of_one_turn_are_one_write(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=100, threshold_messages=1) as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 51)])
        batch = await anext(messages.batches())
        await clock.settle()
        writes = len(fake.wire.writes)
        for message in batch:
            message.ack()
        assert len(fake.wire.writes) == writes
        await clock.settle()
        assert len(fake.wire.writes) == writes + 1
        assert len(acks(fake)) == 50


@pytest.mark.parametrize("words", ["Request Timeout", "Server Shutdown"])
async def test_a_pull_that_ended_is_renewed(fake, clock, words):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10) as messages:
        fake.deliver(fake.pull_reply(), delivery(1), ended(408 if "Time" in words else 409, words, 9))
        await clock.advance(1)
        assert [pull.batch for pull in fake.pulls()][:2] == [10, 9]
        assert (await messages.next(1)).payload == b"x"


async def test_bytes_are_counted_with_subject_reply_headers_and_payload(fake, clock):
    consumer = await consumer_of(fake)
    header = b"NATS/1.0\r\nA: 1\r\n\r\n"
    reply = b"$JS.ACK.S.C.1.1.1.1790000000000000000.0"
    size = len(b"s.1") + len(reply) + len(header) + 100
    async with consumer.consume(max_bytes=size * 2, threshold_bytes=size) as messages:
        assert [(pull.batch, pull.max_bytes) for pull in fake.pulls()] == [(1_000_000, size * 2)]
        fake.deliver(fake.pull_reply(), delivery(1, b"x" * 100, header=header), delivery(2, b"x" * 100, header=header))
        await clock.settle()
        assert len(fake.pulls()) == 1
        await messages.next()
        assert [pull.max_bytes for pull in fake.pulls()] == [size * 2, size]


async def test_bytes_that_are_taken_without_a_connection_are_room_on_the_next_one(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_bytes=1000, threshold_bytes=500) as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number, b"x" * 250) for number in range(1, 4)])
        fake.is_down = True
        fake.wire.lose()
        for _ in range(3):
            await messages.next()
        fake.is_down = False
        await clock.advance(1)
        assert [pull.max_bytes for pull in fake.pulls()] == [1000, 1000]


async def test_a_message_larger_than_max_bytes_is_an_error_and_not_a_loop(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_bytes=1000) as messages:
        fake.deliver(fake.pull_reply(), ended(409, "Message Size Exceeds MaxBytes", 1_000_000, 1000))
        with pytest.raises(PullStatusError, match="MaxBytes"):
            await messages.next()
    assert len(fake.pulls()) == 1


async def test_a_deleted_consumer_is_raised_after_the_messages_before_it(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume() as messages:
        fake.deliver(fake.pull_reply(), delivery(1), status(409, "Consumer Deleted"))
        iterator = aiter(messages)
        assert (await anext(iterator)).metadata.stream_seq == 1
        with pytest.raises(ConsumerDeletedError, match="'C' of stream 'S'"):
            await anext(iterator)
        assert messages.is_stopped
    await clock.settle()
    assert any(isinstance(frame, Unsub) for frame in fake.wire.frames)


@pytest.mark.parametrize(
    ("number", "words"), [(409, "Consumer is push based"), (400, "Bad Request - x"), (599, "Unheard Of")]
)
async def test_terminal_statuses_are_raised(fake, clock, number, words):
    consumer = await consumer_of(fake)
    async with consumer.consume() as messages:
        fake.deliver(fake.pull_reply(), status(number, words))
        with pytest.raises(PullStatusError) as caught:
            await messages.next()
    assert (caught.value.status, caught.value.description) == (number, words)


async def test_too_many_waiting_pulls_are_tried_again_later(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10):
        fake.deliver(fake.pull_reply(), status(409, "Exceeded MaxWaiting"))
        await clock.settle()
        assert len(fake.pulls()) == 1
        await clock.advance(0.25)
        assert len(fake.pulls()) == 2
        fake.deliver(fake.pull_reply(), status(409, "Exceeded MaxWaiting"))
        await clock.advance(0.25)
        assert len(fake.pulls()) == 2
        await clock.advance(0.25)
        assert len(fake.pulls()) == 3


# Heartbeats


async def test_a_missed_heartbeat_ends_consumption_with_an_error(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(expires=20, idle_heartbeat=10) as messages:
        fake.deliver(fake.pull_reply(), delivery(1))
        await messages.next()
        await clock.advance(19)
        assert not messages.is_stopped
        await clock.advance(1)
        with pytest.raises(HeartbeatMissedError, match="20 s"):
            await messages.next()


async def test_heartbeats_keep_it_alive(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(expires=20, idle_heartbeat=10) as messages:
        for _ in range(20):
            await clock.advance(10)
            fake.deliver(fake.pull_reply(), status(100, "Idle Heartbeat"))
        assert not messages.is_stopped


async def test_a_slow_handler_with_a_full_buffer_misses_nothing(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=2, expires=20, idle_heartbeat=10) as messages:
        fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
        await clock.advance(3600)
        assert not messages.is_stopped
        assert (await messages.next()).metadata.stream_seq == 1


async def test_after_a_missed_heartbeat_it_may_go_on(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(
        max_messages=5, expires=20, idle_heartbeat=10, on_missed_heartbeat="continue"
    ) as messages:
        await clock.advance(20)
        assert [type(error) for error in fake.errors] == [HeartbeatMissedError]
        # The consumer was looked at and a new pull was sent, for the whole buffer.
        assert [pull.batch for pull in fake.pulls()] == [5, 5]
        fake.deliver(fake.pull_reply(), delivery(1))
        assert (await messages.next()).metadata.stream_seq == 1


async def test_a_process_that_was_stalled_does_not_blame_the_server(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(expires=20, idle_heartbeat=10) as messages:
        # The timer fires a minute late: the heartbeats of that minute are still in the socket.
        await clock.advance(80)
        assert not messages.is_stopped
        fake.deliver(fake.pull_reply(), status(100, "Idle Heartbeat"))
        await clock.advance(2)
        assert not messages.is_stopped
        await clock.advance(20)
        assert messages.is_stopped


# Connections


async def test_heartbeats_pause_without_a_connection_and_the_consumer_is_checked_on_the_next(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10, expires=20, idle_heartbeat=10) as messages:
        fake.is_down = True
        fake.wire.lose()
        await clock.advance(500)
        assert not messages.is_stopped
        assert len(fake.pulls()) == 1
        infos = len(fake.published("$JS.API.CONSUMER.INFO.S.C"))
        fake.is_down = False
        await clock.advance(10)
        assert len(fake.published("$JS.API.CONSUMER.INFO.S.C")) == infos + 1
        assert [pull.batch for pull in fake.pulls()] == [10, 10]
        fake.deliver(fake.pull_reply(), delivery(1))
        assert (await messages.next()).metadata.stream_seq == 1
        await clock.advance(20)
        assert messages.is_stopped


async def test_who_may_not_ask_for_the_consumer_pulls_all_the_same(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10) as messages:
        del fake.answers["$JS.API.CONSUMER.INFO.S.C"]
        fake.wire.lose()
        await clock.advance(1)
        assert len(fake.pulls()) == 1
        fake.wire.deliver(b"-ERR 'Permissions Violation for Publish to \"$JS.API.CONSUMER.INFO.S.C\"'\r\n")
        await clock.settle()
        assert [pull.batch for pull in fake.pulls()] == [10, 10]
        assert not messages.is_stopped


async def pulls_again(fake, clock, messages):
    """Wait until the read pulls on the connection in use, and has the next message."""
    pulls = len(fake.pulls())
    for _ in range(20):
        await clock.advance(1)
    assert len(fake.pulls()) == pulls + 1
    fake.deliver(fake.pull_reply(), delivery(1))
    assert (await messages.next()).metadata.stream_seq == 1


@pytest.mark.parametrize("on_missed_heartbeat", ["stop", "continue"])
async def test_a_connection_that_was_dropped_in_silence_is_replaced(fake, clock, on_missed_heartbeat):
    consumer = await consumer_of(fake)
    async with consumer.consume(
        max_messages=10, expires=20, idle_heartbeat=10, on_missed_heartbeat=on_missed_heartbeat
    ) as messages:
        fake.wire.is_cut = fake.is_down = True
        await clock.advance(20)
        assert fake.wire.alive
        # The ping after two missed heartbeats has `connect_timeout` seconds for its answer.
        await clock.advance(2)
        assert not fake.wire.alive
        for _ in range(100):
            await clock.advance(1)
        assert not messages.is_stopped
        fake.is_down = False
        await pulls_again(fake, clock, messages)
        assert fake.errors == []


@pytest.mark.parametrize("trouble", ["silence", "no leader", "nobody"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["silent", "reconnected"])
async def test_a_consumer_that_nobody_answers_for_is_waited_for_and_reported(fake, clock, trouble, is_lost):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10, expires=20, idle_heartbeat=10) as messages:
        if trouble == "silence":
            del fake.answers["$JS.API.CONSUMER.INFO.S.C"]
        elif trouble == "no leader":
            fake.serve_no_leader()
        else:
            fake.serve_nobody()
        if is_lost:
            fake.wire.lose()
        for _ in range(300):
            await clock.advance(1)
        assert not messages.is_stopped
        assert len(fake.pulls()) == 1
        kind = RequestTimeoutError if trouble == "silence" else ApiError
        assert {isinstance(error, kind) for error in fake.errors} == {True}
        # After 10, 20, 40, 80 and 160 seconds more, about: nobody wants one line a second.
        assert 3 <= len(fake.errors) <= 5
        fake.serve_consumer()
        await pulls_again(fake, clock, messages)


async def test_pulls_that_the_consumer_does_not_know_of_are_sent_again_outside_of_clusters_too(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10, expires=20, idle_heartbeat=10) as messages:
        fake.answers["$JS.API.CONSUMER.INFO.S.C"]["num_waiting"] = 0
        await clock.advance(20)
        assert [pull.batch for pull in fake.pulls()] == [10, 10]
        fake.deliver(fake.pull_reply(), delivery(1))
        assert (await messages.next()).metadata.stream_seq == 1


async def test_a_message_during_the_check_ends_the_silence(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10, expires=20, idle_heartbeat=10) as messages:
        fake.answer_pings = False
        await clock.advance(20)
        clock._manual_s += 0.5
        fake.deliver(fake.pull_reply(), delivery(1))
        fake.wire.deliver(b"PONG\r\n")
        await clock.settle()
        assert (await messages.next()).metadata.stream_seq == 1
        assert len(fake.pulls()) == 1
        # Silence is measured from that message on.
        fake.answer_pings = True
        await clock.advance(19)
        assert not messages.is_stopped
        await clock.advance(1)
        assert messages.is_stopped


@pytest.mark.parametrize("words", [(409, "Leadership Change"), (503, "")], ids=["no leader", "nobody"])
async def test_pulls_that_turn_out_to_be_lost_during_the_check_are_sent_again(fake, clock, words):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10, expires=20, idle_heartbeat=10) as messages:
        fake.answer_pings = False
        await clock.advance(20)
        clock._manual_s += 0.5
        fake.deliver(fake.pull_reply(), status(*words))
        fake.wire.deliver(b"PONG\r\n")
        fake.answer_pings = True
        await pulls_again(fake, clock, messages)


async def test_a_refusal_that_does_not_pass_ends_it(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume() as messages:
        fake.answers["$JS.API.CONSUMER.INFO.S.C"] = {
            "type": "io.nats.jetstream.api.v1.consumer_info_response",
            "error": {"code": 400, "err_code": 10003, "description": "bad request"},
        }
        fake.wire.lose()
        await clock.settle()
        with pytest.raises(BadRequestError):
            await messages.next()


async def test_a_read_that_was_stopped_says_so(fake, clock):
    consumer = await consumer_of(fake)
    messages = consumer.consume().start()
    await messages.stop()
    with pytest.raises(SubscriptionClosedError, match="stopped"):
        await messages.next()
    assert [message async for message in messages] == []


async def test_begun_without_a_connection_it_pulls_once_on_the_next(fake, clock):
    consumer = await consumer_of(fake)
    fake.is_down = True
    fake.wire.lose()
    await clock.settle()
    async with consumer.consume(max_messages=10) as messages:
        fake.is_down = False
        await clock.advance(10)
        assert [pull.batch for pull in fake.pulls()] == [10]
        fake.deliver(fake.pull_reply(), delivery(1))
        assert await messages.next()


async def test_a_consumer_that_vanished_with_the_server_is_raised(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume() as messages:
        fake.remove_consumer()
        fake.wire.lose()
        await clock.settle()
        with pytest.raises(ConsumerDeletedError):
            await messages.next()


async def test_a_server_that_is_not_ready_yet_is_asked_again(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10) as messages:
        ready = fake.answers.pop("$JS.API.CONSUMER.INFO.S.C")
        fake.wire.lose()
        for _ in range(20):
            await clock.advance(1)
        assert len(fake.pulls()) == 1
        assert not messages.is_stopped
        fake.answers["$JS.API.CONSUMER.INFO.S.C"] = ready
        for _ in range(10):
            await clock.advance(1)
        assert len(fake.pulls()) == 2


async def test_nobody_answers_a_pull_so_the_consumer_is_checked(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10) as messages:
        fake.deliver(fake.pull_reply(), status(503, ""))
        await clock.settle()
        assert [pull.batch for pull in fake.pulls()] == [10, 10]
        fake.remove_consumer()
        fake.deliver(fake.pull_reply(), status(503, ""))
        await clock.settle()
        with pytest.raises(ConsumerDeletedError):
            await messages.next()


async def test_the_connection_breaks_again_while_recovering(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10) as messages:
        answer = fake.answers.pop("$JS.API.CONSUMER.INFO.S.C")
        fake.wire.lose()
        await clock.advance(1)
        fake.wire.lose()
        fake.answers["$JS.API.CONSUMER.INFO.S.C"] = answer
        await clock.settle()
        await clock.advance(1)
        assert len(fake.wires) == 3
        assert [pull.batch for pull in fake.pulls()] == [10, 10]
        fake.deliver(fake.pull_reply(), delivery(1))
        assert await messages.next()


async def test_a_client_that_closes_ends_it(fake, clock):
    consumer = await consumer_of(fake)
    messages = consumer.consume().start()
    fake.deliver(fake.pull_reply(), delivery(1))
    await fake.clients[0].close()
    assert [message.payload async for message in messages] == [b"x"]
    with pytest.raises(ConnectionClosedError):
        await messages.next()


# Pins


async def test_pins_are_kept_reported_and_cleared(fake, clock):
    consumer = await consumer_of(fake, priority_policy="pinned_client", priority_groups=["jobs"])
    events = []
    async with consumer.consume(
        max_messages=2,
        group="jobs",
        on_pinned=lambda pin: events.append(("pinned", pin)),
        on_unpinned=lambda: events.append("unpinned"),
    ) as messages:
        header = b"NATS/1.0\r\nNats-Pin-Id: abc\r\n\r\n"
        fake.deliver(fake.pull_reply(), delivery(1, header=header), delivery(2, header=header))
        await messages.next()
        await messages.next()
        assert events == [("pinned", "abc")]
        assert [(pull.group, pull.id) for pull in fake.pulls()][-1] == ("jobs", "abc")
        assert messages.pin_id == "abc"
        fake.deliver(fake.pull_reply(), ended(423, "Nats-Wrong-Pin-Id", 2))
        await clock.settle()
        assert events == [("pinned", "abc"), "unpinned"]
        assert fake.pulls()[-1].id == ""
        fake.deliver(fake.pull_reply(), delivery(3, header=header.replace(b"abc", b"def")))
        assert events[-1] == ("pinned", "def")


async def test_fetch_and_next_are_refused_on_a_pinned_consumer(fake, clock):
    consumer = await consumer_of(fake, priority_policy="pinned_client", priority_groups=["jobs"])
    with pytest.raises(InvalidOptionError, match="fetch does not work on a pinned_client consumer"):
        consumer.fetch(1, group="jobs")
    with pytest.raises(InvalidOptionError, match="next does not work on a pinned_client consumer"):
        await consumer.next(group="jobs")
    with pytest.raises(InvalidOptionError, match="pass group"):
        consumer.consume()
    assert fake.pulls() == []


# Stopping


async def test_stop_gives_back_what_was_not_handed_out(fake, clock):
    consumer = await consumer_of(fake)
    messages = consumer.consume(max_messages=10).start()
    fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 4)])
    (await messages.next()).ack()
    left = await messages.stop()
    await clock.settle()
    assert [message.metadata.stream_seq for message in left] == [2, 3]
    assert acks(fake) == [b"+ACK", b"-NAK", b"-NAK"]
    assert fake.sid(fake.wire, fake.pull_reply()) is None
    assert await messages.stop() == []


async def test_stop_waits_for_what_is_under_way(fake, clock):
    consumer = await consumer_of(fake)
    fake.answer_pings = False
    messages = consumer.consume(max_messages=10).start()
    inbox = fake.pull_reply()
    sid = fake.sid(fake.wire, inbox)
    stopping = asyncio.create_task(messages.stop())
    await clock.settle()
    # The server had sent this one before it heard of the end.
    fake.wire.deliver(delivery(1)(sid) + b"PONG\r\n")
    assert [message.metadata.stream_seq for message in await stopping] == [1]
    await clock.settle()
    assert acks(fake) == [b"-NAK"]


async def test_drain_hands_everything_out(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=10, threshold_messages=10) as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 4)])
        pulls = len(fake.pulls())
        await messages.drain()
        assert [message.metadata.stream_seq async for message in messages] == [1, 2, 3]
        assert len(fake.pulls()) == pulls
    assert acks(fake) == []


async def test_leaving_the_loop_and_coming_back_loses_nothing(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume() as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 7)])
        seen = []
        for _ in range(3):
            async for message in messages:
                seen.append(message.metadata.stream_seq)
                if len(seen) % 2 == 0:
                    break
        assert seen == [1, 2, 3, 4, 5, 6]


async def test_iterating_without_the_context_manager_stops_when_the_loop_is_left(fake, clock):
    consumer = await consumer_of(fake)
    iterator = aiter(consumer.messages())
    first = asyncio.create_task(anext(iterator))
    await clock.settle()
    fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
    assert (await first).metadata.stream_seq == 1
    await iterator.aclose()
    await clock.settle()
    assert acks(fake) == [b"-NAK"]
    assert fake.sid(fake.wire, fake.pull_reply()) is None


async def test_ack_policy_none_sends_no_acknowledgements(fake, clock):
    consumer = await consumer_of(fake, ack_policy="none")
    async with consumer.consume() as messages:
        fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
        message = await messages.next()
        message.ack()
        message.nak()
        await message.ack_sync()
    await clock.settle()
    assert acks(fake) == []


# Handlers


async def test_a_handler_gets_every_message(fake, clock):
    consumer = await consumer_of(fake)
    seen = []
    async with consumer.consume(lambda message: seen.append(message.metadata.stream_seq)) as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 6)])
        await clock.settle()
        assert seen == [1, 2, 3, 4, 5]
        assert messages.handled == 5


async def test_handlers_work_at_once_up_to_the_concurrency(fake, clock):
    consumer = await consumer_of(fake)
    at_work = []
    gate = asyncio.Event()

    async def handle(message):
        at_work.append(message)
        await gate.wait()
        message.ack()

    async with consumer.consume(handle, concurrency=3) as messages:
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 6)])
        await clock.settle()
        assert len(at_work) == 3
        gate.set()
        await clock.settle()
        assert len(at_work) == 5
        assert messages.handled == 5


async def test_a_handler_that_fails_does_not_stop_the_others(fake, clock):
    consumer = await consumer_of(fake)
    seen = []

    async def handle(message):
        if message.metadata.stream_seq == 2:
            raise ValueError("bad message")
        seen.append(message.metadata.stream_seq)
        message.ack()

    async with consumer.consume(handle):
        fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 4)])
        await clock.settle()
    assert seen == [1, 3]
    assert [str(error) for error in fake.errors] == ["bad message"]
    assert fake.errors[0].__notes__[0].startswith("while handling <Message 's.1' b'x' reply $JS.ACK.S.C.1.2.2.")
    assert acks(fake) == [b"+ACK", b"+ACK"]


@pytest.mark.parametrize(("policy", "given_back", "taken"), [("explicit", [b"-NAK", b"-NAK"], 0), ("none", [], 2)])
async def test_draining_the_client_gives_back_what_an_iterator_did_not_take(fake, clock, policy, given_back, taken):
    consumer = await consumer_of(fake, ack_policy=policy)
    messages = consumer.consume().start()
    fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 4)])
    await messages.next()
    await fake.clients[0].drain()
    assert acks(fake) == given_back
    assert len([message async for message in messages]) == taken


async def test_draining_the_client_lets_handlers_finish_and_sends_their_acknowledgements(fake, clock):
    consumer = await consumer_of(fake)

    async def handle(message):
        await asyncio.sleep(0)
        message.ack()

    messages = consumer.consume(handle).start()
    fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(1, 6)])
    await fake.clients[0].drain()
    assert messages.handled == 5
    assert acks(fake) == [b"+ACK"] * 5
    assert fake.clients[0].is_closed


async def test_wait_raises_what_ended_consumption(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(lambda message: None) as messages:
        fake.deliver(fake.pull_reply(), status(409, "Consumer Deleted"))
        with pytest.raises(ConsumerDeletedError):
            await messages.wait()


async def test_options_are_refused_before_anything_is_sent(fake, clock):
    consumer = await consumer_of(fake)
    for options in ({"concurrency": 2}, {"handler": "x"}, {"max_messages": 1, "max_bytes": 1}, {"expires": 1}):
        with pytest.raises(InvalidOptionError):
            consumer.consume(**options)
    async with consumer.consume(lambda message: None) as messages:
        with pytest.raises(InvalidOptionError, match="handler gets all"):
            await messages.next()
    assert isinstance(consumer, Consumer)


async def test_next_gives_up_in_time(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume() as messages:
        waiting = asyncio.create_task(messages.next(5))
        await clock.settle()
        await clock.advance(5)
        with pytest.raises(RequestTimeoutError):
            await waiting


# Consumers that give up after some deliveries


def again(number, deliveries):
    frame = delivery(number)
    return lambda sid: frame(sid).replace(b"$JS.ACK.S.C.1.", b"$JS.ACK.S.C.%d." % deliveries)


async def test_nothing_is_fetched_ahead_of_messages_with_few_deliveries_left(fake, clock):
    consumer = await consumer_of(fake, max_deliver=4)
    async with consumer.consume(max_messages=10) as messages:
        await clock.settle()
        assert fake.pulls() == []
        waiting = asyncio.create_task(messages.next())
        await clock.settle()
        assert [pull.batch for pull in fake.pulls()] == [1]
        fake.deliver(fake.pull_reply(), again(1, 3))
        assert (await waiting).metadata.delivered == 3
        await clock.settle()
        assert len(fake.pulls()) == 1
        waiting = asyncio.create_task(messages.next())
        await clock.settle()
        fake.deliver(fake.pull_reply(), again(2, 2))
        await waiting
        # This one could be given back and come again twice.
        assert [pull.batch for pull in fake.pulls()] == [1, 1, 9]


async def test_what_is_on_its_last_delivery_is_handed_out_first_and_not_lost_in_silence(fake, clock):
    consumer = await consumer_of(fake, max_deliver=4)
    messages = consumer.consume(max_messages=10).start()
    waiting = asyncio.create_task(messages.next())
    await clock.settle()
    fake.deliver(fake.pull_reply(), delivery(1))
    await waiting
    fake.deliver(fake.pull_reply(), delivery(2), again(3, 4), again(4, 4), delivery(5))
    assert (await messages.next()).metadata.stream_seq == 3
    assert len(await messages.stop()) == 3
    assert "1 messages of 'C' of 'S' were not handed out in their last delivery" in str(fake.errors[0])


async def test_each_handler_that_waits_is_pulled_for(fake, clock):
    consumer = await consumer_of(fake, max_deliver=1)
    busy = asyncio.Event()
    async with consumer.consume(lambda message: busy.wait(), concurrency=3):
        await clock.settle()
        assert [pull.batch for pull in fake.pulls()] == [1, 1, 1]
        fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
        await clock.settle()
        assert len(fake.pulls()) == 3
        busy.set()
        await clock.settle()
        assert [pull.batch for pull in fake.pulls()][3:] in ([1, 1], [2])


async def test_missed_heartbeats_are_no_flood(fake, clock):
    consumer = await consumer_of(fake)
    async with consumer.consume(idle_heartbeat=5, expires=30, on_missed_heartbeat="continue"):
        for _ in range(100):
            await clock.advance(1)
        assert len(fake.errors) == 10
        assert len(fake.pulls()) == 11
        fake.is_down = True
        fake.wire.lose()
        for _ in range(100):
            await clock.advance(10)
        assert len(fake.errors) == 10


async def test_a_read_that_cannot_begin_leaves_nothing_behind(fake, clock):
    consumer = await consumer_of(fake)
    connection = consumer._api.connection
    connection.close()
    with pytest.raises(ConnectionClosedError):
        consumer.consume().start()
    assert connection.receivers() == []


# In a cluster


def serve_clustered(fake, leader, waiting=1):
    """Answer CONSUMER.INFO as the leader of a cluster does."""
    fake.serve_consumer()
    info = fake.answers["$JS.API.CONSUMER.INFO.S.C"]
    info["cluster"] = {"name": "C", "leader": leader, "replicas": [{"name": "n9", "current": True, "active": 0}]}
    info["num_waiting"] = waiting


def change_cluster(fake, *addresses):
    """Send the INFO of a server whose cluster has lost or gained another one."""
    urls = ",".join(f'"{address}:4222"' for address in addresses)
    fake.wire.deliver(b'INFO {"headers":true,"max_payload":1048576,"connect_urls":[%b]}\r\n' % urls.encode())


async def clustered(fake):
    serve_clustered(fake, "n1")
    client = await fake.connect()
    change_cluster(fake, "10.0.0.1", "10.0.0.2", "10.0.0.3")
    return await client.jetstream().consumer("S", "C")


@pytest.mark.parametrize(
    ("leader", "waiting", "pulls"), [("n2", 1, 2), ("n1", 0, 2), ("n1", 1, 1)], ids=["moved", "restarted", "unharmed"]
)
async def test_pulls_that_were_lost_with_a_server_are_sent_again_at_once(fake, clock, leader, waiting, pulls):
    consumer = await clustered(fake)
    async with consumer.consume() as messages:
        await clock.settle()
        serve_clustered(fake, leader, waiting)
        change_cluster(fake, "10.0.0.2", "10.0.0.3")
        await clock.settle()
        assert len(fake.pulls()) == pulls
        # Another INFO about the same servers changes nothing.
        change_cluster(fake, "10.0.0.3", "10.0.0.2")
        await clock.settle()
        assert len(fake.pulls()) == pulls
        fake.deliver(fake.pull_reply(), delivery(1))
        assert (await messages.next()).metadata.stream_seq == 1


async def test_a_leader_that_is_not_elected_yet_is_waited_for(fake, clock):
    consumer = await clustered(fake)
    async with consumer.consume() as messages:
        await clock.settle()
        del fake.answers["$JS.API.CONSUMER.INFO.S.C"]
        change_cluster(fake, "10.0.0.2", "10.0.0.3")
        await clock.advance(6)
        assert len(fake.pulls()) == 1
        serve_clustered(fake, "n3", 0)
        for _ in range(4):
            await clock.advance(3)
        assert len(fake.pulls()) == 2
        assert not messages.is_stopped


async def test_a_pull_that_finds_no_leader_during_the_check_is_sent_again(fake, clock):
    consumer = await clustered(fake)
    async with consumer.consume() as messages:
        await clock.settle()
        del fake.answers["$JS.API.CONSUMER.INFO.S.C"]
        change_cluster(fake, "10.0.0.2", "10.0.0.3")
        await clock.settle()
        inbox = fake.pull_reply()
        fake.deliver(inbox, status(503, "", inbox))
        serve_clustered(fake, "n2", 0)
        for _ in range(4):
            await clock.advance(3)
        assert len(fake.pulls()) == 2
        fake.deliver(inbox, delivery(1))
        assert (await messages.next()).metadata.stream_seq == 1


async def test_messages_that_go_on_show_that_no_pull_was_lost(fake, clock):
    consumer = await clustered(fake)
    async with consumer.consume():
        await clock.settle()
        serve_clustered(fake, "n2", 0)
        change_cluster(fake, "10.0.0.2", "10.0.0.3")
        await asyncio.sleep(0)
        clock._manual_s += 0.01
        fake.deliver(fake.pull_reply(), delivery(1))
        await clock.settle()
        assert len(fake.pulls()) == 1


async def test_silence_of_a_leader_that_was_replaced_is_no_error(fake, clock):
    consumer = await clustered(fake)
    async with consumer.consume(idle_heartbeat=5, expires=30) as messages:
        await clock.settle()
        serve_clustered(fake, "n2")
        await clock.advance(10)
        assert len(fake.pulls()) == 2
        # The same leader, and still silent.
        await clock.advance(10)
        with pytest.raises(HeartbeatMissedError):
            await messages.next()


async def test_a_leader_that_steps_down_is_followed(fake, clock):
    consumer = await clustered(fake)
    async with consumer.consume() as messages:
        await clock.settle()
        inbox = fake.pull_reply()
        serve_clustered(fake, "n2")
        fake.deliver(inbox, status(409, "Leadership Change", inbox))
        await clock.settle()
        assert len(fake.pulls()) == 2
        fake.deliver(inbox, delivery(1))
        assert (await messages.next()).metadata.stream_seq == 1
