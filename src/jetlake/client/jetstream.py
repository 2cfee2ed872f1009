"""The JetStream context: publishing, streams and consumers of one account."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Unpack, cast

from jetlake.client.api_caller import ApiCaller, check_name
from jetlake.client.config_options import ConsumerOptions, StreamOptions, configured
from jetlake.client.consumer import Consumer
from jetlake.client.options import duration_s
from jetlake.client.ordered_consume import OrderedConsume
from jetlake.client.publish_header import publish_header
from jetlake.client.publish_window import PendingAck, PublishWindow
from jetlake.client.pull_subscription import PullSubscription
from jetlake.client.push_subscription import PushSubscription
from jetlake.client.stream import Stream
from jetlake.client.subscribe_checks import SubscribeRequest, check_request
from jetlake.client.subscribe_workflow import find_stream, subscribe_pull, subscribe_push
from jetlake.client.subscription import MessageCallback, SlowPolicy
from jetlake.client.wire_values import HeadersLike, payload_bytes, publish_subject
from jetlake.errors import (
    InvalidOptionError,
    NoRespondersError,
    PublishTimeoutError,
    RequestTimeoutError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from jetlake.model.account import AccountInfo
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.durations import Seconds
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.model.replies import (
    AccountInfoReply,
    StreamCreateReply,
    StreamDeleteReply,
    StreamInfoReply,
    StreamListReply,
    StreamNamesReply,
    StreamUpdateReply,
)
from jetlake.model.requests import StreamCreateRequest, StreamListRequest
from jetlake.model.stream import StreamConfig, StreamInfo

if TYPE_CHECKING:
    from jetlake.client.connection import Connection

__all__ = ["JetStream"]

_RETRY_WAIT_S = 0.25
_RETRIES = 2
_WINDOW_MESSAGES = 4000
_WINDOW_BYTES = 64 * 1024 * 1024


class JetStream:
    """JetStream through one connection; made by `Client.jetstream`."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str = "",
        prefix: str = "",
        timeout: Seconds | None = None,
        publish_window: int = _WINDOW_MESSAGES,
        publish_window_bytes: int = _WINDOW_BYTES,
    ) -> None:
        timeout_s = None if timeout is None else duration_s("timeout", timeout)
        if publish_window < 1 or publish_window_bytes < 1:
            raise InvalidOptionError("publish_window and publish_window_bytes are at least 1")
        self._connection = connection
        self._api = ApiCaller(connection, domain=domain, prefix=prefix, timeout_s=timeout_s)
        self._window_limits = publish_window, publish_window_bytes
        self._window: PublishWindow | None = None

    # Publishing

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
        expected_last_msg_id: str | None = None,
        ttl: float | str | None = None,
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
            or expected_last_msg_id is not None
            or ttl is not None
        ):
            header = publish_header(
                headers,
                msg_id=msg_id,
                expected_stream=expected_stream,
                expected_last_sequence=expected_last_sequence,
                expected_last_subject_sequence=expected_last_subject_sequence,
                expected_last_msg_id=expected_last_msg_id,
                ttl=ttl,
            )
        connection = self._connection
        connection.check_size(len(header) + len(payload))
        timeout_s = self._api.timeout_s if timeout is None else duration_s("timeout", timeout)
        while True:
            try:
                answer = await connection.request_raw(raw_subject, header, payload, timeout_s)
            except NoRespondersError:
                if retries <= 0:
                    raise
            except RequestTimeoutError:
                raise PublishTimeoutError(
                    f"no stream acknowledged the message on {subject!r} within {timeout_s:g} s; it may be stored"
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
        expected_last_msg_id: str | None = None,
        ttl: float | str | None = None,
    ) -> PendingAck:
        """Publish without waiting for the stream; waits only while the window is full.

        Await the result for the acknowledgement of this message, or `publish_async_complete` for all. What is not
        acknowledged is raised there and reported to `on_error`. When the connection is lost, messages with a `msg_id`
        are sent again on the next one; the others fail, since nobody knows whether they arrived.
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
            or expected_last_msg_id is not None
            or ttl is not None
        ):
            header = publish_header(
                headers,
                msg_id=msg_id,
                expected_stream=expected_stream,
                expected_last_sequence=expected_last_sequence,
                expected_last_subject_sequence=expected_last_subject_sequence,
                expected_last_msg_id=expected_last_msg_id,
                ttl=ttl,
            )
        self._connection.check_size(len(header) + len(payload))
        window = self._window
        if window is None:
            window = self._open_window()
        if window.is_full:
            await window.room()
        return window.put(raw_subject, header, payload, msg_id is not None)

    async def publish_async_complete(self, timeout: Seconds | None = None) -> None:
        """Wait until all messages of `publish_async` are acknowledged.

        Raises:
            PublishWindowError: some were not; it lists them.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        if self._window is None:
            return
        try:
            async with asyncio.timeout(None if timeout is None else duration_s("timeout", timeout)):
                await self._window.complete()
        except TimeoutError as error:
            if isinstance(error, PublishTimeoutError):
                raise
            raise PublishTimeoutError(f"{self._window.pending} messages are not acknowledged yet") from None

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
        return self._window

    # The account

    @property
    def api(self) -> ApiCaller:
        """The API itself, for calls that have no method here: `await js.api.call(ReplyType, "STREAM.INFO", "ORDERS")`."""
        return self._api

    async def account_info(self) -> AccountInfo:
        """What the account uses and may use."""
        return await self._api.call(AccountInfoReply, "INFO")

    # Streams

    async def create_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Create a stream; one that exists with the same configuration is fine.

        Args:
            name: its name, or a whole configuration.
            options: what it captures and how long it keeps it; durations are seconds.

        Raises:
            StreamNameInUseError: one of that name exists and is different.
            ApiError: the server refuses the configuration.
        """
        config = _stream_config(name, options)
        request = StreamCreateRequest.from_config(config)
        return Stream(self._api, await self._api.call(StreamCreateReply, "STREAM.CREATE", config.name, body=request))

    async def update_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Change a stream: the given options only, or the whole when a configuration is given.

        Raises:
            StreamNotFoundError: there is none of that name.
            ApiError: the server refuses the change.
        """
        if isinstance(name, StreamConfig):
            config = _stream_config(name, options)
            return await self._update(config)
        stream = await self.stream(name)
        await stream.update(**options)
        return stream

    async def create_or_update_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Create a stream, or change the one that exists to exactly this configuration."""
        config = _stream_config(name, options)
        try:
            return await self._update(config)
        except StreamNotFoundError:
            pass
        try:
            return await self.create_stream(config)
        except StreamNameInUseError:
            return await self._update(config)  # Somebody else was faster.

    async def _update(self, config: StreamConfig) -> Stream:
        request = StreamCreateRequest.from_config(config)
        return Stream(self._api, await self._api.call(StreamUpdateReply, "STREAM.UPDATE", config.name, body=request))

    async def stream(self, name: str) -> Stream:
        """The handle of an existing stream.

        Raises:
            StreamNotFoundError: there is none of that name.
        """
        check_name("stream", name)
        return Stream(self._api, await self._api.call(StreamInfoReply, "STREAM.INFO", name))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream, its messages and its consumers.

        Raises:
            StreamNotFoundError: there is none of that name.
        """
        check_name("stream", name)
        await self._api.call(StreamDeleteReply, "STREAM.DELETE", name)

    async def streams(self, subject: str = "") -> list[StreamInfo]:
        """All streams, sorted by name, or those whose subjects have something in common with `subject`."""
        found: list[StreamInfo] = []
        while True:
            request = StreamListRequest(offset=len(found), subject=subject)
            page = await self._api.call(StreamListReply, "STREAM.LIST", body=request)
            found += page.streams
            if not page.streams or len(found) >= page.total:
                return found

    async def stream_names(self, subject: str = "") -> list[str]:
        """The names of all streams, sorted, or of those whose subjects have something in common with `subject`."""
        found: list[str] = []
        while True:
            request = StreamListRequest(offset=len(found), subject=subject)
            page = await self._api.call(StreamNamesReply, "STREAM.NAMES", body=request)
            found += page.streams or ()
            if not page.streams or len(found) >= page.total:
                return found

    # Consumers, for those who have no handle of the stream

    async def create_consumer(
        self,
        stream: str,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """As `Stream.create_consumer`."""
        return await self._handle(stream).create_consumer(name, durable=durable, **options)

    async def create_or_update_consumer(
        self,
        stream: str,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """As `Stream.create_or_update_consumer`."""
        return await self._handle(stream).create_or_update_consumer(name, durable=durable, **options)

    async def consumer(self, stream: str, name: str) -> Consumer:
        """The handle of an existing pull consumer.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        return await self._handle(stream).consumer(name)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer."""
        await self._handle(stream).delete_consumer(name)

    # The older workflow: a consumer comes into being with its subscription

    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        ordered: bool = False,
        manual_ack: bool = False,
        heartbeat_alarm: Seconds | None = None,
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
        **options: Unpack[ConsumerOptions],
    ) -> PushSubscription | OrderedConsume:
        """Subscribe through a push consumer that exists or is created now (ADR-15).

        Without `consumer` and `durable` an ephemeral consumer is created. A consumer that this call created is deleted
        when the subscription ends.

        Args:
            subject: what to receive; also finds the stream.
            callback: called with each message, which is acknowledged when it returns; without it, iterate.
            stream: the stream's name; needed when several streams have the subject.
            consumer: bind to this existing consumer, and create none.
            durable: use this durable consumer, and create it if it is missing.
            ordered: every message once and in order, without acknowledgements; see `Stream.ordered`.
            manual_ack: leave acknowledging to the callback.
            heartbeat_alarm: seconds of silence after which `on_error` gets a `HeartbeatMissedError`. Default: three
                times the consumer's `idle_heartbeat`.
            pending_messages_max: most messages that may wait to be taken.
            pending_bytes_max: most bytes of payload that may wait to be taken.
            on_slow: what happens at these limits; see `Client.subscribe`.
            options: what a new consumer is like; one that exists must be the same.

        Raises:
            InvalidOptionError: the options contradict each other; nothing was sent.
            SubscribeMismatchError: the consumer that exists does not fit; the message says why.
            StreamNotFoundError: no stream has the subject.
        """
        request = SubscribeRequest(
            subject=subject,
            stream=stream,
            consumer=consumer,
            durable=durable,
            is_ordered=ordered,
            options=dict(options),
        )
        if ordered:
            return await self._subscribe_ordered(request, callback)
        return await self._subscribe_push(
            request, callback, manual_ack, heartbeat_alarm, pending_messages_max, pending_bytes_max, on_slow
        )

    async def queue_subscribe(
        self,
        subject: str,
        queue: str,
        callback: MessageCallback | None = None,
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        manual_ack: bool = False,
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
        **options: Unpack[ConsumerOptions],
    ) -> PushSubscription:
        """Share a push consumer with the other members of a queue group (ADR-15).

        Without `consumer` and `durable` the queue's name is the durable's name, so that all members meet. The member that
        created the consumer deletes it at its end; create it beforehand if others should go on.
        """
        if not queue:
            raise InvalidOptionError("queue_subscribe needs the name of a queue")
        if not consumer and not durable:
            durable = queue
        request = SubscribeRequest(
            subject=subject, stream=stream, consumer=consumer, durable=durable, queue=queue, options=dict(options)
        )
        return await self._subscribe_push(
            request, callback, manual_ack, None, pending_messages_max, pending_bytes_max, on_slow
        )

    async def pull_subscribe(
        self,
        subject: str = "",
        durable: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        **options: Unpack[ConsumerOptions],
    ) -> PullSubscription:
        """Fetch by hand from a pull consumer that exists or is created now (ADR-13, ADR-15).

        Args:
            subject: what to receive; also finds the stream.
            durable: use this durable consumer, and create it if it is missing. Default: an ephemeral one.
            stream: the stream's name; needed when several streams have the subject.
            consumer: bind to this existing consumer, and create none.
            options: what a new consumer is like; one that exists must be the same.

        Raises:
            InvalidOptionError: the options contradict each other; nothing was sent.
            SubscribeMismatchError: the consumer that exists does not fit; the message says why.
            StreamNotFoundError: no stream has the subject.
        """
        request = SubscribeRequest(
            subject=subject, stream=stream, consumer=consumer, durable=durable, is_pull=True, options=dict(options)
        )
        return await subscribe_pull(self._api, request)

    async def _subscribe_push(
        self,
        request: SubscribeRequest,
        callback: MessageCallback | None,
        manual_ack: bool,
        heartbeat_alarm: Seconds | None,
        pending_messages_max: int,
        pending_bytes_max: int,
        on_slow: SlowPolicy,
    ) -> PushSubscription:
        return await subscribe_push(
            self._api,
            request,
            callback=callback,
            manual_ack=manual_ack,
            heartbeat_alarm_s=None if heartbeat_alarm is None else duration_s("heartbeat_alarm", heartbeat_alarm),
            pending_messages_max=pending_messages_max,
            pending_bytes_max=pending_bytes_max,
            on_slow=on_slow,
        )

    async def _subscribe_ordered(self, request: SubscribeRequest, callback: MessageCallback | None) -> OrderedConsume:
        check_request(request)
        stream = await find_stream(self._api, request)
        options = {name: value for name, value in request.options.items() if name not in ("ack_policy", "flow_control")}
        heartbeat: Any = options.pop("idle_heartbeat", None)
        if request.subject and "filter_subjects" not in options:
            options.setdefault("filter_subject", request.subject)
        ordered = self._handle(stream).ordered(**options)
        return ordered.consume(callback, idle_heartbeat=heartbeat).start()

    def _handle(self, stream: str) -> Stream:
        check_name("stream", stream)
        return Stream(self._api, StreamInfo(config=StreamConfig(name=stream)))


def _stream_config(name: str | StreamConfig, options: Any) -> StreamConfig:
    if isinstance(name, StreamConfig):
        if options:
            raise InvalidOptionError("give a whole configuration or single options, not both")
        check_name("stream", name.name)
        return name
    check_name("stream", name)
    return configured(StreamConfig, {"name": name, **cast("dict[str, Any]", options)})
