"""`jetlake consumer …`: create, change, list, show, pause, reset and delete consumers."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.choosing import chosen_consumer, chosen_stream
from jetlake.cli.commands.consumer_messages import next_message, subscribe
from jetlake.cli.commands.consumer_state import cluster, find, graph, name_argument, state, stream_argument
from jetlake.cli.config_changes import config_changes, may_apply
from jetlake.cli.keyboard import ask
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import (
    DELIVER,
    DURATION,
    PAIR,
    SAMPLE,
    SIZE,
    Start,
    edited_config,
    read_config,
    save_config,
    with_fields,
)
from jetlake.client.api.consumer_api import create_consumer, pause_consumer
from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.protocol.nuid import next_nuid

if TYPE_CHECKING:
    from jetlake.client import JetStream


@click.group(cls=SharedGroup)
def consumer() -> None:
    """Create, list, inspect, edit, read from and delete consumers."""


_OPTIONS = (
    click.option("--filter", "filters", multiple=True, metavar="SUBJECT", help="Deliver only these subjects."),
    click.option("--ack", type=click.Choice(["explicit", "all", "none"]), help="Ack policy."),
    click.option("--wait", "ack_wait", type=DURATION, help="How long to wait for an ack before redelivery."),
    click.option(
        "--backoff", metavar="LIST|linear|none", help="Delays before each redelivery, like 1s,5s,1m, or linear steps."
    ),
    click.option(
        "--backoff-steps", type=click.IntRange(1, 100), metavar="N", help="Steps of a linear backoff.  [default: 10]"
    ),
    click.option("--backoff-min", type=DURATION, help="First delay of a linear backoff.  [default: 1m]"),
    click.option("--backoff-max", type=DURATION, help="Last delay of a linear backoff.  [default: 20m]"),
    click.option("--max-deliver", type=int, metavar="N", help="Maximum deliveries of one message; -1 for unlimited."),
    click.option(
        "--max-pending",
        "--max-outstanding",
        "max_ack_pending",
        type=int,
        metavar="N",
        help="Maximum messages awaiting an ack.",
    ),
    click.option("--max-waiting", type=int, metavar="N", help="Maximum waiting pull requests."),
    click.option("--max-pull-batch", "max_batch", type=int, metavar="N", help="Maximum batch of a pull request."),
    click.option("--max-pull-bytes", "max_bytes", type=SIZE, help="Maximum bytes of a pull request."),
    click.option("--max-pull-expire", "max_expires", type=DURATION, help="Maximum expiry of a pull request."),
    click.option("--sample", "sample_freq", type=SAMPLE, help="Percentage of acks to publish as samples."),
    click.option(
        "--replay",
        "replay_policy",
        type=click.Choice(["instant", "original"]),
        help="Delivery speed: at once, or at the original pace.",
    ),
    click.option("--target", "deliver_subject", metavar="SUBJECT", help="Push to this subject."),
    click.option("--deliver-group", metavar="QUEUE", help="Queue group that shares the target subject."),
    click.option(
        "--heartbeat", "idle_heartbeat", type=DURATION, help="Push: send a heartbeat after this much silence."
    ),
    click.option(
        "--flow-control", is_flag=True, default=None, help="Push: pause when the subscriber does not keep up."
    ),
    click.option("--bps", "rate_limit_bps", type=int, metavar="N", help="Push: rate limit in bits per second."),
    click.option(
        "--headers-only/--no-headers-only", "headers_only", default=None, help="Deliver headers without payloads."
    ),
    click.option("--inactive-threshold", type=DURATION, help="Delete the consumer after this long without use."),
    click.option(
        "--replicas",
        "num_replicas",
        type=int,
        metavar="N",
        help="Replicas in a cluster; 0 for as many as the stream has.",
    ),
    click.option("--memory", "mem_storage", is_flag=True, default=None, help="Keep the consumer's state in memory."),
    click.option("--description", metavar="TEXT", help="Description."),
    click.option("--metadata", type=PAIR, multiple=True, help="Metadata; may be repeated."),
    click.option("--overflow-groups", metavar="GROUP", help="Priority group with the overflow policy."),
    click.option("--pinned-groups", metavar="GROUP", help="Priority group with the pinned client policy."),
    click.option("--prioritized-groups", metavar="GROUP", help="Priority group with the prioritized policy."),
    click.option(
        "--pinned-ttl",
        "priority_timeout",
        type=DURATION,
        help="How long a pinned client may be silent before it loses the pin.",
    ),
)
_POLICIES = {
    "overflow_groups": "overflow",
    "pinned_groups": "pinned_client",
    "prioritized_groups": "prioritized",
}


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def config_options(function: Any) -> Any:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration's fields from the options that were given."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "filters" in fields:
        # Both fields: whichever of them a consumer had is replaced, and an empty filter takes everything.
        filters = tuple(one for one in fields.pop("filters") if one)
        is_one = len(filters) == 1
        fields.update(filter_subject=filters[0] if is_one else "", filter_subjects=() if is_one else filters)
    if "ack" in fields:
        fields["ack_policy"] = fields.pop("ack")
    steps, least, most = (fields.pop(f"backoff_{part}", None) for part in ("steps", "min", "max"))
    if "backoff" in fields:
        fields["backoff"] = _backoff(fields["backoff"], steps or 10, least or _BACKOFF_MIN, most or _BACKOFF_MAX)
        if fields["backoff"] and "max_deliver" not in fields:
            fields["max_deliver"] = -1
    elif steps or least or most:
        raise ConfigError("--backoff-steps, --backoff-min and --backoff-max need --backoff linear")
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    policies = [option for option in _POLICIES if option in fields]
    if len(policies) > 1:
        raise ConfigError(
            f"{' and '.join(map(_flag, policies))} are mutually exclusive: a consumer has one priority policy"
        )
    for option in policies:
        fields.update(priority_groups=[fields.pop(option)], priority_policy=_POLICIES[option])
    return fields


_BACKOFF_MIN, _BACKOFF_MAX = 60 * NANOSECONDS_PER_SECOND, 20 * 60 * NANOSECONDS_PER_SECOND


def _backoff(text: str, steps: int, least_ns: int, most_ns: int) -> list[int]:
    """Return the delays that were typed: a list of them, equal steps, or none."""
    if text == "none":
        return []
    if text != "linear":
        return [DURATION.convert(one.strip(), None, None) for one in text.split(",")]
    if most_ns < least_ns:
        raise ConfigError("--backoff-max is shorter than --backoff-min")
    step_ns = (most_ns - least_ns) // max(steps - 1, 1)
    return [least_ns + number * step_ns for number in range(steps)]


def ask_stream() -> str:
    """Ask for the stream's name."""
    name: str = ask("Stream name")
    return name


