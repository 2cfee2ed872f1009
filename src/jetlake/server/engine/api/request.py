"""An API request as handlers receive it, and what their replies share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jetlake.model.encoding.fields import Value
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.consumer_storage import ConsumerStorage
from jetlake.server.engine.storage.storage import StreamStorage
from jetlake.store.message import StoredMessage
from jetlake.store.message_store import MessageStore
from jetlake.store.steps import Steps

__all__ = ["ApiRequest", "Handler", "is_empty_object", "last_message", "page", "promise_again"]


class ApiRequest(msgspec.Struct, frozen=True):
    """A decoded request to the JetStream API."""

    jetstream: JetStream
    """The JetStream of the account that asks."""
    stream: str
    """Name of the stream in the subject, or empty."""
    consumer: str
    """Name of the consumer in the subject, or empty."""
    rest: str
    """The remaining tokens of the subject."""
    verb: str
    """The words of the subject, such as `STREAM.INFO`."""
    names: tuple[str, ...]
    """Names in the subject's pattern; tells apart the shapes of one verb."""
    body: Any
    """The request's Struct; None when the body was empty."""
    payload: bytes
    """The undecoded body."""
    reply: bytes
    header: bytes
    """The request's headers; empty when it has none."""
    origin: Subscriber | None
    now_ns: int
    """When the request was executed."""
    awaits: list[Syncable | None] = msgspec.field(default_factory=list)
    """What must be durable before the answer is sent, added by the handler; None stands for what is not stored."""
    after_answer: list[Callable[[], None]] = msgspec.field(default_factory=list)
    """Called when the answer has been sent, added by the handler."""
    answer_pairs: list[tuple[bytes, bytes]] = msgspec.field(default_factory=list)
    """Headers of the answer, added by the handler."""


Handler = Callable[[ApiRequest], Value | Steps[Value]]
"""Executes a request and returns the reply, or steps that return the reply; raises `ApiError` to refuse."""


def page(items: list[Any], offset: int, limit: int) -> tuple[int, tuple[Any, ...]]:
    """Return the offset within bounds, and the items of the page that starts there."""
    offset = min(max(offset, 0), len(items))
    return offset, tuple(items[offset : offset + limit])


def promise_again(request: ApiRequest, storage: StreamStorage | ConsumerStorage) -> None:
    """Sync the folder of what is created again, if a start found it: its first creation may not have been answered."""
    if storage.is_adopted and storage.folder is not None:
        request.jetstream.services.commit.mark_now(storage.folder)


def is_empty_object(payload: bytes) -> bool:
    """Return whether the body is `{}`, with any blanks."""
    stripped = payload.strip()
    return stripped.startswith(b"{") and stripped[1:].strip() == b"}"


def last_message(store: MessageStore, pattern: bytes) -> Steps[StoredMessage | None]:
    """Return the newest message whose subject the pattern covers."""
    while sequence := (yield from store.last_sequence_in_steps(pattern)):
        message = store.get(sequence)
        if message is not None:  # otherwise it was removed meanwhile, or turned out to be lost
            return message
    return None
