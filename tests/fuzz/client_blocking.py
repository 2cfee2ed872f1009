"""A history of the blocking client: threads that do random things at once, with Ctrl-C in one, and forks."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
import warnings

import jetlake.blocking
from jetlake.errors import ConnectionClosedError, JetlakeError, PublishWindowError
from tests.fuzz.client_model import STREAM, PromiseError

CALL_S = 20.0
THREADS = 3


class BlockingHistory:
    """One client, one model, some threads; to be run in the main thread, which gets the interrupts.

    Args:
        broken: what to print when a call does not end, which takes the process with it.
    """

    def __init__(self, model, server, seconds, broken):
        self.broken = broken
        self.model = model
        self.random = model.random
        self.server = server
        self.seconds = seconds
        self.may_interrupt = False
        self.is_over = False
        self.failures = []
        self.busy = {}
        self.operations = [
            (self.publish, 10),
            (self.publish_many, 10),
            (self.publish_load, 5),
            (self.publish_through_a_context, 2),
            (self.publish_core, 2),
            (self.fetch, 6),
            (self.consume, 3),
            (self.handle, 1),
            (self.ask, 4),
            (self.ask_where_denied, 1),
            (self.subscribe, 2),
            (self.use_bucket, 3),
            (self.flush, 2),
            (self.force_reconnect, 0.5),
            (self.leave_behind, 0.2),
            (self.fork, 0.3),
            (self.restart, 0.15),
        ]

    def run(self, name):
        """Do random things for a while, then look at what became of everything."""
        self.name = name
        threads = set(threading.enumerate())
        client = self._connect(name)
        signal.signal(signal.SIGINT, self._interrupted)
        self.client = client
        self.js = client.jetstream()
        self.stream = self.js.create_stream(STREAM, subjects=["f.>"])
        self.worker = self.stream.create_consumer("worker", ack_wait=1, max_ack_pending=10_000)
        self.bucket = self.js.create_key_value("B")
        self.ordered = self.stream.ordered().consume(max_messages=20, expires=4, idle_heartbeat=2).start()
        client.subscribe("echo", lambda message: message.respond(message.payload))
        client.flush()
        actors = [threading.Thread(target=self._act, daemon=True) for _ in range(THREADS)]
        actors.append(threading.Thread(target=self._interrupt, daemon=True))
        watch = threading.Thread(target=self._watch, daemon=True)
        for actor in (*actors, watch):
            actor.start()
        self._act_in_main_thread()
        end = self.random.choice((client.drain, client.close))
        if self.random.random() < 0.5:
            with contextlib.suppress(JetlakeError):
                self._timed("the end beside others", end)
        self.is_over = True
        for actor in actors:
            actor.join(2 * CALL_S)
        self._timed("the completion of all publishes", self._settle)
        with contextlib.suppress(ConnectionClosedError):
            self._timed("the ordered read's stop", self.ordered.stop)
        self._timed("the end", end)
        watch.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.failures:
            raise self.failures[0]
        deadline = time.monotonic() + CALL_S
        while left := [one for one in threading.enumerate() if one not in threads and one.is_alive()]:
            if time.monotonic() > deadline:
                raise PromiseError(f"threads were left behind: {left}")
            time.sleep(0.01)

    def _connect(self, name):
        return jetlake.blocking.connect(
            self.server.url, name=name, request_timeout=2, reconnect_wait=0.01, reconnect_wait_max=0.1,
            on_error=lambda error: None,
        )  # fmt: skip

    # Threads

    def _timed(self, what, work):
        self.busy[threading.current_thread()] = what, time.monotonic() + CALL_S
        try:
            return work()
        finally:
            del self.busy[threading.current_thread()]

    def _watch(self):
        """Say which call does not end, and end the process: nothing else can."""
        while not self.is_over or self.busy:
            for thread, (what, deadline) in list(self.busy.items()):
                if time.monotonic() > deadline:
                    print(self.broken, f"{what} in {thread.name} did not end within {CALL_S} s", sep="\n", flush=True)
                    faulthandler.dump_traceback()
                    os._exit(3)
            time.sleep(0.05)

    def _act(self):
        weights = [weight for _, weight in self.operations]
        while not self.is_over and not self.failures:
            operation = self.random.choices(self.operations, weights)[0][0]
            self.model.count(operation.__name__)
            try:
                self._timed(operation.__name__, operation)
            except JetlakeError:
                pass
            except BaseException as error:
                self.failures.append(error)

    def _act_in_main_thread(self):
        """Read in order and publish, with interrupts."""
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline and not self.failures:
            with contextlib.suppress(KeyboardInterrupt, JetlakeError):
                self._timed("main thread", self.random.choice((self.read_in_order, self.publish_once_interrupted)))

    def _interrupted(self, *_):
        # Only while a call of the client runs: the model's own lines are no part of what is tested.
        if self.may_interrupt:
            self.may_interrupt = False
            self.model.count("interrupted")
            raise KeyboardInterrupt

    def _interrupt(self):
        while not self.is_over:
            time.sleep(0.003)
            if self.may_interrupt:
                os.kill(os.getpid(), signal.SIGINT)

    def read_in_order(self):
        self.may_interrupt = True
        try:
            message = self.ordered.next(0.05)
            self.may_interrupt = False
        finally:
            self.may_interrupt = False
        self.model.ordered.append(int(message.payload))

    def publish_once_interrupted(self):
        number = self.model.new()
        self.may_interrupt = True
        try:
            ack = self.js.publish_async("f.main", b"%d" % number)
            self.may_interrupt = False
        finally:
            self.may_interrupt = False
        self.model.pending.append((number, ack))

    def _settle(self):
        with contextlib.suppress(PublishWindowError, ConnectionClosedError):
            self.js.publish_async_complete()
        for number, ack in self.model.pending:
            with contextlib.suppress(JetlakeError):
                ack.result()
                self.model.stored(number)
        self.model.pending.clear()

    # Operations

    def _id(self, number):
        return f"m{number}" if self.random.random() < 0.5 else None

    def publish(self):
        number = self.model.new()
        timeout = self.random.choice((0.005, 0.2, 2))
        self.js.publish(f"f.{number % 7}", b"%d" % number, msg_id=self._id(number), timeout=timeout)
        self.model.stored(number)

    def publish_many(self):
        for _ in range(self.random.randrange(1, 40)):
            number = self.model.new()
            wait_s = self.random.choice((None, None, 0.02, 3))
            ack = self.js.publish_async(f"f.{number % 7}", b"%d" % number, msg_id=self._id(number), timeout=wait_s)
            self.model.pending.append((number, ack))

    def publish_load(self):
        numbers = [self.model.new() for _ in range(self.random.randrange(300))]
        has_ids = self.random.random() < 0.3
        try:
            self.js.publish_many(
                (f"f.{number % 7}", b"%d" % number, {"msg_id": self._id(number)} if has_ids else None)[: 2 + has_ids]
                for number in numbers
            )
            failed = []
        except PublishWindowError as error:
            failed = error.positions
        for position in set(range(len(numbers))) - set(failed):
            self.model.stored(numbers[position])

    def publish_through_a_context(self):
        js = self.client.jetstream(publish_window=self.random.choice((1, 5, 100)))
        for _ in range(10):
            number = self.model.new()
            self.model.pending.append((number, js.publish_async("f.context", b"%d" % number)))

    def publish_core(self):
        self.client.publish("f.core", b"%d" % self.model.new())

    def fetch(self):
        for message in self.worker.fetch(self.random.randrange(1, 20), expires=self.random.choice((0.05, 0.3))):
            self._saw(message)

    def consume(self):
        count = self.random.randrange(1, 50)
        with self.worker.consume(max_messages=self.random.choice((1, 5, 100))) as messages:
            while count := count - 1:
                self._saw(messages.next(0.2))

    def handle(self):
        with self.worker.consume(self._saw, max_messages=20, concurrency=2):
            time.sleep(0.02)

    def _saw(self, message):
        self.model.seen.add(int(message.payload))
        message.ack()

    def ask(self):
        answer = self.client.request("echo", b"x", timeout=self.random.choice((0.005, 2)))
        if answer.payload != b"x":
            raise PromiseError(f"the echo answered {answer}")

    def ask_where_denied(self):
        try:
            self.client.request("denied.a", timeout=1)
        except JetlakeError:
            return
        raise PromiseError("a denied request was answered")

    def subscribe(self):
        with self.client.subscribe(self.random.choice(("denied.a", "core"))) as subscription:
            self.client.publish("core", b"x")
            subscription.next(0.05)

    def use_bucket(self):
        key = f"k{self.random.randrange(5)}"
        self.bucket.put(key, b"v")
        self.random.choice((self.bucket.keys, lambda: self.bucket.get(key), lambda: self.bucket.purge(key)))()

    def flush(self):
        self.client.flush(self.random.choice((0.005, 2)))

    def fork(self):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.js.publish_async("f.child", b"-1")
            except ConnectionClosedError:
                code = 0
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise PromiseError("a forked child could publish through its parent's client")

    def force_reconnect(self):
        self.client.force_reconnect(5)

    def leave_behind(self):
        """A client that nobody closes sends what was published all the same, and goes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            js = self._connect(self.name).jetstream()
            number = self.model.new()
            self.model.pending.append((number, js.publish_async("f.left", b"%d" % number)))
            del js

    def restart(self):
        self.server.restart(self.random.choice((0, 0.1)), kill=self.random.random() < 0.5)
