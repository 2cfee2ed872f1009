"""What a client logs in with: given once, or asked for at each connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

from jetlake.client.settings.credentials import Credentials
from jetlake.errors import ClientConnectionError, ConnectTimeoutError, JetlakeError

__all__ = ["KeySource", "Secret", "answered", "asking"]

R = TypeVar("R")

Secret = str | Callable[[], str | Awaitable[str]]
"""A text, or a plain or coroutine function that gives it at each connect."""

KeySource = str | Path | Callable[[], str | Path | Awaitable[str | Path]]
"""A text or the path of its file, or a plain or coroutine function that gives one of them at each connect."""


def asking(ask: Callable[[], Any], read: Callable[[str | Path], Credentials]) -> Callable[[], Awaitable[Credentials]]:
    """Return a function that asks for a text or path and reads the credentials there."""

    async def credentials() -> Credentials:
        given = ask()
        return read(await given if isawaitable(given) else given)

    return credentials


async def answered(option: str, value: R | Callable[[], R | Awaitable[R]], timeout_s: float) -> R:
    """Return the value, asked for if it is a function.

    Raises:
        ClientConnectionError: the function failed; another attempt asks again.
        ConnectTimeoutError: the function took longer than the timeout.
    """
    if not callable(value):
        return value
    from asyncio import timeout  # Loaded where somebody is asked: a process of Spark's has no loop, and never asks.

    try:
        async with timeout(timeout_s):
            given = value()
            return await given if isawaitable(given) else given
    except JetlakeError:
        raise
    except TimeoutError:
        raise ConnectTimeoutError(f"the function for {option} took longer than {timeout_s:g} s") from None
    except Exception as error:
        raise ClientConnectionError(f"the function for {option} failed: {error or type(error).__name__}") from error
