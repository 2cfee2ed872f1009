"""A service: named endpoints under groups of subjects, with answers to discovery and statistics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from msgspec import Struct

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.subscription import PendingLimits, Subscription
from jetlake.client.messages.callbacks import describe
from jetlake.client.messages.endings import end_all
from jetlake.client.messages.message import Message
from jetlake.client.services.request import ServiceRequest
from jetlake.client.settings.wire_values import publish_subject, queue_bytes, subscribe_subject
from jetlake.errors import InvalidOptionError, JetlakeError, ServiceError
from jetlake.model.encoding.codec import encode
from jetlake.model.service import (
    DEFAULT_QUEUE,
    EndpointInfo,
    EndpointStats,
    ServiceIdentity,
    ServiceInfo,
    ServiceStats,
    check_service_name,
    check_version,
    discovery_subject,
)
from jetlake.protocol.nuid import next_nuid

EndpointHandler = Callable[[ServiceRequest], Awaitable[bytes | None] | bytes | None]
"""A plain or a coroutine function that takes a request; the bytes that it returns are the answer."""

HandlerT = TypeVar("HandlerT", bound=EndpointHandler)

_INTERNAL_ERROR = 500
_STOPPED = "the service was stopped in the middle of the request"
_CANCELLED = "the handler awaited something that was cancelled"
_DESCRIPTION_MAX = 512
"""Most characters of an unexpected error in an answer, and of the last error in the statistics."""


class EndpointGroup:
    """A prefix of subjects, and the queue group of the endpoints under it.

    Args:
        service: the service that the endpoints belong to.
        prefix: the subjects' first tokens; empty for none.
        queue: the queue group; None answers with every instance.
    """

    def __init__(self, service: Service, prefix: str, queue: str | None) -> None:
        self._service = service
        self._prefix = prefix
        self._queue = queue

    def group(self, prefix: str, *, queue: str | None = "") -> EndpointGroup:
        """Create a group below this one.

        Args:
            prefix: tokens for the subjects, without wildcards.
            queue: the queue group of its endpoints; None for none. Default: as here.

        Raises:
            BadSubjectError: the prefix has wildcards or blanks.
        """
        publish_subject(prefix)
        return EndpointGroup(self._service, f"{self._prefix}{prefix}.", self._queue if queue == "" else queue)

    def add_endpoint(
        self,
        name: str,
        handler: EndpointHandler,
        *,
        subject: str = "",
        queue: str | None = "",
        metadata: Mapping[str, str] | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Add an endpoint; a running service answers it at once.

        Args:
            name: shown by discovery.
            handler: called with each request; a plain or a coroutine function. The bytes that it returns are the
                answer. A `ServiceError` that it raises is answered with its code and description;
                any other error with 500, and goes to `on_error`.
            subject: the subject under the group's prefix; it may have wildcards. Default: the name.
            queue: the queue group, of which one instance answers; None lets every instance answer. Default: the
                group's.
            metadata: free keys and values.
            concurrency: how many requests its coroutine function works on at a time. Default: the service's.

        Raises:
            InvalidOptionError: a name that other clients would refuse, or one that the service has already.
            BadSubjectError: the subject is invalid.
        """
        if not callable(handler):
            raise InvalidOptionError(f"handler must be a function that takes a request, not {handler!r}")
        info = EndpointInfo(
            name=check_service_name("an endpoint", name),
            subject=self._prefix + (subject or name),
            queue_group=(self._queue if queue == "" else queue) or "",
            metadata=dict(metadata or {}),
        )
        self._service._add(info, handler, concurrency)

    def endpoint(
        self,
        name: str = "",
        *,
        subject: str = "",
        queue: str | None = "",
        metadata: Mapping[str, str] | None = None,
        concurrency: int | None = None,
    ) -> Callable[[HandlerT], HandlerT]:
        """Decorate the handler of an endpoint, whose name is the function's unless one is given.

        ::

            @service.endpoint(subject="add.*")
            async def add(request):
                return b"…"

        Arguments as in `add_endpoint`.
        """

        def decorate(handler: HandlerT) -> HandlerT:
            own = name or getattr(handler, "__name__", "")
            self.add_endpoint(own, handler, subject=subject, queue=queue, metadata=metadata, concurrency=concurrency)
            return handler

        return decorate


