"""A small HTTP server that answers `/metrics` with a text made for each request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import click

__all__ = ["serve_metrics"]

_REQUEST_S = 10.0
"""How long a client may take for its request."""
_LINES_MAX = 100
_CLIENTS_MAX = 16


async def serve_metrics(
    host: str, port: int, tls: ssl.SSLContext | None, metrics: Callable[[], Awaitable[str]]
) -> None:
    """Answer until the task is cancelled; further clients than a few wait for their turn."""
    turns = asyncio.Semaphore(_CLIENTS_MAX)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with turns:
                await _answer(reader, writer, metrics)
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
            pass  # The client is gone, or is none.
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, ssl=tls)
    async with server:
        address = server.sockets[0].getsockname()
        scheme = "http" if tls is None else "https"
        click.echo(f"Listening on {scheme}://{address[0]}:{address[1]}/metrics; press Ctrl-C to stop", err=True)
        await server.serve_forever()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, metrics: Callable[[], Awaitable[str]]
) -> None:
    async with asyncio.timeout(_REQUEST_S):
        words = (await reader.readline()).split()
        for _ in range(_LINES_MAX):
            if (await reader.readline()) in (b"\r\n", b"\n", b""):
                break
    is_asked = len(words) == 3 and words[0] == b"GET" and words[1].partition(b"?")[0] == b"/metrics"
    status, text = ("200 OK", await metrics()) if is_asked else ("404 Not Found", "see /metrics\n")
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
