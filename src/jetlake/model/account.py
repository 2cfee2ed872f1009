"""An account's use of JetStream and what it is allowed."""

from __future__ import annotations

from jetlake.model.encoding.fields import Count, Int64, Value, always

__all__ = ["AccountInfo", "AccountLimits", "AccountTier", "ApiStats"]


class AccountLimits(Value, frozen=True):
    """What an account may use; -1 is unlimited."""

    max_memory: Int64 = always(-1)
    """Bytes in memory."""
    max_storage: Int64 = always(-1)
    """Bytes on disk."""
    max_streams: Int64 = always(-1)
    """Number of streams."""
    max_consumers: Int64 = always(-1)
    """Number of consumers of one stream."""
    max_ack_pending: Int64 = always(-1)
    """Highest `max_ack_pending` of a consumer."""
    memory_max_stream_bytes: Int64 = always(-1)
    """Highest `max_bytes` of a stream in memory."""
    storage_max_stream_bytes: Int64 = always(-1)
    """Highest `max_bytes` of a stream on disk."""
    max_bytes_required: bool = always(False)
    """Whether every stream must set `max_bytes`."""


class ApiStats(Value, frozen=True):
    """How often the API was used."""

    level: int = always(0)
    """The API level that the server speaks."""
    total: Count = always(0)
    """Requests so far."""
    errors: Count = always(0)
    """Refused requests."""
    inflight: Count = 0
    """Those under way."""


class AccountTier(Value, frozen=True):
    """Use and limits of one tier, which groups streams by their number of replicas."""

    memory: Count = always(0)
    """Bytes in memory."""
    storage: Count = always(0)
    """Bytes on disk."""
    reserved_memory: Count = always(0)
    """Bytes in memory that streams have set aside by `max_bytes`."""
    reserved_storage: Count = always(0)
    """Bytes on disk that streams have set aside by `max_bytes`."""
    streams: Count = always(0)
    """Number of streams."""
    consumers: Count = always(0)
    """Number of consumers."""
    limits: AccountLimits = always(AccountLimits())
    """What the tier may use."""


class AccountInfo(AccountTier, frozen=True):
    """An account as the server describes it: a tier for all its streams, and more."""

    domain: str = ""
    """The JetStream domain."""
    api: ApiStats = always(ApiStats())
    """How often the API was used."""
    tiers: dict[str, AccountTier] = {}
    """Use and limits by number of replicas (`R1`, `R3`), where limits are set so."""
