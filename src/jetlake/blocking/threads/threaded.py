"""Blocking handlers of asyncio's parts, called in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from jetlake.client.messages.failures import failure_of

__all__ = ["call_in_thread"]

HandledT = TypeVar("HandledT")
ResultT = TypeVar("ResultT")


async def call_in_thread(handler: Callable[[HandledT], ResultT], handled: HandledT) -> ResultT:
    """Call a handler in a thread, and return its result.

    Raises:
        Exception: what it raised; the exit of its thread is an error too, since it must not end the event loop.
    """

    def work() -> ResultT:
        try:
            return handler(handled)
        except Exception:
            raise
        except BaseException as error:
            raise failure_of(error, handled) from error

    return await asyncio.to_thread(work)
