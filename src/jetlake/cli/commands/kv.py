"""`jetlake kv …`: key-value buckets and their keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.choosing import pick
from jetlake.cli.message_content import value_of
from jetlake.cli.name_completion import bucket_names, key_names
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION, SIZE
from jetlake.client.kv.config import BucketStatus, source_of
from jetlake.client.kv.entry import Entry
from jetlake.errors import KeyNotFoundError, WrongLastSequenceError
from jetlake.model.encoding.codec import encode_shown
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, seconds

if TYPE_CHECKING:
    from jetlake.client.kv.bucket import KeyValue
    from jetlake.client.kv.entry import Entry


@click.group(cls=SharedGroup)
def kv() -> None:
    """Use key-value buckets."""


_OPTIONS = (
    click.option("--history", type=click.IntRange(1, 64), metavar="N", help="Revisions to keep per key."),
    click.option("--ttl", type=DURATION, help="Lifetime of a revision."),
    click.option("--max-value-size", type=SIZE, help="Maximum size of a value."),
    click.option("--max-bucket-size", "max_bytes", type=SIZE, help="Maximum size of the bucket."),
    click.option("--replicas", "num_replicas", type=click.IntRange(1), metavar="N", help="Replicas in a cluster."),
    click.option("--compress/--no-compress", "compress", default=None, help="Whether blocks are compressed."),
    click.option(
        "--marker-ttl", "limit_marker_ttl", type=DURATION, help="Allow TTLs per key; lifetime of delete markers."
    ),
    click.option("--description", metavar="TEXT", help="Description."),
    click.option("--tags", multiple=True, metavar="TAG", help="Place it on servers with this tag; may be repeated."),
    click.option("--cluster", metavar="CLUSTER", help="Place it in this cluster."),
    click.option("--republish-source", metavar="SUBJECT", help="Publish stored messages with these subjects again."),
    click.option("--republish-destination", metavar="SUBJECT", help="The subjects they are published to."),
    click.option("--republish-headers", is_flag=True, default=None, help="Publish only their headers again."),
)
# The field of the bucket's stream that an option changes.
_STREAM_FIELDS = {
    "history": "max_msgs_per_subject",
    "ttl": "max_age",
    "max_value_size": "max_msg_size",
    "limit_marker_ttl": "subject_delete_marker_ttl",
}


def _config_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as the client has them."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in ("ttl", "limit_marker_ttl"):
        if name in given:
            given[name] = seconds(given[name])
    tags, cluster = given.pop("tags", ()), given.pop("cluster", None)
    if tags or cluster:
        given["placement"] = {"cluster": cluster or "", "tags": list(tags)}
    source, destination = given.pop("republish_source", None), given.pop("republish_destination", None)
    headers_only = given.pop("republish_headers", False)
    if (source or headers_only) and not destination:
        fail("--republish-source and --republish-headers need --republish-destination", EXIT_USAGE)
    if destination:
        given["republish"] = {"src": source or ">", "dest": destination, "headers_only": bool(headers_only)}
    if "compress" in given:
        given["compression"] = "s2" if given.pop("compress") else "none"
    return given


@kv.command("add", example="jetlake kv add PRICES --history 5 --ttl 30d")
@click.argument("bucket")
@_config_options
@click.option("--storage", type=click.Choice(["file", "memory", "f", "m"]), help="Where to store it.")
@click.option("--mirror", metavar="BUCKET", help="Create a mirror of this bucket.")
@click.option("--mirror-domain", metavar="DOMAIN", help="JetStream domain of the bucket that is mirrored.")
@click.option("--source", "sources", multiple=True, metavar="BUCKET", help="Copy from this source; may be repeated.")
@json_option
@command
async def add(session: Session, bucket: str, as_json: bool, **options: Any) -> None:
    """Create bucket BUCKET."""
    given = _given(options)
    if "storage" in given:
        given["storage"] = {"f": "file", "m": "memory"}.get(given["storage"], given["storage"])
    domain = given.pop("mirror_domain", None)
    if domain and "mirror" not in given:
        fail("--mirror-domain needs --mirror", EXIT_USAGE)
    if "mirror" in given:
        external = {"external": {"api": f"$JS.{domain}.API"}} if domain else {}
        given["mirror"] = {"name": given["mirror"], **external}
    if "sources" in given:
        given["sources"] = [{"name": name} for name in given["sources"]]
    async with session.jetstream() as js:
        made = await js.create_key_value(bucket, **given)
        _print_status(await made.status(), as_json, f"Created bucket {bucket}")


@kv.command("edit", example="jetlake kv edit PRICES --history 10")
@click.argument("bucket", shell_complete=bucket_names)
@_config_options
@click.option("--source", "sources", multiple=True, metavar="BUCKET", help="Copy from this source; may be repeated.")
@json_option
@command
async def edit(session: Session, bucket: str, as_json: bool, **options: Any) -> None:
    """Change the configuration of bucket BUCKET; sources replace its existing sources."""
    given = _given(options)
    if "sources" in given:
        given["sources"] = [source_of(bucket, {"name": name}) for name in given["sources"]]
    if not given:
        fail("nothing to change; give an option such as --history 10", EXIT_USAGE)
    fields: dict[str, Any] = {_STREAM_FIELDS.get(name, name): value for name, value in given.items()}
    if "subject_delete_marker_ttl" in fields:
        fields["allow_msg_ttl"] = True
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        await handle.stream.update(**fields)
        _print_status(await handle.status(), as_json, f"Updated bucket {bucket}")


@kv.command("info", example="jetlake kv info PRICES")
@click.argument("bucket", required=False, shell_complete=bucket_names)
@json_option
@command
async def show(session: Session, bucket: str | None, as_json: bool) -> None:
    """Show the configuration and state of bucket BUCKET."""
    async with session.jetstream() as js:
        if not bucket:
            bucket = pick("bucket", await js.key_value_names(), "List buckets: jetlake kv ls")
        status = await (await js.key_value(bucket)).status()
    _print_status(status, as_json, f"Bucket {bucket}, created {output.when(status.stream.created)}")


def _print_status(status: BucketStatus, as_json: bool, title: str) -> None:
    if as_json:
        output.print_json(status)
        return
    config, state = status.stream.config, status.stream.state
    output.print_facts(
        title,
        {
            "Configuration": [
                ("Description", config.description),
                ("History", output.count(status.history)),
                ("TTL", output.duration(config.max_age)),
                ("Maximum Value Size", output.size(config.max_msg_size)),
                ("Maximum Bucket Size", output.size(config.max_bytes)),
                ("Storage", config.storage.value),
                ("Compression", config.compression.value),
                ("Replicas", config.num_replicas),
                (
                    "Marker TTL",
                    output.duration(config.subject_delete_marker_ttl) if status.limit_marker_ttl_s else None,
                ),
                ("Mirror of", config.mirror.name.removeprefix("KV_") if config.mirror else None),
                ("Sources", ", ".join(source.name.removeprefix("KV_") for source in config.sources)),
            ],
            "State": [
                ("Keys", output.count(state.num_subjects)),
                ("Revisions", output.count(status.values)),
                ("Bytes", output.size(status.bytes)),
                ("Last Change", output.when(state.last_ts)),
            ],
            "Cluster Information": output.cluster_facts(status.stream.cluster),
        },
    )


@kv.command("ls", example="jetlake kv ls PRICES 'tea.*' --values")
@click.argument("bucket", required=False, shell_complete=bucket_names)
@click.argument("patterns", nargs=-1)
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@click.option("-v", "--verbose", is_flag=True, help="Print revisions and times too.")
@click.option("--values", "--display-value", "values", is_flag=True, help="Print values too.")
@json_option
@command
async def list_names(
    session: Session,
    bucket: str | None,
    patterns: tuple[str, ...],
    names_only: bool,
    verbose: bool,
    values: bool,
    as_json: bool,
) -> None:
    """List all buckets, or the keys of BUCKET that match PATTERNS (default: all)."""
    async with session.jetstream() as js:
        if bucket is None:
            names = await js.key_value_names()
            if names_only:
                output.print_names(names, as_json)
                return
            statuses = [await (await js.key_value(name)).status() for name in names]
            _print_buckets(statuses, as_json)
            return
        handle = await js.key_value(bucket)
        if values or verbose:
            async with handle.watch(*patterns, ignore_deletes=True) as watch:
                entries = await watch.current()
            title = f"{output.plural(len(entries), 'key')} in {bucket}"
            print_entries(title, entries, as_json, has_values=values)
            return
        keys = await handle.keys(*patterns)
    if keys or as_json or names_only:
        output.print_names(keys, as_json)
    elif patterns:
        click.echo(f"No keys in {bucket} match {', '.join(patterns)}")
    else:
        click.echo(f"No keys in {bucket}. Put one: jetlake kv put {bucket} KEY VALUE")


def _print_buckets(statuses: list[BucketStatus], as_json: bool) -> None:
    if as_json:
        output.print_json(statuses)
    elif not statuses:
        click.echo("No buckets. Create one: jetlake kv add PRICES")
    else:
        output.print_table(
            "Key-value buckets",
            ["Bucket", "Description", "Keys", "Revisions", "Size", "History", "Last change"],
            [
                [
                    one.bucket,
                    one.stream.config.description,
                    output.count(one.stream.state.num_subjects),
                    output.count(one.values),
                    output.size(one.bytes),
                    output.count(one.history),
                    output.when(one.stream.state.last_ts),
                ]
                for one in statuses
            ],
            numbers=[2, 3, 4, 5],
            spare=[1, 5, 6, 3],
        )


@kv.command("compact", example="jetlake kv compact PRICES --older-than 1h --force")
@click.argument("bucket", shell_complete=bucket_names)
@click.option(
    "--older-than", type=DURATION, default="30m", show_default=True, help="Keep markers that are younger than this."
)
@force_option
@json_option
@command
async def compact(session: Session, bucket: str, older_than: int, force: bool, as_json: bool) -> None:
    """Remove the markers of deleted keys from BUCKET, and the rest of their history."""
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        confirm(f"Purge the markers of deleted keys from {bucket}?", force)
        compacted = await handle.purge_deletes(older_than / NANOSECONDS_PER_SECOND)
    purged = output.plural(compacted, "deleted key")
    output.tell(f"Compacted bucket {bucket}: purged {purged}", {"keys": compacted}, as_json)


_bucket = click.argument("bucket", shell_complete=bucket_names)
_key = click.argument("key", shell_complete=key_names)


@kv.command("get", example="jetlake kv get PRICES tea --raw")
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
        fail(f"{name} > {key} has no revision {revision}. List revisions: jetlake kv history {name} {key}")


def _stored(bucket: str, key: str, revision: int, as_json: bool) -> None:
    facts = {"bucket": bucket, "key": key, "revision": revision}
    output.tell(f"Stored {bucket} > {key} as revision {revision}", facts, as_json)


@kv.command("put", example="jetlake kv put PRICES tea 42")
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


@kv.command("create", example="jetlake kv create PRICES tea 42 --ttl 1h")
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


@kv.command("update", example="jetlake kv update PRICES tea 43 7")
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
            fail(f"{bucket} > {key} is not at revision {revision}. Show it: jetlake kv get {bucket} {key}", EXIT_FAILED)
    _stored(bucket, key, stored, as_json)


@kv.command("revert", example="jetlake kv revert PRICES tea 3 --force")
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


@kv.command("rm", example="jetlake kv rm PRICES tea --force")
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
    what = f"bucket {bucket}" if key is None else f"{bucket} > {key}"
    output.tell(f"Deleted {what}", {"bucket": bucket, "removed": key or bucket}, as_json)


@kv.command("purge", example="jetlake kv purge PRICES tea --force")
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
    output.tell(f"Purged {bucket} > {key}", {"bucket": bucket, "removed": key}, as_json)


@kv.command("history", example="jetlake kv history PRICES tea")
@_bucket
@_key
@json_option
@command
async def history(session: Session, bucket: str, key: str, as_json: bool) -> None:
    """Show the revisions of KEY that are kept."""
    async with session.jetstream() as js:
        entries = await (await js.key_value(bucket)).history(key)
    print_entries(f"History of {bucket} > {key}", entries, as_json)


@kv.command("watch", example="jetlake kv watch PRICES 'tea.>' --updates")
@_bucket
@click.argument("patterns", nargs=-1)
@click.option("--history", "with_history", is_flag=True, help="Start with all stored revisions.")
@click.option("--updates", is_flag=True, help="Start with the next change.")
@click.option("--deletes/--no-deletes", default=True, help="Whether deleted keys are shown.")
@click.option("--revision", type=click.IntRange(1), default=None, metavar="N", help="Start at this revision.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N changes.")
@json_option
@command
async def watch(
    session: Session,
    bucket: str,
    patterns: tuple[str, ...],
    with_history: bool,
    updates: bool,
    deletes: bool,
    revision: int | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Print the keys of BUCKET that match PATTERNS (default: all), and each change until Ctrl-C."""
    if with_history and updates:
        fail("--history and --updates are mutually exclusive", EXIT_USAGE)
    async with session.jetstream(stay=True) as js:
        handle = await js.key_value(bucket)
        number = 0
        async with handle.watch(
            *patterns,
            include_history=with_history,
            updates_only=updates,
            from_revision=revision or 0,
            ignore_deletes=not deletes,
        ) as changes:
            click.echo(f"Watching {bucket}; press Ctrl-C to stop", err=True)
            async for entry in changes:
                number += 1
                if as_json:
                    click.echo(encode_shown(entry_fields(entry)))
                else:
                    value = f": {shown_value(entry)}" if not entry.is_deleted else ""
                    moment = f"{entry.created:%Y-%m-%d %H:%M:%S}"
                    key = output.printable(entry.key)
                    click.echo(f"[{moment}] {entry.operation.value.upper()} {bucket} > {key}{value}")
                if number == count:
                    break


_VALUE_BYTES_SHOWN = 500


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return an entry for JSON; the value is in base64, as in all that the server answers."""
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "created": entry.created,
        "operation": entry.operation,
        "value": entry.value,
    }


def shown_value(entry: Entry) -> str:
    """Return the value as one line of text, cut off where it is long; what can't be printed is escaped."""
    text = entry.value[:_VALUE_BYTES_SHOWN].decode("utf-8", "backslashreplace")
    return output.printable(text) + ("…" if len(entry.value) > _VALUE_BYTES_SHOWN else "")


def print_entries(title: str, entries: Sequence[Entry], as_json: bool, *, has_values: bool = True) -> None:
    """Print a table of entries."""
    if as_json:
        output.print_json([entry_fields(entry) for entry in entries])
        return
    output.print_table(
        title,
        ["Key", "Revision", "Operation", "Created", *(["Value"] if has_values else [])],
        [
            [
                entry.key,
                output.count(entry.revision),
                entry.operation.value,
                f"{entry.created:%Y-%m-%d %H:%M:%S}",
                *([shown_value(entry)] if has_values else []),
            ]
            for entry in entries
        ],
        numbers=[1],
        spare=[3, 2],
    )
