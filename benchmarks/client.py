"""How fast is the client, and what does a message cost it, against nats-py on the same nats-server?

Every case is run by jetlake and by nats-py in its best way, each on asyncio and on uvloop, in turns on one server.
Rates are messages a second of wall time, CPU is microseconds of this process a message; the publisher of the subscribe
case and the responder of the request case are processes of their own. The ceiling is a bare socket on the same server
that takes replies out of the bytes with one regular expression and never builds a message. It leaves the server the
same work: as many messages under way, pulls by the same counts (a fetch is over before the next one), the same
acknowledgements, a reply subject for each publish. Objects are counted in units of 8 KiB, whatever their chunks are.
"""

from __future__ import annotations

import asyncio
import gc
import io
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import nats
import nats.js.api
import pyarrow as pa
import uvloop

import jetlake
from _harness import Report, parse_arguments, spread
from _servers import PEER, server
from jetlake.client.connection.socket_connection import SocketConnection, connect_socket

QUESTION = "client: rates and CPU against nats-py on one nats-server"

PAYLOADS = (16, 128, 1024)
STREAM = "BENCH"
SUBJECT = "bench.subject"
CORE = "core.subject"
SERVICE = "service.echo"
HEADERS = pa.map_(pa.string(), pa.string())
CONSUME_MESSAGES = 5000
"""What a continuous read asks for ahead, at most."""
OBJECT_UNIT = 8192
"""Bytes of an object that count as one."""

Run = Callable[[str, int, int], Awaitable[tuple[float, float]]]


class Case(NamedTuple):
    """One row of the table: what is done, how often, and who does it."""

    name: str
    count: int
    ours: Run
    theirs: Run
    ceiling: Callable[[str, int, int], float] | None
    payloads: tuple[int, ...]


# The server's other clients


PUBLISHER = """
import sys
from jetlake.client.connection.socket_connection import connect_socket
url, subject, count, size = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
connection = connect_socket(url)
frame = b"PUB %b %d\\r\\n%b\\r\\n" % (subject, size, b"x" * size)
block = frame * 500
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count // 500):
    connection.send(block)
connection.flush(60)
"""

RESPONDER = """
import sys
from jetlake.client.connection.socket_connection import connect_socket
connection = connect_socket(sys.argv[1])
connection.subscribe(sys.argv[2].encode())
connection.flush()
print("ready", flush=True)
try:
    while True:
        for message in connection.receive():
            connection.publish(message.reply, message.payload)
except (ConnectionError, KeyboardInterrupt):
    pass
"""