def ask_consumer(name: str | None) -> tuple[str | None, Start, dict[str, Any]]:
    """Ask for what matters of a new consumer.

    Returns:
        The name, None for an ephemeral consumer; where to begin; the other answers by the names of the options.
    """

    def answer(question: str, default: str, kind: Any = str) -> Any:
        return ask(question, default=default, type=kind, show_default=bool(default))

    name = name or answer("Name (empty for an ephemeral consumer)", "") or None
    answers: dict[str, Any] = {"deliver_subject": answer("Delivery subject (empty for a pull consumer)", "") or None}
    start = answer("Start at: all, new, last, subject, a sequence, a time, or how long ago", "all", DELIVER)
    answers["ack"] = answer("Ack policy", "explicit", click.Choice(["explicit", "all", "none"]))
    answers["filters"] = tuple(one.strip() for one in answer("Filter subjects, separated by commas", "").split(","))
    if answers["ack"] != "none":
        answers["ack_wait"] = answer("Ack wait", "30s", DURATION)
        answers["max_deliver"] = answer("Max deliveries (-1 for unlimited)", "-1", int)
        answers["max_ack_pending"] = answer("Max ack pending", "1000", int)
    return name, start, answers


def print_info(info: ConsumerInfo, as_json: bool, title: str) -> None:
    """Print a consumer."""
    if as_json:
        output.print_json(info)
        return
    config = info.config
    start = {
        "by_start_sequence": f"From Sequence {config.opt_start_seq}",
        "by_start_time": f"Since {output.when(config.opt_start_time)}",
    }.get(config.deliver_policy.value, output.words(config.deliver_policy))
    filters = config.filter_subjects or (config.filter_subject,)
    output.print_facts(
        title,
        {
            "Configuration": [
                ("Name", info.name),
                ("Description", config.description),
                ("Delivery Subject", config.deliver_subject),
                ("Pull Mode", None if config.deliver_subject else "true"),
                ("Filter Subject" if len(filters) == 1 else "Filter Subjects", ", ".join(filters)),
                ("Deliver Policy", start),
                ("Deliver Queue Group", config.deliver_group),
                ("Ack Policy", output.words(config.ack_policy)),
                ("Ack Wait", None if config.ack_policy is AckPolicy.NONE else output.duration(config.ack_wait)),
                ("Replay Policy", output.words(config.replay_policy)),
                ("Maximum Deliveries", config.max_deliver if config.max_deliver > 0 else None),
                ("Sampling Rate", config.sample_freq),
                (
                    "Rate Limit",
                    f"{output.size(config.rate_limit_bps // 8)} / second" if config.rate_limit_bps else None,
                ),
                ("Max Ack Pending", output.count(config.max_ack_pending) if config.max_ack_pending > 0 else None),
                ("Max Waiting Pulls", output.count(config.max_waiting) if config.max_waiting else None),
                ("Idle Heartbeat", output.optional_duration(config.idle_heartbeat)),
                ("Flow Control", output.true_false(config.flow_control) if config.deliver_subject else None),
                ("Headers Only", "true" if config.headers_only else None),
                ("Inactive Threshold", output.optional_duration(config.inactive_threshold)),
                ("Max Pull Expire", output.optional_duration(config.max_expires)),
                ("Max Pull Batch", config.max_batch or None),
                ("Max Pull MaxBytes", config.max_bytes or None),
                ("Backoff", ", ".join(output.duration(wait) for wait in config.backoff)),
                ("Replicas", config.num_replicas or None),
                ("Memory Storage", "true" if config.mem_storage else None),
                (
                    "Paused Until Deadline",
                    (_paused(info) if info.paused else f"{output.when(config.pause_until)} (passed)")
                    if config.pause_until
                    else None,
                ),
                ("Priority Policy", output.words(config.priority_policy) if config.priority_groups else None),
                ("Priority Groups", ", ".join(config.priority_groups)),
                ("Pinned TTL", output.optional_duration(config.priority_timeout)),
            ],
            "Metadata": output.metadata_facts(config.metadata),
            "Cluster Information": output.cluster_facts(info.cluster),
            "State": [
                ("Last Delivered Message", _position(info, info.delivered, "Last delivery")),
                *(_acks(info) if config.ack_policy is not AckPolicy.NONE else ()),
                ("Unprocessed Messages", output.count(info.num_pending)),
                ("Waiting Pulls", None if config.deliver_subject else _waiting(info)),
                ("Active Interest", _interest(info) if config.deliver_subject else None),
                ("Paused Until", _paused(info) if info.paused else None),
                ("Priority Groups", _pinned(info) if config.priority_policy == "pinned_client" else None),
            ],
        },
    )


