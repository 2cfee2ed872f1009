"""`jetlake reply`: answers requests by hand, with their own content or with what a program prints."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from typing import TYPE_CHECKING

import click

from jetlake.cli.commands.messages.bodies import filled, headers_of, headers_option, print_line
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.service import ERROR_CODE_HEADER, ERROR_HEADER

if TYPE_CHECKING:
    from jetlake.client import Message

__all__ = ["reply"]

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
        fail("what to answer? give one of BODY, --echo and --command", EXIT_USAGE)
    program = _words(line)
    async with await session.connect(stay=True) as client:
        subscription = await client.subscribe(subject, queue=queue)
        await client.flush()
        click.echo(f"Listening on {subject}, Ctrl-C ends", err=True)
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
        fail("--command names no program", EXIT_USAGE)
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
    return printed, _error(f"{words[0]} ended with status {process.returncode}") if process.returncode else {}


def _error(text: str) -> dict[str, str]:
    click.echo(text, err=True)
    return {ERROR_HEADER: text, ERROR_CODE_HEADER: "500"}
