"""Commands that make, change, seal, empty and remove streams."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.commands.config_files import read_config, with_fields
from jetlake.cli.commands.stream.config_options import config_options, given_fields
from jetlake.cli.commands.stream.facts import print_info
from jetlake.cli.commands.stream.questions import ask_name, ask_stream, ask_subjects
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.errors import ApiError
from jetlake.model.stream import StreamConfig

if TYPE_CHECKING:
    from jetlake.client import JetStream

__all__ = ["add", "copy", "edit", "purge", "remove", "seal"]

_OVERLAP = 10065


@asynccontextmanager
async def _overlaps_named(js: JetStream, config: StreamConfig) -> AsyncIterator[None]:
    """Add to a refusal for overlapping subjects which stream captures which of them."""
    try:
        yield
    except ApiError as error:
        if error.err_code != _OVERLAP:
            raise
        found = [(subject, await js.stream_names(subject=subject)) for subject in config.subjects]
        told = [
            f"{subject!r} with {', '.join(others)}"
            for subject, names in found
            if (others := [name for name in names if name != config.name])
        ]
        if not told:
            raise
        fail(f"{error.description} ({error.err_code}): {'; '.join(told)}")


@click.command("add", cls=SharedCommand, example="jetlake stream add ORDERS --subjects 'orders.>' --max-age 7d")
@click.argument("name", required=False)
@config_options
@click.option("--config", metavar="FILE", help="Read the configuration from a JSON file; options override it.")
@click.option("--defaults", is_flag=True, help="Do not ask; use defaults for everything that is not given.")
@json_option
@command
async def add(
    session: Session, name: str | None, config: str | None, defaults: bool, as_json: bool, **options: Any
) -> None:
    """Create stream NAME; on a terminal, without options, it asks."""
    asks = sys.stdin.isatty() and not defaults
    if name is None:
        if not asks:
            fail("which stream? give a name, like: jetlake stream add ORDERS --subjects 'orders.>'", EXIT_USAGE)
        name = ask_name()
    fields = given_fields(options)
    if asks and not fields and not config:
        fields = given_fields(ask_stream(name))
    base = read_config(config, StreamConfig) if config else StreamConfig()
    wanted = with_fields(base, {**fields, "name": name})
    if asks and not wanted.subjects and not wanted.mirror and not wanted.sources:
        wanted = with_fields(wanted, given_fields({"subjects": ask_subjects(name)}))
    async with session.jetstream() as js:
        async with _overlaps_named(js, wanted):
            created = await js.create_stream(wanted)
        print_info(await created.info(), as_json, f"Stream {name} was made")


@click.command("copy", cls=SharedCommand, example="jetlake stream copy ORDERS RETURNS --subjects 'returns.>'")
@click.argument("source", shell_complete=stream_names)
@click.argument("name")
@config_options
@json_option
@command
async def copy(session: Session, source: str, name: str, as_json: bool, **options: Any) -> None:
    """Create stream NAME with the configuration of stream SOURCE, without its messages; options override it."""
    if name == source:
        fail(f"{name} is the stream to copy: give the new one another name", EXIT_USAGE)
    async with session.jetstream() as js:
        origin = (await js.stream(source)).config
        wanted = with_fields(origin, {"sealed": False, **given_fields(options), "name": name})
        async with _overlaps_named(js, wanted):
            created = await js.create_stream(wanted)
        print_info(await created.info(), as_json, f"Stream {name} was made like {source}")


@click.command("edit", cls=SharedCommand, example="jetlake stream edit ORDERS --max-age 30d")
@click.argument("name", shell_complete=stream_names)
@config_options
@click.option("--config", metavar="FILE", help="Read the whole configuration from a JSON file; options override it.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@force_option
@json_option
@command
async def edit(
    session: Session, name: str, config: str | None, dry_run: bool, force: bool, as_json: bool, **options: Any
) -> None:
    """Change the configuration of stream NAME; on a terminal, what changes is shown first."""
    fields = given_fields(options)
    if not fields and not config:
        fail("nothing to change; give an option such as --max-age 7d", EXIT_USAGE)
    async with session.jetstream() as js:
        handle = await js.stream(name)
        base = read_config(config, StreamConfig) if config else handle.config
        wanted = with_fields(base, {**fields, "name": name})
        changes = _changes(handle.config, wanted)
        if dry_run:
            _print_changes(changes, as_json)
            return
        if sys.stdin.isatty() and not force:
            click.echo(_told(changes), err=True)
            confirm(f"Change stream {name}?", force)
        async with _overlaps_named(js, wanted):
            await handle.update(wanted)
        print_info(await handle.info(), as_json, f"Stream {name} was changed")


def _changes(old: StreamConfig, new: StreamConfig) -> dict[str, tuple[Any, Any]]:
    """List the fields that differ, with both values."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _print_changes(changes: dict[str, tuple[Any, Any]], as_json: bool) -> None:
    if as_json:
        output.print_json({key: {"from": old, "to": new} for key, (old, new) in changes.items()})
    else:
        click.echo(_told(changes) or "No change")


def _told(changes: dict[str, tuple[Any, Any]]) -> str:
    """Write the changes for people, one a line, with values as in the configuration's JSON."""
    return "\n".join(
        f"{key}: {msgspec.json.encode(old).decode()} -> {msgspec.json.encode(new).decode()}"
        for key, (old, new) in changes.items()
    )


@click.command("seal", cls=SharedCommand, example="jetlake stream seal ORDERS --force")
@click.argument("name", shell_complete=stream_names)
@force_option
@json_option
@command
async def seal(session: Session, name: str, force: bool, as_json: bool) -> None:
    """Seal stream NAME: no message can be added, changed or removed afterwards. This can't be undone."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Seal stream {name} for good?", force)
        await handle.update(sealed=True)
        print_info(await handle.info(), as_json, f"Stream {name} is sealed")


@click.command("rm", cls=SharedCommand, example="jetlake stream rm ORDERS --force")
@click.argument("name", shell_complete=stream_names)
@force_option
@json_option
@command
async def remove(session: Session, name: str, force: bool, as_json: bool) -> None:
    """Delete stream NAME with all its messages and consumers."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Remove stream {name} with {output.plural((await handle.info()).state.messages, 'message')}?", force)
        await handle.delete()
    output.tell(f"Stream {name} was removed", {"removed": name}, as_json)


@click.command("purge", cls=SharedCommand, example="jetlake stream purge ORDERS --subject orders.test --force")
@click.argument("name", shell_complete=stream_names)
@click.option("--subject", default="", metavar="SUBJECT", help="Only messages whose subject matches.")
@click.option("--seq", "before", type=int, default=0, metavar="N", help="Only messages before this sequence.")
@click.option("--keep", type=int, default=0, metavar="N", help="Keep the newest N.")
@force_option
@json_option
@command
async def purge(session: Session, name: str, subject: str, before: int, keep: int, force: bool, as_json: bool) -> None:
    """Remove messages from stream NAME."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Remove messages of stream {name}?", force)
        purged = await handle.purge(subject=subject, before=before, keep=keep)
    output.tell(f"Removed: {output.plural(purged, 'message')}", {"purged": purged}, as_json)
