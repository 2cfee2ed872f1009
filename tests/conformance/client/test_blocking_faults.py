"""The blocking client off the beaten path, on both servers: interrupted, forked, never closed, closed by many."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetlake.blocking
from jetlake.client.connection import wire_protocol
from jetlake.errors import ConnectionClosedError, InvalidOptionError, JetlakeError, RequestTimeoutError
from tests.support.blocking import connected, fill, in_thread
from tests.support.clients import until

CALLS_END_S = 20

PROGRAM = """
import itertools, json, os, random, signal, sys, threading, time
import jetlake.blocking
url = sys.argv[1]

def press(number, frame):
    "Interrupt calls of the client alone: between two of them it would be the program that loses a message, or ends."
    while frame is not None:
        if frame.f_code.co_filename.startswith(os.path.dirname(jetlake.__file__)):
            raise KeyboardInterrupt
        frame = frame.f_back

# Said in any case: a shell that starts a program in the background lets it and its children ignore interrupts.
signal.signal(signal.SIGINT, press)

ready = threading.Event()

def interrupt(times, seed):
    "Press Ctrl-C again and again, at times that the seed gives."
    ready.wait()
    moments = random.Random(seed)
    for _ in range(times):
        time.sleep(moments.random() * 0.004)
        os.kill(os.getpid(), signal.SIGINT)
"""


async def run_program(server, source, *, code=0):
    """Run the source in a process of its own, whose last line is JSON."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-c", PROGRAM + source, server.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code, errors.decode()
    return (json.loads(output.splitlines()[-1]) if output else None), errors.decode()


async def stored(server):
    """The payloads in stream S, in order."""
    async with await jetlake.connect(server.url) as client:
        stream = await client.jetstream().stream("S")
        count = (await stream.info()).state.messages
        return [int(message.payload) for message in await stream.ordered().fetch(count)] if count else []


# Ctrl-C

READ_ON = """
with jetlake.blocking.connect(url) as client:
    stream = client.jetstream().stream("S")
    {source}
    seen, interrupts = [], 0
    thread = threading.Thread(target=interrupt, args=(150, 1))
    thread.start()
    while len(seen) < {count} or thread.is_alive():
        try:
            ready.set()
            {take}
        except KeyboardInterrupt:
            interrupts += 1
    thread.join()
print(json.dumps([seen == list(range({count})), len(seen), interrupts]))
"""

READS = {
    "next of an ordered read": (
        5000,
        "read = stream.ordered().consume(max_messages=50).start()",
        "seen.append(int(read.next(0.02).payload))",
    ),
    "batches of an ordered read": (
        5000,
        "read = stream.ordered().consume(max_messages=50).start()",
        "seen.extend(int(one.payload) for one in read.next_batch()) if len(seen) < 5000 else time.sleep(0.001)",
    ),
    "next of an ordered consumer": (
        300,
        "ordered = stream.ordered()",
        "message = ordered.next(0.02); message and seen.append(int(message.payload))",
    ),
}


@pytest.mark.parametrize("read", READS)
async def test_ctrl_c_loses_no_message(server, read):
    count, source, take = READS[read]

    def work():
        with jetlake.blocking.connect(server.url) as client:
            fill(client.jetstream(), count)

    await in_thread(work)
    take = f"try: {take}\n        except jetlake.errors.RequestTimeoutError: pass".replace(
        "\n        ", "\n            "
    )
    (is_whole, seen, interrupts), _ = await run_program(server, READ_ON.format(source=source, take=take, count=count))
    assert (is_whole, seen) == (True, count)
    assert interrupts > 10


