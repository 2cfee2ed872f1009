"""Dead letters in a stream: finds them, and publishes their messages again where they were first published."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import ApiError, MessageNotFoundError, NoRespondersError
from jetlake.model.dead_letter import letter_header, own_headers, replay_id, why_left
from jetlake.model.publish import PubAck

__all__ = ["REFUSED", "letters_between", "replay_letter"]

REFUSED = "refused, left where they are"
"""What became of letters whose messages their stream does not take any more."""


async def letters_between(stream: Stream, first: int, last: int) -> AsyncIterator[StoredMessage]:
    """Yield the messages of these sequences, one request each: letters are few."""
    while first <= last:
        try:
            letter = await stream.get(first, next_by_subject=">", direct=False)
        except MessageNotFoundError:
            return
        if letter.sequence > last:
            return
        yield letter
        first = letter.sequence + 1


async def replay_letter(
    publish: Callable[..., Awaitable[PubAck]],
    letters: Stream,
    letter: StoredMessage,
    report: Callable[[str], None],
    *,
    keep: bool = False,
) -> str:
    """Publish a letter's message, and delete the letter when the message is stored.

    A letter whose message is refused holds up no other: the report says why, and the letter stays.

    Args:
        publish: publishes to JetStream.
        keep: leave the letter.

    Returns:
        What became of it, for counting.

    Raises:
        ClientConnectionError, RequestTimeoutError: the server does not answer.
    """
    headers = letter.headers
    if left := why_left(headers):
        return left
    origin, subject = letter_header(headers, "Stream"), letter_header(headers, "Subject")
    try:
        ack = await publish(
            subject,
            letter.payload,
            headers=own_headers(headers.items()),
            msg_id=replay_id(letters.name, letter.sequence, letter.time_ns),
            expected_stream=origin,
        )
    except (ApiError, NoRespondersError, ValueError) as error:
        report(f"letter {letter.sequence}, {subject} in {origin}: {error}")
        return REFUSED
    if not keep:
        await _delete(letters, letter.sequence)
    return "published before" if ack.duplicate else "published"


async def _delete(letters: Stream, sequence: int) -> None:
    """Delete a letter, unless another replay was quicker."""
    try:
        await letters.delete_message(sequence)
    except ApiError:
        try:
            await letters.get(sequence, direct=False)
        except MessageNotFoundError:
            return
        raise
