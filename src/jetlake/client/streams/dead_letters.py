"""The dead letters of a stream: found, and replayed to the streams that their messages came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import (
    ApiError,
    ClientConnectionError,
    JetlakeError,
    MessageNotFoundError,
    NoRespondersError,
    RequestTimeoutError,
)
from jetlake.model.dead_letter import letter_header, own_headers, replay_id, replay_prefix, why_left
from jetlake.model.encoding.times import parse_time, wire_time
from jetlake.model.enums import RetentionPolicy
from jetlake.model.publish import PubAck
from jetlake.protocol.headers import find_value

REFUSED = "refused, left where they are"
"""The result for dead letters whose messages are refused by their stream."""

_PUBLISHED = "published"
_PUBLISHED_BEFORE = "published before"
# How far the clocks of a cluster's servers may be apart.
_CLOCKS_NS = 60 * 1_000_000_000
_READ_MESSAGES = 1000
# What JSON has for bytes that are no text: letters of messages that were fetched as JSON have it in their subjects.
_REPLACEMENT = "\ufffd"


class ReplayedLetters(NamedTuple):
    """The result of one `replay_dead_letters`."""

    published: int
    """Messages that were published."""
    published_before: int
    """Messages that an earlier replay, which broke off, had published already."""
    refused: tuple[str, ...]
    """Why messages were refused, one text each; their letters are left."""


async def dead_letters_between(stream: Stream, first: int, last: int) -> AsyncIterator[StoredMessage]:
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


class DeadLetterReplay:
    """Publishes the messages of letters, and deletes each letter when its message is stored.

    A replay that broke off between the two finds the letter again. Its message has the id of the first attempt, which
    the stream knows for its duplicate window; of a letter that is older, the stream is searched for the id first.

    Args:
        publish: publishes to JetStream.
        open_stream: finds a stream by its name.
        letters: the stream of letters.
        report: called with the reason why a message is refused; its dead letter stays and blocks no other.
        keep: leave the dead letters, so that they can be replayed again.
    """

    def __init__(
        self,
        publish: Callable[..., Awaitable[PubAck]],
        open_stream: Callable[[str], Awaitable[Stream]],
        letters: Stream,
        report: Callable[[str], None],
        *,
        keep: bool = False,
    ) -> None:
        self._publish = publish
        self._open_stream = open_stream
        self._letters = letters
        self._report = report
        self._keep = keep
        self._stored: dict[tuple[str, str], frozenset[str]] = {}

    async def replay(self, letter: StoredMessage) -> str:
        """Publish the message of a letter; letters are given in the order of their sequences.

        Returns:
            What became of it, for counting.

        Raises:
            ClientConnectionError, RequestTimeoutError: the server does not answer.
        """
        headers = letter.headers
        if left := why_left(headers):
            return left
        origin, subject = letter_header(headers, "Stream"), letter_header(headers, "Subject")
        if _REPLACEMENT in subject:
            self._report(
                f"letter {letter.sequence}, {subject} in {origin}: the bytes of the subject are no UTF-8 text and "
                "the letter has lost them: publish its message yourself and delete the letter"
            )
            return REFUSED
        msg_id = replay_id(self._letters.name, letter.sequence, letter.time_ns)
        if not self._keep and msg_id in await self._stored_ids(origin, subject, letter.time_ns):
            await _delete(self._letters, letter.sequence)
            return _PUBLISHED_BEFORE
        try:
            ack = await self._publish(
                subject,
                letter.payload,
                headers=own_headers(headers.items()),
                msg_id=msg_id,
                expected_stream=origin,
            )
        except (ApiError, NoRespondersError, ValueError) as error:
            self._report(f"letter {letter.sequence}, {subject} in {origin}: {error}")
            return REFUSED
        if not self._keep:
            await _delete(self._letters, letter.sequence)
        return _PUBLISHED_BEFORE if ack.duplicate else _PUBLISHED

    async def replay_all(self, of: str, consumer: str, refused: list[str]) -> ReplayedLetters:
        """Publish the messages of all dead letters in the stream, or only of one stream or consumer.

        Args:
            of: the stream that the messages are of; empty for all.
            consumer: the consumer that gave them up; empty for all.
            refused: what `report` has added to.
        """
        counted: Counter[str] = Counter()
        last = (await self._letters.info()).state.last_seq
        async for letter in dead_letters_between(self._letters, 1, last):
            headers = letter.headers
            if of in ("", letter_header(headers, "Stream")) and consumer in ("", letter_header(headers, "Consumer")):
                counted[await self.replay(letter)] += 1
        return ReplayedLetters(counted[_PUBLISHED], counted[_PUBLISHED_BEFORE], tuple(refused))

    async def _stored_ids(self, origin: str, subject: str, since_ns: int) -> frozenset[str]:
        """Return the ids of replayed messages on a subject; the first letter of a subject is its oldest."""
        key = (origin, subject)
        if key not in self._stored:
            try:
                self._stored[key] = await self._find_ids(await self._open_stream(origin), subject, since_ns)
            except (ClientConnectionError, RequestTimeoutError):
                raise
            except (JetlakeError, ValueError):
                # A user may publish without permission to read; the stream's own deduplication is left then.
                self._stored[key] = frozenset()
        return self._stored[key]

    async def _find_ids(self, stream: Stream, subject: str, since_ns: int) -> frozenset[str]:
        since_ns -= _CLOCKS_NS
        info = stream.cached_info
        if not info.state.messages or parse_time(info.ts) - since_ns < stream.config.duplicate_window:
            return frozenset()
        is_readable = stream.config.retention is RetentionPolicy.LIMITS
        read = _read_headers if is_readable else _get_headers
        prefix = replay_prefix(self._letters.name).encode()
        found: set[str] = set()
        async for header in read(stream, subject, since_ns):
            msg_id = find_value(header, b"Nats-Msg-Id") or b""
            if msg_id.startswith(prefix):
                found.add(msg_id.decode("utf-8", "replace"))
        return frozenset(found)


async def _read_headers(stream: Stream, subject: str, since_ns: int) -> AsyncIterator[bytes]:
    """Yield the header blocks of a subject's messages from a time on."""
    reader = stream.ordered(
        deliver_policy="by_start_time",
        opt_start_time=wire_time(since_ns),
        filter_subject=subject,
        headers_only=True,
        name_prefix="replay",
    )
    try:
        while messages := await reader.fetch(_READ_MESSAGES, no_wait=True):
            for message in messages:
                yield message.raw_header
            if messages[-1].metadata.stream_seq >= stream.cached_info.state.last_seq:
                return
    finally:
        await reader.delete()


async def _get_headers(stream: Stream, subject: str, since_ns: int) -> AsyncIterator[bytes]:
    """Yield the same of a stream whose consumers a reader would compete with, one request each."""
    last = stream.cached_info.state.last_seq
    try:
        message = await stream.get(start_time=wire_time(since_ns), next_by_subject=subject, direct=False)
        while True:
            yield message.header
            if message.sequence >= last:
                return
            message = await stream.get(message.sequence + 1, next_by_subject=subject, direct=False)
    except MessageNotFoundError:
        pass


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
