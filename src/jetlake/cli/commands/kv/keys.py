"""Commands that read, write, remove and watch the keys of a bucket."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.commands.kv.entries import entry_fields, print_entries, shown_value
from jetlake.cli.commands.messages.bodies import value_of
from jetlake.cli.name_completion import bucket_names, key_names
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.errors import KeyNotFoundError, WrongLastSequenceError
from jetlake.model.encoding.durations import seconds

if TYPE_CHECKING:
    from jetlake.client.kv.bucket import KeyValue
    from jetlake.client.kv.entry import Entry

__all__ = ["create", "delete", "get", "history", "purge", "put", "revert", "update", "watch"]

_bucket = click.argument("bucket", shell_complete=bucket_names)
_key = click.argument("key", shell_complete=key_names)


@click.command("get", cls=SharedCommand, example="jetlake kv get PRICES tea --raw")
@_bucket
@_key
@click.option("--revision", type=click.IntRange(1), metavar="N", help="Show this revision.")
@click.option("-r", "--raw", is_flag=True, help="Print only the value, unchanged.")
@json_option
@command
async def get(session: Session, bucket: str, key: str, revision: int | None, raw: bool, as_json: bool) -> None:
    """Show the value of KEY."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        entry = await (_at_revision(handle, key, revision) if revision else handle.get(key))
    if as_json:
        output.print_json(entry_fields(entry))
    elif raw:
        sys.stdout.buffer.write(entry.value)
    else:
        click.echo(f"{bucket} > {key} revision {entry.revision} created {entry.created:%Y-%m-%d %H:%M:%S}\n")
        click.echo(entry.value)


async def _at_revision(bucket: KeyValue, key: str, revision: int) -> Entry:
    try:
        return await bucket.get(key, revision=revision)
    except KeyNotFoundError:
        name = bucket.bucket
        fail(f"{name} > {key} has no value of revision {revision}. See which: jetlake kv history {name} {key}")


def _stored(bucket: str, key: str, revision: int, as_json: bool) -> None:
    facts = {"bucket": bucket, "key": key, "revision": revision}
    output.tell(f"{bucket} > {key} is stored as revision {revision}", facts, as_json)


@click.command("put", cls=SharedCommand, example="jetlake kv put PRICES tea 42")
@_bucket
@_key
@click.argument("value", required=False)
@json_option
@command
async def put(session: Session, bucket: str, key: str, value: str | None, as_json: bool) -> None:
    """Set KEY to VALUE, or to standard input."""
    async with session.jetstream() as js:
        revision = await (await js.key_value(bucket)).put(key, value_of(value))
    _stored(bucket, key, revision, as_json)


@click.command("create", cls=SharedCommand, example="jetlake kv create PRICES tea 42 --ttl 1h")
@_bucket
@_key
@click.argument("value", required=False)
@click.option("--ttl", type=DURATION, help="Lifetime of the key; the bucket needs --marker-ttl.")
@json_option
@command
async def create(session: Session, bucket: str, key: str, value: str | None, ttl: int | None, as_json: bool) -> None:
    """Set KEY to VALUE, or to standard input, if it has no value."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        revision = await handle.create(key, value_of(value), ttl=seconds(ttl) if ttl else None)
    _stored(bucket, key, revision, as_json)


@click.command("update", cls=SharedCommand, example="jetlake kv update PRICES tea 43 7")
@_bucket
@_key
@click.argument("value")
@click.argument("revision", type=click.IntRange(0))
@json_option
@command
async def update(session: Session, bucket: str, key: str, value: str, revision: int, as_json: bool) -> None:
    """Set KEY to VALUE if REVISION is the newest; 0 for a new key; VALUE - reads standard input."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        try:
            stored = await handle.update(key, value_of(None if value == "-" else value), revision)
        except WrongLastSequenceError:
            fail(f"{bucket} > {key} is not at revision {revision}. See it: jetlake kv get {bucket} {key}", EXIT_FAILED)
    _stored(bucket, key, stored, as_json)


