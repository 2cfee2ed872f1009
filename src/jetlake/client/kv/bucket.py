"""Key-value buckets: their handle, watches over their keys, and the bucket of a name."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.api.config_options import DeliverPolicyName
from jetlake.client.kv.codecs import KeyCodec, ValueCodec
from jetlake.client.kv.config import (
    STREAM_PREFIX,
    BucketOptions,
    BucketStatus,
    bucket_config,
    check_key,
    check_pattern,
    read_status,
    subject_prefix,
)
from jetlake.client.kv.entry import Entry, from_delivery, from_stored, operation_of
from jetlake.client.messages.message import Message
from jetlake.client.ordered.watch import Watch, WatchHandler
from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream, stream_handle
from jetlake.client.streams.tables import BucketCodec, TableArguments, loaded
from jetlake.errors import (
    InvalidOptionError,
    KeyExistsError,
    KeyNotFoundError,
    MessageNotFoundError,
    WrongLastSequenceError,
)
from jetlake.model.api import API_PREFIX
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.model.encoding.times import parse_time
from jetlake.model.stream import StreamInfo

if TYPE_CHECKING:
    from pyarrow import Table as ArrowTable

    from jetlake.client.tables.table import Table


DefaultT = TypeVar("DefaultT")

_DELETE = {"KV-Operation": "DEL"}
_PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
_MARKERS_S = 30 * 60.0


class KeyValue:
    """A bucket of keys, each with a value and some older revisions; created by `JetStream.key_value`.

    Other clients of the same server see the same buckets.

    Attributes:
        bucket: its name.
        stream: the stream that holds it.
    """

    __slots__ = ("_keys", "_origin", "_prefix", "_publisher", "_values", "_write_prefix", "bucket", "stream")

    def __init__(self, publisher: Publisher, stream: Stream, origin: Stream, api_prefix: str) -> None:
        self._publisher = publisher
        # A mirror holds the entries under the subjects of its origin, and takes no writes: they go to the origin.
        self._origin = origin
        self._keys: KeyCodec | None = None
        self._values: ValueCodec | None = None
        self.stream = stream
        self.bucket = stream.name.removeprefix(STREAM_PREFIX)
        self._prefix = subject_prefix(origin.name.removeprefix(STREAM_PREFIX))
        # Through another API prefix, only subjects that begin with it reach the bucket.
        self._write_prefix = self._prefix if api_prefix == API_PREFIX else f"{api_prefix}.{self._prefix}"

    def __repr__(self) -> str:
        return f"<KeyValue {self.bucket!r}>"

    def with_codec(self, *, keys: KeyCodec | None = None, values: ValueCodec | None = None) -> KeyValue:
        """Return the same bucket through codecs, which all its programs must use.

        ::

            files = bucket.with_codec(keys=PathKeys())
            await files.put("/etc/hosts", b"")

        Args:
            keys: translates keys and patterns; see `jetlake.client.kv.codecs`. Default: none.
            values: translates values. Default: none.
        """
        coded = copy(self)
        coded._keys, coded._values = keys, values
        return coded

    def _stored_key(self, key: str) -> str:
        """Return the key as it is stored, checked."""
        return check_key(key if self._keys is None or not isinstance(key, str) else self._keys.encode(key))

    def _stored_pattern(self, pattern: str) -> str:
        """Return the pattern that stored keys match, checked."""
        is_coded = self._keys is not None and isinstance(pattern, str) and pattern != ">"
        return check_pattern(self._keys.encode(pattern) if self._keys is not None and is_coded else pattern)

    def _decoded(self, entry: Entry, *, has_value: bool = True) -> Entry:
        """Return the entry with its key and value as programs use them."""
        if self._keys is not None:
            entry = msgspec.structs.replace(entry, key=self._keys.decode(entry.key))
        if self._values is not None and has_value and not entry.is_deleted:
            entry = msgspec.structs.replace(entry, value=self._values.decode(entry.value))
        return entry

    # Reading

    @overload
    async def get(self, key: str, *, revision: int = 0, leader: bool = False) -> Entry: ...

    @overload
    async def get(
        self, key: str, *, revision: int = 0, leader: bool = False, default: DefaultT
    ) -> Entry | DefaultT: ...

    async def get(self, key: str, *, revision: int = 0, leader: bool = False, default: Any = ...) -> Any:
        """Return the value of a key.

        Any replica or mirror of the bucket may answer, as it is then. Values that were written through the same
        JetStream context are always seen: where an answer is older, or there is none, the leader is asked.

        Args:
            key: the key.
            revision: this revision of it. Default: the newest.
            leader: read from the leader, which has every write that was acknowledged to any client.
            default: returned where there is no value, instead of raising.

        Raises:
            KeyNotFoundError: there is none, or it was deleted, and no default was given.
        """
        entry = await self._entry(key, revision, leader=leader)
        if entry is not None and not entry.is_deleted:
            return entry
        if default is ...:
            raise KeyNotFoundError(self.bucket, key)
        return default

    async def _entry(self, key: str, revision: int = 0, *, leader: bool = False) -> Entry | None:
        """Return the value or marker of a key."""
        stored_key = self._stored_key(key)
        subject = self._prefix + stored_key
        if revision < 0:
            raise InvalidOptionError(f"revision must be 1 or more, not {revision}")
        if not revision:
            message = await self._newest(stored_key, leader=leader)
        elif leader:
            message = await _found(self._origin.get(revision, direct=False))
        else:
            message = await _found(self.stream.get(revision))
        if message is None or message.subject != subject:
            return None
        return self._decoded(from_stored(self.bucket, stored_key, message))

    async def _newest(self, stored_key: str, *, leader: bool) -> StoredMessage | None:
        """Return the newest message of a key, at least as new as the last one that this context wrote.

        A mirror has the sequences of its origin, so they can be compared; a mirror that is behind is skipped in favour
        of the origin's leader, which took the write.
        """
        subject, written_to = self._prefix + stored_key, self._write_prefix + stored_key
        own_writes, is_mirror = self._publisher.own_writes, self._origin is not self.stream
        written = own_writes.newest(written_to)
        message = None
        if not leader:
            message = await _found(self.stream.newest(subject, at_least=0 if is_mirror else written))
        is_behind = (message.sequence if message is not None else 0) < written
        if leader or (is_mirror and is_behind):
            message = await _found(self._origin.get(last_by_subject=subject, direct=False))
        if message is None or message.sequence < written:
            own_writes.forget(written_to)  # The leader no longer has it.
        return message

    async def keys(self, *patterns: str) -> list[str]:
        """Return the current keys that have a value: all, or only keys that match one of the patterns."""
        async with self.watch(*patterns, meta_only=True) as watch:
            newest = {entry.key: entry for entry in await watch.current()}
        return [key for key, entry in newest.items() if not entry.is_deleted]

    async def history(self, key: str) -> list[Entry]:
        """Return the revisions of a key that are kept, oldest first, markers included.

        Raises:
            KeyNotFoundError: there are none.
        """
        self._stored_key(key)
        async with self.watch(key, include_history=True) as watch:
            entries = await watch.current()
        if not entries:
            raise KeyNotFoundError(self.bucket, key)
        return entries

    def table(
        self,
        *patterns: str,
        history: bool = False,
        payload: Literal["raw", "json"] = "raw",
        schema: Any = None,
    ) -> Table:
        """Return the bucket as a table, for Arrow, polars, pandas and DuckDB. Needs `jetlake[arrow]`.

        The columns are `key`, `value`, `revision`, `created`, and with `history` also `operation`. Every call of the
        table's methods reads the bucket as it is then. Which value of a key is the newest is known at the end only, so
        without `history` the values that are read are in memory together.

        Args:
            patterns: keys, with `*` for one token and `>` for the rest. Default: all keys.
            history: a row for each revision that is kept, markers included, instead of one for each key.
            payload: `json` decodes values into structs.
            schema: the fields of JSON values: a pyarrow schema, or types by name. Default: as in the first values.

        Raises:
            InvalidOptionError: an option that cannot work.
            ConfigError: pyarrow or numpy is not installed.
        """
        subjects = [self._prefix + self._stored_pattern(pattern) for pattern in patterns]
        codec = BucketCodec(
            name=self.bucket,
            prefix=self._prefix,
            operation=operation_of,
            key=self._keys.decode if self._keys is not None else None,
            value=self._values.decode if self._values is not None else None,
        )
        options = TableArguments(subjects=subjects, payload=payload, schema=schema)
        return self.stream.bucket_table(codec, history, options)

    async def to_arrow(self, *patterns: str, **options: Any) -> ArrowTable:
        """Return the values of keys as a `pyarrow.Table`: `table(…).to_arrow()`."""
        return await (await loaded(self.table, *patterns, **options)).to_arrow()

    async def to_polars(self, *patterns: str, **options: Any) -> Any:
        """Return the values of keys as a polars DataFrame: `table(…).to_polars()`."""
        return await (await loaded(self.table, *patterns, **options)).to_polars()

    async def to_pandas(self, *patterns: str, **options: Any) -> Any:
        """Return the values of keys as a pandas DataFrame: `table(…).to_pandas()`."""
        return await (await loaded(self.table, *patterns, **options)).to_pandas()

    def watch(
        self,
        *patterns: str,
        include_history: bool = False,
        updates_only: bool = False,
        from_revision: int = 0,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        handler: WatchHandler[Entry] | None = None,
    ) -> KeyWatch:
        """Return the current values of keys and every later change.

        ::

            async with bucket.watch("config.>") as changes:
                async for entry in changes:
                    print(entry.key, entry.value)

        Args:
            patterns: keys, with `*` for one token and `>` for the rest. Default: all keys.
            include_history: begin with all revisions that are kept, not just the newest of each key.
            updates_only: begin with the next change.
            from_revision: begin with this revision; older ones are skipped.
            ignore_deletes: leave markers out.
            meta_only: leave values out.
            handler: called with each entry, one at a time, instead of iterating; `wait` of the watch waits for its end.

        Raises:
            InvalidOptionError: patterns that are none, or two ways to begin.
        """
        if include_history + updates_only + bool(from_revision) > 1:
            raise InvalidOptionError("include_history, updates_only and from_revision are mutually exclusive")
        policy: DeliverPolicyName = "last_per_subject"
        if include_history:
            policy = "all"
        elif updates_only:
            policy = "new"
        elif from_revision:
            policy = "by_start_sequence"
        subjects = [self._prefix + self._stored_pattern(pattern) for pattern in patterns or (">",)]
        ordered = self.stream.ordered(
            deliver_policy=policy,
            opt_start_seq=from_revision or None,
            filter_subject=subjects[0] if len(subjects) == 1 else None,
            filter_subjects=subjects if len(subjects) > 1 else None,
            headers_only=meta_only,
            name_prefix="watch",
        )
        bucket, prefix_length = self.bucket, len(self._prefix)

        def entry(message: Message) -> Entry | None:
            found = from_delivery(bucket, prefix_length, message)
            return None if ignore_deletes and found.is_deleted else self._decoded(found, has_value=not meta_only)

        return KeyWatch(
            bucket,
            ordered,
            entry,
            self.stream.info,
            one_per_subject=policy == "last_per_subject",
            handler=handler,
        )

    async def status(self) -> BucketStatus:
        """Return the limits and the size of the bucket."""
        return read_status(await self.stream.info())

    # Writing

    async def put(self, key: str, value: bytes, *, ttl: Seconds | None = None) -> int:
        """Store a value for a key, and return its revision.

        Args:
            key: the key.
            value: the value.
            ttl: seconds that this value lives; the bucket needs `limit_marker_ttl`. Default: for ever, also where the
                value before it had an end.
        """
        return await self._write(key, value, ttl=ttl)

    async def create(self, key: str, value: bytes, *, ttl: Seconds | None = None) -> int:
        """Store a value for a key that has none.

        Args:
            key: the key.
            value: the value.
            ttl: seconds that this value lives; the bucket needs `limit_marker_ttl`. A later `put` or `update` has a
                life of its own: give it `ttl` again to renew a lease.

        Raises:
            KeyExistsError: it has one.
        """
        revision = 0
        while True:
            try:
                return await self._write(key, value, revision=revision, ttl=ttl)
            except WrongLastSequenceError:
                entry = await self._last_write(key)
            # A marker counts as no value; the same revision again would be refused again.
            if entry is not None and (not entry.is_deleted or entry.revision == revision):
                raise KeyExistsError(self.bucket, key) from None
            revision = entry.revision if entry is not None else 0

    async def _last_write(self, key: str) -> Entry | None:
        """Return the newest value, not decoded, or marker of a key, of the stream that writes go to.

        Read from the leader: a mirror or replica may lack the write for which this one was refused.
        """
        stored_key = self._stored_key(key)
        message = await self._newest(stored_key, leader=True)
        return from_stored(self.bucket, stored_key, message) if message is not None else None

    async def update(self, key: str, value: bytes, revision: int, *, ttl: Seconds | None = None) -> int:
        """Store a value if `revision` is the newest of the key, and return the new revision.

        Args:
            key: the key.
            value: the value.
            revision: the newest revision that the caller knows.
            ttl: seconds that this value lives, as in `put`.

        Raises:
            WrongLastSequenceError: it is not.
        """
        return await self._write(key, value, revision=revision, ttl=ttl)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Replace a value by a marker; older revisions stay within the bucket's history.

        Args:
            key: the key; it need not be there.
            revision: only if this is its newest revision.

        Raises:
            WrongLastSequenceError: it is not.
        """
        await self._write(key, b"", revision=revision, headers=_DELETE)

    async def purge(self, key: str, *, revision: int | None = None, ttl: Seconds | None = None) -> None:
        """Replace a value and all its older revisions by a marker.

        Args:
            key: the key; it need not be there.
            revision: only if this is its newest revision.
            ttl: seconds that the marker lives; the bucket needs `limit_marker_ttl`.

        Raises:
            WrongLastSequenceError: it is not.
        """
        await self._write(key, b"", revision=revision, headers=_PURGE, ttl=ttl)

    async def purge_deletes(self, older_than: Seconds = _MARKERS_S) -> int:
        """Remove the older revisions of deleted keys, and their markers if they are old enough.

        Args:
            older_than: seconds that a marker stays, so that slow watchers see it.

        Returns:
            How many keys were deleted.
        """
        limit_ns = nanoseconds(older_than)
        # By stored keys: programs without the codec leave markers too.
        async with self.with_codec().watch(meta_only=True) as watch:
            newest = {entry.key: entry for entry in await watch.current()}
        markers = [entry for entry in newest.values() if entry.is_deleted and _can_be_named(entry.key)]
        now_ns = parse_time((await self.stream.info()).ts)  # By the server's clock, as the entries' times.
        for entry in markers:
            is_young = now_ns - entry.created_ns < limit_ns
            # Up to the marker: the key may have a newer value since.
            before = entry.revision + (0 if is_young else 1)
            await self.stream.purge(subject=self._prefix + entry.key, before=before)
        return len(markers)

    async def _write(
        self,
        key: str,
        value: bytes,
        *,
        revision: int | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: Seconds | None = None,
    ) -> int:
        stored_key = self._stored_key(key)
        if revision is not None and revision < 0:
            raise InvalidOptionError(f"revision must be 0 or more, not {revision}")
        subject = self._write_prefix + stored_key
        ack = await self._publisher.publish(
            subject,
            value if self._values is None or headers is not None else self._values.encode(value),
            {"headers": headers, "expected_last_subject_sequence": revision, "ttl": ttl},
        )
        self._publisher.own_writes.note(subject, ack.seq)
        return ack.seq


