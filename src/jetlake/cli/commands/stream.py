"""`jetlake stream …`: create, change, list, show, back up and delete streams."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.choosing import HIDDEN, chosen_stream
from jetlake.cli.commands.stream_messages import get, remove_message, view
from jetlake.cli.commands.stream_state import cluster, gaps, graph, print_state, state
from jetlake.cli.config_changes import config_changes, may_apply
from jetlake.cli.keyboard import ask
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.stream_conditions import condition_options, conditions
from jetlake.cli.values import DURATION, PAIR, SIZE, edited_config, read_config, save_config, with_fields
from jetlake.client.api.config_options import RestoreOptions
from jetlake.errors import ApiError, ConfigError
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.stream import Placement, StreamConfig, StreamInfo, StreamSource, StreamSourceInfo

if TYPE_CHECKING:
    from jetlake.client import JetStream


@click.group(cls=SharedGroup)
def stream() -> None:
    """Create, list, inspect, edit, purge and delete streams."""


_name = click.argument("name", required=False, shell_complete=stream_names)
_all = click.option("-a", "--all", "show_all", is_flag=True, help="Also the streams of buckets and object stores.")

_OPTIONS = (
    click.option("--subjects", multiple=True, metavar="LIST", help="Subjects to capture, separated by commas."),
    click.option("--storage", type=click.Choice(["file", "memory", "f", "m"]), help="Where to store messages."),
    click.option(
        "--retention",
        type=click.Choice(["limits", "interest", "work", "workq", "workqueue"]),
        help="Retention policy: remove messages by limits, when all consumers acked, or when one did.",
    ),
    click.option(
        "--discard",
        type=click.Choice(["old", "new"]),
        help="Whether a full stream drops old messages or refuses new ones.",
    ),
    click.option(
        "--discard-per-subject/--no-discard-per-subject",
        "discard_new_per_subject",
        default=None,
        help="Also refuse new messages at the limit per subject.",
    ),
    click.option("--max-msgs", type=int, metavar="N", help="Maximum messages; -1 for unlimited."),
    click.option("--max-msgs-per-subject", type=int, metavar="N", help="Maximum messages per subject."),
    click.option("--max-bytes", type=SIZE, help="Maximum size, like 1GB."),
    click.option("--max-age", type=DURATION, help="Maximum age of a message, like 7d."),
    click.option("--max-msg-size", type=SIZE, help="Maximum size of a message."),
    click.option("--max-consumers", type=int, metavar="N", help="Maximum consumers."),
    click.option("--dupe-window", "duplicate_window", type=DURATION, help="How long message ids are remembered."),
    click.option("--replicas", "num_replicas", type=int, metavar="N", help="Replicas in a cluster."),
    click.option("--ack/--no-ack", "ack", default=None, help="Acknowledge publishes."),
    click.option("--allow-direct/--no-allow-direct", "allow_direct", default=None, help="Answer direct gets."),
    click.option("--allow-rollup/--no-allow-rollup", "allow_rollup_hdrs", default=None, help="Allow roll-ups."),
    click.option("--allow-msg-ttl/--no-allow-msg-ttl", "allow_msg_ttl", default=None, help="Allow TTLs per message."),
    click.option(
        "--allow-counter/--no-allow-counter", "allow_msg_counter", default=None, help="Make each subject a counter."
    ),
    click.option("--allow-batch/--no-allow-batch", "allow_atomic", default=None, help="Allow atomic batches."),
    click.option("--allow-fast-batch/--no-allow-fast-batch", "allow_batched", default=None, help="Allow fast batches."),
    click.option(
        "--allow-schedules/--no-allow-schedules", "allow_msg_schedules", default=None, help="Allow schedules."
    ),
    click.option(
        "--deny-delete/--no-deny-delete", "deny_delete", default=None, help="Refuse to delete messages, for good."
    ),
    click.option("--deny-purge/--no-deny-purge", "deny_purge", default=None, help="Refuse to purge, for good."),
    click.option("--compression", type=click.Choice(["none", "s2"]), help="Compression of stored blocks."),
    click.option("--first-sequence", "first_seq", type=int, metavar="N", help="Sequence of the first message."),
    click.option("--mirror", metavar="STREAM", help="Create a mirror of this stream."),
    click.option(
        "--source", "sources", multiple=True, metavar="STREAM", help="Copy from this source; may be repeated."
    ),
    click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="Place it on servers with this tag; may be repeated."
    ),
    click.option("--cluster", metavar="CLUSTER", help="Place it in this cluster."),
    click.option(
        "--allow-mirror-direct/--no-allow-mirror-direct",
        "mirror_direct",
        default=None,
        help="Answer direct gets for the origin of this mirror.",
    ),
    click.option(
        "--subject-del-markers-ttl",
        "subject_delete_marker_ttl",
        type=DURATION,
        help="Leave a marker of this lifetime where limits remove the last message of a subject.",
    ),
    click.option("--transform-source", metavar="SUBJECT", help="Subjects to transform."),
    click.option("--transform-destination", metavar="SUBJECT", help="The subjects that replace them."),
    click.option("--republish-source", metavar="SUBJECT", help="Publish stored messages with these subjects again."),
    click.option("--republish-destination", metavar="SUBJECT", help="The subjects they are published to."),
    click.option("--republish-headers", is_flag=True, default=None, help="Publish only their headers again."),
    click.option(
        "--limit-consumer-inactive", type=DURATION, help="Longest inactive threshold of a consumer of this stream."
    ),
    click.option(
        "--limit-consumer-max-pending", type=int, metavar="N", help="Most messages awaiting acks of a consumer of it."
    ),
    click.option("--persist-mode", type=click.Choice(["default", "async"]), help="When messages are synced to disk."),
    click.option("--description", metavar="TEXT", help="Description."),
    click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated."),
)
_SHORT = {"f": "file", "m": "memory", "work": "workqueue", "workq": "workqueue"}


def config_options(function: Any) -> Any:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration's fields from the options that were given."""
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
    if fields.get("discard_new_per_subject"):
        fields.setdefault("discard", "new")
    _nest(fields)
    return fields


