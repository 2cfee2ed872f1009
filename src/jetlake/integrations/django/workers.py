"""The functions that `manage.py jetlake_worker` calls with the messages of consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from jetlake.blocking import Message
from jetlake.errors import InvalidOptionError
from jetlake.integrations.worker_options import worker_options

HandlerT = TypeVar("HandlerT", bound=Callable[[Message], object])


@dataclass(frozen=True, slots=True)
class Worker:
    """A function and the consumer whose messages it gets."""

    stream: str
    consumer: str
    function: Callable[[Message], object]
    options: dict[str, Any]


registered: list[Worker] = []


def worker(stream: str, consumer: str, *, concurrency: int = 1, **consume: Any) -> Callable[[HandlerT], HandlerT]:
    """Call a function with each message of a consumer, and acknowledge the message after it.

    `manage.py jetlake_worker` finds such functions in the module `jetstream` of each installed app.

    Args:
        stream: the stream's name.
        consumer: the durable consumer's name.
        concurrency: threads that call the function.
        consume: further options of `Consumer.consume`: `retries`, `backoff` and `dead_letter` say what happens to a
            message whose function raises. Without them it comes again after the consumer's ack wait.

    Raises:
        InvalidOptionError: an option that no consumer takes, or a coroutine function.
    """
    options = worker_options(concurrency, consume)

    def register(function: HandlerT) -> HandlerT:
        if iscoroutinefunction(function):
            name = getattr(function, "__name__", "function")
            raise InvalidOptionError(f"a worker is a plain function: def {name}(message), with async_to_sync inside")
        registered.append(Worker(stream, consumer, function, options))
        return function

    return register
