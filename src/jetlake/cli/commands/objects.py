"""`jetlake object …`: object stores and the objects in them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.choosing import pick
from jetlake.cli.keyboard import standard_input
from jetlake.cli.message_content import headers_of, headers_option
from jetlake.cli.name_completion import object_names, store_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION, PAIR, SIZE
from jetlake.client.objects.config import ObjectStoreStatus
from jetlake.client.objects.info import ObjectInfo
from jetlake.errors import ObjectNotFoundError
from jetlake.model.encoding.durations import seconds

if TYPE_CHECKING:
    from jetlake.client.objects.store import ObjectStore

_bucket = click.argument("bucket", shell_complete=store_names)
_name = click.argument("name", shell_complete=object_names)


@click.group("object", cls=SharedGroup)
def objects() -> None:
    """Store files and other content of any size in object stores."""


@objects.command("add", example="jetlake object add FILES --ttl 30d --max-bucket-size 10GB")
@click.argument("bucket")
@click.option("--ttl", type=DURATION, help="Lifetime of an object.")
@click.option("--max-bucket-size", "max_bytes", type=SIZE, help="Maximum size of the object store.")
@click.option("--storage", type=click.Choice(["file", "memory", "f", "m"]), help="Where to store it.")
@click.option("--replicas", "num_replicas", type=click.IntRange(1), metavar="N", help="Replicas in a cluster.")
@click.option("--compress", is_flag=True, help="Compress stored objects.")
@click.option("--description", metavar="TEXT", help="Description.")
@click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated.")
@click.option("--tags", multiple=True, metavar="TAG", help="Place it on servers with this tag; may be repeated.")
@click.option("--cluster", metavar="CLUSTER", help="Place it in this cluster.")
@json_option
@command
async def add(session: Session, bucket: str, compress: bool, as_json: bool, **options: Any) -> None:
    """Create object store BUCKET."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    tags, cluster = given.pop("tags", ()), given.pop("cluster", None)
    if tags or cluster:
        given["placement"] = {"cluster": cluster or "", "tags": list(tags)}
    if "storage" in given:
        given["storage"] = {"f": "file", "m": "memory"}.get(given["storage"], given["storage"])
    if "ttl" in given:
        given["ttl"] = seconds(given["ttl"])
    if "metadata" in given:
        given["metadata"] = dict(given["metadata"])
    if compress:
        given["compression"] = "s2"
    async with session.jetstream() as js:
        made = await js.create_object_store(bucket, **given)
        _print_status(await made.status(), as_json, f"Created object store {bucket}")


@objects.command("edit", example="jetlake object edit FILES --ttl 60d")
@_bucket
@click.option("--ttl", type=DURATION, help="Lifetime of an object.")
@click.option("--max-bucket-size", "max_bytes", type=SIZE, help="Maximum size of the object store.")
@click.option("--replicas", "num_replicas", type=click.IntRange(1), metavar="N", help="Replicas in a cluster.")
@click.option("--description", metavar="TEXT", help="Description.")
@click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated.")
@click.option("--compress/--no-compress", default=None, help="Whether objects that are stored are compressed.")
@json_option
@command
async def edit(session: Session, bucket: str, compress: bool | None, as_json: bool, **options: Any) -> None:
    """Change the configuration of object store BUCKET."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "ttl" in fields:
        fields["max_age"] = seconds(fields.pop("ttl"))
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    if compress is not None:
        fields["compression"] = "s2" if compress else "none"
    if not fields:
        fail("nothing to change; use an option such as --ttl 60d", EXIT_USAGE)
    async with session.jetstream() as js:
        store = await js.object_store(bucket)
        await store.stream.update(**fields)
        _print_status(await store.status(), as_json, f"Updated object store {bucket}")


@objects.command("put", example="jetlake object put FILES report.pdf --name reports/2026.pdf")
@_bucket
@click.argument("file", type=click.Path(dir_okay=False), default="-")
@click.option("--name", metavar="NAME", help="Name of the object. Default: the file's name.")
@click.option("--description", metavar="TEXT", default="", help="Description.")
@headers_option
@click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated.")
@click.option("--chunk-size", type=SIZE, help="Size of a chunk.  [default: 128 KiB]")
@click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal.")
@force_option
@json_option
@command
async def put(
    session: Session,
    bucket: str,
    file: str,
    name: str | None,
    description: str,
    headers: tuple[tuple[str, str], ...],
    metadata: tuple[tuple[str, str], ...],
    chunk_size: int | None,
    progress: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Store FILE in BUCKET; without it, or as -, standard input, which needs --name.

    At a terminal, it asks before it replaces an object.
    """
    if file == "-" and not name:
        fail("name a file; standard input needs --name", EXIT_USAGE)
    async with session.jetstream() as js:
        store = await js.object_store(bucket)
        if sys.stdin.isatty() and not force and await _is_stored(store, name or Path(file).name):
            confirm(f"Replace {bucket} > {name or Path(file).name}?", force)
        with output.Bar(f"Storing {name or file}", 0, is_shown=progress) as bar:
            info = await store.put(
                name or Path(file).name,
                standard_input() if file == "-" else Path(file),
                description=description,
                headers=headers_of(headers),
                metadata=dict(metadata),
                chunk_size=chunk_size,
                progress=bar.show,
            )
    _print_info(info, as_json, f"Stored {bucket} > {info.name}")


