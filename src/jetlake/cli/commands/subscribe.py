"""`jetlake sub`: print messages as they are published, or as a stream holds them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from jetlake.cli import output
from jetlake.cli.graphs import Chart, show_graphs
from jetlake.cli.message_content import (
    command_words,
    message_fields,
    print_line,
    print_parts,
    translate_option,
    translated,
)
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import TIME, WAIT
from jetlake.errors import NotJetStreamMessageError
from jetlake.model.encoding.codec import encode_shown
from jetlake.model.encoding.times import wire_time
from jetlake.protocol.subjects import matches

if TYPE_CHECKING:
    from jetlake.client import Client, JetStream, Message, Stream
    from jetlake.client.streams.stored_message import StoredMessage
    from jetlake.model.ack_subject import AckSubject

_WAITING_MAX = 65_536
_REQUESTS_MAX = 10_000
"""How many requests wait for their replies with --match-replies; the oldest are printed without one."""
_SUBJECTS_MAX = 1_000_000
"""How many subjects a report counts."""
_REPORT_S = 1.0


class Shown(Struct, frozen=True):
    """How a message is printed."""

    raw: bool
    as_json: bool
    headers_only: bool
    subjects_only: bool
    timestamp: bool
    delta: bool
    dump: str | None
    words: list[str]
    """The command that translates contents."""
    began: float


class Start(Struct, frozen=True):
    """Which stream is read, and from where on."""

    stream: str
    sequence: int | None
    everything: bool
    new: bool
    last: bool
    since: int | None
    last_per_subject: bool
    durable: str | None

    @property
    def is_given(self) -> bool:
        """Return whether the line asks for a stream at all."""
        return bool(self.stream or self.durable) or self.points > 0

    @property
    def points(self) -> int:
        """Count the options that say where to start."""
        points = (self.sequence, self.since)
        flags = (self.everything, self.new, self.last, self.last_per_subject)
        return sum(flags) + sum(point is not None for point in points)

    def fields(self) -> dict[str, Any]:
        """Return where a consumer begins."""
        if self.sequence is not None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.sequence}
        if self.since is not None:
            return {"deliver_policy": "by_start_time", "opt_start_time": wire_time(self.since)}
        if self.new or not self.points:
            return {"deliver_policy": "new" if self.new else "all"}
        return {"deliver_policy": "last" if self.last else "last_per_subject" if self.last_per_subject else "all"}


@click.command(cls=SharedCommand, example="jetlake sub 'orders.>' --last-per-subject")
@click.argument("subjects", nargs=-1)
@click.option("-q", "--queue", default="", metavar="GROUP", help="Queue group.")
@click.option("--durable", metavar="NAME", help="Read a stream with this durable consumer.")
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@translate_option
@click.option("--ack", is_flag=True, help="Acknowledge messages of a stream that a push consumer delivers.")
@click.option("--match-replies", is_flag=True, help="Print each request together with its reply.")
@click.option("-i", "--inbox", is_flag=True, help="Subscribe to a new inbox, whose subject is printed.")
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N messages.")
@click.option(
    "--dump",
    metavar="DIRECTORY",
    help="Write each message to a JSON file in DIRECTORY; - writes to standard output, ended by NUL for xargs -0.",
)
@click.option("--headers-only", is_flag=True, help="Print only headers.")
@click.option("--subjects-only", is_flag=True, help="Print only subjects.")
@click.option("--start-sequence", type=click.IntRange(1), metavar="N", help="Read a stream from this sequence on.")
@click.option("--all", "everything", is_flag=True, help="Read all messages of a stream.")
@click.option("--new", is_flag=True, help="Read the new messages of a stream.")
@click.option("--last", is_flag=True, help="Read a stream from its newest message on.")
@click.option("--since", type=TIME, metavar="DURATION|TIME", help="Read a stream from this long ago, or this time on.")
@click.option("--last-per-subject", is_flag=True, help="Read the newest message of each subject of a stream.")
@click.option("-T", "--terminate-at-end", is_flag=True, help="Stop when all messages of the stream are printed.")
@click.option("--stream", default="", metavar="STREAM", shell_complete=stream_names, help="Read this stream.")
@click.option(
    "-I", "--ignore-subject", "ignored", multiple=True, metavar="SUBJECT", help="Print no messages that match this."
)
@click.option("--wait", type=WAIT, help="Stop after this long without a message.")
@click.option("--report-subjects", is_flag=True, help="Count the messages of each subject instead of printing them.")
@click.option(
    "--report-subscriptions", is_flag=True, help="Count the messages of each subscription instead of printing them."
)
@click.option(
    "--report-top", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Rows of a report."
)
@click.option("-t", "--timestamp", is_flag=True, help="Print the time of arrival.")
@click.option("-d", "--delta-time", is_flag=True, help="Print the time since the start.")
@click.option("--direct", is_flag=True, help="Read the stream by direct gets in batches, without a consumer.")
@click.option("--graph", is_flag=True, help="Draw messages per second instead of printing them; needs a terminal.")
@json_option
@command
async def sub(
    session: Session,
    subjects: tuple[str, ...],
    queue: str,
    durable: str | None,
    raw: bool,
    translate: str | None,
    ack: bool,
    match_replies: bool,
    inbox: bool,
    count: int,
    dump: str | None,
    headers_only: bool,
    subjects_only: bool,
    start_sequence: int | None,
    everything: bool,
    new: bool,
    last: bool,
    since: int | None,
    last_per_subject: bool,
    terminate_at_end: bool,
    stream: str,
    ignored: tuple[str, ...],
    wait: float | None,
    report_subjects: bool,
    report_subscriptions: bool,
    report_top: int,
    timestamp: bool,
    delta_time: bool,
    direct: bool,
    graph: bool,
    as_json: bool,
) -> None:
    """Print messages published to SUBJECTS until Ctrl-C, or a stream's messages, with --stream, --all or --last."""
    start = Start(stream, start_sequence, everything, new, last, since, last_per_subject, durable)
    _check(subjects, start, queue, inbox=inbox, match_replies=match_replies, terminate=terminate_at_end)
    if direct and (ack or durable or not start.is_given):
        fail("--direct needs --stream, --all or another start in a stream, and neither --durable nor --ack", EXIT_USAGE)
    shown = Shown(
        raw=raw,
        as_json=as_json,
        headers_only=headers_only,
        subjects_only=subjects_only,
        timestamp=timestamp,
        delta=delta_time,
        dump=dump,
        words=command_words("--translate", translate),
        began=time.monotonic(),
    )
    _prepare_dump(dump)
    async with await session.connect(stay=True) as client:
        if inbox:
            subjects = (client.new_inbox(),)
        replies: asyncio.Queue[Message] = asyncio.Queue(_WAITING_MAX)
        if match_replies:
            await client.subscribe("_INBOX.>", replies.put)
        says = inbox or not (raw or subjects_only or dump or as_json)
        async with AsyncExitStack() as stack:
            if direct:
                source = await _directly(session.jetstream_of(client), subjects, start, terminate_at_end, says)
            elif start.is_given:
                source = await stack.enter_async_context(
                    _of_stream(
                        session.jetstream_of(client), subjects, start, count, headers_only, terminate_at_end, says
                    )
                )
            else:
                source = await stack.enter_async_context(_of_subjects(client, subjects, queue, says))
            wanted = _not_ignored(source, ignored)
            if graph:
                await _graph(wanted, subjects)
            elif report_subjects or report_subscriptions:
                by = subjects if report_subscriptions else ()
                await _report(_until(wanted, count, wait), by, report_top, as_json)
            elif match_replies:
                await _matched(replies, _until(wanted, count, wait), shown)
            else:
                await _print_all(_until(wanted, count, wait), shown, ack=ack or bool(durable), of_stream=start.is_given)


