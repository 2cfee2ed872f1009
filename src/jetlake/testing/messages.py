"""Helpers that make streams and fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetlake.client import JetStream, Stream

__all__ = ["fill", "make_stream"]

Payload = bytes | Callable[[int], bytes]


async def fill(js: JetStream, subject: str, count: int, payload: Payload = b"message") -> None:
    """Publish `count` messages to a subject and wait until all are stored.

    Args:
        payload: the content of each, or a function that makes it from the message's number, from 0.
    """
    for number in range(count):
        await js.publish_async(subject, payload(number) if callable(payload) else payload)
    await js.publish_async_complete()


async def make_stream(
    js: JetStream,
    name: str,
    subjects: Iterable[str] | None = None,
    *,
    messages: int = 0,
    payload: Payload = b"message",
    **options: Any,
) -> Stream:
    """Return a stream with `count` messages, on its first subject with wildcards replaced by `test`.

    Args:
        subjects: what it captures. Default: `name.>`.
        options: anything `js.create_stream` takes.
    """
    captured = list(subjects) if subjects is not None else [f"{name}.>"]
    stream = await js.create_stream(name, subjects=captured, **options)
    if messages:
        literal = ".".join("test" if token in "*>" else token for token in captured[0].split("."))
        await fill(js, literal, messages, payload)
    return stream
