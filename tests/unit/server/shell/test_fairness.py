"""Nobody waits for somebody else: what one connection may have done in a turn, counted in frames, bytes and ticks."""

import asyncio

import pytest

PUBLISH = b"PUB a 1\r\nx\r\n"


class Ticks:
    """A clock that moves by the same step whenever it is looked at."""

    def __init__(self, step_s=0.0):
        self.step_s = step_s
        self._now_s = 1.0

    def __call__(self):
        self._now_s += self.step_s
        return self._now_s


@pytest.fixture
async def server(make_server):
    server = make_server(max_pending=4_000_000)
    server.engine_loop.ticks = Ticks()
    return server


async def turn():
    """One turn of the loop: what was scheduled before runs, what it schedules does not."""
    await asyncio.sleep(0)


async def turns_until(condition):
    for _ in range(10_000):
        if condition():
            return
        await turn()
    raise AssertionError("it never came")


async def test_a_share_is_bounded_by_frames(server, connect):
    client = await connect(server).hello()
    client.send(PUBLISH * 2000)
    assert client.connection.in_msgs == 512
    assert not client.transport.is_reading
    await turns_until(lambda: client.transport.is_reading)
    assert client.connection.in_msgs == 2000


async def test_a_share_is_bounded_by_time(server, connect):
    client = await connect(server).hello()
    server.engine_loop.ticks.step_s = 0.0004
    client.send(PUBLISH * 2000)
    assert 64 <= client.connection.in_msgs <= 3 * 64  # in groups of lines; the third look at the clock is past 1 ms
    await turns_until(lambda: client.transport.is_reading)
    assert client.connection.in_msgs == 2000


class Sink:
    """Receives what it captures, as a stream does."""

    count = 0

    def receive(self, subject, reply, header, payload, origin):
        self.count += 1


WITH_HEADER = b"HPUB %b 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
LONG = {
    "request": b"PUB $JS.API.INFO _INBOX.x 0\r\n\r\n",
    "fan-out": PUBLISH,
    "header": WITH_HEADER % b"c",
    "header, to several": WITH_HEADER % b"b",
}


@pytest.mark.parametrize("line", LONG.values(), ids=LONG)
async def test_the_clock_is_looked_at_after_each_message_that_may_take_long(server, connect, line):
    client, reader = await connect(server).hello(), await connect(server).hello()
    reader.send(b"".join(b"SUB a %d\r\n" % sid for sid in range(64)) + b"SUB b 64\r\n")
    for subject in (b"b", b"c"):
        server.accounts["$G"].capture(subject, Sink())
    server.engine_loop.ticks.step_s = 0.0004
    await turn()
    client.send(line * 10)
    assert client.connection.in_msgs == 3
    await turns_until(lambda: client.transport.is_reading)
    assert client.connection.in_msgs == 10


@pytest.mark.parametrize("pedantic", [False, True], ids=["as a run", "one by one"])
async def test_a_run_of_acknowledgements_counts_as_its_messages(server, connect, pedantic):
    client = await connect(server).hello(pedantic=pedantic)
    client.send(b"".join(b"PUB $JS.ACK.S.C.1.%d.%d.1.0 4\r\n+ACK\r\n" % (number, number) for number in range(2000)))
    assert client.connection.in_msgs == 512
    assert not client.transport.is_reading
    await turns_until(lambda: client.transport.is_reading)
    assert (client.connection.in_msgs, client.connection.in_bytes) == (2000, 8000)


async def test_a_read_that_was_full_is_one_turns_work(server, connect):
    client = await connect(server).hello()
    client.send(b"PUB a 299000\r\n" + b"x" * 299_000 + b"\r\n")
    assert client.connection.in_msgs == 1
    assert not client.transport.is_reading
    await turns_until(lambda: client.transport.is_reading)


async def test_a_ping_does_not_wait_for_the_flood_of_another(server, connect):
    flood, other = await connect(server).hello(), await connect(server).hello()
    server.engine_loop.ticks.step_s = 0.0001
    flood.send(PUBLISH * 20_000)
    other.send(b"PING\r\n")
    await turns_until(lambda: other.transport.written)
    assert other.transport.written == [b"PONG\r\n"]
    assert flood.connection.in_msgs < 2000


async def test_a_subscriber_gets_the_beginning_before_the_end_is_read(server, connect):
    reader, writer = await connect(server).hello(), await connect(server).hello()
    server.engine_loop.ticks.step_s = 0.0001
    reader.send(b"SUB a 1\r\n")
    writer.send(PUBLISH * 20_000)
    await turns_until(lambda: reader.transport.written)
    assert writer.connection.in_msgs < 2000
    await turns_until(lambda: writer.transport.is_reading)
    await turns_until(lambda: len(b"".join(reader.transport.written)) == 20_000 * len(b"MSG a 1 1\r\nx\r\n"))


async def test_busy_connections_take_turns(server, connect):
    clients = [await connect(server).hello() for _ in range(5)]
    server.engine_loop.ticks.step_s = 0.0001
    for client in clients:
        client.send(PUBLISH * 20_000)
    lead = 0
    while not clients[0].transport.is_reading:
        counts = [client.connection.in_msgs for client in clients]
        lead = max(lead, max(counts) - min(counts))
        await turn()
    assert lead <= 2 * 512  # one share at once, and one in the first round
    await turns_until(lambda: all(client.connection.in_msgs == 20_000 for client in clients))