def _check(
    subjects: tuple[str, ...], start: Start, queue: str, *, inbox: bool, match_replies: bool, terminate: bool
) -> None:
    """End the command where its options contradict each other."""
    if not subjects and not inbox and not start.stream:
        fail("subject is missing; for example: jetlake sub 'orders.>'", EXIT_USAGE)
    if inbox and (subjects or start.is_given):
        fail("--inbox needs neither subjects nor a stream", EXIT_USAGE)
    if start.is_given and (queue or match_replies):
        fail("--queue and --match-replies can not be combined with reading a stream", EXIT_USAGE)
    if start.points > 1:
        fail("use only one of --start-sequence, --all, --new, --last, --since and --last-per-subject", EXIT_USAGE)
    if terminate and not start.is_given:
        fail("--terminate-at-end needs a stream; use it with --stream or --all", EXIT_USAGE)


@asynccontextmanager
async def _of_subjects(
    client: Client, subjects: tuple[str, ...], queue: str, says: bool
) -> AsyncIterator[AsyncIterator[Message]]:
    """Subscribe; yields the messages of all subjects as they arrive."""
    waiting: asyncio.Queue[Message] = asyncio.Queue(_WAITING_MAX)
    single = await client.subscribe(subjects[0], queue=queue) if len(subjects) == 1 else None
    for subject in subjects if single is None else ():
        await client.subscribe(subject, waiting.put, queue=queue)
    await client.flush()
    raise_refused(client)
    if says:
        click.echo(f"Subscribing on {', '.join(subjects)}", err=True)
    yield _taken(waiting) if single is None else aiter(single)


