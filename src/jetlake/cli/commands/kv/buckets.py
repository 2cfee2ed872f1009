"""Commands that make, change, list and look at buckets."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli import output
from jetlake.cli.commands.kv.entries import print_entries
from jetlake.cli.name_completion import bucket_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION, SIZE
from jetlake.client.kv.status import BucketStatus
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, seconds

__all__ = ["add", "compact", "edit", "list_names", "show"]

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
    if "compress" in given:
        given["compression"] = "s2" if given.pop("compress") else "none"
    return given


@click.command("add", cls=SharedCommand, example="jetlake kv add PRICES --history 5 --ttl 30d")
@click.argument("bucket")
@_config_options
@click.option("--storage", type=click.Choice(["file", "memory"]), help="Where to store it.")
@click.option("--mirror", metavar="BUCKET", help="Create a mirror of this bucket.")
@click.option("--source", "sources", multiple=True, metavar="BUCKET", help="Copy from this source; may be repeated.")
@json_option
@command
async def add(session: Session, bucket: str, as_json: bool, **options: Any) -> None:
    """Create bucket BUCKET."""
    given = _given(options)
    if "mirror" in given:
        given["mirror"] = {"name": given["mirror"]}
    if "sources" in given:
        given["sources"] = [{"name": name} for name in given["sources"]]
    async with session.jetstream() as js:
        made = await js.create_key_value(bucket, **given)
        _print_status(await made.status(), as_json, f"Bucket {bucket} was made")


@click.command("edit", cls=SharedCommand, example="jetlake kv edit PRICES --history 10")
@click.argument("bucket", shell_complete=bucket_names)
@_config_options
@json_option
@command
async def edit(session: Session, bucket: str, as_json: bool, **options: Any) -> None:
    """Change the configuration of bucket BUCKET."""
    given = _given(options)
    if not given:
        fail("nothing to change; give an option such as --history 10", EXIT_USAGE)
    fields: dict[str, Any] = {_STREAM_FIELDS.get(name, name): value for name, value in given.items()}
    if "subject_delete_marker_ttl" in fields:
        fields["allow_msg_ttl"] = True
    async with session.jetstream() as js:
        handle = await js.key_value(bucket)
        await handle.stream.update(**fields)
        _print_status(await handle.status(), as_json, f"Bucket {bucket} was changed")


@click.command("info", cls=SharedCommand, example="jetlake kv info PRICES")
@click.argument("bucket", shell_complete=bucket_names)
@json_option
@command
async def show(session: Session, bucket: str, as_json: bool) -> None:
    """Show the configuration and state of bucket BUCKET."""
    async with session.jetstream() as js:
        status = await (await js.key_value(bucket)).status()
    _print_status(status, as_json, f"Bucket {bucket}, made {output.when(status.stream.created)}")


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
                ("History Kept", output.count(status.history)),
                ("Values Live", output.duration(config.max_age) if config.max_age else "for ever"),
                ("Maximum Value Size", output.size(config.max_msg_size)),
                ("Maximum Bucket Size", output.size(config.max_bytes)),
                ("Storage", config.storage.value),
                ("Compression", config.compression.value),
                ("Replicas", config.num_replicas),
                (
                    "Markers Live",
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
            "Replication": output.cluster_facts(status.stream.cluster),
        },
    )


@click.command("ls", cls=SharedCommand, example="jetlake kv ls PRICES 'tea.*' --values")
@click.argument("bucket", required=False, shell_complete=bucket_names)
@click.argument("patterns", nargs=-1)
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@click.option("-v", "--values", is_flag=True, help="Print values too.")
@json_option
@command
async def list_names(
    session: Session, bucket: str | None, patterns: tuple[str, ...], names_only: bool, values: bool, as_json: bool
) -> None:
    """List all buckets, or the keys of BUCKET: all, or those that match PATTERNS."""
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
        if values:
            async with handle.watch(*patterns, ignore_deletes=True) as watch:
                entries = await watch.current()
            print_entries(f"{output.plural(len(entries), 'key')} in {bucket}", entries, as_json)
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
        click.echo("No buckets. Make one: jetlake kv add PRICES")
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


@click.command("compact", cls=SharedCommand, example="jetlake kv compact PRICES --older-than 1h --force")
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
        confirm(f"Remove what is left of deleted keys from {bucket}?", force)
        compacted = await handle.purge_deletes(older_than / NANOSECONDS_PER_SECOND)
    output.tell(f"Compacted: {output.plural(compacted, 'deleted key')}", {"keys": compacted}, as_json)
