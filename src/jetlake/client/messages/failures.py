"""The failures of handlers: whatever a handler raises becomes an error to report, and no worker ends by it."""

from __future__ import annotations

import asyncio

from jetlake.errors import JetlakeError

__all__ = ["describe", "failure_in_task", "failure_of"]

# What ends a task or the process, whoever raised it.
_ENDING = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


def failure_of(error: BaseException, handled: object) -> Exception:
    """Return what a handler raised as an error; what is none, as pytest's outcomes are, becomes the cause of one."""
    if isinstance(error, Exception):
        error.add_note(f"while handling {handled!r}")
        return error
    failure = JetlakeError(f"the handler raised {type(error).__name__}, while handling {handled!r}")
    failure.__cause__ = error
    return failure


def failure_in_task(error: BaseException, handled: object) -> Exception:
    """Return what a handler raised in a task, or in a call of the event loop, as an error.

    Raises:
        BaseException: the error, if it ends the task or the process.
    """
    if not isinstance(error, _ENDING):
        return failure_of(error, handled)
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or (task is not None and task.cancelling()):
        raise error
    failure = JetlakeError(f"the handler awaited something that was cancelled, while handling {handled!r}")
    failure.__cause__ = error
    return failure


def describe(error: BaseException) -> str:
    """Return the kind of an error and what it says, if it can say anything."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
