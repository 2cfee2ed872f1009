"""The client without await, on both servers: from this thread, from several, and interrupted."""

import asyncio
import contextlib
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetlake.blocking
from jetlake.client.connection.socket_connection import connect_socket
from jetlake.errors import (
    AlreadyAcknowledgedError,
    AuthorizationError,
    ConnectionClosedError,
    ConsumerDeletedError,
    DrainTimeoutError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NoServersError,
    RequestTimeoutError,
)
from tests.support.blocking import connected, fill, in_thread, wait_until
from tests.support.clients import numbers
from tests.support.tls import TLS, client_context


def test_methods_show_what_they_take():
    consumer, stream = jetlake.blocking.Consumer, jetlake.blocking.Stream
    for method in (consumer.fetch, consumer.consume, stream.get_batch, stream.ordered):
        assert inspect.signature(method) == inspect.signature(method.__wrapped__)
        assert method.__doc__.endswith(method.__wrapped__.__doc__)


@connected
def test_core_messages(client):
    assert client.is_connected
    subscription = client.subscribe("a")
    client.publish("a", b"1", headers={"K": "v"})
    message = subscription.next(5)
    assert (message.payload, message.headers["K"]) == (b"1", "v")
    with pytest.raises(RequestTimeoutError):
        subscription.next(0.01)
    subscription.unsubscribe()
    client.subscribe("echo", lambda message: message.respond(message.payload))
    client.flush()
    assert client.request("echo", b"x").payload == b"x"
    with pytest.raises(NoRespondersError):
        client.request("nobody")


@connected
def test_iterating_over_a_subscription(client):
    with client.subscribe("a") as subscription:
        for number in range(100):
            client.publish("a", b"%d" % number)
        received = []
        for message in subscription:
            received.append(int(message.payload))
            if len(received) == 100:
                break
    assert received == list(range(100))


@connected
def test_confirmations_after_an_acknowledgement(client):
    consumer = fill(client.jetstream(), 3).create_consumer("c")
    first, second, third = consumer.fetch(3)
    first.ack()
    first.ack_sync()
    second.nak()
    with pytest.raises(AlreadyAcknowledgedError):
        second.ack_sync()
    third.ack()
    consumer.delete()
    with pytest.raises(NoRespondersError):
        third.ack_sync()
    first.ack_sync()  # It was confirmed.


@connected
def test_streams_and_fetch(client):
    js = client.jetstream()
    stream = fill(js, 20)
    assert js.stream_names() == ["S"]
    assert stream.info().state.messages == 20
    assert stream.get(3).payload == b"2"
    assert js.publish("s.1", b"20", msg_id="x").seq == 21
    consumer = stream.create_consumer("c", ack_wait=60)
    messages = consumer.fetch(10)
    assert numbers(messages) == list(range(10))
    messages[0].ack_sync()
    for message in messages[1:]:
        message.ack()
    client.flush()
    wait_until(lambda: consumer.info().num_ack_pending == 0)
    assert consumer.next(10).payload == b"10"
    assert len(consumer.fetch(100, no_wait=True)) == 10
    assert consumer.next(0.02) is None
    assert stream.consumer_names() == ["c"]
    stream.update(description="changed")
    assert js.stream("S").config.description == "changed"
    stream.delete()


@connected
def test_consume(client):
    stream = fill(client.jetstream(), 500)
    consumer = stream.create_consumer("c")
    assert "self" not in inspect.signature(consumer.fetch).parameters
    received = []
    with consumer.consume(max_messages=50) as messages:
        for message in messages:
            message.ack()
            received.append(int(message.payload))
            if len(received) == 300:
                break
    assert received == list(range(300))
    # What was fetched ahead went back and can be had at once.
    with consumer.consume() as messages:
        for batch in messages.batches():
            for message in batch:
                message.ack()
                received.append(int(message.payload))
            if len(set(received)) == 500:
                break
    assert sorted(set(received)) == list(range(500))


