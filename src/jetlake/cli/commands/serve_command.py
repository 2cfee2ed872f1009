"""`jetlake serve` in the tree of commands, for its help; the command itself is started without this tree."""

from __future__ import annotations

import click

__all__ = ["serve"]


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Run the embedded JetStream server."""
    from jetlake.server.command import serve as run

    raise SystemExit(run(list(arguments)))
