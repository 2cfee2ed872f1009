"""Celery and kombu on `jetstream://`, on both servers."""

import asyncio
import socket
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery, chord
from celery.app.task import Context
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ImproperlyConfigured, Reject
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import EncodeError

import jetlake
import jetlake.blocking
import jetlake.integrations.celery
from jetlake.errors import ConfigError
from jetlake.integrations.celery.backend import close_connections
from tests.support.clients import TIMEOUT_S


@pytest.fixture
async def url(server):
    yield f"jetstream://{server.url.removeprefix('nats://')}/shop"
    await asyncio.to_thread(close_connections)


@contextmanager
def connected(url, queue="mail", **options):
    """A kombu connection, a channel of it, and its queue."""
    with Connection(url, transport_options=options) as connection, connection.channel() as channel:
        yield channel, Queue(queue, channel=channel)


def in_thread(work):
    """Run blocking work beside the loop on which the server may run."""
    return lambda *args, **kwargs: asyncio.to_thread(work, *args, **kwargs)


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")  # By Celery, of the large exception.
async def test_a_worker_runs_tasks_with_retries_eta_chords_and_results(url):
    app = Celery("shop", broker=url, backend=url, set_as_current=False)
    app.conf.update(task_acks_late=True, worker_hijack_root_logger=False)
    ran_at = []

    @app.task(shared=False)
    def add(first, second):
        return first + second

    @app.task(bind=True, shared=False)
    def third_time(self):
        if self.request.retries < 2:
            raise self.retry(countdown=0.01)
        return self.request.retries

    @app.task(shared=False)
    def later():
        ran_at.append(datetime.now(UTC))

    @app.task(shared=False)
    def fail():
        raise ValueError("as it is meant to")

    @app.task(shared=False)
    def refuse():
        raise Reject("never again", requeue=False)

    @app.task(shared=False)
    def total(numbers):
        return sum(numbers)

    @app.task(shared=False)
    def large():
        return "x" * 2_000_000

    @app.task(shared=False)
    def fail_at_length():
        raise ValueError("x" * 2_000_000)

    @in_thread
    def run():
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=TIMEOUT_S):
            results = [add.delay(number, 1) for number in range(20)]
            due = datetime.now(UTC) + timedelta(seconds=1.2)
            waiting = later.apply_async(eta=due)
            assert [each.get(TIMEOUT_S, interval=0.01) for each in results] == list(range(1, 21))
            assert third_time.delay().get(TIMEOUT_S, interval=0.01) == 2
            summed = chord([add.s(1, 1), add.s(2, 2)])(total.s())
            assert summed.get(TIMEOUT_S, interval=0.01) == 6
            # A part that ran again after the chord had ended: its worker died before it acknowledged the task.
            for part in summed.parent:
                again = Context(id=part.id, group=summed.parent.id, chord=total.s().set(task_id="the body"))
                app.backend.on_chord_part_return(again, "SUCCESS", part.result)
            assert app.AsyncResult("the body").state == "PENDING"
            for task in (large, fail_at_length):
                with pytest.raises(EncodeError, match="the server accepts at most 1048576"):
                    task.delay().get(TIMEOUT_S, interval=0.01)
            named = add.apply_async((1, 1), task_id="mail to: ann@example.org, *.>/ä")
            assert named.get(TIMEOUT_S, interval=0.01) == 2
            failed = fail.delay()
            with pytest.raises(ValueError, match="meant to"):
                failed.get(TIMEOUT_S, interval=0.01)
            refuse.delay()
            waiting.get(TIMEOUT_S, interval=0.01)
            assert ran_at[0] >= due
            with app.connection_for_read() as connection:
                wait_empty(connection.default_channel, "celery")
            add.delay(1, 2).forget()

    await run()


def wait_empty(channel, queue):
    """Wait until a queue has neither waiting nor running tasks."""
    waited = threading.Event()
    for _ in range(int(TIMEOUT_S * 20)):
        if not channel._size(queue):
            return
        waited.wait(0.05)
    raise AssertionError(f"{channel._size(queue)} tasks are left in {queue}")


async def test_the_most_urgent_task_comes_first(url):
    @in_thread
    def run():
        with connected(url) as (channel, queue):
            queue.declare()
            producer = Producer(channel)
            for priority in (0, 4, 9, 3, None):
                producer.publish({"priority": priority}, routing_key="mail", priority=priority)
            assert channel._size("mail") == 5
            taken = [queue.get(no_ack=True).payload["priority"] for _ in range(5)]
            assert taken == [9, 4, 3, 0, None]
            assert queue.get() is None
            wait_empty(channel, "mail")

    await run()


