"""The edge: a second server, joined to the hub by a leaf connection, copies across the line, a stream that moves."""

import asyncio
import contextlib

import jetlake
from jetlake.client.migration.migration import Migration
from jetlake.errors import JetlakeError, NotFoundError
from jetlake.server.config.leaf_options import LeafListen, LeafOptions, LeafRemote, parse_leaf_url
from tests.world.book import BrokenPromiseError, Publishes
from tests.world.servers import ServerMachine
from tests.world.workload import Worker

__all__ = ["Edge", "EdgeWorker", "join_servers"]

_COPIES_S = 120


def join_servers(world, random, key, reconnect_s):
    """Return a hub and an edge, of which either dials the other."""
    listening = LeafOptions(listen=LeafListen(port=7422), reconnect_s=reconnect_s)
    names = ["hub", "edge"]
    listener = random.choice(names)
    remote = LeafRemote(urls=(parse_leaf_url(f"nats://{listener}:7422"),))
    dialling = LeafOptions(remotes=(remote,), reconnect_s=reconnect_s)
    return [
        ServerMachine(world, name, key, domain=name, options={"leafnodes": listening if name == listener else dialling})
        for name in names
    ]


def _external(domain):
    return {"api": f"$JS.{domain}.API", "deliver": ""}


class Edge:
    """What was promised at the edge and across the line.

    Attributes:
        local: messages to the stream of the edge.
        moved: messages to the stream that moves.
        source, target: where that stream was, and where it goes while a migration is under way.
    """

    def __init__(self, setup):
        self.setup = setup
        self.history = setup.history
        self.local = Publishes()
        self.moved = Publishes()
        hub, edge = self.history.servers
        self.source, self.target = hub, edge
        self.is_moving = False

    @contextlib.asynccontextmanager
    async def _both(self, **options):
        async with (
            jetlake.connect(self.source.url, **options) as one,
            jetlake.connect(self.target.url, **options) as two,
        ):
            yield one.jetstream(), two.jetstream()

    async def create(self, js):
        await js.create_stream("MOVE", subjects=["move.>"], duplicate_window=3600)
        await js.create_stream("FROM_EDGE", sources=[{"name": "EDGE", "external": _external("edge")}])
        async with jetlake.connect(self.target.url) as nc:
            at_edge = nc.jetstream()
            await at_edge.create_stream("EDGE", subjects=["edge.>"])
            await at_edge.create_stream("AWAY", mirror={"name": "PLAIN", "external": _external("hub")})

    # The move

    async def move(self):
        """Move the stream back and forth until the world is calm; whatever fails is tried again, or undone."""
        random = self.history.chance("mover")
        while not self.history.is_calm:
            await asyncio.sleep(random.choice((0.1, 1, 3)))
            task = asyncio.create_task(self._move(random))
            if random.random() < 0.5:
                await asyncio.wait([task], timeout=random.uniform(0.01, 0.6))
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                self.history.world.count(f"migration error {type(task.exception()).__name__}")
                if not isinstance(task.exception(), JetlakeError):
                    raise task.exception()

    async def _move(self, random=None):
        # What was begun is carried on: another run of the same migration, or the deletion of the closed source.
        async with self._both(request_timeout=3, connect_timeout=2) as (source, target):
            self.is_moving = True
            whole_bytes = None if random is None or random.random() < 0.5 else 0
            migration = Migration(source, target, "MOVE", drain_s=0.2, whole_max_bytes=whole_bytes)
            try:
                if random is not None and random.random() < 0.1:
                    await migration.undo()
                    self.is_moving = False
                    return
                await migration.run()
            except NotFoundError:
                # The source is deleted already: the answer to that was lost.
                await target.stream("MOVE")
            with contextlib.suppress(NotFoundError):
                await source.delete_stream("MOVE")
            self.source, self.target = self.target, self.source
            self.is_moving = False
            self.history.world.count("migrations")

    # Checks

    async def verify(self, js):
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _COPIES_S
        read_all = self.setup.read_all
        async with jetlake.connect(self.history.servers[1].url) as nc:
            at_edge = nc.jetstream()
            stream = await at_edge.stream("EDGE")
            local = await read_all(stream, (await stream.info()).state.messages)
            self.local.check([(sequence, int(payload)) for sequence, payload in local])
            await self._equal(at_edge, "AWAY", await self._content(js, "PLAIN"), deadline_s)
            await self._equal(js, "FROM_EDGE", local, deadline_s, are_sequences_own=True)
        while self.is_moving:
            try:
                await self._move()
            except JetlakeError as error:
                if loop.time() > deadline_s:
                    raise BrokenPromiseError(f"a migration does not end: {error!r}") from error
                await asyncio.sleep(1)
        async with self._both() as (there, elsewhere):
            with contextlib.suppress(NotFoundError):
                config = (await elsewhere.stream("MOVE")).config
                raise BrokenPromiseError(f"a stream that moved is at both ends: {config}")
            moved = await self._content(there, "MOVE")
        self.moved.check([(sequence, int(payload)) for sequence, payload in moved])

    async def _content(self, js, name):
        stream = await js.stream(name)
        return await self.setup.read_all(stream, (await stream.info()).state.messages)

    async def _equal(self, js, name, origin, deadline_s, *, are_sequences_own=False):
        """Wait until a copy holds what its origin holds, but for what it told as lost."""
        while True:
            copy = await self._content(js, name)
            lost = (await (await js.stream(name)).info()).state.lost
            told = set(lost.msgs or ()) if lost is not None else set()
            expected = [message for message in origin if are_sequences_own or message[0] not in told]
            if are_sequences_own:
                copy, expected = [payload for _, payload in copy], [payload for _, payload in expected]
            if copy == expected:
                return
            if asyncio.get_running_loop().time() > deadline_s:
                at = next((i for i, (one, other) in enumerate(zip(copy, expected, strict=False)) if one != other), -1)
                raise BrokenPromiseError(
                    f"{name} has {len(copy)} of {len(expected)} messages, the last {copy[-1:]} of {expected[-1:]}, "
                    f"the first difference is at {at}: {copy[at : at + 2]} for {expected[at : at + 2]}, lost {told}"
                )
            await asyncio.sleep(1)


