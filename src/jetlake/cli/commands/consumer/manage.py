"""Commands that make, change and remove consumers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from jetlake.cli import output
from jetlake.cli.commands.config_files import read_config, with_fields
from jetlake.cli.commands.consumer.config_options import config_options, given_fields
from jetlake.cli.commands.consumer.facts import print_info
from jetlake.cli.commands.consumer.questions import ask_consumer, ask_stream
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DELIVER, DURATION, Start
from jetlake.client.api.consumer_api import create_consumer
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.enums import ConsumerAction
from jetlake.protocol.nuid import next_nuid

__all__ = ["add", "copy", "edit", "remove"]


@click.command("add", cls=SharedCommand, example="jetlake consumer add ORDERS worker --pull --filter orders.new")
@click.argument("stream", required=False, shell_complete=stream_names)
@click.argument("name", required=False)
@config_options
@click.option("--pull", is_flag=True, help="A pull consumer (the default without --target).")
@click.option("--ephemeral", is_flag=True, help="An ephemeral consumer, deleted when it is no longer used.")
@click.option(
    "--deliver",
    type=DELIVER,
    help="Where to start: all, new, last, subject, a sequence like 10, a time, or how long ago like 2m.",
)
@click.option("--pause", metavar="DURATION", type=DURATION, help="Start paused for this long.")
@click.option("--config", metavar="FILE", help="Read the configuration from a JSON file; options override it.")
@click.option("--defaults", is_flag=True, help="Do not ask; use defaults for everything that is not given.")
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
    as_json: bool,
    **options: Any,
) -> None:
    """Create consumer NAME on STREAM, ephemeral without a name. On a terminal, without options, it asks."""
    asks = sys.stdin.isatty() and not defaults
    if stream is None:
        if not asks:
            fail("which stream? give its name, like: jetlake consumer add ORDERS worker --pull", EXIT_USAGE)
        stream = ask_stream()
    if asks and not (given_fields(options) or pull or ephemeral or deliver or pause or config):
        name, deliver, answers = ask_consumer(name)
        options.update(answers)
    if pull and options["deliver_subject"]:
        fail("--pull and --target exclude each other: a pull consumer has no target", EXIT_USAGE)
    made = _new_config(name, options, deliver, pause, config, ephemeral=ephemeral)
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        await create_consumer(js.api, stream, made, ConsumerAction.CREATE)
        print_info(await handle.consumer_info(made.name), as_json, f"Consumer {stream} > {made.name} was made")


def _new_config(
    name: str | None,
    options: dict[str, Any],
    deliver: Start | None,
    pause: int | None,
    config: str | None,
    *,
    ephemeral: bool,
) -> ConsumerConfig:
    """Return the configuration of a new consumer: that of the file, and over it the options."""
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


@click.command("edit", cls=SharedCommand, example="jetlake consumer edit ORDERS worker --max-deliver 5")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@config_options
@click.option("--config", metavar="FILE", help="Read the whole configuration from a JSON file; options override it.")
@json_option
@command
async def edit(session: Session, stream: str, name: str, config: str | None, as_json: bool, **options: Any) -> None:
    """Change the configuration of consumer NAME on STREAM."""
    fields = given_fields(options)
    if not fields and not config:
        fail("nothing to change; give an option such as --max-deliver 5", EXIT_USAGE)
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        info = await handle.consumer_info(name)
        base = read_config(config, ConsumerConfig) if config else info.config
        await create_consumer(js.api, stream, with_fields(base, {**fields, "name": name}), ConsumerAction.UPDATE)
        print_info(await handle.consumer_info(name), as_json, f"Consumer {stream} > {name} was changed")


@click.command("copy", cls=SharedCommand, example="jetlake consumer copy ORDERS worker worker-2 --max-deliver 5")
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
        print_info(await handle.consumer_info(new_name), as_json, f"Consumer {stream} > {new_name} was made")


@click.command("rm", cls=SharedCommand, example="jetlake consumer rm ORDERS worker --force")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@force_option
@json_option
@command
async def remove(session: Session, stream: str, name: str, force: bool, as_json: bool) -> None:
    """Delete consumer NAME from STREAM."""
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        await handle.consumer_info(name)
        confirm(f"Remove consumer {stream} > {name}?", force)
        await handle.delete_consumer(name)
    output.tell(f"Consumer {stream} > {name} was removed", {"stream": stream, "removed": name}, as_json)
