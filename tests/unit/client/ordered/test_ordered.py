"""Ordered reads against a server that is a script: gaps, lost consumers, broken connections."""

import asyncio

import pytest

from jetlake.client.ordered.watch import Watch
from jetlake.errors import (
    ApiError,
    PullStatusError,
    RequestTimeoutError,
    SequenceGapError,
    StreamNotFoundError,
    StreamReplacedError,
)
from jetlake.model.encoding.codec import decode
from jetlake.model.requests import ConsumerCreateRequest
from jetlake.protocol.frames import Pub
from tests.support.fake_server import consumer_info, delivery, status


class Creator:
    """Answers the creation of consumers and remembers them."""

    def __init__(self, fake):
        self.fake = fake
        self.created = []
        self.refusals = []
        self.pending = 0
        fake.heard_before = fake.heard
        fake.heard = self.heard
        self.serve_stream(last_seq=1000)

    def serve_stream(self, last_seq, created="2026-11-14T00:00:00Z"):
        self.fake.answers["$JS.API.STREAM.INFO.S"] = {
            "type": "io.nats.jetstream.api.v1.stream_info_response",
            "config": {"name": "S"},
            "created": created,
            "state": {"messages": last_seq, "first_seq": 1, "last_seq": last_seq, "consumer_count": 0, "bytes": 0},
        }

    def heard(self, wire, frame):
        if isinstance(frame, Pub) and frame.subject.startswith(b"$JS.API.CONSUMER.CREATE.S."):
            name = frame.subject.decode().split(".")[5]
            if self.refusals:
                error = self.refusals.pop(0)
                if error is None:
                    return
                body = {"type": "io.nats.jetstream.api.v1.consumer_create_response", "error": error}
            else:
                request = decode(ConsumerCreateRequest, frame.payload)
                self.created.append(request.config)
                body = consumer_info("S", name, "create", delivered=(request.config.opt_start_seq or 1) - 1)
                body["num_pending"] = self.pending
            self.fake.answers[frame.subject.decode()] = body
        self.fake.heard_before(wire, frame)

    @property
    def name(self):
        return self.created[-1].name

    def deliver(self, *numbers, first_stream_seq=None):
        frames = [
            delivery(
                number,
                b"%d" % (number if first_stream_seq is None else first_stream_seq + number - numbers[0]),
                stream_seq=None if first_stream_seq is None else first_stream_seq + number - numbers[0],
                consumer=self.name,
            )
            for number in numbers
        ]
        self.fake.deliver(self.fake.pull_reply("S", self.name), *frames)


@pytest.fixture
async def creator(fake):
    return Creator(fake)


@pytest.fixture
async def stream(fake, creator):
    from jetlake.client.streams.stream import stream_handle

    client = await fake.connect()
    return stream_handle(client.jetstream().api, "S")


async def take(messages, count):
    return [(await messages.next()).metadata.stream_seq for _ in range(count)]


async def test_the_consumer_that_is_made(fake, clock, creator, stream):
    async with stream.ordered(filter_subject="s.1").consume():
        await clock.settle()
        (config,) = creator.created
        assert config.ack_policy == "none"
        assert config.mem_storage
        assert config.num_replicas == 1
        assert config.durable_name == ""
        assert config.filter_subject == "s.1"
        assert config.inactive_threshold == 300_000_000_000
        assert fake.pulls("S", config.name)[0].batch == 1000


async def test_a_gap_makes_a_new_consumer_behind_the_last_message(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2, 3)
        old_inbox = fake.pull_reply("S", creator.name)
        old_name = creator.name
        creator.deliver(5, 6)
        await clock.settle()
        assert len(creator.created) == 2
        assert creator.created[1].opt_start_seq == 4
        assert [type(error) for error in fake.errors] == [SequenceGapError]
        assert await take(messages, 3) == [1, 2, 3]
        # What still comes from the old one is nobody's; the old one is deleted.
        assert fake.sid(fake.wire, old_inbox) is None
        assert fake.published(f"$JS.API.CONSUMER.DELETE.S.{old_name}")
        creator.deliver(1, 2, first_stream_seq=4)
        assert await take(messages, 2) == [4, 5]
        assert messages.resets == 1


