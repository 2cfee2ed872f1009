"""What a shell offers for an argument: names of streams and consumers that the server has, saved contexts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from jetlake.cli import contexts
from jetlake.cli.session import session_of
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.client import JetStream

__all__ = ["consumer_names", "context_names", "stream_names"]

_PATIENCE_S = 2.0


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The saved contexts."""
    return [name for name in contexts.names() if name.startswith(incomplete)]


def stream_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The streams of the server that the line is about."""
    return _asked(ctx, lambda js: js.stream_names(), incomplete)


def consumer_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The consumers of the stream that the line names."""

    async def names(js: JetStream) -> list[str]:
        return await (await js.stream(ctx.params["stream"])).consumer_names()

    return _asked(ctx, names, incomplete)


def _asked(ctx: click.Context, question: Callable[[JetStream], Awaitable[list[str]]], incomplete: str) -> list[str]:
    """The names that fit; none when the server does not answer, for a shell has no place for the reason."""

    async def ask() -> list[str]:
        async with asyncio.timeout(_PATIENCE_S), session_of(ctx).jetstream() as js:
            return await question(js)

    try:
        return sorted(name for name in asyncio.run(ask()) if name.startswith(incomplete))
    except (JetlakeError, OSError):
        return []
