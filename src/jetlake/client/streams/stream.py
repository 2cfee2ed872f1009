"""The handle of a stream: its messages, its consumers, and the stream itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import msgspec

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import ConsumerOptions, DeliverPolicyName, StreamOptions, configured, merged
from jetlake.client.api.consumer_api import consumer_config, create_consumer, with_features
from jetlake.client.ordered.ordered import OrderedConsumer
from jetlake.client.pull.consumer import Consumer
from jetlake.client.settings.wire_values import publish_subject
from jetlake.client.streams.backup import Backup, BackupTarget, Progress, take_backup
from jetlake.client.streams.direct_get import get_batch, get_by_leader, get_one
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.tables import BucketCodec, TableArguments, async_table, bucket_table, loaded, stream_table
from jetlake.completion import hides
from jetlake.errors import InvalidOptionError, MessageNotFoundError, PermissionsError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.durations import Seconds
from jetlake.model.encoding.times import parse_time, start_text
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.model.replies import (
    ConsumerDeleteReply,
    ConsumerInfoReply,
    ConsumerListReply,
    ConsumerNamesReply,
    MessageDeleteReply,
    StreamDeleteReply,
    StreamInfoReply,
    StreamPurgeReply,
    StreamUpdateReply,
)
from jetlake.model.requests import (
    ConsumerListRequest,
    DirectGetRequest,
    MessageDeleteRequest,
    MessageGetRequest,
    StreamCreateRequest,
    StreamInfoRequest,
    StreamPurgeRequest,
)
from jetlake.model.stream import StreamConfig, StreamInfo
from jetlake.protocol.subjects import has_wildcards

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow import Table as ArrowTable

    from jetlake.client.tables.table import Table


@hides("bucket_table", "newest")
class Stream:
    """A stream.

    Attributes:
        name: its name.
        cached_info: the server's last answer about it.
    """

    __slots__ = ("_api", "cached_info", "name")

    def __init__(self, api: ApiCaller, info: StreamInfo) -> None:
        self._api = api
        self.name = info.config.name
        self.cached_info = info

    @property
    def config(self) -> StreamConfig:
        """The configuration in the server's last answer."""
        return self.cached_info.config

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # As a table

    def table(self, **options: Unpack[TableArguments]) -> Table:
        """Return the stream as a table, without a JVM: for Arrow, polars, pandas and DuckDB. Needs `jetlake[arrow]`.

        Every call of the table's methods reads the stream as it is then, over a connection of its own.

        ::

            orders = stream.table(subjects="orders.>", payload="json", start="-1 hour")
            frame = await orders.to_polars()

        Args:
            subjects: read only messages whose subject matches one of these; wildcards `*` and `>`. The server filters.
            start: where to begin: a sequence, a time, a timedelta before now, or a text: `earliest`, `latest`,
                `last:100`, `-10 minutes`.
            end: where to end, inclusive for a sequence and exclusive for a time. Default: the end as it is then.
            columns: some of `stream`, `sequence`, `subject`, `timestamp`, `headers`, `data`, `msg_id`, `size`,
                `headers_raw`, `value`, `bad_data` and `bad_reason`. Default: sequence, subject, timestamp, headers, and
                data or value.
            payload: `raw` gives column `data`; `json`, `avro` and `protobuf` decode it into the struct column `value`.
            schema: the fields of `value` for JSON: a pyarrow schema, or types by name; or `bucket:orders.>`, in any
                format, for the schema of that subject in `JetStream.schemas`. Default: as in the first
                messages.
            avro_schema: the writer's schema for Avro, as JSON text or dict.
            protobuf_schema: the descriptor set of `protoc --include_imports --descriptor_set_out`, for Protobuf.
            protobuf_message: the full name of the message; empty for the last one of the set.
            bad_rows: a payload that cannot be decoded: `fail` raises `BadPayloadError`, `column` leaves `value` null
                and fills `bad_data` and `bad_reason`.
            archive: the folder of an archive of the stream (`jetlake pipeline archive`, Parquet, Delta or Iceberg):
                archived messages come from there, in the order of its files, and the rest from the stream.
            fail_on_data_loss: raise `DataLossError` when messages went away before they were read; else a warning is
                logged.
            reader: `auto`, `consumer`, `direct` or `leader`: how the messages are asked for.
            batch_rows: most rows of a record batch.

        Raises:
            InvalidOptionError: an option that cannot work.
            ConfigError: pyarrow or numpy is not installed.
        """
        return async_table(stream_table(self._api, self.name, options))

    def bucket_table(self, codec: BucketCodec, has_history: bool, options: TableArguments) -> Table:
        """Return the bucket that the stream holds as a table; `KeyValue.table` calls this."""
        return async_table(bucket_table(self._api, self.name, codec, has_history=has_history, options=options))

    async def arrow_batches(self, **options: Unpack[TableArguments]) -> AsyncIterator[RecordBatch]:
        """Yield the messages as Arrow record batches when they arrive: `table(…).arrow_batches()`."""
        async with aclosing((await loaded(self.table, **options)).arrow_batches()) as batches:
            async for batch in batches:
                yield batch

    async def to_arrow(self, **options: Unpack[TableArguments]) -> ArrowTable:
        """Return the messages as a `pyarrow.Table`: `table(…).to_arrow()`."""
        return await (await loaded(self.table, **options)).to_arrow()

    async def to_polars(self, **options: Unpack[TableArguments]) -> Any:
        """Return the messages as a polars DataFrame: `table(…).to_polars()`."""
        return await (await loaded(self.table, **options)).to_polars()

    async def to_pandas(self, **options: Unpack[TableArguments]) -> Any:
        """Return the messages as a pandas DataFrame: `table(…).to_pandas()`."""
        return await (await loaded(self.table, **options)).to_pandas()

    async def scan(self, **options: Unpack[TableArguments]) -> Any:
        """Return the messages as a polars LazyFrame, which reads what a query needs: `table(…).scan()`."""
        return await (await loaded(self.table, **options)).scan()

    # The stream itself

    async def info(self, *, deleted_details: bool = False, subjects_filter: str = "") -> StreamInfo:
        """Ask the server about the stream.

        Args:
            deleted_details: list the sequences that were deleted.
            subjects_filter: list the messages by subject, for subjects that match; `>` for all.

        Raises:
            StreamNotFoundError: it is gone.
        """
        request = StreamInfoRequest(deleted_details=deleted_details, subjects_filter=subjects_filter)
        has_body = deleted_details or bool(subjects_filter)
        info = await self._api.call(StreamInfoReply, "STREAM.INFO", self.name, body=request if has_body else None)
        subjects = dict(info.state.subjects)
        while subjects_filter and len(subjects) < info.total:
            page = msgspec.structs.replace(request, offset=len(subjects))
            more = await self._api.call(StreamInfoReply, "STREAM.INFO", self.name, body=page)
            if not more.state.subjects:
                break
            subjects.update(more.state.subjects)
        if len(subjects) > len(info.state.subjects):
            info = msgspec.structs.replace(info, state=msgspec.structs.replace(info.state, subjects=subjects))
        self.cached_info = info
        return info

    async def update(self, config: StreamConfig | None = None, **options: Unpack[StreamOptions]) -> StreamInfo:
        """Change the given options, or replace the configuration if one is given.

        Raises:
            ApiError: the server refuses the change.
        """
        if config is None:
            config = merged((await self.info()).config, cast("dict[str, Any]", options))
        elif options:
            raise InvalidOptionError("pass a configuration or single options, not both")
        request = StreamCreateRequest.from_config(config)
        self.cached_info = await self._api.call(StreamUpdateReply, "STREAM.UPDATE", self.name, body=request)
        return self.cached_info

    async def delete(self) -> None:
        """Delete the stream, its messages and its consumers."""
        await self._api.call(StreamDeleteReply, "STREAM.DELETE", self.name)

    async def purge(self, *, subject: str = "", before: int = 0, keep: int = 0) -> int:
        """Remove all messages, or only messages that the arguments select.

        Args:
            subject: only messages whose subject matches.
            before: only messages with a sequence below this one.
            keep: how many of the newest messages stay; not together with `before`.

        Returns:
            How many were removed.
        """
        if before and keep:
            raise InvalidOptionError("purge takes before or keep, not both")
        request = StreamPurgeRequest(seq=before, keep=keep, filter=subject)
        has_body = bool(subject or before or keep)
        reply = await self._api.call(StreamPurgeReply, "STREAM.PURGE", self.name, body=request if has_body else None)
        return reply.purged

    async def backup(
        self,
        target: BackupTarget,
        *,
        consumers: bool = True,
        chunk_bytes: int = 0,
        window_bytes: int = 0,
        progress: Progress | None = None,
    ) -> Backup:
        """Back up the stream to a folder or file; `JetStream.restore` creates a stream from it.

        The archive is nats-server's, and the folder that of the `nats` command: any server can restore it.

        Args:
            target: a folder, which is made and may hold nothing else but files of other names; or a file that is open
                for writing, which gets the archive alone.
            consumers: save the consumers with their positions too.
            chunk_bytes: size of the messages in which the server sends the archive. Default 256 KiB.
            window_bytes: most bytes that the server sends ahead. Default: the server's, 8 MiB.
            progress: called with the bytes received so far and the size of the stream, of which an archive takes less.

        Raises:
            BackupError: the server ended the backup, or the folder can't be written.
        """
        return await take_backup(
            self._api,
            self.name,
            target,
            consumers=consumers,
            chunk_bytes=chunk_bytes,
            window_bytes=window_bytes,
            progress=progress,
        )

    # Messages

    async def get(
        self,
        sequence: int = 0,
        *,
        last_by_subject: str = "",
        next_by_subject: str = "",
        start_time: datetime | str | None = None,
        direct: bool | None = None,
    ) -> StoredMessage:
        """Return one message, by sequence, subject or time.

        Args:
            sequence: its sequence; with `next_by_subject`, where to begin.
            last_by_subject: the newest of this subject.
            next_by_subject: the first that matches this subject, from `sequence` or `start_time` on.
            start_time: the first that was stored then or later.
            direct: whether any copy may answer, which is faster and needs `allow_direct`: a replica, which may lag, or
                a mirror, which may lack messages. False asks the leader. Default: a replica may answer, if direct gets
                are allowed; what a mirror answers, or that there is no such message, is asked of the leader again, as
                far as the login may ask it.

        Raises:
            MessageNotFoundError: there is none.
        """
        if not (sequence or last_by_subject or next_by_subject or start_time):
            raise InvalidOptionError("get needs a sequence, last_by_subject, next_by_subject or start_time")
        if last_by_subject and (sequence or next_by_subject or start_time):
            raise InvalidOptionError("last_by_subject cannot be combined with other arguments")
        time = None if start_time is None else start_text(start_time)
        request = MessageGetRequest(
            seq=sequence, last_by_subj=last_by_subject, next_by_subj=next_by_subject, start_time=time
        )
        if direct:
            return await self._get_direct(request)
        if direct is None and self.config.allow_direct:
            return await self._get_checked(request, lambda found: found.stream == self.name)
        return await get_by_leader(self._api, self.name, request)

    async def newest(self, subject: str, *, at_least: int = 0) -> StoredMessage:
        """Return the newest message of a subject as any copy has it, a mirror too; buckets read by it.

        Where no copy has one, or only one below a sequence that is known to be stored, the leader is asked. So it is
        where a mirror answers with a message from before the stream was created: of an earlier stream of that name.

        Raises:
            MessageNotFoundError: there is none.
        """
        request = MessageGetRequest(last_by_subj=subject)
        if not self.config.allow_direct:
            return await get_by_leader(self._api, self.name, request)

        def is_recent(found: StoredMessage) -> bool:
            is_own = found.stream == self.name or found.time_ns >= parse_time(self.cached_info.created)
            return is_own and found.sequence >= at_least

        return await self._get_checked(request, is_recent)

    async def _get_checked(
        self, request: MessageGetRequest, is_valid: Callable[[StoredMessage], bool]
    ) -> StoredMessage:
        """Return what a direct get finds, if it is valid; else what the leader says."""
        found: StoredMessage | MessageNotFoundError
        try:
            found = await self._get_direct(request)
            if is_valid(found):
                return found
        except MessageNotFoundError as error:
            found = error
        try:
            return await get_by_leader(self._api, self.name, request)
        except PermissionsError:
            # A user with permission for direct gets only cannot ask the leader.
            if isinstance(found, MessageNotFoundError):
                raise found from None
            return found

    async def _get_direct(self, request: MessageGetRequest) -> StoredMessage:
        subject = self._api.subject("DIRECT.GET", self.name)
        payload = b""
        last = request.last_by_subj
        if last and not has_wildcards(last.encode()):
            subject += b"." + publish_subject(last)
        else:
            payload = encode(
                DirectGetRequest(
                    seq=request.seq,
                    last_by_subj=last,
                    next_by_subj=request.next_by_subj,
                    start_time=request.start_time,
                )
            )
        return await get_one(self._api, self.name, subject, payload)

    def get_batch(
        self,
        batch: int = 0,
        *,
        sequence: int = 0,
        start_time: datetime | str | None = None,
        next_by_subject: str = "",
        last_by_subjects: Iterable[str] = (),
        max_bytes: int = 0,
        up_to_sequence: int = 0,
        up_to_time: datetime | str | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Many messages with one request; the stream needs `allow_direct`.

        What a mirror answers is dropped, and asked of the stream's leader message by message.

        Args:
            batch: most messages; needed unless `last_by_subjects` is given.
            sequence: where to begin. Default 1.
            start_time: where to begin, by time.
            next_by_subject: only messages whose subject matches.
            last_by_subjects: the newest of every subject that matches one of these, instead.
            max_bytes: most bytes; at least one message is sent.
            up_to_sequence: with `last_by_subjects`: as the stream was at this sequence.
            up_to_time: with `last_by_subjects`: as the stream was then.
        """
        subjects = tuple(last_by_subjects)
        if batch < 1 and not subjects:
            raise InvalidOptionError("get_batch needs batch, the most messages to send, or last_by_subjects")
        if (up_to_sequence or up_to_time is not None) and not subjects:
            raise InvalidOptionError("up_to_sequence and up_to_time need last_by_subjects")
        request = DirectGetRequest(
            seq=sequence or (0 if subjects or start_time is not None else 1),
            next_by_subj=next_by_subject,
            batch=batch,
            max_bytes=max_bytes,
            start_time=None if start_time is None else start_text(start_time),
            multi_last=subjects,
            up_to_seq=up_to_sequence,
            up_to_time=None if up_to_time is None else start_text(up_to_time),
        )
        return get_batch(self._api, self.name, request)

    async def get_last_for(self, *subjects: str) -> dict[str, StoredMessage]:
        """Return the newest message of every matching subject, by subject, with one request.

        Args:
            subjects: subjects, or patterns with `*` for one token and `>` for the rest.

        Raises:
            PullStatusError: more subjects match than the server sends at a time (1024).
        """
        if not subjects:
            raise InvalidOptionError("get_last_for needs subjects; `>` for all")
        return {message.subject: message async for message in self.get_batch(last_by_subjects=subjects)}

    async def delete_message(self, sequence: int, *, erase: bool = True) -> None:
        """Delete one message; with `erase` its content is overwritten too.

        Raises:
            ApiError: there is none, or deleting is denied.
        """
        request = MessageDeleteRequest(seq=sequence, no_erase=not erase)
        await self._api.call(MessageDeleteReply, "STREAM.MSG.DELETE", self.name, body=request)

    def ordered(
        self,
        *,
        deliver_policy: DeliverPolicyName = "all",
        opt_start_seq: int | None = None,
        opt_start_time: datetime | str | None = None,
        filter_subject: str | None = None,
        filter_subjects: Iterable[str] | None = None,
        replay_policy: Literal["instant", "original"] = "instant",
        headers_only: bool = False,
        inactive_threshold: Seconds = 300,
        name_prefix: str | None = None,
    ) -> OrderedConsumer:
        """Read the stream in order, without acknowledgements.

        ::

            async for message in stream.ordered(deliver_policy="by_start_sequence", opt_start_seq=10):
                ...

        Args:
            deliver_policy: where to start.
            opt_start_seq: the sequence to start at, for `by_start_sequence`.
            opt_start_time: the time to start at, for `by_start_time`.
            filter_subject: read only what matches.
            filter_subjects: read only what matches one of these.
            replay_policy: how fast to deliver what is stored.
            headers_only: leave payloads out.
            inactive_threshold: seconds that the server keeps a consumer of a reader that vanished.
            name_prefix: what the names of the consumers begin with.

        Raises:
            InvalidOptionError: an option that cannot work.
        """
        if name_prefix is not None:
            check_name("consumer", name_prefix)
        if deliver_policy == "last_per_subject" and filter_subject is None and filter_subjects is None:
            filter_subject = ">"  # The server needs the subjects.
        options = {
            "name": name_prefix,
            "deliver_policy": deliver_policy,
            "opt_start_seq": opt_start_seq,
            "opt_start_time": opt_start_time,
            "filter_subject": filter_subject,
            "filter_subjects": filter_subjects,
            "replay_policy": replay_policy,
            "headers_only": headers_only,
            "inactive_threshold": inactive_threshold,
            "ack_policy": AckPolicy.NONE,
            "mem_storage": True,
            "num_replicas": 1,
        }
        return OrderedConsumer(self._api, self.name, configured(ConsumerConfig, options))

    # Consumers

    async def create_consumer(
        self,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Create a pull consumer; an existing one with the same configuration is accepted.

        Args:
            name: its name, or a whole configuration. Default: one that the library makes up.
            durable: whether it stays without use. Default: if it has a name.
            options: what it takes and how; acknowledgements are explicit unless `ack_policy` says otherwise.

        Raises:
            ConsumerExistsError: one of that name exists and is different.
            ApiError: the server refuses the configuration.
        """
        return await self._create(name, durable, options, ConsumerAction.CREATE)

    async def create_or_update_consumer(
        self,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Create a pull consumer, or change an existing one to this configuration."""
        return await self._create(name, durable, options, ConsumerAction.CREATE_OR_UPDATE)

    async def update_consumer(self, name: str | ConsumerConfig, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Change the given options of a consumer, or replace the configuration if one is given.

        Raises:
            ConsumerDoesNotExistError: there is none of that name.
            ApiError: the server refuses the change.
        """
        if isinstance(name, ConsumerConfig):
            config = name
        else:
            before = (await self.consumer_info(name)).config
            config = merged(before, with_features(cast("dict[str, Any]", options), before.metadata))
        return Consumer(self._api, await create_consumer(self._api, self.name, config, ConsumerAction.UPDATE))

    async def _create(
        self, name: str | ConsumerConfig | None, durable: bool | None, options: Any, action: ConsumerAction
    ) -> Consumer:
        if isinstance(name, ConsumerConfig):
            if options or durable is not None:
                raise InvalidOptionError("pass a configuration or single options, not both")
            config = name
        else:
            config = consumer_config(name, durable, options)
        if config.is_push:
            raise InvalidOptionError("deliver_subject is for push consumers: use js.subscribe")
        return Consumer(self._api, await create_consumer(self._api, self.name, config, action))

    async def consumer(self, name: str, *, lookup: bool = True) -> Consumer:
        """Return the handle of an existing pull consumer.

        A user who may pull and not ask about the consumer (`CONSUMER.INFO`) gets the handle all the same; the first
        pull finds out whether the consumer exists.

        Args:
            name: the consumer's name.
            lookup: ask the server about it. False where nobody would answer, as for a consumer that another account
                exports without its `CONSUMER.INFO`.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        check_name("consumer", name)
        if lookup:
            try:
                return Consumer(self._api, await self.consumer_info(name))
            except PermissionsError:
                pass
        return Consumer.unseen(self._api, self.name, name)

    async def consumer_info(self, name: str) -> ConsumerInfo:
        """Ask the server about a consumer.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        check_name("consumer", name)
        return await self._api.call(ConsumerInfoReply, "CONSUMER.INFO", self.name, name)

    async def delete_consumer(self, name: str) -> None:
        """Delete a consumer.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        check_name("consumer", name)
        await self._api.call(ConsumerDeleteReply, "CONSUMER.DELETE", self.name, name)

    async def consumers(self) -> list[ConsumerInfo]:
        """Return all consumers, sorted by name."""
        return await self._api.list_all(
            ConsumerListReply,
            "CONSUMER.LIST",
            self.name,
            request=lambda offset: ConsumerListRequest(offset=offset),
            items=lambda page: page.consumers,
        )

    async def consumer_names(self) -> list[str]:
        """Return the names of all consumers, sorted."""
        return await self._api.list_all(
            ConsumerNamesReply,
            "CONSUMER.NAMES",
            self.name,
            request=lambda offset: ConsumerListRequest(offset=offset),
            items=lambda page: page.consumers,
        )


def stream_handle(api: ApiCaller, name: str) -> Stream:
    """Return the handle of a stream of which only the name is known."""
    return Stream(api, StreamInfo(config=StreamConfig(name=check_name("stream", name))))
