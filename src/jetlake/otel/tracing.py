"""Spans and metrics of a client's messages, by OpenTelemetry's conventions for messaging."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any, TypeVar, cast

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, StatusCode

from jetlake.client.messages.message import Message
from jetlake.client.messages.ready import READY
from jetlake.client.services.request import ServiceRequest
from jetlake.protocol.headers import Headers
from jetlake.version import __version__

T = TypeVar("T")

_SYSTEM = {"messaging.system": "nats"}
_KINDS = {"publish": SpanKind.PRODUCER, "request": SpanKind.CLIENT}
_COUNTED = ("messaging.nats.stream", "messaging.consumer.group.name")


class Tracing:
    """Traces a client: give it to `jetlake.connect(…, tracing=Tracing())`.

    What is published carries the span's context in W3C headers. A handler runs in a span that is a child of the
    publisher's; before it stands the delivery, from the moment when a stream stored the message. A program that
    iterates over messages instead writes `with tracing.handling(message):`.

    Args:
        tracer_provider: makes the spans. Default: the global one.
        meter_provider: makes the metrics. Default: the global one.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("jetlake", __version__, tracer_provider)
        meter = metrics.get_meter("jetlake", __version__, meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were published, requests included"
        )
        self._sending_s = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Time until a publish was acknowledged or a request answered"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were handed to handlers"
        )
        self._handling_s = meter.create_histogram("messaging.process.duration", "s", "Time that handlers took")

    # Sending

    def traced_send(self, send: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function that publishes: a span around it, whose context goes with the message."""
        operation = "request" if send.__name__ == "request" else "publish"

        @wraps(send)
        def traced(subject: str, payload: bytes = b"", **options: Any) -> T:
            work = Work(self._begin(operation, subject, payload), partial(self._sent_one, operation))
            options["headers"] = with_context(options.get("headers"), trace.set_span_in_context(work.span))
            try:
                result = send(subject, payload, **options)
            except BaseException as error:
                work.end(error)
                raise
            if iscoroutine(result):
                return cast("T", work.finish(result))
            work.end()
            return result

        return traced

    def _begin(self, operation: str, subject: str, payload: object) -> Span:
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": operation,
            "messaging.destination.name": subject,
        }
        if isinstance(payload, (bytes, bytearray, memoryview)):
            attributes["messaging.message.body.size"] = len(payload)
        return self._tracer.start_span(f"{operation} {subject}", kind=_KINDS[operation], attributes=attributes)

    def _sent_one(self, operation: str, taken_s: float, error: BaseException | None) -> None:
        attributes = {**_SYSTEM, "messaging.operation.name": operation, **error_type(error)}
        self._sent.add(1, attributes)
        self._sending_s.record(taken_s, attributes)

    # Handling

    def traced_handler(self, handler: Callable[[Any], T]) -> Callable[[Any], T]:
        """Wrap a handler of messages or requests: it runs in a span, under the span of the message's publisher."""
        if iscoroutinefunction(handler):

            @wraps(handler)
            async def handle_later(message: Any) -> Any:
                with self.handling(message):
                    return await handler(message)

            return cast("Callable[[Any], T]", handle_later)

        @wraps(handler)
        def handle(message: Any) -> Any:
            work = self._receive(message)
            try:
                with work.current():
                    result = handler(message)
            except BaseException as error:
                work.end(error)
                raise
            # An acknowledgement that is returned is done already, and a thread awaits nothing.
            if isawaitable(result) and result is not READY:
                return work.finish(result)
            work.end()
            return result

        return handle

    @contextmanager
    def handling(self, message: Message | ServiceRequest) -> Iterator[Span]:
        """Run a block in the span of a message that is handled, for code that iterates over messages."""
        work = self._receive(message)
        try:
            with work.current():
                yield work.span
        except BaseException as error:
            work.end(error)
            raise
        work.end()

    def _receive(self, message: Message | ServiceRequest) -> Work:
        """Begin to handle a message; before that stands its delivery, where a stream says when that began."""
        received = message.message if isinstance(message, ServiceRequest) else message
        origin = _origin(received)
        attributes = {**_SYSTEM, "messaging.destination.name": received.subject, **origin}
        context = context_of(received.headers)
        if origin:
            context = self._deliver(received, context, attributes)
        attributes["messaging.operation.type"] = attributes["messaging.operation.name"] = "process"
        attributes["messaging.message.body.size"] = len(received.payload)
        span = self._tracer.start_span(
            f"process {received.subject}", context=context, kind=SpanKind.CONSUMER, attributes=attributes
        )
        counted = {**_SYSTEM, **{key: origin[key] for key in _COUNTED if key in origin}}
        return Work(span, partial(self._handled_one, counted))

    def _deliver(self, message: Message, context: Context, attributes: dict[str, Any]) -> Context:
        now_ns = time.time_ns()
        delivery = {**attributes, "messaging.operation.type": "receive", "messaging.operation.name": "deliver"}
        span = self._tracer.start_span(
            f"deliver {message.subject}",
            context=context,
            kind=SpanKind.CONSUMER,
            start_time=min(message.metadata.timestamp_ns, now_ns),
            attributes=delivery,
        )
        span.end(now_ns)
        return trace.set_span_in_context(span, context)

    def _handled_one(self, counted: dict[str, Any], taken_s: float, error: BaseException | None) -> None:
        attributes = {**counted, **error_type(error)}
        self._consumed.add(1, attributes)
        self._handling_s.record(taken_s, attributes)


def _origin(message: Message) -> dict[str, Any]:
    """Return where in which stream a message is, and how often it was delivered; nothing for core messages."""
    if not message.raw_reply.startswith(b"$JS.ACK."):
        return {}
    metadata = message.metadata
    return {
        "messaging.nats.stream": metadata.stream,
        "messaging.consumer.group.name": metadata.consumer,
        "messaging.nats.stream_sequence": metadata.stream_seq,
        "messaging.nats.delivery_count": metadata.delivered,
    }


class Work:
    """Work between the beginning of a span and its end.

    Args:
        span: the span, which has begun.
        count: called at the end with the seconds that it took, and the error if there was one.
    """

    __slots__ = ("_began_s", "_count", "span")

    def __init__(self, span: Span, count: Callable[[float, BaseException | None], None]) -> None:
        self.span = span
        self._count = count
        self._began_s = time.perf_counter()

    def current(self) -> AbstractContextManager[Span]:
        """Make the span the current one for a block."""
        return trace.use_span(self.span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    async def finish(self, rest: Awaitable[T]) -> T:
        """Wait for the rest of the work, and end with it."""
        try:
            with self.current():
                result = await rest
        except BaseException as error:
            self.end(error)
            raise
        self.end()
        return result

    def end(self, error: BaseException | None = None) -> None:
        """End the span, and count the work."""
        if error is not None:
            self.span.record_exception(error)
            self.span.set_attributes(error_type(error))
            self.span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self.span.end()
        self._count(time.perf_counter() - self._began_s, error)


def error_type(error: BaseException | None) -> dict[str, str]:
    """Return the attribute that says what went wrong; none when nothing did."""
    return {} if error is None else {"error.type": type(error).__name__}


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
    """Return the context in a message's headers, or the caller's when there is none."""
    return propagate.extract(headers, getter=_ANY_CASE)