def _nest(fields: dict[str, Any]) -> None:
    """Put the options that belong to one field of the configuration together."""
    source, destination = fields.pop("transform_source", None), fields.pop("transform_destination", None)
    if bool(source) != bool(destination):
        raise ConfigError("--transform-source and --transform-destination need each other")
    if destination:
        fields["subject_transform"] = {"src": source, "dest": destination}
    source, destination = fields.pop("republish_source", None), fields.pop("republish_destination", None)
    headers_only = fields.pop("republish_headers", None)
    if (source or headers_only) and not destination:
        raise ConfigError("--republish-source and --republish-headers need --republish-destination")
    if destination:
        fields["republish"] = {"src": source or ">", "dest": destination, "headers_only": bool(headers_only)}
    tags, cluster = fields.pop("tags", ()), fields.pop("cluster", None)
    if tags or cluster:
        fields["placement"] = {"cluster": cluster or "", "tags": list(tags)}
    inactive, pending = fields.pop("limit_consumer_inactive", None), fields.pop("limit_consumer_max_pending", None)
    if inactive is not None or pending is not None:
        fields["consumer_limits"] = {"inactive_threshold": inactive or 0, "max_ack_pending": pending or 0}


def ask_name() -> str:
    """Ask for the stream's name."""
    name: str = ask("Stream name")
    return name


def ask_subjects(name: str) -> tuple[str, ...]:
    """Ask for the subjects, as the option has them."""
    return (ask("Subjects to capture, separated by commas", default=name),)


def ask_stream(name: str) -> dict[str, Any]:
    """Ask for what matters of a new stream; the answers by the names of the options."""

    def answer(question: str, default: str, kind: Any) -> Any:
        return ask(question, default=default, type=kind)

    return {
        "subjects": ask_subjects(name),
        "storage": answer("Storage", "file", click.Choice(["file", "memory"])),
        "retention": answer("Retention", "limits", click.Choice(["limits", "interest", "workqueue"])),
        "max_msgs": answer("Max messages (-1 for unlimited)", "-1", int),
        "max_msgs_per_subject": answer("Max messages per subject (-1 for unlimited)", "-1", int),
        "max_bytes": answer("Max bytes, such as 1GB (-1 for unlimited)", "-1", SIZE),
        "max_age": answer("Max age, such as 7d (0 for unlimited)", "0", DURATION),
        "max_msg_size": answer("Max message size, such as 1MB (-1 for unlimited)", "-1", SIZE),
        "discard": answer("Discard policy", "old", click.Choice(["old", "new"])),
        "duplicate_window": answer("Duplicate window", "2m", DURATION),
        "num_replicas": answer("Replicas", "1", int),
    }


