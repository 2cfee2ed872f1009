"""The engine: the JetStream of all accounts, the services that they share, and the cycle that drives them.

The shell calls `flush` after each socket read, due timers and finished syncs: received messages are stored in batches,
stores and journals are flushed once each, acknowledgements that need no sync are sent, and ready consumers deliver a
bounded run each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError
from jetlake.model.account import AccountLimits
from jetlake.model.enums import StorageType
from jetlake.protocol.nuid import Nuid
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.api.router import DisabledJetStream, JetStreamRouter
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.commit import Commit, Syncable, sync
from jetlake.server.engine.core.delivery_queue import DeliveryQueue
from jetlake.server.engine.core.long_work import LongWork
from jetlake.server.engine.core.open_batches import OpenBatches
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.core.services import MessageCollector, Services
from jetlake.server.engine.core.timers import Timer, Timers
from jetlake.server.engine.core.usage import Usage
from jetlake.server.engine.routing.account import Account
from jetlake.store.sequence_ranges import format_ranges, ranges_of
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.engine.storage.storage import Storage

# Journals that no answer waits for are flushed within this time.
_SOON_NS = 100_000_000
# Rounds of flush and sync at the end: writes that wait for another sync go into the next round.
_LAST_ROUNDS = 3
# Pause before a failed flush or sync is tried again.
_RETRY_NS = 1_000_000_000


class EngineStoppedError(JetlakeError):
    """The engine was closed before a write became durable."""


class Engine:
    """JetStream of one server, without an event loop, a socket or a file of its own.

    Args:
        clock: the source of time.
        options: the settings of JetStream.
        storage: where streams are stored.
        next_nuid: source of unique names; the operating system's randomness when None.
    """

    def __init__(
        self, clock: Clock, options: EngineOptions, storage: Storage, *, next_nuid: Callable[[], str] | None = None
    ) -> None:
        self.clock = clock
        self.options = options
        self.storage = storage
        self.random = Random()
        """Source of consumer names, jitter and samples; tests seed it."""
        self.timers = Timers()
        self.long_work = LongWork(clock)
        """Requests that run in steps over several cycles."""
        self.commit = Commit(always=options.sync_interval_ns == 0)
        self.commit.on_failure = self._report_failure
        self.commit.on_recovery = self._report_recovery
        if storage.removals is not None:
            storage.removals.commit = self.commit
        self.usage = Usage(options.max_memory, options.max_storage, self._report_full)
        self.jetstreams: dict[str, JetStream] = {}
        self._soon_timer: Timer | None = None
        self._retry_timer: Timer | None = None
        self.report: Callable[[str], None] = lambda _text: None
        """Logs an error that no answer to a client contains."""
        self._received: list[MessageCollector] = []
        self.deliveries = DeliveryQueue(clock, self.timers, self._report)
        self.services = Services(
            options=options,
            clock=clock,
            timers=self.timers,
            commit=self.commit,
            deliveries=self.deliveries,
            long_work=self.long_work,
            received=self._received,
            store_received=self.store_received,
            random=self.random,
            next_nuid=next_nuid or Nuid().next,
            open_batches=OpenBatches(options.limits.batches_total),
            report=self._report,
        )
        if options.sync_interval_ns:
            self._arm_sync(clock.now_ns())

    # Accounts

    def enable(
        self, account: Account, limits: AccountLimits | None = None, tiers: dict[str, AccountLimits] | None = None
    ) -> JetStream:
        """Enable JetStream for an account and recover its streams; where it is enabled, change its limits."""
        present = self.jetstreams.get(account.name)
        if present is not None:
            present.limit_to(limits or AccountLimits(), tiers)
            if not isinstance(account.js, JetStreamRouter):
                account.js = JetStreamRouter(present)
                for stream in present.streams.values():
                    stream.resume()
            return present
        jetstream = JetStream(self.services, self.storage, self.usage, account, limits or AccountLimits(), tiers)
        self.jetstreams[account.name] = jetstream
        account.js = JetStreamRouter(jetstream)
        jetstream.recover()
        return jetstream

    def disable(self, account: Account) -> None:
        """Refuse an account's API requests, and suspend the streams that are open."""
        if isinstance(account.js, DisabledJetStream):
            return
        account.js = DisabledJetStream(account)
        jetstream = self.jetstreams.get(account.name)
        if jetstream is not None:
            jetstream.limit_to(AccountLimits(max_memory=0, max_storage=0))
            for stream in jetstream.streams.values():
                stream.suspend()

    def is_enabled(self, account: Account) -> bool:
        """Return whether the account has JetStream; others have a router too, which says that they have none."""
        return isinstance(account.js, JetStreamRouter)

    def close(self) -> None:
        """Stop cleanly: end waiting pulls, flush and sync everything, save indexes for a quick start."""
        self.store_received()
        self.long_work.finish()
        for jetstream in self.jetstreams.values():
            jetstream.shut_down()
        self.commit.flush_soon()
        for _ in range(_LAST_ROUNDS):
            self.commit.flush()
            self.commit.interval_passed()
            for syncable in self.commit.begin():
                self.commit.finish({syncable: sync(syncable)})
        for jetstream in self.jetstreams.values():
            jetstream.close()
        self.commit.fail_waiting(EngineStoppedError("the server stopped"))

    # The cycle

    def wake_congested(self) -> None:
        """Make all deliverers ready that wait for a subscriber's buffer to drain."""
        self.deliveries.wake_congested()

    def has_ready(self) -> bool:
        """Return whether another `flush` in the next turn of the loop has work to do."""
        return bool(self.deliveries.ready or self._received or self.long_work.waiting) or not self.commit.is_quiet()

    def store_received(self) -> None:
        """Store all received messages, so that a request that follows sees them in their streams."""
        if self._received:
            received = self._received.copy()
            self._received.clear()
            now_ns = self.clock.now_ns()
            for collector in received:
                collector.store_received(now_ns)

    def flush(self) -> None:
        """Run one cycle; work that it causes beyond its end waits for the next (`has_ready`)."""
        has_delivered = False
        if self._received:
            if self.deliveries.ready and any(collector.replaces for collector in self._received):
                self.deliveries.run()  # A waiting consumer gets a message before a newer one replaces it.
                has_delivered = True
            self.store_received()
        if self.long_work.waiting:
            self.long_work.run()
        commit = self.commit
        if not commit.is_quiet():
            commit.flush()
        if self.deliveries.ready and not has_delivered:
            self.deliveries.run()
            if not commit.is_quiet():
                commit.flush()
        if commit.has_soon() and self._soon_timer is None:
            self._soon_timer = self.timers.schedule(self.clock.now_ns() + _SOON_NS, self._flush_soon)

    def run_timers(self) -> int:
        """Run the timers that are due; the shell calls `flush` next."""
        return self.timers.run_due(self.clock.now_ns())

    def disk_failures(self) -> list[str]:
        """Return the streams and consumers that cannot be written, each with the error, until a retry succeeds."""
        return [f"{self._owner_of(syncable)}: {error}" for syncable, error in self.commit.failures.items()]

    def store_faults(self) -> Steps[list[str]]:
        """Return what is missing or could not be opened, until it is repaired, purged, deleted or moved away."""
        faults = [
            f"stream in {folder} of account {account} is set aside: {reason}"
            if folder
            else f"streams of account {account} are set aside: {reason}"
            for (account, folder), reason in self.storage.set_aside.items()
        ]
        for account, jetstream in self.jetstreams.items():
            for stream in tuple(jetstream.streams.values()):
                yield
                owner = f"stream {stream.name} of account {account}"
                faults += [f"consumer in {folder} of {owner} is set aside" for folder in sorted(stream.storage.missing)]
                faults += [
                    f"consumer {consumer.name} of {owner} lost its journal and started again"
                    for consumer in stream.consumers.values()
                    if consumer.journal.is_lost
                ]
                if lost := stream.store.lost:
                    sequences = format_ranges(ranges_of(lost))
                    faults.append(f"{owner} lost {len(lost):,} messages: sequences {sequences}")
        return faults

    def _report(self, text: str) -> None:
        self.report(text)

    def _report_full(self, storage: StorageType) -> None:
        key = "max_file_store" if storage is StorageType.FILE else "max_memory_store"
        self.report(
            f"JetStream - {key} of {self.usage.limit(storage):,} bytes is full, messages are refused: "
            "raise it, or purge or delete streams"
        )

    def _report_failure(self, syncable: Syncable, error: JetlakeError) -> None:
        self.report(f"JetStream - cannot write {self._owner_of(syncable)} to disk; retrying: {error}")
        self._retry_later()

    def _report_recovery(self, syncable: Syncable) -> None:
        self.report(f"JetStream - {self._owner_of(syncable)} can be written to disk again")
        for jetstream in self.jetstreams.values():
            for stream in jetstream.streams.values():
                if stream.store is syncable:
                    self.commit.mark_now(syncable)
                    self.commit.when_durable(syncable, partial(stream.show_all, stream.store.last_sequence))

    def _retry_later(self) -> None:
        if self._retry_timer is None:
            self._retry_timer = self.timers.schedule(self.clock.now_ns() + _RETRY_NS, self._retry)

    def _retry(self, _now_ns: int) -> None:
        self._retry_timer = None
        self.commit.retry()
        if self.commit.failures:
            self._retry_later()

    def _owner_of(self, syncable: Syncable) -> str:
        for account, jetstream in self.jetstreams.items():
            for stream in jetstream.streams.values():
                if syncable in (stream.store, stream.storage.id_log, stream.storage.folder):
                    return f"stream {stream.name} of account {account}"
                for consumer in stream.consumers.values():
                    if syncable in (consumer.journal, consumer.storage.written, consumer.storage.folder):
                        return f"consumer {consumer.name} of stream {stream.name} of account {account}"
        return "what was deleted"

    def _flush_soon(self, _now_ns: int) -> None:
        self._soon_timer = None
        self.commit.flush_soon()

    def _arm_sync(self, now_ns: int) -> None:
        self.timers.schedule(now_ns + self.options.sync_interval_ns, self._sync_interval_passed)

    def _sync_interval_passed(self, now_ns: int) -> None:
        self.commit.interval_passed()
        self._arm_sync(now_ns)