def _paused(info: ConsumerInfo) -> str:
    """Write when a pause ends, and how long that is, in whole seconds."""
    left_ns = round(info.pause_remaining / NANOSECONDS_PER_SECOND) * NANOSECONDS_PER_SECOND
    return f"{output.when(info.config.pause_until)} ({output.duration(left_ns)} remaining)"


def _pinned(info: ConsumerInfo) -> str:
    """Write who is pinned in each group."""
    return ", ".join(
        f"{group.group}: "
        + (
            f"pinned {group.pinned_client_id} at {output.when(group.pinned_ts)}"
            if group.pinned_client_id
            else "No client"
        )
        for group in info.priority_groups
    )


def _position(info: ConsumerInfo, position: SequenceInfo, last: str) -> str:
    """Write a position, and how long ago it moved, in the words of `nats`."""
    text = f"Consumer sequence: {position.consumer_seq:,} Stream sequence: {position.stream_seq:,}"
    if position.last_active is None or info.ts == ZERO_TIME:
        return text
    moved_s = (parse_time(info.ts) - parse_time(position.last_active)) / NANOSECONDS_PER_SECOND
    return f"{text} {last}: {output.age(max(0.0, moved_s))} ago"


def _acks(info: ConsumerInfo) -> list[tuple[str, str]]:
    pending_max = info.config.max_ack_pending
    bound = f" out of maximum {output.count(pending_max)}" if pending_max > 0 else ""
    return [
        ("Acknowledgment Floor", _position(info, info.ack_floor, "Last Ack")),
        ("Outstanding Acks", output.count(info.num_ack_pending) + bound),
        ("Redelivered Messages", output.count(info.num_redelivered)),
    ]


