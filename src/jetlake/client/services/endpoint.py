"""An endpoint of a service: the subscription of its subject, its handler, and what it counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.subscription import PendingLimits, Subscription
from jetlake.client.messages.failures import describe
from jetlake.client.messages.message import Message
from jetlake.client.services.request import ServiceRequest
from jetlake.client.settings.wire_values import queue_bytes, subscribe_subject
from jetlake.errors import InvalidOptionError, JetlakeError, ServiceError
from jetlake.model.service import EndpointInfo, EndpointStats

__all__ = ["Endpoint", "EndpointHandler"]

EndpointHandler = Callable[[ServiceRequest], Awaitable[bytes | None] | bytes | None]
"""A plain or a coroutine function that takes a request; the bytes that it returns are the answer."""

_INTERNAL_ERROR = 500
_STOPPED = "the service was stopped in the middle of the request"
_CANCELLED = "the handler awaited something that was cancelled"
_DESCRIPTION_MAX = 512
"""Most characters of an error that nobody wrote for the caller, and of the last error in the statistics."""


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
        data: gives what the statistics hold besides the counts.
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
        """Count from zero again."""
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
        """Answer with an error, whatever it holds: a caller who gets none waits for its timeout.

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
            pass  # Nobody waits for an answer, or nobody can be told; it is counted all the same.
