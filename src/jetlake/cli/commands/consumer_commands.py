"""`jetlake consumer …`: make, list, look at, change, read from and remove consumers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.commands.stream_commands import read_config
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DELIVER, DURATION, PAIR, SAMPLE, Start
from jetlake.client.api.consumer_api import create_consumer, pause_consumer
from jetlake.errors import SubscribeMismatchError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.enums import ConsumerAction
from jetlake.protocol.nuid import next_nuid

if TYPE_CHECKING:
    from jetlake.client import Message

__all__ = ["consumer"]


@click.group(cls=SharedGroup)
def consumer() -> None:
    """Make, list, look at, change, read from and remove consumers."""


def _config_options(function: Any) -> Any:
    """What a consumer can be told; add and edit take the same."""
    options = [
        click.option("--filter", "filters", multiple=True, metavar="SUBJECT", help="Take only these subjects."),
        click.option("--ack", type=click.Choice(["explicit", "all", "none"]), help="Which acks to wait for."),
        click.option("--wait", "ack_wait", type=DURATION, help="How long to wait for an ack before delivering again."),
        click.option("--backoff", metavar="LIST", help="Waits before each redelivery, like 1s,5s,1m."),
        click.option("--max-deliver", type=int, metavar="N", help="Most deliveries of one message; -1 unlimited."),
        click.option("--max-pending", "max_ack_pending", type=int, metavar="N", help="Most messages awaiting an ack."),
        click.option("--max-waiting", type=int, metavar="N", help="Most waiting pulls."),
        click.option("--max-pull-batch", "max_batch", type=int, metavar="N", help="Largest batch of a pull."),
        click.option("--max-pull-expire", "max_expires", type=DURATION, help="Longest life of a pull."),
        click.option("--sample", "sample_freq", type=SAMPLE, help="Percentage of acks to publish as samples."),
        click.option(
            "--replay", "replay_policy", type=click.Choice(["instant", "original"]), help="How fast to deliver."
        ),
        click.option("--target", "deliver_subject", metavar="SUBJECT", help="Push to this subject."),
        click.option("--deliver-group", metavar="QUEUE", help="Queue group that shares the target."),
        click.option(
            "--heartbeat", "idle_heartbeat", type=DURATION, help="Push: sign of life after this much silence."
        ),
        click.option(
            "--flow-control", is_flag=True, default=None, help="Push: pause when the reader does not keep up."
        ),
        click.option("--bps", "rate_limit_bps", type=int, metavar="N", help="Push: most bits per second."),
        click.option("--headers-only", is_flag=True, default=None, help="Leave payloads out."),
        click.option("--inactive-threshold", type=DURATION, help="How long it outlives its last use."),
        click.option("--memory", "mem_storage", is_flag=True, default=None, help="Keep its state in memory."),
        click.option("--description", metavar="TEXT"),
        click.option("--metadata", type=PAIR, multiple=True, help="Free data; may be repeated."),
        click.option("--overflow-groups", metavar="GROUP", help="Priority group with the overflow policy."),
        click.option("--pinned-groups", metavar="GROUP", help="Priority group with the pinned client policy."),
        click.option("--prioritized-groups", metavar="GROUP", help="Priority group with the prioritized policy."),
        click.option("--pinned-ttl", "priority_timeout", type=DURATION, help="How long a pinned client may be silent."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


_POLICIES = {
    "overflow_groups": "overflow",
    "pinned_groups": "pinned_client",
    "prioritized_groups": "prioritized",
}


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """The configuration's fields from the options that were given."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    filters = tuple(one for one in fields.pop("filters", ()) if one)
    if len(filters) == 1:
        fields["filter_subject"] = filters[0]
    elif filters:
        fields["filter_subjects"] = filters
    if "ack" in fields:
        fields["ack_policy"] = fields.pop("ack")
    if "backoff" in fields:
        fields["backoff"] = [DURATION.convert(one.strip(), None, None) for one in fields["backoff"].split(",")]
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    for option, policy in _POLICIES.items():
        if option in fields:
            fields.update(priority_groups=[fields.pop(option)], priority_policy=policy)
    return fields


def _with_fields(config: ConsumerConfig, fields: dict[str, Any]) -> ConsumerConfig:
    return msgspec.convert({**msgspec.to_builtins(config), **fields}, ConsumerConfig)


