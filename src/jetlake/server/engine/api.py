"""The JSON API: a request's subject finds its handler, its body is read, and the answer leaves in its envelope.

Handlers return the reply or raise the `ApiError`; they are listed by verb, one table for streams and one for consumers.
An answer leaves when everything written before it is durable, so that it shows nothing that a crash could undo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jetlake.errors import ApiError, DecodeError, JetlakeError, StoreError, api_error
from jetlake.model.api import Body, Match, Route, encode_error, match
from jetlake.model.codec import decode, decode_strict, encode
from jetlake.model.fields import Value
from jetlake.protocol.headers import find_value
from jetlake.server.engine.commit import Action
from jetlake.server.engine.subscription import Subscriber
from jetlake.server.version import API_LEVEL

if TYPE_CHECKING:
    from jetlake.server.engine.jetstream import JetStream
    from jetlake.server.engine.stream import Stream

__all__ = ["Api", "ApiRequest", "Handler", "is_empty_object", "page", "requires_newer_api"]

REQUIRED_LEVEL = b"Nats-Required-Api-Level"

# Verbs whose body is only read when it looks like JSON at all; anything else counts as empty.
_MAY_BE_ANYTHING = frozenset({"STREAM.INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.PURGE"})


# Verbs whose success is no news: the audit tells of their failures only.
_UNAUDITED = frozenset({"STREAM.MSG.GET", "CONSUMER.RESET"})

# Verbs whose success is a promise about the stream's log.
_REMOVES_MESSAGES = frozenset({"STREAM.PURGE", "STREAM.MSG.DELETE"})


class ApiRequest(msgspec.Struct, frozen=True):
    """A request, as far as it could be read."""

    jetstream: JetStream
    stream: str
    """Name of the stream in the subject, or empty."""
    consumer: str
    """Name of the consumer in the subject, or empty."""
    rest: str
    """What the subject has beyond that."""
    verb: str
    """The words of the subject, such as `STREAM.INFO`."""
    names: tuple[str, ...]
    """Which names the subject has; tells apart the shapes of one verb."""
    body: Any
    """The request's Struct; None when the body was empty."""
    payload: bytes
    """The body as it came."""
    reply: bytes
    origin: Subscriber | None


Handler = Callable[[ApiRequest], Value]
"""Does what a request asks and returns the reply; raises `ApiError` to refuse."""


class Api:
    """The API of one account.

    Attributes:
        total: requests so far.
        errors: those that were refused.
    """

    def __init__(self, jetstream: JetStream) -> None:
        # Here, because the handlers' modules import this one.
        from jetlake.server.engine.consumer_api import HANDLERS as CONSUMER_HANDLERS
        from jetlake.server.engine.stream_api import HANDLERS as STREAM_HANDLERS

        self.total = 0
        self.errors = 0
        self._jetstream = jetstream
        self._handlers: dict[str, Handler] = {**STREAM_HANDLERS, **CONSUMER_HANDLERS}

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Answer a request; an unknown subject gets no answer at all, but was for the API all the same."""
        found = match(subject)
        if found is None or found.route.reply is None:
            return True
        kind = found.route.reply
        audited = True
        try:
            response = encode(self._handle(found, reply, header, payload, origin))
            audited = found.route.verb not in _UNAUDITED
        except ApiError as error:
            self.errors += 1
            response = encode_error(kind, error)
        except StoreError as error:
            self.errors += 1
            response = encode_error(kind, api_error(10077, err=str(error)))
        self.total += 1

        def answer(error: JetlakeError | None) -> None:
            said = response
            if error is not None:
                self.errors += 1
                said = encode_error(kind, api_error(10077, err=str(error)))
            if reply:
                self._jetstream.account.publish(reply, b"", b"", said)
            if audited:
                self._jetstream.advisories.api_audit(subject, payload, said, origin)

        stream = self._jetstream.streams.get(found.stream) if found.route.verb in _REMOVES_MESSAGES else None
        if stream is not None and stream.store.durable:
            # What the disk could not be told may come back after a crash: nobody is told that it is gone.
            self._when_removed(stream, answer)
        else:
            self._jetstream.engine.when_settled(lambda: answer(None))
        return True

    def _when_removed(self, stream: Stream, answer: Action) -> None:
        """Answer when the log has the removals, those included that waited for the messages which caused them."""
        commit = self._jetstream.engine.commit

        def first(error: JetlakeError | None) -> None:
            store = stream.store
            if error is None and not stream.is_closed and (store.needs_flush() or store.needs_sync()):
                commit.mark(store)
                commit.when_durable(store, answer)
            else:
                answer(error)

        commit.when_durable(stream.store, first)

    def _handle(self, found: Match, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> Value:
        route = found.route
        if requires_newer_api(header):
            raise api_error(10185)
        handler = self._handlers.get(route.verb)
        if handler is None:
            raise api_error(10010)  # Everything else in the table is for clusters.
        body = self._read_body(route, payload)
        request = ApiRequest(
            jetstream=self._jetstream,
            stream=found.stream,
            consumer=found.consumer,
            rest=found.rest,
            verb=route.verb,
            names=route.names,
            body=body,
            payload=payload,
            reply=reply,
            origin=origin,
        )
        return handler(request)

    def _read_body(self, route: Route, payload: bytes) -> Any:
        if route.body is Body.IGNORED:
            return None
        stripped = payload.strip()
        if route.body is Body.EMPTY:
            if stripped and not is_empty_object(stripped):
                raise api_error(10038)
            return None
        if not stripped or route.request is None:
            return None
        if stripped == b"null":
            payload = b"{}"
        if route.verb in _MAY_BE_ANYTHING and stripped[:1] not in (b"{", b"["):
            return None
        strict = route.body is Body.STRICT and self._jetstream.engine.options.strict
        try:
            return decode_strict(route.request, payload) if strict else decode(route.request, payload)
        except DecodeError as error:
            raise api_error(10025, err=str(error)) from None


def requires_newer_api(header: bytes) -> bool:
    """Whether the message asks for an API level that this server does not have."""
    if not header:
        return False
    level = find_value(header, REQUIRED_LEVEL)
    if not level:
        return False
    try:
        return int(level) > API_LEVEL
    except ValueError:
        return True  # What is no number asks for more than anyone has.


def page(items: list[Any], offset: int, limit: int) -> tuple[int, tuple[Any, ...]]:
    """The offset within bounds, and the items of the page that starts there."""
    offset = min(max(offset, 0), len(items))
    return offset, tuple(items[offset : offset + limit])


def is_empty_object(payload: bytes) -> bool:
    """Whether the body is `{}`, with any blanks."""
    stripped = payload.strip()
    return stripped.startswith(b"{") and stripped[1:].strip() == b"}"