def print_info(info: StreamInfo, as_json: bool, title: str) -> None:
    """Print a stream; `{created}` in the title is the creation time."""
    if as_json:
        output.print_json(info)
        return
    config, state, copied = info.config, info.state, info.mirror
    output.print_facts(
        title.format(created=output.when(info.created)),
        {
            "": [
                ("Description", config.description),
                ("Subjects", ", ".join(config.subjects)),
                ("Replicas", config.num_replicas),
                ("Sealed", "true" if config.sealed else None),
                ("Storage", output.words(config.storage)),
                ("Compression", output.words(config.compression) if config.compression != "none" else None),
                ("Persistence Mode", output.words(config.persist_mode) if config.persist_mode != "default" else None),
                ("First Sequence", output.count(config.first_seq) if config.first_seq else None),
                ("Placement Cluster", config.placement.cluster if config.placement else None),
                ("Placement Tags", ", ".join(config.placement.tags) if config.placement else None),
            ],
            "Options": _options(config),
            "Limits": [
                ("Maximum Messages", output.count(config.max_msgs)),
                ("Maximum Per Subject", output.count(config.max_msgs_per_subject or -1)),
                ("Maximum Bytes", output.size(config.max_bytes)),
                ("Maximum Age", output.duration(config.max_age) if config.max_age else "unlimited"),
                ("Maximum Message Size", output.size(config.max_msg_size)),
                ("Maximum Consumers", output.count(config.max_consumers)),
                ("Consumer Inactive Threshold", output.optional_duration(config.consumer_limits.inactive_threshold)),
                ("Consumer Max Ack Pending", config.consumer_limits.max_ack_pending or None),
            ],
            "Metadata": output.metadata_facts(config.metadata),
            "Replication": [
                ("Mirror", _origin(config.mirror) if config.mirror else None),
                ("Sources", "; ".join(map(_origin, config.sources))),
            ],
            "Cluster Information": output.cluster_facts(info.cluster),
            "Mirror Information": _copying(copied) if copied else [],
            "Source Information": [fact for source in info.sources for fact in _copying(source)],
            "State": [
                ("Messages", output.count(state.messages)),
                ("Bytes", output.size(state.bytes)),
                ("Lost Messages", len(state.lost.msgs or ()) if state.lost else None),
                ("First Sequence", _sequence(state.first_seq, state.first_ts)),
                ("Last Sequence", _sequence(state.last_seq, state.last_ts)),
                ("Deleted Messages", output.count(state.num_deleted) if state.num_deleted else None),
                ("Active Consumers", output.count(state.consumer_count)),
                ("Number of Subjects", output.count(state.num_subjects) if state.num_subjects else None),
            ],
        },
    )


def _options(config: StreamConfig) -> list[tuple[str, str | None]]:
    """List what a stream does with messages, in the words of `nats`."""
    transform, again = config.subject_transform, config.republish
    return [
        ("Subject Transform", f"{transform.src or '>'} to {transform.dest}" if transform else None),
        (
            "Republishing Headers" if again and again.headers_only else "Republishing",
            f"{again.src} to {again.dest}" if again else None,
        ),
        ("Retention", "Work Queue" if config.retention == "workqueue" else output.words(config.retention)),
        ("Acknowledgments", output.true_false(not config.no_ack)),
        ("Discard Policy", "New Per Subject" if config.discard_new_per_subject else output.words(config.discard)),
        ("Duplicate Window", output.duration(config.duplicate_window)),
        ("Direct Get", "true" if config.allow_direct else None),
        ("Mirror Direct Get", "true" if config.mirror_direct else None),
        ("Allows Batch Publish", output.true_false(config.allow_atomic)),
        ("Allows Fast Batch Publish", "true" if config.allow_batched else None),
        ("Allows Counters", output.true_false(config.allow_msg_counter)),
        ("Allows Msg Delete", output.true_false(not config.deny_delete)),
        ("Allows Per-Message TTL", output.true_false(config.allow_msg_ttl)),
        ("Allows Purge", output.true_false(not config.deny_purge)),
        ("Allows Schedules", output.true_false(config.allow_msg_schedules)),
        ("Subject Delete Markers TTL", output.optional_duration(config.subject_delete_marker_ttl)),
        ("Allows Rollups", output.true_false(config.allow_rollup_hdrs)),
    ]


