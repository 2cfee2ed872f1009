"""Plain messages of one turn are gathered into a run, which nobody can tell from single messages."""

import asyncio
import gc
import sys
from contextlib import suppress
from random import Random

import pytest

from jetlake.client.publish.pending_ack import SingleMessage
from jetlake.errors import (
    ApiError,
    ConnectionClosedError,
    DisconnectedError,
    PermissionsError,
    PublishTimeoutError,
    PublishWindowError,
)
from jetlake.protocol.frames import Pub

REFUSAL = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"},"stream":"S"}'


def frames(fake):
    """What was published, but for what the client itself asks the server."""
    return [frame for frame in fake.wire.frames if isinstance(frame, Pub) and not frame.subject.startswith(b"$JS")]


def answer(fake, published, text=b'{"stream":"S","seq":%d}'):
    """Answer messages in one read, as a stream does that stores them one after the other."""
    sid = fake.sid(fake.wire, published[0].reply)
    texts = [text % number if b"%d" in text else text for number in range(1, len(published) + 1)]
    data = [
        b"MSG %b %b %d\r\n%b\r\n" % (one.reply, sid, len(own), own) for one, own in zip(published, texts, strict=True)
    ]
    fake.wire.deliver(b"".join(data))


@pytest.fixture
async def js(fake):
    return (await fake.connect()).jetstream(timeout=5)


async def test_a_turn_is_one_write_in_the_order_of_the_calls(fake, clock, js):
    client = fake.clients[0]
    sent = client.statistics.frames_sent
    writes = len(fake.wire.writes)
    for number in range(5):
        await js.publish_async("s.1", b"%d" % number)
    await client.publish("core", b"5")
    for number in range(6, 10):
        await js.publish_async(f"s.{number}", b"%d" % number * number)
    await js.publish_async("s.1", b"10", msg_id="ten")
    other = client.jetstream()
    for number in range(11, 15):
        await (js if number % 2 else other).publish_async("s.1", b"%d" % number)
    await clock.settle()
    expected = [b"%d" % number * (number if 6 <= number < 10 else 1) for number in range(15)]
    assert [frame.payload for frame in frames(fake)] == expected
    assert len({frame.reply for frame in frames(fake)}) == 15
    assert len(fake.wire.writes) == writes + 1
    # The inbox of each of the two contexts is a frame too.
    assert client.statistics.frames_sent == sent + 15 + 2
    by_context = [js.publish_async_pending, other.publish_async_pending]
    assert by_context == [12, 2]
    for frame in frames(fake):
        if frame.reply:
            answer(fake, [frame])
    await js.publish_async_complete()
    await other.publish_async_complete()


async def test_every_message_has_its_own_answer(fake, clock, js):
    pendings = [await js.publish_async("s.1") for _ in range(20)]
    cancelled, awaited = asyncio.ensure_future(pendings[3]), asyncio.ensure_future(pendings[3])
    await clock.settle()
    cancelled.cancel()
    published = frames(fake)
    answer(fake, published[:12])
    assert [one.is_done for one in pendings] == [True] * 12 + [False] * 8
    assert (await awaited).seq == 4
    answer(fake, published[12:13], REFUSAL)
    answer(fake, published[13:])
    assert [(await one).seq for one in pendings[:12]] == list(range(1, 13))
    with pytest.raises(ApiError, match="wrong last sequence"):
        await pendings[12]
    assert [(await one).seq for one in pendings[13:]] == list(range(1, 8))
    await js.publish_async_complete()


async def test_a_message_that_is_awaited_when_its_run_is_split_wakes_with_its_own_answer(fake, clock, js):
    pendings = [await js.publish_async("s.1") for _ in range(6)]
    awaited = [asyncio.ensure_future(pending) for pending in pendings]
    await clock.settle()
    published = frames(fake)
    answer(fake, published[:2])
    answer(fake, published[3:4], REFUSAL)
    answer(fake, published[4:])
    await clock.settle()
    assert [one.done() for one in awaited] == [True, True, False, True, True, True]
    answer(fake, published[2:3], b'{"stream":"S","seq":9}')
    outcomes = await asyncio.gather(*awaited, return_exceptions=True)
    assert isinstance(outcomes.pop(3), ApiError)
    assert [ack.seq for ack in outcomes] == [1, 2, 9, 1, 2]
    await js.publish_async_complete()  # Whoever awaited the refused one was told.


@pytest.mark.parametrize("is_split", [False, True])
async def test_whoever_holds_an_acknowledgement_holds_no_payload(fake, clock, js, is_split):
    payload = b"x" * 1000
    unused = sys.getrefcount(payload)
    pendings = [await js.publish_async("s.1", payload) for _ in range(10)]
    await clock.settle()
    published = frames(fake)
    if is_split:
        answer(fake, published[9:])
    answer(fake, published[: 9 if is_split else 10])
    await js.publish_async_complete()
    assert all(pending.is_done for pending in pendings)
    assert sys.getrefcount(payload) == unused


async def test_what_failed_is_collected_with_its_error(fake, clock, js):
    async def fail():
        pendings = [await js.publish_async("s.collected") for _ in range(3)]
        for pending in pendings:
            pending.observe()
        await clock.settle()
        answer(fake, frames(fake), REFUSAL)
        for pending in pendings:
            await pending

    with suppress(ApiError):
        await fail()
    gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, SingleMessage) and one.raw_subject == b"s.collected"]
    assert not held