async def test_what_a_worker_returns_comes_again_and_what_it_rejects_does_not(url):
    @in_thread
    def run():
        with connected(url) as (channel, queue):
            queue.declare()
            Producer(channel).publish({"id": 1}, routing_key="mail")
            message = queue.get()
            assert not message.delivery_info["redelivered"]
            message.requeue()
            again = queue.get()
            assert again.payload == {"id": 1} and again.delivery_info["redelivered"]
            again.reject()
            wait_empty(channel, "mail")
            Producer(channel).publish({"id": 2}, routing_key="mail")
            assert queue.get().payload == {"id": 2}
        # The channel was closed with a task that was not acknowledged.
        with connected(url) as (channel, queue):
            queue.declare()
            message = next(each for each in iter(queue.get, ...) if each is not None)
            assert message.payload == {"id": 2}
            message.ack()
            wait_empty(channel, "mail")

    await run()


async def test_a_publish_that_kombu_repeats_is_stored_once(url):
    @in_thread
    def run():
        with connected(url) as (channel, queue):
            queue.declare()
            properties = {"delivery_mode": 2}
            for _ in range(2):
                channel.basic_publish(
                    channel.prepare_message("{}", content_type="application/json", properties=properties), "", "mail"
                )
            assert channel._size("mail") == 1

    await run()


async def test_a_consumer_waits_and_takes_no_more_than_its_prefetch(url):
    @in_thread
    def run():
        with connected(url) as (channel, queue), connected(url) as (other, _):
            got = []

            def send():
                for _ in range(4):
                    Producer(other).publish({}, routing_key="mail")

            channel.basic_qos(0, 2, False)
            with channel.connection.client.Consumer(queue, on_message=got.append, channel=channel):
                threading.Timer(
                    0.1, lambda: [Producer(other).publish({}, routing_key="mail") for _ in range(4)]
                ).start()
                while len(got) < 2:
                    channel.connection.client.drain_events(timeout=TIMEOUT_S)
                with pytest.raises(socket.timeout):
                    channel.connection.client.drain_events(timeout=0.05)
                assert len(got) == 2
                for message in got:
                    message.ack()
                while len(got) < 4:
                    channel.connection.client.drain_events(timeout=TIMEOUT_S)
                for message in got[2:]:
                    message.ack()
            wait_empty(channel, "mail")

    await run()


async def test_the_ack_wait_of_a_held_task_is_extended(url, server):
    extended = asyncio.Queue()
    async with jetlake.connect(server.url) as watcher:
        await watcher.subscribe("$JS.ACK.shop_mail.>", callback=extended.put)

        def hold(done):
            with connected(url, visibility_timeout=1) as (channel, queue):
                queue.declare()
                Producer(channel).publish({}, routing_key="mail")
                message = queue.get()
                done.wait(TIMEOUT_S)
                message.ack()

        done = threading.Event()
        holding = asyncio.create_task(asyncio.to_thread(hold, done))
        async with asyncio.timeout(TIMEOUT_S):
            answers = [(await extended.get()).payload for _ in range(3)]
        assert answers == [b"+WPI"] * 3
        done.set()
        await holding
        assert (await extended.get()).payload in (b"+ACK", b"+WPI")


async def test_a_queue_that_was_deleted_is_created_again(url, server):
    @in_thread
    def run():
        with connected(url, "a.b c") as (channel, queue), jetlake.blocking.connect(server.url) as client:
            queue.declare()
            client.jetstream().delete_stream("shop_a=2Eb=20c")
            assert queue.get() is None
            Producer(channel).publish({"id": 1}, routing_key="a.b c")
            assert queue.get(no_ack=True).payload == {"id": 1}
            Producer(channel).publish({}, routing_key="a.b c")
            assert queue.purge() == 1
            queue.delete()

    await run()


async def test_what_is_no_task_is_removed(url, server):
    @in_thread
    def run():
        with connected(url) as (channel, queue), jetlake.blocking.connect(server.url) as client:
            queue.declare()
            client.jetstream().publish("shop.mail.p0", b"no task")
            assert queue.get() is None
            wait_empty(channel, "mail")

    await run()