@contextmanager
def neighbour(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process that is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def go(process: subprocess.Popen[str]) -> None:
    """Let the neighbour begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def fill(url: str, count: int, size: int) -> None:
    """A stream of so many messages, in memory."""
    empty(url)
    connection = connect_socket(url, request_timeout=60)
    frame = b"PUB %b %d\r\n%b\r\n" % (SUBJECT.encode(), size, b"x" * size)
    for start in range(0, count, 500):
        connection.send(frame * min(500, count - start))
    connection.flush(60)
    connection.close()


def empty(url: str) -> None:
    """A new stream without messages, in memory."""
    with connect_socket(url, request_timeout=60) as connection:
        connection.request(f"$JS.API.STREAM.DELETE.{STREAM}".encode())
        config = f'{{"name":"{STREAM}","subjects":["bench.>"],"storage":"memory"}}'
        connection.request(f"$JS.API.STREAM.CREATE.{STREAM}".encode(), config.encode())


class Stopwatch:
    """Wall and CPU seconds of what is done with it."""

    def __enter__(self) -> Stopwatch:
        gc.collect()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._wall, time.process_time() - self._cpu


# Ours


async def our_publish(url: str, count: int, size: int) -> tuple[float, float]:
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        publish = nc.publish
        with Stopwatch() as watch:
            for _ in range(count):
                await publish(CORE, payload)
            await nc.flush(60)
    return watch.seconds


async def our_subscribe(url: str, count: int, size: int) -> tuple[float, float]:
    async with await jetlake.connect(url) as nc:
        done = asyncio.get_running_loop().create_future()
        received = 0

        def take(message: jetlake.client.Message) -> None:
            nonlocal received
            received += 1
            if received == count:
                done.set_result(None)

        await nc.subscribe(CORE, take)
        await nc.flush()
        with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
            go(publisher)
            await done
    return watch.seconds


async def our_subscribe_iterator(url: str, count: int, size: int) -> tuple[float, float]:
    async with await jetlake.connect(url) as nc:
        subscription = await nc.subscribe(CORE)
        await nc.flush()
        with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
            go(publisher)
            received = 0
            async for _ in subscription:
                received += 1
                if received == count:
                    break
    return watch.seconds


async def our_publish_ack(url: str, count: int, size: int) -> tuple[float, float]:
    empty(url)
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        js = nc.jetstream()
        await js.publish(SUBJECT, payload)
        with Stopwatch() as watch:
            for _ in range(count):
                await js.publish(SUBJECT, payload)
    return watch.seconds


async def our_publish_pipelined(url: str, count: int, size: int) -> tuple[float, float]:
    empty(url)
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        js = nc.jetstream()
        publish = js.publish_async
        with Stopwatch() as watch:
            for _ in range(count):
                await publish(SUBJECT, payload)
            await js.publish_async_complete()
    return watch.seconds


def our_fetch(batch: int) -> Run:
    async def run(url: str, count: int, size: int) -> tuple[float, float]:
        fill(url, count, size)
        async with await jetlake.connect(url) as nc:
            consumer = await nc.jetstream().create_consumer(STREAM, "fetch", max_ack_pending=100_000)
            with Stopwatch() as watch:
                received = 0
                while received < count:
                    messages = await consumer.fetch(batch)
                    for message in messages:
                        await message.ack()
                    received += len(messages)
                await nc.flush(60)
        return watch.seconds

    return run


async def our_consume(url: str, count: int, size: int) -> tuple[float, float]:
    fill(url, count, size)
    async with await jetlake.connect(url) as nc:
        consumer = await nc.jetstream().create_consumer(STREAM, "consume", max_ack_pending=100_000)
        with Stopwatch() as watch:
            received = 0
            async with consumer.consume(max_messages=CONSUME_MESSAGES) as messages:
                async for message in messages:
                    await message.ack()
                    received += 1
                    if received == count:
                        break
                await nc.flush(60)
    return watch.seconds


async def our_ordered(url: str, count: int, size: int) -> tuple[float, float]:
    fill(url, count, size)
    async with await jetlake.connect(url) as nc:
        stream = await nc.jetstream().stream(STREAM)
        with Stopwatch() as watch:
            received = 0
            async with stream.ordered().consume(max_messages=CONSUME_MESSAGES) as messages:
                async for _ in messages:
                    received += 1
                    if received == count:
                        break
    return watch.seconds


async def our_table(url: str, count: int, size: int) -> tuple[float, float]:
    fill(url, count, size)
    async with await jetlake.connect(url) as nc:
        stream = await nc.jetstream().stream(STREAM)
        with Stopwatch() as watch:
            assert (await stream.to_arrow()).num_rows == count
    return watch.seconds


async def our_request(url: str, count: int, size: int) -> tuple[float, float]:
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        with neighbour(RESPONDER, url, SERVICE):
            await nc.request(SERVICE, payload)
            with Stopwatch() as watch:
                for _ in range(count):
                    await nc.request(SERVICE, payload)
    return watch.seconds


async def our_object_put(url: str, count: int, size: int) -> tuple[float, float]:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    async with await jetlake.connect(url) as nc:
        store = await nc.jetstream().create_object_store("BENCH", storage="memory")
        with Stopwatch() as watch:
            await store.put("content", content)
        await store.delete("content")
    return watch.seconds


async def our_object_get(url: str, count: int, size: int) -> tuple[float, float]:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    async with await jetlake.connect(url) as nc:
        store = await nc.jetstream().create_object_store("BENCH", storage="memory")
        await store.put("content", content)
        with Stopwatch() as watch:
            assert len(await store.get("content")) == len(content)
        await store.delete("content")
    return watch.seconds


# Theirs, in the best way they have


async def their_publish(url: str, count: int, size: int) -> tuple[float, float]:
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    with Stopwatch() as watch:
        for _ in range(count):
            await nc.publish(CORE, payload)
        await nc.flush(60)
    await nc.close()
    return watch.seconds


async def their_subscribe(url: str, count: int, size: int) -> tuple[float, float]:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    done = asyncio.get_running_loop().create_future()
    received = 0

    async def take(message: object) -> None:
        nonlocal received
        received += 1
        if received == count:
            done.set_result(None)

    await nc.subscribe(CORE, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await nc.flush()
    with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
        go(publisher)
        await done
    await nc.close()
    return watch.seconds


async def their_subscribe_iterator(url: str, count: int, size: int) -> tuple[float, float]:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    subscription = await nc.subscribe(CORE, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await nc.flush()
    with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
        go(publisher)
        received = 0
        async for _ in subscription.messages:
            received += 1
            if received == count:
                break
    await nc.close()
    return watch.seconds


async def their_publish_ack(url: str, count: int, size: int) -> tuple[float, float]:
    empty(url)
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    await js.publish(SUBJECT, payload)
    with Stopwatch() as watch:
        for _ in range(count):
            await js.publish(SUBJECT, payload)
    await nc.close()
    return watch.seconds


async def their_publish_pipelined(url: str, count: int, size: int) -> tuple[float, float]:
    empty(url)
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream(publish_async_max_pending=4000)
    with Stopwatch() as watch:
        for _ in range(count):
            await js.publish_async(SUBJECT, payload)  # without wait_stall, which costs a task each
        await js.publish_async_completed()
    await nc.close()
    return watch.seconds


def their_fetch(batch: int) -> Run:
    async def run(url: str, count: int, size: int) -> tuple[float, float]:
        fill(url, count, size)
        nc = await nats.connect(url, max_reconnect_attempts=0)
        js = nc.jetstream()
        config = nats.js.api.ConsumerConfig(max_ack_pending=100_000)
        subscription = await js.pull_subscribe(
            SUBJECT, "fetch", stream=STREAM, config=config, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        with Stopwatch() as watch:
            received = 0
            while received < count:
                messages = await subscription.fetch(batch)
                for message in messages:
                    await message.ack()
                received += len(messages)
            await nc.flush(60)
        await nc.close()
        return watch.seconds

    return run


async def their_table(url: str, count: int, size: int) -> tuple[float, float]:
    fill(url, count, size)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
    subscription = await js.pull_subscribe(
        SUBJECT, stream=STREAM, config=config, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    with Stopwatch() as watch:
        batches, received = [], 0
        while received < count:
            messages = await subscription.fetch(10_000)
            metadata = [message.metadata for message in messages]
            columns = {
                "sequence": pa.array([one.sequence.stream for one in metadata], pa.int64()),
                "subject": pa.array([message.subject for message in messages], pa.string()),
                "timestamp": pa.array([one.timestamp for one in metadata], pa.timestamp("us", tz="UTC")),
                "headers": pa.array([list((message.headers or {}).items()) for message in messages], HEADERS),
                "data": pa.array([message.data for message in messages], pa.binary()),
            }
            batches.append(pa.RecordBatch.from_pydict(columns))
            received += len(messages)
        assert pa.Table.from_batches(batches).num_rows == count
    await nc.close()
    return watch.seconds


async def their_consume(url: str, count: int, size: int) -> tuple[float, float]:
    fill(url, count, size)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    done = asyncio.get_running_loop().create_future()
    received = 0

    async def take(message: nats.aio.msg.Msg) -> None:
        nonlocal received
        await message.ack()
        received += 1
        if received == count:
            done.set_result(None)

    config = nats.js.api.ConsumerConfig(max_ack_pending=100_000)
    with Stopwatch() as watch:
        await js.subscribe(
            SUBJECT,
            stream=STREAM,
            cb=take,
            manual_ack=True,
            config=config,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        await done
        await nc.flush(60)
    await nc.close()
    return watch.seconds


async def their_ordered(url: str, count: int, size: int) -> tuple[float, float]:
    fill(url, count, size)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    done = asyncio.get_running_loop().create_future()
    received = 0

    async def take(message: object) -> None:
        nonlocal received
        received += 1
        if received == count:
            done.set_result(None)

    with Stopwatch() as watch:
        await js.subscribe(
            SUBJECT, stream=STREAM, cb=take, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await done
    await nc.close()
    return watch.seconds


async def their_request(url: str, count: int, size: int) -> tuple[float, float]:
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    with neighbour(RESPONDER, url, SERVICE):
        await nc.request(SERVICE, payload)
        with Stopwatch() as watch:
            for _ in range(count):
                await nc.request(SERVICE, payload)
    await nc.close()
    return watch.seconds


async def their_object_put(url: str, count: int, size: int) -> tuple[float, float]:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    store = await nc.jetstream().object_store("BENCH")
    with Stopwatch() as watch:
        await store.put("content", content)
    await store.delete("content")
    await nc.close()
    return watch.seconds


async def their_object_get(url: str, count: int, size: int) -> tuple[float, float]:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    store = await nc.jetstream().object_store("BENCH")
    await store.put("content", content)
    # Without a file it adds bytes to bytes, which takes longer the more there are.
    target = io.BytesIO()
    with Stopwatch() as watch:
        await store.get("content", writeinto=target)
    assert len(target.getvalue()) == len(content)
    await store.delete("content")
    await nc.close()
    return watch.seconds


# The bare socket


def ceiling_publish(url: str, count: int, size: int) -> float:
    with connect_socket(url, request_timeout=60) as connection:
        block = b"PUB %b %d\r\n%b\r\n" % (CORE.encode(), size, b"x" * size) * 500
        started = time.perf_counter()
        for _ in range(count // 500):
            connection.send(block)
        connection.flush(60)
        return time.perf_counter() - started


def ceiling_subscribe(url: str, count: int, size: int) -> float:
    with connect_socket(url) as connection:
        connection.subscribe(CORE.encode())
        connection.flush()
        wanted = count * (size + 2)
        with neighbour(PUBLISHER, url, CORE, count, size) as publisher:
            started = time.perf_counter()
            go(publisher)
            _drain(connection, wanted)
            return time.perf_counter() - started


def _drain(connection: SocketConnection, wanted: int) -> None:
    buffer = memoryview(bytearray(1 << 20))
    received = 0
    while received < wanted:
        received += connection.recv_into(buffer, 60)


def ceiling_publish_ack(url: str, count: int, size: int) -> float:
    empty(url)
    payload = b"x" * size
    with connect_socket(url) as connection:
        started = time.perf_counter()
        for _ in range(count):
            connection.request(SUBJECT.encode(), payload)
        return time.perf_counter() - started


def ceiling_publish_pipelined(url: str, count: int, size: int) -> float:
    empty(url)
    with connect_socket(url) as connection:
        # Each has a reply subject of its own: whoever wants to know which message was stored needs that, and it is a
        # third of the server's work, which remembers where a subject that it has just seen leads to.
        frames = [
            b"PUB %b %b.%d %d\r\n%b\r\n" % (SUBJECT.encode(), connection.inbox, number, size, b"x" * size)
            for number in range(count)
        ]
        blocks = [b"".join(frames[start : start + 500]) for start in range(0, count, 500)]
        sent = acknowledged = 0
        rest = b""
        started = time.perf_counter()
        while acknowledged < count:
            while sent < count and sent - acknowledged < 4000:
                connection.send(blocks[sent // 500])
                sent += 500
            data = rest + connection.recv(60)
            acknowledged += data.count(b"}\r\n")
            rest = data[-2:] if data[-1:] != b"\n" else b""  # The end of an answer may be cut.
        return time.perf_counter() - started


_ACKS = re.compile(rb"(\$JS\.ACK\.[^ ]+) \d+\r\n")


class Pulls(NamedTuple):
    """How a bare socket pulls: as the client of the same row does, by the same counts."""

    window: int
    """Messages asked for and not received, at most."""
    threshold: int
    """Messages that may be missing for the next pull, which fills the window again; 0 ends each pull first."""
    consumer: str
    """The consumer's name, which is in every reply subject."""
    acks: bool


FETCH_100 = Pulls(100, 0, "fetch", acks=True)
FETCH_1000 = Pulls(1000, 0, "fetch", acks=True)
CONSUME = Pulls(CONSUME_MESSAGES, CONSUME_MESSAGES // 4, "consume", acks=True)
ORDERED = Pulls(CONSUME_MESSAGES, CONSUME_MESSAGES // 4, f"ordered_{'x' * 22}_1", acks=False)
TABLE = Pulls(20_000, 10_000, "table", acks=False)


def ceiling_pull(pulls: Pulls) -> Callable[[str, int, int], float]:
    def run(url: str, count: int, size: int) -> float:
        fill(url, count, size)
        name = pulls.consumer
        settings = (
            '"ack_policy":"explicit","max_ack_pending":100000'
            if pulls.acks
            else '"ack_policy":"none","mem_storage":true'
        )
        with connect_socket(url) as connection:
            config = f'{{"stream_name":"{STREAM}","config":{{"name":"{name}","durable_name":"{name}",{settings}}}}}'
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}".encode()
            if pulls.acks:
                connection.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}".encode(), config.encode())
            connection.subscribe(connection.inbox + b".pull.x")
            started = time.perf_counter()
            if not pulls.acks:  # Ordered reads and tables make a consumer themselves.
                connection.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}".encode(), config.encode())
            asked = received = 0
            rest = b""
            while received < count:
                missing = asked - received
                if missing <= pulls.threshold and asked < count:
                    body = b"%d" % (pulls.window - missing)
                    connection.send(b"PUB %b %b.pull.x %d\r\n%b\r\n" % (subject, connection.inbox, len(body), body))
                    asked += pulls.window - missing
                data = rest + connection.recv(60)
                replies = _ACKS.findall(data)
                # What follows the last reply may be the beginning of the next.
                last = data.rfind(b"\r\n")
                rest = data[last + 2 :] if last >= 0 else data
                received += len(replies)
                if pulls.acks and replies:
                    connection.send(b"PUB " + b" 4\r\n+ACK\r\nPUB ".join(replies) + b" 4\r\n+ACK\r\n")
            connection.flush(60)
            return time.perf_counter() - started

    return run


