"""`jetlake dead-letters …`: shows dead letters, and publishes them again into the streams they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from jetlake.cli import output
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_FAILED, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.model.dead_letter import HEADER_PREFIX, REASONS, letter_header, why_left

if TYPE_CHECKING:
    from jetlake.client.streams.stored_message import StoredMessage
    from jetlake.client.streams.stream import Stream


_SEQUENCE_MAX = 1 << 62


class Selection(Struct, frozen=True):
    """Which letters of a stream a command is about; empty tuples choose all."""

    streams: tuple[str, ...]
    consumers: tuple[str, ...]
    reason: str | None
    from_seq: int
    to_seq: int | None

    async def of(self, stream: Stream) -> AsyncIterator[StoredMessage]:
        """Yield the messages of these sequences that the stream of letters holds now."""
        from jetlake.client.streams.dead_letters import dead_letters_between

        last = min((await stream.info()).state.last_seq, self.to_seq or _SEQUENCE_MAX)
        async for letter in dead_letters_between(stream, self.from_seq, last):
            yield letter

    def includes(self, letter: StoredMessage) -> bool:
        """Return whether a letter is chosen."""
        return (
            (not self.streams or letter_header(letter.headers, "Stream") in self.streams)
            and (not self.consumers or letter_header(letter.headers, "Consumer") in self.consumers)
            and (self.reason is None or letter_header(letter.headers, "Reason") == self.reason)
        )


def _selecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument and the options that choose letters."""
    for decorate in (
        click.option("--to-seq", type=click.IntRange(1), help="Only letters up to this sequence of LETTERS."),
        click.option(
            "--from-seq", default=1, type=click.IntRange(1), help="Only letters from this sequence of LETTERS on."
        ),
        click.option("--reason", type=click.Choice(REASONS), help="Only letters with this reason."),
        click.option(
            "--consumer", "consumers", multiple=True, metavar="NAME", help="Only letters from these consumers."
        ),
        click.option("--of", "streams", multiple=True, metavar="STREAM", help="Only letters from these streams."),
        click.argument("letters", shell_complete=stream_names),
    ):
        function = decorate(function)
    return function


@click.group("dead-letters", cls=SharedGroup)
def dead_letters() -> None:
    """List, show and replay dead letters."""


@dead_letters.command("ls", example="jetlake dead-letters ls DEAD --of ORDERS")
@_selecting
@json_option
@command
async def list_letters(session: Session, letters: str, as_json: bool, **chosen: Any) -> None:
    """List the dead letters in stream LETTERS."""
    selection = Selection(**chosen)
    names = ("Time", "Stream", "Consumer", "Sequence", "Subject", "Reason", "Deliveries", "Description")
    async with session.jetstream() as js:
        rows = [
            (letter.sequence, *(letter_header(letter.headers, name) for name in names))
            async for letter in selection.of(await js.stream(letters))
            if letter_header(letter.headers, "Stream") and selection.includes(letter)
        ]
    if as_json:
        keys = ("letter", *(name.lower() for name in names))
        output.print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif rows:
        output.print_table(f"Dead letters in {letters}", ("Letter", *names), rows, numbers=(0, 4, 7), spare=(1, 7))
    else:
        click.echo(f"No dead letters in {letters}")


@dead_letters.command("show", example="jetlake dead-letters show DEAD 7")
@click.argument("letters", shell_complete=stream_names)
@click.argument("sequence", type=click.IntRange(1))
@json_option
@command
async def show(session: Session, letters: str, sequence: int, as_json: bool) -> None:
    """Show letter SEQUENCE of stream LETTERS: what happened, the traceback, the message."""
    async with session.jetstream() as js:
        letter = await (await js.stream(letters)).get(sequence, direct=False)
    if not letter_header(letter.headers, "Stream"):
        fail(f"message {sequence} of {letters} is not a dead letter")
    if as_json:
        headers = [list(pair) for pair in letter.headers.items()]
        output.print_json({"letter": sequence, "headers": headers, "data": letter.payload})
        return
    traceback = HEADER_PREFIX + "Traceback"
    said = [(key, value) for key, value in letter.headers.items() if key != traceback]
    for line in (
        *(output.printable(f"{key}: {value}") for key, value in said),
        "",
        *letter.headers.get_all(traceback),
        "",
    ):
        click.echo(line)
    click.echo(letter.payload.decode("utf-8", "backslashreplace"))


@click.command(cls=SharedCommand, example="jetlake dead-letters replay DEAD --consumer worker --dry-run")
@_selecting
@click.option("--keep", is_flag=True, help="Keep the dead letters in LETTERS instead of deleting them.")
@click.option("--dry-run", is_flag=True, help="Show what would be published, without changing anything.")
@json_option
@command
async def replay(session: Session, letters: str, keep: bool, dry_run: bool, as_json: bool, **chosen: Any) -> None:
    """Publish the messages of the dead letters in stream LETTERS to their original subjects.

    Every consumer of their stream gets them, not only the one that gave up.
    """
    from jetlake.client.streams.dead_letters import REFUSED, DeadLetterReplay

    selection = Selection(**chosen)
    counted: Counter[str] = Counter()
    async with session.jetstream() as js:
        stream = await js.stream(letters)
        replaying = DeadLetterReplay(js.publish, js.stream, stream, _warn, keep=keep)
        async for letter in selection.of(stream):
            if letter_header(letter.headers, "Stream") and not selection.includes(letter):
                counted["not chosen"] += 1
            elif dry_run:
                counted[_foresee(letter, as_json)] += 1
            else:
                counted[await replaying.replay(letter)] += 1
    sentence = ", ".join(f"{number} {what}" for what, number in counted.items())
    output.tell(sentence or "no dead letters", counted, as_json)
    if counted[REFUSED]:
        raise SystemExit(EXIT_FAILED)


dead_letters.add_command(replay)


def _foresee(letter: StoredMessage, as_json: bool) -> str:
    """Return what would become of a letter, and print where its message would go."""
    if left := why_left(letter.headers):
        return left
    if not as_json:
        subject, origin = (letter_header(letter.headers, name) for name in ("Subject", "Stream"))
        click.echo(output.printable(f"{letter.sequence}: {subject} in {origin}, {len(letter.payload)} bytes"))
    return "would be published"


def _warn(text: str) -> None:
    click.echo(f"jetlake: {text}", err=True)
