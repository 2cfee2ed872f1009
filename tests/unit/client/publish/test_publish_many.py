"""Publishing many messages with one call: in runs, with the promises of single messages."""

import asyncio
import random

import pytest

from jetlake.errors import (
    BadSubjectError,
    ConnectionClosedError,
    DecodeError,
    DisconnectedError,
    InvalidOptionError,
    PermissionsError,
    PublishTimeoutError,
    PublishWindowError,
    WrongLastSequenceError,
)

REFUSAL = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"S","seq":0}'
NOBODY = b"NATS/1.0 503\r\n\r\n"


def published(fake, wire=None):
    return [frame for frame in (wire or fake.wire).frames if getattr(frame, "subject", b"").startswith(b"s.")]


def answers(fake, frames, *, refused=()):
    """Return what the server sends for these frames."""
    sid = fake.sid(fake.wire, frames[0].reply)
    texts = [REFUSAL if number in refused else b'{"stream":"S","seq":%d}' % number for number in range(len(frames))]
    return [
        b"MSG %b %b %d\r\n%b\r\n" % (frame.reply, sid, len(text), text)
        for frame, text in zip(frames, texts, strict=True)
    ]


def numbered(count):
    return [(f"s.{number % 3}", b"%d" % number) for number in range(count)]


@pytest.fixture
async def js(fake):
    return (await fake.connect()).jetstream(timeout=5, publish_window=1000)


async def start(clock, js, messages):
    task = asyncio.create_task(js.publish_many(messages))
    await clock.settle()
    return task


async def test_a_failing_async_iterable_leaves_what_it_gave_under_way(fake, clock, js):
    async def failing():
        yield "s.1", b"0"
        yield "s.1", b"1"
        raise ZeroDivisionError

    task = await start(clock, js, failing())
    with pytest.raises(ZeroDivisionError):
        await task
    assert [frame.payload for frame in published(fake)] == [b"0", b"1"]

    async def wrong():
        yield "no message"

    with pytest.raises(InvalidOptionError, match="a message must be"):
        await js.publish_many(wrong())


@pytest.mark.parametrize("call", ["publish", "publish_async"])
async def test_an_option_that_does_not_exist_is_named_with_the_one_that_does(js, call):
    with pytest.raises(TypeError, match="a message has no option 'msgid'; did you mean 'msg_id'"):
        await getattr(js, call)("s.1", b"", msgid="1")


async def test_a_run_is_one_write_and_keeps_its_order(fake, clock, js):
    writes, sent = len(fake.wire.writes), fake.clients[0].statistics.frames_sent
    task = await start(clock, js, numbered(200))
    assert len(fake.wire.writes) == writes + 1
    assert fake.clients[0].statistics.frames_sent == sent + 201  # With the inbox's SUB.
    frames = published(fake)
    assert [(frame.subject, frame.payload) for frame in frames] == [(s.encode(), p) for s, p in numbered(200)]
    assert len({frame.reply for frame in frames}) == 200
    assert js.publish_async_pending == 200
    fake.wire.deliver(b"".join(answers(fake, frames)))
    assert js.publish_async_pending == 0
    assert await task == (200, 0)
    assert fake.errors == []


async def test_an_inbox_prefix_of_any_characters(fake, clock):
    js = (await fake.connect(inbox_prefix="_IN%d%BOX.ü")).jetstream()
    task = await start(clock, js, numbered(20))
    assert {frame.reply[:12] for frame in published(fake)} == {"_IN%d%BOX.ü".encode()}
    fake.wire.deliver(b"".join(answers(fake, published(fake))))
    assert await task == (20, 0)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_few_messages(fake, clock, js, count):
    task = await start(clock, js, numbered(count))
    for text in answers(fake, published(fake)) if count else ():
        fake.wire.deliver(text)
    assert await task == (count, 0)


