"""The `jetlake` command: one word to one function, each imported when it is asked for."""

from __future__ import annotations

import sys

# As type checkers know it: `typing` need not be loaded before the server listens.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from jetlake.server.shell.monitoring.pages import Pages
    from jetlake.server.shell.server import Server

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status of the process, returned or raised as SystemExit."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "jetlake"):
            raise
        # Whoever installed the client alone has the command too.
        sys.stderr.write(f"jetlake: the package {package!r} is missing here: pip install 'jetlake[all]' brings it\n")
        return 1


def _run(arguments: list[str]) -> int:  # noqa: RET503 - the tree of commands ends by SystemExit
    if arguments[:1] == ["serve"]:
        return _serve(arguments[1:])
    from jetlake.cli.app import app

    app.main(arguments, prog_name="jetlake")


def _serve(arguments: list[str]) -> int:
    """Run the server straight away: it must be ready before a command-line library would be loaded."""
    import signal

    # A signal that comes while modules are loaded waits until the server has its handlers, and then stops it cleanly.
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        from jetlake.server.command import serve

        return serve(arguments, _pages)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pages(server: Server) -> Pages:
    from jetlake.cli.served_dashboard import pages

    return pages(server)