@click.command("revert", cls=SharedCommand, example="jetlake kv revert PRICES tea 3 --force")
@_bucket
@_key
@click.argument("revision", type=click.IntRange(1))
@force_option
@json_option
@command
async def revert(session: Session, bucket: str, key: str, revision: int, force: bool, as_json: bool) -> None:
    """Set KEY to the value that it had at REVISION."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        old = await _at_revision(handle, key, revision)
        confirm(f"Set {bucket} > {key} to {shown_value(old)!r} of revision {revision}?", force)
        stored = await handle.put(key, old.value)
    _stored(bucket, key, stored, as_json)


@click.command("rm", cls=SharedCommand, example="jetlake kv rm PRICES tea --force")
@_bucket
@click.argument("key", required=False, shell_complete=key_names)
@force_option
@json_option
@command
async def delete(session: Session, bucket: str, key: str | None, force: bool, as_json: bool) -> None:
    """Delete KEY and keep its history, or without a key the whole BUCKET."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        if key is None:
            held = output.plural((await handle.status()).values, "revision")
            confirm(f"Delete bucket {bucket} with {held}?", force)
            await js.delete_key_value(bucket)
        else:
            confirm(f"Delete {bucket} > {key}?", force)
            await handle.delete(key)
    what = f"Bucket {bucket}" if key is None else f"{bucket} > {key}"
    output.tell(f"{what} was deleted", {"bucket": bucket, "removed": key or bucket}, as_json)


@click.command("purge", cls=SharedCommand, example="jetlake kv purge PRICES tea --force")
@_bucket
@_key
@force_option
@json_option
@command
async def purge(session: Session, bucket: str, key: str, force: bool, as_json: bool) -> None:
    """Delete KEY together with its history."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        confirm(f"Purge {bucket} > {key} with its history?", force)
        await handle.purge(key)
    output.tell(f"{bucket} > {key} was purged", {"bucket": bucket, "removed": key}, as_json)


@click.command("history", cls=SharedCommand, example="jetlake kv history PRICES tea")
@_bucket
@_key
@json_option
@command
async def history(session: Session, bucket: str, key: str, as_json: bool) -> None:
    """Show the revisions of KEY that are kept."""
    async with session.jetstream() as js:
        entries = await (await js.key_value(bucket)).history(key)
    print_entries(f"History of {bucket} > {key}", entries, as_json)


@click.command("watch", cls=SharedCommand, example="jetlake kv watch PRICES 'tea.>' --updates")
@_bucket
@click.argument("patterns", nargs=-1)
@click.option("--history", "with_history", is_flag=True, help="Start with all stored revisions.")
@click.option("--updates", is_flag=True, help="Start with the next change.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N changes.")
@json_option
@command
async def watch(
    session: Session,
    bucket: str,
    patterns: tuple[str, ...],
    with_history: bool,
    updates: bool,
    count: int | None,
    as_json: bool,
) -> None:
    """Print the keys of BUCKET, all or those that match PATTERNS, and each change until Ctrl-C."""
    if with_history and updates:
        fail("--history and --updates are two ways to begin: give one", EXIT_USAGE)
    async with session.jetstream(stay=True) as js:
        handle = await js.key_value(bucket)
        number = 0
        async with handle.watch(*patterns, include_history=with_history, updates_only=updates) as changes:
            click.echo(f"Watching {bucket}, Ctrl-C ends", err=True)
            async for entry in changes:
                number += 1
                if as_json:
                    click.echo(msgspec.json.encode(entry_fields(entry)))
                else:
                    value = f": {shown_value(entry)}" if not entry.is_deleted else ""
                    moment = f"{entry.created:%Y-%m-%d %H:%M:%S}"
                    click.echo(f"[{moment}] {entry.operation.value.upper()} {bucket} > {entry.key}{value}")
                if number == count:
                    break
