"""`jetlake counter …`: the counters of a stream that was made with --allow-counter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jetlake.cli import output
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedGroup

if TYPE_CHECKING:
    from jetlake.client import JetStream
    from jetlake.client.counters.counters import Counters


@click.group(cls=SharedGroup)
def counter() -> None:
    """Read and increment counters, one for each subject of a stream with --allow-counter."""


_subject = click.argument("subject")
_stream = click.option("--stream", metavar="STREAM", shell_complete=stream_names, help="Stream that holds the counter.")


async def _counters(js: JetStream, subject: str, stream: str | None) -> Counters:
    """Return the counters of the stream that is named, or that captures the subject."""
    if not stream:
        found = await js.stream_names(subject=subject)
        if not found:
            example = f"jetlake stream add HITS --subjects '{subject}' --allow-counter"
            fail(f"no stream captures {subject!r}. Create one: {example}")
        stream = found[0]
    return await js.counters(stream)


@counter.command("get", example="jetlake counter get hits.home")
@_subject
@_stream
@json_option
@command
async def get(session: Session, subject: str, stream: str | None, as_json: bool) -> None:
    """Print the value of the counter SUBJECT."""
    async with session.jetstream() as js:
        value = await (await _counters(js, subject, stream)).get(subject)
    output.tell(str(value), {"subject": subject, "value": str(value)}, as_json)


@counter.command("view", example="jetlake counter view hits.home")
@_subject
@_stream
@json_option
@command
async def view(session: Session, subject: str, stream: str | None, as_json: bool) -> None:
    """Show the counter SUBJECT with its last increment, and what other streams contributed."""
    async with session.jetstream() as js:
        entry = await (await _counters(js, subject, stream)).entry(subject)
    sources = {name: {key: str(value) for key, value in values.items()} for name, values in entry.sources.items()}
    if as_json:
        increment = str(entry.increment)
        output.print_json({"subject": subject, "value": str(entry.value), "increment": increment, "sources": sources})
        return
    output.print_facts(
        f"Counter {subject}",
        {
            "": [("Value", entry.value), ("Increment", entry.increment), ("Subject", entry.subject)],
            "Sources": [
                (f"{name} > {key}", value) for name, values in sources.items() for key, value in values.items()
            ],
        },
    )


@counter.command("increment", example="jetlake counter increment hits.home 5")
@_subject
@click.argument("value", default="1")
@_stream
@json_option
@command
async def increment(session: Session, subject: str, value: str, stream: str | None, as_json: bool) -> None:
    """Add VALUE, below zero too, to the counter SUBJECT, and print the new value."""
    try:
        step = int(value)
    except ValueError:
        fail(f"{value!r} is not a whole number", EXIT_USAGE)
    async with session.jetstream() as js:
        total = await (await _counters(js, subject, stream)).add(subject, step)
    output.tell(str(total), {"subject": subject, "value": str(total)}, as_json)


@counter.command("ls", example="jetlake counter ls 'hits.>'")
@click.argument("subject", required=False)
@_stream
@json_option
@command
async def list_counters(session: Session, subject: str | None, stream: str | None, as_json: bool) -> None:
    """List the counters that match SUBJECT."""
    if not subject and not stream:
        fail("use a subject or --stream", EXIT_USAGE)
    async with session.jetstream() as js:
        counters = await _counters(js, subject or ">", stream)
        info = await counters.stream.info(subjects_filter=subject or ">")
    output.print_names(sorted(info.state.subjects), as_json)
