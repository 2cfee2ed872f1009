"""A connection that lives as long as an application, and the workers that read streams meanwhile.

Always true:

- Requests are served between the connect and the end of the drain: what a request publishes always has a connection.
- A message is acknowledged after its handler has returned. At shutdown no further messages are taken, handlers that run
  are awaited for `drain_timeout` seconds, and messages that no handler has begun go back to the server.
- A worker that ends for a reason other than the shutdown is logged and started again, so that a consumer that was
  deleted and recreated, or a server that was away for long, needs no restart of the application.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import jetlake
from jetlake.client import Client, JetStream
from jetlake.client.messages.message import Message
from jetlake.client.settings.options import timeout_s
from jetlake.errors import ConnectionClosedError, DrainTimeoutError, InvalidOptionError, JetlakeError
from jetlake.integrations.worker_options import worker_options
from jetlake.model.encoding.durations import Seconds

SetupT = TypeVar("SetupT", bound=Callable[[JetStream], Awaitable[object]])
HandlerT = TypeVar("HandlerT", bound=Callable[[Message], Awaitable[object]])

_RESTART_FIRST_S = 0.5
_RESTART_MAX_S = 30.0

logger = logging.getLogger("jetlake.fastapi")


class Messaging:
    """Connects when the application starts, runs its workers, and drains when it stops.

    Args:
        servers: addresses, as for `jetlake.connect`.
        drain_timeout: seconds that handlers which run at shutdown may take to finish.
        options: further options of `jetlake.connect`.

    Attributes:
        servers: the addresses that the next start connects to; a test sets its own server's address.
    """

    def __init__(
        self, servers: str | list[str] | None = None, *, drain_timeout: Seconds = 30.0, **options: Any
    ) -> None:
        self.servers = servers
        self._options = {**options, "drain_timeout": drain_timeout}
        self._drain_s = timeout_s(drain_timeout)
        self._setups: list[Callable[[JetStream], Awaitable[object]]] = []
        self._workers: list[_Worker] = []
        self._client: Client | None = None
        self._is_running = False

    # What the application declares

    def setup(self, function: SetupT) -> SetupT:
        """Run a coroutine function with the JetStream context at each start, before workers and requests."""
        _check(function, "a setup", "js")
        self._setups.append(function)
        return function

    def worker(
        self, stream: str, consumer: str, *, concurrency: int = 1, **consume: Any
    ) -> Callable[[HandlerT], HandlerT]:
        """Call a coroutine function with each message of a consumer, and acknowledge the message after it.

        Args:
            stream: the stream's name.
            consumer: the durable consumer's name; a `setup` may create it.
            concurrency: how many messages are handled at once.
            consume: further options of `Consumer.consume`: `retries`, `backoff` and `dead_letter` say what happens to a
                message whose handler raises. Without them it comes again after the consumer's ack wait.

        Raises:
            InvalidOptionError: an option that no consumer takes.
        """
        options = worker_options(concurrency, consume)

        def register(function: HandlerT) -> HandlerT:
            _check(function, "a worker", "message")
            self._workers.append(_Worker(stream, consumer, function, options))
            return function

        return register

    # What requests use

    async def client(self) -> Client:
        """Return the connected client; a dependency: `Annotated[jetlake.Client, Depends(messaging.client)]`.

        Raises:
            ConnectionClosedError: the application does not run.
        """
        if self._client is None:
            raise ConnectionClosedError(
                "there is no connection outside the application's lifespan: "
                "pass lifespan=messaging.lifespan to FastAPI, and in tests enter TestClient(app) with `with`"
            )
        return self._client

    async def jetstream(self) -> JetStream:
        """Return the JetStream context; a dependency: `Annotated[jetlake.JetStream, Depends(messaging.jetstream)]`."""
        return (await self.client()).jetstream()

    # The application's life

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Connect, set up and start the workers; at the end drain them and the connection.

        Raises:
            InvalidOptionError: it is running already.
        """
        if self._is_running:
            raise InvalidOptionError("this Messaging is running: give each application that runs one of its own")
        self._is_running = True
        try:
            async with self._connected():
                yield
        finally:
            self._is_running = False

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        async with jetlake.connect(self.servers, **self._options) as client:
            js = client.jetstream()
            for function in self._setups:
                await function(js)
            self._client = client
            running = [asyncio.create_task(worker.run(js)) for worker in self._workers]
            try:
                yield
            finally:
                try:
                    await self._drain(running)
                finally:
                    self._client = None

    async def _drain(self, running: list[asyncio.Task[None]]) -> None:
        for worker in self._workers:
            await worker.stop()
        if running:
            _, late = await asyncio.wait(running, timeout=self._drain_s)
            if late:
                logger.error("handlers did not finish within %g s; their messages are redelivered", self._drain_s)
                for worker in self._workers:
                    worker.cut_off()
            await asyncio.gather(*running, return_exceptions=True)


class _Worker:
    """One consumer that is read, and read again when the read has ended."""

    def __init__(
        self, stream: str, consumer: str, function: Callable[[Message], Awaitable[object]], options: dict[str, Any]
    ) -> None:
        self._stream = stream
        self._consumer = consumer
        self._function = function
        self._options = options
        self._stopping: asyncio.Event | None = None
        self._handling: set[asyncio.Future[object]] = set()

    async def run(self, js: JetStream) -> None:
        """Handle messages until `stop`."""
        self._stopping = stopping = asyncio.Event()
        wait_s = _RESTART_FIRST_S
        while not stopping.is_set():
            try:
                consumer = await js.consumer(self._stream, self._consumer)
                async with consumer.consume(self._handle, on_error=self._report, **self._options) as read:
                    wait_s = _RESTART_FIRST_S
                    ended = asyncio.ensure_future(read.wait())
                    asked = asyncio.ensure_future(stopping.wait())
                    await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
                    asked.cancel()
                    if stopping.is_set():
                        await read.stop()
                    await ended
            except Exception as error:
                if stopping.is_set():
                    return
                logger.error(
                    "the worker of consumer %r of stream %r ended and starts again in %g s: %s",
                    self._consumer,
                    self._stream,
                    wait_s,
                    error,
                    exc_info=None if isinstance(error, JetlakeError) else error,
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), wait_s)
                wait_s = min(2 * wait_s, _RESTART_MAX_S)

    async def stop(self) -> None:
        """Take no further messages; `run` ends when the handlers have."""
        if self._stopping is not None:
            self._stopping.set()

    def cut_off(self) -> None:
        """Cancel the handlers that run; their messages come again."""
        for task in self._handling:
            task.cancel()

    async def _handle(self, message: Message) -> None:
        task = asyncio.ensure_future(self._function(message))
        self._handling.add(task)
        try:
            # A task of its own, so that cutting it off does not end the read, which is about to end by itself.
            await asyncio.wait([task])
            if task.cancelled():
                raise DrainTimeoutError("the handler was cancelled before it had finished")
            await task
        finally:
            task.cancel()
            self._handling.discard(task)
        message.ack()

    def _report(self, error: Exception) -> None:
        logger.error(
            "a message of consumer %r of stream %r failed: %s", self._consumer, self._stream, error, exc_info=error
        )


def _check(function: object, what: str, argument: str) -> None:
    if not inspect.iscoroutinefunction(function):
        name = getattr(function, "__name__", "function")
        raise InvalidOptionError(f"{what} is a coroutine function: async def {name}({argument})")