class EdgeWorker(Worker):
    """A client of the edge, which reaches the hub's streams across the line too."""

    @property
    def url(self):
        return self.history.servers[1].url

    @property
    def operations(self):
        return _OPERATIONS

    async def publish_local(self, random):
        book = self.setup.edge.local
        for _ in range(random.randrange(1, 20)):
            number = next(self.setup.numbers)
            book.begin(number)
            with book.may_refuse(number):
                ack = await self.js.publish(f"edge.{number % 3}", b"%d" % number, timeout=random.choice((0.2, 3)))
                book.acked(number, ack.seq)

    async def fetch_across(self, random):
        consumer = await self.nc.jetstream(domain="hub").consumer("PLAIN", "workers")
        asked_ns = self.history.world.scheduler.now_ns
        async for message in consumer.fetch(random.randrange(1, 50), expires=random.choice((0.3, 2))):
            await self._handle(message, random, asked_ns)

    async def read_across(self, random):
        stream = await self.nc.jetstream(domain="hub").stream("PLAIN")
        read = []
        self.setup.ordered.append((f"{self.name} across", read))
        async with stream.ordered().consume(
            max_messages=random.choice((5, 100)), expires=5, idle_heartbeat=2
        ) as messages:
            for _ in range(random.randrange(1, 100)):
                if self.history.is_calm:
                    break
                message = await messages.next(2)
                read.append((message.metadata.stream_seq, bytes(message.payload)))


async def publish_to_moving(worker, random):
    """Publish to the stream that moves, on whichever side it is."""
    book = worker.setup.edge.moved
    for _ in range(random.randrange(1, 10)):
        number = next(worker.setup.numbers)
        book.begin(number)
        ack = await worker.js.publish(
            f"move.{number % 3}", b"%d" % number, msg_id=f"v{number}", timeout=random.choice((0.3, 3))
        )
        book.acked(number, ack.seq)


_OPERATIONS = [
    (Worker.publish, 6, None),
    (Worker.publish_window, 2, None),
    (EdgeWorker.publish_local, 5, None),
    (EdgeWorker.fetch_across, 3, None),
    (EdgeWorker.read_across, 1, None),
    (publish_to_moving, 3, None),
]
