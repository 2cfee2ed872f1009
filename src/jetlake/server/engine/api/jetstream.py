"""JetStream of one account: its streams, limits and usage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, StoreError, api_error
from jetlake.model.account import AccountInfo, AccountLimits, ApiStats
from jetlake.model.enums import ActionKind, StorageType
from jetlake.model.rules.pattern_set import PatternSet
from jetlake.model.stream import StreamConfig
from jetlake.protocol.subjects import overlaps
from jetlake.server.engine.api.consumer_creation import adopt_consumer, recover_consumers
from jetlake.server.engine.consumer.consumer import Consumer
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.sorted_names import SortedNames
from jetlake.server.engine.core.usage import StreamUsage, Usage
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.snapshot.transfers import Transfers
from jetlake.server.engine.sourcing.sourcing import Sourcing
from jetlake.server.engine.storage.storage import Storage, StreamHome
from jetlake.server.engine.stream.stream import Stream
from jetlake.server.version import API_LEVEL
from jetlake.store.steps import Steps, finish

if TYPE_CHECKING:  # Loaded with the first restore: few servers ever see one, and all start without its libraries.
    from jetlake.server.engine.snapshot.loader import LoadedConsumer, StreamLoader

__all__ = ["JetStream"]

_RETRY_NS = 1_000_000_000


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

    Attributes:
        captured: the subjects of all streams; streams keep it up to date.
        api: counters of API requests.
        transfers: backups and restores under way.
        restoring: configurations of the streams that are being restored, by name.
    """

    def __init__(
        self, services: Services, storage: Storage, server_usage: Usage, account: Account, limits: AccountLimits
    ) -> None:
        self.services = services
        self.account = account
        self.limits = limits
        self.usage = Usage(limits.max_memory, limits.max_storage)
        self.streams: dict[str, Stream[Consumer]] = {}
        self.streams_by_token: dict[bytes, Stream[Consumer]] = {}
        self.stream_names = SortedNames(self.streams.keys)
        self.captured = PatternSet()
        self.advisories = Advisories(account, services)
        self.api = ApiCounts()
        self.transfers = Transfers(account.announce, account.retract)
        self.restoring: dict[str, StreamConfig] = {}
        self._storage = storage
        self._server_usage = server_usage
        self._direct_readers: dict[bytes, list[Stream[Consumer]]] | None = None  # by the name that is asked for

    def limit_to(self, limits: AccountLimits) -> None:
        """Change the account's limits; what exists beyond them stays."""
        self.limits = limits
        self.usage.limit_to(limits.max_memory, limits.max_storage)

    def recover(self) -> None:
        """Open the account's streams and their consumers from disk."""
        for config, created_ns, home in self._storage.recover(self.account.name):
            stream = self._add(config, created_ns, home, self.services.clock.now_ns())
            with self.services.report_store_errors(f"recovering the consumers of stream {stream.name}"):
                recover_consumers(stream, self.advisories)
                stream.retention.sweep()
            if stream.store.needs_flush() or stream.store.needs_sync():
                stream.cleanup.after_removal()
            else:
                stream.cleanup.schedule()  # Of many streams few are written to: their folders are synced when they are.
            self.services.commit.failed(stream.store, stream.store.failure)
            for consumer in stream.consumers.values():
                self.services.commit.failed(consumer.journal.file, consumer.journal.file.failure)

    def create_stream(self, config: StreamConfig, now_ns: int) -> Stream[Consumer]:
        """Create a stream with a configuration that has been checked."""
        home = self._storage.create(self.account.name, config, now_ns)
        stream = self._add(config, now_ns, home, now_ns)
        self.advisories.stream_action(stream.name, ActionKind.CREATE)
        if home.place is not None:
            # The log of a stream with a first sequence tells that.
            written: list[Syncable] = [home.place, stream.store] if stream.store.needs_flush() else [home.place]
            for syncable in written:
                self.services.commit.mark_now(syncable)
            self.services.commit.when_all_durable(written, partial(self._on_created, stream))
        return stream

    def _on_created(self, stream: Stream[Consumer], error: JetlakeError | None) -> None:
        """Delete a new stream that could not be written; the request is refused."""
        if error is not None and not stream.is_closed:
            self.services.commit.forget(stream.store, error)
            self._remove_refused(stream, self.services.clock.now_ns())

    def _remove_refused(self, stream: Stream[Consumer], now_ns: int) -> None:
        """Remove a stream that could not be written; while the disk refuses that too, try again each second."""
        if stream.is_closed:
            return
        try:
            finish(self.delete_stream(stream))
        except StoreError:
            self.services.timers.schedule(now_ns + _RETRY_NS, partial(self._remove_refused, stream))

    def load_stream(self, config: StreamConfig, now_ns: int) -> StreamLoader:
        """Create a stream that nobody sees before `adopt`, and that a restart removes.

        Raises:
            StoreError: the disk refused.
        """
        from jetlake.server.engine.snapshot.loader import StreamLoader

        home = self._storage.create(self.account.name, config, now_ns, held=True)
        usage = StreamUsage(self._server_usage, self.usage, config.storage)
        usage.set_reserved(config.max_bytes)
        return StreamLoader(home, config, usage, self.services.options.limits, self.limits, now_ns)

    def adopt(self, loader: StreamLoader, consumers: list[LoadedConsumer]) -> Stream[Consumer]:
        """Show a loaded stream to everybody; it is durable once its home's `place` is.

        Raises:
            ApiError: another stream captures its subjects by now.
            StoreError: the disk refused; nobody has seen the stream.
        """
        config, home = loader.config, loader.home
        self.check_overlap(config)
        loader.usage.release()  # The stream counts from here on.
        if loader.created_ns != loader.begun_ns:
            home.save(config, loader.created_ns)
        home.release()
        stream = self._add(config, loader.created_ns, home, self.services.clock.now_ns())
        for record, consumer_home, state in consumers:
            adopt_consumer(stream, self.advisories, record, consumer_home, state)
        self.advisories.stream_action(stream.name, ActionKind.CREATE)
        if home.place is not None:
            self.services.commit.mark_now(home.place)
            self.services.commit.when_durable(home.place, partial(self._on_created, stream))
        return stream

    def delete_stream(self, stream: Stream[Consumer]) -> Steps[Syncable | None]:
        """Delete a stream with its consumers and files; return what is durable once it is gone for good.

        The first step removes the stream, the others close its consumers.

        Raises:
            StoreError: the files could not be removed; the stream is unchanged.
        """
        removal = stream.delete()
        del self.streams[stream.name]
        del self.streams_by_token[stream.name.encode()]
        self.on_streams_changed()
        for consumer in tuple(stream.consumers.values()):
            yield
            consumer.close(deleted=True)
        self.advisories.stream_action(stream.name, ActionKind.DELETE)
        return removal

    def _add(self, config: StreamConfig, created_ns: int, home: StreamHome, now_ns: int) -> Stream[Consumer]:
        usage = StreamUsage(self._server_usage, self.usage, config.storage)
        stream: Stream[Consumer] = Stream(self.services, self.account, self.captured, usage, config, created_ns, home)
        stream.copying = Sourcing(stream.name, self.services, self.account, home, stream.copy_path)
        if stream.config.first_seq and not stream.store.first_sequence:
            stream.begin_at(stream.config.first_seq)
        self.streams[stream.name] = stream
        self.streams_by_token[stream.name.encode()] = stream
        self.on_streams_changed()
        stream.open(now_ns)
        return stream

    def stream(self, name: str) -> Stream[Consumer]:
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

    def direct_reader(self, name: bytes) -> Stream[Consumer] | None:
        """Return a stream that answers direct gets for the named one: itself or a mirror of it; None when none does."""
        if self._direct_readers is None:
            self._direct_readers = self._find_direct_readers()
        readers = self._direct_readers.get(name, [])
        if len(readers) == 1 and readers[0].config.mirror is None:
            return readers[0]
        ready = [stream for stream in readers if stream.name.encode() == name or stream.copying.is_caught_up]
        return self.services.random.choice(ready) if ready else None

    def _find_direct_readers(self) -> dict[bytes, list[Stream[Consumer]]]:
        """Return the streams that answer direct gets, by their own name or that of the stream that they mirror."""
        readers: dict[bytes, list[Stream[Consumer]]] = {}
        for stream in self.streams.values():
            config = stream.config
            if config.allow_direct:
                readers.setdefault(stream.name.encode(), []).append(stream)
            if config.mirror is not None and config.mirror_direct:
                readers.setdefault(config.mirror.name.encode(), []).append(stream)
        return readers

    def check_overlap(self, config: StreamConfig) -> None:
        """Check that no other stream captures an overlapping subject, or will once it is restored.

        Raises:
            ApiError: 10065.
        """
        subjects = [subject.encode() for subject in config.subjects]
        for other in self.restoring.values():
            if other.name != config.name:
                reserved = [subject.encode() for subject in other.subjects]
                if any(overlaps(subject, theirs) for subject in subjects for theirs in reserved):
                    raise api_error(10065)
        stream = self.streams.get(config.name)
        own = [subject.encode() for subject in stream.config.subjects] if stream is not None else []
        for subject in own:
            self.captured.remove(subject)
        try:
            if any(self.captured.overlaps(subject) for subject in subjects):
                raise api_error(10065)
        finally:
            for subject in own:
                self.captured.add(subject)

    def check_free(self, name: str) -> None:
        """Check that no stream of that name is being restored.

        Raises:
            ApiError: 10058.
        """
        if name in self.restoring:
            raise api_error(10058)

    def check_stream_count(self) -> None:
        """Check that the account may have another stream beside those that it has, or will have once restored.

        Raises:
            ApiError: 10027.
        """
        if 0 < self.limits.max_streams <= len(self.streams) + len(self.restoring):
            raise api_error(10027)

    def check_room(self, storage: StorageType, more_bytes: int) -> None:
        """Check that account and server can reserve so many more bytes; a stream without a limit counts as one byte.

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
        return AccountInfo(
            memory=usage.used(StorageType.MEMORY),
            storage=usage.used(StorageType.FILE),
            reserved_memory=usage.reserved(StorageType.MEMORY),
            reserved_storage=usage.reserved(StorageType.FILE),
            streams=len(self.streams),
            consumers=sum(len(stream.consumers) for stream in self.streams.values()),
            limits=self.limits,
            domain=self.services.options.domain,
            api=ApiStats(level=API_LEVEL, total=self.api.total, errors=self.api.errors),
        )