PUBLISH_INTERRUPTED = """
with jetlake.blocking.connect(url) as client:
    js = client.jetstream(publish_window=20)
    js.create_stream("S", subjects=["s.>"])
    numbers = itertools.count()
    promised, is_over = [], False
    def publish():
        while not is_over:
            number = next(numbers)
            js.publish_async("s.1", b"%d" % number)
            promised.append(number)
    threads = [threading.Thread(target=publish) for _ in range(3)]
    threads.append(threading.Thread(target=interrupt, args=(150, 2)))
    for thread in threads:
        thread.start()
    while threads[-1].is_alive():
        try:
            ready.set()
            number = next(numbers)
            js.publish_async("s.1", b"%d" % number)
            promised.append(number)
        except KeyboardInterrupt:
            pass
    is_over = True
    for thread in threads:
        thread.join()
    js.publish_async_complete(30)
print(json.dumps(promised))
"""


ENDINGS_INTERRUPTED = """
import tempfile
signal.signal(signal.SIGALRM, press)

def interrupted(ending):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        ending()
    except KeyboardInterrupt:
        return True

client = jetlake.blocking.connect(url)
at_work, may_end = threading.Event(), threading.Event()
client.subscribe("slow", lambda message: (at_work.set(), may_end.wait()))
client.publish("slow")
at_work.wait()
said = [interrupted(client.drain), client.is_closed]
may_end.set()

with tempfile.TemporaryDirectory() as folder:
    server = jetlake.blocking.Server(folder)
    server.start()
    server._thread.call_soon(lambda: time.sleep(1))  # so that the stop has not begun when it is interrupted
    said.append(interrupted(server.stop))
    server._thread.port.has_ended.wait(30)
    with jetlake.blocking.Server(folder):
        said.append("the folder is released")
print(json.dumps(said))
"""


async def test_ctrl_c_in_an_ending_ends_all_the_same(core):
    said, _ = await run_program(core, ENDINGS_INTERRUPTED)
    assert said == [True, True, True, "the folder is released"]


async def test_ctrl_c_beside_publishing_threads_loses_no_message(server):
    promised, _ = await run_program(server, PUBLISH_INTERRUPTED)
    found = await stored(server)
    assert len(promised) > 50
    assert set(promised) <= set(found)
    assert len(found) == len(set(found))


# Without a server


async def test_publishing_through_an_outage_stores_every_message_once(start):
    server = await start(process=True)

    def connect():
        client = jetlake.blocking.connect(server.url, pending_bytes_max=1000, reconnect_wait=0.01)
        client.jetstream().create_stream("S", subjects=["s.>"])
        return client

    client = await in_thread(connect)
    await server.kill()
    await until(lambda: not client.is_connected)
    js = client.jetstream()
    acks = []

    def publish(thread):
        acks.extend(js.publish_async("s.1", b"%d" % (thread * 300 + number)) for number in range(300))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    await server.start()

    def complete():
        for thread in threads:
            thread.join()
        js.publish_async_complete(CALLS_END_S)
        assert sorted(ack.result().seq for ack in acks) == list(range(1, 901))
        client.close()
        # What is known needs no connection.
        assert acks[0].result().stream == "S"

    await in_thread(complete)
    assert sorted(await stored(server)) == list(range(900))


# Fork

FORKED = """
client = jetlake.blocking.connect(url)
js = client.jetstream()
js.create_stream("S", subjects=["s.>"])
pending = js.publish_async("s.1", b"0")
subscription = client.subscribe("a")
client.publish("a", b"1")
message = subscription.next(5)
child = os.fork()
if child == 0:
    refused = 0
    uses = [
        lambda: client.publish("a"), lambda: js.publish("s.1"), lambda: js.publish_async("s.1", b"1"),
        lambda: client.request("a"), lambda: subscription.next(1), client.flush, lambda: message.respond(b""),
    ]
    for use in uses:
        try:
            use()
        except jetlake.errors.ConnectionClosedError as error:
            refused += "connect again here" in str(error)
        except jetlake.errors.JetlakeError:
            refused += use is uses[-1]
    client.close()
    refused += client.is_closed
    with jetlake.blocking.connect(url) as own:
        own.jetstream().publish("s.1", b"2")
    sys.exit(refused != len(uses) + 1)
_, status = os.waitpid(child, 0)
js.publish("s.1", b"3")
pending.result()
client.close()
print(json.dumps(os.waitstatus_to_exitcode(status)))
"""