async def test_a_heartbeat_that_knows_of_more_is_a_gap(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        inbox = fake.pull_reply("S", creator.name)
        fake.deliver(inbox, status(100, "Idle Heartbeat", inbox, Nats_Last_Consumer=3, Nats_Last_Stream=3))
        await clock.settle()
        assert len(creator.created) == 2
        assert creator.created[1].opt_start_seq == 2
        creator.deliver(1, 2, first_stream_seq=2)
        assert await take(messages, 3) == [1, 2, 3]


async def test_a_heartbeat_counts_the_messages_before_it_in_its_read(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        inbox = fake.pull_reply("S", creator.name)
        heartbeat = status(100, "Idle Heartbeat", inbox, Nats_Last_Consumer=2, Nats_Last_Stream=2)
        # As a client reads that was kept from reading for a while.
        fake.deliver(inbox, delivery(1), delivery(2), heartbeat, delivery(3))
        await clock.settle()
        assert len(creator.created) == 1
        assert await take(messages, 3) == [1, 2, 3]


async def test_a_missed_heartbeat_makes_a_new_consumer(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2)
        await clock.advance(10)
        assert len(creator.created) == 2
        assert creator.created[1].opt_start_seq == 3
        creator.deliver(1, first_stream_seq=3)
        assert await take(messages, 3) == [1, 2, 3]


@pytest.mark.parametrize("words", ["Consumer Deleted", "Leadership Change"])
async def test_a_consumer_that_is_gone_is_replaced(fake, clock, creator, stream, words):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        fake.deliver(fake.pull_reply("S", creator.name), status(409, words))
        await clock.settle()
        assert len(creator.created) == 2
        creator.deliver(1, first_stream_seq=2)
        assert await take(messages, 2) == [1, 2]


async def test_a_new_connection_makes_a_new_consumer(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2)
        fake.is_down = True
        fake.wire.lose()
        await clock.advance(300)
        fake.is_down = False
        await clock.advance(10)
        assert len(creator.created) == 2
        assert creator.created[1].opt_start_seq == 3
        creator.deliver(1, first_stream_seq=3)
        assert await take(messages, 3) == [1, 2, 3]


async def test_before_the_first_message_it_keeps_its_place(fake, clock, creator, stream):
    async with stream.ordered(deliver_policy="by_start_sequence", opt_start_seq=50).consume():
        await clock.settle()
        fake.wire.lose()
        await clock.advance(10)
        assert [config.opt_start_seq for config in creator.created] == [50, 50]


async def test_a_server_that_is_not_ready_is_asked_again(fake, clock, creator, stream):
    not_ready = {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}
    creator.refusals = [not_ready, not_ready, None]
    async with stream.ordered().consume() as messages:
        for _ in range(10):
            await clock.advance(1)
        assert len(creator.created) == 1
        creator.deliver(1)
        assert await take(messages, 1) == [1]


NOT_READY = {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}


async def test_a_connection_that_was_dropped_in_silence_is_replaced(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        fake.wire.is_cut = fake.is_down = True
        await clock.advance(10)
        assert fake.wire.alive
        await clock.advance(2)
        assert not fake.wire.alive
        for _ in range(100):
            await clock.advance(1)
        fake.is_down = False
        for _ in range(10):
            await clock.advance(1)
        creator.deliver(1, first_stream_seq=2)
        assert await take(messages, 2) == [1, 2]


async def test_a_consumer_that_turns_out_to_be_gone_during_the_check_is_replaced(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        fake.answer_pings = False
        await clock.advance(10)
        clock._manual_s += 0.5
        fake.deliver(fake.pull_reply("S", creator.name), status(409, "Consumer Deleted"))
        fake.wire.deliver(b"PONG\r\n")
        fake.answer_pings = True
        await clock.settle()
        assert len(creator.created) == 2
        creator.deliver(1, first_stream_seq=2)
        assert await take(messages, 2) == [1, 2]


@pytest.mark.parametrize("refusal", [NOT_READY, None], ids=["no leader", "silence"])
async def test_a_read_that_has_begun_waits_for_a_leader_without_end(fake, clock, creator, stream, refusal):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        creator.refusals = [refusal] * 100_000
        for _ in range(300):
            await clock.advance(1)
        assert not messages.is_stopped
        assert 3 <= len(fake.errors) <= 5
        creator.refusals = []
        for _ in range(10):
            await clock.advance(1)
        creator.deliver(1, first_stream_seq=2)
        assert await take(messages, 2) == [1, 2]


async def test_a_read_that_cannot_begin_says_so_after_a_minute(fake, clock, creator, stream):
    creator.refusals = [NOT_READY] * 100_000
    async with stream.ordered().consume() as messages:
        for _ in range(80):
            await clock.advance(1)
        assert messages.is_stopped
        with pytest.raises(ApiError, match="temporarily unavailable"):
            await messages.next()


async def test_what_there_was_is_read_though_the_stream_has_no_leader_at_its_end(fake, clock, creator, stream):
    watch = Watch("S", stream.ordered(), lambda message: message.payload, stream.info, one_per_subject=True)
    creator.pending = 2
    task = asyncio.create_task(watch.current())
    await clock.settle()
    info = fake.answers["$JS.API.STREAM.INFO.S"]
    fake.answers["$JS.API.STREAM.INFO.S"] = {"type": info["type"], "error": NOT_READY}
    name = creator.name
    fake.answers[f"$JS.API.CONSUMER.INFO.S.{name}"] = {
        "type": "io.nats.jetstream.api.v1.consumer_info_response",
        "error": NOT_READY,
    }
    # The pending count says that this is the last message, and so few came that it is not believed.
    fake.deliver(fake.pull_reply("S", name), delivery(1, b"1", consumer=name))
    for _ in range(30):
        await clock.advance(1)
    assert not task.done()
    fake.answers["$JS.API.STREAM.INFO.S"] = info
    for _ in range(10):
        fake.serve_consumer("S", creator.name)
        await clock.advance(1)
    assert await task == [b"1"]
    await watch.stop()


async def test_a_stream_that_is_gone_ends_it(fake, clock, creator, stream):
    creator.refusals = [{"code": 404, "err_code": 10059, "description": "stream not found"}]
    async with stream.ordered().consume() as messages:
        await clock.settle()
        with pytest.raises(StreamNotFoundError):
            await messages.next()


@pytest.mark.parametrize(
    "stream_now",
    [{"last_seq": 2}, {"last_seq": 1000, "created": "2026-11-15T00:00:00.000000001Z"}],
    ids=["shorter", "younger"],
)
async def test_a_stream_that_was_replaced_ends_it(fake, clock, creator, stream, stream_now):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2, 3)
        creator.serve_stream(**stream_now)
        fake.wire.lose()
        await clock.advance(1)
        assert await take(messages, 3) == [1, 2, 3]
        with pytest.raises(StreamReplacedError, match="last sequence read: 3"):
            await messages.next()
        assert fake.published(f"$JS.API.CONSUMER.DELETE.S.{creator.name}")


async def test_who_may_not_ask_for_the_stream_reads_on(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        del fake.answers["$JS.API.STREAM.INFO.S"]
        fake.wire.lose()
        await clock.advance(1)
        fake.wire.deliver(b"-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.INFO.S\"'\r\n")
        await clock.settle()
        creator.deliver(1, first_stream_seq=2)
        assert await take(messages, 2) == [1, 2]


async def test_a_consumer_that_is_refused_ends_it(fake, clock, creator, stream):
    creator.refusals = [{"code": 400, "err_code": 10094, "description": "bad start"}]
    async with stream.ordered().consume() as messages:
        await clock.settle()
        with pytest.raises(Exception, match="bad start"):
            await messages.next()


async def test_terminal_statuses_end_it(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        fake.deliver(fake.pull_reply("S", creator.name), status(400, "Bad Request"))
        with pytest.raises(PullStatusError):
            await messages.next()


async def test_the_connection_breaks_while_the_consumer_is_made(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        creator.refusals = [None]
        fake.wire.lose()
        await clock.advance(1)
        assert len(creator.created) == 1
        fake.wire.lose()
        await clock.settle()
        await clock.advance(1)
        assert len(creator.created) == 2
        creator.deliver(1, first_stream_seq=2)
        assert await take(messages, 2) == [1, 2]


async def test_the_consumer_is_deleted_at_the_end(fake, clock, creator, stream):
    async with stream.ordered().consume():
        await clock.settle()
        name = creator.name
    await clock.settle()
    assert fake.published(f"$JS.API.CONSUMER.DELETE.S.{name}")


async def test_nothing_is_acknowledged(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2)
        (await messages.next()).ack()
    await clock.settle()
    assert not any(getattr(frame, "subject", b"").startswith(b"$JS.ACK") for frame in fake.wire.frames)


async def test_fetches_go_on_where_the_last_one_ended(fake, clock, creator, stream):
    ordered = stream.ordered()

    async def fetch():
        return [message.metadata.stream_seq for message in await ordered.fetch(2)]

    task = asyncio.create_task(fetch())
    await clock.settle()
    creator.deliver(1, 2)
    assert await task == [1, 2]
    task = asyncio.create_task(fetch())
    await clock.settle()
    # One is missing, so a new consumer begins at three and the fetch is tried again there.
    creator.deliver(4, 5)
    await clock.settle()
    assert creator.created[-1].opt_start_seq == 3
    creator.deliver(1, 2, first_stream_seq=3)
    assert await task == [3, 4]
    assert len(creator.created) == 2


async def test_a_fetch_survives_a_lost_connection(fake, clock, creator, stream):
    ordered = stream.ordered()
    task = asyncio.create_task(ordered.next())
    await clock.settle()
    fake.wire.lose()
    await clock.advance(1)
    creator.deliver(1)
    assert (await task).metadata.stream_seq == 1
    assert len(creator.created) == 2


# In a cluster


async def test_an_attempt_without_an_answer_is_repeated_under_another_name(fake, clock, creator, stream):
    """The consumer of the first attempt may be on a server that is gone."""
    creator.refusals = [None, None]
    async with stream.ordered().consume() as messages:
        for _ in range(12):
            await clock.advance(1)
        creator.deliver(1)
        assert (await messages.next()).metadata.stream_seq == 1
    attempts = [frame.subject.decode().split(".")[5] for frame in fake.wire.frames if is_creation(frame)]
    assert len(attempts) == len(set(attempts)) == 3
    deleted = [frame.subject.decode().split(".")[5] for frame in fake.wire.frames if is_deletion(frame)]
    # Each twice: a server may carry out the first request before the one that creates the consumer.
    assert [deleted.count(name) for name in attempts[:2]] == [2, 2]


async def test_a_consumer_that_lost_its_state_with_its_server_is_replaced_in_silence(fake, clock, creator, stream):
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2, 3)
        creator.deliver(1)
        await clock.settle()
        assert len(creator.created) == 2
        creator.deliver(1, first_stream_seq=4)
        assert [(await messages.next()).metadata.stream_seq for _ in range(4)] == [1, 2, 3, 4]
    assert fake.errors == []


def is_creation(frame):
    return isinstance(frame, Pub) and frame.subject.startswith(b"$JS.API.CONSUMER.CREATE.S.")


def is_deletion(frame):
    return isinstance(frame, Pub) and frame.subject.startswith(b"$JS.API.CONSUMER.DELETE.S.")


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_new_leader_may_be_behind_for_a_moment(fake, clock, creator, stream, is_replaced):
    creator.serve_stream(last_seq=2)
    info = fake.answers["$JS.API.STREAM.INFO.S"]
    info["cluster"] = {"name": "C", "leader": "n1", "replicas": [{"name": "n2", "current": True, "active": 0}]}
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1, 2, 3)
        for _ in range(3):
            await messages.next()
        fake.wire.lose()
        await clock.advance(2)
        assert not messages.is_stopped
        if is_replaced:
            for _ in range(60):
                await clock.advance(0.1)
            with pytest.raises(StreamReplacedError):
                await messages.next()
        else:
            info["state"]["last_seq"] = 3
            await clock.advance(0.1)
            creator.deliver(1, first_stream_seq=4)
            assert (await messages.next()).metadata.stream_seq == 4


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_consumer_whose_server_left_the_cluster_is_replaced_at_once(fake, clock, creator, stream, is_lost):
    info = '{"headers":true,"max_payload":1048576,"connect_urls":[%s]}'
    fake.wire.deliver(b"INFO %b\r\n" % (info % '"a:1","b:1"').encode())
    async with stream.ordered().consume() as messages:
        await clock.settle()
        creator.deliver(1)
        await messages.next()
        if not is_lost:
            fake.answers[f"$JS.API.CONSUMER.INFO.S.{creator.name}"] = {
                **consumer_info("S", creator.name),
                "num_waiting": 1,
                "delivered": {"consumer_seq": 1, "stream_seq": 1},
            }
        fake.wire.deliver(b"INFO %b\r\n" % (info % '"a:1"').encode())
        for _ in range(3):
            await clock.advance(1)
        assert len(creator.created) == (2 if is_lost else 1)


async def test_a_watch_keeps_its_timeout_though_changes_come_that_nobody_wants(stream, creator, clock):
    watch = Watch("S", stream.ordered(), lambda message: None, stream.info, one_per_subject=True)
    change = asyncio.create_task(watch.next(1))
    await clock.settle()
    for number in (1, 2):
        assert not change.done()
        await clock.advance(0.6)
        creator.deliver(number)
        await clock.settle()
    with pytest.raises(RequestTimeoutError, match="no change of 'S' within 1 s"):
        change.result()
    await watch.stop()
