"""`publish_many`: messages taken from an iterable in chunks and sent in runs, every failure with its position."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from jetlake.client.publish.outgoing_message import PublishOptions
from jetlake.client.publish.pending_ack import PendingAck, PublishRun, describe_failures
from jetlake.client.publish.publish_window import PublishWindow
from jetlake.client.settings.wire_values import known_subject, publish_subject
from jetlake.errors import InvalidOptionError, JetlakeError, PublishWindowError

MessageLike = tuple[str, bytes] | tuple[str, bytes, PublishOptions]
"""A message to publish: subject and payload, and options where it has some."""

_CHUNK_MAX = 400
_CHUNK_BYTES = 64 * 1024
_RUN_MIN = 4
# A chunk has no more messages than the publisher yields within this time.
_AHEAD_S = 0.02
_FAILURES_MAX = 10_000


class ManyPublished(NamedTuple):
    """The result of one `publish_many`: all messages are stored."""

    messages: int
    """How many there were."""
    duplicates: int
    """How many the stream had already, by their `msg_id`."""


class ManyMessages:
    """The messages of one `publish_many`.

    Args:
        window: where they go.
        publish: publishes one message with its options, as `JetStream.publish_async`.
        has_runs: whether messages may go without a call of `publish` for each.
    """

    def __init__(
        self,
        window: PublishWindow,
        publish: Callable[..., Awaitable[PendingAck]],
        *,
        has_runs: bool,
    ) -> None:
        self._window = window
        self._publish = publish
        self._has_runs = has_runs
        self._taken = 0
        self._duplicates = 0
        self._runs: deque[PublishRun] = deque()
        self._pendings: deque[tuple[int, PendingAck]] = deque()
        self._failures: list[tuple[int, PendingAck]] = []
        self._chunk_max = min(_CHUNK_MAX, window.messages_max)
        self._ahead = 1
        self._is_slow = False
        self._largest = 0

    def steps(self, source: Iterator[MessageLike]) -> Iterator[Coroutine[Any, Any, None]]:
        """Publish all messages: each step is awaited on the event loop before the next one; then all are stored.

        Raises:
            InvalidOptionError: one is not a message; the messages before it are published.
            BadSubjectError: a message's subject is not valid for publishing.
            PublishWindowError: some were given up, at the end or when they are too many; `positions` says which.
        """
        while True:
            chunk, error = self._next_chunk(source)
            if chunk:
                yield self._put(chunk)
            if error is not None:
                raise error
            if not chunk:
                yield self._finish()
                return

    async def publish_all(self, source: AsyncIterable[MessageLike]) -> None:
        """Publish the messages of an async iterable, each one when it comes; then all are stored.

        Raises:
            JetlakeError: as in `steps`.
        """
        async for message in source:
            await self._put([message])
        await self._finish()

    def published(self) -> ManyPublished:
        """Return the result, after the last step."""
        return ManyPublished(self._taken, self._duplicates)

    def _next_chunk(self, source: Iterator[MessageLike]) -> tuple[list[MessageLike], Exception | None]:
        """Take the next messages from the publisher, and the exception that follows them, if there is one.

        A message does not wait here for others that come slowly.
        """
        chunk: list[MessageLike] = []
        failure: Exception | None = None
        time = self._window.loop.time
        began = time()
        try:
            chunk.extend(islice(source, min(self._ahead, self._chunk_max)))
        except Exception as error:
            failure = error
        self._is_slow = time() - began >= _AHEAD_S
        self._ahead = max(1, self._ahead // 2) if self._is_slow else min(2 * self._ahead, _CHUNK_MAX)
        return chunk, failure

    async def _put(self, chunk: Sequence[MessageLike]) -> None:
        """Publish the next messages; waits while the window is full.

        Raises:
            InvalidOptionError: one is not a message; the messages before it are published.
            BadSubjectError: a message's subject is not valid for publishing.
            PublishWindowError: too many have failed to continue.
        """
        columns = self._columns(chunk) if self._has_runs and len(chunk) >= _RUN_MIN else None
        if columns is None:
            await self._put_each(chunk)
        else:
            await self._put_runs(chunk, *columns)
        self._collect()
        if len(self._failures) >= _FAILURES_MAX:
            raise self._error()
        if self._is_slow:
            await asyncio.sleep(0)  # The event loop writes and reads, also while the window has room.

    async def _finish(self) -> None:
        """Wait until every message is acknowledged or given up.

        Raises:
            PublishWindowError: some were given up; `positions` says which.
        """
        while True:
            self._collect()
            if not self._runs and not self._pendings:
                break
            await self._window.changed()
        if self._failures:
            raise self._error()

    def leave(self) -> None:
        """Leave the messages under way to the window, which reports their failures from then on."""
        for run in self._runs:
            run.is_all_observed = False
        self._collect()
        split = [one for run in self._runs for one in run.pendings]
        self._window.disown([pending for _, pending in (*self._failures, *self._pendings, *split)])

    def _columns(self, chunk: Sequence[MessageLike]) -> tuple[list[bytes], tuple[bytes, ...]] | None:
        """Return subjects and payloads; None if the messages have to be looked at one by one."""
        try:
            subjects, payloads = zip(*chunk, strict=True)
            raw = list(map(known_subject, subjects))
            if None in raw:
                raw = list(map(publish_subject, subjects))
        except (TypeError, ValueError, JetlakeError):
            return None
        if set(map(type, payloads)) != {bytes}:
            return None
        sizes = list(map(len, payloads))
        size = sum(sizes)
        self._largest = max(sizes)
        self._chunk_max = max(1, min(_CHUNK_MAX, self._window.messages_max, _CHUNK_BYTES * len(sizes) // (size + 1)))
        if size > 4 * _CHUNK_BYTES or self._largest > self._window.payload_bytes_max:
            return None
        return raw, payloads  # type: ignore[return-value]

    async def _put_runs(self, chunk: Sequence[MessageLike], subjects: list[bytes], payloads: Sequence[bytes]) -> None:
        """Publish checked messages in as few runs as the window has room for, without waiting for more room."""
        window = self._window
        start = 0
        while start < len(chunk):
            await window.room()
            if not window.is_connected or self._largest > window.payload_bytes_max:
                await self._put_each(chunk[start:])
                return
            end = start + window.messages_max - window.pending
            run = PublishRun(subjects[start:end], payloads[start:end], self._taken, is_observed=True)
            window.put_run(run)
            self._runs.append(run)
            self._taken += len(run)
            start = end

    async def _put_each(self, chunk: Sequence[Any]) -> None:
        for message in chunk:
            try:
                subject, payload, options = _parts(message)
                pending = await self._publish(subject, payload, **options)
            except Exception as error:
                error.add_note(f"It is message {self._taken} of publish_many, counted from 0.")
                raise
            pending.observe()
            self._pendings.append((self._taken, pending))
            self._taken += 1

    def _collect(self) -> None:
        """Collect the outcomes of messages that are done, in order."""
        runs = self._runs
        while runs and runs[0].is_over:
            self._pendings += runs.popleft().pendings
        pendings = self._pendings
        while pendings and pendings[0][1].is_done:
            position, pending = pendings.popleft()
            if pending.error is not None:
                self._failures.append((position, pending))
            elif pending.is_duplicate:
                self._duplicates += 1

    def _error(self) -> PublishWindowError:
        failures, self._failures = self._failures, []
        failures.sort(key=lambda one: one[0])
        described = describe_failures([pending for _, pending in failures])
        return PublishWindowError(described, [position for position, _ in failures])


def _parts(message: Any) -> tuple[str, bytes, PublishOptions]:
    """Return subject, payload and options of a message.

    Raises:
        InvalidOptionError: it is none.
    """
    if isinstance(message, (tuple, list)) and 2 <= len(message) <= 3:
        subject, payload, *rest = message
        options = rest[0] if rest else None
        if isinstance(subject, str) and (options is None or isinstance(options, dict)):
            return subject, payload, cast("PublishOptions", options or {})
    raise InvalidOptionError(
        f"a message must be (subject, payload) or (subject, payload, options), not {message!r:.80}"
    )
