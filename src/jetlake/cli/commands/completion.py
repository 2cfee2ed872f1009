"""`jetlake completion`: the lines that teach a shell to complete this command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jetlake.cli.shared_options import SharedCommand


@click.command(cls=SharedCommand, example='eval "$(jetlake completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: eval "$(jetlake completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "jetlake", "_JETLAKE_COMPLETE").source())
