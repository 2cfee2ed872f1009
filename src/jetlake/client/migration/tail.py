"""The tail of a stream: the messages that the source stored or removed since the bulk was copied.

A message must get the same sequence at the target as at the source. Messages are published into the staged stream in
order, in a bounded window, and never sent twice, so that the copy is always a prefix of the source; a sequence without
a message at the source is filled by a gap message, which is purged afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.connection.inboxes import Answers
from jetlake.client.migration.marks import GAP_SUBJECT, staging_prefix
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import ApiError, MessageNotFoundError, MigrationError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.publish import decode_pub_ack
from jetlake.protocol import encoder

_READ_MESSAGES = 1000
_REQUESTS_MAX = 64


class Tail:
    """Copies the tail into a staged stream, every message at the sequence that it has at the source.

    Args:
        source: the stream that is moved.
        target: its staged copy.
        api: the target.
    """

    def __init__(self, source: Stream, target: Stream, api: ApiCaller) -> None:
        self._source = source
        self._target = target
        self._api = api

    async def copy(self, last: int) -> int:
        """Copy everything up to a sequence.

        Returns:
            How many sequences were copied.

        Raises:
            WrongSequenceError: the target did not store a message at its sequence.
            MigrationError: a sequence beyond the source's is stored at the target, or no stream takes messages there.
        """
        first = (await self._source.info()).state.first_seq
        copied = (await self._target.info()).state.last_seq
        if copied > last:
            raise MigrationError(f"the copy holds sequence {copied}, and its source ends at {last}")
        if first > copied + 1:
            await self._target.purge(before=first)  # Skips sequences of which the source has nothing left.
        begin = max(first, copied + 1)
        with StagedPublisher(self._api, staging_prefix(self._source.name), begin) as publisher:
            async for message in self._messages(begin, last):
                await _skip(publisher, message.sequence)
                await publisher.publish(message.subject, message.header, message.payload)
            await _skip(publisher, last + 1)
            await publisher.finish()
        return max(0, last - copied)

    async def _messages(self, begin: int, last: int) -> AsyncIterator[StoredMessage]:
        """Yield the source's messages of a range; the stream's leader says where they end, not the reader."""
        while begin <= last:
            async for message in self._read(begin):
                if message.sequence > last:
                    return
                yield message
                begin = message.sequence + 1
            try:
                left = await self._source.get(begin, next_by_subject=">", direct=False)
            except MessageNotFoundError:
                return
            begin = left.sequence

    def _read(self, begin: int) -> AsyncIterator[StoredMessage]:
        if self._source.config.retention is RetentionPolicy.LIMITS:
            return self._read_in_order(begin)
        # A reader of a work queue would compete with its consumers.
        return self._source.get_batch(_READ_MESSAGES, sequence=begin)

    async def _read_in_order(self, begin: int) -> AsyncIterator[StoredMessage]:
        reader = self._source.ordered(deliver_policy="by_start_sequence", opt_start_seq=begin)
        try:
            while messages := await reader.fetch(_READ_MESSAGES, no_wait=True):
                for message in messages:
                    sequence = message.metadata.stream_seq
                    yield StoredMessage(message.subject, sequence, "", message.raw_header, bytes(message.payload))
        finally:
            await reader.delete()

    async def remove_removed(self) -> None:
        """Remove messages from the copy that the source no longer holds."""
        target = self._target
        await target.purge(subject=GAP_SUBJECT)
        held = (await self._source.info(deleted_details=True)).state
        if held.first_seq > (await target.info()).state.first_seq:
            await target.purge(before=held.first_seq)
        copied = (await target.info(deleted_details=True)).state
        gone = sorted(
            sequence
            for sequence in set(held.deleted).difference(copied.deleted)
            if max(1, copied.first_seq) <= sequence <= copied.last_seq
        )
        for start in range(0, len(gone), _REQUESTS_MAX):
            await asyncio.gather(*map(self._remove, gone[start : start + _REQUESTS_MAX]))

    async def _remove(self, sequence: int) -> None:
        try:
            await self._target.delete_message(sequence, erase=False)
        except ApiError:
            # Servers have several errors for a message that is gone already.
            if await self._has(sequence):
                raise

    async def _has(self, sequence: int) -> bool:
        try:
            await self._target.get(sequence, direct=False)
        except MessageNotFoundError:
            return False
        return True

    async def is_equal(self) -> bool:
        """Return whether the messages sent last before an interruption have the same sequences as at the source."""
        last = (await self._target.info()).state.last_seq
        sequences = range(max(1, last - 2 * WINDOW_MESSAGES), last + 1)
        for start in range(0, len(sequences), _REQUESTS_MAX):
            found = await asyncio.gather(*map(self._is_equal_at, sequences[start : start + _REQUESTS_MAX]))
            if not all(found):
                return False
        return True

    async def _is_equal_at(self, sequence: int) -> bool:
        try:
            there = await self._source.get(sequence, direct=False)
        except MessageNotFoundError:
            return True
        try:
            here = await self._target.get(sequence, direct=False)
        except MessageNotFoundError:
            return False
        return (there.subject, there.header, there.payload) == (here.subject, here.header, here.payload)


async def _skip(publisher: StagedPublisher, sequence: int) -> None:
    """Fill the sequences before one that the source has no message for."""
    while publisher.next_sequence < sequence:
        await publisher.publish(GAP_SUBJECT, b"", b"")


WINDOW_MESSAGES = 256
"""Messages whose acknowledgement may be missing."""
_WINDOW_BYTES = 4 * 1024 * 1024


class WrongSequenceError(MigrationError):
    """The copy would not be equal: a message was not stored at the sequence that it has at the source."""


class StagedPublisher:
    """Publishes to a staged stream; usable in a `with` block.

    Nothing is ever sent twice, so that the stored messages are a prefix of the sent ones, in the same order.

    Args:
        api: the target.
        prefix: the first tokens of the subjects.
        next_sequence: the sequence that the next message must get.
    """

    def __init__(self, api: ApiCaller, prefix: str, next_sequence: int) -> None:
        self._connection = api.connection
        self._timeout_s = api.timeout_s
        self._prefix = prefix.encode() + b"."
        self._answers = Answers(api.connection, "copy of a stream")
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._next_acknowledged = next_sequence
        self.next_sequence = next_sequence

    def __enter__(self) -> StagedPublisher:
        self._answers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.__exit__()

    async def publish(self, subject: str, header: bytes, payload: bytes) -> None:
        """Send one message; waits while the window is full.

        Raises:
            WrongSequenceError: the target refused a message, or stored it elsewhere.
        """
        size = len(header) + len(payload)
        while self._sizes and (len(self._sizes) >= WINDOW_MESSAGES or self._bytes + size > _WINDOW_BYTES):
            await self._acknowledged()
        staged = self._prefix + subject.encode("utf-8", "surrogateescape")
        reply = self._answers.subject
        if header:
            self._connection.send(encoder.hpub(staged, reply, header, payload))
        else:
            self._connection.send(encoder.pub(staged, reply, payload))
        self._connection.end_turn()
        self._sizes.append(size)
        self._bytes += size
        self.next_sequence += 1

    async def finish(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            WrongSequenceError: as `publish`.
        """
        while self._sizes:
            await self._acknowledged()

    async def _acknowledged(self) -> None:
        answer = await self._answers.next(self._timeout_s, self._prefix.decode())
        if answer.status is not None:
            raise MigrationError(
                f"the copy has no leader or was deleted: no stream takes message {self._next_acknowledged}"
            )
        try:
            ack = decode_pub_ack(answer.payload)
        except ApiError as error:
            raise WrongSequenceError(f"the target refuses message {self._next_acknowledged}: {error}") from error
        if ack.seq != self._next_acknowledged or ack.duplicate:
            what = "a duplicate of" if ack.duplicate else "stored at"
            raise WrongSequenceError(f"message {self._next_acknowledged} is {what} sequence {ack.seq} at the target")
        self._next_acknowledged += 1
        self._bytes -= self._sizes.popleft()
