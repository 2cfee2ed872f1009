"""Removal: a stream is kept within its limits, messages are rolled up, and the store is compacted afterwards.

Messages over the limits are removed oldest first, when a message is stored and when they grow too old. A removal goes
to the store at once and to its log with a later flush; until then a crash brings the message back, and the next start
removes it again. Where the disk does not tell which messages to remove, removals wait for a retry, and publishing
continues. Compaction frees the disk space of removed messages in bounded steps, between other work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jetlake.errors import StoreError
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.stream.rules import limits_of
from jetlake.store.interface import StoreLimits
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

# Expired messages are removed in groups at least this far apart; after a store error the next attempt waits longer.
_PAUSE_NS = 10_000_000
_RETRY_NS = 1_000_000_000
# Messages over new limits are removed at once up to this number, about a millisecond's work.
_REMOVE_AT_ONCE = 1000
# Compaction starts this long after a removal, and continues in small steps while there is more to do.
_COMPACTION_PAUSE_NS = 1_000_000_000
_STEP_PAUSE_NS = 5_000_000
# A longer purge shares the loop with compaction, which bounds the memory of the index.
_PURGE_NS = 5_000_000_000


class Removal:
    """Keeps one stream within `max_msgs`, `max_bytes`, `max_msgs_per_subject` and `max_age`, and compacts its store.

    Attributes:
        store_limits: the limits as the store enforces them; None without any.
    """

    def __init__(self, stream: Stream) -> None:
        self.store_limits: StoreLimits | None = None
        self._stream = stream
        self._store = stream.store
        self._services = stream.services
        self._max_age = 0
        self._expiry_timer: Timer | None = None
        self._is_refused = False
        self._rollups: dict[SubjectFilter | None, int] = {}  # roll-ups to carry out, each up to a sequence
        self._compaction_timer: Timer | None = None
        self._compaction_not_before_ns = 0
        self._store.hooks.on_full = self.schedule_compaction

    # Limits

    def limit_to(self, config: StreamConfig) -> None:
        """Set the limits of a configuration, new or changed; `enforce` follows."""
        limits = replace(limits_of(config), max_age_ns=config.max_age)
        has_limits = max(limits.max_messages, limits.max_bytes, limits.max_per_subject, limits.max_age_ns) > 0
        self.store_limits = limits if has_limits else None
        self._max_age = config.max_age
        self._cancel_expiry()  # A shorter age comes due sooner.

    def remove_excess(self, config: StreamConfig, now_ns: int) -> Steps[None]:
        """Remove in steps messages over new limits, where these may be many; `enforce` removes the rest.

        Raises:
            StoreError: the messages could not be removed.
        """
        store, limits = self._store, limits_of(config)
        if self._may_have_excess(limits):
            yield from self._stream.carry_out(store.enforce_in_steps(limits))
        if config.max_age and not config.subject_delete_marker_ttl and not self._stream.expiry.ageless:
            oldest = store.first_at_or_after(now_ns - config.max_age)
            if oldest - store.first_sequence > _REMOVE_AT_ONCE:
                yield from self._stream.carry_out(store.purge_in_steps(below=oldest))

    def _may_have_excess(self, limits: StoreLimits) -> bool:
        """Return whether the store may have many more messages than the limits allow."""
        store, old = self._store, self.store_limits or StoreLimits()
        if store.messages <= _REMOVE_AT_ONCE:
            return False
        if limits.max_per_subject > 0 and not 0 < old.max_per_subject <= limits.max_per_subject:
            return True
        if 0 < limits.max_messages < store.messages - _REMOVE_AT_ONCE:
            return True
        excess = store.bytes - limits.max_bytes if limits.max_bytes > 0 else 0
        return excess * store.messages > _REMOVE_AT_ONCE * store.bytes

    def roll_up(self, subject_filter: SubjectFilter | None, below: int, now_ns: int) -> None:
        """Remove the messages that a stored one rolls up; where the disk does not tell which, retry later."""
        self._rollups[subject_filter] = below
        self._try(None, now_ns)

    def enforce(self, now_ns: int) -> None:
        """Remove messages over the limits, oldest first; where the disk does not tell which, retry later."""
        self._try(self.store_limits, now_ns)

    def _try(self, limits: StoreLimits | None, now_ns: int) -> None:
        if self._is_refused:
            return
        try:
            for subject_filter, below in list(self._rollups.items()):
                self._store.purge(subject_filter, below=below, follows_append=True)
                del self._rollups[subject_filter]
            if limits is not None:
                self._enforce(limits, now_ns)
        except StoreError as error:
            self._services.report(f"JetStream - {error}")
            self._cancel_expiry()
            self._is_refused = True
            self._expiry_timer = self._services.timers.schedule(now_ns + _RETRY_NS, self._remove_expired)

    def _enforce(self, limits: StoreLimits, now_ns: int) -> None:
        """Remove messages over the limits, and set the timer for the next message to expire."""
        expiry = self._stream.expiry
        until_ns = expiry.removable_until(now_ns)
        removed = self._store.enforce(limits, until_ns, expiry.ageless)
        if removed:
            self.schedule_compaction()
        if self._max_age and self._expiry_timer is None and (oldest_ns := self._store.aging_time_ns):
            # Messages that wait for their markers, or exceed the number of one turn, follow in the next turn.
            is_behind = until_ns != now_ns or (removed and oldest_ns + self._max_age <= now_ns)
            deadline_ns = max(oldest_ns + self._max_age, now_ns if is_behind else now_ns + _PAUSE_NS)
            self._expiry_timer = self._services.timers.schedule(deadline_ns, self._remove_expired)

    def _remove_expired(self, now_ns: int) -> None:
        self._expiry_timer = None
        self._is_refused = False
        self._stream.expiry.mark_aged(now_ns)
        self.enforce(now_ns)
        self.after_removal()
        self._stream.expiry.publish_missing()

    def _cancel_expiry(self) -> None:
        self._services.timers.cancel(self._expiry_timer)
        self._expiry_timer = None
        self._is_refused = False

    # After removals

    def after_removal(self, *, soon: bool = False) -> None:
        """Flush the log, update the usage and schedule compaction, after messages were removed.

        Args:
            soon: nothing waits for the log, which is flushed a little later.
        """
        store = self._store
        if store.durable:
            if soon:
                self._services.commit.mark_soon(store)
            else:
                self._services.commit.mark(store)
        self._stream.usage.set_used(store.bytes)
        self.schedule_compaction()

    def schedule_compaction(self, pause_ns: int = _COMPACTION_PAUSE_NS) -> None:
        """Compact the store when the pause is over."""
        if self._compaction_timer is None and not self._stream.is_closed:
            deadline_ns = self._services.clock.now_ns() + pause_ns
            self._compaction_timer = self._services.timers.schedule(deadline_ns, self._compact)

    def pause_compaction(self) -> None:
        """Compact nothing for some seconds or until `resume_compaction`: a purge would have it rewritten twice."""
        self._compaction_not_before_ns = self._services.clock.now_ns() + _PURGE_NS

    def resume_compaction(self) -> None:
        """End the pause."""
        self._compaction_not_before_ns = 0

    def _compact(self, now_ns: int) -> None:
        """Take one bounded step of compaction, and schedule the next."""
        self._compaction_timer = None
        if now_ns < self._compaction_not_before_ns:
            self.schedule_compaction(self._compaction_not_before_ns - now_ns)
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
            # Without a pause a busy publisher is slowed down, rather than the index grow in memory.
            self.schedule_compaction(0 if store.is_behind() else _STEP_PAUSE_NS)

    def close(self) -> None:
        """Remove and compact nothing more; the stream is closed."""
        self._cancel_expiry()
        self._services.timers.cancel(self._compaction_timer)
