"""The table at the end of the demonstration: counts from different places that must be equal, and whether they are."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check", "Counts", "checks"]


@dataclass(frozen=True)
class Counts:
    """What was counted, each in its own place.

    Attributes:
        sent: messages sent to the server, duplicates included.
        distinct: different orders among them.
        stored: messages in the stream.
        handled: orders that workers acknowledged or gave up.
        unsettled: deliveries that the server still waits for.
        archived: rows in the archive's files.
        archived_distinct: different sequences among them.
        aggregated: orders that the SQL result adds up to.
        revenue_sent, revenue_aggregated: the money in the orders, and in the SQL result, in cents.
        ack_samples: measured acks in the stream of events.
        health_acks: those that the health table adds up to.
    """

    sent: int
    distinct: int
    stored: int
    handled: int
    unsettled: int
    archived: int
    archived_distinct: int
    aggregated: int
    revenue_sent: int
    revenue_aggregated: int
    ack_samples: int
    health_acks: int


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    what: str
    count: int
    must_be: int | None
    because: str

    @property
    def holds(self) -> bool:
        """Whether it is what it must be."""
        return self.must_be is None or self.count == self.must_be


def checks(counts: Counts) -> list[Check]:
    """Return all lines."""
    distinct = counts.distinct
    return [
        Check("published", counts.sent, None, "orders sent, every tenth of them twice"),
        Check("deduplicated", counts.sent - counts.stored, counts.sent - distinct, "sent twice, stored once"),
        Check("stored", counts.stored, distinct, "in the stream, after the server was killed"),
        Check("handled", counts.handled, distinct, "acknowledged or given up by workers"),
        Check("unsettled", counts.unsettled, 0, "still owed to workers"),
        Check("archived", counts.archived, counts.stored, "rows in files, after the archive was killed"),
        Check("archived once", counts.archived_distinct, counts.stored, "different sequences in these files"),
        Check("aggregated", counts.aggregated, counts.stored, "orders in the SQL result"),
        Check("revenue, cents", counts.revenue_aggregated, counts.revenue_sent, "sum of the SQL result"),
        Check("health", counts.health_acks, counts.ack_samples, "measured acks in the health table"),
    ]