@connected
def test_leaving_a_bare_loop_stops_the_read(client):
    stream = fill(client.jetstream(), 20)
    consumer = stream.create_consumer("c", ack_wait=3600)
    for message in consumer.consume(max_messages=10):
        message.ack_sync()
        break
    for batch in consumer.consume(max_messages=5).batches():
        for message in batch:
            message.nak()
        break
    wait_until(lambda: consumer.info().num_waiting == 0)
    assert sorted(numbers(jetlake.blocking.Consumer.fetch(consumer, 19))) == list(range(1, 20))


@connected
def test_handlers_run_in_threads(client):
    stream = fill(client.jetstream(), 100)
    seen, names = [], set()
    done = threading.Event()

    def handle(message):
        seen.append(int(message.payload))
        names.add(threading.current_thread().name)
        message.ack()
        if len(seen) == 100:
            done.set()

    with stream.create_consumer("c").consume(handle, concurrency=4):
        assert done.wait(10)
        # No worker starts others, however early its turn comes.
        assert sum(thread.name.startswith("jetlake-handler") for thread in threading.enumerate()) == 4
    assert sorted(seen) == list(range(100))
    assert all(name.startswith("jetlake-handler") for name in names)


@connected
def test_errors_come_out_of_the_loop(client):
    stream = fill(client.jetstream(), 3)
    consumer = stream.create_consumer("c")
    with consumer.consume() as messages:
        assert numbers([messages.next(5) for _ in range(3)]) == [0, 1, 2]
        consumer.delete()
        with pytest.raises(ConsumerDeletedError):
            messages.next(5)
    with pytest.raises(InvalidOptionError):
        consumer.fetch(0)
    with pytest.raises(InvalidOptionError):
        consumer.consume(concurrency=2)


@connected
def test_ordered(client):
    stream = fill(client.jetstream(), 200)
    received = []
    for message in stream.ordered():
        received.append(int(message.payload))
        if len(received) == 200:
            break
    assert received == list(range(200))
    ordered = stream.ordered(deliver_policy="by_start_sequence", opt_start_seq=100)
    assert numbers(ordered.fetch(3)) == [99, 100, 101]
    assert numbers([ordered.next(10)]) == [102]
    with ordered as messages:
        assert [int(messages.next(5).payload) for _ in range(3)] == [99, 100, 101]
        with pytest.raises(InvalidOptionError, match="already entered"), ordered:
            pass
    assert messages.is_stopped


@connected
def test_the_older_workflow(client):
    js = client.jetstream()
    stream = fill(js, 10)
    pull = js.pull_subscribe("s.>", "d")
    assert numbers(pull.fetch(5)) == [0, 1, 2, 3, 4]
    pull.unsubscribe()
    push = js.subscribe("s.>")
    assert numbers([push.next(5) for _ in range(10)]) == list(range(10))
    push.unsubscribe()
    seen = []
    done = threading.Event()
    queue = js.queue_subscribe("s.>", "q", lambda message: (seen.append(message), len(seen) == 10 and done.set()))
    assert done.wait(10)
    queue.unsubscribe()
    assert stream.consumer_names() == []


@connected
def test_many_threads_share_a_client(client):
    js = client.jetstream()
    stream = js.create_stream("S", subjects=["s.>"])
    failures = []

    def publish(thread):
        try:
            for number in range(50):
                js.publish(f"s.{thread}", b"%d" % number)
                client.publish("core", b"x")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stream.info(subjects_filter=">").state.subjects == {f"s.{number}": 50 for number in range(8)}
    consumer = stream.create_consumer("c")
    received = []

    def consume():
        while len(received) < 400:
            for message in consumer.fetch(20, expires=0.3):
                message.ack()
                received.append(message.metadata.stream_seq)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(received) == list(range(1, 401))


