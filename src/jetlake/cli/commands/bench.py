"""`jetlake bench …`: how fast clients of this command and that server are together."""

from __future__ import annotations

import asyncio
import csv
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import Struct

from jetlake.cli import output
from jetlake.cli.message_content import headers_of
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION, HEADER, SIZE
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from jetlake.client import Client, Consumer, JetStream, Message, Stream

_STREAM, _BUCKET, _CONSUMER, _SERVICE = "benchstream", "benchbucket", "nats-bench", "nats-bench-service"
_STEP = 1000
"""How many messages the progress bar moves by."""


class Plan(Struct, frozen=True):
    """What each client of a benchmark does."""

    session: Session
    clients: int
    msgs: int
    size: int
    sleep_s: float
    csv_file: str | None
    progress: bool
    as_json: bool

    def share(self, client: int) -> int:
        """Return how many of the messages a client has."""
        return self.msgs // self.clients + (1 if client < self.msgs % self.clients else 0)


class Run(Struct):
    """What one client did."""

    msgs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.msgs / max(self.seconds, 1e-9)


Work = Callable[["Client", int, "Callable[[int], None]"], Awaitable[int]]
"""What a client does: given its connection, its number of messages and a progress, the messages it has done."""


class _BenchGroup(SharedGroup):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answer `bench SUBJECT`, as early versions of `nats` had it, with the commands of today."""
        if self.name == "bench" and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            subject = args[0]
            ways = (
                f"jetlake bench pub {subject}",
                f"jetlake bench sub {subject}",
                f"jetlake bench js pub sync {subject}",
            )
            raise click.UsageError(f"{subject!r} is not a benchmark. For this subject: {', '.join(ways)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_BenchGroup)
def bench() -> None:
    """Measure publishing, subscribing, requests, JetStream and key-value buckets.

    All clients of one command run in one process, each with a connection of its own; start the command several times
    to use several cores.
    """


@bench.group("js")
def js_group() -> None:
    """Measure JetStream: publish to a stream, read from it."""


@js_group.group("pub")
def js_pub() -> None:
    """Publish to a stream, with an acknowledgement of each message."""


@js_group.group("get")
def js_get() -> None:
    """Read a stream by gets, without a consumer."""


@bench.group("kv")
def kv_group() -> None:
    """Measure a key-value bucket."""


@bench.group("service")
def service_group() -> None:
    """Measure requests and the replies of a service."""


def _common(function: Any) -> Any:
    """Add the options of every benchmark, which the command gets as its plan."""
    for option in (
        json_option,
        click.option(
            "--csv", "csv_file", metavar="FILE", help="Also write the result of each client to this CSV file."
        ),
        click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal."),
        click.option("--sleep", type=DURATION, default=0, help="Wait after each message."),
        click.option("--size", type=SIZE, default="128", show_default=True, help="Payload size."),
        click.option(
            "--msgs",
            default=100_000,
            show_default=True,
            type=click.IntRange(1),
            metavar="N",
            help="Number of messages, of all clients together.",
        ),
        click.option(
            "--clients", default=1, show_default=True, type=click.IntRange(1, 1000), metavar="N", help="Connections."
        ),
    ):
        function = option(function)
    return function


def _command(group: Any, name: str, example: str) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Any]:
    """Make a command of a function that takes a plan and its own options."""

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Any:
        async def run(
            session: Session,
            *,
            clients: int,
            msgs: int,
            size: int,
            sleep: int,
            csv_file: str | None,
            progress: bool,
            as_json: bool,
            **own: Any,
        ) -> None:
            plan = Plan(session, clients, msgs, size, sleep / NANOSECONDS_PER_SECOND, csv_file, progress, as_json)
            await function(plan, **own)

        wrapped = command(run)
        wrapped.__doc__ = function.__doc__
        options: list[Any] = getattr(function, "__click_params__", [])
        wrapped.__click_params__ = options  # type: ignore[attr-defined]
        return group.command(name, example=example)(_common(wrapped))

    return decorate


_subject = click.argument("subject")
_headers = click.option("-H", "--header", "headers", type=HEADER, multiple=True, help="Header; may be repeated.")
_payload = click.option(
    "--payload", "payload_file", type=click.Path(exists=True, dir_okay=False), help="Send the content of this file."
)
_multisubject = click.option("--multisubject", is_flag=True, help="Publish to SUBJECT.0, SUBJECT.1 and so on.")
_multisubject_max = click.option(
    "--multisubjectmax",
    "subjects_max",
    default=100_000,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="With --multisubject, number of subjects; 0 for one for each message.",
)
_stream = click.option("--stream", default=_STREAM, show_default=True, metavar="STREAM", help="The stream to use.")
_purge = click.option("--purge", is_flag=True, help="Purge before the measurement.")


def _options(*options: Any) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_publishing = _options(_subject, _multisubject, _multisubject_max, _payload, _headers)
_stream_making = _options(
    _stream,
    _purge,
    click.option("--create", is_flag=True, help="Create the stream, or change it to these options."),
    click.option("--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True),
    click.option("--replicas", type=click.IntRange(1), default=1, show_default=True, metavar="N"),
    click.option("--maxbytes", type=SIZE, default="1GB", show_default=True, help="Maximum size of the stream."),
    click.option("--dedup", is_flag=True, help="Send a message id with each message."),
    click.option("--dedupwindow", type=DURATION, default="2m", show_default=True, help="How long ids are remembered."),
)
_consuming = _options(
    _stream,
    _purge,
    click.option("--consumer", default=_CONSUMER, show_default=True, metavar="NAME", help="The durable consumer."),
    click.option(
        "--batch",
        default=500,
        show_default=True,
        type=click.IntRange(1),
        metavar="N",
        help="Messages asked for at once.",
    ),
    click.option(
        "--acks",
        type=click.Choice(["explicit", "none", "all"]),
        default="explicit",
        show_default=True,
        help="Ack policy of the consumer.",
    ),
    click.option("--doubleack", is_flag=True, help="Wait until the server has confirmed each ack."),
    click.option("--filter", "filters", multiple=True, metavar="SUBJECT", help="Read only these subjects."),
)


# The frame


async def _measure(plan: Plan, title: str, work: Work, *, verb: str = "msgs", has_size: bool = True) -> None:
    """Run the work with each client at the same time, and report it."""
    runs: list[Run] = []
    if not plan.as_json:
        clients = output.plural(plan.clients, "client")
        click.echo(f"Starting {title} [{clients}, {plan.msgs:,} {verb}, {output.size(plan.size)} each]", err=True)
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(await plan.session.connect()) for _ in range(plan.clients)]
        with output.Bar(title, plan.msgs, is_shown=plan.progress) as bar:

            async def one(number: int) -> None:
                began = time.perf_counter()
                done = await work(connections[number], plan.share(number), bar.advance)
                runs.append(Run(done, time.perf_counter() - began))

            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(plan.clients):
                    group.create_task(one(number))
            total = Run(sum(run.msgs for run in runs), time.perf_counter() - began)
        for client in connections:
            raise_refused(client)
    _report(plan, title, total, runs, plan.size if has_size else 0)


def _report(plan: Plan, title: str, total: Run, runs: list[Run], size: int) -> None:
    if plan.csv_file:
        with Path(plan.csv_file).open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["client", "messages", "size", "seconds", "messages_per_second"])
            rows.writerows(
                [number, run.msgs, size, f"{run.seconds:.6f}", round(run.rate)] for number, run in enumerate(runs, 1)
            )
    if plan.as_json:
        output.print_json(
            {
                "test": title,
                "clients": plan.clients,
                "messages": total.msgs,
                "size": size,
                "seconds": total.seconds,
                "rate": round(total.rate),
            }
        )
        return
    click.echo(f"\n{title} stats: {_rate(total, size)}")
    if len(runs) > 1:
        for number, run in enumerate(runs, 1):
            click.echo(f" [{number}] {_rate(run, size)} ({run.msgs:,} msgs)")
        rates = [run.rate for run in runs]
        click.echo(
            f" message rates min {min(rates):,.0f} | avg {sum(rates) / len(rates):,.0f} | max {max(rates):,.0f} | "
            f"stddev {pstdev(rates):,.0f} msgs"
        )


def _rate(run: Run, size: int) -> str:
    bandwidth = f" ~ {output.size(int(run.rate * size))}/sec" if size else ""
    return f"{run.rate:,.0f} msgs/sec{bandwidth} ~ {run.seconds / max(run.msgs, 1) * 1e6:,.2f}us"


def _content(plan: Plan, payload_file: str | None) -> bytes:
    return Path(payload_file).read_bytes() if payload_file else b"x" * plan.size


def _sized(plan: Plan, content: bytes) -> Plan:
    return Plan(
        plan.session, plan.clients, plan.msgs, len(content), plan.sleep_s, plan.csv_file, plan.progress, plan.as_json
    )


def _subjects(subject: str, multisubject: bool, subjects_max: int) -> Callable[[int], str]:
    if not multisubject:
        return lambda _: subject
    return lambda number: f"{subject}.{number % subjects_max if subjects_max else number}"


async def _pause(plan: Plan) -> None:
    if plan.sleep_s:
        await asyncio.sleep(plan.sleep_s)


# Core


@_command(bench, "pub", "jetlake bench pub test --msgs 10000 --size 256")
@_publishing
async def publish(
    plan: Plan,
    subject: str,
    multisubject: bool,
    subjects_max: int,
    payload_file: str | None,
    headers: tuple[tuple[str, str], ...],
) -> None:
    """Publish to SUBJECT without waiting for subscribers."""
    content, sent = _content(plan, payload_file), headers_of(headers) or None
    subject_of = _subjects(subject, multisubject, subjects_max)

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        for number in range(count):
            await client.publish(subject_of(number), content, headers=sent)
            await _pause(plan)
            if number % _STEP == _STEP - 1:
                advance(_STEP)
        await client.flush(timeout=60)
        return count

    await _measure(_sized(plan, content), "Core NATS publisher", work)


@_command(bench, "sub", "jetlake bench sub test --msgs 10000")
@_options(_subject, _multisubject)
async def subscribe(plan: Plan, subject: str, multisubject: bool) -> None:
    """Wait for messages on SUBJECT, which each client receives; measured from the first message on.

    The messages are published by another command: jetlake bench pub SUBJECT.
    """
    runs: list[Run] = []
    sizes = [0]

    async def work(client: Client, _count: int, advance: Callable[[int], None]) -> int:
        left, began = plan.msgs, 0.0
        pattern = f"{subject}.>" if multisubject else subject
        limits: dict[str, Any] = {"pending_messages_max": 10_000_000, "pending_bytes_max": 1024**3}
        async with await client.subscribe(pattern, **limits) as subscription:
            await client.flush()
            raise_refused(client)
            async for batch in subscription.batches():
                began = began or time.perf_counter()
                left -= len(batch)
                sizes[0] = max(sizes[0], len(batch[0].data))
                advance(len(batch))
                if left <= 0:
                    break
        runs.append(Run(plan.msgs, time.perf_counter() - began))
        return plan.msgs

    if not plan.as_json:
        click.echo(
            f"Starting Core NATS subscriber [{output.plural(plan.clients, 'client')}, {plan.msgs:,} msgs]", err=True
        )
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await plan.session.connect()) for _ in range(plan.clients)]
        with output.Bar("Subscribing", plan.msgs * plan.clients, is_shown=plan.progress) as bar:
            await asyncio.gather(*(work(client, plan.msgs, bar.advance) for client in clients))
    total = Run(sum(run.msgs for run in runs), max(run.seconds for run in runs))
    _report(plan, "Core NATS subscriber", total, runs, sizes[0])


@_command(service_group, "request", "jetlake bench service request test --msgs 1000")
@_options(_subject, _payload, _headers)
async def request(plan: Plan, subject: str, payload_file: str | None, headers: tuple[tuple[str, str], ...]) -> None:
    """Send requests to SUBJECT, each after the reply to the one before."""
    content, sent = _content(plan, payload_file), headers_of(headers) or None

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        for number in range(count):
            await client.request(subject, content, headers=sent, timeout=plan.session.timeout_s)
            await _pause(plan)
            if number % 100 == 99:
                advance(100)
        return count

    await _measure(_sized(plan, content), "Core NATS service requester", work)


@_command(service_group, "serve", "jetlake bench service serve test --clients 2")
@_options(_subject)
async def serve(plan: Plan, subject: str) -> None:
    """Answer requests on SUBJECT until Ctrl-C, with the size of --size, as a service that `jetlake micro ls` lists."""
    answer = b"x" * plan.size
    async with AsyncExitStack() as stack:
        for _ in range(plan.clients):
            client = await stack.enter_async_context(await plan.session.connect(stay=True))
            service = await stack.enter_async_context(client.service(_SERVICE, "1.0.0"))

            async def handler(_request: Any) -> bytes:
                await _pause(plan)
                return answer

            service.add_endpoint("bench", handler, subject=subject)
            await client.flush()
        click.echo(f"Listening on {subject}; press Ctrl-C to stop", err=True)
        await asyncio.Event().wait()


# JetStream


async def _made_stream(plan: Plan, stream: str, subject: str, multisubject: bool, options: dict[str, Any]) -> None:
    """Create the stream if that is asked for, and purge it."""
    async with plan.session.jetstream() as js:
        if options["create"]:
            await js.create_or_update_stream(
                stream,
                subjects=[f"{subject}.>" if multisubject else subject],
                storage=options["storage"],
                num_replicas=options["replicas"],
                max_bytes=options["maxbytes"],
                duplicate_window=options["dedupwindow"] / NANOSECONDS_PER_SECOND,
                discard="old",
                allow_direct=True,
                allow_atomic=True,
            )
        if options["purge"]:
            await (await js.stream(stream)).purge()
        elif not options["create"]:
            await js.stream(stream)


def _ids(dedup: bool) -> Callable[[int], str | None]:
    run = f"{random.getrandbits(48):012x}"
    return (lambda number: f"{run}-{number}") if dedup else (lambda _: None)


async def _publish_to_stream(
    plan: Plan,
    kind: str,
    batch: int,
    *,
    stream: str,
    subject: str,
    multisubject: bool,
    subjects_max: int,
    payload_file: str | None,
    headers: tuple[tuple[str, str], ...],
    **options: Any,
) -> None:
    await _made_stream(plan, stream, subject, multisubject, options)
    content, sent = _content(plan, payload_file), headers_of(headers)
    subject_of = _subjects(subject, multisubject, subjects_max)

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        js, id_of = plan.session.jetstream_of(client), _ids(options["dedup"])
        for start in range(0, count, batch):
            numbers = range(start, min(start + batch, count))
            await _batch(js, kind, numbers, subject_of, content, sent, id_of, plan)
            advance(len(numbers))
        return count

    await _measure(_sized(plan, content), f"JetStream {kind} publisher", work)


async def _batch(
    js: JetStream,
    kind: str,
    numbers: range,
    subject_of: Callable[[int], str],
    content: bytes,
    headers: dict[str, Any],
    id_of: Callable[[int], str | None],
    plan: Plan,
) -> None:
    """Publish some messages and wait for their acknowledgements."""
    if kind == "batched":
        async with js.batch() as batch:
            for number in numbers:
                batch.publish(subject_of(number), content, headers=headers or None)
        await _pause(plan)
        return
    for number in numbers:
        options: dict[str, Any] = {"headers": headers or None, "msg_id": id_of(number)}
        if kind == "synchronous":
            await js.publish(subject_of(number), content, **options)
        else:
            await js.publish_async(subject_of(number), content, **options)
        await _pause(plan)
    if kind == "asynchronous":
        await js.publish_async_complete()


_batch_size = click.option(
    "--batch", default=500, show_default=True, type=click.IntRange(1), metavar="N", help="Messages of a batch."
)


@_command(js_pub, "sync", "jetlake bench js pub sync test --create --msgs 1000")
@_options(_publishing, _stream_making)
async def publish_sync(plan: Plan, **options: Any) -> None:
    """Wait for the acknowledgement of each message before the next."""
    await _publish_to_stream(plan, "synchronous", 100, **options)


@_command(js_pub, "async", "jetlake bench js pub async test --create --msgs 10000")
@_options(_publishing, _stream_making, _batch_size)
async def publish_async(plan: Plan, batch: int, **options: Any) -> None:
    """Publish batches without waiting in between, then wait for the acknowledgements of each batch."""
    await _publish_to_stream(plan, "asynchronous", batch, **options)


@_command(js_pub, "batch", "jetlake bench js pub batch test --create --msgs 10000")
@_options(_publishing, _stream_making, _batch_size)
async def publish_batch(plan: Plan, batch: int, **options: Any) -> None:
    """Publish atomic batches, each of which is stored whole."""
    await _publish_to_stream(plan, "batched", batch, **options)


async def _held(js: JetStream, stream: str) -> Stream:
    """Return the stream that is read; ends the command when it is empty, for nothing would ever come."""
    handle = await js.stream(stream)
    if not handle.cached_info.state.messages:
        fail(f"stream {stream} has no messages. Publish some: jetlake bench js pub async test --create", EXIT_USAGE)
    return handle


@_command(js_group, "ordered", "jetlake bench js ordered --msgs 10000")
@_options(
    _stream,
    click.option("--filter", "filters", multiple=True, metavar="SUBJECT", help="Read only these subjects."),
    click.option(
        "--batch",
        default=1000,
        show_default=True,
        type=click.IntRange(1),
        metavar="N",
        help="Maximum messages requested ahead.",
    ),
    _purge,
)
async def ordered(plan: Plan, stream: str, filters: tuple[str, ...], batch: int, purge: bool) -> None:
    """Read a stream in order, without acknowledgements; each client reads all messages."""
    if purge:
        async with plan.session.jetstream() as js:
            await (await _held(js, stream)).purge()

    async def work(client: Client, _count: int, advance: Callable[[int], None]) -> int:
        handle = await _held(plan.session.jetstream_of(client), stream)
        left = plan.msgs
        async for received in handle.ordered(filter_subjects=filters or None).consume(max_messages=batch).batches():
            left -= len(received)
            advance(len(received))
            if plan.sleep_s:
                await asyncio.sleep(plan.sleep_s * len(received))
            if left <= 0 or received[-1].metadata.pending == 0:
                break
        return plan.msgs - max(left, 0)

    await _measure(plan, "JetStream ordered consumer", work, has_size=False)


class Reading(NamedTuple):
    """How the clients of a durable consumer read."""

    stream: str
    purge: bool
    consumer: str
    batch: int
    acks: str
    doubleack: bool
    filters: tuple[str, ...]


async def _consumer_of(plan: Plan, reading: Reading) -> None:
    """Create the durable consumer that the clients share, from the first message on."""
    name = reading.consumer
    async with plan.session.jetstream() as js:
        handle = await _held(js, reading.stream)
        if reading.purge:
            await handle.purge()
        if name in await handle.consumer_names():
            await handle.delete_consumer(name)
        options: dict[str, Any] = {"filter_subjects": list(reading.filters)} if reading.filters else {}
        ack_policy: Any = reading.acks
        await handle.create_consumer(name, durable=True, ack_policy=ack_policy, max_ack_pending=-1, **options)


class _Countdown:
    """How many messages the clients of a consumer have still to receive, together."""

    def __init__(self, msgs: int) -> None:
        self.left = msgs
        self.is_over = asyncio.Event()

    def receive(self, messages: Sequence[Message]) -> None:
        """Count messages down; it is over at zero, and when the consumer has no more."""
        self.left -= len(messages)
        if self.left <= 0 or not messages or messages[-1].metadata.pending == 0:
            self.is_over.set()

    async def batches(self, incoming: AsyncIterator[Sequence[Message]]) -> AsyncIterator[Sequence[Message]]:
        """Yield batches until it is over for all clients."""
        ended: asyncio.Future[Any] = asyncio.ensure_future(self.is_over.wait())
        try:
            while not ended.done():
                following: asyncio.Future[Any] = asyncio.ensure_future(anext(incoming))
                await asyncio.wait([ended, following], return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    return
                yield following.result()
        finally:
            ended.cancel()


Batches = Callable[["Consumer", _Countdown], "AsyncIterator[Sequence[Message]]"]
"""Yields what a client receives until the countdown is over."""


@_command(js_group, "consume", "jetlake bench js consume --msgs 10000")
@_consuming
async def consume(plan: Plan, **options: Any) -> None:
    """Consume continuously with a durable consumer, whose messages the clients share."""
    reading = Reading(**options)

    async def batches(handle: Consumer, countdown: _Countdown) -> AsyncIterator[Sequence[Message]]:
        async with handle.consume(max_messages=reading.batch) as messages:
            async for received in countdown.batches(aiter(messages.batches())):
                yield received

    await _share(plan, "JetStream durable consumer (consume)", reading, batches)


@_command(js_group, "fetch", "jetlake bench js fetch --msgs 10000 --batch 100")
@_consuming
async def fetch(plan: Plan, **options: Any) -> None:
    """Fetch batches with a durable consumer, whose messages the clients share."""
    reading = Reading(**options)

    async def batches(handle: Consumer, countdown: _Countdown) -> AsyncIterator[Sequence[Message]]:
        while not countdown.is_over.is_set():
            yield await handle.fetch(min(reading.batch, countdown.left), expires=1)

    await _share(plan, "JetStream durable consumer (fetch)", reading, batches)


async def _share(plan: Plan, title: str, reading: Reading, batches: Batches) -> None:
    """Read with all clients from one durable consumer, until they have the messages between them."""
    await _consumer_of(plan, reading)
    countdown = _Countdown(plan.msgs)

    async def work(client: Client, _count: int, advance: Callable[[int], None]) -> int:
        done = 0
        handle = await plan.session.jetstream_of(client).consumer(reading.stream, reading.consumer)
        async for received in batches(handle, countdown):
            done += len(received)
            advance(len(received))
            await _acknowledge(plan, received, reading.acks, reading.doubleack)
            countdown.receive(received)
        return done

    await _measure(plan, title, work, has_size=False)


async def _acknowledge(plan: Plan, messages: Any, acks: str, doubleack: bool) -> None:
    for message in messages:
        await _pause(plan)
        if acks == "explicit":
            await (message.ack_sync() if doubleack else message.ack())
    if acks == "all":
        await (messages[-1].ack_sync() if doubleack else messages[-1].ack()) if messages else None


@_command(js_get, "sync", "jetlake bench js get sync --msgs 1000")
@_options(_stream)
async def get_sync(plan: Plan, stream: str) -> None:
    """Get one message after the other by its sequence."""

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        handle = await _held(plan.session.jetstream_of(client), stream)
        state = handle.cached_info.state
        for number in range(count):
            await handle.get(state.first_seq + number % max(state.last_seq - state.first_seq + 1, 1))
            await _pause(plan)
            if number % 100 == 99:
                advance(100)
        return count

    await _measure(plan, "JetStream synchronous getter", work, has_size=False)


@_command(js_get, "batched", "jetlake bench js get batched --msgs 10000")
@_options(
    _stream,
    _batch_size,
    click.option(
        "--filter", "pattern", default=">", show_default=True, metavar="SUBJECT", help="Read only this subject."
    ),
)
async def get_batch(plan: Plan, stream: str, batch: int, pattern: str) -> None:
    """Get batches of messages with direct gets."""

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        handle = await _held(plan.session.jetstream_of(client), stream)
        done, sequence = 0, handle.cached_info.state.first_seq
        while done < count:
            answers = handle.get_batch(min(batch, count - done), sequence=sequence, next_by_subject=pattern)
            received = [one async for one in answers]
            done += len(received)
            advance(len(received))
            if not received or received[-1].sequence >= handle.cached_info.state.last_seq:
                break
            sequence = received[-1].sequence + 1
            await _pause(plan)
        return done

    await _measure(plan, "JetStream batched direct getter", work, has_size=False)


# Key-value

_bucket = click.option("--bucket", default=_BUCKET, show_default=True, metavar="BUCKET", help="The bucket to use.")


@_command(kv_group, "put", "jetlake bench kv put --msgs 1000")
@_options(
    _bucket,
    _purge,
    click.option("--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True),
    click.option("--replicas", type=click.IntRange(1), default=1, show_default=True, metavar="N"),
    click.option("--maxbytes", type=SIZE, default="1GB", show_default=True, help="Maximum size of the bucket."),
    click.option("--history", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N"),
)
async def kv_put(
    plan: Plan, bucket: str, purge: bool, storage: Any, replicas: int, maxbytes: int, history: int
) -> None:
    """Put values under the keys 0, 1 and so on; the bucket is created."""
    async with plan.session.jetstream() as js:
        made = await js.create_or_update_key_value(
            bucket, storage=storage, num_replicas=replicas, max_bytes=maxbytes, history=history
        )
        if purge:
            await made.stream.purge()
    content = b"x" * plan.size

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        handle = await plan.session.jetstream_of(client).key_value(bucket)
        for number in range(count):
            await handle.put(str(number), content)
            await _pause(plan)
            if number % 100 == 99:
                advance(100)
        return count

    await _measure(plan, "JetStream KV putter", work)


@_command(kv_group, "get", "jetlake bench kv get --msgs 1000 --randomize 1000")
@_options(
    _bucket,
    click.option(
        "--randomize",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        metavar="N",
        help="Get random keys below N; 0 for keys in order.",
    ),
)
async def kv_get(plan: Plan, bucket: str, randomize: int) -> None:
    """Get the values of the keys 0, 1 and so on, as `bench kv put` makes them."""
    async with plan.session.jetstream() as js:
        keys = (await (await js.key_value(bucket)).status()).stream.state.num_subjects
        if not keys:
            fail(f"bucket {bucket} has no keys. Put some: jetlake bench kv put --bucket {bucket}", EXIT_USAGE)

    async def work(client: Client, count: int, advance: Callable[[int], None]) -> int:
        handle = await plan.session.jetstream_of(client).key_value(bucket)
        for number in range(count):
            key = random.randrange(min(randomize, keys)) if randomize else number % keys
            await handle.get(str(key), default=None)
            await _pause(plan)
            if number % 100 == 99:
                advance(100)
        return count

    await _measure(plan, "JetStream KV getter", work, has_size=False)
