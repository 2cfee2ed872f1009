"""`jetlake pipeline requeue`: dead letters back into the streams they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from jetlake.cli.session import Session, command
from jetlake.cli.shared_options import SharedCommand
from jetlake.errors import MessageNotFoundError

if TYPE_CHECKING:
    from jetlake.client.jetstream import JetStream
    from jetlake.client.streams.stored_message import StoredMessage
    from jetlake.client.streams.stream import Stream

__all__ = ["requeue"]

_PREFIX = "Dead-Letter-"
# These were about the publish that they came with.
_NOT_COPIED = ("Nats-Msg-Id", "Nats-Expected-")


@click.command(cls=SharedCommand)
@click.argument("letters")
@click.option("--of", "streams", multiple=True, metavar="STREAM", help="Only letters of these streams.")
@click.option("--consumer", "consumers", multiple=True, metavar="NAME", help="Only letters of these consumers.")
@click.option("--reason", type=click.Choice(["max_deliveries", "terminated"]), help="Only letters of that reason.")
@click.option("--from-seq", default=1, type=click.IntRange(1), help="Only letters from that sequence of LETTERS on.")
@click.option("--to-seq", type=click.IntRange(1), help="Only letters up to that sequence of LETTERS.")
@click.option("--keep", is_flag=True, help="Leave the letters in LETTERS; they are deleted otherwise.")
@click.option("--dry-run", is_flag=True, help="Say what would be published, and change nothing.")
@command
async def requeue(
    session: Session,
    letters: str,
    streams: tuple[str, ...],
    consumers: tuple[str, ...],
    reason: str | None,
    from_seq: int,
    to_seq: int | None,
    keep: bool,
    dry_run: bool,
) -> None:
    """Publish the messages of the dead letters in stream LETTERS again, where they were first published.

    Every consumer of their stream gets them, not only the one that gave up.
    """
    wanted = {"Stream": streams, "Consumer": consumers, "Reason": (reason,) if reason else ()}
    counted: Counter[str] = Counter()
    async with session.jetstream() as js:
        stream = await js.stream(letters)
        async for letter in _letters(stream, from_seq, to_seq):
            said = {key: letter.headers.get(_PREFIX + key) for key in ("Stream", "Consumer", "Reason", "Subject")}
            if not said["Stream"]:
                counted["no dead letters"] += 1
            elif any(values and said[key] not in values for key, values in wanted.items()):
                counted["not chosen"] += 1
            elif letter.headers.get(_PREFIX + "Missing") or not said["Subject"]:
                counted["without their message, left where they are"] += 1
            elif dry_run:
                counted["would be published"] += 1
                click.echo(f"{letter.sequence}: {said['Subject']} in {said['Stream']}, {len(letter.payload)} bytes")
            else:
                counted[await _publish(js, letters, letter, str(said["Stream"]), str(said["Subject"]))] += 1
                if not keep:
                    await stream.delete_message(letter.sequence)
    click.echo(", ".join(f"{number} {what}" for what, number in counted.items()) or "no letters")


async def _letters(stream: Stream, first: int, last: int | None) -> AsyncIterator[StoredMessage]:
    """The letters that are there now, one request each: they are few."""
    end = min((await stream.info()).state.last_seq, last or (1 << 62))
    while first <= end:
        try:
            letter = await stream.get(first, next_by_subject=">", direct=False)
        except MessageNotFoundError:
            return
        if letter.sequence > end:
            return
        yield letter
        first = letter.sequence + 1


async def _publish(js: JetStream, letters: str, letter: StoredMessage, stream: str, subject: str) -> str:
    own: dict[str, list[str]] = {}
    for key, value in letter.headers.items():
        if not key.startswith((_PREFIX, *_NOT_COPIED)):
            own.setdefault(key, []).append(value)
    # A run that was cut off before it deleted the letter comes with the same id.
    message_id = f"requeue:{letters}:{letter.sequence}"
    ack = await js.publish(subject, letter.payload, headers=dict(own), msg_id=message_id, expected_stream=stream)
    return "published before" if ack.duplicate else "published"
