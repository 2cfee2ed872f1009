"""`jetlake consumer next` and `sub`: read messages from a consumer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.choosing import chosen_consumer, chosen_stream
from jetlake.cli.message_content import print_content, print_line
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.errors import SubscribeMismatchError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from jetlake.client import Client, Message


@click.command("next", cls=SharedCommand, example="jetlake consumer next ORDERS worker --count 10")
@click.argument("stream", required=False, shell_complete=stream_names)
@click.argument("name", required=False, shell_complete=consumer_names)
@click.option("--ack/--no-ack", default=True, help="Acknowledge each message.")
@click.option("--nak", is_flag=True, help="Negatively acknowledge each message, for redelivery.")
@click.option("--term", is_flag=True, help="Terminate each message: no redelivery.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), metavar="N", help="Number of messages.")
@click.option("--wait", type=DURATION, default="5s", show_default=True, help="How long to wait for messages.")
@click.option("--group", metavar="GROUP", help="Priority group.")
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@json_option
@command
async def next_message(
    session: Session,
    stream: str | None,
    name: str | None,
    ack: bool,
    nak: bool,
    term: bool,
    count: int,
    wait: int,
    group: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Take messages from pull consumer NAME on STREAM."""
    if nak and term:
        fail("--nak and --term are mutually exclusive", EXIT_USAGE)
    received = 0
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.consumer(stream, name)
        async for message in handle.fetch(count, expires=wait / NANOSECONDS_PER_SECOND, group=group):
            received += 1
            _print_message(message, raw, as_json)
            # With ack policy none this sends nothing; `nats` prints its line all the same, as the deep dive shows.
            await _acknowledge(message, ack=ack, nak=nak, term=term, is_quiet=raw or as_json)
    if not received:
        fail(f"no message from consumer {stream} > {name} within {output.duration(wait)}")


@click.command("sub", cls=SharedCommand, example="jetlake consumer sub ORDERS worker")
@click.argument("stream", required=False, shell_complete=stream_names)
@click.argument("name", required=False, shell_complete=consumer_names)
@click.option("--ack/--no-ack", default=True, help="Acknowledge each message.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("--group", metavar="GROUP", help="Priority group.")
@click.option("--deliver-group", metavar="GROUP", help="Queue group of a push consumer.  [default: the consumer's]")
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@json_option
@command
async def subscribe(
    session: Session,
    stream: str | None,
    name: str | None,
    ack: bool,
    count: int | None,
    group: str | None,
    deliver_group: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Read from consumer NAME on STREAM until Ctrl-C."""
    async with await session.connect(stay=True) as client:
        js = session.jetstream_of(client)
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        info = await (await js.stream(stream)).consumer_info(name)
        acknowledge = ack and info.config.ack_policy != "none"
        if deliver_group not in (None, info.config.deliver_group):
            has = f"has the queue group {info.config.deliver_group!r}" if info.config.deliver_group else "has none"
            raise SubscribeMismatchError(f"--deliver-group {deliver_group}: consumer {stream} > {name} {has}")
        if info.config.deliver_subject:
            if info.push_bound and not info.config.deliver_group:
                raise SubscribeMismatchError(f"consumer {stream} > {name} already has a subscriber")
            messages: Any = await client.subscribe(info.config.deliver_subject, queue=info.config.deliver_group)
        else:
            handle = await js.consumer(stream, name)
            # No more is requested than is printed: a message fetched ahead would count as a delivery.
            messages = handle.consume(group=group, max_messages=500, stop_after=count)
        received = 0
        async with messages as incoming:
            async for message in incoming:
                if message.status is not None:
                    await _answer_flow_control(client, message)
                    continue
                received += 1
                _print_message(message, raw, as_json)
                await _acknowledge(message, ack=acknowledge, nak=False, term=False, is_quiet=raw or as_json)
                if received == count:
                    break


async def _answer_flow_control(client: Client, status: Message) -> None:
    """Resume a push consumer that waits for its reader; a heartbeat names where it waits."""
    subject = status.reply or status.headers.get("Nats-Consumer-Stalled")
    if subject:
        await client.publish(subject)


def _print_message(message: Message, raw: bool, as_json: bool) -> None:
    place = message.metadata
    if as_json:
        print_line(
            message,
            tries=place.delivered,
            consumer_seq=place.consumer_seq,
            stream_seq=place.stream_seq,
            pending=place.pending,
        )
        return
    if not raw:
        click.echo(
            f"[{time.strftime('%H:%M:%S')}] subj: {output.printable(message.subject)} / tries: {place.delivered} / "
            f"cons seq: {place.consumer_seq} / str seq: {place.stream_seq} / pending: {place.pending:,}\n"
        )
    print_content(message, raw)


async def _acknowledge(message: Message, *, ack: bool, nak: bool, term: bool, is_quiet: bool) -> None:
    if nak:
        await message.nak()
        done = "Negative Acknowledged message"
    elif term:
        await message.term()
        done = "Terminated message"
    elif ack:
        await message.ack_sync()
        done = "Acknowledged message"
    else:
        return
    if not is_quiet:
        click.echo(f"\n{done}\n")
