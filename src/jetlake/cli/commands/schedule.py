"""`jetlake schedule …`: messages that a stream publishes later, or again and again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.message_content import headers_of, headers_option, value_of
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION
from jetlake.errors import MessageNotFoundError
from jetlake.model.encoding.durations import seconds
from jetlake.model.encoding.times import wire_time

if TYPE_CHECKING:
    from jetlake.client import StoredMessage, Stream


_AT_ONCE = 100
"""How many subjects are asked for at a time: a stream of jobs may be one that no other consumer can read."""


@click.group(cls=SharedGroup)
def schedule() -> None:
    """Schedule messages: at a time, at an interval, or by a cron expression."""


@schedule.command("add", example="jetlake schedule add jobs.plan.clean clean --target jobs.run --every 1h")
@click.argument("subject")
@click.argument("body", required=False)
@click.option("--target", required=True, metavar="SUBJECT", help="Where messages are published, in the same stream.")
@click.option("--at", metavar="TIME", help="Once, at this time, like 2026-01-31T12:00:00Z.")
@click.option("--in", "delay", type=DURATION, help="Once, after this long.")
@click.option("--every", type=DURATION, help="At this interval.")
@click.option(
    "--cron", metavar="LINE", help="A cron expression of six fields including seconds, or @daily and the like."
)
@click.option("--tz", "time_zone", metavar="NAME", help="Time zone of the cron expression, like Europe/Berlin.")
@click.option("--source", metavar="SUBJECT", help="Publish the newest message of this subject instead of the body.")
@click.option("--ttl", type=DURATION, help="Lifetime of published messages.")
@click.option("--rollup", is_flag=True, help="A published message replaces all earlier ones of the target.")
@headers_option
@json_option
@command
async def add(
    session: Session,
    subject: str,
    body: str | None,
    target: str,
    at: str | None,
    delay: int | None,
    every: int | None,
    ttl: int | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Store a schedule on SUBJECT that publishes BODY (or standard input) to the target.

    The stream needs --allow-schedules. A subject holds one schedule.
    """
    if sum(given is not None for given in (at, delay, every, options["cron"])) != 1:
        fail("use exactly one of --at, --in, --every and --cron", EXIT_USAGE)
    if delay is not None:
        at = wire_time(time.time_ns() + delay)
    async with session.jetstream() as js:
        ack = await js.schedule(
            subject,
            b"" if options["source"] and body is None else value_of(body),
            target=target,
            at=at,
            every=None if every is None else seconds(every),
            message_ttl=seconds(ttl) if ttl else None,
            publish={"headers": headers_of(headers)} if headers else None,
            **options,
        )
    sentence = f"Stored schedule {subject} in {ack.stream} as sequence {ack.seq}"
    output.tell(sentence, {"stream": ack.stream, "seq": ack.seq}, as_json)


@schedule.command("ls", example="jetlake schedule ls JOBS")
@click.argument("stream", shell_complete=stream_names)
@click.option("--filter", "pattern", default=">", show_default=True, help="Only schedules on subjects that match.")
@json_option
@command
async def list_schedules(session: Session, stream: str, pattern: str, as_json: bool) -> None:
    """List the schedules in STREAM."""
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        subjects = sorted((await handle.info(subjects_filter=pattern)).state.subjects)
        found = []
        for first in range(0, len(subjects), _AT_ONCE):
            asked = (_schedule(handle, subject) for subject in subjects[first : first + _AT_ONCE])
            found += await asyncio.gather(*asked)
    rows = [_fields(message) for message in found if message is not None]
    if as_json:
        output.print_json(rows)
    elif not rows:
        click.echo(f"No schedules in {stream}")
    else:
        names = ("subject", "seq", "schedule", "target", "time_zone", "created", "bytes")
        output.print_table(
            f"{output.plural(len(rows), 'schedule')} in {stream}",
            ["Subject", "Sequence", "Schedule", "Target", "Time zone", "Created", "Bytes"],
            [[row[name] for name in names] for row in rows],
            numbers=[1, 6],
            spare=[6, 5, 1, 4],
        )


async def _schedule(stream: Stream, subject: str) -> StoredMessage | None:
    """Get the schedule that a subject holds: its newest message, if that is one."""
    try:
        message = await stream.get(last_by_subject=subject, direct=False)
    except MessageNotFoundError:
        return None
    return message if "Nats-Schedule" in message.headers else None


def _fields(message: StoredMessage) -> dict[str, Any]:
    headers = message.headers
    return {
        "subject": message.subject,
        "seq": message.sequence,
        "schedule": headers["Nats-Schedule"],
        "target": headers.get("Nats-Schedule-Target") or "",
        "time_zone": headers.get("Nats-Schedule-Time-Zone") or "",
        "created": output.when(message.time),
        "bytes": len(message.payload),
    }


@schedule.command("rm", example="jetlake schedule rm JOBS jobs.plan.clean --force")
@click.argument("stream", shell_complete=stream_names)
@click.argument("subject")
@force_option
@json_option
@command
async def remove(session: Session, stream: str, subject: str, force: bool, as_json: bool) -> None:
    """Delete the schedule on SUBJECT of STREAM."""
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        if await _schedule(handle, subject) is None:
            fail(f"{stream} has no schedule on {subject}. List schedules: jetlake schedule ls {stream}")
        confirm(f"Delete schedule {subject} of {stream}?", force)
        await handle.purge(subject=subject)
    output.tell(f"Deleted schedule {subject} of {stream}", {"stream": stream, "removed": subject}, as_json)
