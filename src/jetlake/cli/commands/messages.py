"""`jetlake pub`, `req`, `ack-watch` and `reply`: publish, request and reply from the command line."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.message_content import (
    bodies,
    command_words,
    filled_headers,
    headers_of,
    headers_option,
    print_line,
    print_parts,
    templates_option,
    translate_option,
    translated,
)
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.templates import fill, fill_text
from jetlake.cli.values import DURATION, WAIT
from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.service import ERROR_CODE_HEADER, ERROR_HEADER

if TYPE_CHECKING:
    from jetlake.client import Message


def _stdin_options(function: Any) -> Any:
    """Add the options about standard input."""
    for decorate in (
        click.option(
            "--send-on",
            type=click.Choice(["eof", "newline"]),
            default="eof",
            show_default=True,
            help="Standard input is one message, or one for each line.",
        ),
        click.option("--force-stdin", is_flag=True, help="Read standard input, even beside BODY."),
    ):
        function = decorate(function)
    return function


@click.command(cls=SharedCommand, example="jetlake pub orders.new 'order {{Count}}' --count 10")
@click.argument("subject", required=False)
@click.argument("body", required=False)
@click.option(
    "--from",
    "file",
    metavar="FILE",
    help="Publish the rows of a file (Parquet, CSV, ORC, Arrow, JSON lines); {column} in SUBJECT is filled.",
)
@click.option("--key", default="", metavar="COLUMN", help="With --from: column of the message ids.")
@headers_option
@click.option("--reply", metavar="SUBJECT", help="Reply subject.")
@click.option(
    "--count",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Number of messages, 0 for no end; {{Count}} in the body is the number of each.",
)
@click.option("--sleep", type=DURATION, default=0, help="Wait between messages.")
@click.option("-J", "--jetstream", is_flag=True, help="Wait until a stream has stored each message.")
@click.option("--atomic", is_flag=True, help="Store all messages or none, as one atomic batch; implies --jetstream.")
@click.option(
    "--validate", is_flag=True, help="Check each message against the schema of its subject; implies --jetstream."
)
@_stdin_options
@templates_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
@json_option
@command
async def pub(
    session: Session,
    subject: str | None,
    body: str | None,
    file: str | None,
    key: str,
    headers: tuple[tuple[str, str], ...],
    reply: str | None,
    count: int,
    sleep: int,
    jetstream: bool,
    atomic: bool,
    validate: bool,
    force_stdin: bool,
    send_on: str,
    templates: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Publish BODY (or standard input) to SUBJECT.

    BODY, SUBJECT and headers may contain the functions {{Count}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Time}},
    {{ID}}, {{UUID}} and {{ Random MIN MAX }}, which makes a text of that many letters and digits.
    """
    if file is not None:
        if body is not None or headers or reply or atomic or validate or count != 1:
            fail(
                "--from takes subject, payload and headers from the rows: leave out BODY and their options", EXIT_USAGE
            )
        await _publish_file(session, file, subject or "", key, is_quiet=quiet, as_json=as_json)
        return
    if validate:
        if atomic or reply:
            fail("--validate is for single messages that a stream stores: leave out --atomic and --reply", EXIT_USAGE)
        jetstream = True
    if key:
        fail("--key is a column of the file of --from", EXIT_USAGE)
    if subject is None:
        fail("SUBJECT is missing; only the rows of --from can have their own", EXIT_USAGE)
    if (jetstream or atomic) and reply:
        fail("--jetstream and --reply are mutually exclusive: the stream replies to this command", EXIT_USAGE)
    if atomic and not count:
        fail("--atomic needs an end; use --count", EXIT_USAGE)
    number, where = 0, "No messages"
    async with await session.connect() as client:
        js = session.jetstream_of(client)
        batch = js.batch() if atomic else None
        facts: dict[str, Any] = {"subject": subject, "messages": 0}
        contents = bodies(body, count, templates=templates, force_stdin=force_stdin, by_line=send_on == "newline")
        with output.Bar("Publishing", count, is_shown=count >= _BAR_MIN and not quiet) as bar:
            async for number, payload in contents:
                if sleep and number > 1:
                    await asyncio.sleep(sleep / NANOSECONDS_PER_SECOND)
                target = fill_text(subject, number) if templates else subject
                sent = filled_headers(headers, number) if templates else headers_of(headers) or None
                if batch is not None:
                    batch.publish(target, payload, headers=sent)
                elif jetstream:
                    ack = await js.publish(target, payload, headers=sent, validate=validate)
                    where = f"Stored in {ack.stream} as sequence {ack.seq}" + (" (duplicate)" if ack.duplicate else "")
                    facts.update(stream=ack.stream, seq=ack.seq, duplicate=ack.duplicate)
                else:
                    await client.publish(target, payload, reply=reply or "", headers=sent)
                    where = f"Published {output.plural(len(payload), 'byte')} to {target}"
                    if count == 0 or sleep or send_on == "newline":  # No others may come for long.
                        await client.flush()
                bar.advance(1)
        if batch is not None and number:
            committed = await batch.commit()
            where = f"Stored in {committed.stream} as sequence {committed.seq}"
            facts.update(stream=committed.stream, seq=committed.seq)
        await client.flush()
        raise_refused(client)
    if quiet:
        return
    facts["messages"] = number
    output.tell(where if number <= 1 else f"Published {output.count(number)} messages to {subject}", facts, as_json)


