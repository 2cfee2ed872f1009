"""Publishing to streams: one message with its acknowledgement, or many through a bounded window."""

from __future__ import annotations

import asyncio

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.publish.publish_header import publish_header
from jetlake.client.publish.publish_window import PendingAck, PublishWindow
from jetlake.client.settings.options import timeout_s
from jetlake.client.settings.wire_values import HeadersLike, payload_bytes, publish_subject
from jetlake.errors import InvalidOptionError, NoRespondersError, PublishTimeoutError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck, decode_pub_ack

__all__ = ["Publishing"]

_RETRY_WAIT_S = 0.25
_RETRIES = 2
WINDOW_MESSAGES = 4000
WINDOW_BYTES = 64 * 1024 * 1024


class Publishing:
    """The half of a JetStream context that publishes."""

    def __init__(self, api: ApiCaller, *, publish_window: int, publish_window_bytes: int) -> None:
        if publish_window < 1 or publish_window_bytes < 1:
            raise InvalidOptionError("publish_window and publish_window_bytes are at least 1")
        self._api = api
        self._connection = api.connection
        self._window_limits = publish_window, publish_window_bytes
        self._window: PublishWindow | None = None

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_sequence: int | None = None,
        expected_last_subject_sequence: int | None = None,
        expected_last_subject_sequence_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: Seconds | str | None = None,
        timeout: Seconds | None = None,
        retries: int = _RETRIES,
    ) -> PubAck:
        """Publish and wait until a stream has the message.

        Args:
            subject: a subject that a stream captures.
            payload: the content.
            headers: headers of the message.
            msg_id: an id by which the stream recognises a message that it has already; it is then stored once.
            expected_stream: the name of the stream that must take it.
            expected_last_sequence: the stream's last sequence; 0 for an empty stream.
            expected_last_subject_sequence: the last sequence of this subject; 0 for a new subject.
            expected_last_subject_sequence_subject: the subject, or pattern, that this sequence is of instead.
            expected_last_msg_id: the id of the stream's last message.
            ttl: seconds that the message lives, or `"never"`; the stream needs `allow_msg_ttl`.
            timeout: seconds to wait for each try.
            retries: how often to try again, a quarter of a second apart, when no stream listens.

        Raises:
            WrongLastSequenceError: an expectation about a sequence does not hold.
            ApiError: the stream refuses the message.
            NoRespondersError: no stream captures the subject.
            PublishTimeoutError: no answer in time; the message may be stored. With a `msg_id` publishing again is safe.
            DisconnectedError: the connection was lost meanwhile; the same holds.
        """
        raw_subject, header, payload = self.prepare(
            subject,
            payload,
            headers,
            msg_id,
            expected_stream,
            expected_last_sequence,
            expected_last_subject_sequence,
            expected_last_subject_sequence_subject,
            expected_last_msg_id,
            ttl,
        )
        connection = self._connection
        wait_s = timeout_s(timeout) or self._api.timeout_s
        while True:
            try:
                answer = await connection.request_raw(raw_subject, header, payload, wait_s)
            except NoRespondersError:
                if retries <= 0:
                    raise
            except RequestTimeoutError:
                raise PublishTimeoutError(
                    f"no stream acknowledged the message on {subject!r} within {wait_s:g} s; it may be stored"
                ) from None
            else:
                return decode_pub_ack(answer.payload)
            retries -= 1
            await asyncio.sleep(_RETRY_WAIT_S)

    async def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_sequence: int | None = None,
        expected_last_subject_sequence: int | None = None,
        expected_last_subject_sequence_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: Seconds | str | None = None,
        timeout: Seconds | None = None,
        retries: int | None = None,
    ) -> PendingAck:
        """Publish without waiting for the stream; waits only while the window is full.

        Await the result for the acknowledgement of this message, or `publish_async_complete` for all. What is not
        acknowledged is raised there and reported to `on_error`. When the connection is lost, messages with a `msg_id`
        are sent again on the next one; the others fail, since nobody knows whether they arrived. Messages published
        while there is no server wait for the next one.

        A message that finds no stream is sent again a quarter of a second later, behind those that were published
        meanwhile: where the order matters more than the wait for a stream, give `expected_last_subject_sequence`, or
        await each acknowledgement.

        Args:
            timeout: seconds to wait for the acknowledgement of each try, once it is sent. Default: the context's.
            retries: how often to send it again when no stream listens. Default 2.

        The other arguments are those of `publish`.

        Raises:
            ConnectionClosedError: the client is closed.
            PermissionsError: the server refuses the inbox that acknowledgements come to.
        """
        raw_subject, header, payload = self.prepare(
            subject,
            payload,
            headers,
            msg_id,
            expected_stream,
            expected_last_sequence,
            expected_last_subject_sequence,
            expected_last_subject_sequence_subject,
            expected_last_msg_id,
            ttl,
        )
        window = self._window
        if window is None:
            window = self._open_window()
        if window.is_full:
            await window.room()
        if timeout is None and retries is None:
            return window.put(raw_subject, header, payload, msg_id is not None)
        return window.put(raw_subject, header, payload, msg_id is not None, timeout_s(timeout), retries)

    async def publish_async_complete(self, timeout: Seconds | None = None) -> None:
        """Wait until all messages of `publish_async` are acknowledged.

        Raises:
            PublishWindowError: some were not; it lists them.
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
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._connection.is_closed

    def prepare(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        msg_id: str | None,
        expected_stream: str | None,
        expected_last_sequence: int | None,
        expected_last_subject_sequence: int | None,
        expected_last_subject_sequence_subject: str | None,
        expected_last_msg_id: str | None,
        ttl: Seconds | str | None,
    ) -> tuple[bytes, bytes, bytes]:
        """Subject, header block and payload as they are sent, checked; needs no event loop.

        Raises:
            BadSubjectError: nobody can publish there.
            BadHeaderError: a header would break the block.
            InvalidOptionError: an option that cannot work, or a message that the server would not take.
        """
        raw_subject = publish_subject(subject)
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        header = b""
        if (
            headers is not None
            or msg_id is not None
            or expected_stream is not None
            or expected_last_sequence is not None
            or expected_last_subject_sequence is not None
            or expected_last_subject_sequence_subject is not None
            or expected_last_msg_id is not None
            or ttl is not None
        ):
            header = publish_header(
                headers,
                msg_id=msg_id,
                expected_stream=expected_stream,
                expected_last_sequence=expected_last_sequence,
                expected_last_subject_sequence=expected_last_subject_sequence,
                expected_last_subject_sequence_subject=expected_last_subject_sequence_subject,
                expected_last_msg_id=expected_last_msg_id,
                ttl=ttl,
            )
        self._connection.check_size(len(header) + len(payload))
        return raw_subject, header, payload

    async def put_async(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        has_id: bool,
        ack_timeout_s: float | None = None,
        retries: int | None = None,
    ) -> PendingAck:
        """Publish what `prepare` gave, as `publish_async` does."""
        window = self._window or self._open_window()
        if window.is_full:
            await window.room()
        return window.put(subject, header, payload, has_id, ack_timeout_s, retries)

    @property
    def publish_async_pending(self) -> int:
        """Messages of `publish_async` that wait for their acknowledgement."""
        return 0 if self._window is None else self._window.pending

    def _open_window(self) -> PublishWindow:
        messages_max, bytes_max = self._window_limits
        self._window = PublishWindow(
            self._connection,
            messages_max=messages_max,
            bytes_max=bytes_max,
            ack_timeout_s=self._api.timeout_s,
            retries=_RETRIES,
        )
        self._connection.when_gone(self, self._window.release)
        return self._window
