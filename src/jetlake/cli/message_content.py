"""Messages on the command line: the body and headers that are typed, and how one that came is printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli.keyboard import read_standard_input
from jetlake.cli.values import HEADER

if TYPE_CHECKING:
    from jetlake.client import Message


headers_option = click.option("-H", "--header", "headers", type=HEADER, multiple=True, help="Header; may be repeated.")


def value_of(text: str | None) -> bytes:
    """Return what was typed as it is, bytes that are no text in the locale too, or standard input."""
    if text is not None:
        return text.encode(errors="surrogateescape")
    if sys.stdin.isatty():
        click.echo("Reading standard input; press Ctrl-D to end", err=True)
    return read_standard_input()


def bodies_of(text: str | None) -> Callable[[int], bytes]:
    """Return what makes the body of each message by its number: what was typed, filled in, or standard input."""
    if text is not None:
        return lambda number: filled(text, number)
    content = value_of(None)  # Once for all messages: the second read would find the end.
    return lambda number: content


def filled(text: str, number: int) -> bytes:
    """Return what was typed, with `{{Count}}` and `{{Time}}` filled in."""
    return value_of(text.replace("{{Count}}", str(number)).replace("{{Time}}", time.strftime("%H:%M:%S")))


def headers_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Return headers with all values of a key that was given more than once."""
    headers: dict[str, Any] = {}
    for key, value in pairs:
        headers.setdefault(key, []).append(value)
    return headers


def print_content(message: Message, raw: bool) -> None:
    """Print headers and payload, or the payload alone."""
    if not raw:
        for key, value in message.headers.items():
            click.echo(f"{key}: {value}")
    click.echo(message.data)


def print_line(message: Message, **more: Any) -> None:
    """Print a message as one line of JSON, its payload in base64."""
    fields = {
        "subject": message.subject,
        "reply": message.reply,
        "headers": [list(pair) for pair in message.headers.items()],
        "data": message.data,
    }
    click.echo(msgspec.json.encode({**fields, **more}))
