"""`jetlake pub`, `req`, `sub` and `ack-watch`: messages by hand."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.commands.messages.bodies import bodies_of, headers_of, headers_option, print_content, print_line
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

__all__ = ["ack_watch", "pub", "req", "sub"]


@click.command(cls=SharedCommand, example="jetlake pub orders.new 'order {{Count}}' --count 10")
@click.argument("subject")
@click.argument("body", required=False)
@headers_option
@click.option("--reply", metavar="SUBJECT", help="Reply subject.")
@click.option(
    "--count",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of messages; {{Count}} in the body is the number of each.",
)
@click.option("--sleep", type=DURATION, default=0, help="Wait between messages.")
@click.option("-J", "--jetstream", is_flag=True, help="Wait until a stream has stored each message.")
@json_option
@command
async def pub(
    session: Session,
    subject: str,
    body: str | None,
    headers: tuple[tuple[str, str], ...],
    reply: str | None,
    count: int,
    sleep: int,
    jetstream: bool,
    as_json: bool,
) -> None:
    """Publish BODY (or standard input) to SUBJECT."""
    if jetstream and reply:
        fail("--jetstream and --reply exclude each other: the stream's answer comes to this command", EXIT_USAGE)
    async with await session.connect() as client:
        js = client.jetstream(domain=session.target.domain, timeout=session.timeout_s)
        payload_of = bodies_of(body)
        sent = headers_of(headers) or None
        facts: dict[str, Any] = {"subject": subject, "messages": count}
        for number in _progress(count):
            payload = payload_of(number)
            if jetstream:
                ack = await js.publish(subject, payload, headers=sent)
                where = f"Stored in {ack.stream} as sequence {ack.seq}" + (" (duplicate)" if ack.duplicate else "")
                facts.update(stream=ack.stream, seq=ack.seq, duplicate=ack.duplicate)
            else:
                await client.publish(subject, payload, reply=reply or "", headers=sent)
                where = f"Published {output.plural(len(payload), 'byte')} to {subject}"
            if sleep and number < count:
                await asyncio.sleep(sleep / NANOSECONDS_PER_SECOND)
        await client.flush()
        raise_refused(client)
    output.tell(where if count == 1 else f"Published {output.count(count)} messages to {subject}", facts, as_json)


def _progress(count: int) -> range | list[int]:
    """Count from 1, with a bar on a terminal when there are many."""
    numbers = range(1, count + 1)
    if count < 1000 or not sys.stderr.isatty():
        return numbers
    from rich.console import Console
    from rich.progress import track

    return track(numbers, "Publishing", console=Console(stderr=True), transient=True)  # type: ignore[return-value]


@click.command(cls=SharedCommand, example="jetlake req greet.joe hello")
@click.argument("subject")
@click.argument("body", required=False)
@headers_option
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), metavar="N", help="Number of requests.")
@click.option(
    "--replies",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Number of replies to wait for; 0 for all that arrive until --timeout.",
)
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@json_option
@command
async def req(
    session: Session,
    subject: str,
    body: str | None,
    headers: tuple[tuple[str, str], ...],
    count: int,
    replies: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Send BODY (or standard input) to SUBJECT and print the replies."""
    is_quiet = raw or as_json
    async with await session.connect() as client:
        payload_of = bodies_of(body)
        for number in range(1, count + 1):
            if not is_quiet:
                click.echo(f"Sending request on {subject!r}", err=True)
            came, began = 0, time.perf_counter()
            answers = client.request_many(
                subject,
                payload_of(number),
                headers=headers_of(headers) or None,
                max_messages=replies or None,
                timeout=session.timeout_s,
            )
            async for answer in answers:
                came += 1
                took_ms = (time.perf_counter() - began) * 1000
                if as_json:
                    print_line(answer, rtt_ms=round(took_ms, 3))
                    continue
                if not raw:
                    click.echo(f"Received with rtt {took_ms:.2f} ms", err=True)
                print_content(answer, raw)
            if came < (replies or 1):
                raise_refused(client)
                wanted = output.plural(replies or 1, "answer")
                fail(f"{came} of {wanted} on {subject!r} came in {session.timeout_s:g} s. Wait longer with --timeout")


@click.command(cls=SharedCommand, example="jetlake sub 'orders.>'")
@click.argument("subject")
@click.option("--queue", default="", metavar="GROUP", help="Queue group.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@click.option("-t", "--timestamp", is_flag=True, help="Print the time of arrival.")
@json_option
@command
async def sub(
    session: Session, subject: str, queue: str, count: int | None, raw: bool, timestamp: bool, as_json: bool
) -> None:
    """Print messages published to SUBJECT until Ctrl-C."""
    async with await session.connect(stay=True) as client:
        subscription = await client.subscribe(subject, queue=queue)
        await client.flush()
        if not raw:
            click.echo(f"Subscribing on {subject}", err=True)
        number = 0
        async for message in subscription:
            number += 1
            if as_json:
                print_line(message)
            elif not raw:
                moment = time.strftime("%Y/%m/%d %H:%M:%S ") if timestamp else ""
                reply = f" with reply {message.reply!r}" if message.reply else ""
                click.echo(f"{moment}[#{number}] Received on {message.subject!r}{reply}")
            if not as_json:
                print_content(message, raw)
            if number == count:
                break


@click.command("ack-watch", cls=SharedCommand, example="jetlake ack-watch ORDERS worker")
@click.argument("stream", required=False, default="*")
@click.argument("consumer", required=False, default="*")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N samples.")
@json_option
@command
async def ack_watch(session: Session, stream: str, consumer: str, count: int | None, as_json: bool) -> None:
    """Print ack samples of STREAM and CONSUMER as they arrive.

    Only consumers that were created with --sample publish them.
    """
    async with await session.connect(stay=True) as client:
        for pattern in (stream, consumer):
            if "." in pattern or not pattern:
                fail(f"{pattern!r} can't be a name", EXIT_USAGE)
        subscription = await client.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}")
        await client.flush()
        if not as_json:
            click.echo("Waiting for ack samples, Ctrl-C ends", err=True)
        number = 0
        async for message in subscription:
            number += 1
            sample = msgspec.json.decode(message.data)
            if as_json:
                click.echo(message.data)
            else:
                click.echo(
                    f"{sample['timestamp'][:19]} {sample['stream']} > {sample['consumer']} "
                    f"sequence {sample['stream_seq']}: acknowledged after {output.duration(sample['ack_time'])}, "
                    f"delivery {sample['deliveries']}"
                )
            if number == count:
                break
