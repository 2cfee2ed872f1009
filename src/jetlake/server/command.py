"""The command `jetlake serve`: flags and a configuration file, and ports that listen before the server is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetlake import platform
from jetlake.errors import JetlakeError
from jetlake.server.config.assemble import assemble
from jetlake.server.config.flags import parse_flags, usage
from jetlake.server.config.options import Options
from jetlake.server.shell.log import LineLog, open_line_log
from jetlake.server.shell.sockets import ServerSockets, listen_all
from jetlake.server.version import COMPATIBLE_VERSION, JETLAKE_VERSION

if TYPE_CHECKING:
    from jetlake.server.shell.monitoring.pages import Pages
    from jetlake.server.shell.server import Server

__all__ = ["serve"]

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
    log = LineLog()
    try:
        assembled = assemble(flags)
        log = open_line_log(assembled.options)
        sockets = _listen_early(assembled.options)
    except JetlakeError as error:
        log.fatal(f"Can't start: {error}")
        return 1
    from jetlake.server.run import run

    return run(flags, assembled, log, pages, sockets)


def _listen_early(options: Options) -> ServerSockets:
    """Listen before the modules of the server are loaded, which takes longer than all else; clients wait that long.

    On no port when streams may have to be recovered first: clients then had better try another server.
    """
    jetstream = options.jetstream
    if jetstream is not None:
        try:
            if any(Path(jetstream.store_dir, "jetstream").iterdir()):
                return ServerSockets()
        except OSError:
            pass  # Nothing is stored, or the start will say what is wrong with the folder.
    return listen_all(options)


def _test(flags: dict[str, Any]) -> int:
    """Handle `-t`: check the configuration."""
    from jetlake.server.shell.access.tls import server_context

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
    file = assembled.options.config_file
    checked = f"configuration file {file} is valid" if file else "the flags are valid; -c names a configuration file"
    sys.stderr.write(f"jetlake serve: {checked}\n")
    return 0


def _send_signal(text: str) -> int:
    """Handle `--signal stop=PID`: signal another server on this machine."""
    word, _, target = text.partition("=")
    if word not in _SIGNALS:
        sys.stderr.write(f'jetlake serve: unknown signal "{word}"; one of {", ".join(_SIGNALS)}\n')
        return 1
    try:
        pid = int(target if target.isdigit() else Path(target).read_text(encoding="ascii"))
        numbers = platform.find_signals(_SIGNALS[word])
        if not numbers:
            sys.stderr.write(f"jetlake serve: this system has no {_SIGNALS[word]} signal\n")
            return 1
        os.kill(pid, numbers[0])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"jetlake serve: can't signal {target or 'a server: name its PID or PID file'}: {error}\n")
        return 1
    return 0
