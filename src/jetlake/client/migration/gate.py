"""The gate of the source: closes a stream for publishers and consumers, and opens it again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable

import msgspec

from jetlake.client.api.consumer_api import pause_consumer
from jetlake.client.jetstream import JetStream
from jetlake.client.migration.marks import PAUSED_UNTIL, Fence, fence_of, fence_subject, is_closed, marked, unmarked
from jetlake.client.streams.stream import Stream
from jetlake.errors import ApiError, ConsumerNotFoundError, MigrationError, WrongLastSequenceError
from jetlake.model.consumer import ConsumerInfo

__all__ = ["Gate", "resume_consumers"]

_IMPOSSIBLE_SEQUENCE = 2**62
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_POLL_S = 0.02
_TIMEOUT_S = 30.0


class Gate:
    """Closes and opens the stream that is moved.

    Args:
        js: the source.
        stream: the stream.
        now: the time as the wire's text.
    """

    def __init__(self, js: JetStream, stream: Stream, now: Callable[[], str]) -> None:
        self._js = js
        self._stream = stream
        self._now = now

    async def pause_consumers(self, drain_s: float) -> int:
        """Pause all consumers, and give workers time to acknowledge their messages.

        Returns:
            The number of messages that are still not acknowledged.
        """
        config = (await self._stream.info()).config
        consumers = await self._consumers()
        if fence_of(config) is None:
            pauses = {
                info.name: info.config.pause_until for info in consumers if info.paused and info.config.pause_until
            }
            await self._stream.update(marked(config, Fence(subjects=config.subjects, pauses=pauses)))
        for info in consumers:
            await _pause(self._js, self._stream.name, info.name, PAUSED_UNTIL)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            consumers = await self._consumers()
            waited_s = loop.time() - begun
            is_running = any(not info.paused for info in consumers)
            pending = sum(info.num_ack_pending for info in consumers)
            if is_running and waited_s > _TIMEOUT_S:
                raise MigrationError(f"the consumers of {self._stream.name} are not paused after {_TIMEOUT_S:g} s")
            if not is_running and (not pending or waited_s >= drain_s):
                return pending
            await asyncio.sleep(_POLL_S)

    async def close(self) -> int:
        """Close the stream for publishers, and wait until all accepted messages are stored.

        Returns:
            The stream's last sequence, which does not change any more.

        Raises:
            MigrationError: messages still come in.
        """
        config = (await self._stream.info()).config
        fence = fence_of(config)
        if fence is None:
            raise MigrationError(f"{config.name} was opened again meanwhile")
        if not is_closed(config):
            await self._stream.update(marked(config, msgspec.structs.replace(fence, closed_at=self._now())))
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                proposed = await self._proposed()
                stored = (await self._stream.info()).state.last_seq
                if proposed in (None, stored):
                    return stored
                await asyncio.sleep(_POLL_S)

    async def _proposed(self) -> int | None:
        """Return the last sequence assigned to a message, stored or about to be; None if the stream does not report it.

        A message with an impossible expected sequence takes the same path as publishers' messages, after all of them,
        and the refusal names the last sequence.
        """
        if self._stream.config.no_ack:
            return None
        subject = fence_subject(self._stream.name)
        try:
            await self._js.publish(subject, expected_last_sequence=_IMPOSSIBLE_SEQUENCE, timeout=_TIMEOUT_S)
        except WrongLastSequenceError as error:
            found = _LAST_NUMBER.search(error.description)
            return int(found[1]) if found else None
        except ApiError:
            return None
        raise MigrationError(f"{self._stream.name} stored a message that it had to refuse")

    async def open(self) -> None:
        """Open the stream for publishers and consumers again; an open gate stays open."""
        config = (await self._stream.info()).config
        fence = fence_of(config)
        if fence is None:
            return
        # The mark stays until the consumers are resumed, so that an interrupted call can be repeated.
        config = (await self._stream.update(marked(config, msgspec.structs.replace(fence, closed_at="")))).config
        await resume_consumers(self._js, self._stream, (), fence.pauses)
        await self._stream.update(unmarked(config))

    async def _consumers(self) -> list[ConsumerInfo]:
        return [info for info in await self._stream.consumers() if not info.config.is_copying]


async def resume_consumers(js: JetStream, stream: Stream, names: Iterable[str], pauses: dict[str, str]) -> None:
    """End the pauses of a migration; earlier pauses are kept.

    Args:
        js: where the stream is.
        stream: the stream.
        names: consumers that must be there, sooner or later: a cluster lists them when they have leaders.
        pauses: consumers that were paused before, each with the time until when.

    Raises:
        MigrationError: a consumer stays paused or away.
    """
    missing = set(names)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _TIMEOUT_S
    while True:
        consumers = await stream.consumers()
        waiting = [info.name for info in consumers if info.config.pause_until == PAUSED_UNTIL]
        for name in waiting:
            await _pause(js, stream.name, name, pauses.get(name))
        waiting += missing.difference(info.name for info in consumers)
        if not waiting:
            return
        if loop.time() > give_up_at:
            raise MigrationError(f"{stream.name}: consumers {', '.join(sorted(waiting))} are still paused or missing")
        await asyncio.sleep(_POLL_S)


async def _pause(js: JetStream, stream: str, name: str, until: str | None) -> None:
    try:
        await pause_consumer(js.api, stream, name, until)
    except ConsumerNotFoundError:
        pass  # An ephemeral one that was not used any more.
