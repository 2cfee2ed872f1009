"""Bodies of requests: JSON, and no larger than allowed."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from jetlake.errors import InvalidOptionError

__all__ = ["BODY_BYTES_MAX", "json_body"]

BODY_BYTES_MAX = 2 * 1024 * 1024
"""The largest body: room for a payload of a megabyte in base64."""

BodyT = TypeVar("BodyT")


async def json_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Read the body of a request, which must be JSON: forms of other sites can't send that without asking first.

    Raises:
        InvalidOptionError: it is too large, or not what is wanted.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidOptionError("the body must be application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidOptionError(f"the body is larger than {BODY_BYTES_MAX:,} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOptionError(str(error)) from None