def _origin(source: StreamSource) -> str:
    """Write from where a stream copies, and where it began."""
    parts = [source.name]
    if source.opt_start_seq:
        parts.append(f"Start Seq: {source.opt_start_seq:,}")
    if source.opt_start_time is not None:
        parts.append(f"Start Time: {output.when(source.opt_start_time)}")
    if source.external is not None:
        parts.append(f"API Prefix: {source.external.api}")
        if source.external.deliver:
            parts.append(f"Delivery Prefix: {source.external.deliver}")
    return ", ".join(parts)


def _sequence(sequence: int, stored_at: str) -> str:
    """Write a sequence and when it was stored, if it was."""
    text = output.count(sequence)
    return text if stored_at == ZERO_TIME else f"{text} @ {output.when(stored_at)}"


def _copying(source: StreamSourceInfo) -> list[tuple[str, str | None]]:
    """List how far a mirror or source is."""
    filters = [("Subject Filter", source.filter_subject)] if source.filter_subject else []
    return [
        ("Stream Name", source.name),
        *filters,
        *(("Subject Filter and Transform", f"{one.src} to {one.dest or one.src}") for one in source.subject_transforms),
        ("Lag", output.count(source.lag)),
        ("Last Seen", f"{output.age(source.active / 1e9)} ago" if source.active >= 0 else "never"),
        ("Ext. API Prefix", source.external.api if source.external else None),
        ("Error", source.error.description if source.error is not None else None),
    ]


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


