"""The work that follows removals: the log is marked for a flush, usage is updated, the store is compacted in steps."""

from __future__ import annotations

from jetlake.errors import StoreError
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.store.interface import MessageStore

__all__ = ["Cleanup"]

# Compaction starts this long after a removal, and goes on in small steps while there is more to do.
_PAUSE_NS = 1_000_000_000
_STEP_PAUSE_NS = 5_000_000
# A longer purge shares the loop with compaction, which bounds what the index takes of memory.
_PURGE_NS = 5_000_000_000


class Cleanup:
    """The clean-up of one stream.

    Args:
        store: the stream's messages.
        services: the engine's clock, timers and commit.
        usage: the stream's share of account and server usage.
    """

    def __init__(self, store: MessageStore, services: Services, usage: StreamUsage) -> None:
        self._store = store
        self._services = services
        self._usage = usage
        self._timer: Timer | None = None
        self._not_before_ns = 0
        self._is_closed = False

    def after_removal(self, soon: bool = False) -> None:
        """Flush the log, update the usage and schedule compaction, after messages were removed.

        Args:
            soon: no one waits for the log, and it is flushed a little later.
        """
        store = self._store
        if store.durable:
            if soon:
                self._services.commit.mark_soon(store)
            else:
                self._services.commit.mark(store)
        self._usage.set_used(store.bytes)
        self.schedule()

    def schedule(self, pause_ns: int = _PAUSE_NS) -> None:
        """Compact the store when the pause is over."""
        if self._timer is None and not self._is_closed:
            deadline_ns = self._services.clock.now_ns() + pause_ns
            self._timer = self._services.timers.schedule(deadline_ns, self._compact)

    def pause(self) -> None:
        """Compact nothing for some seconds or until `resume`: what is being purged would be rewritten twice."""
        self._not_before_ns = self._services.clock.now_ns() + _PURGE_NS

    def resume(self) -> None:
        """End the pause."""
        self._not_before_ns = 0

    def _compact(self, now_ns: int) -> None:
        """Take one bounded step of compaction, and schedule the next."""
        self._timer = None
        if now_ns < self._not_before_ns:
            self.schedule(self._not_before_ns - now_ns)
            return
        store = self._store
        try:
            more = store.compact_step(sync_here=False)
        except StoreError:
            # Only disk space is lost, and the next removal tries again; unless a sync failed.
            self._services.commit.failed(store, store.failure)
            return
        if store.durable and store.needs_flush():
            self._services.commit.mark(store)
        if more:
            if store.needs_sync():
                self._services.commit.mark_now(store)
            # A busy publisher pays for what the index would take of memory.
            self.schedule(0 if store.is_behind() else _STEP_PAUSE_NS)

    def close(self) -> None:
        """Compact no more."""
        self._is_closed = True
        self._services.timers.cancel(self._timer)