async def _taken(waiting: asyncio.Queue[Message]) -> AsyncIterator[Message]:
    while True:
        yield await waiting.get()


@asynccontextmanager
async def _of_stream(
    js: JetStream, subjects: tuple[str, ...], start: Start, count: int, headers_only: bool, terminate: bool, says: bool
) -> AsyncIterator[AsyncIterator[Message]]:
    """Read a stream: in order without a trace there, or with a durable consumer."""
    handle = await _stream_of(js, subjects, start)
    name = handle.name
    fields = {**start.fields(), "headers_only": headers_only}
    if says:
        about = f" with subject {', '.join(subjects)}" if subjects else ""
        where = fields["deliver_policy"].replace("_", " ")
        click.echo(f"Subscribing to stream {name} holding messages{about}, delivering {where}", err=True)
    if start.durable:
        filters: dict[str, Any] = {"filter_subjects": list(subjects)} if subjects else {}
        consumer: Any = await handle.create_or_update_consumer(start.durable, durable=True, **fields, **filters)
        info = await consumer.info()
        # No more is requested than is printed: a message fetched ahead would count as a delivery.
        reading = consumer.consume(stop_after=count or None)
    else:
        consumer = handle.ordered(filter_subjects=subjects or None, **fields)
        reading, info = consumer.consume(), None
    async with reading as messages:
        if not terminate:
            yield aiter(messages)
        elif info is None:
            yield _to_the_end(aiter(messages)) if await messages.pending_at_start() else _first(messages, 0)
        else:
            yield _first(messages, info.num_pending + info.num_ack_pending)


async def _stream_of(js: JetStream, subjects: tuple[str, ...], start: Start) -> Stream:
    """Return the stream that is named, or else the one that captures the first subject."""
    if start.stream:
        return await js.stream(start.stream)
    found = await js.stream_names(subject=subjects[0])
    if not found:
        fail(f"no stream captures {subjects[0]!r}. List streams: jetlake stream ls")
    return await js.stream(found[0])


_DIRECT_BATCH = 500
_DIRECT_POLL_S = 1.0


async def _directly(
    js: JetStream, subjects: tuple[str, ...], start: Start, terminate: bool, says: bool
) -> AsyncIterator[Message]:
    """Read a stream by direct gets; where it ends, look for new messages every second."""
    from jetlake.client.messages.message import Message
    from jetlake.model.ack_subject import AckSubject

    class Stored(Message, gc=False, eq=False):
        """A message that no consumer delivered, with its place."""

        place: AckSubject | None = None

        @property
        def metadata(self) -> AckSubject:
            assert self.place is not None
            return self.place

    handle = await _stream_of(js, subjects, start)
    if says:
        about = f" with subject {', '.join(subjects)}" if subjects else ""
        click.echo(f"Reading stream {handle.name}{about} by direct gets", err=True)

    async def read() -> AsyncIterator[Message]:
        async for one in _stored(handle, subjects or (">",), start, terminate):
            place = AckSubject(handle.name, "", 1, one.sequence, 0, one.time_ns, 0)
            yield Stored(one.subject.encode("utf-8", "surrogateescape"), b"", b"", one.header, one.payload, place=place)

    return read()


