"""The root of the command tree: loads each command when it is used, and adds the options all commands share."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from jetlake.cli.command_table import COMMANDS, EXIT_INTERRUPTED, full_name, install_hint
from jetlake.cli.shared_options import shared_options
from jetlake.version import __version__


class LazyGroup(click.Group):
    """The commands of the table by their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = full_name(cmd_name)
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
        if args[:1] == ["help"]:  # `jetlake help stream add`, as for `nats`
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
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


@click.group(
    cls=LazyGroup,
    params=shared_options(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="jetlake")
def app() -> None:
    """JetStream for Python: an embedded server, a client, and data pipelines on Spark.

    The options may also follow the command: jetlake stream ls -s nats://127.0.0.1:4222
    """
