"""Payloads that are JSON, read as Python values or as the type that the caller names."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from jetlake.errors import DecodeError

__all__ = ["json_payload"]


def json_payload(payload: bytes, kind: Any, place: str) -> Any:
    """Read a payload as JSON.

    Args:
        payload: the JSON text.
        kind: the type to read it as, anything that msgspec can; None for dicts, lists, numbers and texts.
        place: where the payload comes from, for the error.

    Raises:
        DecodeError: not JSON, or JSON of another shape.
    """
    try:
        return _decoder(Any if kind is None else kind).decode(payload)
    except msgspec.ValidationError as error:
        raise DecodeError(f"the JSON {place} does not have the expected type: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"the payload {place} is not JSON: {error}") from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
