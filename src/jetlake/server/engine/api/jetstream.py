"""One account's JetStream: its streams, its limits, and what arrives for it under `$JS.`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, api_error
from jetlake.model.account import AccountInfo, AccountLimits, ApiStats
from jetlake.model.ack_subject import NO_DOMAIN, account_hash
from jetlake.model.api import encode_error, match
from jetlake.model.enums import ActionKind, StorageType
from jetlake.model.rules.pattern_set import PatternSet
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.api.api import Api
from jetlake.server.engine.api.consumer_api import recover_consumers
from jetlake.server.engine.api.direct_get import direct_get
from jetlake.server.engine.consumer.consumer import Consumer
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.usage import StreamUsage, Usage
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.storage import StreamHome
from jetlake.server.engine.stream.stream import Stream
from jetlake.server.version import API_LEVEL

if TYPE_CHECKING:
    from jetlake.server.engine.engine import Engine

__all__ = ["DisabledJetStream", "JetStream"]


class JetStream:
    """JetStream as one account has it.

    Args:
        engine: the server's engine.
        account: whose JetStream this is.
        limits: what the account may use.
    """

    def __init__(self, engine: Engine, account: Account, limits: AccountLimits) -> None:
        self.engine = engine
        self.services: Services = engine.services
        self.account = account
        self.limits = limits
        self.usage = Usage(limits.max_memory, limits.max_storage)
        self.streams: dict[str, Stream[Consumer]] = {}
        self.streams_by_token: dict[bytes, Stream[Consumer]] = {}
        self.captured = PatternSet()
        """The subjects of all streams; streams keep it up to date."""
        self.advisories = Advisories(account, self.services)
        self.api = Api(self)
        domain = self.services.options.domain
        self._domain_prefix = f"$JS.{domain}.API.".encode() if domain else b""
        self._domain_token = (domain or NO_DOMAIN).encode()
        self._hash = account_hash(account.name).encode()

    # Streams

    def recover(self) -> None:
        """Open the streams that the account had, with their consumers."""
        for config, created_ns, home in self.engine.storage.recover(self.account.name):
            stream = self._add(config, created_ns, home, self.services.clock.now_ns())
            with self.services.report_store_errors(f"recovering the consumers of stream {stream.name}"):
                recover_consumers(stream, self.advisories)
                stream.retention.sweep()
            stream.cleanup.after_removal()
            self.services.commit.failed(stream.store, stream.store.failure)
            for consumer in stream.consumers.values():
                self.services.commit.failed(consumer.journal.file, consumer.journal.file.failure)

    def create_stream(self, config: StreamConfig) -> Stream[Consumer]:
        """Make a stream of a configuration that has been checked."""
        created_ns = self.services.clock.now_ns()
        home = self.engine.storage.create(self.account.name, config, created_ns)
        stream = self._add(config, created_ns, home, created_ns)
        self.advisories.stream_action(stream.name, ActionKind.CREATE)
        if home.place is not None:
            self.services.commit.mark_now(home.place)
            self.services.commit.mark_now(stream.store)
            self.services.commit.when_durable(home.place, partial(self._made, stream))
        return stream

    def _made(self, stream: Stream[Consumer], error: JetlakeError | None) -> None:
        """Undo what could not be made durable; whoever asked for it is told."""
        if error is not None and not stream.is_closed:
            self.services.commit.forget(stream.store, error)
            with self.services.report_store_errors(f"removing stream {stream.name}"):
                self.delete_stream(stream)

    def delete_stream(self, stream: Stream[Consumer]) -> Syncable | None:
        """Remove a stream with its consumers and all its files; returns what is durable when it is gone for good.

        Raises:
            StoreError: the disk refused; the stream is as it was.
        """
        removal = stream.delete()
        del self.streams[stream.name]
        del self.streams_by_token[stream.name.encode()]
        for consumer in tuple(stream.consumers.values()):
            consumer.close(deleted=True)
        self.advisories.stream_action(stream.name, ActionKind.DELETE)
        return removal

    def _add(self, config: StreamConfig, created_ns: int, home: StreamHome, now_ns: int) -> Stream[Consumer]:
        usage = StreamUsage(self.engine.usage, self.usage, config.storage)
        stream = Stream[Consumer](self.services, self.account, self.captured, usage, config, created_ns, home)
        if stream.config.first_seq and not stream.store.first_sequence:
            stream.begin_at(stream.config.first_seq)
        self.streams[stream.name] = stream
        self.streams_by_token[stream.name.encode()] = stream
        stream.open(now_ns)
        return stream

    def stream(self, name: str) -> Stream[Consumer]:
        """The stream of that name.

        Raises:
            ApiError: 10059, there is none.
        """
        stream = self.streams.get(name)
        if stream is None:
            raise api_error(10059)
        return stream

    def check_overlap(self, config: StreamConfig) -> None:
        """No other stream may capture what this one does.

        Raises:
            ApiError: 10065.
        """
        stream = self.streams.get(config.name)
        own = [subject.encode() for subject in stream.config.subjects] if stream is not None else []
        for subject in own:
            self.captured.remove(subject)
        try:
            if any(self.captured.overlaps(subject.encode()) for subject in config.subjects):
                raise api_error(10065)
        finally:
            for subject in own:
                self.captured.add(subject)

    def check_stream_count(self) -> None:
        """The account may have another stream.

        Raises:
            ApiError: 10027.
        """
        if 0 < self.limits.max_streams <= len(self.streams):
            raise api_error(10027)

    def check_room(self, storage: StorageType, more_bytes: int) -> None:
        """Account and server can set aside so many bytes more; a stream without a limit counts as one byte.

        Raises:
            ApiError: 10047 on disk, 10028 in memory.
        """
        count = more_bytes if more_bytes >= 0 else 1
        for usage in (self.usage, self.engine.usage):
            if not usage.can_reserve(storage, count):
                raise api_error(10047 if storage is StorageType.FILE else 10028)

    def shut_down(self) -> None:
        """The server stops: consumers tell those who wait."""
        for stream in self.streams.values():
            for consumer in tuple(stream.consumers.values()):
                consumer.shut_down()

    def close(self) -> None:
        """Close all streams; everything has been written that could be."""
        for stream in self.streams.values():
            for consumer in tuple(stream.consumers.values()):
                with self.services.report_store_errors(f"closing consumer {consumer.name} of stream {stream.name}"):
                    consumer.close(deleted=False)
            with self.services.report_store_errors(f"closing stream {stream.name}"):
                stream.close()

    def info(self) -> AccountInfo:
        """What the account uses and may use."""
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

    # What arrives

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Handle a message to `$JS.…`; False means that nothing here listens to it."""
        if subject.startswith(b"$JS.ACK."):
            return self._receive_ack(subject, reply, payload, origin)
        if subject.startswith(b"$JS.FC."):
            return self._receive_flow_control(subject)
        if self._domain_prefix and subject.startswith(self._domain_prefix):
            rest = subject[len(self._domain_prefix) :]
            if rest.startswith((b"$KV.", b"$OBJ.")):
                # Buckets have subjects of their own, to which the domain's prefix leads as well.
                self.account.publish(rest, reply, header, payload, origin)
                return True
            subject = b"$JS.API." + rest
        if not subject.startswith(b"$JS.API."):
            return False
        self.engine.store_received()
        if subject.startswith(b"$JS.API.CONSUMER.MSG.NEXT."):
            return self._receive_pull(subject, reply, header, payload, origin)
        if subject.startswith(b"$JS.API.DIRECT.GET."):
            return direct_get(self, subject, reply, header, payload)
        return self.api.receive(subject, reply, header, payload, origin)

    def consumer_by_tokens(self, stream: bytes, consumer: bytes) -> Consumer | None:
        """The consumer of these names as they stand in a subject."""
        found = self.streams_by_token.get(stream)
        return found.consumers_by_token.get(consumer) if found is not None else None

    def _receive_ack(self, subject: bytes, reply: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        tokens = subject.split(b".")
        if len(tokens) == 9:
            stream, consumer, _, stream_sequence, consumer_sequence = tokens[2:7]
        elif len(tokens) >= 11 and tokens[2] == self._domain_token and tokens[3] == self._hash:
            stream, consumer, _, stream_sequence, consumer_sequence = tokens[4:9]
        else:
            return False
        found = self.consumer_by_tokens(stream, consumer)
        if found is None:
            return False
        if not (stream_sequence.isdigit() and consumer_sequence.isdigit()):
            return True  # It was for this consumer, who cannot make sense of it and says nothing.
        return found.ack_handler.receive(int(stream_sequence), int(consumer_sequence), reply, payload, origin)

    def _receive_flow_control(self, subject: bytes) -> bool:
        tokens = subject.split(b".")
        if len(tokens) >= 5:
            found = self.consumer_by_tokens(tokens[2], tokens[3])
            if found is not None:
                return found.delivery.receive_flow_control(subject)
        return False

    def _receive_pull(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None
    ) -> bool:
        tokens = subject.split(b".")
        found = self.consumer_by_tokens(tokens[5], tokens[6]) if len(tokens) == 7 else None
        if found is None:
            return False
        if reply:
            found.receive_pull(reply, header, payload, origin)
        return True


class DisabledJetStream:
    """Stands where an account has no JetStream on a server that has: every API request is refused (10039)."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Refuse an API request; everything else finds nobody."""
        found = match(subject)
        if found is None or found.route.reply is None:
            return False
        if reply:
            self._account.publish(reply, b"", b"", encode_error(found.route.reply, api_error(10039)))
        return True
