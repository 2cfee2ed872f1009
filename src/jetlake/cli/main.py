"""The `jetlake` command: one word to one function, each imported when it is asked for."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:  # noqa: RET503 - the tree of commands ends by SystemExit
    """Run one command; the exit status of the process, returned or raised as SystemExit."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["serve"]:
        # Straight to the server: it must be ready before a command-line library would be loaded.
        from jetlake.cli.served_dashboard import pages
        from jetlake.server.command import serve

        return serve(arguments[1:], pages)
    from jetlake.cli.app import app

    app.main(arguments, prog_name="jetlake")


if __name__ == "__main__":
    sys.exit(main())