@pytest.mark.parametrize(
    ("path", "options", "complaint"),
    [
        ("shop", {"visibilty_timeout": 3}, "visibilty_timeout"),
        ("shop", {"visibility_timeout": 0}, "visibility_timeout must be 1 second or more"),
        ("shop", {"priority_steps": [3, 6]}, "begin with 0"),
        ("shop", {"priority_steps": 3}, "list of numbers"),
        ("shop", {"visibility_timeout": float("nan")}, "visibility_timeout must be 1 second or more"),
        ("shop", {"replicas": 0}, "replicas must be 1 or more"),
        ("shop", {"connect": {"password": "x", "tlss": True}}, "'connect' has options of jetlake.connect: .*'tlss'"),
        ("shop", {"connect": "x"}, "'connect' has options of jetlake.connect"),
        ("my_shop", {}, "letters, digits"),
    ],
)
def test_options_that_cannot_work_are_refused(path, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Connection(f"jetstream://localhost:1/{path}", transport_options=options).connect()


def test_certificates_of_a_broker_are_an_ssl_context():
    with pytest.raises(ConfigError, match="give certificates as an SSL context"):
        Connection("jetstream://localhost:1/shop", ssl={"ca_certs": "ca.pem"}).connect()


@pytest.mark.parametrize(
    ("address", "options", "complaint"),
    [
        ("/my_shop", {}, "letters, digits"),
        ("/shop", {"replica": 3}, "'replica', which jetstream:// does not know"),
        ("/shop", {"connect": {"ttls": True}}, "'connect' has options of jetlake.connect: .*'ttls'"),
        ("/shop?replicas=3", {}, "'replicas', which jetstream:// does not know"),
        ("/shop?ssl_ca_certs=ca.pem", {}, "give certificates as an SSL context"),
    ],
)
def test_a_bad_address_of_results_is_refused(address, options, complaint):
    app = Celery("shop", backend=f"jetstream://localhost:1{address}", set_as_current=False)
    app.conf.result_backend_transport_options = options
    with pytest.raises(ImproperlyConfigured, match=complaint):
        _ = app.backend


def test_the_development_server_needs_a_broker_on_this_machine():
    app = Celery("shop", broker="jetstream://elsewhere:4222", set_as_current=False)
    with pytest.raises(ConfigError, match="elsewhere"):
        jetlake.integrations.celery.development_server(app)


async def test_a_counter_counts_every_caller_once(url):
    @in_thread
    def run():
        backends = [Celery("shop", backend=url, set_as_current=False).backend for _ in range(3)]
        counts = []
        threads = [
            threading.Thread(target=lambda each=each: counts.extend(each.incr("chord-unlock-1") for _ in range(10)))
            for each in backends
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(counts) == list(range(1, 31))
        backends[0].delete("chord-unlock-1")
        assert backends[1].mget(["chord-unlock-1"]) == [None]

    await run()


async def test_a_part_of_a_chord_is_counted_once(url):
    @in_thread
    def run():
        backend = Celery("shop", backend=url, set_as_current=False).backend

        def count(part):
            backend._part = part
            return backend.incr("chord-unlock-1")

        assert [count(part) for part in "abab"] == [1, 2, 1, 2]
        # The worker died before it had written the number of the part.
        backend._opened().purge("chord-unlock-1.b")
        assert [count(part) for part in "bcba"] == [2, 3, 2, 1]
        backend._opened().purge("chord-unlock-1.c")
        assert [count(part) for part in "dcd"] == [4, 3, 4]

    await run()


@pytest.mark.parametrize("name", ["a.b", "*", ">", "a b", "a=20b", "ä/\\", "$JS.API.>", "_INBOX.x", "n" * 200])
async def test_a_queue_may_have_any_name(url, name):
    @in_thread
    def run():
        with connected(url, name) as (channel, queue):
            queue.declare()
            for number in range(2):
                Producer(channel).publish({"id": number}, routing_key=name)
            assert [queue.get(no_ack=True).payload["id"] for _ in range(2)] == [0, 1]
            queue.delete()

    await run()


async def test_a_queue_without_a_name_is_refused(url):
    def publish():
        with connected(url) as (channel, _), pytest.raises(ConfigError, match="a name that is not empty"):
            channel._new_queue("")

    await asyncio.to_thread(publish)


async def test_a_stream_of_others_is_no_queue(url, server):
    def publish():
        with connected(url) as (channel, _), jetlake.blocking.connect(server.url) as client:
            client.jetstream().create_stream("shop_mail", subjects=["mail.>"])
            with pytest.raises(ConfigError, match=r"needs the stream shop_mail, but that one stores mail\.>"):
                Producer(channel).publish({}, routing_key="mail")

    await asyncio.to_thread(publish)


async def test_a_producer_whose_channel_was_closed_connects_again(url):
    @in_thread
    def run():
        with Connection(url) as connection:
            producer = Producer(connection)
            producer.channel.close()
            for exchange in ("", "shop"):
                with pytest.raises(connection.recoverable_connection_errors, match="channel is closed"):
                    producer.channel.basic_publish({"body": "", "properties": {}}, exchange, "mail")
            producer.publish({"id": 1}, routing_key="mail", retry=True, retry_policy={"max_retries": 1})
            assert Queue("mail", channel=connection.default_channel).get(no_ack=True).payload == {"id": 1}

    await run()


async def test_a_lasting_queue_cannot_be_broadcast_to(url):
    def declare():
        with connected(url) as (channel, _), pytest.raises(ConfigError, match="declare it with auto_delete=True"):
            Queue("mail", Exchange("all", type="fanout"), channel=channel).declare()

    await asyncio.to_thread(declare)


async def test_a_topic_reaches_the_queues_whose_pattern_fits(url):
    def exchange_messages():
        with Connection(url) as connection, Connection(url) as other:
            heard = []
            news = Exchange("news", type="topic")
            watched = Queue("watcher", news, "sport.*", auto_delete=True)
            with connection.Consumer(watched, callbacks=[lambda body, _: heard.append(body)], no_ack=True):
                producer = Producer(other, news)
                for key in ("politics.a", "sport.a", "sport.a.b", "sport.b"):
                    producer.publish(key, routing_key=key, declare=[news])
                while len(heard) < 2:
                    connection.drain_events(timeout=TIMEOUT_S)
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0)
            assert heard == ["sport.a", "sport.b"]

    await asyncio.to_thread(exchange_messages)