async def test_a_forked_child_is_told_to_connect_again(server):
    status, errors = await run_program(server, FORKED)
    assert status == 0, errors
    assert await stored(server) == [0, 2, 3]


FORKED_AND_GONE = """
client = jetlake.blocking.connect(url, name="gone")
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
print(json.dumps(0), flush=True)
os._exit(0)
"""


async def test_a_forked_child_does_not_hold_the_connection_of_its_parent(server):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM + FORKED_AND_GONE, server.url, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        await asyncio.wait_for(process.wait(), 20)
        await until(lambda: _connections(server, "gone", 0))
    finally:
        os.killpg(process.pid, signal.SIGKILL)


async def _connections(server, name, count):
    import urllib.request

    def read():
        with urllib.request.urlopen(f"http://127.0.0.1:{server.monitor_port}/connz") as answer:
            return json.load(answer)["connections"]

    return sum(one.get("name") == name for one in await asyncio.to_thread(read)) == count


# Never closed

LEFT_AT_EXIT = """
client = jetlake.blocking.connect(url, name="left")
js = client.jetstream()
js.create_stream("S", subjects=["s.>"])
for number in range(3000):
    js.publish_async("s.1", b"%d" % number)
client.publish("s.2", b"3000")
"""


async def test_exit_without_close_sends_what_was_published_and_warns(server):
    _, errors = await run_program(server, LEFT_AT_EXIT)
    assert sorted(await stored(server)) == list(range(3001))
    assert "ResourceWarning: the client 'jetlake-left' was never closed" in errors


@pytest.mark.filterwarnings("default::ResourceWarning")
async def test_garbage_collection_closes_and_warns(server):
    def work():
        client = jetlake.blocking.connect(server.url, name="garbage")
        js = client.jetstream()
        js.create_stream("S", subjects=["s.>"])
        thread = weakref.ref(client._thread)
        del client
        # Whoever holds a part of the client holds the client.
        assert js.publish("s.1", b"0").seq == 1
        js.publish_async("s.1", b"1")
        with pytest.warns(ResourceWarning, match="'jetlake-garbage' was never closed"):
            del js
            gc.collect()
        assert thread() is None

    await in_thread(work)
    await until(lambda: not any(thread.name == "jetlake-garbage" for thread in threading.enumerate()))
    await until(lambda: _connections(server, "garbage", 0))
    assert await stored(server) == [0, 1]


# Closing


