"""The command `jetlake serve`: a server made of flags and a configuration file, and its signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from jetlake.errors import JetlakeError
from jetlake.server.config.assemble import Assembled, assemble
from jetlake.server.config.flags import parse_flags, usage
from jetlake.server.process import GarbageCollection, allow_many_files, share_interpreter
from jetlake.server.shell.access.tls import server_context
from jetlake.server.shell.log import LineLog, open_line_log
from jetlake.server.shell.monitoring.pages import Pages
from jetlake.server.shell.server import Server
from jetlake.server.version import COMPATIBLE_VERSION, JETLAKE_VERSION

__all__ = ["serve"]

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_SIGNALS = {
    "ldm": "SIGUSR2",
    "stop": "SIGTERM",
    "term": "SIGTERM",
    "quit": "SIGINT",
    "reopen": "SIGUSR1",
    "reload": "SIGHUP",
}


def serve(argv: list[str], pages: Callable[[Server], Pages] | None = None) -> int:
    """Run a server with these flags until a signal stops it, and return the exit status of the process.

    Args:
        pages: makes the application for further pages on the monitoring port.
    """
    try:
        flags = parse_flags(argv)
        if flags.get("help"):
            sys.stdout.write(usage())
            return 0
        if flags.get("version"):
            sys.stdout.write(f"nats-server: v{COMPATIBLE_VERSION}\njetlake: v{JETLAKE_VERSION}\n")
            return 0
        if "signal" in flags:
            return _send_signal(flags["signal"])
    except JetlakeError as error:
        sys.stderr.write(f"jetlake serve: {error}\n")
        return 1
    if flags.get("test"):
        return _test(flags)
    try:
        assembled = assemble(flags)
        log = open_line_log(assembled.options)
    except JetlakeError as error:
        LineLog().fatal(f"Can't start: {error}")
        return 1
    return _run(_serve(flags, assembled, log, pages))


def _test(flags: dict[str, Any]) -> int:
    """Handle `-t`: check the configuration."""
    try:
        assembled = assemble(flags)
        websocket = assembled.options.websocket
        for tls in (assembled.options.tls, websocket.tls if websocket is not None else None):
            if tls is not None:
                server_context(tls)
    except JetlakeError as error:
        sys.stderr.write(f"jetlake serve: {error}\n")
        return 1
    if assembled.doubts:
        sys.stderr.write("".join(f"jetlake serve: {doubt}\n" for doubt in assembled.doubts))
        return 1
    sys.stderr.write("".join(f"jetlake serve: {warning}\n" for warning in assembled.warnings))
    sys.stderr.write(f"jetlake serve: configuration file {assembled.options.config_file} is valid\n")
    return 0


def _run(main: Coroutine[Any, Any, int]) -> int:
    allow_many_files()
    share_interpreter()
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


async def _serve(
    flags: dict[str, Any], assembled: Assembled, log: LineLog, pages: Callable[[Server], Pages] | None
) -> int:
    options = assembled.options
    try:
        server = Server(options=options, log=log)
        if pages is not None:
            server.pages = pages(server)
        if "config" in flags:
            server.load_options = lambda: assemble(flags).options
    except JetlakeError as error:
        log.fatal(f"Can't start: {error}")
        return 1
    _log_start(server, assembled, log)
    _handle_signals(server, log)
    try:
        await server.start()
    except (JetlakeError, OSError) as error:
        log.fatal(f"Can't start: {error}")
        return 1
    _collect_garbage(server)
    await server.wait_stopped()
    # Another signal must not reach a loop that is being closed.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    log.info("Server Exiting..")
    log.close()
    return 0


def _collect_garbage(server: Server) -> None:
    turns = server.engine_loop.durations
    garbage = GarbageCollection(lambda: turns.count)
    garbage.start()

    def run_due() -> None:
        garbage.run_due()
        server.engine_loop.loop.call_later(garbage.INTERVAL_S, run_due)

    run_due()


def _log_start(server: Server, assembled: Assembled, log: LineLog) -> None:
    options = assembled.options
    log.info("Starting jetlake")
    log.info(f"  Version:  {JETLAKE_VERSION} (compatible with nats-server {COMPATIBLE_VERSION})")
    log.info(f"  Name:     {server.name}")
    log.info(f"  ID:       {server.id}")
    if options.config_file:
        log.info(f"Using configuration file: {options.config_file}")
    for warning in (*assembled.warnings, *assembled.doubts):
        log.warn(warning)


# Signals


def _handle_signals(server: Server, log: LineLog) -> None:
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop(name: str) -> None:
        log.info(f'Trapped "{name}" signal')
        if not stopping:
            log.info("Initiating Shutdown...")
            stopping.append(loop.create_task(_stop(server)))

    loop.add_signal_handler(signal.SIGINT, stop, "interrupt")
    loop.add_signal_handler(signal.SIGTERM, stop, "terminated")
    loop.add_signal_handler(signal.SIGHUP, _reload, server, log)
    loop.add_signal_handler(signal.SIGUSR1, log.reopen)
    loop.add_signal_handler(signal.SIGUSR2, server.enter_lame_duck)
    # The parent process may have blocked signals until these handlers exist.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)


async def _stop(server: Server) -> None:
    # A signal may come while the server is still starting.
    while not server.running and not server.has_stopped:
        await asyncio.sleep(0.005)
    await server.stop()


def _reload(server: Server, log: LineLog) -> None:
    log.info('Trapped "hangup" signal')
    try:
        server.reload_configuration()
    except JetlakeError as error:
        log.error(f"Failed to reload server configuration: {error}")


def _send_signal(text: str) -> int:
    """Handle `--signal stop=PID`: signal another server on this machine."""
    word, _, target = text.partition("=")
    if word not in _SIGNALS:
        sys.stderr.write(f'jetlake serve: unknown signal "{word}"; one of {", ".join(_SIGNALS)}\n')
        return 1
    try:
        pid = int(target if target.isdigit() else Path(target).read_text(encoding="ascii"))
        os.kill(pid, getattr(signal, _SIGNALS[word]))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"jetlake serve: can't signal {target or 'a server: name its PID or PID file'}: {error}\n")
        return 1
    return 0