def _waiting(info: ConsumerInfo) -> str:
    return f"{output.count(info.num_waiting)} of maximum {output.count(info.config.max_waiting)}"


def _interest(info: ConsumerInfo) -> str:
    if not info.push_bound:
        return "No interest"
    group = info.config.deliver_group
    return f"Active using Queue Group {group}" if group else "Active"


@consumer.command("add", example="jetlake consumer add ORDERS worker --pull --filter orders.new")
@click.argument("stream", required=False, shell_complete=stream_names)
@click.argument("name", required=False)
@config_options
@click.option("--pull", is_flag=True, help="A pull consumer (the default without --target).")
@click.option("--ephemeral", is_flag=True, help="An ephemeral consumer, deleted when it is no longer used.")
@click.option(
    "--deliver",
    type=DELIVER,
    help="Where to start: all, new, last, subject, a sequence like 10, a time, or a duration before now like 2m.",
)
@click.option("--pause", metavar="DURATION", type=DURATION, help="Start paused for this long.")
@click.option("--config", metavar="FILE", help="Read the configuration from a JSON file; options override it.")
@click.option("--defaults", is_flag=True, help="Do not prompt; use defaults for missing options.")
@click.option("--validate", "validates", is_flag=True, help="Only check the configuration; asks no server.")
@click.option("--output", "file", metavar="FILE", help="Only write the configuration to this file; - prints it.")
@json_option
@command
async def add(
    session: Session,
    stream: str | None,
    name: str | None,
    pull: bool,
    ephemeral: bool,
    deliver: Start | None,
    pause: int | None,
    config: str | None,
    defaults: bool,
    validates: bool,
    file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create consumer NAME on STREAM, ephemeral without a name. On a terminal, without options, it asks."""
    asks = sys.stdin.isatty() and not defaults
    if stream is None:
        if not asks:
            fail("stream name is missing; for example: jetlake consumer add ORDERS worker --pull", EXIT_USAGE)
        stream = ask_stream()
    if asks and not (given_fields(options) or pull or ephemeral or deliver or pause or config):
        name, deliver, answers = ask_consumer(name)
        options.update(answers)
    if pull and options["deliver_subject"]:
        fail("--pull and --target are mutually exclusive: a pull consumer has no target", EXIT_USAGE)
    made = _new_config(name, options, deliver, pause, config, ephemeral=ephemeral)
    if validates or file:
        _validated(made)
        save_config(made, file) if file else output.tell("Configuration is valid", {"valid": True}, as_json)
        return
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        await create_consumer(js.api, stream, made, ConsumerAction.CREATE)
        print_info(await handle.consumer_info(made.name), as_json, f"Created consumer {stream} > {made.name}")


def _validated(config: ConsumerConfig) -> None:
    """Check a configuration by the rules that a server without limits has, on a stream that takes everything.

    Raises:
        ApiError: the server would refuse it.
    """
    from jetlake.model.rules.consumer_rules import check_consumer

    check_consumer(config)


def _new_config(
    name: str | None,
    options: dict[str, Any],
    deliver: Start | None,
    pause: int | None,
    config: str | None,
    *,
    ephemeral: bool,
) -> ConsumerConfig:
    """Return the configuration of a new consumer: the file's, with the options on top."""
    fields = given_fields(options)
    if deliver is not None:
        fields.update(deliver.fields)
    if pause:
        until = datetime.now(UTC) + timedelta(seconds=pause / NANOSECONDS_PER_SECOND)
        fields["pause_until"] = until.isoformat().replace("+00:00", "Z")
    base = read_config(config, ConsumerConfig) if config else ConsumerConfig()
    if "ack_policy" not in fields and not config:
        fields["ack_policy"] = "none" if ephemeral and options["deliver_subject"] else "explicit"
    fields["name"] = name or base.name or base.durable_name or next_nuid()[:8]
    if (name or base.durable_name) and not ephemeral:
        fields["durable_name"] = fields["name"]
    return with_fields(base, fields)


@consumer.command("edit", example="jetlake consumer edit ORDERS worker --max-deliver 5")
@stream_argument
@name_argument
@config_options
@click.option("--config", metavar="FILE", help="Read the whole configuration from a JSON file; options override it.")
@click.option("-i", "--interactive", is_flag=True, help="Edit the configuration as JSON in your editor.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@force_option
@json_option
@command
async def edit(
    session: Session,
    stream: str | None,
    name: str | None,
    config: str | None,
    interactive: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Change the configuration of consumer NAME on STREAM; on a terminal, what changes is shown first."""
    fields = given_fields(options)
    if not fields and not config and not interactive:
        fail("nothing to change; use an option such as --max-deliver 5, or --interactive", EXIT_USAGE)
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.stream(stream)
        info = await handle.consumer_info(name)
        base = read_config(config, ConsumerConfig) if config else info.config
        if interactive:
            base = edited_config(base)
        wanted = with_fields(base, {**fields, "name": name})
        changes = config_changes(info.config, wanted)
        if not may_apply(changes, f"consumer {stream} > {name}", dry_run=dry_run, force=force, as_json=as_json):
            return
        await create_consumer(js.api, stream, wanted, ConsumerAction.UPDATE)
        print_info(await handle.consumer_info(name), as_json, f"Updated consumer {stream} > {name}")


@consumer.command("copy", example="jetlake consumer copy ORDERS worker worker-2 --max-deliver 5")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.argument("new_name")
@config_options
@json_option
@command
async def copy(session: Session, stream: str, name: str, new_name: str, as_json: bool, **options: Any) -> None:
    """Create consumer NEW_NAME on STREAM with the configuration of NAME; options override it.

    The new consumer starts where its configuration says, not at the position of NAME.
    """
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        config = (await handle.consumer_info(name)).config
        durable = new_name if config.durable_name else None
        fields = {**given_fields(options), "name": new_name, "durable_name": durable}
        await create_consumer(js.api, stream, with_fields(config, fields), ConsumerAction.CREATE)
        print_info(await handle.consumer_info(new_name), as_json, f"Created consumer {stream} > {new_name}")


@consumer.command("rm", example="jetlake consumer rm ORDERS worker --force")
@stream_argument
@name_argument
@force_option
@json_option
@command
async def remove(session: Session, stream: str | None, name: str | None, force: bool, as_json: bool) -> None:
    """Delete consumer NAME from STREAM."""
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.stream(stream)
        await handle.consumer_info(name)
        confirm(f"Delete consumer {stream} > {name}?", force)
        await handle.delete_consumer(name)
    output.tell(f"Deleted consumer {stream} > {name}", {"stream": stream, "removed": name}, as_json)


@consumer.command("ls", example="jetlake consumer ls ORDERS")
@stream_argument
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@click.option("--no-select", is_flag=True, help="Do not ask for the name of the stream.")
@json_option
@command
async def list_consumers(
    session: Session, stream: str | None, names_only: bool, no_select: bool, as_json: bool
) -> None:
    """List the consumers of STREAM."""
    async with session.jetstream() as js:
        stream = await _selected(js, stream, no_select)
        handle = await js.stream(stream)
        if names_only:
            output.print_names(await handle.consumer_names(), as_json)
            return
        infos = await handle.consumers()
    if as_json:
        output.print_json(infos)
    elif not infos:
        click.echo(_none(stream))
    else:
        output.print_table(
            f"Consumers of {stream}",
            ["Name", "Kind", "Ack", "Pending", "Awaiting ack", "Redelivered", "Waiting", "Ack floor", "Delivered"],
            [_row(info) for info in infos],
            numbers=[3, 4, 5, 6, 7, 8],
            spare=[8, 7, 2, 1, 6],
        )


def _row(info: ConsumerInfo) -> list[str]:
    return [
        info.name,
        "push" if info.config.deliver_subject else "pull",
        info.config.ack_policy.value,
        output.count(info.num_pending),
        output.count(info.num_ack_pending),
        output.count(info.num_redelivered),
        output.count(info.num_waiting),
        output.count(info.ack_floor.stream_seq),
        output.count(info.delivered.stream_seq),
    ]


@consumer.command("info", example="jetlake consumer info ORDERS worker")
@stream_argument
@name_argument
@click.option("--no-select", is_flag=True, help="Do not ask for names.")
@json_option
@command
async def show(session: Session, stream: str | None, name: str | None, no_select: bool, as_json: bool) -> None:
    """Show the configuration and state of consumer NAME on STREAM."""
    async with session.jetstream() as js:
        stream = await _selected(js, stream, no_select)
        if no_select and not name:
            fail(f"consumer name is missing. List consumers: jetlake consumer ls {stream}", EXIT_USAGE)
        name = await chosen_consumer(js, stream, name)
        found = await (await js.stream(stream)).consumer_info(name)
    print_info(found, as_json, f"Information for Consumer {stream} > {name} created {output.when(found.created)}")


@consumer.command("report", example="jetlake consumer report ORDERS")
@stream_argument
@click.option("-l", "--leaders", is_flag=True, help="Also count how many consumers each server of a cluster leads.")
@click.option("-r", "--raw", is_flag=True, help="Print numbers as they are.")
@json_option
@command
async def report(session: Session, stream: str | None, leaders: bool, raw: bool, as_json: bool) -> None:
    """Compare the consumers of STREAM, the furthest behind first: pending messages, messages awaiting acks."""
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        infos = await (await js.stream(stream)).consumers()
    if as_json:
        output.print_json(sorted(infos, key=_left, reverse=True))
    elif infos:
        print_report(infos, raw=raw)
        if leaders:
            output.print_leaders("consumers", [info.cluster.leader if info.cluster else "" for info in infos])
    else:
        click.echo(_none(stream))


async def _selected(js: JetStream, stream: str | None, no_select: bool) -> str:
    if no_select and not stream:
        fail("stream name is missing. List streams: jetlake stream ls", EXIT_USAGE)
    return await chosen_stream(js, stream)


def _none(stream: str) -> str:
    return f"No consumers on {stream}. Create one: jetlake consumer add {stream} worker --pull"


def _left(info: ConsumerInfo) -> int:
    return info.num_pending + info.num_ack_pending


def print_report(infos: list[ConsumerInfo], *, raw: bool = False) -> None:
    """Print a table of consumers, the furthest behind first."""
    count = str if raw else output.count
    output.print_table(
        output.plural(len(infos), "consumer"),
        [
            "Consumer",
            "Kind",
            "Ack",
            "Pending",
            "Awaiting ack",
            "Redelivered",
            "Waiting",
            "Ack floor",
            "Last delivered",
        ],
        [
            [
                f"{info.stream_name} > {info.name}",
                ("push" if info.config.deliver_subject else "pull") + (", paused" if info.paused else ""),
                info.config.ack_policy.value,
                count(info.num_pending),
                count(info.num_ack_pending),
                count(info.num_redelivered),
                count(info.num_waiting),
                count(info.ack_floor.stream_seq),
                output.when(info.delivered.last_active),
            ]
            for info in sorted(infos, key=_left, reverse=True)
        ],
        numbers=[3, 4, 5, 6, 7],
        spare=[7, 8, 2, 6, 1],
    )


@consumer.command("why", example="jetlake consumer why ORDERS worker")
@stream_argument
@name_argument
@json_option
@command
async def why(session: Session, stream: str | None, name: str | None, as_json: bool) -> None:
    """Explain why consumer NAME on STREAM delivers nothing; exits with 1 when messages are stuck."""
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        explanation = await (await js.consumer(stream, name)).explain()
    if as_json:
        output.print_json(explanation)
    else:
        click.echo(str(explanation))
    if explanation.is_stalled:
        raise SystemExit(EXIT_FAILED)


@consumer.command("pause", example="jetlake consumer pause ORDERS worker 1h")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.argument("until", metavar="DURATION|TIME")
@force_option
@json_option
@command
async def pause(session: Session, stream: str, name: str, until: str, force: bool, as_json: bool) -> None:
    """Pause consumer NAME on STREAM for a duration, like 1h, or until a time."""
    # "2026-01-31 12:00:00" is how `nats` writes a time, in UTC.
    until = f"{until.replace(' ', 'T')}Z" if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", until) else until
    end: Any = until if "T" in until else DURATION.convert(until, None, None) / NANOSECONDS_PER_SECOND
    if sys.stdin.isatty():
        confirm(f"Pause consumer {stream} > {name}?", force)
    async with session.jetstream() as js:
        reply = await pause_consumer(js.api, stream, name, end)
    output.print_json(reply) if as_json else click.echo(
        f"Paused consumer {stream} > {name} until {output.when(reply.pause_until)}"
    )


@consumer.command("resume", example="jetlake consumer resume ORDERS worker")
@stream_argument
@name_argument
@force_option
@json_option
@command
async def resume(session: Session, stream: str | None, name: str | None, force: bool, as_json: bool) -> None:
    """Resume paused consumer NAME on STREAM."""
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        if sys.stdin.isatty():
            confirm(f"Resume consumer {stream} > {name}?", force)
        reply = await pause_consumer(js.api, stream, name, None)
    output.print_json(reply) if as_json else click.echo(f"Resumed consumer {stream} > {name}")


@consumer.command("reset", example="jetlake consumer reset ORDERS worker --seq 100 --force")
@stream_argument
@name_argument
@click.option(
    "--seq",
    "--sequence",
    "sequence",
    type=int,
    default=0,
    metavar="N",
    help="Sequence to continue from. Default: the ack floor.",
)
@force_option
@json_option
@command
async def reset(
    session: Session, stream: str | None, name: str | None, sequence: int, force: bool, as_json: bool
) -> None:
    """Move consumer NAME on STREAM to another sequence."""
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.consumer(stream, name)
        target = f"sequence {sequence}" if sequence else "its ack floor"
        confirm(f"Reset consumer {stream} > {name} to {target}?", force)
        reply = await handle.reset(sequence)
    output.print_json(reply) if as_json else click.echo(
        f"Consumer {stream} > {name} resumes at sequence {reply.reset_seq}"
    )


@consumer.command("unpin", example="jetlake consumer unpin ORDERS worker jobs --force")
@stream_argument
@name_argument
@click.argument("group", required=False)
@force_option
@json_option
@command
async def unpin(
    session: Session, stream: str | None, name: str | None, group: str | None, force: bool, as_json: bool
) -> None:
    """Unpin the client of consumer NAME on STREAM, so that another is pinned."""
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.consumer(stream, name)
        groups = handle.config.priority_groups
        if not group and not groups:
            fail(f"consumer {stream} > {name} has no priority group", EXIT_USAGE)
        confirm(f"Unpin the client of consumer {stream} > {name}?", force)
        await handle.unpin(group or groups[0])
    output.tell(f"Unpinned the client of consumer {stream} > {name}", {"stream": stream, "consumer": name}, as_json)


for _command in (next_message, subscribe, state, find, graph, cluster):
    consumer.add_command(_command)