@stream.command("add", example="jetlake stream add ORDERS --subjects 'orders.>' --max-age 7d")
@click.argument("name", required=False)
@config_options
@click.option("--config", metavar="FILE", help="Read the configuration from a JSON file; options override it.")
@click.option("--defaults", is_flag=True, help="Do not prompt; use defaults for missing options.")
@click.option("--validate", "validates", is_flag=True, help="Only check the configuration; asks no server.")
@click.option("--output", "file", metavar="FILE", help="Only write the configuration to this file; - prints it.")
@json_option
@command
async def add(
    session: Session,
    name: str | None,
    config: str | None,
    defaults: bool,
    validates: bool,
    file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create stream NAME; without options, prompts for them on a terminal."""
    asks = sys.stdin.isatty() and not defaults
    if name is None:
        if not asks:
            fail("stream name is missing; for example: jetlake stream add ORDERS --subjects 'orders.>'", EXIT_USAGE)
        name = ask_name()
    fields = given_fields(options)
    if asks and not fields and not config:
        fields = given_fields(ask_stream(name))
    base = read_config(config, StreamConfig) if config else StreamConfig()
    if not config and fields.get("allow_direct") is None:
        fields["allow_direct"] = True  # As `nats` does.
    wanted = with_fields(base, {**fields, "name": name})
    if asks and not wanted.subjects and not wanted.mirror and not wanted.sources:
        wanted = with_fields(wanted, given_fields({"subjects": ask_subjects(name)}))
    if validates or file:
        _validated(wanted)
        save_config(wanted, file) if file else output.tell("Configuration is valid", {"valid": True}, as_json)
        return
    async with session.jetstream() as js:
        async with _overlaps_named(js, wanted):
            created = await js.create_stream(wanted)
        print_info(await created.info(), as_json, f"Created stream {name}")


def _validated(config: StreamConfig) -> None:
    """Check a configuration by the rules that a server without limits has.

    Raises:
        ApiError: the server would refuse it.
    """
    from jetlake.model.rules.stream_rules import check_stream_create

    check_stream_create(config)


@stream.command("copy", example="jetlake stream copy ORDERS RETURNS --subjects 'returns.>'")
@click.argument("source", shell_complete=stream_names)
@click.argument("name")
@config_options
@json_option
@command
async def copy(session: Session, source: str, name: str, as_json: bool, **options: Any) -> None:
    """Create stream NAME with the configuration of stream SOURCE, without its messages; options override it."""
    if name == source:
        fail(f"the copy of {name} needs another name", EXIT_USAGE)
    async with session.jetstream() as js:
        origin = (await js.stream(source)).config
        wanted = with_fields(origin, {"sealed": False, **given_fields(options), "name": name})
        async with _overlaps_named(js, wanted):
            created = await js.create_stream(wanted)
        print_info(await created.info(), as_json, f"Created stream {name} with the configuration of {source}")


@stream.command("edit", example="jetlake stream edit ORDERS --max-age 30d")
@_name
@config_options
@click.option("--no-mirror", "gone", flag_value="mirror", multiple=True, help="Stop mirroring; keep the messages.")
@click.option("--no-transform", "gone", flag_value="subject_transform", multiple=True, help="Remove the transform.")
@click.option("--no-republish", "gone", flag_value="republish", multiple=True, help="Stop republishing.")
@click.option("-i", "--interactive", is_flag=True, help="Edit the configuration as JSON in your editor.")
@click.option("--config", metavar="FILE", help="Read the whole configuration from a JSON file; options override it.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@force_option
@json_option
@command
async def edit(
    session: Session,
    name: str | None,
    gone: tuple[str, ...],
    interactive: bool,
    config: str | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Change the configuration of stream NAME; on a terminal, what changes is shown first."""
    fields = {**dict.fromkeys(gone), **given_fields(options)}
    if not fields and not config and not interactive:
        fail("nothing to change; use an option such as --max-age 7d, or --interactive", EXIT_USAGE)
    async with session.jetstream() as js:
        name = await chosen_stream(js, name)
        handle = await js.stream(name)
        base = read_config(config, StreamConfig) if config else handle.config
        if interactive:
            base = edited_config(base)
        wanted = with_fields(base, {**fields, "name": name})
        changes = config_changes(handle.config, wanted)
        if not may_apply(changes, f"stream {name}", dry_run=dry_run, force=force, as_json=as_json):
            return
        async with _overlaps_named(js, wanted):
            await handle.update(wanted)
        print_info(await handle.info(), as_json, f"Updated stream {name}")


@stream.command("seal", example="jetlake stream seal ORDERS --force")
@click.argument("name", shell_complete=stream_names)
@force_option
@json_option
@command
async def seal(session: Session, name: str, force: bool, as_json: bool) -> None:
    """Seal stream NAME: no message can be added, changed or removed afterwards. This can't be undone."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        confirm(f"Permanently seal stream {name}?", force)
        await handle.update(sealed=True)
        print_info(await handle.info(), as_json, f"Sealed stream {name}")


@stream.command("rm", example="jetlake stream rm ORDERS --force")
@_name
@force_option
@json_option
@command
async def remove(session: Session, name: str | None, force: bool, as_json: bool) -> None:
    """Delete stream NAME with all its messages and consumers."""
    async with session.jetstream() as js:
        name = await chosen_stream(js, name)
        handle = await js.stream(name)
        confirm(f"Delete stream {name} with {output.plural((await handle.info()).state.messages, 'message')}?", force)
        await handle.delete()
    output.tell(f"Deleted stream {name}", {"removed": name}, as_json)


@stream.command("purge", example="jetlake stream purge ORDERS --subject orders.test --force")
@_name
@click.option("--subject", default="", metavar="SUBJECT", help="Only messages whose subject matches.")
@click.option("--seq", "before", type=int, default=0, metavar="N", help="Only messages before this sequence.")
@click.option("--keep", type=int, default=0, metavar="N", help="Keep the newest N.")
@force_option
@json_option
@command
async def purge(
    session: Session, name: str | None, subject: str, before: int, keep: int, force: bool, as_json: bool
) -> None:
    """Remove messages from stream NAME."""
    async with session.jetstream() as js:
        name = await chosen_stream(js, name)
        handle = await js.stream(name)
        confirm(f"Purge stream {name}?", force)
        purged = await handle.purge(subject=subject, before=before, keep=keep)
    output.tell(f"Purged {output.plural(purged, 'message')} from stream {name}", {"purged": purged}, as_json)


_NONE = "No streams. Create one: jetlake stream add ORDERS --subjects 'orders.>'"

names_option = click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")


@stream.command("ls", example="jetlake stream ls --subject orders.new")
@click.option("--subject", metavar="SUBJECT", default="", help="Only streams that capture this subject.")
@_all
@names_option
@json_option
@command
async def list_streams(session: Session, subject: str, show_all: bool, names_only: bool, as_json: bool) -> None:
    """List streams; --all includes the streams of buckets and object stores."""
    async with session.jetstream() as js:
        if names_only:
            names = await js.stream_names(subject=subject)
            output.print_names([name for name in names if show_all or not name.startswith(HIDDEN)], as_json)
            return
        infos = _shown(await js.streams(subject=subject), show_all)
    if not infos and not as_json:
        click.echo(_NONE)
    else:
        _print_list("Streams", infos, as_json)


def _shown(infos: list[StreamInfo], show_all: bool) -> list[StreamInfo]:
    return [info for info in infos if show_all or not info.config.name.startswith(HIDDEN)]


def _print_list(title: str, infos: list[StreamInfo], as_json: bool) -> None:
    if as_json:
        output.print_json(infos)
        return
    output.print_table(
        title,
        ["Name", "Subjects", "Retention", "Storage", "Messages", "Size", "Consumers", "Last message"],
        [
            [
                info.config.name,
                ", ".join(info.config.subjects),
                info.config.retention.value,
                info.config.storage.value,
                output.count(info.state.messages),
                output.size(info.state.bytes),
                output.count(info.state.consumer_count),
                output.when(info.state.last_ts),
            ]
            for info in infos
        ],
        numbers=[4, 5, 6],
        spare=[3, 2, 1, 7],
    )


@stream.command("find", example="jetlake stream find --empty --idle 30d")
@click.option("--subject", metavar="SUBJECT", default="", help="Streams that capture this subject.")
@condition_options
@click.option("--invert", is_flag=True, help="List the streams that do not match instead.")
@_all
@names_option
@json_option
@command
async def find(session: Session, invert: bool, show_all: bool, names_only: bool, as_json: bool, **wanted: Any) -> None:
    """List the streams that match all of the options.

    An expression compares fields of a stream's configuration, state and info, as its JSON names them:
    'config.storage == "file" && "orders.>" in config.subjects && state.messages > 10'.
    """
    subject = wanted.pop("subject")
    tests = conditions(wanted)
    if not tests and not subject:
        fail("no condition given; use an option such as --empty or --idle 30d", EXIT_USAGE)
    async with session.jetstream() as js:
        infos = _shown(await js.streams(), show_all)
        taking = set(await js.stream_names(subject=subject))
    found = [info for info in infos if (info.config.name in taking and all(fits(info) for fits in tests)) is not invert]
    if names_only:
        output.print_names([info.config.name for info in found], as_json)
    elif not found and not as_json:
        click.echo("No matching streams")
    else:
        _print_list(f"{output.plural(len(found), 'stream')} of {len(infos):,}", found, as_json)


@stream.command("report", example="jetlake stream report --messages")
@click.option("--subject", metavar="SUBJECT", default="", help="Only streams that capture this subject.")
@click.option("--cluster", metavar="CLUSTER", help="Only streams in this cluster.")
@click.option("-o", "--consumers", "order", flag_value="consumers", help="Sort by number of consumers.")
@click.option("-m", "--messages", "order", flag_value="messages", help="Sort by number of messages.")
@click.option("-n", "--name", "order", flag_value="name", help="Sort by name.")
@click.option("-t", "--storage", "order", flag_value="storage", help="Sort by kind of storage.")
@click.option("-l", "--leaders", is_flag=True, help="Also count how many streams each server of a cluster leads.")
@click.option("-r", "--raw", is_flag=True, help="Print numbers and bytes as they are.")
@click.option("--dot", metavar="FILE", help="Also write mirrors and sources to this file, as a graph for GraphViz.")
@_all
@json_option
@command
async def report(
    session: Session,
    subject: str,
    cluster: str | None,
    order: str | None,
    leaders: bool,
    raw: bool,
    dot: str | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Compare streams, the largest first: messages, size, consumers, deleted and lost messages, replicas."""
    async with session.jetstream() as js:
        infos = sorted(_shown(await js.streams(subject=subject), show_all), key=_ORDERS[order or "size"])
    if cluster:
        infos = [info for info in infos if info.cluster is not None and info.cluster.name == cluster]
    if dot:
        await asyncio.to_thread(Path(dot).write_text, _dot(infos))
    if as_json:
        output.print_json(infos)
    else:
        print_report(infos, raw=raw)
        if leaders:
            output.print_leaders("streams", [info.cluster.leader if info.cluster else "" for info in infos])


_ORDERS: dict[str, Callable[[StreamInfo], Any]] = {
    "size": lambda info: -info.state.bytes,
    "consumers": lambda info: -info.state.consumer_count,
    "messages": lambda info: -info.state.messages,
    "name": lambda info: info.config.name,
    "storage": lambda info: (info.config.storage.value, info.config.name),
}


def _copies(info: StreamInfo) -> list[tuple[str, StreamSourceInfo]]:
    """List the mirror or the sources of a stream, each with what it is."""
    return [("mirror", info.mirror)] if info.mirror else [("source", source) for source in info.sources]


def _dot(infos: list[StreamInfo]) -> str:
    """Draw which stream copies which in the language of GraphViz."""
    edges = [
        f"  {output.quoted(copy.name)} -> {output.quoted(info.config.name)} [label={output.quoted(kind)}];"
        for info in infos
        for kind, copy in _copies(info)
    ]
    nodes = [f"  {output.quoted(info.config.name)};" for info in infos]
    return "\n".join(["digraph jetstream {", "  rankdir=LR;", *nodes, *edges, "}"]) + "\n"


def print_report(infos: list[StreamInfo], *, raw: bool = False) -> None:
    """Print the table of streams, and a second one of mirrors and sources if there are any."""
    count, size = (str, str) if raw else (output.count, output.size)
    if not infos:
        click.echo(_NONE)
        return
    total_bytes = sum(info.state.bytes for info in infos)
    output.print_table(
        f"{output.plural(len(infos), 'stream')}, {output.size(total_bytes)}",
        ["Stream", "Messages", "Size", "Subjects", "Consumers", "Deleted", "Lost", "Replicas", "Last message"],
        [
            [
                info.config.name,
                count(info.state.messages),
                size(info.state.bytes),
                count(info.state.num_subjects),
                count(info.state.consumer_count),
                count(info.state.num_deleted),
                count(len(info.state.lost.msgs or ()) if info.state.lost else 0),
                info.config.num_replicas,
                output.when(info.state.last_ts),
            ]
            for info in infos
        ],
        numbers=[1, 2, 3, 4, 5, 6, 7],
        spare=[7, 5, 3, 8, 4, 6],
    )
    copies = [
        [info.config.name, kind, source.name, count(source.lag), output.last_contact(source.active)]
        for info in infos
        for kind, source in _copies(info)
    ]
    if copies:
        output.print_table(
            "Mirrors and sources", ["Stream", "Kind", "Copied from", "Lag", "State"], copies, numbers=[3]
        )


@stream.command("info", example="jetlake stream info ORDERS")
@_name
@click.option("--state", "only_state", is_flag=True, help="Show only the state.")
@click.option("--no-select", is_flag=True, help="Do not ask for the name.")
@json_option
@command
async def show(session: Session, name: str | None, only_state: bool, no_select: bool, as_json: bool) -> None:
    """Show the configuration and state of stream NAME."""
    if no_select and not name:
        fail("stream name is missing. List streams: jetlake stream ls", EXIT_USAGE)
    async with session.jetstream() as js:
        name = await chosen_stream(js, name)
        if only_state:
            print_state((await js.stream(name)).cached_info, as_json)
            return
        print_info((await js.stream(name)).cached_info, as_json, f"Information for Stream {name} created {{created}}")


@stream.command("subjects", example="jetlake stream subjects ORDERS 'orders.eu.*' --sort name")
@_name
@click.argument("pattern", metavar="[FILTER]", required=False)
@click.option("--filter", "option", metavar="SUBJECT", help="Only subjects that match; as FILTER.")
@click.option("--sort", type=click.Choice(["name", "messages"]), default="messages", show_default=True)
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@names_option
@json_option
@command
async def subjects(
    session: Session,
    name: str | None,
    pattern: str | None,
    option: str | None,
    sort: str,
    reverse: bool,
    names_only: bool,
    as_json: bool,
) -> None:
    """Show the subjects in stream NAME that match FILTER, with their numbers of messages."""
    async with session.jetstream() as js:
        name = await chosen_stream(js, name)
        info = await (await js.stream(name)).info(subjects_filter=pattern or option or ">")

    def order(pair: tuple[str, int]) -> Any:
        return pair[0] if sort == "name" else (-pair[1], pair[0])

    held = dict(sorted(info.state.subjects.items(), key=order, reverse=reverse))
    if names_only:
        output.print_names(list(held), as_json)
    elif as_json:
        output.print_json(held)
    else:
        if not held:
            only = pattern or option or ">"
            click.echo(f"No subjects in {name}" + (f" that match {only}" if only != ">" else ""))
            return
        rows = [[subject, output.count(number)] for subject, number in held.items()]
        title = f"{output.plural(len(held), 'subject')} in {name}"
        output.print_table(title, ["Subject", "Messages"], rows, numbers=[1])


@stream.command(example="jetlake stream backup ORDERS backups/orders")
@click.argument("name", shell_complete=stream_names)
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--consumers/--no-consumers", default=True, help="Whether the consumers are in the backup.")
@click.option("--check", is_flag=True, help="Refuse a stream that has lost messages.")
@click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal.")
@click.option(
    "--chunk-size", type=SIZE, default=0, help="Size of the messages that carry the archive.  [default: 256KB]"
)
@click.option("--window-size", type=SIZE, default=0, help="Bytes in flight to this command.  [default: 8MB]")
@json_option
@command
async def backup(
    session: Session,
    name: str,
    folder: str,
    consumers: bool,
    check: bool,
    progress: bool,
    chunk_size: int,
    window_size: int,
    as_json: bool,
) -> None:
    """Back up stream NAME with its consumers to FOLDER, in the format of the nats command."""
    async with session.jetstream() as js:
        handle = await js.stream(name)
        lost = handle.cached_info.state.lost
        if check and lost is not None and lost.msgs:
            fail(f"stream {name} has lost {output.plural(len(lost.msgs), 'message')}; back it up without --check")
        with output.Bar(f"Backing up {name}", handle.cached_info.state.bytes, is_shown=progress) as bar:
            taken = await handle.backup(
                folder, consumers=consumers, chunk_bytes=chunk_size, window_bytes=window_size, progress=bar.show
            )
    if as_json:
        output.print_json({"stream": name, "messages": taken.state.messages, "bytes": taken.size, "folder": folder})
    else:
        messages = output.plural(taken.state.messages, "message")
        click.echo(f"Backed up stream {name} to {folder}: {messages}, {output.size(taken.size)}")


@stream.command(example="jetlake stream restore backups/orders --name ORDERS2")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--name", metavar="NAME", help="Name of the new stream. Default: the name in the backup.")
@click.option("--subjects", multiple=True, metavar="LIST", help="Subjects to capture, separated by commas.")
@click.option("--config", metavar="FILE", help="Read the configuration from a JSON file instead of the backup.")
@click.option("--replicas", type=click.IntRange(1), metavar="N", help="Replicas in a cluster.")
@click.option("--cluster", metavar="CLUSTER", help="Place it in this cluster.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Place it on servers with this tag; may be repeated.")
@click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal.")
@json_option
@command
async def restore(
    session: Session,
    folder: str,
    name: str | None,
    subjects: tuple[str, ...],
    config: str | None,
    replicas: int | None,
    cluster: str | None,
    tags: tuple[str, ...],
    progress: bool,
    as_json: bool,
) -> None:
    """Restore a stream from the backup in FOLDER, with its messages and consumers."""
    base = read_config(config, StreamConfig) if config else None
    changes: RestoreOptions = {}
    if name:
        changes["name"] = name
    if subjects:
        changes["subjects"] = [one.strip() for text in subjects for one in text.split(",") if one.strip()]
    if replicas:
        changes["num_replicas"] = replicas
    if cluster or tags:
        changes["placement"] = Placement(cluster=cluster or "", tags=tags)
    async with session.jetstream() as js:
        with output.Bar("Restoring", 0, is_shown=progress) as bar:
            restored = await js.restore(folder, base, progress=bar.show, **changes)
        info = restored.cached_info
    if as_json:
        output.print_json(info)
    else:
        held = (
            f"{output.plural(info.state.messages, 'message')}, {output.plural(info.state.consumer_count, 'consumer')}"
        )
        click.echo(f"Restored stream {info.config.name}: {held}")
    output.warn_of_missing(folder, info)


for _command in (get, remove_message, view, state, gaps, graph, cluster):
    stream.add_command(_command)
