"""`jetlake stream get`, `view` and `rmm`: show and delete single messages of a stream."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.choosing import chosen_stream
from jetlake.cli.keyboard import ask
from jetlake.cli.message_content import command_words, print_parts, translate_option, translated
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import TIME
from jetlake.errors import MessageNotFoundError
from jetlake.model.encoding.times import wire_time

if TYPE_CHECKING:
    from jetlake.client import Schemas, StoredMessage, Stream


_decode_option = click.option("--decode", is_flag=True, help="Decode payloads with their schemas.")


@click.command("get", cls=SharedCommand, example="jetlake stream get ORDERS --last-for orders.new")
@click.argument("name", shell_complete=stream_names)
@click.argument("sequence", type=click.IntRange(1), required=False)
@click.option("-S", "--last-for", default="", metavar="SUBJECT", help="The last message of a subject.")
@click.option("--next-for", default="", metavar="SUBJECT", help="The next message of a subject from the sequence on.")
@translate_option
@_decode_option
@json_option
@command
async def get(
    session: Session,
    name: str,
    sequence: int | None,
    last_for: str,
    next_for: str,
    translate: str | None,
    decode: bool,
    as_json: bool,
) -> None:
    """Show one message of stream NAME."""
    if sequence is None and not last_for and not next_for:
        fail("message is missing; use a sequence, --last-for or --next-for", EXIT_USAGE)
    if last_for and (sequence is not None or next_for):
        fail("--last-for can not be combined with a sequence or --next-for", EXIT_USAGE)
    async with session.jetstream() as js:
        handle = await js.stream(name)
        if last_for:
            message = await handle.get(last_by_subject=last_for)
        else:
            message = await handle.get(sequence or 0, next_by_subject=next_for)
        schemas = js.schemas() if decode else None
        if as_json:
            output.print_json(await _fields(message, schemas, name))
            return
        received = f"received {output.when(message.time)} on subject {output.printable(message.subject)}"
        click.echo(f"Item: {name}#{message.sequence} {received}\n")
        await _print_content(message, command_words("--translate", translate), schemas, name)


async def _fields(message: StoredMessage, schemas: Schemas | None, stream: str) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if schemas is not None:
        shown = await schemas.shown(message.subject, message.data, stream)
        more = {
            "schema": shown.title or None,
            "value": msgspec.Raw(shown.text.encode()) if shown.text else None,
            "misfit": shown.reason or None,
        }
    return {
        "subject": message.subject,
        "seq": message.sequence,
        "time": message.time,
        "headers": [list(pair) for pair in message.headers.items()],
        "data": message.data,
        **more,
    }


async def _print_content(message: StoredMessage, words: list[str], schemas: Schemas | None, stream: str) -> None:
    content = message.data
    if schemas is not None:
        shown = await schemas.shown(message.subject, message.data, stream)
        if shown.reason:
            click.echo(f"Does not fit {shown.title}: {shown.reason}")
        elif shown.title:
            click.echo(f"Schema: {shown.title}")
            content = shown.text.encode()
    print_parts(message.headers, await translated(words, content, message.subject))


@click.command("view", cls=SharedCommand, example="jetlake stream view ORDERS 10 --since 1h --subject orders.new")
@click.argument("name", required=False, shell_complete=stream_names)
@click.argument("count", type=click.IntRange(1), default=25)
@click.option("--id", "sequence", type=click.IntRange(1), metavar="SEQUENCE", help="Start at this sequence.")
@click.option("--since", type=TIME, help="Start at this time, or this long ago.")
@click.option("--subject", default=">", metavar="SUBJECT", help="Only messages whose subject matches.")
@translate_option
@_decode_option
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@json_option
@command
async def view(
    session: Session,
    name: str | None,
    count: int,
    sequence: int | None,
    since: int | None,
    subject: str,
    translate: str | None,
    decode: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """Show messages of stream NAME, COUNT at a time (25); on a terminal, page by page until q."""
    words = command_words("--translate", translate)
    if decode and raw:
        fail("--decode and --raw are mutually exclusive", EXIT_USAGE)
    if sequence and since:
        fail("--id and --since are mutually exclusive", EXIT_USAGE)
    # A reader may leave a page on the screen for longer than a server waits for a sign of life.
    async with session.jetstream(stay=True) as js:
        name = await chosen_stream(js, name)
        handle = await js.stream(name)
        schemas = js.schemas() if decode else None
        if since is not None:
            sequence = await _sequence_at(handle, since)
        shown: list[dict[str, Any]] = []
        number = 0
        async for message in _messages(handle, sequence or 1, subject):
            if number and number % count == 0 and not _wants_more(as_json):
                break
            number += 1
            if as_json:
                shown.append(await _fields(message, schemas, name))
            elif raw:
                click.echo(await translated(words, message.data, message.subject))
            else:
                subject_text, moment = output.printable(message.subject), output.when(message.time)
                click.echo(f"[{message.sequence}] Subject: {subject_text} Received: {moment}")
                await _print_content(message, words, schemas, name)
                click.echo()
    if as_json:
        output.print_json(shown)
    elif not number:
        click.echo(f"No messages in {name}" + (f" on {subject}" if subject != ">" else ""), err=True)


def _wants_more(as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    answer = ask("Next page? [Y/n/q]", default="y", show_default=False).strip().lower()
    return answer not in ("n", "no", "q", "quit")


async def _sequence_at(stream: Stream, time_ns: int) -> int:
    """Find the sequence of the first message that was stored then or later; behind the last one if there is none."""
    try:
        return (await stream.get(start_time=wire_time(time_ns), direct=False)).sequence
    except MessageNotFoundError:
        return stream.cached_info.state.last_seq + 1


async def _messages(stream: Stream, sequence: int, subject: str) -> AsyncIterator[StoredMessage]:
    """Yield the messages from a sequence on, one request each: no consumer is made, so any stream can be read."""
    while True:
        try:
            message = await stream.get(sequence, next_by_subject=subject, direct=False)
        except MessageNotFoundError:
            return
        yield message
        sequence = message.sequence + 1


@click.command("rmm", cls=SharedCommand, example="jetlake stream rmm ORDERS 42 --force")
@click.argument("name", shell_complete=stream_names)
@click.argument("sequence", type=click.IntRange(1))
@click.option("--no-erase", is_flag=True, help="Only mark it as deleted; leave its bytes on disk.")
@force_option
@json_option
@command
async def remove_message(
    session: Session, name: str, sequence: int, no_erase: bool, force: bool, as_json: bool
) -> None:
    """Delete one message from stream NAME."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Delete message {sequence} of stream {name}?", force)
        await handle.delete_message(sequence, erase=not no_erase)
    output.tell(f"Deleted message {sequence} from stream {name}", {"stream": name, "removed": sequence}, as_json)
