"""A history of the asyncio client: tasks that do random things at once, cut off at random, through restarts."""

import asyncio
import contextlib
import gc

import jetlake
from jetlake.errors import ConnectionClosedError, JetlakeError, PublishWindowError
from tests.fuzz.client_model import STREAM, PromiseError

CALL_S = 20.0
ACTORS = 5


class AsyncHistory:
    """One client, one model, some tasks."""

    def __init__(self, model, server, seconds):
        self.model = model
        self.random = model.random
        self.server = server
        self.seconds = seconds
        self.operations = [
            (self.publish, 10),
            (self.publish_many, 10),
            (self.publish_load, 5),
            (self.publish_through_a_context, 2),
            (self.fetch, 6),
            (self.consume, 4),
            (self.read_in_order, 10),
            (self.ask, 4),
            (self.ask_where_denied, 1),
            (self.subscribe, 2),
            (self.use_bucket, 3),
            (self.consume_some, 2),
            (self.flush, 2),
            (self.force_reconnect, 0.5),
            (self.restart, 0.15),
        ]

    async def run(self, name):
        """Do random things for a while, then look at what became of everything."""
        before = asyncio.all_tasks()
        client = await jetlake.connect(
            self.server.url, name=name, request_timeout=2, reconnect_wait=0.01, reconnect_wait_max=0.1,
            on_error=lambda error: None,
        )  # fmt: skip
        self.client = client
        self.js = client.jetstream()
        stream = await self.js.create_stream(STREAM, subjects=["f.>"])
        self.worker = await stream.create_consumer("worker", ack_wait=1, max_ack_pending=10_000)
        self.bucket = await self.js.create_key_value("B")
        self.ordered = stream.ordered().consume(max_messages=20, expires=4, idle_heartbeat=2).start()
        self.ordered_turn = asyncio.Lock()
        await client.subscribe("echo", lambda message: message.respond(message.payload))
        await client.flush()
        self.deadline = asyncio.get_running_loop().time() + self.seconds
        end = self.random.choice((client.drain, client.close))
        early = self._end_early(end) if self.random.random() < 0.5 else asyncio.sleep(0)
        await asyncio.gather(early, *(self._act() for _ in range(ACTORS)))
        await self._settle()
        await self._in_time("the ordered read's stop", self.ordered.stop())
        self.ordered = None
        gc.collect()
        await asyncio.sleep(0)
        left = [receiver for receiver in client._connection.receivers() if type(receiver).__name__ != "PooledInbox"]
        if len(left) > 3:  # Requests, the window of `js`, the echo.
            raise PromiseError(f"{len(left)} subscriptions were left behind: {left[:5]}")
        await self._in_time("the end", end())
        await asyncio.sleep(0)
        if tasks := asyncio.all_tasks() - before:
            raise PromiseError(f"tasks were left behind: {tasks}")

    async def _act(self):
        loop = asyncio.get_running_loop()
        weights = [weight for _, weight in self.operations]
        while loop.time() < self.deadline:
            operation = self.random.choices(self.operations, weights)[0][0]
            self.model.count(operation.__name__)
            task = asyncio.create_task(operation())
            if operation != self.restart and self.random.random() < 0.4:
                await asyncio.wait([task], timeout=self.random.choice((0, 0.001, 0.005, 0.03)))
                if task.cancel():
                    self.model.count("cancelled")
            await asyncio.wait([task], timeout=CALL_S)
            if not task.done():
                raise PromiseError(f"{operation.__name__} did not end within {CALL_S} s: {waits_at(task)}")
            if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, JetlakeError):
                raise error

    async def _end_early(self, end):
        """Close while all others are at work."""
        await asyncio.sleep(self.seconds * 0.95)
        with contextlib.suppress(JetlakeError):
            await self._in_time("the end beside others", end())

    async def _in_time(self, what, work):
        try:
            return await asyncio.wait_for(work, CALL_S)
        except TimeoutError as error:
            if isinstance(error, JetlakeError):
                raise
            raise PromiseError(f"{what} did not come within {CALL_S} s") from None

    async def _settle(self):
        """Wait for what is under way."""
        with contextlib.suppress(PublishWindowError, ConnectionClosedError):
            await self._in_time("the completion of all publishes", self.js.publish_async_complete())
        for number, ack in self.model.pending:
            with contextlib.suppress(JetlakeError):
                await self._in_time("an acknowledgement", ack)
                self.model.stored(number)
        self.model.pending.clear()

    def _timeout(self):
        return self.random.choice((0.005, 0.2, 2))

    def _id(self, number):
        return f"m{number}" if self.random.random() < 0.5 else None

    # Operations

    async def publish(self):
        number = self.model.new()
        await self.js.publish(f"f.{number % 7}", b"%d" % number, msg_id=self._id(number), timeout=self._timeout())
        self.model.stored(number)

    async def publish_many(self):
        for _ in range(self.random.randrange(1, 40)):
            number = self.model.new()
            wait_s = self.random.choice((None, None, 0.02, 3))
            ack = await self.js.publish_async(
                f"f.{number % 7}", b"%d" % number, msg_id=self._id(number), timeout=wait_s
            )
            self.model.pending.append((number, ack))

    async def publish_load(self):
        numbers = [self.model.new() for _ in range(self.random.randrange(300))]
        has_ids = self.random.random() < 0.3
        try:
            await self.js.publish_many(
                (f"f.{number % 7}", b"%d" % number, {"msg_id": self._id(number)} if has_ids else None)[: 2 + has_ids]
                for number in numbers
            )
            failed = []
        except PublishWindowError as error:
            failed = error.positions
        for position in set(range(len(numbers))) - set(failed):
            self.model.stored(numbers[position])

    async def publish_through_a_context(self):
        js = self.client.jetstream(publish_window=self.random.choice((1, 5, 100)))
        for _ in range(10):
            number = self.model.new()
            ack = await js.publish_async("f.context", b"%d" % number)
            self.model.pending.append((number, ack))

    async def fetch(self):
        for message in await self.worker.fetch(self.random.randrange(1, 20), expires=self.random.choice((0.05, 0.3))):
            self._saw(message)

    async def consume(self):
        count = self.random.randrange(1, 50)
        async with self.worker.consume(max_messages=self.random.choice((1, 5, 100))) as messages:
            while count := count - 1:
                self._saw(await messages.next(0.2))

    async def consume_some(self):
        async for message in self.worker.consume(stop_after=self.random.randrange(1, 10), expires=4):
            self._saw(message)
            if self.random.random() < 0.1:
                break

    def _saw(self, message):
        self.model.seen.add(int(message.payload))
        message.ack()

    async def read_in_order(self):
        async with self.ordered_turn:
            self.model.ordered.append(int((await self.ordered.next(0.05)).payload))

    async def ask(self):
        answer = await self.client.request("echo", b"x", timeout=self._timeout())
        if answer.payload != b"x":
            raise PromiseError(f"the echo answered {answer}")

    async def ask_where_denied(self):
        try:
            await self.client.request("denied.a", timeout=1)
        except JetlakeError:
            return
        raise PromiseError("a denied request was answered")

    async def subscribe(self):
        subscription = await self.client.subscribe(self.random.choice(("denied.a", "core")))
        try:
            await self.client.publish("core", b"x")
            await subscription.next(0.05)
        finally:
            await (subscription.unsubscribe() if self.random.random() < 0.5 else subscription.drain(1))

    async def use_bucket(self):
        key = f"k{self.random.randrange(5)}"
        await self.bucket.put(key, b"v")
        await self.random.choice((self.bucket.keys, lambda: self.bucket.get(key), lambda: self.bucket.purge(key)))()

    async def flush(self):
        await self.client.flush(self.random.choice((0.005, 2)))

    async def force_reconnect(self):
        await self.client.force_reconnect(5)

    async def restart(self):
        kill, pause_s = self.random.random() < 0.5, self.random.choice((0, 0.1))
        await asyncio.to_thread(self.server.restart, pause_s, kill=kill)


async def leftovers(server):
    """The payloads in the stream, and those that the worker's consumer still gives; both are gone then."""
    async with await jetlake.connect(server.url, on_error=lambda error: None) as client:
        js = client.jetstream()
        stream = await js.stream(STREAM)
        count = (await stream.info()).state.messages
        stored = []
        ordered = stream.ordered()
        while len(stored) < count:
            stored += [int(message.payload) for message in await ordered.fetch(count - len(stored))]
        await ordered.delete()
        worker = await stream.consumer("worker")
        left = []
        while (info := await worker.info()).num_pending or info.num_ack_pending:
            for message in await worker.fetch(1000, expires=0.2):
                left.append(int(message.payload))
                message.ack()
        await stream.delete()
        await js.delete_key_value("B")
        return stored, left


def waits_at(task):
    """Where a task stands: the calls that wait for each other, the innermost last."""
    places, waiting = [], task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame is not None else repr(waiting))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return " > ".join(places)
