"""The root of the tree of commands, and the options that all of them share."""

from __future__ import annotations

import click

from jetlake.cli.lazy import LazyGroup
from jetlake.cli.shared_options import shared_options
from jetlake.version import __version__

__all__ = ["app"]


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