async def _stored(
    handle: Stream, subjects: tuple[str, ...], start: Start, terminate: bool
) -> AsyncIterator[StoredMessage]:
    """Yield what a stream holds from the start on, and then what it gets."""
    patterns = [subject.encode() for subject in subjects]
    last = handle.cached_info.state.last_seq
    sequence, since = start.sequence or 1, None if start.since is None else wire_time(start.since)
    if start.new:
        sequence = last + 1
    if start.last or start.last_per_subject:
        newest = [one async for one in handle.get_batch(last_by_subjects=subjects, up_to_sequence=last)] if last else []
        for one in newest[-1:] if start.last else newest:
            yield one
        sequence = last + 1
    while True:
        number = 0
        wanted: dict[str, Any] = {"sequence": sequence} if since is None else {"start_time": since}
        pattern = subjects[0] if len(subjects) == 1 else ">"
        async for one in handle.get_batch(_DIRECT_BATCH, next_by_subject=pattern, **wanted):
            number += 1
            sequence, since = one.sequence + 1, None
            if any(matches(known, one.subject.encode("utf-8", "surrogateescape")) for known in patterns):
                yield one
        if not number:
            if terminate:
                return
            sequence, since = (sequence if since is None else last + 1), None
            await asyncio.sleep(_DIRECT_POLL_S)


async def _first(messages: AsyncIterable[Message], count: int) -> AsyncIterator[Message]:
    if not count:
        return
    async for message in messages:
        yield message
        count -= 1
        if not count:
            return


