"""`jetlake mcp`: streams, messages and consumers as tools for language models."""

from __future__ import annotations

import os
import signal

import click

from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.session import Session, command, sentence
from jetlake.cli.shared_options import SharedCommand
from jetlake.errors import ConfigError


@click.command("mcp", cls=SharedCommand, example="jetlake mcp --context staging")
@click.option("--allow-changes", is_flag=True, help="Also offer tools that publish, create, pause, purge and delete.")
@command
async def mcp(session: Session, allow_changes: bool) -> None:
    """Serve tools of the Model Context Protocol on standard input and output, read-only.

    A model may list streams and consumers, read messages without consuming them, and ask why a consumer is behind.
    """
    try:
        from jetlake.integrations.mcp.tools import Tools, build
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        raise ConfigError(f"the package mcp is too old ({error}): pip install 'jetlake[mcp]'") from None

    _ = session.target  # A context that cannot be read ends the command: the model could not repair it.
    # A thread waits for the next line of standard input, and cannot be interrupted. Nothing has to be saved.
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    tools = Tools(lambda: session.connect(stay=True), session.jetstream_of)
    try:
        await build(tools, lambda error: sentence(error, session)[0], allow_changes=allow_changes).run_stdio_async()
    finally:
        await tools.close()
