"""The handle of a stream of counters."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import DecodeError, InvalidOptionError, MessageNotFoundError
from jetlake.model.encoding.codec import decode

__all__ = ["CounterEntry", "Counters"]


class _Body(Struct):
    val: str


class CounterEntry(Struct, frozen=True):
    """A counter as its last message says."""

    subject: str
    """The counter's subject."""
    value: int
    """Its value, of any size."""
    increment: int
    """What was added last."""
    sequence: int
    """The sequence of the last message."""
    sources: dict[str, dict[str, int]]
    """What each stream contributed, by stream and subject; of a counter that adds those of other streams up."""


class Counters:
    """The counters of a stream, one for each subject; made by `JetStream.counters`.

    Attributes:
        stream: the stream that holds them.
    """

    __slots__ = ("_publisher", "stream")

    def __init__(self, publisher: Publisher, stream: Stream) -> None:
        if not stream.config.allow_msg_counter or not stream.config.allow_direct:
            raise InvalidOptionError(
                f"stream {stream.name!r} has no counters: it needs allow_msg_counter, allow_direct"
            )
        self._publisher = publisher
        self.stream = stream

    def __repr__(self) -> str:
        return f"<Counters {self.stream.name!r}>"

    async def add(self, subject: str, increment: int = 1, *, msg_id: str | None = None) -> int:
        """Add to a counter, which begins at 0.

        Args:
            subject: the counter.
            increment: what to add; a negative number subtracts.
            msg_id: an id by which the stream recognises an increment that it has already, so that adding again after a
                lost answer is safe; the value of one that it had is then asked for.

        Returns:
            The new value.
        """
        if isinstance(increment, bool) or not isinstance(increment, int):
            raise InvalidOptionError(f"increment is a whole number, not {increment!r}")
        headers = {"Nats-Incr": f"{increment:+d}"}
        ack = await self._publisher.publish(subject, b"", {"headers": headers, "msg_id": msg_id})
        return int(ack.val) if ack.val else await self.get(subject)

    async def get(self, subject: str) -> int:
        """Return the value of a counter; 0 for one that nobody has added to."""
        try:
            return (await self.entry(subject)).value
        except MessageNotFoundError:
            return 0

    async def entry(self, subject: str) -> CounterEntry:
        """Return a counter with what was added last, and where it comes from.

        Raises:
            MessageNotFoundError: nobody has added to it.
        """
        return _entry(await self.stream.get(last_by_subject=subject))

    async def entries(self, *subjects: str) -> AsyncIterator[CounterEntry]:
        """Yield all counters, or those whose subjects match one of these, with one request.

        Raises:
            PullStatusError: more counters match than the server sends at a time (1024).
        """
        async for message in self.stream.get_batch(last_by_subjects=subjects or (">",)):
            yield _entry(message)


def _entry(message: StoredMessage) -> CounterEntry:
    headers = message.headers
    try:
        sources = decode(dict[str, dict[str, str]], (headers.get("Nats-Counter-Sources") or "{}").encode())
        return CounterEntry(
            message.subject,
            int(decode(_Body, message.payload).val),
            int(headers.get("Nats-Incr") or 0),
            message.sequence,
            {stream: {subject: int(value) for subject, value in own.items()} for stream, own in sources.items()},
        )
    except ValueError as error:
        raise DecodeError(f"message {message.sequence} on {message.subject!r} is no counter: {error}") from None
