"""`jetlake stream backup` and `jetlake stream restore`: streams to folders and back."""

from __future__ import annotations

import click

from jetlake.cli import output
from jetlake.cli.commands.config_files import read_config
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import Session, command, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.client.api.config_options import RestoreOptions
from jetlake.model.stream import StreamConfig

__all__ = ["backup", "restore"]


@click.command(cls=SharedCommand, example="jetlake stream backup ORDERS backups/orders")
@click.argument("name", shell_complete=stream_names)
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--no-consumers", is_flag=True, help="Leave the consumers out.")
@json_option
@command
async def backup(session: Session, name: str, folder: str, no_consumers: bool, as_json: bool) -> None:
    """Back up stream NAME with its consumers to FOLDER, in the format of the nats command."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        with output.Bar(f"Backing up {name}", handle.cached_info.state.bytes) as bar:
            taken = await handle.backup(folder, consumers=not no_consumers, progress=bar.show)
    if as_json:
        output.print_json({"stream": name, "messages": taken.state.messages, "bytes": taken.size, "folder": folder})
    else:
        messages = output.plural(taken.state.messages, "message")
        click.echo(f"Stream {name} was backed up to {folder}: {messages} in {output.size(taken.size)}")


@click.command(cls=SharedCommand, example="jetlake stream restore backups/orders --name ORDERS2")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--name", metavar="NAME", help="Name of the new stream. Default: the name in the backup.")
@click.option("--subjects", multiple=True, metavar="LIST", help="Subjects to capture, separated by commas.")
@click.option("--config", metavar="FILE", help="Read the configuration from a JSON file instead of the backup.")
@json_option
@command
async def restore(
    session: Session, folder: str, name: str | None, subjects: tuple[str, ...], config: str | None, as_json: bool
) -> None:
    """Restore a stream from the backup in FOLDER, with its messages and consumers."""
    base = read_config(config, StreamConfig) if config else None
    changes: RestoreOptions = {}
    if name:
        changes["name"] = name
    if subjects:
        changes["subjects"] = [one.strip() for text in subjects for one in text.split(",") if one.strip()]
    async with session.jetstream() as js:
        with output.Bar("Restoring", 0) as bar:
            restored = await js.restore(folder, base, progress=bar.show, **changes)
        info = restored.cached_info
    if as_json:
        output.print_json(info)
    else:
        held = (
            f"{output.plural(info.state.messages, 'message')}, {output.plural(info.state.consumer_count, 'consumer')}"
        )
        click.echo(f"Stream {info.config.name} was restored: {held}")
