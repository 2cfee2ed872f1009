"""The picker: a name that was left out is chosen from a list at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from jetlake.cli import output
from jetlake.cli.keyboard import ask
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from jetlake.client import JetStream

__all__ = ["HIDDEN", "chosen_consumer", "chosen_stream", "pick"]

HIDDEN = ("KV_", "OBJ_", "MQTT_", "$MQTT_")
"""Streams of buckets and of MQTT, which lists leave out unless they are asked for all."""


def pick(kind: str, names: Sequence[str], hint: str) -> str:
    """Let the user choose one of the names by number, name or the beginning of a name.

    Args:
        kind: what is chosen, such as `stream`.
        hint: what to do where there is nothing to choose from, or no terminal.
    """
    if not sys.stdin.isatty():
        fail(f"{kind} name is missing. {hint}", EXIT_USAGE)
    if not names:
        fail(f"no {kind}s. {hint}", EXIT_FAILED)
    for number, name in enumerate(names, 1):
        click.echo(f"{number:>4}  {output.printable(name)}", err=True)
    while True:
        typed = ask(f"Select a {kind}", default="1" if len(names) == 1 else None).strip()
        if typed in names:
            return str(typed)
        if typed.isascii() and typed.isdigit() and 0 < int(typed) <= len(names):
            return names[int(typed) - 1]
        found = [name for name in names if name.startswith(typed)]
        if len(found) == 1:
            return found[0]
        click.echo(f"{typed!r} matches {len(found)} of the names; type a number or a whole name", err=True)


async def chosen_stream(js: JetStream, name: str | None, *, show_all: bool = False) -> str:
    """Return the name of a stream: the one that was typed, or one that the user chooses."""
    if name:
        return name
    if not sys.stdin.isatty():
        return pick("stream", (), "List streams: jetlake stream ls")
    names = await js.stream_names()
    shown = sorted(one for one in names if show_all or not one.startswith(HIDDEN))
    return pick("stream", shown, "Create one: jetlake stream add ORDERS --subjects 'orders.>'")


async def chosen_consumer(js: JetStream, stream: str, name: str | None) -> str:
    """Return the name of a consumer of a stream: the one that was typed, or one that the user chooses."""
    if name:
        return name
    if not sys.stdin.isatty():
        return pick("consumer", (), f"List consumers: jetlake consumer ls {stream}")
    names = sorted(await (await js.stream(stream)).consumer_names())
    return pick("consumer", names, f"Create one: jetlake consumer add {stream} worker --pull")
