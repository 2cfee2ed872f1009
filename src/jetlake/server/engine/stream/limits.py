"""The limits of a stream: messages over them are removed, oldest first, when they are exceeded or grow too old.

So are messages that another one rolls up.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from jetlake.errors import StoreError
from jetlake.model.enums import DiscardPolicy
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.stream.cleanup import Cleanup
from jetlake.server.engine.stream.delete_markers import DeleteMarkers
from jetlake.server.engine.stream.message_lifetimes import MessageLifetimes
from jetlake.store.interface import MessageStore, StoreLimits
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Limits", "are_tighter", "limits_of"]

# Expired messages are removed in groups at least this far apart; after a store error the next try waits longer.
_PAUSE_NS = 10_000_000
_RETRY_NS = 1_000_000_000
# What new limits do not allow is removed at once up to this number, about a millisecond's work.
_REMOVE_AT_ONCE = 1000

Removal = Callable[[Steps[int]], Steps[int]]
"""Carries out removals from the store while consumers wait; they continue behind what was removed."""


def limits_of(config: StreamConfig) -> StoreLimits:
    """Return the limits, but for the age, that are kept by removing messages.

    A stream that discards new messages keeps the old ones, also when it has more than a later limit allows.
    """
    removes_old = config.discard is DiscardPolicy.OLD
    return StoreLimits(
        max_messages=config.max_msgs if removes_old else -1,
        max_bytes=config.max_bytes if removes_old else -1,
        max_per_subject=config.max_msgs_per_subject,
    )


def are_tighter(config: StreamConfig, old: StreamConfig) -> bool:
    """Return whether a configuration removes messages that the old one kept."""
    new_limits, old_limits = limits_of(config), limits_of(old)
    pairs = (
        (new_limits.max_messages, old_limits.max_messages),
        (new_limits.max_bytes, old_limits.max_bytes),
        (new_limits.max_per_subject, old_limits.max_per_subject),
        (config.max_age, old.max_age),
    )
    return any(new > 0 and not 0 < before <= new for new, before in pairs)


class Limits:
    """Keeps one stream within `max_msgs`, `max_bytes`, `max_msgs_per_subject` and `max_age`.

    Args:
        store: the stream's messages.
        services: the engine's clock, timers and error log.
        lifetimes: knows the messages that `max_age` spares.
        markers: leaves markers for subjects whose last message expires.
        cleanup: follows removals.

    Attributes:
        store_limits: the limits as the store enforces them; None without any.
    """

    def __init__(
        self,
        store: MessageStore,
        services: Services,
        lifetimes: MessageLifetimes,
        markers: DeleteMarkers,
        cleanup: Cleanup,
    ) -> None:
        self.store_limits: StoreLimits | None = None
        self._store = store
        self._services = services
        self._lifetimes = lifetimes
        self._markers = markers
        self._cleanup = cleanup
        self._max_age = 0
        self._timer: Timer | None = None
        self._is_refused = False
        self._rollups: dict[SubjectFilter | None, int] = {}

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed; `enforce` follows."""
        limits = replace(limits_of(config), max_age_ns=config.max_age)
        has_limits = max(limits.max_messages, limits.max_bytes, limits.max_per_subject, limits.max_age_ns) > 0
        self.store_limits = limits if has_limits else None
        self._max_age = config.max_age
        self.close()  # A shorter age comes due sooner.

    def roll_up(self, subject_filter: SubjectFilter | None, below: int, now_ns: int) -> None:
        """Remove what a stored message rolls up; where the disk does not tell what that is, try again later."""
        self._rollups[subject_filter] = below
        self._try(None, now_ns)

    def remove_far_beyond(self, config: StreamConfig, now_ns: int, carry_out: Removal) -> Steps[None]:
        """Remove in steps what new limits do not allow, where that may be much; `enforce` does the rest.

        Raises:
            StoreError: the messages could not be removed.
        """
        store, limits = self._store, limits_of(config)
        if self._may_be_far_beyond(limits):
            yield from carry_out(store.in_steps.enforce(limits))
        if config.max_age and not config.subject_delete_marker_ttl and not self._lifetimes.ageless:
            oldest = store.first_at_or_after(now_ns - config.max_age)
            if oldest - store.first_sequence > _REMOVE_AT_ONCE:
                yield from carry_out(store.in_steps.purge(below=oldest))

    def _may_be_far_beyond(self, limits: StoreLimits) -> bool:
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

    def enforce(self, now_ns: int) -> None:
        """Remove what is over the limits, oldest first; where the disk does not tell what that is, try again later."""
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
            self.close()
            self._is_refused = True
            self._timer = self._services.timers.schedule(now_ns + _RETRY_NS, self._remove_expired)

    def _enforce(self, limits: StoreLimits, now_ns: int) -> None:
        """Remove what is over the limits, and set the timer for the next message to expire."""
        until_ns = self._markers.removable_until(now_ns)
        removed = self._store.enforce(limits, until_ns, self._lifetimes.ageless)
        if removed:
            self._cleanup.schedule()
        if self._max_age and self._timer is None and (oldest_ns := self._store.aging_time_ns):
            # What markers hold up, or is more than goes at once, follows in the next turn.
            is_behind = until_ns != now_ns or (removed and oldest_ns + self._max_age <= now_ns)
            deadline_ns = max(oldest_ns + self._max_age, now_ns if is_behind else now_ns + _PAUSE_NS)
            self._timer = self._services.timers.schedule(deadline_ns, self._remove_expired)

    def _remove_expired(self, now_ns: int) -> None:
        self._timer = None
        self._is_refused = False
        self._markers.mark_aged(now_ns, self._lifetimes.ageless)
        self.enforce(now_ns)
        self._cleanup.after_removal()
        self._markers.publish_missing()

    def close(self) -> None:
        """Cancel the timer."""
        self._services.timers.cancel(self._timer)
        self._timer = None
        self._is_refused = False