async def _found(get: Awaitable[StoredMessage]) -> StoredMessage | None:
    try:
        return await get
    except MessageNotFoundError:
        return None


def _can_be_named(key: str) -> bool:
    """Return whether a request can name a stored key: JSON has no bytes outside of UTF-8."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


class KeyWatch(Watch[Entry]):
    """The entries of some keys, without end; created by `KeyValue.watch`.

    Use it as an async context manager and iterate over it; with a handler, wait on `wait()`. What the keys are when it
    begins comes first; `current` takes just that. It survives lost connections and restarted servers, and ends with an
    error when the bucket does.
    """

    __slots__ = ()


def key_value_buckets(api: ApiCaller, publisher: Publisher) -> Buckets[KeyValue, BucketOptions]:
    """Return the key-value buckets.

    Args:
        api: manages their streams.
        publisher: writes their entries.
    """

    def handle(info: StreamInfo) -> KeyValue:
        if info.config.max_msgs_per_subject < 1:
            raise InvalidOptionError(f"stream {info.config.name!r} is not a bucket: it keeps all messages of a subject")
        stream = Stream(api, info)
        mirror = info.config.mirror
        if mirror is None:
            return KeyValue(publisher, stream, stream, api.prefix)
        external = mirror.external.api if mirror.external is not None else ""
        origin_api = ApiCaller(api.connection, prefix=external or api.prefix, timeout_s=api.timeout_s)
        return KeyValue(publisher, stream, stream_handle(origin_api, mirror.name), origin_api.prefix)

    return Buckets(api, prefix=STREAM_PREFIX, subjects="$KV.*.>", configure=bucket_config, handle=handle)
