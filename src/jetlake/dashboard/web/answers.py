"""How routes answer: errors as sentences, values that are not there, server-sent events, numbers of a query."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from jetlake.errors import (
    ApiError,
    BadHeaderError,
    BadSubjectError,
    ConfigError,
    InvalidOptionError,
    JetlakeError,
    PermissionsError,
)

__all__ = ["events", "explain", "json_answer", "whole_number"]

_STATUSES: tuple[tuple[type[JetlakeError], int], ...] = (
    (ConfigError, 400),
    (BadSubjectError, 400),
    (BadHeaderError, 400),
    (PermissionsError, 403),
)


def json_answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def explain(_request: Request, error: Exception) -> Response:
    """Return an error of the library as one sentence."""
    if isinstance(error, ApiError) and 400 <= error.code < 500:
        status = error.code
    else:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
    return json_answer({"error": str(error)}, status)


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of the query; None when it is not there.

    Raises:
        InvalidOptionError: not a whole number.
    """
    text = query.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidOptionError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def events(items: AsyncIterator[Any], request: Request) -> Response:
    """Send an event for each item until the page is closed; an error is the last one."""

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for item in items:
                if await request.is_disconnected():
                    return
                yield b"data: " + msgspec.json.encode(item) + b"\n\n"
        except JetlakeError as error:
            yield b"event: failed\ndata: " + msgspec.json.encode({"error": str(error)}) + b"\n\n"
        except asyncio.CancelledError:
            return  # the page opens the stream again by itself

    return StreamingResponse(lines(), media_type="text/event-stream")
