"""Blocking forms of services: handlers run in threads and may block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Self, TypeVar

from jetlake import client
from jetlake.blocking.facade import Call, Facade, View
from jetlake.blocking.loop_thread import call_in_thread
from jetlake.client.services.request import ServiceRequest
from jetlake.client.services.service import EndpointGroup as AsyncEndpointGroup
from jetlake.model.service import ServiceIdentity, ServiceInfo, ServiceStats

BlockingHandler = Callable[[ServiceRequest], bytes | None]
"""A plain function that takes a request; the bytes that it returns are the answer."""

HandlerT = TypeVar("HandlerT", bound=BlockingHandler)


class EndpointGroup(Facade):
    """The blocking form of `jetlake.client.services.service.EndpointGroup`."""

    _inner: AsyncEndpointGroup

    def group(self, prefix: str, *, queue: str | None = "") -> EndpointGroup:
        """Make a group under this one; see `jetlake.client.Service.group`."""
        return EndpointGroup(self._inner.group(prefix, queue=queue), self._thread)

    def add_endpoint(
        self,
        name: str,
        handler: BlockingHandler,
        *,
        subject: str = "",
        queue: str | None = "",
        metadata: Mapping[str, str] | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Add an endpoint, whose handler runs in a thread; see `jetlake.client.Service.add_endpoint`."""

        @wraps(handler)
        async def run(request: ServiceRequest) -> bytes | None:
            return await call_in_thread(handler, request)

        async def add() -> None:
            self._inner.add_endpoint(
                name, run, subject=subject, queue=queue, metadata=metadata, concurrency=concurrency
            )

        self._thread.call(add())

    def endpoint(
        self,
        name: str = "",
        *,
        subject: str = "",
        queue: str | None = "",
        metadata: Mapping[str, str] | None = None,
        concurrency: int | None = None,
    ) -> Callable[[HandlerT], HandlerT]:
        """Decorate the handler of an endpoint, whose name is the function's unless one is given."""

        def decorate(handler: HandlerT) -> HandlerT:
            own = name or getattr(handler, "__name__", "")
            self.add_endpoint(own, handler, subject=subject, queue=queue, metadata=metadata, concurrency=concurrency)
            return handler

        return decorate


class Service(EndpointGroup):
    """The blocking form of `jetlake.client.Service`: use it as a context manager, or `start` and `stop`."""

    _inner: client.Service

    stop = Call(client.Service.stop)

    identity = View[ServiceIdentity]("Name, unique id, version and metadata of the instance.")
    name = View[str]("Name of the service.")
    id = View[str]("Unique id of the instance.")
    is_stopped = View[bool]("Whether it was stopped, or its connection was closed.")

    def start(self) -> Self:
        """Answer requests and discovery; entering the context manager does it too."""
        self._thread.call(self._inner.start())
        return self

    def info(self) -> ServiceInfo:
        """Describe the instance and its endpoints."""
        return self._inner.info()

    def stats(self) -> ServiceStats:
        """Return the requests, errors and processing times since the start or the last `reset`."""
        return self._inner.stats()

    def reset(self) -> None:
        """Reset the statistics to zero."""
        self._inner.reset()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        if not self.is_stopped:
            self.stop()


class Services(Facade):
    """The blocking form of `jetlake.client.Services`."""

    _inner: client.Services

    ping = Call(client.Services.ping)
    info = Call(client.Services.info)
    stats = Call(client.Services.stats)
    request = Call(client.Services.request)