async def _is_stored(store: ObjectStore, name: str) -> bool:
    try:
        await store.info(name)
    except ObjectNotFoundError:
        return False
    return True


@objects.command("get", example="jetlake object get FILES report.pdf -O /tmp/report.pdf")
@_bucket
@_name
@click.option("-O", "--output", "target", metavar="FILE", help="File to write; - for standard output.")
@click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal.")
@force_option
@json_option
@command
async def get(
    session: Session, bucket: str, name: str, target: str | None, progress: bool, force: bool, as_json: bool
) -> None:
    """Write the content of object NAME to a file, by default with the object's name."""
    target = target or Path(name).name
    if target != "-":
        _check_target(target, force)
    async with session.jetstream() as js:
        store = await js.object_store(bucket)
        with output.Bar(f"Reading {name}", 0, is_shown=progress) as bar:
            if target == "-":
                async with store.open(name, progress=bar.show) as content:
                    async for chunk in content:
                        sys.stdout.buffer.write(chunk)
                return
            info = await store.get_file(name, target, progress=bar.show)
    sentence = f"Wrote {bucket} > {name} to {target}: {output.size(info.size)}"
    output.tell(sentence, {"file": target, "object": info}, as_json)


def _check_target(target: str, force: bool) -> None:
    if not Path(target).parent.is_dir():
        fail(f"can't write {target}: directory {Path(target).parent} does not exist")
    if Path(target).is_dir():
        fail(f"{target or '.'} is a directory; name the file with --output", EXIT_USAGE)
    if Path(target).exists():
        confirm(f"Overwrite {target}?", force)


@objects.command("info", example="jetlake object info FILES report.pdf")
@click.argument("bucket", required=False, shell_complete=store_names)
@click.argument("name", required=False, shell_complete=object_names)
@json_option
@command
async def show(session: Session, bucket: str | None, name: str | None, as_json: bool) -> None:
    """Show object NAME, or the object store BUCKET itself."""
    async with session.jetstream() as js:
        if not bucket:
            bucket = pick("object store", await js.object_store_names(), "List object stores: jetlake object ls")
        store = await js.object_store(bucket)
        if name is None:
            status = await store.status()
            _print_status(status, as_json, f"Object store {bucket}, created {output.when(status.stream.created)}")
        else:
            _print_info(await store.info(name), as_json, f"{bucket} > {name}")


def _print_info(info: ObjectInfo, as_json: bool, title: str) -> None:
    if as_json:
        output.print_json(info)
        return
    link = info.link
    output.print_facts(
        title,
        {
            "Object": [
                ("Description", info.description),
                ("Size", output.size(info.size)),
                ("Modified", f"{info.modified:%Y-%m-%d %H:%M:%S}"),
                ("Chunks", output.count(info.chunks)),
                ("Digest", info.digest),
                ("Link to", f"{link.bucket} > {link.name or 'all objects'}" if link else None),
                *((f"Header {key}", ", ".join(values)) for key, values in info.headers.items()),
                *((f"Metadata {key}", value) for key, value in info.metadata.items()),
            ]
        },
    )


def _print_status(status: ObjectStoreStatus, as_json: bool, title: str) -> None:
    if as_json:
        output.print_json(status)
        return
    config = status.stream.config
    output.print_facts(
        title,
        {
            "Configuration": [
                ("Description", status.description),
                ("TTL", output.duration(config.max_age)),
                ("Maximum Size", output.size(config.max_bytes)),
                ("Storage", config.storage.value),
                ("Compression", config.compression.value),
                ("Replicas", config.num_replicas),
                ("Sealed", output.yes_no(status.is_sealed)),
            ],
            "State": [
                ("Bytes", output.size(status.bytes)),
                ("Last Change", output.when(status.stream.state.last_ts)),
            ],
            "Cluster Information": output.cluster_facts(status.stream.cluster),
        },
    )


