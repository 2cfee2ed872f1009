"""The tree of commands and the options that all of them share."""

from __future__ import annotations

from typing import Any

import click

from jetlake import __version__
from jetlake.cli import (
    account_commands,
    bench_commands,
    consumer_commands,
    context_commands,
    message_commands,
    stream_commands,
)
from jetlake.cli.lazy import LazyGroup
from jetlake.cli.session import EXIT_USAGE, Session, fail
from jetlake.errors import ConfigError

__all__ = ["app"]

# Loaded when they are asked for: they bring Spark or the dashboard along.
_LATER = {
    "pipeline": ("jetlake.cli.pipeline_commands", "pipeline", "Run a ready-made data pipeline on Spark."),
    "events": ("jetlake.cli.pipeline_commands", "events", "Collect what the server announces in a stream."),
    "demo": ("jetlake.cli.demo_command", "demo", "Run the whole system once and prove the counts."),
    "dashboard": ("jetlake.cli.dashboard_command", "dashboard", "Show streams and consumers on a web page."),
    "serve": ("jetlake.cli.serve_command", "serve", "Run the embedded JetStream server (takes nats-server's flags)."),
    "completion": ("jetlake.cli.completion_command", "completion", "Print what your shell needs to complete commands."),
}


@click.group(
    cls=LazyGroup, later=_LATER, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "-s", "--server", metavar="URL", help="Server, or several separated by commas [env: JETLAKE_URL, NATS_URL]."
)
@click.option("--user", metavar="NAME", help="User name [env: JETLAKE_USER, NATS_USER].")
@click.option("--password", metavar="TEXT", help="Password [env: JETLAKE_PASSWORD, NATS_PASSWORD].")
@click.option("--token", metavar="TEXT", help="Token [env: JETLAKE_TOKEN, NATS_TOKEN].")
@click.option("--creds", metavar="FILE", help="Credentials file [env: JETLAKE_CREDS, NATS_CREDS].")
@click.option("--nkey", metavar="FILE", help="File with an nkey seed [env: JETLAKE_NKEY, NATS_NKEY].")
@click.option("--tlsca", "tls_ca", metavar="FILE", help="Certificate authority to trust.")
@click.option("--tlscert", "tls_cert", metavar="FILE", help="Client certificate.")
@click.option("--tlskey", "tls_key", metavar="FILE", help="Key of the client certificate.")
@click.option("--domain", metavar="NAME", help="JetStream domain.")
@click.option("--context", metavar="NAME", help="Saved context to use (see: jetlake context).")
@click.option("--timeout", default=5.0, show_default=True, metavar="SECONDS", help="How long to wait for the server.")
@click.version_option(__version__, prog_name="jetlake")
@click.pass_context
def app(ctx: click.Context, /, context: str | None, timeout: float, **settings: Any) -> None:
    """JetStream for Python: an embedded server, a client, and data pipelines on Spark."""
    try:
        ctx.obj = Session(settings, context=context, timeout_s=timeout)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


app.add_command(stream_commands.stream)
app.add_command(consumer_commands.consumer)
app.add_command(message_commands.pub)
app.add_command(message_commands.req)
app.add_command(message_commands.sub)
app.add_command(message_commands.ack_watch)
app.add_command(account_commands.account)
app.add_command(account_commands.server)
app.add_command(bench_commands.bench)
app.add_command(context_commands.context)