def ceiling_request(url: str, count: int, size: int) -> float:
    payload = b"x" * size
    with connect_socket(url) as connection, neighbour(RESPONDER, url, SERVICE):
        started = time.perf_counter()
        for _ in range(count):
            connection.request(SERVICE.encode(), payload)
        return time.perf_counter() - started


CASES = (
    Case("publish_core", 200_000, our_publish, their_publish, ceiling_publish, PAYLOADS),
    Case("subscribe_callback", 200_000, our_subscribe, their_subscribe, ceiling_subscribe, PAYLOADS),
    Case("subscribe_iterator", 100_000, our_subscribe_iterator, their_subscribe_iterator, ceiling_subscribe, (128,)),
    Case("publish_ack", 3_000, our_publish_ack, their_publish_ack, ceiling_publish_ack, PAYLOADS),
    Case(
        "publish_pipelined", 50_000, our_publish_pipelined, their_publish_pipelined, ceiling_publish_pipelined, PAYLOADS
    ),
    Case("fetch_100", 30_000, our_fetch(100), their_fetch(100), ceiling_pull(FETCH_100), PAYLOADS),
    Case("fetch_1000", 50_000, our_fetch(1000), their_fetch(1000), ceiling_pull(FETCH_1000), PAYLOADS),
    Case("consume_ack", 100_000, our_consume, their_consume, ceiling_pull(CONSUME), PAYLOADS),
    Case("ordered_read", 100_000, our_ordered, their_ordered, ceiling_pull(ORDERED), PAYLOADS),
    Case("table", 100_000, our_table, their_table, ceiling_pull(TABLE), PAYLOADS),
    Case("request", 3_000, our_request, their_request, ceiling_request, PAYLOADS),
    Case("object_put", 8_000, our_object_put, their_object_put, None, (OBJECT_UNIT,)),
    Case("object_get", 8_000, our_object_get, their_object_get, None, (OBJECT_UNIT,)),
)