async def test_calls_during_close_end_with_an_error_of_the_client(server):
    def round_of(number):
        client = jetlake.blocking.connect(server.url)
        js = client.jetstream()
        js.create_stream("S", subjects=["s.>"])
        client.subscribe("slow", lambda message: None)
        subscription = client.subscribe("a")
        client.flush()
        begin = threading.Barrier(9)
        outcomes = []

        def calls(call):
            begin.wait()
            while True:
                time.sleep(0.001)  # Draining is not meant to overtake a flood.
                try:
                    call()
                except RequestTimeoutError:
                    continue
                except JetlakeError as error:
                    outcomes.append(error)
                    return
                except BaseException as error:
                    outcomes.append(error)
                    raise

        def close():
            begin.wait()
            client.drain() if number % 3 == 2 else client.close()
            outcomes.append(None)

        work = [
            lambda: client.request("slow", timeout=1),
            lambda: client.flush(5),
            lambda: client.publish("a"),
            lambda: subscription.next(0.001),
            lambda: js.publish_async("s.1"),
            lambda: js.publish("none", retries=50),
        ]
        threads = [threading.Thread(target=calls, args=(call,), daemon=True) for call in work]
        threads += [threading.Thread(target=close, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(CALLS_END_S)
        assert not any(thread.is_alive() for thread in threads)
        assert all(outcome is None or isinstance(outcome, JetlakeError) for outcome in outcomes), outcomes
        assert len(outcomes) == 9

    def work():
        for number in range(20):
            round_of(number)

    await in_thread(work)


def test_close_releases_the_socket_of_a_server_that_takes_nothing(monkeypatch):
    monkeypatch.setattr(wire_protocol, "_CLOSE_WAIT_S", 0.05)
    errors = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as executor:
        accepted = executor.submit(_greet, listener)
        client = jetlake.blocking.connect(f"nats://127.0.0.1:{listener.getsockname()[1]}", on_error=errors.append)
        with accepted.result():
            (descriptor,) = client._inner._connection.sockets()
            transport = client._inner._connection.transport
            publishing = executor.submit(client.publish, "a", bytes(30_000_000))  # It may wait for the socket.
            while not transport.get_write_buffer_size():
                time.sleep(0.001)
            client.close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
            publishing.exception()
    assert "may be lost" in str(errors[-1])
    del transport
    gc.collect()  # The socket was closed, not collected: that would be a warning.


def _greet(listener):
    """Accept a client, and take nothing more once it is connected."""
    accepted, _ = listener.accept()
    accepted.sendall(b'INFO {"server_id":"x","version":"2.15.1","max_payload":67108864,"headers":true,"proto":1}\r\n')
    while b"PING\r\n" not in accepted.recv(65536):
        pass
    accepted.sendall(b"PONG\r\n")
    return accepted


@connected
def test_handlers_that_all_stop_or_drain(client):
    stream = fill(client.jetstream(), 20)
    both = threading.Barrier(2)

    def handle(message):
        message.ack()
        both.wait(CALLS_END_S)
        reading.stop()

    reading = stream.create_consumer("c").consume(handle, concurrency=2, max_messages=2)
    reading.start()
    reading.wait(CALLS_END_S)
    both = threading.Barrier(2)

    def drain(message):
        both.wait(CALLS_END_S)
        client.drain()

    draining = stream.create_consumer("d").consume(drain, concurrency=2, max_messages=2)
    draining.start()
    draining.wait(CALLS_END_S)
    assert client._thread.port.has_ended.wait(CALLS_END_S)


async def test_closing_in_an_event_callback(server):
    def work():
        closed = threading.Event()
        client = jetlake.blocking.connect(server.url, on_error=lambda error: client.close(), on_closed=closed.set)
        client.subscribe("a", lambda message: 1 / 0)
        client.publish("a")
        assert closed.wait(CALLS_END_S)
        assert client._thread.port.has_ended.wait(CALLS_END_S)
        with pytest.raises(ConnectionClosedError):
            client.flush()

    await in_thread(work)


# Timeouts


@connected
def test_next_keeps_its_timeout_while_others_read(client):
    subscription = client.subscribe("a")
    reading = fill(client.jetstream(), 0).ordered().consume().start()
    watch = client.jetstream().create_key_value("B").watch().start()
    for source, end in ((subscription, subscription.unsubscribe), (reading, reading.stop), (watch, watch.stop)):
        seen = []
        reader = threading.Thread(target=lambda source=source, seen=seen: seen.extend(source), daemon=True)
        reader.start()
        for timeout in (0.02, 0):
            with pytest.raises(RequestTimeoutError):
                source.next(timeout)
        end()
        reader.join(CALLS_END_S)
        assert not reader.is_alive()
    subscription = client.subscribe("b", lambda message: None)
    with pytest.raises(InvalidOptionError, match="callback"):
        subscription.next(0.02)
    reading = client.jetstream().stream("S").ordered().consume(lambda message: None).start()
    with pytest.raises(InvalidOptionError, match="handler"):
        reading.next(0.02)
    with pytest.raises(InvalidOptionError):
        next(iter(reading))


@connected
def test_a_timeout_of_zero_takes_what_is_there(client):
    subscription = client.subscribe("a")
    for number in range(3):
        client.publish("a", b"%d" % number)
    client.flush()
    assert [subscription.next(0).payload for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(RequestTimeoutError):
        subscription.next(0)