async def test_acknowledgements_cut_at_every_byte(fake, clock, js):
    task = await start(clock, js, numbered(5))
    for byte in b"".join(answers(fake, published(fake))):
        fake.wire.deliver(bytes([byte]))
    assert await task == (5, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_acknowledgements_in_any_order_and_beside_others(fake, clock, js, seed):
    order = random.Random(seed)
    task = await start(clock, js, numbered(100))
    single = [await js.publish_async("s.single") for _ in range(50)]
    more = await start(clock, js, numbered(100))
    frames = published(fake)
    texts = answers(fake, frames)
    if seed:
        order.shuffle(texts)
    cuts = sorted(order.sample(range(250), 3))
    for begin, end in zip([0, *cuts], [*cuts, 250], strict=True):
        fake.wire.deliver(b"".join(texts[begin:end]))
    assert await task == await more == (100, 0)
    assert all(one.is_done for one in single)
    assert js.publish_async_pending == 0
    await js.publish_async_complete()
    # All room is free again.
    again = await start(clock, js, numbered(1000))
    assert js.publish_async_pending == 1000
    fake.wire.deliver(b"".join(answers(fake, published(fake)[250:])))
    assert await again == (1000, 0)


async def test_refusals_are_named(fake, clock, js):
    task = await start(clock, js, numbered(100))
    fake.wire.deliver(b"".join(answers(fake, published(fake), refused={17, 99})))
    with pytest.raises(
        PublishWindowError, match=r"2 messages .* message 17, on 's\.2': .*wrong last sequence"
    ) as caught:
        await task
    assert caught.value.positions == [17, 99]
    assert [type(error) for _, error in caught.value.failures] == [WrongLastSequenceError] * 2
    # Who is told by the exception is told once.
    assert fake.errors == []
    await js.publish_async_complete()


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("answer", [b"hello", b'{"x":1}', b'"duplicate"', b'{"stream":"S"}'])
async def test_an_answer_that_is_no_acknowledgement_is_a_failure(fake, clock, js, answer, count):
    task = await start(clock, js, numbered(count))
    frames = published(fake)
    texts = answers(fake, frames)
    texts[0] = b"MSG %b %b %d\r\n%b\r\n" % (frames[0].reply, texts[0].split()[2], len(answer), answer)
    fake.wire.deliver(b"".join(texts))
    with pytest.raises(PublishWindowError) as caught:
        await task
    assert caught.value.positions == [0]
    assert type(caught.value.failures[0][1]) is DecodeError
    assert js.publish_async_pending == 0


async def test_options_of_a_message(fake, clock, js):
    messages = [("s.1", b"1"), ("s.1", b"2", {"msg_id": "2"}), ["s.1", b"3", None], ("s.1", bytearray(b"4"))]
    task = await start(clock, js, messages)
    frames = published(fake)
    assert [frame.payload for frame in frames] == [b"1", b"2", b"3", b"4"]
    assert [b"Nats-Msg-Id: 2" in frame.header for frame in frames] == [False, True, False, False]
    for frame in frames:
        mark = b',"duplicate":true' if frame.header else b""
        fake.reply(fake.wire, frame.reply, b'{"stream":"S","seq":1%b}' % mark)
    assert await task == (4, 1)


async def test_a_full_window_holds_the_publisher_back(fake, clock):
    js = (await fake.connect()).jetstream(publish_window=10)
    task = await start(clock, js, iter(numbered(25)))
    acknowledged = 0
    while not task.done():
        frames = published(fake)[acknowledged:]
        assert 1 <= len(frames) <= 10
        fake.wire.deliver(answers(fake, frames)[0])
        acknowledged += 1
        await clock.settle()
    assert await task == (25, 0)


async def test_the_room_beside_messages_that_are_stuck_is_used(fake, clock):
    js = (await fake.connect()).jetstream(publish_window=10)
    for _ in range(6):
        await js.publish_async("s.stuck")
    task = await start(clock, js, numbered(10))
    for number in range(6, 16, 4):
        frames = published(fake)[number:]
        assert len(frames) == min(4, 16 - number)
        fake.wire.deliver(b"".join(answers(fake, frames)))
        await clock.settle()
    assert await task == (10, 0)
    assert [frame.payload for frame in published(fake)[6:]] == [b"%d" % number for number in range(10)]


def endless(subject):
    while True:
        yield subject, b""


async def publish_singles(js):
    for subject, payload in endless("s.single"):
        await js.publish_async(subject, payload)


@pytest.mark.parametrize("is_single", [False, True])
async def test_publishers_of_one_window_take_turns(fake, clock, is_single):
    js = (await fake.connect()).jetstream(publish_window=20)
    first = asyncio.create_task(publish_singles(js) if is_single else js.publish_many(endless("s.first")))
    await clock.settle()
    second = asyncio.create_task(js.publish_many(endless("s.second")))
    third = asyncio.create_task(publish_singles(js))
    acknowledged = 0
    for _ in range(40):
        await clock.settle()
        frames = published(fake)[acknowledged:][:5]
        acknowledged += len(frames)
        fake.wire.deliver(b"".join(answers(fake, frames)))
    subjects = [frame.subject for frame in published(fake)]
    assert min(map(subjects.count, set(subjects))) >= 20
    assert len(set(subjects)) == 3 - is_single
    # Those who leave the line let the others on.
    for task in (first, second):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    before = published(fake)[acknowledged:]
    fake.wire.deliver(b"".join(answers(fake, before)))
    await clock.settle()
    assert {frame.subject for frame in published(fake)[acknowledged + len(before) :]} == {b"s.single"}
    third.cancel()


async def test_messages_that_come_slowly_are_sent_as_they_come(fake, clock, js):
    sent_before = []

    def slowly():
        for message in numbered(6):
            sent_before.append(len(published(fake)))
            clock._manual_s += 1
            yield message

    task = await start(clock, js, slowly())
    assert sent_before == list(range(6))
    fake.wire.deliver(b"".join(answers(fake, published(fake))))
    assert await task == (6, 0)


async def test_a_run_leaves_single_messages_the_rest_of_the_window(fake, clock, js):
    task = await start(clock, js, numbered(400))
    second = await start(clock, js, numbered(400))
    third = await start(clock, js, numbered(199))
    await js.publish_async("s.1")
    waiting = asyncio.create_task(js.publish_async("s.2"))
    await clock.settle()
    assert not waiting.done()
    fake.wire.deliver(answers(fake, published(fake))[0])
    await clock.advance(0.01)
    assert waiting.done()
    fake.wire.deliver(b"".join(answers(fake, published(fake))[1:]))
    assert await asyncio.gather(task, second, third) == [(400, 0), (400, 0), (199, 0)]


@pytest.mark.parametrize("is_backwards", [False, True])
async def test_bytes_are_free_again(fake, clock, is_backwards):
    js = (await fake.connect()).jetstream(publish_window_bytes=35_000)
    for number in range(3):
        task = await start(clock, js, [("s.1", b"x" * 1000)] * 40)
        texts = answers(fake, published(fake)[40 * number :])
        assert len(texts) == 40  # A window with room takes a whole run.
        waiting = asyncio.create_task(js.publish_async("core.full"))
        await clock.settle()
        assert not waiting.done()
        waiting.cancel()
        for text in reversed(texts) if is_backwards else texts:
            fake.wire.deliver(text)
        assert await task == (40, 0)


async def test_large_messages_fill_the_window_one_by_one(fake, clock):
    js = (await fake.connect()).jetstream(publish_window_bytes=2_000_000)
    task = await start(clock, js, (("s.1", b"x" * 500_000) for _ in range(8)))
    assert len(published(fake)) == 4
    for number in range(8):
        fake.wire.deliver(answers(fake, published(fake)[number:])[0])
        await clock.settle()
    assert await task == (8, 0)


async def test_no_stream_yet_is_tried_again(fake, clock, js):
    task = await start(clock, js, numbered(10))
    fake.reply(fake.wire, published(fake)[4].reply, b"", header=NOBODY)
    await clock.advance(0.25)
    frames = published(fake)
    assert frames[10].payload == b"4"
    fake.wire.deliver(b"".join(answers(fake, frames[:10])))
    assert await task == (10, 0)


async def test_acknowledgements_that_stay_away(fake, clock, js):
    task = await start(clock, js, numbered(10))
    fake.wire.deliver(b"".join(answers(fake, published(fake))[:6]))
    await clock.advance(2.5)
    assert not task.done()
    await clock.advance(2.5)
    with pytest.raises(PublishWindowError) as caught:
        await task
    assert caught.value.positions == [6, 7, 8, 9]
    assert {type(error) for _, error in caught.value.failures} == {PublishTimeoutError}
    assert len(published(fake)) == 10  # Without an id nothing is sent twice.


async def test_a_lost_connection_fails_what_is_in_doubt(fake, clock, js):
    messages = [*numbered(8), ("s.1", b"8", {"msg_id": "8"})]
    task = await start(clock, js, messages)
    fake.wire.deliver(b"".join(answers(fake, published(fake))[:5]))
    fake.wire.lose()
    await clock.advance(5)
    (again,) = published(fake)
    assert again.payload == b"8"
    fake.reply(fake.wire, again.reply, b'{"stream":"S","seq":9}')
    with pytest.raises(PublishWindowError) as caught:
        await task
    assert caught.value.positions == [0, 1, 2, 3, 4, 5, 6, 7][5:]
    assert {type(error) for _, error in caught.value.failures} == {DisconnectedError}


async def test_a_run_that_was_not_written_is_not_sent_later(fake, clock, js):
    await js.publish_async("s.first")
    await clock.settle()
    task = asyncio.create_task(js.publish_many(numbered(8)))
    await asyncio.sleep(0)  # The run waits for the end of the turn.
    fake.wire.lose()
    await clock.advance(5)
    with pytest.raises(PublishWindowError):
        await task
    assert published(fake) == []


async def test_without_a_server_messages_wait_for_the_next(fake, clock, js):
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    task = await start(clock, js, numbered(20))
    fake.is_down = False
    await clock.advance(5)
    frames = published(fake)
    assert [frame.payload for frame in frames] == [b"%d" % number for number in range(20)]
    fake.wire.deliver(b"".join(answers(fake, frames)))
    assert await task == (20, 0)


async def test_an_iterable_that_raises(fake, clock, js):
    def source():
        yield from numbered(7)
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        await js.publish_many(source())
    await clock.settle()
    frames = published(fake)
    assert len(frames) == 7
    fake.wire.deliver(b"".join(answers(fake, frames, refused={3})))
    assert [type(error) for error in fake.errors] == [PublishWindowError]
    with pytest.raises(PublishWindowError, match="1 messages"):
        await js.publish_async_complete()


async def test_what_a_cancelled_call_leaves_behind_is_told(fake, clock, js):
    task = await start(clock, js, numbered(20))
    frames = published(fake)
    texts = answers(fake, frames, refused={2, 15})
    fake.wire.deliver(b"".join(texts[:10]))
    assert fake.errors == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Of those before, and of those after.
    assert len(fake.errors) == 1
    fake.wire.deliver(b"".join(texts[10:]))
    assert len(fake.errors) == 2
    assert js.publish_async_pending == 0
    with pytest.raises(PublishWindowError, match="2 messages"):
        await js.publish_async_complete()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (("s 1", b""), BadSubjectError),
        (("s.\ud800", b""), BadSubjectError),
        (("s.1", "text"), InvalidOptionError),
        (("s.1", b"x" * 2_000_000), InvalidOptionError),
        (("s.1",), InvalidOptionError),
        ("s.1", InvalidOptionError),
        (("s.1", b"", "options"), InvalidOptionError),
        ((7, b""), InvalidOptionError),
        (([], b""), InvalidOptionError),
        (("s.1", b"", {"colour": "red"}), TypeError),
        (("s.1", b"", {"retries": "2"}), InvalidOptionError),
    ],
)
async def test_a_message_that_cannot_be_sent_is_named(fake, clock, js, bad, error):
    with pytest.raises(error) as caught:
        await js.publish_many([*numbered(9), bad, *numbered(3)])
    assert caught.value.__notes__ == ["It is message 9 of publish_many, counted from 0."]
    await clock.settle()
    assert len(published(fake)) == 9


async def test_a_denied_subject_and_a_closed_client(fake, clock, js):
    task = await start(clock, js, numbered(6))
    fake.wire.deliver(b"-ERR 'Permissions Violation for Publish to \"s.1\"'\r\n")
    fake.wire.deliver(b"".join(text for number, text in enumerate(answers(fake, published(fake))) if number % 3 != 1))
    with pytest.raises(PublishWindowError) as caught:
        await task
    assert caught.value.positions == [1, 4]
    assert {type(error) for _, error in caught.value.failures} == {PermissionsError}
    task = await start(clock, js, numbered(6))
    await fake.clients[0].close()
    with pytest.raises(PublishWindowError) as caught:
        await task
    assert {type(error) for _, error in caught.value.failures} == {ConnectionClosedError}
    with pytest.raises(ConnectionClosedError):
        await js.publish_many(numbered(6))


async def test_draining_waits_for_a_run(fake, clock, js):
    task = await start(clock, js, numbered(6))
    draining = asyncio.create_task(fake.clients[0].drain())
    await clock.settle()
    assert not draining.done()
    fake.wire.deliver(b"".join(answers(fake, published(fake))))
    await draining
    assert await task == (6, 0)
