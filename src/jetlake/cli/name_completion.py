"""What a shell offers for an argument: names that the server has, saved contexts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import contexts
from jetlake.cli.session import session_of, typed_settings
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.client import JetStream

__all__ = [
    "bucket_names",
    "consumer_names",
    "context_names",
    "key_names",
    "object_names",
    "service_names",
    "store_names",
    "stream_names",
]

_PATIENCE_S = 2.0
"""How long a shell waits for names, unless the line says `--timeout`."""


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the saved contexts."""
    return [name for name in (*contexts.names(), *contexts.nats_names()) if name.startswith(incomplete)]


def stream_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the streams of the server that the line is about."""
    return _asked(ctx, lambda js: js.stream_names(), incomplete)


def consumer_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the consumers of the stream that the line names."""

    async def names(js: JetStream) -> list[str]:
        return await (await js.stream(ctx.params["stream"])).consumer_names()

    return _asked(ctx, names, incomplete)


def bucket_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the key-value buckets."""
    return _asked(ctx, lambda js: js.key_value_names(), incomplete)


def key_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the keys of the bucket that the line names."""

    async def names(js: JetStream) -> list[str]:
        return await (await js.key_value(ctx.params["bucket"])).keys()

    return _asked(ctx, names, incomplete)


def store_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the object stores."""
    return _asked(ctx, lambda js: js.object_store_names(), incomplete)


def object_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the objects of the store that the line names."""

    async def names(js: JetStream) -> list[str]:
        return [info.name for info in await (await js.object_store(ctx.params["bucket"])).list()]

    return _asked(ctx, names, incomplete)


def service_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the services that run."""

    async def names() -> list[str]:
        async with await session_of(ctx).connect() as client:
            return list({found.name for found in await client.services().ping()})

    return _offered(ctx, names, incomplete)


def _asked(ctx: click.Context, question: Callable[[JetStream], Awaitable[list[str]]], incomplete: str) -> list[str]:
    async def names() -> list[str]:
        async with session_of(ctx).jetstream() as js:
            return await question(js)

    return _offered(ctx, names, incomplete)


def _offered(ctx: click.Context, names: Callable[[], Coroutine[Any, Any, list[str]]], incomplete: str) -> list[str]:
    """Choose the names that fit; none when the server does not answer, for a shell has no place for the reason."""
    import asyncio  # Not for the help.

    try:
        found = asyncio.run(asyncio.wait_for(names(), typed_settings(ctx).get("timeout", _PATIENCE_S)))
        return sorted(name for name in found if name.startswith(incomplete))
    except (JetlakeError, OSError):
        return []