async def test_two_streams_answer_in_an_order_of_their_own(fake, clock, js):
    pendings = [await js.publish_async(f"s.{number % 2}") for number in range(40)]
    await clock.settle()
    published = frames(fake)
    answer(fake, published[1::2])
    assert [one.is_done for one in pendings] == [bool(number % 2) for number in range(40)]
    answer(fake, published[::2])
    assert js.publish_async_pending == 0
    assert [(await one).seq for one in pendings] == [number // 2 + 1 for number in range(40)]


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_lost_connection_fails_what_has_no_id(fake, clock, js, is_written):
    pendings = [await js.publish_async("s.1", b"%d" % number) for number in range(5)]
    safe = await js.publish_async("s.2", msg_id="a")
    pendings += [await js.publish_async("s.3") for _ in range(3)]
    if is_written:
        await clock.settle()
    fake.wire.lose()
    for pending in pendings:
        with pytest.raises(DisconnectedError, match="may or may not be stored"):
            await pending
    await clock.advance(5)
    assert [frame.subject for frame in frames(fake)] == [b"s.2"]
    answer(fake, frames(fake))
    assert (await safe).seq == 1
    assert js.publish_async_pending == 0


async def test_closing_writes_the_turn_and_fails_what_is_under_way(fake, clock, js):
    pendings = [await js.publish_async("s.1") for _ in range(5)]
    await fake.clients[0].close()
    assert len(frames(fake)) == 5
    for pending in pendings:
        with pytest.raises(ConnectionClosedError):
            await pending


async def test_a_denied_inbox_fails_the_messages_of_this_turn_too(fake, clock, js):
    pendings = [await js.publish_async("s.1") for _ in range(5)]
    await clock.settle()
    pendings += [await js.publish_async("s.1") for _ in range(5)]
    inbox = next(iter(fake.wire.subscriptions))
    fake.wire.deliver(b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % inbox)
    for pending in pendings:
        with pytest.raises(PermissionsError):
            await pending


async def test_acknowledgements_that_stay_away(fake, clock, js):
    pendings = [await js.publish_async("s.1") for _ in range(5)]
    await clock.advance(2.6)
    assert not pendings[-1].is_done
    await clock.advance(2.6)
    for pending in pendings:
        with pytest.raises(PublishTimeoutError):
            await pending
    assert len(frames(fake)) == 5


@pytest.mark.parametrize("limits", [{"publish_window": 10}, {"publish_window_bytes": 2000}])
async def test_the_window_holds_inside_a_turn(fake, clock, limits):
    js = (await fake.connect()).jetstream(**limits)
    publishing = asyncio.create_task(publish(js, 100, b"x" * 190))
    answered = 0
    while answered < 100:
        await clock.settle()
        published = frames(fake)[answered:]
        assert 0 < len(published) <= 11
        answered += len(published)
        answer(fake, published)
    await publishing
    await js.publish_async_complete()


async def publish(js, count, payload):
    for _ in range(count):
        await js.publish_async("s.1", payload)


async def test_a_large_turn_is_written_before_its_end(fake, clock, js):
    writes = len(fake.wire.writes)
    for _ in range(3000):
        await js.publish_async("s", b"")
    assert len(fake.wire.writes) > writes + 2
    await clock.settle()
    answer(fake, frames(fake))
    assert js.publish_async_pending == 0
    assert len({frame.reply for frame in frames(fake)}) == 3000


@pytest.mark.parametrize("seed", range(40))
async def test_any_history_gives_every_message_one_outcome(fake, clock, seed):
    """Whatever is published, answered, refused and lost in whatever order, each message ends, once and rightly."""
    random = Random(seed)
    client = await fake.connect()
    js = client.jetstream(timeout=1000, publish_window=200)
    pendings, outcomes, done, awaited = [], {}, set(), {}
    for _ in range(120):
        step = random.random()
        if step < 0.6:
            for _ in range(random.choice((1, 2, 30))):
                if js.publish_async_pending >= 200:
                    break
                name = b"%d" % len(pendings)
                options = {"msg_id": name.decode()} if random.random() < 0.1 else {}
                pendings.append(await js.publish_async(f"s.{random.randrange(3)}", name, **options))
                if random.random() < 0.1:
                    awaited[len(pendings) - 1] = asyncio.ensure_future(pendings[-1])
                    asyncio.ensure_future(pendings[-1]).cancel()
        elif step < 0.8:
            await clock.settle()
        elif step < 0.97:
            under_way = [frame for frame in frames(fake) if frame.payload not in done]
            if random.random() < 0.3:
                random.shuffle(under_way)
            under_way = under_way[: random.randrange(40)]
            if under_way:
                is_refused = random.random() < 0.2
                done |= {frame.payload for frame in under_way}
                outcomes |= {frame.payload: is_refused for frame in under_way}
                answer(fake, under_way, REFUSAL if is_refused else b'{"stream":"S","seq":%d}')
        else:
            fake.wire.lose()
            while not client.is_connected:
                await clock.advance(1)
    await clock.settle()
    names = [frame.payload for frame in frames(fake)]
    assert len(set(names)) == len(names)
    rest = [frame for frame in frames(fake) if frame.payload not in done]
    if rest:
        answer(fake, rest)
    assert js.publish_async_pending == 0
    for number, pending in enumerate(pendings):
        assert pending.is_done
        is_refused = outcomes.get(b"%d" % number)
        if pending.error is None:
            assert is_refused is not True
        elif isinstance(pending.error, ApiError):
            assert is_refused is True
        else:
            assert isinstance(pending.error, DisconnectedError)
            assert is_refused is None
    await clock.settle()
    check_awaited(pendings, awaited)
    if any(pending.error is not None for number, pending in enumerate(pendings) if number not in awaited):
        with pytest.raises(PublishWindowError):
            await js.publish_async_complete()
    await js.publish_async_complete()


def check_awaited(pendings, awaited):
    for number, acknowledgement in awaited.items():
        assert acknowledgement.done()
        assert acknowledgement.exception() is pendings[number].error
        if pendings[number].error is None:
            assert acknowledgement.result() == pendings[number].known()
