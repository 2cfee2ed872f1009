"""Ctrl-C in a command: it cancels what is awaited, and ends what waits for standard input."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys

import pytest

from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.keyboard import read_standard_input, standard_input
from jetlake.cli.main import main
from jetlake.cli.session import Session, command, guarded


@pytest.fixture
def pipe(monkeypatch):
    """Standard input that is a pipe; the end where it is written."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as opened, os.fdopen(writing, "wb", buffering=0) as end:
        monkeypatch.setattr(sys, "stdin", opened)
        yield end


def test_an_interrupt_leaves_the_callbacks_of_the_loop_whole():
    done = []

    def callback() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("callback")

    async def waits(session: Session) -> None:
        asyncio.get_running_loop().call_soon(callback)
        try:
            await asyncio.Event().wait()
        finally:
            done.append("command")

    with pytest.raises(SystemExit) as ended:
        command(waits).__wrapped__(Session({}, context=None))
    assert (ended.value.code, done) == (EXIT_INTERRUPTED, ["callback", "command"])


def test_an_interrupt_before_a_command_begins_leaves_nothing_behind(monkeypatch):
    def begin(_coroutine: object) -> None:
        raise KeyboardInterrupt

    async def never(session: Session) -> None:
        raise AssertionError

    monkeypatch.setattr(asyncio, "run", begin)
    with pytest.raises(SystemExit) as ended:
        command(never).__wrapped__(Session({}, context=None))
    gc.collect()  # A coroutine that was never awaited warns, and warnings are errors.
    assert ended.value.code == EXIT_INTERRUPTED


@pytest.mark.parametrize("place", ["jetlake.cli.app.import_module", "jetlake.cli.app.app.main"])
def test_an_interrupt_while_modules_are_loaded_is_one_too(monkeypatch, place):
    def load(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, load)
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["stream", "ls"]))
    assert ended.value.code == EXIT_INTERRUPTED


def test_an_interrupt_ends_a_read_of_standard_input(pipe):
    async def reads() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        read_standard_input()

    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(SystemExit) as ended:
            guarded(lambda: asyncio.run(reads()), Session({}, context=None))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended.value.code == EXIT_INTERRUPTED


async def test_a_pipe_is_read_to_its_end(pipe):
    pipe.write(b"one")
    blocks = standard_input()
    assert await anext(blocks) == b"one"
    pipe.write(b"two")
    assert await anext(blocks) == b"two"
    pipe.close()
    assert [block async for block in blocks] == []


def test_a_command_ends_while_nobody_writes_to_its_pipe(pipe):
    async def gives_up() -> None:
        reads = asyncio.create_task(anext(standard_input()))
        await asyncio.sleep(0)
        reads.cancel()

    asyncio.run(gives_up())
