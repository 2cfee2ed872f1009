"""`jetlake stream …`: make, list, look at, change, empty and remove streams and their messages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION, PAIR, SIZE
from jetlake.errors import ConfigError
from jetlake.model.encoding.codec import decode_strict
from jetlake.model.stream import StreamConfig, StreamInfo, StreamSourceInfo

__all__ = ["read_config", "stream"]


@click.group(cls=SharedGroup)
def stream() -> None:
    """Make, list, look at, change, empty and remove streams."""


def _config_options(function: Any) -> Any:
    """What a stream can be told; add and edit take the same."""
    options = [
        click.option("--subjects", multiple=True, metavar="LIST", help="Subjects to capture, separated by commas."),
        click.option("--storage", type=click.Choice(["file", "memory", "f", "m"]), help="Where messages are kept."),
        click.option(
            "--retention",
            type=click.Choice(["limits", "interest", "work", "workqueue"]),
            help="When messages go: by limits, when all consumers have them, when one has.",
        ),
        click.option("--discard", type=click.Choice(["old", "new"]), help="What a full stream does."),
        click.option("--discard-per-subject/--no-discard-per-subject", "discard_new_per_subject", default=None),
        click.option("--max-msgs", type=int, metavar="N", help="Most messages; -1 unlimited."),
        click.option("--max-msgs-per-subject", type=int, metavar="N", help="Most messages of one subject."),
        click.option("--max-bytes", type=SIZE, help="Most bytes, like 1GB."),
        click.option("--max-age", type=DURATION, help="Longest life of a message, like 7d."),
        click.option("--max-msg-size", type=SIZE, help="Largest message."),
        click.option("--max-consumers", type=int, metavar="N", help="Most consumers."),
        click.option("--dupe-window", "duplicate_window", type=DURATION, help="How long message ids are remembered."),
        click.option("--replicas", "num_replicas", type=int, metavar="N", help="Copies in a cluster."),
        click.option("--ack/--no-ack", "ack", default=None, help="Whether publishers get an answer."),
        click.option("--allow-direct/--no-allow-direct", "allow_direct", default=None, help="Answer direct gets."),
        click.option("--allow-rollup/--no-allow-rollup", "allow_rollup_hdrs", default=None, help="Allow roll-ups."),
        click.option("--deny-delete", is_flag=True, default=None, help="Refuse to delete messages, for good."),
        click.option("--deny-purge", is_flag=True, default=None, help="Refuse to purge, for good."),
        click.option("--compression", type=click.Choice(["none", "s2"]), help="How blocks are compressed."),
        click.option("--first-sequence", "first_seq", type=int, metavar="N", help="Sequence of the first message."),
        click.option("--mirror", metavar="STREAM", help="Be a copy of this stream."),
        click.option("--source", "sources", multiple=True, metavar="STREAM", help="Copy from this; may be repeated."),
        click.option("--description", metavar="TEXT"),
        click.option("--metadata", type=PAIR, multiple=True, help="Free data; may be repeated."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


_SHORT = {"f": "file", "m": "memory", "work": "workqueue"}


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """The configuration's fields from the options that were given."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "subjects" in fields:
        fields["subjects"] = tuple(one.strip() for text in fields["subjects"] for one in text.split(",") if one.strip())
    for name in ("storage", "retention"):
        if name in fields:
            fields[name] = _SHORT.get(fields[name], fields[name])
    if "mirror" in fields:
        fields["mirror"] = {"name": fields["mirror"]}
    if "sources" in fields:
        fields["sources"] = tuple({"name": name} for name in fields["sources"])
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    if "ack" in fields:
        fields["no_ack"] = not fields.pop("ack")
    return fields


def _with_fields(config: StreamConfig, fields: dict[str, Any]) -> StreamConfig:
    return msgspec.convert({**msgspec.to_builtins(config), **fields}, StreamConfig)


