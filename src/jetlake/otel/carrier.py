"""W3C headers of messages: the context that a message carries from its publisher to its handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter

from jetlake.protocol.headers import Headers

__all__ = ["context_of", "with_context"]


class _AnyCase(Getter[Headers]):
    """Reads headers whatever the case of their keys: NATS tells `Traceparent` from `traceparent`, W3C does not."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return [value for name, value in carrier.items() if name.lower() == key] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name.lower() for name, _ in carrier.items()]


_ANY_CASE = _AnyCase()


def with_context(headers: Headers | Mapping[str, str | list[str]] | None, context: Context) -> dict[str, Any] | None:
    """Return the headers, and those by which the context goes with the message; None when there are none of either."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    if isinstance(headers, Headers):
        own: dict[str, Any] = {key: headers.get_all(key) for key in headers}
    else:
        own = dict(headers or {})
    kept = {key: value for key, value in own.items() if key.lower() not in carrier}
    return {**kept, **carrier} or None


def context_of(headers: Headers) -> Context:
    """Return the context that came with a message; that of the caller when there is none."""
    return propagate.extract(headers, getter=_ANY_CASE)
