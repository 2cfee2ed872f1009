"""The options that every command takes, before or after its name: where to connect, as whom, how long to wait."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli.command_table import full_names
from jetlake.cli.name_completion import context_names
from jetlake.cli.session import typed_settings
from jetlake.cli.values import WAIT

__all__ = ["SharedCommand", "SharedGroup", "shared_options"]


def _note(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep the typed value; the option nearer to the command is read later and wins."""
    if value is not None:
        assert param.name is not None
        typed_settings(ctx)[param.name] = value


_FILE = click.Path()
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("-s", "--server"),
        {"metavar": "URL", "help": "Server, or several separated by commas [env: JETLAKE_URL, NATS_URL]."},
    ),
    (
        ("--user",),
        {"metavar": "NAME", "help": "User name, or without a password a token [env: JETLAKE_USER, NATS_USER]."},
    ),
    (("--password",), {"metavar": "TEXT", "help": "Password [env: JETLAKE_PASSWORD, NATS_PASSWORD]."}),
    (("--token",), {"metavar": "TEXT", "help": "Token [env: JETLAKE_TOKEN, NATS_TOKEN]."}),
    (("--creds",), {"metavar": "FILE", "type": _FILE, "help": "Credentials file [env: JETLAKE_CREDS, NATS_CREDS]."}),
    (("--nkey",), {"metavar": "FILE", "type": _FILE, "help": "File with an nkey seed [env: JETLAKE_NKEY, NATS_NKEY]."}),
    (("--tlsca", "tls_ca"), {"metavar": "FILE", "type": _FILE, "help": "Certificate authority to trust."}),
    (("--tlscert", "tls_cert"), {"metavar": "FILE", "type": _FILE, "help": "Client certificate."}),
    (("--tlskey", "tls_key"), {"metavar": "FILE", "type": _FILE, "help": "Key of the client certificate."}),
    (
        ("--tlsfirst/--no-tlsfirst", "tls_first"),
        {"default": None, "help": "Start TLS before the server sends INFO."},
    ),
    (("--domain", "--js-domain", "domain"), {"metavar": "NAME", "help": "JetStream domain."}),
    (
        ("--js-api-prefix", "api_prefix"),
        {"metavar": "PREFIX", "help": "Subject prefix of a JetStream API that is imported from another account."},
    ),
    (("--inbox-prefix", "inbox_prefix"), {"metavar": "PREFIX", "help": "Subject prefix of inboxes."}),
    (("--connection-name", "connection_name"), {"metavar": "NAME", "help": "Name of the connection."}),
    (
        ("--context",),
        {
            "metavar": "NAME",
            "help": "Saved context to use (see: jetlake context).",
            "shell_complete": context_names,
        },
    ),
    (("--no-context", "no_context"), {"is_flag": True, "default": None, "help": "Ignore the selected context."}),
    (
        ("--trace", "traces"),
        {"is_flag": True, "default": None, "help": "Also print the requests of the JetStream API and their answers."},
    ),
    (
        ("--timeout",),
        {
            "metavar": "DURATION",
            "type": WAIT,
            "help": "How long to wait for the server, like 500ms or 5s.  [default: 5s]",
        },
    ),
)


def shared_options(*, hidden: bool) -> list[click.Parameter]:
    """Make the options, which are noted and not handed to the command's function."""
    return [click.Option(names, expose_value=False, callback=_note, hidden=hidden, **more) for names, more in _OPTIONS]


_REPEATED = shared_options(hidden=True)


class SharedCommand(click.Command):
    """A command that takes the shared options too, so that `jetlake stream ls -s URL` works; its own names win.

    Args:
        example: a line that shows its use, for the help and the reference.
    """

    def __init__(self, *arguments: Any, example: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.example:
            with formatter.section("Example"):
                # Not folded: a line to copy.
                formatter.write(f"  {self.example}\n")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {name for param in own for name in param.opts}
        return own + [option for option in _REPEATED if taken.isdisjoint(option.opts)]


class SharedGroup(SharedCommand, click.Group):
    """A group whose commands take the shared options, and which takes them itself."""

    command_class = SharedCommand
    group_class = type  # Its own.

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = (super(SharedGroup, self).get_command(ctx, name) for name in (cmd_name, *full_names(cmd_name)))
        return next((command for command in found if command is not None), None)
