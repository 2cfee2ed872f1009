"""The JSON API: a request's subject finds its handler, its body is read, and the answer leaves in its envelope.

Handlers return the reply or raise the `ApiError`; they are listed by verb, one table for streams and one for consumers.
An answer leaves when everything written before it is durable, so that it shows nothing that a crash could undo.
A handler that may take long returns steps, between which others go first; requests about the same stream wait then,
so that nobody is told of a stream that is half purged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jetlake.errors import ApiError, DecodeError, JetlakeError, StoreError, api_error
from jetlake.model.api import Body, Match, Route, encode_error, match
from jetlake.model.encoding.codec import decode, decode_strict, encode
from jetlake.model.encoding.fields import Value
from jetlake.server.engine.core.api_level import requires_newer_api
from jetlake.server.engine.core.commit import Action, Syncable
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.engine.api.jetstream import JetStream
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["Api", "ApiRequest", "Handler", "is_empty_object", "page"]

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
    awaits: list[Syncable | None] = msgspec.field(default_factory=list)
    """What has to be durable before the answer leaves, added by the handler; None, for what is not kept, counts not."""


Handler = Callable[[ApiRequest], Value | Steps[Value]]
"""Does what a request asks and returns the reply, or steps that end with it; raises `ApiError` to refuse."""

# Requests about one stream that wait for an earlier one; more are refused.
_WAITING_MAX = 10_000


class _Call(NamedTuple):
    """A request as it came."""

    found: Match
    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    origin: Subscriber | None
    awaits: list[Syncable | None]
    """What its answer waits for."""


class Api:
    """The API of one account.

    Attributes:
        total: requests so far.
        errors: those that were refused.
    """

    def __init__(self, jetstream: JetStream) -> None:
        # Here, because the handlers' modules import this one.
        from jetlake.server.engine.api.consumer_api import HANDLERS as CONSUMER_HANDLERS
        from jetlake.server.engine.api.stream_api import HANDLERS as STREAM_HANDLERS

        self.total = 0
        self.errors = 0
        self._jetstream = jetstream
        self._handlers: dict[str, Handler] = {**STREAM_HANDLERS, **CONSUMER_HANDLERS}
        # By the name of a stream about which a request is being worked on: those that came after it.
        self._waiting: dict[str, deque[_Call]] = {}

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Answer a request; an unknown subject gets no answer at all, but was for the API all the same."""
        found = match(subject)
        if found is None or found.route.reply is None:
            return True
        call = _Call(found, subject, reply, header, payload, origin, [])
        waiting = self._waiting.get(found.stream)
        if waiting is not None:
            if len(waiting) < _WAITING_MAX:
                waiting.append(call)
            else:
                self._respond(call, api_error(10008))
            return True
        work = self._serve(call)
        long_work = self._jetstream.engine.long_work
        if not long_work.advance(work):
            if found.stream:
                self._waiting[found.stream] = deque()
                work = self._serve_waiting(found.stream, work)
            long_work.go_on_with(work)
        return True

    def _serve(self, call: _Call) -> Steps[None]:
        """Do what a request asks, in steps if it takes long, and answer it."""
        try:
            outcome = self._handle(call)
            if isinstance(outcome, Generator):
                outcome = yield from outcome
            self._respond(call, outcome)
        except ApiError as error:
            self._respond(call, error)
        except StoreError as error:
            self._respond(call, api_error(10077, err=str(error)))

    def _serve_waiting(self, stream: str, work: Steps[None]) -> Steps[None]:
        """Finish a request about a stream, then those that have come since."""
        waiting = self._waiting[stream]
        try:
            yield from work
            while waiting:
                yield
                yield from self._serve(waiting.popleft())
        finally:
            if waiting:  # A defect ended one of them; the others get their answers.
                self._jetstream.engine.long_work.go_on_with(self._serve_waiting(stream, self._serve(waiting.popleft())))
            else:
                del self._waiting[stream]

    def _respond(self, call: _Call, outcome: Value | ApiError) -> None:
        """Answer when everything that the answer tells of is durable."""
        found, subject, reply, _, payload, origin, awaits = call
        kind = found.route.reply
        assert kind is not None
        refused = isinstance(outcome, ApiError)
        response = encode_error(kind, outcome) if isinstance(outcome, ApiError) else encode(outcome)
        audited = refused or found.route.verb not in _UNAUDITED
        self.errors += refused
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
        elif any(awaits) and not refused:
            self._jetstream.services.commit.when_all_durable([syncable for syncable in awaits if syncable], answer)
        else:
            self._jetstream.engine.when_settled(lambda: answer(None))

    def _when_removed(self, stream: Stream[Any], answer: Action) -> None:
        """Answer when the log has the removals, those included that waited for the messages which caused them."""
        commit = self._jetstream.services.commit

        def first(error: JetlakeError | None) -> None:
            store = stream.store
            if error is None and not stream.is_closed and (store.needs_flush() or store.needs_sync()):
                commit.mark(store)
                commit.when_durable(store, answer)
            else:
                answer(error)

        commit.when_durable(stream.store, first)

    def _handle(self, call: _Call) -> Value | Steps[Value]:
        found, _, reply, header, payload, origin, awaits = call
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
            awaits=awaits,
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
        strict = route.body is Body.STRICT and self._jetstream.services.options.strict
        try:
            return decode_strict(route.request, payload) if strict else decode(route.request, payload)
        except DecodeError as error:
            raise api_error(10025, err=str(error)) from None


def page(items: list[Any], offset: int, limit: int) -> tuple[int, tuple[Any, ...]]:
    """The offset within bounds, and the items of the page that starts there."""
    offset = min(max(offset, 0), len(items))
    return offset, tuple(items[offset : offset + limit])


def is_empty_object(payload: bytes) -> bool:
    """Whether the body is `{}`, with any blanks."""
    stripped = payload.strip()
    return stripped.startswith(b"{") and stripped[1:].strip() == b"}"