async def test_small_requests_go_first_while_the_turn_has_time_and_wait_when_it_has_not(server, connect):
    clients = [await connect(server).hello() for _ in range(3)]
    server.engine_loop.ticks.step_s = 0.0005
    for client in clients:
        client.send(PUBLISH * 64)
    handled = [client.connection.in_msgs for client in clients]
    assert handled[0] == 64
    assert handled[-1] == 0
    await turns_until(lambda: all(client.connection.in_msgs == 64 for client in clients))


async def test_many_writers_are_written_to_in_more_than_one_turn(server, connect):
    readers = [await connect(server).hello() for _ in range(30)]
    for reader in readers:
        reader.send(b"SUB a 1\r\n")
    writer = await connect(server).hello()
    server.engine_loop.ticks.step_s = 0.001
    writer.send(PUBLISH)
    await turns_until(lambda: readers[0].transport.written)
    assert not readers[-1].transport.written
    await turns_until(lambda: all(reader.transport.written for reader in readers))


# Pressure


class Uncounted(list):
    """A queue that must not be gone through."""

    def __iter__(self):
        raise AssertionError("the whole queue was looked at")


async def test_what_waits_is_counted_by_addition(server, connect):
    slow, writer = await connect(server).hello(), await connect(server).hello()
    slow.send(b"SUB a 1\r\n")
    await turn()
    slow.connection.pause_writing()
    slow.connection.writer._output = Uncounted()
    for _ in range(35):
        await writer.send_when_read(b"PUB a 100000\r\n" + b"x" * 100_000 + b"\r\n")
    assert slow.connection.pending_bytes() == 35 * len(b"MSG a 1 100000\r\n\r\n") + 3_500_000
    assert server.statistics.stalled > 0


async def test_a_long_queue_leaves_in_pieces(server, connect, clock):
    slow, writer = await connect(server).hello(), await connect(server).hello()
    slow.send(b"SUB a 1\r\n")
    await slow.take()
    slow.connection.pause_writing()
    for _ in range(35):
        await writer.send_when_read(b"PUB a 100000\r\n" + b"x" * 100_000 + b"\r\n")
    clock.advance(9)
    slow.connection.resume_writing()
    (piece,) = slow.transport.written
    assert 1_000_000 < len(piece) < 1_200_000
    slow.connection.pause_writing()  # the socket is full again, and its client has read something
    clock.advance(9)
    assert not slow.transport.aborted
    slow.connection.resume_writing()
    await turns_until(lambda: not slow.connection.pending_bytes())
    assert b"".join(slow.transport.written).count(b"MSG a 1 ") == 35
    assert not slow.connection.congested


async def fill_up(client, subject=b"a"):
    while client.transport.is_reading:
        client.send(b"PUB %b 100000\r\n%b\r\n" % (subject, b"x" * 100_000))


async def test_a_publisher_that_fills_its_own_queue_is_stalled(server, connect):
    client = await connect(server).hello()
    client.send(b"SUB a 1\r\n")
    await turn()
    client.connection.pause_writing()
    await fill_up(client)
    assert server.statistics.stalled == 1
    assert not client.transport.aborted


async def test_a_read_that_is_resumed_does_not_undo_the_stall(server, connect):
    client = await connect(server).hello()
    client.send(b"SUB a 1\r\n")
    await turn()
    client.connection.pause_writing()
    await fill_up(client)
    client.connection.checked()
    for _ in range(5):
        await turn()
    assert not client.transport.is_reading
    client.send(PUBLISH)  # what the socket had given before it was paused
    for _ in range(5):
        await turn()
    handled = client.connection.in_msgs
    await asyncio.sleep(0.02)
    assert client.connection.in_msgs == handled  # its own queue comes first
    client.connection.resume_writing()
    async with asyncio.timeout(10):
        while client.connection.in_msgs == handled:
            await asyncio.sleep(0.001)


async def test_a_publisher_to_others_is_not_stalled(server, connect):
    slow, writer, bystander = [await connect(server).hello() for _ in range(3)]
    slow.send(b"SUB a 1\r\n")
    await turn()
    slow.connection.pause_writing()
    await fill_up(writer)
    assert server.statistics.stalled == 1
    bystander.send(b"PUB b 1\r\nx\r\n")
    assert server.statistics.stalled == 1
    assert bystander.transport.is_reading


async def test_a_client_with_many_subscriptions_leaves_in_steps(server, connect, clock):
    client, other = await connect(server).hello(), await connect(server).hello()
    before = server.accounts["$G"].interest_count
    client.send(b"".join(b"SUB s.%d %d\r\n" % (number, number) for number in range(2000)))
    await turns_until(lambda: server.accounts["$G"].interest_count == before + 2000)
    server.engine_loop.work.slice_ns = 0
    client.connection.connection_lost(None)
    assert server.accounts["$G"].interest_count == before + 1900
    other.send(b"PING\r\n")
    await turns_until(lambda: other.transport.written)
    assert server.accounts["$G"].interest_count > before
    await turns_until(lambda: server.accounts["$G"].interest_count == before)


async def test_an_answer_that_is_there_does_not_wait_for_long_work(server, connect):
    client = await connect(server).hello()
    seen = []

    def work():
        seen.append(b"".join(client.transport.written).endswith(b"PONG\r\n"))
        yield

    client.send(b"PING\r\n")
    server.engine_loop.work.go_on_with(work())
    await turns_until(lambda: seen)
    assert seen == [True]


async def test_long_work_that_fails_stops_nobody(server, connect):
    client = await connect(server).hello()

    def work():
        yield
        raise ValueError("broken")

    server.engine_loop.work.go_on_with(work())
    server.engine_loop.schedule()
    await turns_until(lambda: not server.engine_loop.work.waiting)
    client.send(b"PING\r\n")
    await turns_until(lambda: client.transport.written)
    assert server.defects == 1
