"""The run of `jetlake serve`: the loop, the server in it, and its signals."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetlake import platform
from jetlake.errors import JetlakeError
from jetlake.server.config.assemble import Assembled, assemble
from jetlake.server.config.options import Options
from jetlake.server.modules import load_in_steps
from jetlake.server.process import GarbageCollection, allow_many_files, share_interpreter, without_collections
from jetlake.server.shell.log import LineLog
from jetlake.server.shell.server import Server
from jetlake.server.shell.sockets import ServerSockets
from jetlake.server.version import COMPATIBLE_VERSION, JETLAKE_VERSION
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.shell.monitoring.pages import Pages

__all__ = ["run"]

_HANDLED = platform.find_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def run(
    flags: dict[str, Any],
    assembled: Assembled,
    log: LineLog,
    pages: Callable[[Server], Pages] | None,
    sockets: ServerSockets,
) -> int:
    """Run a server until a signal stops it, and return the exit status of the process.

    Args:
        flags: name the configuration file that a reload reads again.
        pages: makes the application for further pages on the monitoring port.
        sockets: listen already; for the others the server listens itself, for clients when it has recovered.
    """
    allow_many_files()
    share_interpreter()
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        pass
    with without_collections(), asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_serve(flags, assembled, log, pages, sockets))


async def _serve(
    flags: dict[str, Any],
    assembled: Assembled,
    log: LineLog,
    pages: Callable[[Server], Pages] | None,
    sockets: ServerSockets,
) -> int:
    options = assembled.options
    try:
        server = Server(options=options, log=log, sockets=sockets)
        if pages is not None:
            server.pages = pages(server)
        server.engine_loop.is_own = True
        if "config" in flags:
            server.load_options = lambda: _load_again(flags, log)
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
    if server.pages is not None and server.monitoring is not None:
        log.info(f"Dashboard: {server.monitoring.url}")
    _collect_garbage(server)
    if server.engine is not None:
        _prepare(server)
    await server.wait_stopped()
    # Another signal must not reach a loop that is being closed.
    platform.block_signals(_HANDLED)
    log.info("Server Exiting..")
    log.close()
    return 0


def _collect_garbage(server: Server) -> None:
    turns = server.engine_loop.durations
    garbage = GarbageCollection(lambda: turns.count)
    garbage.start()

    def run_due() -> None:
        server.engine_loop.loop.call_later(garbage.run_due(), run_due)

    run_due()


# Clients that wait for the port are greeted before that.
_PREPARE_AFTER_S = 0.05


def _prepare(server: Server) -> None:
    def begin() -> None:
        if not server.has_stopped:
            server.engine_loop.work.go_on_with(_steps_to_prepare())
            server.engine_loop.schedule()

    server.engine_loop.loop.call_later(_PREPARE_AFTER_S, begin)


def _steps_to_prepare() -> Steps[None]:
    """Load, in steps between other work, what the first stream would otherwise wait for."""
    yield from load_in_steps()
    gc.freeze()  # Like everything loaded before, it lives as long as the process.


def _log_start(server: Server, assembled: Assembled, log: LineLog) -> None:
    options = assembled.options
    log.info("Starting jetlake")
    log.info(f"  Version:  {JETLAKE_VERSION} (compatible with nats-server {COMPATIBLE_VERSION})")
    log.info(f"  Name:     {server.name}")
    log.info(f"  ID:       {server.id}")
    if options.config_file:
        log.info(f"Using configuration file: {options.config_file}")
    _log_warnings(assembled, log)


def _load_again(flags: dict[str, Any], log: LineLog) -> Options:
    """Read the configuration for a reload, and log which of its keys have no effect."""
    assembled = assemble(flags)
    _log_warnings(assembled, log)
    return assembled.options


def _log_warnings(assembled: Assembled, log: LineLog) -> None:
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

    platform.on_signal(loop, "SIGINT", stop, "interrupt")
    platform.on_signal(loop, "SIGTERM", stop, "terminated")
    platform.on_signal(loop, "SIGHUP", _reload, server, log)
    platform.on_signal(loop, "SIGUSR1", log.reopen)
    platform.on_signal(loop, "SIGUSR2", server.enter_lame_duck)
    # The parent process may have blocked signals until these handlers exist.
    platform.unblock_signals(_HANDLED)


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
