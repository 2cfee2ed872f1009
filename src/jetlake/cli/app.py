"""The tree of commands and the options that all of them share."""

from __future__ import annotations

import click

from jetlake.cli.commands import (
    account_commands,
    backup_commands,
    bench_commands,
    consumer_commands,
    context_commands,
    dead_letter_commands,
    message_commands,
    stream_commands,
)
from jetlake.cli.lazy import LazyGroup
from jetlake.cli.shared_options import shared_options
from jetlake.version import __version__

__all__ = ["app"]

# Loaded when they are asked for: they bring Spark or the dashboard along.
_COMMANDS = "jetlake.cli.commands"
_LATER = {
    "pipeline": (f"{_COMMANDS}.pipeline_commands", "pipeline", "Run a ready-made data pipeline on Spark."),
    "events": (f"{_COMMANDS}.pipeline_commands", "events", "Collect what the server announces in a stream."),
    "demo": (f"{_COMMANDS}.demo_command", "demo", "Run the whole system once and prove the counts."),
    "dashboard": (f"{_COMMANDS}.dashboard_command", "dashboard", "Show streams and consumers on a web page."),
    "serve": (
        "jetlake.cli.commands.serve_command",
        "serve",
        "Run the embedded JetStream server (takes nats-server's flags).",
    ),
    "completion": (
        "jetlake.cli.commands.completion_command",
        "completion",
        "Print what your shell needs to complete commands.",
    ),
}


@click.group(
    cls=LazyGroup,
    later=_LATER,
    params=shared_options(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="jetlake")
def app() -> None:
    """JetStream for Python: an embedded server, a client, and data pipelines on Spark.

    The options may also stand behind the command: jetlake stream ls -s nats://127.0.0.1:4222
    """


stream_commands.stream.add_command(backup_commands.backup)
stream_commands.stream.add_command(backup_commands.restore)
app.add_command(stream_commands.stream)
app.add_command(consumer_commands.consumer)
app.add_command(message_commands.pub)
app.add_command(message_commands.req)
app.add_command(message_commands.sub)
app.add_command(message_commands.ack_watch)
app.add_command(account_commands.account)
app.add_command(account_commands.server)
app.add_command(bench_commands.bench)
app.add_command(dead_letter_commands.dead_letters)
app.add_command(context_commands.context)
