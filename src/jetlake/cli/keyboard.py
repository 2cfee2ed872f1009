"""Questions to a person, and reads of standard input: Ctrl-C ends each of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import click

if TYPE_CHECKING:
    import asyncio

__all__ = ["ask", "ask_whether", "read_standard_input", "standard_input", "standard_lines"]

_BLOCK_BYTES = 1024 * 1024


def ask(question: str, **options: Any) -> Any:
    """Ask a question on standard error; the options are `click.prompt`'s."""
    with _interruptible():
        return click.prompt(question, err=True, **options)


def ask_whether(question: str, *, default: bool = False) -> bool:
    """Ask a question of yes or no on standard error."""
    with _interruptible():
        return click.confirm(question, default=default, err=True)


def read_standard_input() -> bytes:
    """Read standard input to its end."""
    with _interruptible():
        return sys.stdin.buffer.read()


def standard_input() -> BinaryIO | AsyncIterator[bytes]:
    """Return standard input: a file as it is, a pipe or a terminal, whose next bytes may never come, as blocks."""
    return sys.stdin.buffer if sys.stdin.seekable() else _blocks(sys.stdin.fileno())


async def standard_lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input as they are typed or written, without their ends."""
    rest = b""
    async for block in _blocks(sys.stdin.fileno()) if has_descriptor() else _whole():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def has_descriptor() -> bool:
    """Return whether standard input is one of the system's; a test's is not."""
    try:
        return sys.stdin.fileno() >= 0
    except (OSError, ValueError):
        return False


async def _whole() -> AsyncIterator[bytes]:
    yield sys.stdin.buffer.read()


async def _blocks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield blocks to the end of the input, read by threads that the end of the process does not wait for."""
    import asyncio  # Not for the help.

    loop = asyncio.get_running_loop()
    while True:
        block: asyncio.Future[bytes] = loop.create_future()
        threading.Thread(target=_read_block, args=(descriptor, block), daemon=True).start()
        if not (content := await block):
            return
        yield content


def _read_block(descriptor: int, block: asyncio.Future[bytes]) -> None:
    # Not by `sys.stdin`: its lock, which the thread would hold, aborts an interpreter that ends.
    try:
        content = os.read(descriptor, _BLOCK_BYTES)
        settle = partial(_settle, block, content, None)
    except OSError as error:
        settle = partial(_settle, block, b"", error)
    with suppress(RuntimeError):  # The loop is closed: the command was interrupted.
        block.get_loop().call_soon_threadsafe(settle)


def _settle(block: asyncio.Future[bytes], content: bytes, error: OSError | None) -> None:
    if block.done():
        return
    if error is None:
        block.set_result(content)
    else:
        block.set_exception(error)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C, where asyncio's handler would cancel a task that is blocked in the read."""
    interrupts: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except click.Abort:
        if interrupts:
            raise KeyboardInterrupt from None
        raise  # The end of the input.
    finally:
        signal.signal(signal.SIGINT, before)