async def _to_the_end(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Yield up to the first message behind which nothing waits."""
    async for message in messages:
        yield message
        if message.metadata.pending == 0:
            return


async def _not_ignored(messages: AsyncIterator[Message], ignored: tuple[str, ...]) -> AsyncIterator[Message]:
    async for message in messages:
        if not any(matches(pattern.encode(), message.raw_subject) for pattern in ignored):
            yield message


async def _until(messages: AsyncIterator[Message], count: int, wait_s: float | None) -> AsyncIterator[Message]:
    """Yield up to `count` messages, or until none arrives for the time given; 0 and None mean no end."""
    number = 0
    with suppress(TimeoutError):
        while number != count or not count:
            async with asyncio.timeout(wait_s):
                message = await anext(messages, None)
            if message is None:
                return
            yield message
            number += 1


async def _print_all(messages: AsyncIterator[Message], shown: Shown, *, ack: bool, of_stream: bool) -> None:
    number = 0
    async for message in messages:
        place = _place(message)
        if message.status is not None and not message.data:
            await _answer_flow_control(message)
        number += 1
        await _print(message, number, shown, place if of_stream else None, place)
        if ack and place is not None:
            message.ack()


async def _answer_flow_control(message: Message) -> None:
    """Resume a push consumer that waits for its reader."""
    if message.reply:
        message.respond()


def _place(message: Message) -> AckSubject | None:
    """Return where the message is in its stream; None when it comes from none."""
    try:
        return message.metadata
    except NotJetStreamMessageError:
        return None


async def _print(
    message: Message, number: int, shown: Shown, stored: AckSubject | None, place: AckSubject | None, kind: str = ""
) -> None:
    if shown.dump is not None:
        _dump(message, shown.dump, f"{place.stream_seq if place else number}{kind}")
    elif shown.as_json:
        print_line(message, **({"stream": place.stream, "stream_seq": place.stream_seq} if place else {}))
    elif shown.subjects_only:
        click.echo(output.printable(message.subject))
    else:
        content = await translated(shown.words, message.data, message.subject)
        if not shown.raw:
            click.echo(_heading(message, number, shown, stored, place, kind))
        if not shown.headers_only:
            print_parts(message.headers, content, shown.raw)
        else:
            for key, value in message.headers.items():
                click.echo(output.printable(f"{key}: {value}"))


def _heading(
    message: Message, number: int, shown: Shown, stored: AckSubject | None, place: AckSubject | None, kind: str
) -> str:
    """Write the line above a message, in the words of `nats`."""
    subject = output.printable(message.subject)
    now = datetime.now()
    moment = f" @ {now:%b} {now.day:2} {now:%H:%M:%S.%f}" if shown.timestamp else ""
    if shown.delta:
        moment = f" @ {time.monotonic() - shown.began:.6f}s"
    if kind:
        return f'[#{number}]{moment} Matched reply on "{subject}"'
    if stored is not None:
        return (
            f"[#{number}]{moment} Received JetStream message: stream: {stored.stream} seq {stored.stream_seq} / "
            f"subject: {subject} / time: {stored.timestamp:%Y-%m-%dT%H:%M:%SZ}"
        )
    if place is not None:
        return (
            f"[#{number}]{moment} Received JetStream message: consumer: {place.stream} > {place.consumer} / "
            f"subject: {subject} / delivered: {place.delivered} / consumer seq: {place.consumer_seq} / "
            f"stream seq: {place.stream_seq}"
        )
    reply = f' with reply "{output.printable(message.reply)}"' if message.reply else ""
    return f'[#{number}]{moment} Received on "{subject}"{reply}'


def _prepare_dump(target: str | None) -> None:
    if target is not None and target != "-":
        Path(target).mkdir(parents=True, exist_ok=True)


def _dump(message: Message, target: str, name: str) -> None:
    """Write a message as JSON: one file each, or to standard output with NUL behind it."""
    text = encode_shown(message_fields(message))
    if target == "-":
        click.echo(text + b"\0", nl=False)
    else:
        (Path(target) / f"{name}.json").write_bytes(text)


async def _matched(replies: asyncio.Queue[Message], messages: AsyncIterator[Message], shown: Shown) -> None:
    """Print requests with their replies: whatever is published to an inbox that a request names."""
    requests: dict[str, tuple[int, Message]] = {}

    async def take() -> None:
        number = 0
        async for message in messages:
            number += 1
            if not message.reply:
                await _print(message, number, shown, None, None)
                continue
            if len(requests) >= _REQUESTS_MAX:
                oldest, request = requests.pop(next(iter(requests)))
                await _print(request, oldest, shown, None, None)
            requests[message.reply] = (number, message)

    taking = asyncio.ensure_future(take())
    try:
        while requests or not taking.done():
            getting: asyncio.Future[Any] = asyncio.ensure_future(replies.get())
            await asyncio.wait([getting] if taking.done() else [taking, getting], return_when="FIRST_COMPLETED")
            if not getting.done():
                getting.cancel()
                continue
            answer: Message = getting.result()
            if answer.subject not in requests:  # Of another request, or a reply that came before its request.
                await asyncio.sleep(0)
            number, request = requests.pop(answer.subject, (0, None))
            if request is not None:
                await _print(request, number, shown, None, None)
                await _print(answer, number, shown, None, None, kind="_reply")
    finally:
        taking.cancel()


async def _report(messages: AsyncIterator[Message], patterns: tuple[str, ...], top: int, as_json: bool) -> None:
    """Count messages and bytes of each subject, or of each pattern: live on a terminal, at the end elsewhere."""
    counts: dict[str, list[int]] = {}
    drawn = time.monotonic()
    try:
        async for message in messages:
            keys = [one for one in patterns if matches(one.encode(), message.raw_subject)] or [message.subject]
            for key in keys:
                if key in counts or len(counts) < _SUBJECTS_MAX:
                    row = counts.setdefault(key, [0, 0])
                    row[0] += 1
                    row[1] += len(message.data)
            if not as_json and time.monotonic() - drawn >= _REPORT_S and sys.stdout.isatty():
                click.clear()
                _print_report(counts, top)
                drawn = time.monotonic()
    finally:
        if as_json:
            output.print_json({key: {"messages": row[0], "bytes": row[1]} for key, row in counts.items()})
        else:
            _print_report(counts, top)


def _print_report(counts: dict[str, list[int]], top: int) -> None:
    rows = sorted(counts.items(), key=lambda pair: -pair[1][0])
    total = output.plural(sum(row[0] for _, row in rows), "message")
    output.print_table(
        f"Top {min(top, len(rows))} of {output.plural(len(rows), 'subject')}, {total}",
        ["Subject", "Messages", "Bytes"],
        [[key, output.count(row[0]), output.size(row[1])] for key, row in rows[:top]],
        numbers=[1, 2],
    )


async def _graph(messages: AsyncIterator[Message], subjects: tuple[str, ...]) -> None:
    """Draw how many messages and bytes come each second."""
    seen = [0, 0]
    charts = [Chart("Messages / second"), Chart("Bytes / second")]
    last = [time.monotonic(), 0.0, 0.0]

    async def take() -> None:
        async for message in messages:
            seen[0] += 1
            seen[1] += len(message.data)

    async def sample() -> None:
        now = time.monotonic()
        passed = max(now - last[0], 1e-3)
        for place, chart in enumerate(charts, 1):
            chart.values.append((seen[place - 1] - last[place]) / passed)
        last[:] = [now, *seen]

    taking = asyncio.ensure_future(take())
    try:
        await show_graphs(f"Messages on {', '.join(subjects)}", charts, sample)
    finally:
        taking.cancel()
