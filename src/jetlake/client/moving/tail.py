"""The tail of a stream: what the source stored, and what it removed, since the bulk was copied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.moving.marks import GAP_SUBJECT, staging_prefix
from jetlake.client.moving.staged_publisher import WINDOW_MESSAGES, StagedPublisher
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import ApiError, MessageNotFoundError, MigrationError
from jetlake.model.enums import RetentionPolicy

__all__ = ["Tail"]

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
            MigrationError: a sequence beyond the source's is stored at the target, or nobody takes messages there.
        """
        first = (await self._source.info()).state.first_seq
        copied = (await self._target.info()).state.last_seq
        if copied > last:
            raise MigrationError(f"the copy holds sequence {copied}, and its source ends at {last}")
        if first > copied + 1:
            await self._target.purge(before=first)  # Which jumps: nothing between is left at the source.
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
                    place = message.metadata.stream_seq
                    yield StoredMessage(message.subject, place, "", message.raw_header, bytes(message.payload))
        finally:
            await reader.delete()

    async def remove_removed(self) -> None:
        """Remove from the copy what the source no longer holds."""
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
        for place in range(0, len(gone), _REQUESTS_MAX):
            await asyncio.gather(*map(self._remove, gone[place : place + _REQUESTS_MAX]))

    async def _remove(self, sequence: int) -> None:
        try:
            await self._target.delete_message(sequence, erase=False)
        except ApiError:
            # Servers have several words for a message that went by itself.
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
        for place in range(0, len(sequences), _REQUESTS_MAX):
            found = await asyncio.gather(*map(self._is_equal_at, sequences[place : place + _REQUESTS_MAX]))
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
