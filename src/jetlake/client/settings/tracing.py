"""The contract between the client and a tracer of the messages that it sends and handles."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

__all__ = ["Tracing", "trace_sends"]

T = TypeVar("T")


class Tracing(Protocol):
    """Wraps what publishes messages and what handles them; `jetlake.otel.Tracing` is one."""

    def traced_send(self, send: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function that takes a subject, a payload and `headers`, plain or for coroutines."""

    def traced_handler(self, handler: Callable[[Any], T]) -> Callable[[Any], T]:
        """Wrap a function that takes a message or request; a coroutine function stays one."""


def trace_sends(client: Any, tracing: Tracing | None) -> None:
    """Trace what a client publishes and asks for, and what its JetStream publishes; without tracing nothing changes."""
    if tracing is None:
        return
    for name in ("publish", "request"):
        setattr(client, name, tracing.traced_send(getattr(client, name)))
    client.jetstream = _making(client.jetstream, tracing, "publish", "publish_async")


def _making(make: Callable[..., Any], tracing: Tracing, *sends: str) -> Callable[..., Any]:
    """Return a function that creates an object whose sends are traced, including the sends of its batches."""

    @wraps(make)
    def make_traced(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        for name in sends:
            setattr(made, name, tracing.traced_send(getattr(made, name)))
        if hasattr(made, "batch"):
            made.batch = _making(made.batch, tracing, "publish")
        return made

    return make_traced
