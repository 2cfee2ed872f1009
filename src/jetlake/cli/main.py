"""The entry point of the `jetlake` command: standard streams first, then the server or the tree of commands."""

from __future__ import annotations

import os
import sys

from jetlake.cli import beginning

# As type checkers know it: `typing` need not be loaded before the server listens.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from jetlake.server.shell.monitoring.pages import Pages
    from jetlake.server.shell.server import Server


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status of the process, returned or raised as SystemExit."""
    if argv is None:
        arguments = sys.argv[1:]
        beginning.began()
    else:
        arguments = argv
    prepare_standard_streams()
    try:
        return _run(arguments)
    except OSError as error:  # The help cannot be shown: the disk behind standard output is full.
        sys.stderr.write(f"jetlake: {error}\n")
        return 1
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] in ("", "jetlake"):
            raise
        return _explain(arguments, missing)
    except KeyboardInterrupt:  # While the command-line library is loaded.
        from jetlake.cli.command_table import EXIT_INTERRUPTED

        return EXIT_INTERRUPTED


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:
        return _serve(arguments[1:])
    if arguments == ["--version"]:
        from jetlake.version import __version__

        sys.stdout.write(f"jetlake, version {__version__}\n")
        return 0
    from jetlake.cli.app import app

    # The tree of commands ends by SystemExit.
    return app.main(arguments, prog_name="jetlake")


def _explain(arguments: list[str], missing: str) -> int:
    """Answer for an installation of the client alone, which has the command too."""
    from jetlake.cli.command_table import install_hint, plain_help

    if arguments in ([], ["-h"], ["--help"]):
        sys.stdout.write(plain_help())
        return 0
    sys.stderr.write(f"jetlake: {install_hint(missing)}\n")
    return 1


def _serve(arguments: list[str]) -> int:
    """Run the server straight away: it must be ready before a command-line library would be loaded."""
    import gc

    gc.disable()  # What is loaded now is no garbage; the server allows collections when it has started.
    from jetlake import platform

    # A signal that comes while modules are loaded waits until the server has its handlers, and then stops it cleanly.
    before = platform.block_signals(platform.find_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"))
    try:
        from jetlake.server.command import serve

        return serve(arguments, _pages)
    finally:
        platform.restore_signals(before)
        gc.enable()


def _pages(server: Server) -> Pages:
    from jetlake.cli.served_dashboard import pages

    dashboard = pages(server)
    lake = server.settings.options.lake
    if not lake:
        return dashboard
    from pathlib import Path

    from jetlake.cli.served_catalog import ServedCatalog

    return ServedCatalog(server, Path(lake), dashboard)


def prepare_standard_streams() -> None:
    """Open what the parent process closed, and let no character that the locale lacks fail a command.

    The number of a closed descriptor would go to the next socket or file, and the event loop aborts on those below 3.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(mode))
    output: Any = sys.stdout
    if hasattr(output, "reconfigure"):  # What a test puts in its place takes every character.
        output.reconfigure(errors="backslashreplace")


def _nowhere(mode: str) -> Any:
    descriptor = os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, the closed one's.
    os.set_inheritable(descriptor, True)
    return os.fdopen(descriptor, mode, encoding="utf-8")
