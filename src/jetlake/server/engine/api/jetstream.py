"""JetStream of one account: its streams, limits and usage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, StoreError, api_error
from jetlake.model.account import AccountInfo, AccountLimits, AccountTier, ApiStats
from jetlake.model.enums import ActionKind, StorageType
from jetlake.protocol.pattern_set import PatternMatcher, PatternSet
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.sorted_names import SortedNames
from jetlake.server.engine.core.usage import StreamUsage, Usage
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.snapshot.transfers import Transfers
from jetlake.server.version import API_LEVEL
from jetlake.store.steps import Steps, finish

if TYPE_CHECKING:  # Loaded with the first restore: few servers ever see one, and all start without its libraries.
    from jetlake.model.stream import StreamConfig
    from jetlake.server.engine.snapshot.loader import LoadedConsumer, StreamLoader

    # Loaded with the first stream, or before by `prepare_jetstream`: a server listens without them.
    from jetlake.server.engine.storage.storage import Storage, StreamStorage
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["JetStream"]

_RETRY_NS = 1_000_000_000
# Comparing subjects starts over when others change meanwhile; the next time it is done at once.
_RESTARTS_MAX = 3
# The tier of the streams of a single server.
_TIER = "R1"
_NO_LIMITS_HERE = AccountLimits(
    max_memory=0,
    max_storage=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    storage_max_stream_bytes=0,
)


class ApiCounts:
    """Counters of API requests.

    Attributes:
        total: requests so far.
        errors: refused requests so far.
    """

    __slots__ = ("errors", "total")

    def __init__(self) -> None:
        self.total = 0
        self.errors = 0


class JetStream:
    """JetStream of one account: streams, limits, usage.

    Args:
        services: the engine's services.
        storage: where streams are stored.
        server_usage: the usage of all accounts.
        account: the account's subject space.
        limits: the account's limits.
        tiers: the limits of streams with this many replicas, by `R1`, `R3` and so on, instead of `limits`.

    Attributes:
        captured: the subjects of all streams; streams keep it up to date.
        api: counters of API requests.
        transfers: backups and restores under way.
        restoring: configurations of the streams that are being restored, by name.
        capturing: configurations of the streams whose subjects are being captured, by name.
    """

    def __init__(
        self,
        services: Services,
        storage: Storage,
        server_usage: Usage,
        account: Account,
        limits: AccountLimits,
        tiers: dict[str, AccountLimits] | None = None,
    ) -> None:
        self.services = services
        self.account = account
        self.usage = Usage()
        self.limit_to(limits, tiers)
        self.streams: dict[str, Stream] = {}
        self.streams_by_token: dict[bytes, Stream] = {}
        self.stream_names = SortedNames(self.streams.keys)
        self.captured = PatternSet()
        self.advisories = Advisories(account, services)
        self.api = ApiCounts()
        self.transfers = Transfers(account)
        self.restoring: dict[str, StreamConfig] = {}
        self.capturing: dict[str, StreamConfig] = {}
        self._storage = storage
        self._server_usage = server_usage
        self._direct_readers: dict[bytes, list[Stream]] | None = None  # by the name that is asked for

    def limit_to(self, limits: AccountLimits, tiers: dict[str, AccountLimits] | None = None) -> None:
        """Change the account's limits; what exists beyond them stays."""
        self._tiers = tiers or {}
        self.limits = self._tiers.get(_TIER, limits)
        self.usage.limit_to(self.limits.max_memory, self.limits.max_storage)

    def set_aside(self) -> dict[str, str]:
        """Return the account's streams that could not be opened, by their folders, and why."""
        return {
            folder: reason
            for (account, folder), reason in self._storage.set_aside.items()
            if folder and account == self.account.name
        }

    def recover(self) -> None:
        """Open the account's streams and their consumers from disk."""
        for config, created_ns, storage in self._storage.recover(self.account.name):
            from jetlake.server.engine.api.consumer_creation import recover_consumers

            stream = self._add(config, created_ns, storage, self.services.clock.now_ns())
            finish(stream.capture())
            with self.services.report_store_errors(f"recovering the consumers of stream {stream.name}"):
                recover_consumers(stream, self.advisories)
                stream.retention.sweep()
            if stream.store.needs_flush() or stream.store.needs_sync():
                stream.removal.after_removal()
            else:
                # Of many streams few are written to: their folders are synced when they are.
                stream.removal.schedule_compaction()
            self.services.commit.failed(stream.store, stream.store.failure)
            for consumer in stream.consumers.values():
                self.services.commit.failed(consumer.journal, consumer.journal.failure)

    def create_stream(self, config: StreamConfig, now_ns: int) -> Steps[Stream]:
        """Create a stream with a configuration that has been checked; all but the first step capture its subjects."""
        storage = self._storage.create(self.account.name, config, now_ns)
        stream = self._add(config, now_ns, storage, now_ns)
        self.advisories.stream_action(stream.name, ActionKind.CREATE)
        if storage.folder is not None:
            # The log of a stream with a first sequence tells that.
            written: list[Syncable] = [storage.folder, stream.store] if stream.store.needs_flush() else [storage.folder]
            for syncable in written:
                self.services.commit.mark_now(syncable)
            self.services.commit.when_all_durable(written, partial(self._on_created, stream))
        yield from self.reserved(config, stream.capture())
        return stream

    def reserved(self, config: StreamConfig, steps: Steps[None]) -> Steps[None]:
        """Take steps that capture a configuration's subjects, meanwhile no other stream may."""
        self.capturing[config.name] = config
        try:
            yield from steps
        finally:
            del self.capturing[config.name]

    def _on_created(self, stream: Stream, error: JetlakeError | None) -> None:
        """Delete a new stream that could not be written; the request is refused."""
        if error is not None and not stream.is_closed:
            self.services.commit.forget(stream.store, error)
            self._remove_refused(stream, self.services.clock.now_ns())

    def _remove_refused(self, stream: Stream, now_ns: int) -> None:
        """Remove a stream that could not be written; while the disk refuses that too, try again each second."""
        if stream.is_closed:
            return
        try:
            finish(self.delete_stream(stream))
        except StoreError:
            self.services.timers.schedule(now_ns + _RETRY_NS, partial(self._remove_refused, stream))

    def load_stream(self, config: StreamConfig, now_ns: int) -> StreamLoader:
        """Create a stream that is invisible before `adopt`, and that a restart removes.

        Raises:
            StoreError: the disk refused.
        """
        from jetlake.server.engine.snapshot.loader import StreamLoader

        storage = self._storage.create(self.account.name, config, now_ns, held=True)
        usage = StreamUsage(self._server_usage, self.usage, config.storage)
        usage.set_reserved(config.max_bytes)
        return StreamLoader(storage, config, usage, self.services.options.limits, self.limits, now_ns)

    def adopt(self, loader: StreamLoader, consumers: list[LoadedConsumer]) -> Stream:
        """Show a loaded stream to everybody; it is durable once its storage's `folder` is.

        Raises:
            ApiError: another stream captures its subjects by now, or copies from it.
            StoreError: the disk refused; the stream was never visible.
        """
        from jetlake.server.engine.api.consumer_creation import adopt_consumer

        config, storage = loader.config, loader.storage
        finish(self.check_others(config))
        loader.usage.release()  # The stream counts from here on.
        if loader.created_ns != loader.begun_ns:
            storage.save(config, loader.created_ns)
        storage.release()
        stream = self._add(config, loader.created_ns, storage, self.services.clock.now_ns())
        finish(stream.capture())
        for record, consumer_storage, state in consumers:
            adopt_consumer(stream, self.advisories, record, consumer_storage, state)
        self.advisories.stream_action(stream.name, ActionKind.CREATE)
        if storage.folder is not None:
            self.services.commit.mark_now(storage.folder)
            self.services.commit.when_durable(storage.folder, partial(self._on_created, stream))
        return stream

    def delete_stream(self, stream: Stream) -> Steps[Syncable | None]:
        """Delete a stream with its consumers and files; return what is durable once it is gone for good.

        The first steps end its copying, the next one removes the stream, and the others release its subjects and close
        its consumers.

        Raises:
            StoreError: the files could not be removed; the stream is unchanged.
        """
        yield from stream.copying.end_in_steps()
        if stream.is_closed:
            return None
        try:
            removal = stream.delete()
        except StoreError:
            stream.copying.configure(stream.config)
            raise
        del self.streams[stream.name]
        del self.streams_by_token[stream.name.encode()]
        self.on_streams_changed()
        yield from stream.release_subjects()
        for consumer in tuple(stream.consumers.values()):
            yield
            consumer.close(deleted=True)
        self.advisories.stream_action(stream.name, ActionKind.DELETE)
        return removal

    def _add(self, config: StreamConfig, created_ns: int, storage: StreamStorage, now_ns: int) -> Stream:
        from jetlake.server.engine.sourcing.sourcing import Sourcing
        from jetlake.server.engine.stream.stream import Stream

        usage = StreamUsage(self._server_usage, self.usage, config.storage)
        stream = Stream(self.services, self.account, self.captured, usage, config, created_ns, storage)
        stream.copying = Sourcing(stream)
        if stream.config.first_seq and not stream.store.first_sequence:
            stream.begin_at(stream.config.first_seq)
        self.streams[stream.name] = stream
        self.streams_by_token[stream.name.encode()] = stream
        self.on_streams_changed()
        stream.open(now_ns)
        return stream

    def stream(self, name: str) -> Stream:
        """Return the stream with the name.

        Raises:
            ApiError: 10059, there is none.
        """
        stream = self.streams.get(name)
        if stream is None:
            raise api_error(10059)
        return stream

    def on_streams_changed(self) -> None:
        """Forget the order of names, and which streams answer direct gets: one was added, changed or deleted."""
        self._direct_readers = None
        self.stream_names.changed()

    def direct_reader(self, name: bytes) -> Stream | None:
        """Return a stream that answers direct gets for the named one: itself or a mirror of it; None when none does."""
        if self._direct_readers is None:
            self._direct_readers = self._find_direct_readers()
        readers = self._direct_readers.get(name, [])
        if len(readers) == 1 and readers[0].config.mirror is None:
            return readers[0]
        ready = [stream for stream in readers if stream.name.encode() == name or stream.copying.is_caught_up]
        return self.services.random.choice(ready) if ready else None

    def _find_direct_readers(self) -> dict[bytes, list[Stream]]:
        """Return the streams that answer direct gets, by their own name or the name of the stream that they mirror."""
        readers: dict[bytes, list[Stream]] = {}
        for stream in self.streams.values():
            config = stream.config
            if config.allow_direct:
                readers.setdefault(stream.name.encode(), []).append(stream)
            if config.mirror is not None and config.mirror_direct:
                readers.setdefault(config.mirror.name.encode(), []).append(stream)
        return readers

    def config_of(self, name: str) -> StreamConfig | None:
        """Return the configuration of the stream with the name, or None."""
        stream = self.streams.get(name)
        return stream.config if stream is not None else None

    def check_others(self, config: StreamConfig) -> Steps[None]:
        """Check a configuration against the account's other streams, which may have changed since it was checked alone.

        No other stream may capture an overlapping subject, now or once it is restored, and none may copy from this one
        while this one copies from it. The other streams are those at the last step.

        Raises:
            ApiError: 10065, or 10052 for a cycle.
        """
        from jetlake.model.rules.common import matcher_of
        from jetlake.model.rules.stream_rules import check_cycles

        owned = stream.config.subjects if (stream := self.streams.get(config.name)) is not None else ()
        ours = own = None
        if not set(config.subjects) <= set(owned):
            ours = yield from matcher_of([subject.encode() for subject in config.subjects])
            own = (yield from matcher_of([subject.encode() for subject in owned])) if owned else None
        for _ in range(_RESTARTS_MAX):
            seen = self._changes()
            yield from check_cycles(config, self.config_of)
            if ours is not None:
                yield from self._compare(config, ours, own)
            if seen == self._changes():
                return
        finish(check_cycles(config, self.config_of))
        if ours is not None:
            finish(self._compare(config, ours, own))

    def _changes(self) -> tuple[int, int, list[str]]:
        """Return what differs once the streams, or what they capture, have changed."""
        return self.stream_names.changes, self.captured.changes, [*self.restoring, *self.capturing]

    def _compare(self, config: StreamConfig, ours: PatternMatcher, own: PatternMatcher | None) -> Steps[None]:
        """Compare a configuration's subjects with the subjects of the account's other streams."""
        for other in [*self.restoring.values(), *self.capturing.values()]:
            if other.name != config.name:
                for subject in other.subjects:
                    yield
                    if ours.overlaps(subject.encode()):
                        raise api_error(10065)
        captured, changes = PatternMatcher(self.captured), self.captured.changes
        for subject in config.subjects:
            pattern = subject.encode()
            if captured.overlaps(pattern):
                if own is None:
                    raise api_error(10065)
                # Each look at a set may walk all of it the first time.
                yield
                count = own.count_overlapping(pattern)
                yield
                if self.captured.changes == changes and captured.count_overlapping(pattern) > count:
                    raise api_error(10065)
            yield
            if self.captured.changes != changes:
                return

    def check_free(self, name: str) -> None:
        """Check that no stream of that name is being restored.

        Raises:
            ApiError: 10058.
        """
        if name in self.restoring:
            raise api_error(10058)

    def check_stream_count(self) -> None:
        """Check that the account may have another stream beside its own and the ones being restored.

        Raises:
            ApiError: 10027; 10120 where only streams with more replicas may be created.
        """
        if self._tiers and _TIER not in self._tiers:
            raise api_error(10120)
        if 0 < self.limits.max_streams <= len(self.streams) + len(self.restoring):
            raise api_error(10027)

    def check_room(self, storage: StorageType, more_bytes: int) -> None:
        """Check that account and server can reserve this many more bytes; a stream without a limit counts as one byte.

        Raises:
            ApiError: 10047 on disk, 10028 in memory.
        """
        count = more_bytes if more_bytes >= 0 else 1
        for usage in (self.usage, self._server_usage):
            if not usage.can_reserve(storage, count):
                raise api_error(10047 if storage is StorageType.FILE else 10028)

    def shut_down(self) -> None:
        """End transfers and the consumers' waiting requests, because the server stops."""
        self.transfers.close()
        for stream in self.streams.values():
            stream.copying.close(deleted=False)
            for consumer in tuple(stream.consumers.values()):
                consumer.shut_down()

    def close(self) -> None:
        """Close all streams and consumers after the last flush."""
        for stream in self.streams.values():
            for consumer in tuple(stream.consumers.values()):
                with self.services.report_store_errors(f"closing consumer {consumer.name} of stream {stream.name}"):
                    consumer.close(deleted=False)
            with self.services.report_store_errors(f"closing stream {stream.name}"):
                stream.close()

    def info(self) -> AccountInfo:
        """Return the account's usage and limits."""
        usage = self.usage
        used = AccountTier(
            memory=usage.used(StorageType.MEMORY),
            storage=usage.used(StorageType.FILE),
            reserved_memory=usage.reserved(StorageType.MEMORY),
            reserved_storage=usage.reserved(StorageType.FILE),
            streams=len(self.streams),
            consumers=sum(len(stream.consumers) for stream in self.streams.values()),
            limits=self.limits,
        )
        tiers = {name: used if name == _TIER else AccountTier(limits=limits) for name, limits in self._tiers.items()}
        fields = {name: getattr(used, name) for name in AccountTier.__struct_fields__}
        return AccountInfo(
            **{**fields, **({"limits": _NO_LIMITS_HERE} if tiers else {})},
            domain=self.services.options.domain,
            api=ApiStats(level=API_LEVEL, total=self.api.total, errors=self.api.errors),
            tiers=tiers,
        )