@consumer.command("add")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", required=False)
@_config_options
@click.option("--pull", is_flag=True, help="A pull consumer (the default without --target).")
@click.option("--ephemeral", is_flag=True, help="Gone when nobody uses it any more.")
@click.option("--deliver", type=DELIVER, help="Where to begin: all, new, last, subject, 10, a time, or 2m ago.")
@click.option("--pause", metavar="DURATION", type=DURATION, help="Begin paused for this long.")
@click.option("--config", metavar="FILE", help="Take the configuration from a JSON file; options win over it.")
@click.option("--defaults", is_flag=True, hidden=True)
@json_option
@command
async def add(
    session: Session,
    stream: str,
    name: str | None,
    pull: bool,
    ephemeral: bool,
    deliver: Start | None,
    pause: int | None,
    config: str | None,
    defaults: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a consumer NAME on STREAM; without a name an ephemeral one is made."""
    if pull and options["deliver_subject"]:
        fail("--pull and --target exclude each other: a pull consumer has no target", EXIT_USAGE)
    fields = _fields(options)
    if deliver is not None:
        fields.update(deliver.fields)
    if pause:
        until = datetime.now(UTC) + timedelta(seconds=pause / NANOSECONDS_PER_SECOND)
        fields["pause_until"] = until.isoformat().replace("+00:00", "Z")
    base = read_config(config, ConsumerConfig) if config else ConsumerConfig()
    if "ack_policy" not in fields and not config:
        fields["ack_policy"] = "none" if ephemeral and options["deliver_subject"] else "explicit"
    chosen = name or base.name or base.durable_name or next_nuid()[:8]
    fields["name"] = chosen
    if (name or base.durable_name) and not ephemeral:
        fields["durable_name"] = chosen
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        await create_consumer(js.api, stream, _with_fields(base, fields), ConsumerAction.CREATE)
        _print_info(await handle.consumer_info(chosen), as_json, f"Consumer {stream} > {chosen} was made")


@consumer.command("edit")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@_config_options
@click.option("--config", metavar="FILE", help="Take the whole configuration from a JSON file; options win over it.")
@json_option
@command
async def edit(session: Session, stream: str, name: str, config: str | None, as_json: bool, **options: Any) -> None:
    """Change the configuration of consumer NAME on STREAM."""
    fields = _fields(options)
    if not fields and not config:
        fail("nothing to change; give an option such as --max-deliver 5", EXIT_USAGE)
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        info = await handle.consumer_info(name)
        base = read_config(config, ConsumerConfig) if config else info.config
        await create_consumer(js.api, stream, _with_fields(base, {**fields, "name": name}), ConsumerAction.UPDATE)
        _print_info(await handle.consumer_info(name), as_json, f"Consumer {stream} > {name} was changed")


@consumer.command("ls")
@click.argument("stream", shell_complete=stream_names)
@click.option("-n", "--names", is_flag=True, help="Only the names.")
@json_option
@command
async def list_consumers(session: Session, stream: str, names: bool, as_json: bool) -> None:
    """List the consumers of STREAM."""
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        if names:
            found = await handle.consumer_names()
            output.print_json(found) if as_json else click.echo("".join(f"{one}\n" for one in found), nl=False)
            return
        infos = await handle.consumers()
    if as_json:
        output.print_json(infos)
    elif not infos:
        click.echo(f"No consumers on {stream}. Make one: jetlake consumer add {stream} worker --pull")
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


@consumer.command("info")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@json_option
@command
async def info(session: Session, stream: str, name: str, as_json: bool) -> None:
    """Show the configuration and state of consumer NAME on STREAM."""
    async with session.jetstream() as js:
        found = await (await js.stream(stream)).consumer_info(name)
    _print_info(found, as_json, f"Consumer {stream} > {name}, made {output.when(found.created)}")


@consumer.command("why")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@json_option
@command
async def why(session: Session, stream: str, name: str, as_json: bool) -> None:
    """Say why consumer NAME on STREAM delivers nothing; exits with 1 when messages are held up."""
    async with session.jetstream() as js:
        explanation = await (await js.consumer(stream, name)).explain()
    if as_json:
        output.print_json(explanation)
    else:
        click.echo(str(explanation))
    if explanation.is_stalled:
        raise SystemExit(EXIT_FAILED)


def _print_info(info: ConsumerInfo, as_json: bool, title: str) -> None:
    if as_json:
        output.print_json(info)
        return
    config = info.config
    start = {
        "by_start_sequence": f"from sequence {config.opt_start_seq}",
        "by_start_time": f"from {output.when(config.opt_start_time)}",
    }.get(config.deliver_policy.value, config.deliver_policy.value)
    output.print_facts(
        title,
        {
            "Configuration": [
                ("Description", config.description),
                ("Pull Mode", output.yes_no(not config.deliver_subject)),
                ("Delivery Subject", config.deliver_subject),
                ("Delivery Queue Group", config.deliver_group),
                ("Filter Subjects", config.filter_subject or ", ".join(config.filter_subjects)),
                ("Deliver Policy", start),
                ("Ack Policy", config.ack_policy.value),
                ("Ack Wait", output.duration(config.ack_wait) if config.ack_wait else None),
                ("Backoff", ", ".join(output.duration(wait) for wait in config.backoff)),
                ("Replay Policy", config.replay_policy.value),
                ("Maximum Deliveries", output.count(config.max_deliver) if config.max_deliver else None),
                ("Max Ack Pending", output.count(config.max_ack_pending) if config.max_ack_pending else None),
                ("Max Waiting Pulls", output.count(config.max_waiting) if config.max_waiting else None),
                ("Sampling Rate", config.sample_freq),
                ("Idle Heartbeat", output.duration(config.idle_heartbeat) if config.idle_heartbeat else None),
                ("Flow Control", "yes" if config.flow_control else None),
                (
                    "Inactive Threshold",
                    output.duration(config.inactive_threshold) if config.inactive_threshold else None,
                ),
                ("Priority Policy", config.priority_policy.value if config.priority_groups else None),
                ("Priority Groups", ", ".join(config.priority_groups)),
                *((f"Metadata {key}", value) for key, value in config.metadata.items() if not key.startswith("_nats.")),
            ],
            "State": [
                ("Last Delivered Message", _pair(info.delivered.consumer_seq, info.delivered.stream_seq)),
                ("Acknowledgment floor", _pair(info.ack_floor.consumer_seq, info.ack_floor.stream_seq)),
                ("Outstanding Acks", output.count(info.num_ack_pending)),
                ("Redelivered Messages", output.count(info.num_redelivered)),
                ("Unprocessed Messages", output.count(info.num_pending)),
                ("Waiting Pulls", output.count(info.num_waiting) if not config.deliver_subject else None),
                ("Active Interest", output.yes_no(info.push_bound) if config.deliver_subject else None),
                ("Paused", f"for {output.duration(info.pause_remaining)}" if info.paused else None),
                *(
                    (f"Group {group.group}", f"pinned to {group.pinned_client_id or 'nobody'}")
                    for group in info.priority_groups
                ),
            ],
            "Replication": output.cluster_facts(info.cluster),
        },
    )


def _pair(consumer_seq: int, stream_seq: int) -> str:
    return f"Consumer sequence: {consumer_seq:,} Stream sequence: {stream_seq:,}"


@consumer.command("rm")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@force_option
@command
async def remove(session: Session, stream: str, name: str, force: bool) -> None:
    """Remove consumer NAME from STREAM."""
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        await handle.consumer_info(name)
        confirm(f"Remove consumer {stream} > {name}?", force)
        await handle.delete_consumer(name)
    click.echo(f"Consumer {stream} > {name} was removed")


@consumer.command("next")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.option("--ack/--no-ack", default=True, help="Acknowledge what was received.")
@click.option("--nak", is_flag=True, help="Hand it back instead of acknowledging it.")
@click.option("--term", is_flag=True, help="Say that it is not to be delivered again.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), metavar="N", help="How many messages.")
@click.option("--wait", type=DURATION, default="5s", show_default=True, help="How long to wait for them.")
@click.option("--group", metavar="GROUP", help="Priority group.")
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@command
async def next_message(
    session: Session,
    stream: str,
    name: str,
    ack: bool,
    nak: bool,
    term: bool,
    count: int,
    wait: int,
    group: str | None,
    raw: bool,
) -> None:
    """Take messages from pull consumer NAME on STREAM."""
    received = 0
    async with session.jetstream() as js:
        handle = await js.consumer(stream, name)
        async for message in handle.fetch(count, expires=wait / NANOSECONDS_PER_SECOND, group=group):
            received += 1
            _print_message(message, raw)
            await _settle(message, ack=ack and handle.config.ack_policy != "none", nak=nak, term=term, raw=raw)
    if not received:
        fail(f"no message came from {stream} > {name} within {output.duration(wait)}")


@consumer.command("sub")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.option("--ack/--no-ack", default=True, help="Acknowledge what was received.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--group", metavar="GROUP", help="Priority group.")
@click.option("-r", "--raw", is_flag=True, help="Print only payloads.")
@command
async def subscribe(
    session: Session, stream: str, name: str, ack: bool, count: int | None, group: str | None, raw: bool
) -> None:
    """Read from consumer NAME on STREAM until Ctrl-C."""
    async with await session.connect() as client:
        js = client.jetstream(domain=session.target.domain, timeout=session.timeout_s)
        info = await (await js.stream(stream)).consumer_info(name)
        acknowledge = ack and info.config.ack_policy != "none"
        if info.config.deliver_subject:
            if info.push_bound and not info.config.deliver_group:
                raise SubscribeMismatchError(f"{stream} > {name} has a subscriber already")
            messages: Any = await client.subscribe(info.config.deliver_subject, queue=info.config.deliver_group)
        else:
            handle = await js.consumer(stream, name)
            messages = handle.consume(group=group, max_messages=min(count or 500, 500))
        received = 0
        async with messages as incoming:
            async for message in incoming:
                if message.status is not None:
                    continue
                received += 1
                _print_message(message, raw)
                await _settle(message, ack=acknowledge, nak=False, term=False, raw=raw)
                if received == count:
                    break


def _print_message(message: Message, raw: bool) -> None:
    if not raw:
        place = message.metadata
        click.echo(
            f"--- subj: {message.subject} / tries: {place.delivered} / cons seq: {place.consumer_seq} / "
            f"str seq: {place.stream_seq} / pending: {place.pending}"
        )
        for key, value in message.headers.items():
            click.echo(f"{key}: {value}")
    click.echo(message.data)


async def _settle(message: Message, *, ack: bool, nak: bool, term: bool, raw: bool) -> None:
    if nak:
        await message.nak()
        done = "Handed back message"
    elif term:
        await message.term()
        done = "Terminated message"
    elif ack:
        await message.ack_sync()
        done = "Acknowledged message"
    else:
        return
    if not raw:
        click.echo(f"\n{done}\n")


@consumer.command("pause")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.argument("until", metavar="DURATION|TIME")
@json_option
@command
async def pause(session: Session, stream: str, name: str, until: str, as_json: bool) -> None:
    """Deliver nothing from consumer NAME on STREAM for a while, like 1h, or until a time."""
    end: Any = until if "T" in until else DURATION.convert(until, None, None) / NANOSECONDS_PER_SECOND
    async with session.jetstream() as js:
        reply = await pause_consumer(js.api, stream, name, end)
    output.print_json(reply) if as_json else click.echo(
        f"{stream} > {name} is paused until {output.when(reply.pause_until)}"
    )


@consumer.command("resume")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@json_option
@command
async def resume(session: Session, stream: str, name: str, as_json: bool) -> None:
    """Deliver from consumer NAME on STREAM again."""
    async with session.jetstream() as js:
        reply = await pause_consumer(js.api, stream, name, None)
    output.print_json(reply) if as_json else click.echo(f"{stream} > {name} delivers again")


@consumer.command("reset")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.option("--seq", "sequence", type=int, default=0, metavar="N", help="Go on from here. Default: the ack floor.")
@force_option
@json_option
@command
async def reset(session: Session, stream: str, name: str, sequence: int, force: bool, as_json: bool) -> None:
    """Move consumer NAME on STREAM to another place."""
    async with session.jetstream() as js:
        handle = await js.consumer(stream, name)
        confirm(f"Move {stream} > {name} to {f'sequence {sequence}' if sequence else 'its ack floor'}?", force)
        reply = await handle.reset(sequence)
    output.print_json(reply) if as_json else click.echo(f"{stream} > {name} goes on from sequence {reply.reset_seq}")


@consumer.command("unpin")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.argument("group", required=False)
@force_option
@command
async def unpin(session: Session, stream: str, name: str, group: str | None, force: bool) -> None:
    """Take the pin of consumer NAME on STREAM from its client, so that another gets it."""
    async with session.jetstream() as js:
        handle = await js.consumer(stream, name)
        groups = handle.config.priority_groups
        if not group and not groups:
            fail(f"{stream} > {name} has no priority group", EXIT_USAGE)
        confirm(f"Take the pin of {stream} > {name} from its client?", force)
        await handle.unpin(group or groups[0])
    click.echo(f"The pin of {stream} > {name} is free")