def read_config(file: str, kind: Any) -> Any:
    """A configuration from a JSON file."""
    try:
        return decode_strict(kind, sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None


@stream.command("add")
@click.argument("name")
@_config_options
@click.option("--config", metavar="FILE", help="Take the configuration from a JSON file; options win over it.")
@click.option("--defaults", is_flag=True, help="Take defaults without asking (they are always taken).", hidden=True)
@json_option
@command
async def add(session: Session, name: str, config: str | None, defaults: bool, as_json: bool, **options: Any) -> None:
    """Make a stream NAME."""
    base = read_config(config, StreamConfig) if config else StreamConfig()
    wanted = _with_fields(base, {**_fields(options), "name": name})
    if not wanted.subjects and not wanted.mirror and not wanted.sources and sys.stdin.isatty():
        text = click.prompt("Subjects to capture, separated by commas", default=name, err=True)
        wanted = _with_fields(wanted, _fields({"subjects": (text,)}))
    async with session.jetstream() as js:
        created = await js.create_stream(wanted)
        _print_info(await created.info(), as_json, f"Stream {name} was made")


@stream.command("edit")
@click.argument("name", shell_complete=stream_names)
@_config_options
@click.option("--config", metavar="FILE", help="Take the whole configuration from a JSON file; options win over it.")
@force_option
@json_option
@command
async def edit(session: Session, name: str, config: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Change the configuration of stream NAME."""
    fields = _fields(options)
    if not fields and not config:
        fail("nothing to change; give an option such as --max-age 7d", EXIT_USAGE)
    async with session.jetstream() as js:
        handle = await js.stream(name)
        base = read_config(config, StreamConfig) if config else handle.config
        await handle.update(_with_fields(base, {**fields, "name": name}))
        _print_info(await handle.info(), as_json, f"Stream {name} was changed")


@stream.command("ls")
@click.option("--subject", metavar="SUBJECT", default="", help="Only streams that take this subject.")
@click.option("-n", "--names", is_flag=True, help="Only the names.")
@json_option
@command
async def list_streams(session: Session, subject: str, names: bool, as_json: bool) -> None:
    """List streams."""
    async with session.jetstream() as js:
        if names:
            found = await js.stream_names(subject=subject)
            output.print_json(found) if as_json else click.echo("".join(f"{one}\n" for one in found), nl=False)
            return
        infos = await js.streams(subject=subject)
    if as_json:
        output.print_json(infos)
    elif not infos:
        click.echo("No streams. Make one: jetlake stream add ORDERS --subjects 'orders.>'")
    else:
        output.print_table(
            "Streams",
            ["Name", "Subjects", "Retention", "Storage", "Messages", "Size", "Consumers", "Last message"],
            [_row(info) for info in infos],
            numbers=[4, 5, 6],
            spare=[3, 2, 1, 7],
        )


def _row(info: StreamInfo) -> list[str]:
    config, state = info.config, info.state
    return [
        config.name,
        ", ".join(config.subjects),
        config.retention.value,
        config.storage.value,
        output.count(state.messages),
        output.size(state.bytes),
        output.count(state.consumer_count),
        output.when(state.last_ts),
    ]


@stream.command("info")
@click.argument("name", shell_complete=stream_names)
@json_option
@command
async def info(session: Session, name: str, as_json: bool) -> None:
    """Show the configuration and state of stream NAME."""
    async with session.jetstream() as js:
        _print_info((await js.stream(name)).cached_info, as_json, f"Stream {name}, made {{created}}")


def _print_info(info: StreamInfo, as_json: bool, title: str) -> None:
    if as_json:
        output.print_json(info)
        return
    config, state = info.config, info.state
    output.print_facts(
        title.format(created=output.when(info.created)),
        {
            "Configuration": [
                ("Description", config.description),
                ("Subjects", ", ".join(config.subjects)),
                ("Retention", config.retention.value),
                ("Storage", config.storage.value),
                ("Replicas", config.num_replicas),
                ("Discard Policy", config.discard.value),
                ("Acknowledgements", output.yes_no(not config.no_ack)),
                ("Direct Get", output.yes_no(config.allow_direct)),
                ("Duplicate Window", output.duration(config.duplicate_window)),
                ("Maximum Messages", output.count(config.max_msgs)),
                ("Maximum Per Subject", output.count(config.max_msgs_per_subject)),
                ("Maximum Bytes", output.size(config.max_bytes)),
                ("Maximum Age", output.duration(config.max_age) if config.max_age else "unlimited"),
                ("Maximum Message Size", output.size(config.max_msg_size)),
                ("Maximum Consumers", output.count(config.max_consumers)),
                *((f"Metadata {key}", value) for key, value in config.metadata.items() if not key.startswith("_nats.")),
            ],
            "State": [
                ("Messages", output.count(state.messages)),
                ("Bytes", output.size(state.bytes)),
                ("FirstSeq", f"{output.count(state.first_seq)} @ {output.when(state.first_ts)}"),
                ("LastSeq", f"{output.count(state.last_seq)} @ {output.when(state.last_ts)}"),
                ("Deleted Messages", state.num_deleted or None),
                ("Lost Messages", len(state.lost.msgs or ()) if state.lost else None),
                ("Subjects", output.count(state.num_subjects)),
                ("Active Consumers", output.count(state.consumer_count)),
            ],
            "Replication": output.cluster_facts(info.cluster),
            "Copied from": [
                (f"{kind} {source.name}", _copying(source))
                for kind, sources in (("Mirror of", (info.mirror,) if info.mirror else ()), ("Source", info.sources))
                for source in sources
            ],
        },
    )


def _copying(source: StreamSourceInfo) -> str:
    """How far a mirror or source is."""
    heard = f"heard {output.duration(source.active)} ago" if source.active >= 0 else "not heard yet"
    trouble = f", {source.error.description}" if source.error is not None else ""
    return f"{output.count(source.lag)} to come, {heard}{trouble}"


@stream.command("subjects")
@click.argument("name", shell_complete=stream_names)
@click.option("--filter", "pattern", default=">", show_default=True, help="Only subjects that match.")
@json_option
@command
async def subjects(session: Session, name: str, pattern: str, as_json: bool) -> None:
    """Show the subjects that stream NAME holds and how many messages of each."""
    async with session.jetstream() as js:
        info = await (await js.stream(name)).info(subjects_filter=pattern)
    held = dict(sorted(info.state.subjects.items(), key=lambda pair: (-pair[1], pair[0])))
    if as_json:
        output.print_json(held)
    else:
        rows = [[subject, output.count(number)] for subject, number in held.items()]
        title = f"{output.plural(len(held), 'subject')} in {name}"
        output.print_table(title, ["Subject", "Messages"], rows, numbers=[1])


@stream.command("rm")
@click.argument("name", shell_complete=stream_names)
@force_option
@command
async def remove(session: Session, name: str, force: bool) -> None:
    """Remove stream NAME with all its messages and consumers."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Remove stream {name} with {output.plural((await handle.info()).state.messages, 'message')}?", force)
        await handle.delete()
    click.echo(f"Stream {name} was removed")


@stream.command("purge")
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
    output.print_json({"purged": purged}) if as_json else click.echo(f"Removed: {output.plural(purged, 'message')}")


@stream.command("get")
@click.argument("name", shell_complete=stream_names)
@click.argument("sequence", type=click.IntRange(1), required=False)
@click.option("-S", "--last-for", default="", metavar="SUBJECT", help="The last message of a subject.")
@click.option("--next-for", default="", metavar="SUBJECT", help="The next message of a subject from the sequence on.")
@json_option
@command
async def get(session: Session, name: str, sequence: int | None, last_for: str, next_for: str, as_json: bool) -> None:
    """Show one message of stream NAME."""
    if sequence is None and not last_for and not next_for:
        fail("which message? give a sequence, --last-for or --next-for", EXIT_USAGE)
    async with session.jetstream() as js:
        handle = await js.stream(name)
        if last_for:
            message = await handle.get(last_by_subject=last_for)
        elif next_for:
            message = await handle.get(sequence or 0, next_by_subject=next_for)
        else:
            message = await handle.get(sequence or 0)
    if as_json:
        headers = [list(pair) for pair in message.headers.items()]
        output.print_json(
            {
                "subject": message.subject,
                "seq": message.sequence,
                "time": message.time,
                "headers": headers,
                "data": message.data,
            }
        )
        return
    click.echo(f"Item: {name}#{message.sequence} received {output.when(message.time)} on subject {message.subject}\n")
    for key, value in message.headers.items():
        click.echo(f"{key}: {value}")
    click.echo(message.data)


@stream.command("rmm")
@click.argument("name", shell_complete=stream_names)
@click.argument("sequence", type=click.IntRange(1))
@click.option("--no-erase", is_flag=True, help="Only mark it as deleted; leave its bytes on disk.")
@force_option
@command
async def remove_message(session: Session, name: str, sequence: int, no_erase: bool, force: bool) -> None:
    """Remove one message from stream NAME."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Remove message {sequence} of stream {name}?", force)
        await handle.delete_message(sequence, erase=not no_erase)
    click.echo(f"Message {sequence} was removed from {name}")
