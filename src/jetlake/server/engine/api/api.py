"""The dispatcher of the JSON API: finds a request's handler by its subject, decodes the body and sends the answer.

Handlers return the reply or raise an `ApiError`; they are listed by verb, a table for each kind.
An answer is sent when everything written before it is durable, so that it shows nothing that a crash could undo.
A handler that may take long returns steps, between which other work runs; later requests about the same stream wait
meanwhile, so that no answer describes a half purged stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from jetlake.errors import ApiError, DecodeError, JetlakeError, StoreError, api_error
from jetlake.model.api import Body, Match, Route, encode_error, match
from jetlake.model.encoding.codec import decode, decode_strict, encode
from jetlake.model.encoding.fields import Value
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.api.consumer_api import HANDLERS as CONSUMER_HANDLERS
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.api.request import ApiRequest, Handler, is_empty_object
from jetlake.server.engine.api.snapshot_api import HANDLERS as SNAPSHOT_HANDLERS
from jetlake.server.engine.api.stream_api import HANDLERS as STREAM_HANDLERS
from jetlake.server.engine.core.api_level import requires_newer_api
from jetlake.server.engine.core.commit import Action, Syncable
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.steps import Steps

__all__ = ["Api"]

_HANDLERS: dict[str, Handler] = {**STREAM_HANDLERS, **SNAPSHOT_HANDLERS, **CONSUMER_HANDLERS}

# Verbs whose body is ignored unless it looks like JSON.
_MAY_BE_ANYTHING = frozenset({"STREAM.INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.PURGE"})

# Verbs that are audited only when they fail.
_UNAUDITED = frozenset({"STREAM.MSG.GET", "CONSUMER.RESET"})

# Verbs whose answer waits for the removals to be in the stream's log.
_REMOVES_MESSAGES = frozenset({"STREAM.PURGE", "STREAM.MSG.DELETE"})


# Most requests about one stream that wait for an earlier one; more are refused.
_WAITING_MAX = 10_000


class _Call(NamedTuple):
    """A received request."""

    found: Match
    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    origin: Subscriber | None
    awaits: list[Syncable | None]
    """What must be durable before the answer is sent."""
    after_answer: list[Callable[[], None]]
    """Called when the answer has been sent."""
    answer_pairs: list[tuple[bytes, bytes]]
    """Headers of the answer."""


class Api:
    """The API of one account.

    Args:
        jetstream: the account's JetStream.
    """

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._long_work = jetstream.services.long_work
        self._commit = jetstream.services.commit
        self._counts = jetstream.api
        # Per stream that a request in steps works on: the later requests about it.
        self._waiting: dict[str, deque[_Call]] = {}

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Answer a request; an unknown subject gets no answer. True: the subject belongs to the API."""
        found = match(subject)
        if found is None or found.route.reply is None:
            return True
        call = _Call(found, subject, reply, header, payload, origin, [], [], [])
        waiting = self._waiting.get(found.stream)
        if waiting is not None:
            if len(waiting) < _WAITING_MAX:
                # sometimes: a request waits for an earlier one about its stream
                waiting.append(call)
            else:
                self._respond(call, api_error(10008))
            return True
        work = self._serve(call)
        if not self._long_work.advance(work):
            if found.stream:
                self._waiting[found.stream] = deque()
                work = self._serve_waiting(found.stream, work)
            self._long_work.go_on_with(work)
        return True

    def _serve(self, call: _Call) -> Steps[None]:
        """Execute and answer a request, in steps if it takes long."""
        try:
            outcome = self._handle(call)
            if not isinstance(outcome, Value):
                outcome = yield from outcome
            self._respond(call, outcome)
        except ApiError as error:
            self._respond(call, error)
        except StoreError as error:
            self._respond(call, api_error(10077, err=str(error)))

    def _serve_waiting(self, stream: str, work: Steps[None]) -> Steps[None]:
        """Finish a request about a stream, then the requests received meanwhile."""
        waiting = self._waiting[stream]
        try:
            yield from work
            while waiting:
                yield
                call = waiting.popleft()
                if self._long_work.is_finishing:
                    # Each may take long: a server that stops refuses what it has not begun.
                    self._respond(call, api_error(10008))
                else:
                    yield from self._serve(call)
        finally:
            if waiting:  # An unexpected exception ended one request; the others get their answers.
                self._long_work.go_on_with(self._serve_waiting(stream, self._serve(waiting.popleft())))
            else:
                del self._waiting[stream]

    def _respond(self, call: _Call, outcome: Value | ApiError) -> None:
        """Send the answer when everything that it describes is durable."""
        found, subject, reply, _, payload, origin, awaits, after_answer, pairs = call
        kind = found.route.reply
        assert kind is not None
        refused = isinstance(outcome, ApiError)
        response = encode_error(kind, outcome) if isinstance(outcome, ApiError) else encode(outcome)
        audited = refused or found.route.verb not in _UNAUDITED
        self._counts.errors += refused
        self._counts.total += 1

        def answer(error: JetlakeError | None) -> None:
            said = response
            if error is not None:
                self._counts.errors += 1
                said = encode_error(kind, api_error(10077, err=str(error)))
            try:
                if reply:
                    header = b""
                    for pair in () if refused or error is not None else pairs:
                        header = append_pair(header, *pair)
                    self._jetstream.account.publish(reply, b"", header, said)
                if audited:
                    self._jetstream.advisories.api_audit(subject, payload, said, origin)
            finally:
                for act in after_answer:  # Also after an internal error: a new consumer would be held for ever.
                    act()

        stream = self._jetstream.streams.get(found.stream) if found.route.verb in _REMOVES_MESSAGES else None
        if stream is not None and stream.store.durable:
            # A removal that is not in the log may be undone by a crash.
            self._when_removed(stream, answer)
        elif any(awaits) and not refused:
            self._commit.when_all_durable([syncable for syncable in awaits if syncable], answer)
        else:
            self._commit.when_settled(lambda: answer(None))

    def _when_removed(self, stream: Stream, answer: Action) -> None:
        """Answer when the log has the removals, including removals that wait for the messages which caused them."""
        commit, store = self._commit, stream.store

        def first(error: JetlakeError | None) -> None:
            if error is None and not stream.is_closed and (store.needs_flush() or store.needs_sync()):
                commit.mark(store)
                commit.when_durable(store, last)
            else:
                last(error)

        def last(error: JetlakeError | None) -> None:
            if error is None or stream.is_closed or store.failure is not None or store.needs_flush():
                answer(error)
            else:
                # The log took the removals; the refused messages are others of the same turn.
                commit.when_synced(store, answer)

        commit.when_durable(store, first)

    def _handle(self, call: _Call) -> Value | Steps[Value]:
        found, _, reply, header, payload, origin, awaits, after_answer, pairs = call
        route = found.route
        if requires_newer_api(header):
            raise api_error(10185)
        handler = _HANDLERS.get(route.verb)
        if handler is None:
            raise api_error(10010)  # All other verbs are for clusters.
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
            header=header,
            origin=origin,
            now_ns=self._jetstream.services.clock.now_ns(),
            awaits=awaits,
            after_answer=after_answer,
            answer_pairs=pairs,
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
