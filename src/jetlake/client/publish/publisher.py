"""Publishing to streams: one message with its acknowledgement, or many through a bounded window."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.connection.requests import first_repetition_s
from jetlake.client.publish.atomic_batch import AtomicBatch
from jetlake.client.publish.many_messages import ManyMessages
from jetlake.client.publish.outgoing_message import OutgoingMessage, PublishOptions, outgoing_message
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publish_window import PublishWindow
from jetlake.client.publish.stream_search import ELECTION_S, RETRY_WAIT_S, StreamSearch, is_in_process
from jetlake.client.settings.options import timeout_s
from jetlake.errors import ApiError, InvalidOptionError, NoRespondersError, PublishTimeoutError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck, decode_pub_ack

WINDOW_MESSAGES = 4000
WINDOW_BYTES = 64 * 1024 * 1024
_OWN_WRITES_MAX = 4096
_LAST_WAIT_S = 0.01


class OwnWrites:
    """The newest sequences that were acknowledged to this context, by subject: its reads must not fall behind them.

    A replica that answers a read may lag behind the leader that acknowledged an earlier write. Only the subjects that
    were written last are kept: a replica that lags by more subjects is not detected.
    """

    __slots__ = ("_sequences",)

    def __init__(self) -> None:
        self._sequences: dict[str, int] = {}

    def note(self, subject: str, sequence: int) -> None:
        """Keep the sequence of a message that is stored."""
        newest = max(sequence, self._sequences.pop(subject, 0))
        self._sequences[subject] = newest
        if len(self._sequences) > _OWN_WRITES_MAX:
            del self._sequences[next(iter(self._sequences))]

    def newest(self, subject: str) -> int:
        """Return the sequence of the last write to a subject; 0 when there is none that is kept."""
        return self._sequences.get(subject, 0)

    def forget(self, subject: str) -> None:
        """Drop a sequence that the stream's leader has no more: it was removed, or its stream recreated."""
        self._sequences.pop(subject, None)


