"""The handle of a stream of counters."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from decimal import Decimal

from msgspec import Struct

from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import DecodeError, InvalidOptionError, MessageNotFoundError
from jetlake.model.encoding.codec import decode

# A header block has 64 KiB, so an increment has no more digits; and to read a million of them takes minutes.
_DIGITS_MAX = 65_000
_match_number = re.compile(f"[+-]?[0-9]{{1,{_DIGITS_MAX}}}").fullmatch
_INCREMENT_BITS_MAX = 215_000


class _Body(Struct):
    val: str


class CounterEntry(Struct, frozen=True):
    """A counter as its last message says."""

    subject: str
    """The counter's subject."""
    value: int
    """Its value, of any size."""
    increment: int
    """The last increment."""
    sequence: int
    """The sequence of the last message."""
    sources: dict[str, dict[str, int]]
    """What each stream contributed, by stream and subject; of a counter that sums the counters of other streams."""


class Counters:
    """The counters of a stream, one for each subject; created by `JetStream.counters`.

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
        """Add to a counter, which starts at 0.

        Args:
            subject: the counter.
            increment: what to add; a negative number subtracts.
            msg_id: an id by which the stream recognises a repeated increment, so that adding again after a
                lost answer is safe; the current value is then read.

        Returns:
            The new value.

        Raises:
            InvalidOptionError: the increment is no whole number, or has more digits than a header block holds.
            DecodeError: the increment was added, but the server's answer holds no value.
        """
        if isinstance(increment, bool) or not isinstance(increment, int):
            raise InvalidOptionError(f"increment must be a whole number, not {increment!r}")
        if increment.bit_length() > _INCREMENT_BITS_MAX:
            raise InvalidOptionError(f"increment has {_INCREMENT_BITS_MAX} bits at most, not {increment.bit_length()}")
        headers = {"Nats-Incr": _digits(increment)}
        ack = await self._publisher.publish(subject, b"", {"headers": headers, "msg_id": msg_id})
        self._publisher.own_writes.note(subject, ack.seq)
        if not ack.val:
            return await self.get(subject)
        try:
            return _whole_number(ack.val)
        except ValueError as error:
            raise DecodeError(f"the increment was added to {subject!r}, but its new value {error}") from None

    async def get(self, subject: str) -> int:
        """Return the value of a counter; 0 before the first increment."""
        try:
            return (await self.entry(subject)).value
        except MessageNotFoundError:
            return 0

    async def entry(self, subject: str) -> CounterEntry:
        """Return a counter with its last increment and its sources.

        Raises:
            MessageNotFoundError: it has no increment yet.
        """
        own_writes = self._publisher.own_writes
        written = own_writes.newest(subject)
        message = await self.stream.newest(subject, at_least=written)
        if message.sequence < written:
            own_writes.forget(subject)  # The stream was recreated.
        return _entry(message)

    async def entries(self, *subjects: str) -> AsyncIterator[CounterEntry]:
        """Yield all counters, or only counters whose subjects match, with one request.

        Raises:
            PullStatusError: more counters match than the server sends at a time (1024).
        """
        async for message in self.stream.get_batch(last_by_subjects=subjects or (">",)):
            yield _entry(message)


def _digits(number: int) -> str:
    """Write a number of any size with its sign: Python itself refuses to write more than some thousand digits."""
    return ("+" if number >= 0 else "") + str(Decimal(number))


def _whole_number(text: str) -> int:
    """Read a number of any size; as `_digits`.

    Raises:
        ValueError: the text is none.
    """
    if _match_number(text) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number of up to {_DIGITS_MAX} digits")
    return int(Decimal(text))


def _entry(message: StoredMessage) -> CounterEntry:
    headers = message.headers
    try:
        sources = decode(dict[str, dict[str, str]], (headers.get("Nats-Counter-Sources") or "{}").encode())
        return CounterEntry(
            message.subject,
            _whole_number(decode(_Body, message.payload).val),
            _whole_number(headers.get("Nats-Incr") or "0"),
            message.sequence,
            {
                stream: {subject: _whole_number(value) for subject, value in own.items()}
                for stream, own in sources.items()
            },
        )
    except ValueError as error:
        raise DecodeError(f"message {message.sequence} on {message.subject!r} is not a counter: {error}") from None
