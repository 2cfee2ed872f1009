"""Publishing to streams: one message with its acknowledgement, or many through a bounded window."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.publish.many_messages import ManyMessages
from jetlake.client.publish.outgoing_message import OutgoingMessage, PublishOptions, outgoing_message
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publish_window import PublishWindow
from jetlake.client.publish.stream_search import ELECTION_S, StreamSearch, is_in_process
from jetlake.client.settings.options import timeout_s
from jetlake.errors import ApiError, InvalidOptionError, NoRespondersError, PublishTimeoutError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck, decode_pub_ack

__all__ = ["WINDOW_BYTES", "WINDOW_MESSAGES", "Publisher"]

_RETRY_WAIT_S = 0.25
_RETRIES = 2
WINDOW_MESSAGES = 4000
WINDOW_BYTES = 64 * 1024 * 1024


class Publisher:
    """Publishes the messages of one JetStream context.

    Args:
        api: the connection and the default timeout.
        window_messages: most messages of `publish_async` under way.
        window_bytes: most bytes of them.

    Attributes:
        put_plain: puts subject and payload, which were checked, into the window at once; None while it has no room.
    """

    def __init__(self, api: ApiCaller, *, window_messages: int, window_bytes: int) -> None:
        if window_messages < 1 or window_bytes < 1:
            raise InvalidOptionError("publish_window and publish_window_bytes are at least 1")
        self._connection = api.connection
        self._timeout_s = api.timeout_s
        self._search = StreamSearch(api)
        self._window_limits = window_messages, window_bytes
        self._window: PublishWindow | None = None
        self.put_plain: Callable[[bytes, bytes], PendingAck | None] = _no_window

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
        """The most bytes of headers and payload that the server takes."""
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
            BadSubjectError: nobody can publish there.
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
        give_up_at = loop.time() + (message.timeout_s or max(timeout_s, ELECTION_S))
        attempts = 0
        while True:
            try:
                answer = await self._connection.request_raw(
                    message.subject, message.header, message.payload, wait_s, message.has_id
                )
                return decode_pub_ack(answer.payload)
            except NoRespondersError:
                if not await self._is_retried(message, attempts, give_up_at):
                    raise
            except RequestTimeoutError:
                raise PublishTimeoutError(
                    f"no stream acknowledged the message on {subject!r} within {timeout_s:g} s; it may be stored"
                ) from None
            except ApiError as error:
                if not is_in_process(error) or not message.has_id or loop.time() >= give_up_at:
                    error.request = subject
                    raise
            attempts += 1
            await asyncio.sleep(_RETRY_WAIT_S)
            if message.timeout_s is not None and message.retries is None:
                wait_s = max(_RETRY_WAIT_S, give_up_at - loop.time())

    async def _is_retried(self, message: OutgoingMessage, attempts: int, give_up_at: float) -> bool:
        """Tell whether a message that found no stream is sent again: some times at once, then if there is a stream."""
        if message.retries is not None:
            return attempts < message.retries
        if attempts < _RETRIES:
            return True
        return self._connection.loop.time() < give_up_at and await self._search.finds(message.subject) is not False

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
        return ManyMessages(self._open_window(), publish, lambda: self._connection.max_payload, has_runs=has_runs)

    async def complete(self, timeout: Seconds | None = None) -> None:
        """Wait until all messages of `publish_async` are acknowledged.

        Raises:
            PublishWindowError: some were not; the error lists them.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        if self._window is None:
            return
        try:
            async with asyncio.timeout(timeout_s(timeout)):
                await self._window.complete()
        except TimeoutError as error:
            if isinstance(error, PublishTimeoutError):
                raise
            raise PublishTimeoutError(f"{self._window.pending} messages are not acknowledged yet") from None

    @property
    def pending(self) -> int:
        """Messages of `publish_async` that wait for their acknowledgement."""
        return 0 if self._window is None else self._window.pending

    @property
    def room(self) -> int:
        """How many messages of `publish_async` the window takes now; exact on the loop's thread only."""
        return self._window_limits[0] if self._window is None else self._window.free

    def _open_window(self) -> PublishWindow:
        """Return the window, which is made when the first message needs it."""
        if self._window is not None:
            return self._window
        messages_max, bytes_max = self._window_limits
        self._window = PublishWindow(
            self._connection,
            messages_max=messages_max,
            bytes_max=bytes_max,
            ack_timeout_s=self._timeout_s,
            retries=_RETRIES,
            search=self._search,
        )
        self.put_plain = self._window.put
        self._connection.when_gone(self, self._window.release)
        return self._window


def _no_window(subject: bytes, payload: bytes) -> None:
    """Put nothing into a window that is not open yet."""
