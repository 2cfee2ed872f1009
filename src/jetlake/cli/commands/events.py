"""`jetlake events …`: what the server announces, as it comes or collected in a stream."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION

if TYPE_CHECKING:
    from jetlake.client import Message


_ADVISORIES, _METRICS = "$JS.EVENT.ADVISORY.>", "$JS.EVENT.METRIC.>"
_OF_SERVER = (
    "$SYS.ACCOUNT.*.CONNECT",
    "$SYS.ACCOUNT.*.DISCONNECT",
    "$SYS.SERVER.*.CLIENT.AUTH.ERR",
    "$SYS.SERVER.*.SHUTDOWN",
    "$SYS.SERVER.*.LAMEDUCK",
)
_API_AUDIT = "$JS.EVENT.ADVISORY.API"
# Fields that a line has no room for, or has in front.
_LEFT_OUT = frozenset({"type", "id", "timestamp", "request", "response", "server", "client"})
_SHORT = ("stream", "consumer", "action", "reason")
"""The fields of a line with `--short`."""
_WAITING_MAX = 1024


@click.group(
    cls=SharedGroup, invoke_without_command=True, example="jetlake events --js-metric --filter ORDERS --count 10"
)
@click.option(
    "--js-advisory/--no-js-advisory", "advisories", default=True, help="Advisories about streams and consumers."
)
@click.option("--js-metric", "metrics", is_flag=True, help="Ack samples.")
@click.option("--audit", is_flag=True, help="Requests of the JetStream API.")
@click.option("--srv-advisory", "of_server", is_flag=True, help="Connections and servers; for the system account.")
@click.option("-a", "--all", "everything", is_flag=True, help="Advisories, ack samples, connections and servers.")
@click.option("--short", is_flag=True, help="Print only the time, the kind, and the stream, consumer or client.")
@click.option("--subject", "subjects", multiple=True, metavar="SUBJECT", help="Messages on this subject.")
@click.option("--filter", "pattern", metavar="REGEX", help="Only events whose JSON matches.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N events.")
@json_option
@click.pass_context
def events(ctx: click.Context, /, **options: Any) -> None:
    """Print the server's events until Ctrl-C, or collect them in a stream with a command below."""
    if ctx.invoked_subcommand is None:
        _watch(**options)


@command
async def _watch(
    session: Session,
    advisories: bool,
    metrics: bool,
    audit: bool,
    of_server: bool,
    everything: bool,
    short: bool,
    subjects: tuple[str, ...],
    pattern: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    wanted = [
        *([_ADVISORIES] if advisories else [_API_AUDIT] if audit else []),
        *([_METRICS] if metrics or everything else []),
        *(_OF_SERVER if of_server or everything else []),
        *subjects,
    ]
    if not wanted:
        fail("no events selected; remove --no-js-advisory or use another option", EXIT_USAGE)
    try:
        fits = re.compile(pattern.encode() if pattern else b"")
    except re.error as error:
        fail(f"--filter {pattern}: {error}", EXIT_USAGE)
    waiting: asyncio.Queue[Message] = asyncio.Queue(_WAITING_MAX)
    async with await session.connect(stay=True) as client:
        for subject in wanted:
            await client.subscribe(subject, waiting.put)
        await client.flush()
        raise_refused(client)
        click.echo(f"Listening to {', '.join(wanted)}; press Ctrl-C to stop", err=True)
        number = 0
        while number != count:
            message = await waiting.get()
            if fits.search(message.data) and (audit or not message.subject.startswith(_API_AUDIT)):
                number += 1
                click.echo(message.data if as_json else _line(message, short))


def _line(message: Message, short: bool) -> str:
    """Write an event as one line: when, what, and its facts."""
    try:
        event = msgspec.json.decode(message.data)
    except msgspec.DecodeError:
        event = None
    if not isinstance(event, dict):
        return f"{message.subject}: {message.data.decode('utf-8', 'backslashreplace')}"
    kind = str(event.get("type", message.subject)).rpartition(".")[2]
    client = event.get("client")
    facts = [(key, value) for key, value in event.items() if key not in _LEFT_OUT and value not in (None, "")]
    if short:
        facts = [(key, value) for key, value in facts if key in _SHORT]
    if isinstance(client, dict):
        facts += [(f"client {key}", client[key]) for key in ("name", "user", "host") if client.get(key)]
    told = ", ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in facts)
    return output.printable(f"{str(event.get('timestamp', ''))[:19].replace('T', ' ')} {kind}: {told}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@events.command(example="jetlake events init --max-age 30d")
@click.option("--name", default="EVENTS", show_default=True, help="Name of the stream.")
@click.option("--max-age", default="7d", show_default=True, type=DURATION, help="How long events are kept.")
@json_option
@command
async def init(session: Session, name: str, max_age: int, as_json: bool) -> None:
    """Create the stream that health and dead-letters read, unless it exists."""
    from jetlake.spark.pipelines.event_pipeline import EVENT_SUBJECTS, events_config

    async with session.jetstream() as js:
        await js.create_or_update_stream(name, **events_config(max_age_s=max_age / 1e9))
    sentence = (
        f"Stream {name} collects {', '.join(EVENT_SUBJECTS)}\n"
        "Ack samples need a consumer with a sample rate: jetlake consumer add … --sample 100"
    )
    output.tell(sentence, {"stream": name, "subjects": EVENT_SUBJECTS}, as_json)
