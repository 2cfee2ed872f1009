"""Further pages on the monitoring port: an ASGI application answers the paths that monitoring does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

__all__ = ["BODY_BYTES_MAX", "Pages", "answer_page"]

Pages = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""An ASGI application."""

BODY_BYTES_MAX = 2 * 1024 * 1024
"""The largest body of a request for a page; a larger one is refused unread."""
_STALL_S = 30.0
"""A peer that takes nothing of an answer for this long is disconnected."""


async def answer_page(
    pages: Pages,
    transport: asyncio.Transport,
    gone: asyncio.Event,
    writable: asyncio.Event,
    method: str,
    target: str,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
) -> None:
    """Let the application answer one request; the end of the connection ends the answer, which may be a long stream.

    Args:
        gone: set when the peer has closed the connection.
        writable: set while the transport takes more to write.
    """
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": headers,
        "client": transport.get_extra_info("peername"),
        "server": transport.get_extra_info("sockname"),
    }
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if transport.is_closing():
            return
        if message["type"] == "http.response.start":
            transport.write(_head(message["status"], message["headers"]))
            return
        transport.write(message.get("body", b""))
        if not await _is_taken(transport, writable):
            transport.abort()

    try:
        await pages(scope, receive, send)
    finally:
        transport.close()


async def _is_taken(transport: asyncio.Transport, writable: asyncio.Event) -> bool:
    """Apply back-pressure until more can be written; return whether the peer still reads."""
    while not writable.is_set():
        before = transport.get_write_buffer_size()
        try:
            await asyncio.wait_for(writable.wait(), _STALL_S)
        except TimeoutError:
            if transport.get_write_buffer_size() >= before:
                return False
    return True


def _head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers if name.lower() != b"connection"]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])