class Figures(NamedTuple):
    """Median rate and CPU of one candidate."""

    rate: float
    cpu_us: float


def run_case(url: str, case: Case, count: int, size: int, repeats: int) -> tuple[dict[str, Figures], float, float]:
    """Rate and CPU of all candidates in turns, the rate of a bare socket, and the widest spread."""
    loops = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    candidates = {
        f"{who} {loop}": (run, factory)
        for loop, factory in loops.items()
        for who, run in (("jetlake", case.ours), ("nats-py", case.theirs))
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    bare: list[float] = []
    for _ in range(repeats):
        for name, (run, factory) in candidates.items():
            with asyncio.Runner(loop_factory=factory) as runner:
                taken[name].append(runner.run(run(url, count, size)))
        if case.ceiling is not None:
            bare.append(case.ceiling(url, count, size))
    figures = {
        name: Figures(
            count / statistics.median(wall for wall, _ in seconds),
            statistics.median(cpu for _, cpu in seconds) / count * 1e6,
        )
        for name, seconds in taken.items()
    }
    widest = max(spread([wall for wall, _ in seconds]) for seconds in taken.values())
    return figures, count / statistics.median(bare) if bare else 0.0, widest


def main() -> None:
    """Measure all cases and print table and ratios."""
    arguments = parse_arguments(
        QUESTION, ("--only", {"help": "run only cases whose name begins with this", "default": ""})
    )
    report = Report(QUESTION, arguments)
    repeats = 3 if arguments.quick else 5
    with server(PEER, more='max_pending: 2GB\nwrite_deadline: "60s"') as running:
        url = running.url
        for case in CASES:
            if not case.name.startswith(arguments.only):
                continue
            count = max(500, case.count // 5 // 500 * 500) if arguments.quick else case.count
            for size in (128,) if arguments.quick and 128 in case.payloads else case.payloads:
                figures, ceiling, widest = run_case(url, case, count, size, repeats)
                row: dict[str, float] = {}
                for name, (rate, cpu_us) in figures.items():
                    row[f"{name} /s"] = rate
                    row[f"{name} µs"] = cpu_us
                row["bare socket /s"] = ceiling
                row["spread %"] = widest
                report.add(f"{case.name} {size} B", row)
                ours = max((figures["jetlake asyncio"], figures["jetlake uvloop"]), key=lambda one: one.rate)
                best = max((figures["nats-py asyncio"], figures["nats-py uvloop"]), key=lambda one: one.rate)
                report.compare(f"{case.name}_{size}", ours.rate, best.rate)
                report.compare(f"{case.name}_{size}_cpu", ours.cpu_us, best.cpu_us, lower_is_better=True)
                if ceiling:
                    report.compare(f"{case.name}_{size}_of_socket", ours.rate, ceiling)
    report.finish()


if __name__ == "__main__":
    main()