@connected
def test_pipelined_publishing_keeps_the_order_of_each_thread(client):
    js = client.jetstream(publish_window=50)
    stream = js.create_stream("S", subjects=["s.>"])

    def publish(thread):
        for number in range(2000):
            js.publish_async(f"s.{thread}", b"%d" % number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = js.publish_async("s.9", b"last", msg_id="last")
    assert last.result().seq == 6001
    js.publish_async_complete()
    assert js.publish_async_pending == 0
    read = {0: [], 1: [], 2: []}
    for message in stream.ordered():
        thread = int(message.subject[2:])
        if thread == 9:
            break
        read[thread].append(int(message.payload))
    assert read == {number: list(range(2000)) for number in range(3)}
    with pytest.raises(InvalidOptionError):
        js.publish_async("s.1", "text")


@contextlib.contextmanager
def heard_in_order(client):
    """The acknowledgements (`ack`) and other messages of the test, by subject, in the order in which they were sent."""
    heard = []
    with client.subscribe(">", lambda message: heard.append(message.subject)):
        client.flush()
        sent = []
        yield sent
        client.publish("over")
        wait_until(lambda: "over" in heard)
    kinds = {"$JS.ACK": "ack", "s.done": "done", "held": "held"}
    sent += [kind for subject in heard for start, kind in kinds.items() if subject.startswith(start)]


@connected
def test_no_acknowledgement_overtakes_a_publish(client):
    js = client.jetstream()
    consumer = fill(js, 20).create_consumer("c")
    messages = consumer.fetch(20)
    with heard_in_order(client) as sent:
        for message in messages:
            js.publish_async("s.done", message.payload)
            message.ack()
        js.publish_async_complete()
    assert sent == ["done", "ack"] * 20


@pytest.mark.parametrize("how", ["ack", "ack_sync"])
async def test_no_acknowledgement_overtakes_a_publish_that_waits_for_room(server, how):
    def work():
        with jetlake.blocking.connect(server.url, connect_timeout=10) as client:
            consumer = fill(client.jetstream(), 1).create_consumer("c")
            message = consumer.next()
            held = client.subscribe("held")
            js = client.jetstream(publish_window=1)
            with heard_in_order(client) as sent:
                js.publish_async("held")
                request = held.next()
                working = threading.Thread(target=lambda: (js.publish_async("s.done"), getattr(message, how)()))
                working.start()
                wait_until(lambda: js.publish_async_pending == 2)
                client.rtt()
                request.respond(b'{"stream":"S","seq":1}')
                working.join()
                js.publish_async_complete()
            assert sent == ["held", "done", "ack"]

    await in_thread(work)


async def test_what_follows_a_publish_of_a_callback_waits_for_its_room(server):
    def work():
        with (
            jetlake.blocking.connect(server.url, connect_timeout=10) as client,
            jetlake.blocking.connect(server.url, connect_timeout=10) as other,
        ):
            fill(client.jetstream(), 1)
            held = other.subscribe("held")
            other.flush()
            js = client.jetstream(publish_window=1)
            with heard_in_order(other) as sent:
                js.publish_async("held")
                request = held.next()
                client._thread.call_soon(
                    lambda: js.publish_async("s.done")
                )  # As callbacks of events, which cannot wait.
                wait_until(lambda: js.publish_async_pending == 2)
                client.publish("$JS.ACK.as.if")
                with pytest.raises(RequestTimeoutError, match="no room within"):
                    client.flush(0.01)
                request.respond(b'{"stream":"S","seq":1}')
                client.flush()
            assert sent == ["held", "done", "ack"]

    await in_thread(work)


@connected
def test_many_messages_of_each_thread(client):
    js = client.jetstream(publish_window=50)
    stream = js.create_stream("S", subjects=["s.>"])
    published = {}

    def rows(thread):
        for number in range(1000):
            if number % 500 == 250:
                js.account_info()  # The iterable runs in this thread, and may call.
            yield f"s.{thread}", b"%d" % number

    def publish(thread):
        js.publish_async(f"s.{thread}", b"first")
        published[thread] = js.publish_many(rows(thread))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert published == {0: (1000, 0), 1: (1000, 0)}
    read = {0: [], 1: []}
    for message in stream.ordered():
        read[int(message.subject[2:])].append(message.payload)
        if message.metadata.pending == 0:
            break
    assert read[0] == read[1] == [b"first", *(b"%d" % number for number in range(1000))]
    with pytest.raises(InvalidOptionError):
        js.publish_many([("s.1", "text")])


@connected
def test_a_blocking_call_in_the_loops_thread_is_an_error_and_no_deadlock(client):
    failures = []
    done = threading.Event()

    def work():
        try:
            client.flush()
        except JetlakeError as error:
            failures.append(error)
        done.set()

    client._thread.call_soon(work)
    assert done.wait(10)
    assert "own thread" in str(failures[0])


async def test_draining_lets_handlers_and_callbacks_finish(server):
    def work():
        entered, go_on = threading.Event(), threading.Event()
        called = []

        def handle(message):
            entered.set()
            go_on.wait(10)
            message.ack()

        with jetlake.blocking.connect(server.url) as client:
            stream = fill(client.jetstream(), 20)
            stream.create_consumer("c", ack_wait=3600).consume(handle, concurrency=2).start()
            client.subscribe("core", lambda message: (go_on.wait(10), called.append(message.payload)))
            for number in range(5):
                client.publish("core", b"%d" % number)
            entered.wait(10)
            threading.Timer(0.05, go_on.set).start()
        assert called == [b"0", b"1", b"2", b"3", b"4"]
        with jetlake.blocking.connect(server.url) as client:
            consumer = client.jetstream().consumer("S", "c")
            wait_until(lambda: consumer.info().num_ack_pending == 0)
            assert consumer.info().ack_floor.stream_seq == 20

    await in_thread(work)


async def test_draining_has_a_limit(server):
    def work():
        entered, go_on = threading.Event(), threading.Event()
        client = jetlake.blocking.connect(server.url)
        client.subscribe("core", lambda message: (entered.set(), go_on.wait(10)))
        client.publish("core")
        entered.wait(10)
        with pytest.raises(DrainTimeoutError, match=r"longer than 0\.05 s"):
            client.drain(0.05)
        assert client.is_closed
        go_on.set()

    await in_thread(work)


async def test_closing(server):
    def work():
        client = jetlake.blocking.connect(server.url, name="closer")
        js = client.jetstream()
        subscription = client.subscribe("a")
        client.close()
        client.close()
        for use in (
            lambda: client.publish("a"),
            lambda: client.request("a"),
            lambda: client.subscribe("a"),
            lambda: js.publish("a"),
            lambda: js.stream("S"),
            client.flush,
        ):
            with pytest.raises(ConnectionClosedError):
                use()
        with pytest.raises(ConnectionClosedError):
            subscription.next(1)
        assert not any(thread.name == "jetlake-closer" for thread in threading.enumerate())

    await in_thread(work)


async def test_calls_that_wait_when_another_thread_closes(server):
    waits = [
        lambda client, consumer: consumer.fetch(5, expires=60),
        lambda client, consumer: consumer.next(60),
        lambda client, consumer: client.request("silent", timeout=60),
        lambda client, consumer: client.jetstream().publish("silent", timeout=60),
        lambda client, consumer: client.subscribe("never").next(),
        lambda client, consumer: consumer.consume().next(),
    ]

    def work():
        with jetlake.blocking.connect(server.url) as other:
            fill(other.jetstream(), 0).create_consumer("c")
            silent = other.subscribe("silent")
            client = jetlake.blocking.connect(server.url)
            consumer = client.jetstream().stream("S").consumer("c")
            with ThreadPoolExecutor(len(waits)) as threads:
                calls = [threads.submit(wait, client, consumer) for wait in waits]
                try:
                    silent.next(20)
                    silent.next(20)
                    wait_until(lambda: consumer.info().num_waiting == 3)
                finally:
                    client.close()
                assert [type(call.exception(60)) for call in calls] == [ConnectionClosedError] * len(waits)
            with pytest.raises(InvalidOptionError, match="async iterable"):
                other.jetstream().publish_many(_no_messages())

    await in_thread(work)


async def _no_messages():
    return
    yield


async def test_connecting_in_vain(start):
    server = await start('authorization { token: "secret" }', ["no_jetstream"])

    def work():
        with pytest.raises(AuthorizationError):
            jetlake.blocking.connect(server.url)
        with pytest.raises(NoServersError):
            jetlake.blocking.connect("nats://127.0.0.1:1", connect_timeout=1)
        with pytest.raises(InvalidOptionError):
            jetlake.blocking.connect(ping_interval=0)
        with pytest.raises(TypeError):
            jetlake.blocking.connect(bogus=1)
        jetlake.blocking.connect(server.url, token="secret").close()
        assert not any(thread.name.startswith("jetlake-") for thread in threading.enumerate())

    await in_thread(work)


INTERRUPTED = """
import signal, sys, jetlake.blocking
# A shell that starts a program in the background lets it ignore interrupts, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
with jetlake.blocking.connect(sys.argv[1]) as client:
    stream = client.jetstream().create_stream("S", subjects=["s.>"])
    consumer = stream.create_consumer("c")
    try:
        with consumer.consume() as messages:
            print("ready", flush=True)
            for message in messages:
                pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("closed", flush=True)
"""


async def test_ctrl_c_ends_a_waiting_loop(server):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INTERRUPTED, server.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"ready\n"
    process.send_signal(signal.SIGINT)
    output, errors = await asyncio.wait_for(process.communicate(), 20)
    assert output == b"interrupted\nclosed\n", errors.decode()
    assert process.returncode == 0


# The bare connection


async def test_socket_connection(server):
    def work():
        with connect_socket(server.url, name="raw") as connection:
            assert connection.server_version == connection.info.version
            sid = connection.subscribe(b"a.*")
            connection.publish(b"a.b", b"x", header=b"NATS/1.0\r\nK: v\r\n\r\n")
            (message,) = connection.receive(5)
            assert (message.subject, message.sid, message.payload) == (b"a.b", sid, b"x")
            # What comes during a request is kept.
            connection.publish(b"a.c", b"y")
            assert b"account_info_response" in connection.request(b"$JS.API.INFO").payload
            assert [one.payload for one in connection.receive(5)] == [b"y"]
            connection.unsubscribe(sid)
            connection.publish(b"a.b", b"x")
            connection.flush()
            with pytest.raises(RequestTimeoutError):
                connection.receive(0.01)
            with pytest.raises(NoRespondersError):
                connection.request(b"nobody")
            connection.subscribe(b"raw")
            connection.publish(b"raw", b"z" * 100_000)
            buffer = memoryview(bytearray(1 << 20))
            fill = 0
            while fill < 100_000:
                fill += connection.recv_into(buffer[fill:], 5)
            assert bytes(buffer[:fill]).startswith(b"MSG raw 3 100000\r\nzzz")
            connection.handle_line(b"PING")
            with pytest.raises(JetlakeError, match="Invalid Subject"):
                connection.handle_line(b"-ERR 'Invalid Subject'")
        assert connection.closed
        with pytest.raises(ConnectionClosedError):
            connection.send(b"PING\r\n")

    await in_thread(work)


async def test_a_socket_connection_whose_server_goes(start):
    server = await start(flags=["no_jetstream"], process=True)
    connection = await in_thread(connect_socket, server.url)
    connection.subscribe(b"a")
    await server.kill()
    with pytest.raises(ConnectionClosedError):
        await in_thread(connection.receive, 5)
    assert connection.closed
    with pytest.raises(NoServersError):
        await in_thread(connect_socket, server.url)


async def test_a_socket_connection_logs_in(start):
    server = await start("authorization { user: u, password: p }", ["no_jetstream"])
    (await in_thread(lambda: connect_socket(server.url, user="u", password="p"))).close()
    with pytest.raises(AuthorizationError):
        await in_thread(connect_socket, server.url)


async def test_a_socket_connection_with_tls(start):
    server = await start(f"{TLS} }}", ["no_jetstream"])

    def work():
        with connect_socket(server.url, tls=client_context(), tls_hostname="localhost") as connection:
            connection.subscribe(b"a")
            connection.publish(b"a", b"x" * 500_000)
            buffer = memoryview(bytearray(1 << 20))
            fill = 0
            while fill < 500_000:
                fill += connection.recv_into(buffer[fill:], 5)
            with pytest.raises(RequestTimeoutError):
                connection.recv_into(buffer, 0.01)

    await in_thread(work)