async def _publish_file(session: Session, file: str, subject: str, key: str, *, is_quiet: bool, as_json: bool) -> None:
    """Publish the rows of a file."""
    try:
        from jetlake.client.tables.row_messages import count_rows, file_rows
    except ImportError:
        raise ConfigError("--from needs pyarrow: install jetlake[arrow]") from None
    rows = file_rows(file)
    total = count_rows(rows, file)
    async with await session.connect() as client:
        js = session.jetstream_of(client)
        with output.Bar("Publishing", total, is_shown=total >= _BAR_MIN and not is_quiet) as bar:
            done = await js.publish_table(rows, subject=subject, key=key, progress=bar.advance)
    if not is_quiet:
        again = f", {output.count(done.duplicates)} of them stored before" if done.duplicates else ""
        text = f"Published {output.plural(done.messages, 'row')} of {file}{again}"
        output.tell(text, {"file": file, "messages": done.messages, "duplicates": done.duplicates}, as_json)


_BAR_MIN = 1000
"""How many messages a progress bar is worth."""


@click.command(cls=SharedCommand, example="jetlake req greet.joe hello")
@click.argument("subject")
@click.argument("body", required=False)
@headers_option
@click.option(
    "--count",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Number of requests, 0 for no end.",
)
@click.option(
    "--replies",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Number of replies to wait for; 0 for all that arrive until --timeout.",
)
@click.option(
    "--reply-timeout",
    type=WAIT,
    default="300ms",
    show_default=True,
    help="With --replies 2 or more: longest wait for the next reply.",
)
@click.option("--sleep", type=DURATION, default=0, help="Wait between requests.")
@_stdin_options
@templates_option
@translate_option
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
    reply_timeout: float,
    sleep: int,
    force_stdin: bool,
    send_on: str,
    templates: bool,
    translate: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Send BODY (or standard input) to SUBJECT and print the replies; BODY may contain functions as for pub."""
    is_quiet = raw or as_json
    words = command_words("--translate", translate)
    async with await session.connect() as client:
        contents = bodies(body, count, templates=templates, force_stdin=force_stdin, by_line=send_on == "newline")
        async for number, payload in contents:
            if sleep and number > 1:
                await asyncio.sleep(sleep / NANOSECONDS_PER_SECOND)
            target = fill_text(subject, number) if templates else subject
            if not is_quiet:
                click.echo(f"Sending request on {target!r}", err=True)
            came, began = 0, time.perf_counter()
            answers = client.request_many(
                target,
                payload,
                headers=filled_headers(headers, number) if templates else headers_of(headers) or None,
                max_messages=replies or None,
                timeout=session.timeout_s,
                stall=reply_timeout if replies > 1 else None,
            )
            async for answer in answers:
                came += 1
                took_ms = (time.perf_counter() - began) * 1000
                if as_json:
                    print_line(answer, rtt_ms=round(took_ms, 3))
                    continue
                if not raw:
                    click.echo(f"Received with rtt {took_ms:.2f} ms", err=True)
                print_parts(answer.headers, await translated(words, answer.data, answer.subject), raw)
            if came < (replies or 1):
                raise_refused(client)
                wanted = output.plural(replies or 1, "response")
                waited = f"{session.timeout_s:g} s; increase --timeout"
                if came:
                    waited = f"{reply_timeout:g} s after the last; increase --reply-timeout"
                fail(f"received {came} of {wanted} on {target!r} within {waited}")


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
                fail(f"{pattern!r} is not a valid name", EXIT_USAGE)
        subscription = await client.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}")
        await client.flush()
        if not as_json:
            click.echo("Waiting for ack samples; press Ctrl-C to stop", err=True)
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


_TOKEN = re.compile(r"\{\{([0-9]+)\}\}")


@click.command(cls=SharedCommand, example="jetlake reply 'greet.*' 'hello {{1}}, this is answer {{Count}}'")
@click.argument("subject")
@click.argument("body", required=False)
@click.option("--echo", is_flag=True, help="Answer with the request's own content and headers.")
@click.option("--command", "line", metavar="LINE", help="Answer with what this program prints; not run by a shell.")
@headers_option
@click.option("-q", "--queue", default="NATS-RPLY-22", show_default=True, metavar="GROUP", help="Queue group.")
@click.option("--sleep", type=DURATION, default=0, help="Wait a random time, up to this one, before each reply.")
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N requests.")
@templates_option
@json_option
@command
async def reply(
    session: Session,
    subject: str,
    body: str | None,
    echo: bool,
    line: str | None,
    headers: tuple[tuple[str, str], ...],
    queue: str,
    sleep: int,
    count: int,
    templates: bool,
    as_json: bool,
) -> None:
    """Answer requests on SUBJECT with BODY until Ctrl-C; without BODY with the request's own content.

    In BODY and the headers, {{Request}} is the content of the request, {{1}} the second token of its subject ({{0}} is
    the first), {{Count}} the number of the request; the other functions are pub's. With --command, the
    program's arguments may contain them, it gets the content on its standard input and in NATS_REQUEST_BODY, and the
    subject in NATS_REQUEST_SUBJECT; when it fails, the reply has the error headers of services.
    """
    if (body is not None) + echo + (line is not None) > 1:
        fail("use only one of BODY, --echo and --command", EXIT_USAGE)
    program = command_words("--command", line)
    echo = body is None and line is None
    async with await session.connect(stay=True) as client:
        subscription = await client.subscribe(subject, queue=queue)
        await client.flush()
        raise_refused(client)
        click.echo(f"Listening on {subject} in group {queue}; press Ctrl-C to stop", err=True)
        number = 0
        async for message in subscription:
            number += 1
            if as_json:
                print_line(message)
            else:
                click.echo(f'[#{number}] Received on "{output.printable(message.subject)}": {len(message.data)} bytes')
            if sleep:
                await asyncio.sleep(random.uniform(0, sleep / NANOSECONDS_PER_SECOND))
            sent = (filled_headers(headers, number) if templates else headers_of(headers)) or {}
            if echo:
                own = {key: message.headers.get_all(key) for key, _ in message.headers.items()}
                answer, sent = message.data, {**own, "NATS-Reply-Counter": str(number - 1), **sent}
            elif line is not None:
                answer, failed = await _run([_answer(word, number, message, templates) for word in program], message)
                sent.update(failed)
            else:
                answer = _answer(body or "", number, message, templates)
            if message.reply:
                await client.publish(message.reply, answer, headers=sent or None)
            if number == count:
                break
        await client.flush()


def _answer(text: str, number: int, message: Message, templates: bool) -> bytes:
    """Fill in a text for a request: the tokens of its subject first, since nothing in its content is a function."""
    tokens = message.subject.split(".")
    if templates:
        text = _TOKEN.sub(lambda place: tokens[int(place[1])] if int(place[1]) < len(tokens) else place[0], text)
    content = text.encode(errors="surrogateescape")
    return fill(content, number, message.data) if templates else content


async def _run(words: list[bytes], message: Message) -> tuple[bytes, dict[str, str]]:
    """Run a program for a request: what it printed, and the headers of an error if it failed."""
    name = words[0].decode(errors="replace")
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environb, b"NATS_REQUEST_SUBJECT": message.raw_subject, b"NATS_REQUEST_BODY": _body(message)},
        )
    except (OSError, ValueError) as error:
        return b"", _error(f"{name}: {getattr(error, 'strerror', None) or error}")
    printed, _ = await process.communicate(message.data)
    return printed, _error(f"{name} exited with status {process.returncode}") if process.returncode else {}


_ENVIRONMENT_BYTES_MAX = 64 * 1024
"""The system limits a variable; standard input has the whole content."""


def _body(message: Message) -> bytes:
    """Return the content for an environment variable; empty where it does not fit into one."""
    fits = len(message.data) <= _ENVIRONMENT_BYTES_MAX and b"\0" not in message.data
    return bytes(message.data) if fits else b""


def _error(text: str) -> dict[str, str]:
    click.echo(text, err=True)
    return {ERROR_HEADER: text, ERROR_CODE_HEADER: "500"}