@objects.command("ls", example="jetlake object ls FILES")
@click.argument("bucket", required=False, shell_complete=store_names)
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@json_option
@command
async def list_objects(session: Session, bucket: str | None, names_only: bool, as_json: bool) -> None:
    """List all object stores, or the objects in BUCKET."""
    async with session.jetstream() as js:
        if bucket is None:
            names = await js.object_store_names()
            if names_only:
                output.print_names(names, as_json)
            else:
                _print_stores([await (await js.object_store(name)).status() for name in names], as_json)
            return
        found = sorted(await (await js.object_store(bucket)).list(), key=lambda info: info.name)
    if names_only:
        output.print_names([info.name for info in found], as_json)
    elif as_json:
        output.print_json(found)
    elif not found:
        click.echo(f"No objects in {bucket}. Store one: jetlake object put {bucket} FILE")
    else:
        output.print_table(
            f"{output.plural(len(found), 'object')} in {bucket}",
            ["Name", "Size", "Modified", "Description"],
            [[one.name, output.size(one.size), f"{one.modified:%Y-%m-%d %H:%M:%S}", one.description] for one in found],
            numbers=[1],
            spare=[3, 2],
        )


def _print_stores(statuses: list[ObjectStoreStatus], as_json: bool) -> None:
    if as_json:
        output.print_json(statuses)
    elif not statuses:
        click.echo("No object stores. Create one: jetlake object add FILES")
    else:
        output.print_table(
            "Object stores",
            ["Bucket", "Description", "Size", "Sealed", "Last change"],
            [
                [
                    one.bucket,
                    one.description,
                    output.size(one.bytes),
                    output.yes_no(one.is_sealed),
                    output.when(one.stream.state.last_ts),
                ]
                for one in statuses
            ],
            numbers=[2],
            spare=[1, 3, 4],
        )


@objects.command("rm", example="jetlake object rm FILES report.pdf --force")
@_bucket
@click.argument("name", required=False, shell_complete=object_names)
@force_option
@json_option
@command
async def remove(session: Session, bucket: str, name: str | None, force: bool, as_json: bool) -> None:
    """Delete object NAME, or without a name the whole object store BUCKET."""
    async with session.jetstream() as js:
        store = await js.object_store(bucket)
        if name is None:
            confirm(f"Delete object store {bucket} with all its objects?", force)
            await js.delete_object_store(bucket)
        else:
            confirm(f"Delete {bucket} > {name}?", force)
            await store.delete(name)
    what = f"object store {bucket}" if name is None else f"{bucket} > {name}"
    output.tell(f"Deleted {what}", {"bucket": bucket, "removed": name or bucket}, as_json)


@objects.command("seal", example="jetlake object seal FILES --force")
@_bucket
@force_option
@json_option
@command
async def seal(session: Session, bucket: str, force: bool, as_json: bool) -> None:
    """Seal object store BUCKET: nothing in it can change afterwards. This can't be undone."""
    async with session.jetstream() as js:
        store = await js.object_store(bucket)
        confirm(f"Permanently seal object store {bucket}?", force)
        await store.seal()
    output.tell(f"Sealed object store {bucket}", {"bucket": bucket, "sealed": True}, as_json)


@objects.command("watch", example="jetlake object watch FILES --updates")
@_bucket
@click.option("--updates", is_flag=True, help="Start with the next change.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N changes.")
@json_option
@command
async def watch(session: Session, bucket: str, updates: bool, count: int | None, as_json: bool) -> None:
    """Print the objects of BUCKET and each change until Ctrl-C."""
    async with session.jetstream(stay=True) as js:
        store = await js.object_store(bucket)
        number = 0
        async with store.watch(updates_only=updates) as changes:
            click.echo(f"Watching {bucket}; press Ctrl-C to stop", err=True)
            async for info in changes:
                number += 1
                click.echo(msgspec.json.encode(info) if as_json else _change(info))
                if number == count:
                    break


def _change(info: ObjectInfo) -> str:
    where = f"{info.bucket} > {info.name}"
    moment = f"[{info.modified:%Y-%m-%d %H:%M:%S}]"
    if info.is_deleted:
        return f"{moment} DELETE {where}"
    return f"{moment} PUT {where}: {output.size(info.size)} in {output.plural(info.chunks, 'chunk')}"
