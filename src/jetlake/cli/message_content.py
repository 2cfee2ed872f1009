"""Messages on the command line: the body and headers that are typed, and how one that came is printed."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterable
from itertools import count as counting
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.keyboard import read_standard_input, standard_lines
from jetlake.cli.session import EXIT_USAGE, fail
from jetlake.cli.templates import fill, fill_text
from jetlake.cli.values import HEADER
from jetlake.model.encoding.codec import encode_shown

if TYPE_CHECKING:
    from jetlake.client import Message
    from jetlake.protocol.headers import Headers


headers_option = click.option("-H", "--header", "headers", type=HEADER, multiple=True, help="Header; may be repeated.")
templates_option = click.option(
    "--templates/--no-templates", default=True, help="Whether {{Count}} and other functions in BODY are filled in."
)
translate_option = click.option(
    "--translate", metavar="COMMAND", help="Print what this command makes of each content, which is its input."
)


def value_of(text: str | None) -> bytes:
    """Return the typed text as it is, bytes that are no text in the locale too, or standard input."""
    if text is not None:
        return text.encode(errors="surrogateescape")
    if sys.stdin.isatty():
        click.echo("Reading standard input; press Ctrl-D to end", err=True)
    return read_standard_input()


async def bodies(
    text: str | None, count: int, *, templates: bool, force_stdin: bool = False, by_line: bool = False
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the number and the content of each message: the typed text, filled in, or standard input as it is.

    Args:
        count: how many; 0 for no end.
        by_line: each line of standard input is a message.
    """
    if force_stdin:
        text = None
    if text is None and by_line:
        number = 0
        async for line in standard_lines():
            number += 1
            yield number, line
        return
    typed = value_of(text)  # Standard input once for all messages: the second read would find the end.
    is_filled = templates and text is not None
    for number in counting(1) if count == 0 else range(1, count + 1):
        yield number, fill(typed, number) if is_filled else typed


def headers_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Return headers with all values of a key that was given more than once."""
    headers: dict[str, Any] = {}
    for key, value in pairs:
        headers.setdefault(key, []).append(value)
    return headers


def filled_headers(pairs: Iterable[tuple[str, str]], number: int) -> dict[str, str | list[str]] | None:
    """Return headers with their template functions filled in; None without headers."""
    return headers_of((key, fill_text(value, number)) for key, value in pairs) or None


def print_content(message: Message, raw: bool) -> None:
    """Print headers, an empty line and payload, or the payload alone."""
    print_parts(message.headers, message.data, raw)


def print_parts(headers: Headers, content: bytes, raw: bool = False) -> None:
    """Print headers, an empty line and content, or the content alone."""
    if not raw:
        for key, value in headers.items():
            click.echo(output.printable(f"{key}: {value}"))
        if headers:
            click.echo()
    click.echo(content)


def print_line(message: Message, **more: Any) -> None:
    """Print a message as one line of JSON, its payload in base64."""
    click.echo(encode_shown({**message_fields(message), **more}))


def message_fields(message: Message) -> dict[str, Any]:
    """Return a message for JSON."""
    return {
        "subject": message.subject,
        "reply": message.reply,
        "headers": [list(pair) for pair in message.headers.items()],
        "data": message.data,
    }


def command_words(option: str, line: str | None) -> list[str]:
    """Split the line of an option into a program and its arguments; it is not run by a shell."""
    try:
        words = shlex.split(line or "")
    except ValueError as error:
        fail(f"{option} {line}: {error}", EXIT_USAGE)
    if line is not None and not words:
        fail(f"{option} is empty", EXIT_USAGE)
    return words


async def translated(words: list[str], content: bytes, subject: str) -> bytes:
    """Return what a command prints for a content on its standard input; `{{Subject}}` in its words is the subject."""
    if not words:
        return content
    program = [word.replace("{{Subject}}", subject) for word in words]
    try:
        process = await asyncio.create_subprocess_exec(
            *program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        fail(f"--translate {program[0]}: {error.strerror}")
    printed, _ = await process.communicate(content)
    if process.returncode:
        fail(f"--translate {program[0]}: exited with status {process.returncode}")
    return printed.removesuffix(b"\n")
