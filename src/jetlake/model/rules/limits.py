"""The bounds and defaults that a server applies to streams and consumers."""

from __future__ import annotations

from jetlake.model.account import AccountLimits
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.encoding.fields import Value

__all__ = [
    "ACK_WAIT_DEFAULT",
    "CONSUMERS_DEFAULT_MAX",
    "DESCRIPTION_BYTES_MAX",
    "DUPLICATE_WINDOW_DEFAULT",
    "INACTIVE_THRESHOLD_DEFAULT",
    "MAX_ACK_PENDING_DEFAULT",
    "MAX_WAITING_DEFAULT",
    "METADATA_BYTES_MAX",
    "NAME_BYTES_MAX",
    "PRIORITY_TIMEOUT_DEFAULT",
    "REPLICAS_MAX",
    "ServerLimits",
    "consumers_max",
    "is_valid_name",
]

NAME_BYTES_MAX = 255
"""Longest name of a stream or consumer."""
DESCRIPTION_BYTES_MAX = 4 * 1024
"""Longest description of a stream or consumer."""
METADATA_BYTES_MAX = 128 * 1024
"""Most bytes of all keys and values of metadata."""
REPLICAS_MAX = 5
"""Most copies of a stream in a cluster."""
CONSUMERS_DEFAULT_MAX = 1000
"""Most consumers of a stream when neither the stream nor the account says."""
DUPLICATE_WINDOW_DEFAULT = 120 * NANOSECONDS_PER_SECOND
"""How long message ids are remembered."""
ACK_WAIT_DEFAULT = 30 * NANOSECONDS_PER_SECOND
"""How long a consumer waits for an acknowledgement."""
MAX_ACK_PENDING_DEFAULT = 1000
"""Most unacknowledged messages of a consumer."""
MAX_WAITING_DEFAULT = 512
"""Most waiting pull requests of a consumer."""
INACTIVE_THRESHOLD_DEFAULT = 5 * NANOSECONDS_PER_SECOND
"""How long an ephemeral consumer outlives its last use."""
PRIORITY_TIMEOUT_DEFAULT = 120 * NANOSECONDS_PER_SECOND
"""How long a pinned client may go without a pull request."""

_NOT_IN_NAMES = frozenset(" \t\r\n\f.*>/\\\0")


class ServerLimits(Value, frozen=True):
    """What the server's own configuration limits for all accounts; 0 is unlimited."""

    max_ack_pending: int = 0
    """Highest `max_ack_pending` of a consumer."""
    max_request_batch: int = 0
    """Highest `max_batch` of a consumer."""
    duplicate_window: int = 0
    """Longest `duplicate_window` of a stream, nanoseconds."""
    batches_per_stream: int = 50
    """Atomic batches that a stream may have open at once."""
    batches_total: int = 1000
    """Atomic batches that all streams together may have open at once."""
    batch_messages: int = 1000
    """Most messages of an atomic batch."""
    batch_timeout: int = 10 * NANOSECONDS_PER_SECOND
    """How long an atomic batch waits for its next message, nanoseconds."""


def is_valid_name(name: str) -> bool:
    """Return whether a stream or consumer may have that name, its length aside."""
    return bool(name) and _NOT_IN_NAMES.isdisjoint(name)


def consumers_max(stream_max: int, account: AccountLimits) -> int:
    """Return how many consumers a stream may have: the lower of its and the account's limit; else the server's."""
    limits = [limit for limit in (stream_max, account.max_consumers) if limit > 0]
    return min(limits, default=CONSUMERS_DEFAULT_MAX)
