"""A group of commands each of which is loaded only when it is used."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from jetlake.cli.command_table import COMMANDS, EXIT_INTERRUPTED, install_hint
from jetlake.cli.short_names import full_name

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """The commands of the table by their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = full_name(cmd_name, is_group=True)
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        try:
            loaded = getattr(import_module(f"jetlake.cli.commands.{module}"), attribute)
        except ImportError as error:
            raise click.ClickException(f"{cmd_name}: {install_hint(error.name or str(error))}") from None
        assert isinstance(loaded, click.Command)
        return loaded

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # While the command's modules are loaded; the library would exit with 1.
            raise SystemExit(EXIT_INTERRUPTED) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = get_close_matches(args[0], COMMANDS, 1)
            if near:
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each command without loading it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])
