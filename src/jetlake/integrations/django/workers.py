"""The functions that `manage.py jetlake_worker` calls with the messages of consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from jetlake.blocking import Message

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
    """

    def register(function: HandlerT) -> HandlerT:
        options = {"max_messages": concurrency, "concurrency": concurrency, **consume}
        registered.append(Worker(stream, consumer, function, options))
        return function

    return register