class Publisher:
    """Publishes the messages of one JetStream context.

    Args:
        api: the connection and the default timeout.
        window_messages: most messages of `publish_async` under way.
        window_bytes: most bytes of them.

    Attributes:
        window: the messages of `publish_async` under way; None until the first one.
        own_writes: the newest writes of this context's buckets.
    """

    def __init__(self, api: ApiCaller, *, window_messages: int, window_bytes: int) -> None:
        if window_messages < 1 or window_bytes < 1:
            raise InvalidOptionError("publish_window and publish_window_bytes must be at least 1")
        self._connection = api.connection
        self._timeout_s = api.timeout_s
        self._search = StreamSearch(api)
        self._window_limits = window_messages, window_bytes
        self.window: PublishWindow | None = None
        self.own_writes = OwnWrites()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._connection.is_closed

    @property
    def is_clustered(self) -> bool:
        """Whether the server is one of a cluster, where a stream may be electing its leader."""
        return bool(self._connection.info.cluster)

    @property
    def payload_bytes_max(self) -> int:
        """The maximum bytes of headers and payload that the server accepts."""
        return self._connection.max_payload

    def check_size(self, size: int) -> None:
        """Refuse more bytes of headers and payload than the server takes.

        Raises:
            InvalidOptionError: the message would be larger.
        """
        self._connection.check_size(size)

    def prepare(self, subject: str, payload: bytes, options: PublishOptions) -> OutgoingMessage:
        """Check and encode a message; needs no event loop.

        Raises:
            BadSubjectError: the subject is not valid for publishing.
            BadHeaderError: a header would break the block.
            InvalidOptionError: an option that cannot work, or a message larger than the server takes.
        """
        message = outgoing_message(subject, payload, options)
        self._connection.check_size(len(message.header) + len(message.payload))
        return message

    async def publish(self, subject: str, payload: bytes, options: PublishOptions) -> PubAck:
        """Publish and wait until a stream has the message; see `JetStream.publish`."""
        message = self.prepare(subject, payload, options)
        loop = self._connection.loop
        wait_s = timeout_s = message.timeout_s or self._timeout_s
        # Time without a leader counts only where the caller has set a limit: the message is surely not stored.
        time_s = message.timeout_s or max(timeout_s, ELECTION_S)
        give_up_at = loop.time() + time_s
        attempts = 0
        is_in_doubt = is_asked_again = False
        while True:
            began = loop.time()
            is_repeatable = message.has_id and not is_asked_again
            try:
                answer = await self._connection.request_raw(
                    message.subject, message.header, message.payload, wait_s, is_repeatable
                )
                return decode_pub_ack(answer.payload)
            except NoRespondersError:
                if not await self._search.is_retried(message, attempts, give_up_at):
                    if is_in_doubt:
                        raise _timeout(subject, time_s) from None
                    raise
            except RequestTimeoutError:
                if not self._is_repeated(message, give_up_at):
                    raise _timeout(subject, time_s if is_in_doubt else timeout_s) from None
                is_in_doubt = True
            except ApiError as error:
                elapsed_s = loop.time() - began
                if is_repeatable and not is_in_process(error) and elapsed_s >= first_repetition_s(wait_s):
                    # The message was sent again before this refusal came, and that copy may be stored: a last one,
                    # which follows it, is told so.
                    is_in_doubt = is_asked_again = True
                    wait_s = max(wait_s - elapsed_s, _LAST_WAIT_S)
                    continue
                if not is_in_process(error) or not message.has_id or loop.time() >= give_up_at:
                    error.request = subject
                    raise
            attempts += 1
            await asyncio.sleep(RETRY_WAIT_S)
            if is_in_doubt or (message.timeout_s is not None and message.retries is None):
                wait_s = max(RETRY_WAIT_S, min(timeout_s, give_up_at - loop.time()))

    def _is_repeated(self, message: OutgoingMessage, give_up_at: float) -> bool:
        """Return whether a message without an answer is sent again: it has an id, and a new leader may answer."""
        has_no_limits = message.has_id and message.timeout_s is None and message.retries is None
        return has_no_limits and self.is_clustered and self._connection.loop.time() < give_up_at

    async def publish_async(self, subject: str, payload: bytes, options: PublishOptions) -> PendingAck:
        """Publish without waiting for the stream; see `JetStream.publish_async`."""
        return await self.put(self.prepare(subject, payload, options))

    async def put(self, message: OutgoingMessage) -> PendingAck:
        """Publish a prepared message as `publish_async` does."""
        while True:
            pending = self.put_now(message)
            if pending is not None:
                return pending
            await self._open_window().room()

    def put_now(self, message: OutgoingMessage) -> PendingAck | None:
        """Publish a prepared message as `put` does; None while the window has no room."""
        size = len(message.header) + len(message.payload)
        if size > self._connection.max_payload:
            # The message has waited for room, or for its turn, and the server that took it is another one now.
            self._connection.check_size(size)
        return self._open_window().put_message(message)

    def many(self, publish: Callable[..., Awaitable[PendingAck]], *, has_runs: bool) -> ManyMessages:
        """Begin a `publish_many`, whose messages with options are published by `publish`."""
        return ManyMessages(self._open_window(), publish, has_runs=has_runs)

    async def complete(self, timeout: Seconds | None = None) -> None:
        """Wait until all messages of `publish_async` are acknowledged.

        Raises:
            PublishWindowError: some were not; the error lists them.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        if self.window is None:
            return
        try:
            async with asyncio.timeout(timeout_s(timeout)):
                await self.window.complete()
        except TimeoutError as error:
            if isinstance(error, PublishTimeoutError):
                raise
            raise PublishTimeoutError(f"{self.window.pending} messages are not acknowledged yet") from None

    @property
    def pending(self) -> int:
        """Messages of `publish_async` that wait for their acknowledgement."""
        return 0 if self.window is None else self.window.pending

    @property
    def room(self) -> int:
        """How many messages of `publish_async` the window takes now; exact on the loop's thread only."""
        return self._window_limits[0] if self.window is None else self.window.free

    def batch(self) -> AtomicBatch:
        """Begin an atomic batch; see `JetStream.batch`."""
        return AtomicBatch(self._search)

    def _open_window(self) -> PublishWindow:
        """Return the window, created for the first message."""
        if self.window is not None:
            return self.window
        messages_max, bytes_max = self._window_limits
        self.window = PublishWindow(self._search, messages_max=messages_max, bytes_max=bytes_max)
        self._connection.when_gone(self, self.window.release)
        return self.window


def _timeout(subject: str, waited_s: float) -> PublishTimeoutError:
    return PublishTimeoutError(
        f"no stream acknowledged the message on {subject!r} within {waited_s:g} s; it may be stored"
    )
