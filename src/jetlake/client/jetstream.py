"""The JetStream context: publishing, streams and consumers of one account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import ConsumerOptions, RestoreOptions, StreamOptions, configured, merged
from jetlake.client.connection.connection import Connection
from jetlake.client.connection.subscription import MessageCallback
from jetlake.client.counters.counters import Counters
from jetlake.client.groups.groups import ConsumerGroups
from jetlake.client.kv.bucket import KeyValue, key_value_buckets
from jetlake.client.kv.config import BucketOptions
from jetlake.client.objects.config import ObjectStoreOptions
from jetlake.client.objects.store import ObjectStore, object_stores
from jetlake.client.ordered.ordered import OrderedConsume
from jetlake.client.publish.atomic_batch import AtomicBatch
from jetlake.client.publish.fast_publisher import FastPublisher, GapMode
from jetlake.client.publish.many_messages import ManyMessages, ManyPublished, MessageLike
from jetlake.client.publish.outgoing_message import PublishOptions, ScheduleOptions, schedule_headers
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publisher import WINDOW_BYTES, WINDOW_MESSAGES, Publisher
from jetlake.client.pull.consumer import Consumer
from jetlake.client.settings.options import timeout_s
from jetlake.client.settings.wire_values import header_bytes, known_subject
from jetlake.client.streams.backup import BackupSource, Progress, open_backup, restore
from jetlake.client.streams.dead_letters import DeadLetterReplay, ReplayedLetters
from jetlake.client.streams.stream import Stream, stream_handle
from jetlake.client.streams.tables import table_messages
from jetlake.client.subscribe.pull_subscription import PullSubscription
from jetlake.client.subscribe.push_subscription import PushSubscription
from jetlake.client.subscribe.subscriptions import (
    BindOptions,
    QueueSubscribeOptions,
    SubscribeOptions,
    Subscriptions,
)
from jetlake.completion import hides
from jetlake.errors import InvalidOptionError, StreamNameInUseError, StreamNotFoundError
from jetlake.model.account import AccountInfo
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck
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
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState
from jetlake.protocol.headers import Headers

if TYPE_CHECKING:
    from jetlake.client.schemas.schemas import Schemas

__all__ = ["JetStream"]


@hides("api")
class JetStream:
    """JetStream through one connection; created by `Client.jetstream`."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str = "",
        prefix: str = "",
        timeout: Seconds | None = None,
        publish_window: int = WINDOW_MESSAGES,
        publish_window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._connection = connection
        self._api = ApiCaller(connection, domain=domain, prefix=prefix, timeout_s=timeout_s(timeout))
        self._publisher = Publisher(self._api, window_messages=publish_window, window_bytes=publish_window_bytes)
        self._buckets = key_value_buckets(self._api, self._publisher)
        self._object_stores = object_stores(self._api, self._publisher)
        self._subscriptions = Subscriptions(self._api)
        self._schemas: Schemas | None = None

    def __repr__(self) -> str:
        return f"<JetStream {self._api.prefix} of {self._connection.describe()}>"

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._connection.is_closed

    # Publishing

    def publish(
        self, subject: str, payload: bytes = b"", **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, PubAck]:
        """Publish and wait until a stream has the message.

        Args:
            subject: a subject that a stream captures.
            payload: the content.
            options: headers, message id, expectations, life and timeout of the message.

        Raises:
            WrongLastSequenceError: an expectation about a sequence does not hold.
            ApiError: the stream refuses the message.
            NoRespondersError: no stream captures the subject, or the stream has no leader for too long.
            PublishTimeoutError: no answer in time; the message may be stored. With a `msg_id` publishing again is safe,
                and is done here, once half of the time has passed.
            DisconnectedError: the connection was lost meanwhile, the message may be stored, and has no `msg_id`; one
                with an id is published again on the next connection.
            SchemaMismatchError: with `validate`, the payload does not fit; nothing was sent.
            SchemaError: with `validate`, the subject has no schema.
        """
        if options.get("validate"):
            return self._publish_validated(subject, payload, options)
        return self._publisher.publish(subject, payload, options)

    async def _publish_validated(self, subject: str, payload: bytes, options: PublishOptions) -> PubAck:
        options = await self.schemas().validated(subject, payload, options)
        return await self._publisher.publish(subject, payload, options)

    async def publish_async(self, subject: str, payload: bytes = b"", **options: Unpack[PublishOptions]) -> PendingAck:
        """Publish without waiting for the stream; waits only while the window is full.

        Await the result for the acknowledgement of this message, or `publish_async_complete` for all. What is not
        acknowledged is raised there and reported to `on_error`. When the connection is lost, messages with a `msg_id`
        are sent again on the next one; the others fail, since it is unknown whether they arrived. Messages published
        while no server is connected wait for the next connection.

        A message that finds no stream is sent again a quarter of a second later, behind messages that were published
        meanwhile: where the order matters more than the wait for a stream, give `expected_last_subject_sequence`, or
        await each acknowledgement.

        Args:
            subject: a subject that a stream captures.
            payload: the content.
            options: the options of `publish`.

        Raises:
            ConnectionClosedError: the client is closed.
            PermissionsError: the server refuses the inbox that acknowledgements come to.
        """
        window = self._publisher.window
        raw_subject = known_subject(subject)
        # One call for a message that needs no preparation.
        if (
            window is None
            or raw_subject is None
            or options
            or type(payload) is not bytes
            or len(payload) > self._connection.max_payload
            or (pending := window.put(raw_subject, payload)) is None
        ):
            if options.get("validate"):
                options = await self.schemas().validated(subject, payload, options)
            return await self._publisher.publish_async(subject, payload, options)
        return pending

    async def publish_many(self, messages: Iterable[MessageLike] | AsyncIterable[MessageLike]) -> ManyPublished:
        """Publish all messages of an iterable in order, and wait until all are stored; the fastest way to load many.

        The messages go through the window of `publish_async`, and have the same promises one by one: one that is
        refused does not hold up the others. An exception of the iterable, or a message that cannot be sent, ends the
        call at once; the messages before it are under way, and `publish_async_complete` waits for them.

        Args:
            messages: pairs of subject and payload, or triples with the options of `publish` as a dictionary. Those
                of an async iterable are published one by one, on arrival.

        Raises:
            PublishWindowError: some were not acknowledged; `positions` and `failures` name them. After 10,000 of them
                no more messages are taken.
            InvalidOptionError: something is not a message, or larger than the server takes.
            BadSubjectError: a message's subject is not valid for publishing.
            ConnectionClosedError: the client is closed.
        """
        many = self._many()
        try:
            if isinstance(messages, AsyncIterable):
                await many.publish_all(messages)
            else:
                for step in many.steps(iter(messages)):
                    await step
        except BaseException:
            many.leave()
            raise
        return many.published()

    async def publish_table(
        self,
        table: Any,
        *,
        subject: str | Callable[[Mapping[str, Any]], str] = "",
        key: str = "",
        progress: Callable[[int], object] | None = None,
    ) -> ManyPublished:
        """Publish the rows of a table as messages, in order, and wait until all are stored. Needs `jetlake[arrow]`.

        The payload is column `data` where there is one, with column `headers` beside it, as in tables that were read
        from a stream; else a JSON object of all columns. Rows go through the window of `publish_many`.

        ::

            await js.publish_table(polars.read_parquet("orders.parquet"), subject="orders.{country}", key="id")

        Args:
            table: of pyarrow, polars, pandas or DuckDB, a dataset, or record batches.
            subject: the subject, in which `{column}` stands for the row's value, or a function of the row as a
                dictionary. Default: column `subject`.
            key: the column whose value is the message's id: a stream stores such a row once within its window.
            progress: called with the number of rows that were taken since the last call.

        Raises:
            InvalidOptionError: a column is missing, or a row has no subject or key.
            PublishWindowError: rows were not acknowledged; `positions` and `failures` name them.
        """
        return await self.publish_many(table_messages(table, subject, key, progress))

    def _many(self) -> ManyMessages:
        publish = MethodType(JetStream.publish_async, self)
        tracing = self._connection.options.tracing
        # With tracing each message is a span, which it names in its headers.
        return self._publisher.many(
            publish if tracing is None else tracing.traced_send(publish), has_runs=tracing is None
        )

    async def publish_async_complete(self, timeout: Seconds | None = None) -> None:
        """Wait until all messages of `publish_async` are acknowledged.

        Raises:
            PublishWindowError: some were not; the error lists them.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        await self._publisher.complete(timeout)

    async def replay_dead_letters(
        self, letters: str, *, of: str = "", consumer: str = "", keep: bool = False
    ) -> ReplayedLetters:
        """Publish the messages of dead letters to their original subjects again, and delete the letters.

        All consumers of their stream get the messages, not only the one that gave them up. A replay that broke off may
        be repeated: a message that was published before its letter could be deleted is not published twice.

        Args:
            letters: the stream that holds the dead letters.
            of: only messages of this stream.
            consumer: only messages that this consumer gave up.
            keep: leave the letters where they are.

        Raises:
            StreamNotFoundError: there is no stream of letters.
            ClientConnectionError: the connection was lost; messages that were not published still have their letters.
        """
        refused: list[str] = []
        replaying = DeadLetterReplay(self.publish, self.stream, await self.stream(letters), refused.append, keep=keep)
        return await replaying.replay_all(of, consumer, refused)

    def batch(self) -> AtomicBatch:
        """Begin an atomic batch: `async with js.batch() as batch: batch.publish(...)`.

        The stream needs `allow_atomic`. The end of the block sends the messages, an exception in it discards them;
        `batch.ack` is the acknowledgement.
        """
        return self._publisher.batch()

    def fast_publisher(self, *, flow: int = 100, outstanding: int = 2, gaps: GapMode = "fail") -> FastPublisher:
        """Begin a fast batch: `async with js.fast_publisher() as fast: await fast.publish(...)`.

        The stream needs `allow_batched`. Messages are stored on arrival and acknowledged in groups; the end of the
        block waits until all are stored, and `fast.ack` is the last acknowledgement.

        Args:
            flow: messages between two acknowledgements, at most.
            outstanding: acknowledgements that may be missing before `publish` waits.
            gaps: `fail` ends the batch with the first message that is lost or refused, `ok` reports such messages.
        """
        return FastPublisher(self._connection, self._api.timeout_s, flow=flow, outstanding=outstanding, gaps=gaps)

    async def schedule(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        target: str,
        publish: PublishOptions | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> PubAck:
        """Store a schedule: the stream publishes messages to `target` at a time, at an interval or on a cron schedule.

        The stream needs `allow_msg_schedules`. A subject holds one schedule; another message on it, or a purge of it,
        ends the schedule.

        Args:
            subject: where the schedule is stored.
            payload: what is published.
            target: where it is published; a subject of the same stream.
            publish: options of `publish` for the schedule itself: headers, which published messages have too, `ttl` and
                the rest.
            options: when, and what.

        Raises:
            InvalidOptionError: none or several of `at`, `every` and `cron`.
            ApiError: the stream refuses the schedule.
        """
        given: PublishOptions = {**publish} if publish else {}
        headers = Headers(header_bytes(given.get("headers")))
        given["headers"] = Headers.build([*headers.items(), *schedule_headers(target, **options).items()])
        return await self._publisher.publish(subject, payload, given)

    @property
    def publish_async_pending(self) -> int:
        """Messages of `publish_async` that wait for their acknowledgement."""
        return self._publisher.pending

    # The account

    @property
    def api(self) -> ApiCaller:
        """The API itself, for calls that have no method here: `await js.api.call(ReplyType, "STREAM.INFO", name)`."""
        return self._api

    async def account_info(self) -> AccountInfo:
        """Return the usage and the limits of the account."""
        return await self._api.call(AccountInfoReply, "INFO")

    # Streams

    async def create_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Create a stream; an existing one with the same configuration is accepted.

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
        """Change the given options of a stream, or replace the configuration if one is given.

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
        """Create a stream, or change an existing one to exactly this configuration."""
        config = _stream_config(name, options)
        try:
            return await self._update(config)
        except StreamNotFoundError:
            pass
        try:
            return await self.create_stream(config)
        except StreamNameInUseError:
            return await self._update(config)  # Another client was faster.

    async def _update(self, config: StreamConfig) -> Stream:
        request = StreamCreateRequest.from_config(config)
        return Stream(self._api, await self._api.call(StreamUpdateReply, "STREAM.UPDATE", config.name, body=request))

    async def stream(self, name: str) -> Stream:
        """Return the handle of an existing stream.

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
        """Return all streams, sorted by name, or only streams whose subjects overlap with `subject`."""
        return await self._api.list_all(
            StreamListReply,
            "STREAM.LIST",
            request=lambda offset: StreamListRequest(offset=offset, subject=subject),
            items=lambda page: page.streams,
        )

    async def stream_names(self, subject: str = "") -> list[str]:
        """Return the names of all streams, sorted, or only of streams whose subjects overlap with `subject`."""
        return await self._api.list_all(
            StreamNamesReply,
            "STREAM.NAMES",
            request=lambda offset: StreamListRequest(offset=offset, subject=subject),
            items=lambda page: page.streams,
        )

    async def restore(
        self,
        source: BackupSource,
        config: StreamConfig | None = None,
        *,
        progress: Progress | None = None,
        **options: Unpack[RestoreOptions],
    ) -> Stream:
        """Create a stream from a backup, with its messages and consumers; complete or not at all on a jetlake server.

        Args:
            source: a folder with a backup of `Stream.backup` or the `nats` command, or a file that is open for reading
                and holds the archive alone.
            config: the new stream's configuration, which a file needs. Default: the one in the folder.
            progress: called with the bytes sent so far, and how many there are.
            options: what the new stream has otherwise: its `name`, `subjects`, `storage` and so on.

        Raises:
            BackupError: the folder holds no backup, or the server gave up.
            ApiError: the server refuses the configuration, or the archive is broken.
        """
        archive, meta = await asyncio.to_thread(open_backup, source)
        try:
            base = config or (meta.config if meta is not None else None)
            if base is None:
                raise InvalidOptionError("a file holds the messages alone: give the stream's configuration too")
            wanted = merged(base, cast("dict[str, Any]", options))
            check_name("stream", wanted.name)
            state = meta.state if meta is not None else StreamState()
            return Stream(self._api, await restore(self._api, archive, wanted, state, progress))
        finally:
            if meta is not None:
                archive.close()

    # Consumers, without a handle of their stream

    async def create_consumer(
        self,
        stream: str,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Create a consumer as `Stream.create_consumer` does."""
        return await stream_handle(self._api, stream).create_consumer(name, durable=durable, **options)

    async def create_or_update_consumer(
        self,
        stream: str,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Create or change a consumer as `Stream.create_or_update_consumer` does."""
        return await stream_handle(self._api, stream).create_or_update_consumer(name, durable=durable, **options)

    async def consumer(self, stream: str, name: str, *, lookup: bool = True) -> Consumer:
        """Return the handle of an existing pull consumer, as `Stream.consumer` does.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        return await stream_handle(self._api, stream).consumer(name, lookup=lookup)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer."""
        await stream_handle(self._api, stream).delete_consumer(name)

    # Key-value buckets

    async def create_key_value(self, bucket: str, **options: Unpack[BucketOptions]) -> KeyValue:
        """Create a bucket; an existing one with the same options is accepted.

        Raises:
            InvalidOptionError: an option that cannot work; nothing was sent.
            StreamNameInUseError: one of that name exists and is different.
        """
        return await self._buckets.create(bucket, options)

    async def create_or_update_key_value(self, bucket: str, **options: Unpack[BucketOptions]) -> KeyValue:
        """Create a bucket, or change an existing one to exactly these options."""
        return await self._buckets.create_or_update(bucket, options)

    async def key_value(self, bucket: str) -> KeyValue:
        """Find an existing bucket.

        Raises:
            StreamNotFoundError: no bucket has that name.
            InvalidOptionError: the stream of that name is no bucket.
        """
        return await self._buckets.get(bucket)

    async def delete_key_value(self, bucket: str) -> None:
        """Delete a bucket and all its entries.

        Raises:
            StreamNotFoundError: no bucket has that name.
        """
        await self._buckets.delete(bucket)

    async def key_value_names(self) -> list[str]:
        """List the names of all buckets, sorted."""
        return await self._buckets.names()

    # Object stores

    async def create_object_store(self, bucket: str, **options: Unpack[ObjectStoreOptions]) -> ObjectStore:
        """Create an object store; an existing one with the same options is accepted.

        Raises:
            InvalidOptionError: an option that cannot work; nothing was sent.
            StreamNameInUseError: one of that name exists and is different.
        """
        return await self._object_stores.create(bucket, options)

    async def create_or_update_object_store(self, bucket: str, **options: Unpack[ObjectStoreOptions]) -> ObjectStore:
        """Create an object store, or change an existing one to exactly these options."""
        return await self._object_stores.create_or_update(bucket, options)

    async def object_store(self, bucket: str) -> ObjectStore:
        """Find an existing object store.

        Raises:
            StreamNotFoundError: no object store has that name.
            InvalidOptionError: the stream of that name is no object store.
        """
        return await self._object_stores.get(bucket)

    async def delete_object_store(self, bucket: str) -> None:
        """Delete an object store and all its objects.

        Raises:
            StreamNotFoundError: no object store has that name.
        """
        await self._object_stores.delete(bucket)

    async def object_store_names(self) -> list[str]:
        """List the names of all object stores, sorted."""
        return await self._object_stores.names()

    # Counters

    async def create_counters(self, name: str, **options: Unpack[StreamOptions]) -> Counters:
        """Create a stream of counters, one for each subject; an existing one with the same configuration is accepted.

        Args:
            name: the stream's name.
            options: the options of `create_stream`; with `sources`, counters of other streams are added up.

        Raises:
            StreamNameInUseError: one of that name exists and is different.
        """
        given: StreamOptions = {"allow_msg_counter": True, "allow_direct": True, **options}
        return Counters(self._publisher, await self.create_stream(name, **given))

    async def counters(self, name: str) -> Counters:
        """Find the counters of an existing stream.

        Raises:
            StreamNotFoundError: no stream has that name.
            InvalidOptionError: the stream has no counters.
        """
        return Counters(self._publisher, await self.stream(name))

    # Consumer groups

    def consumer_groups(self, stream: str) -> ConsumerGroups:
        """Return the consumer groups of a stream, whose members share its keys, each key in order."""
        return ConsumerGroups(self._api, self._buckets, stream)

    # Schemas

    def schemas(self) -> Schemas:
        """Return the schemas of payloads, which are in the key-value bucket `schemas`; asks the server nothing yet."""
        if self._schemas is None:
            from jetlake.client.schemas.schemas import Schemas  # here, for most clients use none

            self._schemas = Schemas(self._api, self._buckets)
        return self._schemas

    # Subscriptions that find or create their consumer

    @overload
    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        ordered: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> PushSubscription: ...

    @overload
    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        ordered: Literal[True],
        **options: Unpack[SubscribeOptions],
    ) -> OrderedConsume: ...

    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        ordered: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> PushSubscription | OrderedConsume:
        """Subscribe through a push consumer; one that this call creates is deleted by `unsubscribe` and `drain`.

        NATS ADR-15 has the rule: they delete a consumer that this call created, a durable one with its position too,
        unless `keep_consumer` is set or another member of its queue group is bound to it. Closing, draining or losing
        the client's connection deletes nothing that has a name. Without `consumer` and `durable` an ephemeral consumer
        is created.

        Args:
            subject: what to receive; also finds the stream.
            callback: called with each message, which is acknowledged when it returns; without it, iterate.
            ordered: every message once and in order, without acknowledgements; see `Stream.ordered`.
            options: how to find the consumer, what a new one is like (one that exists must be the same), and how many
                messages may wait here.

        Raises:
            InvalidOptionError: the options contradict each other; nothing was sent.
            SubscribeMismatchError: the consumer that exists does not fit; the message says why.
            StreamNotFoundError: no stream has the subject.
        """
        return await self._subscriptions.subscribe(subject, callback, ordered, options)

    async def queue_subscribe(
        self,
        subject: str,
        queue: str,
        callback: MessageCallback | None = None,
        **options: Unpack[QueueSubscribeOptions],
    ) -> PushSubscription:
        """Share a push consumer; its creator's `unsubscribe` or `drain` deletes it if no other member is bound.

        Without `consumer` and `durable` the queue's name is the durable's name, so that all members meet
        (NATS ADR-15). With `keep_consumer` the consumer stays when its creator is the last to go; see `subscribe`.
        """
        return await self._subscriptions.queue_subscribe(subject, queue, callback, options)

    async def pull_subscribe(
        self, subject: str = "", durable: str = "", **options: Unpack[BindOptions]
    ) -> PullSubscription:
        """Fetch from a pull consumer; one that this call creates is deleted by `unsubscribe` and `drain`.

        They delete a consumer that this call created, a durable one too, unless `keep_consumer` is set or another
        client pulls from it; closing the client does not (NATS ADR-13, NATS ADR-15).

        Args:
            subject: what to receive; also finds the stream.
            durable: use this durable consumer, and create it if it is missing. Default: an ephemeral one.
            options: how to find the consumer, and what a new one is like; one that exists must be the same.

        Raises:
            InvalidOptionError: the options contradict each other; nothing was sent.
            SubscribeMismatchError: the consumer that exists does not fit; the message says why.
            StreamNotFoundError: no stream has the subject.
        """
        return await self._subscriptions.pull_subscribe(subject, durable, options)


def _stream_config(name: str | StreamConfig, options: Any) -> StreamConfig:
    if isinstance(name, StreamConfig):
        if options:
            raise InvalidOptionError("pass a configuration or single options, not both")
        check_name("stream", name.name)
        return name
    check_name("stream", name)
    return configured(StreamConfig, {"name": name, **cast("dict[str, Any]", options)})
