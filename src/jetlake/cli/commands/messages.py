"""`jetlake pub`, `req`, `sub`, `ack-watch` and `reply`: publish, request, subscribe and reply from the command line."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.message_content import bodies_of, filled, headers_of, headers_option, print_content, print_line
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.service import ERROR_CODE_HEADER, ERROR_HEADER

if TYPE_CHECKING:
    from jetlake.client import Message


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
        fail("--jetstream and --reply are mutually exclusive: the stream replies to this command", EXIT_USAGE)
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
                wanted = output.plural(replies or 1, "response")
                fail(f"received {came} of {wanted} on {subject!r} within {session.timeout_s:g} s; increase --timeout")


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


_TOKEN = re.compile(r"\{\{(\d+)\}\}")


@click.command(cls=SharedCommand, example="jetlake reply 'greet.*' 'hello {{1}}, this is answer {{Count}}'")
@click.argument("subject")
@click.argument("body", required=False)
@click.option("--echo", is_flag=True, help="Answer with the request's own content and headers.")
@click.option("--command", "line", metavar="LINE", help="Answer with what this program prints; not run by a shell.")
@headers_option
@click.option("--queue", default="NATS-RPLY-22", show_default=True, metavar="GROUP", help="Queue group.")
@click.option("--sleep", type=DURATION, default=0, help="Wait before each reply.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N requests.")
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
    count: int | None,
    as_json: bool,
) -> None:
    """Answer requests on SUBJECT with BODY until Ctrl-C.

    In BODY, {{Request}} is the content of the request, {{1}} the first token that a wildcard matched, {{Count}} the
    number of the request and {{Time}} the time. With --command, the program gets the tokens as arguments, the content
    on its standard input and the subject in NATS_REQUEST_SUBJECT; when it fails, the reply has the error headers of
    services.
    """
    if (body is not None) + echo + (line is not None) != 1:
        fail("use exactly one of BODY, --echo and --command", EXIT_USAGE)
    program = _words(line)
    async with await session.connect(stay=True) as client:
        subscription = await client.subscribe(subject, queue=queue)
        await client.flush()
        click.echo(f"Listening on {subject}; press Ctrl-C to stop", err=True)
        number = 0
        async for message in subscription:
            number += 1
            if as_json:
                print_line(message)
            else:
                click.echo(f"[#{number}] Received on {message.subject!r}: {len(message.data)} bytes")
            if sleep:
                await asyncio.sleep(sleep / NANOSECONDS_PER_SECOND)
            sent = headers_of(headers)
            if echo:
                own = {key: message.headers.get_all(key) for key, _ in message.headers.items()}
                answer, sent = message.data, {**own, **sent}
            elif line is not None:
                answer, failed = await _run(program, subject, message)
                sent.update(failed)
            else:
                answer = _filled(body or "", number, subject, message)
            if message.reply:
                await client.publish(message.reply, answer, headers=sent or None)
            if number == count:
                break
        await client.flush()


def _tokens(pattern: str, subject: str) -> list[str]:
    """List what the wildcards of a pattern stand for."""
    wanted, found = pattern.split("."), subject.split(".")
    tokens = [token for name, token in zip(wanted, found, strict=False) if name == "*"]
    return tokens + (found[len(wanted) - 1 :] if wanted[-1] == ">" else [])


def _with_tokens(text: str, pattern: str, subject: str) -> str:
    tokens = _tokens(pattern, subject)
    return _TOKEN.sub(lambda place: tokens[int(place[1]) - 1] if 0 < int(place[1]) <= len(tokens) else place[0], text)


def _filled(body: str, number: int, pattern: str, message: Message) -> bytes:
    # The request last: nothing in it is a place to fill in.
    answer = filled(_with_tokens(body, pattern, message.subject), number)
    return answer.replace(b"{{Request}}", message.data)


def _words(line: str | None) -> list[str]:
    """Split a line into the program and its arguments."""
    try:
        words = shlex.split(line or "")
    except ValueError as error:
        fail(f"--command {line}: {error}", EXIT_USAGE)
    if line is not None and not words:
        fail("--command is empty", EXIT_USAGE)
    return words


async def _run(program: list[str], pattern: str, message: Message) -> tuple[bytes, dict[str, str]]:
    """Run a program for a request: what it printed, and the headers of an error if it failed."""
    words = [_with_tokens(word, pattern, message.subject) for word in program]
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "NATS_REQUEST_SUBJECT": message.subject},
        )
    except OSError as error:
        return b"", _error(f"{words[0]}: {error.strerror}")
    printed, _ = await process.communicate(message.data)
    return printed, _error(f"{words[0]} exited with status {process.returncode}") if process.returncode else {}


def _error(text: str) -> dict[str, str]:
    click.echo(text, err=True)
    return {ERROR_HEADER: text, ERROR_CODE_HEADER: "500"}
