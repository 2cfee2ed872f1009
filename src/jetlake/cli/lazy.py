"""A group of commands some of which are loaded only when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from jetlake.cli.short_names import full_name

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """Commands by name, of which the later ones are (module, attribute, line for the help)."""

    def __init__(self, *arguments: Any, later: dict[str, tuple[str, str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = full_name(cmd_name, is_group=True)
        known = super().get_command(ctx, cmd_name)
        if known is not None or cmd_name not in self._later:
            return known
        module, attribute, _ = self._later[cmd_name]
        try:
            loaded = getattr(import_module(module), attribute)
        except ImportError as error:
            missing = (error.name or str(error)).partition(".")[0]
            raise click.ClickException(
                f"{cmd_name} needs the package {missing!r}; install it with: pip install 'jetlake[all]'"
            ) from None
        assert isinstance(loaded, click.Command)
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help shows one line a command without loading it."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self._later:
                rows.append((name, self._later[name][2]))
            else:
                loaded = super().get_command(ctx, name)
                assert loaded is not None
                rows.append((name, loaded.get_short_help_str(70)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