class Service(EndpointGroup):
    """An instance of a service; created by `Client.service`. Use it as an async context manager, or `start` and `stop`.

    Attributes:
        identity: name, unique id, version and metadata of the instance.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue: str | None = DEFAULT_QUEUE,
        stats_data: Callable[[EndpointInfo], Any] | None = None,
        limits: PendingLimits | None = None,
        concurrency: int = 1,
    ) -> None:
        super().__init__(self, "", queue)
        self.identity = ServiceIdentity(
            name=check_service_name("a service", name),
            id=next_nuid(),
            version=check_version(version),
            metadata=dict(metadata or {}),
        )
        self._connection = connection
        self._description = description
        self._stats_data = stats_data
        self._limits = limits or PendingLimits()
        self._concurrency = _checked(concurrency)
        self._endpoints: dict[str, Endpoint] = {}
        self._discovery: list[Subscription] = []
        self._started = datetime.now(UTC)
        self._is_started = False
        self._is_stopped = False

    @property
    def name(self) -> str:
        """Name of the service."""
        return self.identity.name

    @property
    def id(self) -> str:
        """Unique id of the instance."""
        return self.identity.id

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or its connection was closed."""
        return self._is_stopped or self._connection.is_closed

    def __repr__(self) -> str:
        state = "stopped" if self.is_stopped else "running" if self._is_started else "not started"
        return f"<Service {self.name!r} {self.identity.version} {state} {len(self._endpoints)} endpoints>"

    def _add(self, info: EndpointInfo, handler: EndpointHandler, concurrency: int | None) -> None:
        concurrency = self._concurrency if concurrency is None else _checked(concurrency)
        if self.is_stopped:
            raise JetlakeError(f"the service {self.name!r} was stopped")
        if info.name in self._endpoints:
            raise InvalidOptionError(f"the service {self.name!r} has an endpoint {info.name!r} already")
        endpoint = Endpoint(self._connection, info, handler, self._stats_data, self._limits, concurrency)
        if self._is_started:
            endpoint.start()
        self._endpoints[info.name] = endpoint

    # Life

    async def start(self) -> Self:
        """Answer requests and discovery; entering the context manager does it too.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        if self._is_stopped:
            raise JetlakeError(f"the service {self.name!r} was stopped: create another one")
        if not self._is_started:
            for verb, answer in (("PING", self._ping), ("INFO", self.info), ("STATS", self.stats)):
                for tokens in ((), (self.name,), (self.name, self.id)):
                    self._discovery.append(self._subscribe(discovery_subject(verb, *tokens), answer))
            for endpoint in self._endpoints.values():
                endpoint.start()
            self._is_started = True
        return self

    async def stop(self) -> None:
        """Answer the requests that have arrived, and accept no others; calling it again does nothing.

        A call that is cancelled has stopped the service all the same, without waiting for the handlers.

        Raises:
            RequestTimeoutError: a handler or the server did not finish in time.
        """
        self._is_stopped = True
        subscriptions, self._discovery = self._discovery, []
        if not self._connection.is_closed:
            draining = [endpoint.drain() for endpoint in self._endpoints.values()]
            await end_all([*draining, *(one.drain() for one in subscriptions if not one.is_closed)])

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _subscribe(self, subject: str, answer: Callable[[], ServiceIdentity]) -> Subscription:
        def respond(message: Message) -> None:
            if message.raw_reply:
                message.respond(encode(answer()))

        subscription = Subscription(self._connection, subject.encode(), b"", callback=respond, limits=PendingLimits())
        self._connection.subscribe(subscription)
        return subscription

    # Answers to discovery

    def _ping(self) -> ServiceIdentity:
        return self.identity

    def info(self) -> ServiceInfo:
        """Describe the instance and its endpoints."""
        own = self.identity
        return ServiceInfo(
            name=own.name,
            id=own.id,
            version=own.version,
            metadata=own.metadata,
            description=self._description,
            endpoints=tuple(endpoint.info for endpoint in self._endpoints.values()),
        )

    def stats(self) -> ServiceStats:
        """Return the requests, errors and processing times since the start or the last `reset`."""
        own = self.identity
        stats: list[EndpointStats] = [endpoint.stats() for endpoint in self._endpoints.values()]
        return ServiceStats(
            name=own.name,
            id=own.id,
            version=own.version,
            metadata=own.metadata,
            # nats-py reads microseconds, no more and no less.
            started=self._started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            endpoints=tuple(stats),
        )

    def reset(self) -> None:
        """Reset the statistics to zero."""
        self._started = datetime.now(UTC)
        for endpoint in self._endpoints.values():
            endpoint.reset()


def _checked(concurrency: int) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidOptionError(f"concurrency must be 1 or more, not {concurrency!r}")
    return concurrency


class _Counts(Struct):
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_ns: int = 0


class Endpoint:
    """Answers the requests of one subject.

    Args:
        connection: carries requests and answers.
        info: name, subject, queue group and metadata.
        handler: called with each request.
        data: returns the free part of the statistics.
        limits: how many requests may wait.
        concurrency: how many requests are handled at a time.

    Attributes:
        info: name, subject, queue group and metadata.
    """

    __slots__ = ("_concurrency", "_connection", "_counts", "_data", "_handler", "_limits", "_subscription", "info")

    def __init__(
        self,
        connection: Connection,
        info: EndpointInfo,
        handler: EndpointHandler,
        data: Callable[[EndpointInfo], Any] | None,
        limits: PendingLimits,
        concurrency: int = 1,
    ) -> None:
        subscribe_subject(info.subject)
        queue_bytes(info.queue_group)
        self._connection = connection
        self._handler = connection.traced(handler)
        self._data = data
        self._limits = limits
        self._concurrency = concurrency
        self._counts = _Counts()
        self._subscription: Subscription | None = None
        self.info = info

    def start(self) -> None:
        """Subscribe; calling it again does nothing."""
        if self._subscription is None:
            self._subscription = Subscription(
                self._connection,
                subscribe_subject(self.info.subject),
                queue_bytes(self.info.queue_group),
                callback=self._answer,
                limits=self._limits,
                concurrency=self._concurrency,
            )
            self._connection.subscribe(self._subscription)

    async def drain(self) -> None:
        """Answer the requests that have come, and take no others."""
        if self._subscription is not None and not self._subscription.is_closed:
            await self._subscription.drain()

    def stats(self) -> EndpointStats:
        """Return the counts so far."""
        counts, info = self._counts, self.info
        return EndpointStats(
            name=info.name,
            subject=info.subject,
            queue_group=info.queue_group,
            num_requests=counts.requests,
            num_errors=counts.errors,
            last_error=counts.last_error,
            processing_time=counts.processing_ns,
            average_processing_time=counts.processing_ns // counts.requests if counts.requests else 0,
            data=None if self._data is None else self._data(info),
        )

    def reset(self) -> None:
        """Reset the statistics to zero."""
        self._counts = _Counts()

    async def _answer(self, message: Message) -> None:
        request = ServiceRequest(message)
        counts = self._counts
        counts.requests += 1
        start_ns = time.perf_counter_ns()
        try:
            result = self._handler(request)
            if isinstance(result, Awaitable):
                result = await result
            if result is not None:
                request.respond(result)
        except ServiceError as error:
            self._respond_error(request, error.code, error.description, error.payload)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            is_stopped = task is not None and task.cancelling() > 0
            self._respond_error(request, _INTERNAL_ERROR, _STOPPED if is_stopped else _CANCELLED)
            raise
        except BaseException as error:
            self._respond_error(request, _INTERNAL_ERROR, describe(error)[:_DESCRIPTION_MAX])
            raise
        finally:
            counts.processing_ns += time.perf_counter_ns() - start_ns
            if request.error:
                counts.errors += 1
                counts.last_error = request.error[:_DESCRIPTION_MAX]

    def _respond_error(self, request: ServiceRequest, code: int, description: str, payload: bytes = b"") -> None:
        """Answer with an error, even a malformed one: a caller without an answer waits for its timeout.

        Raises:
            InvalidOptionError: the error could not be sent as it is, and the answer says so instead.
        """
        if request.is_answered:
            request.error = f"{code}:{description}"
            return
        try:
            request.respond_error(code, description, payload)
        except InvalidOptionError as error:
            self._respond_error(request, _INTERNAL_ERROR, describe(error)[:_DESCRIPTION_MAX])
            raise
        except JetlakeError:
            pass  # The caller waits for no answer, or the connection is gone; the error is counted all the same.
