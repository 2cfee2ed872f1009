"""Tables that are filtered, sorted and cut into pages where the rows are: ten thousand cost no more than fifty."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

__all__ = ["ROWS_MAX", "Listing", "listed"]

ROWS_MAX = 200
"""How many rows one page of a table has at most."""

RowT = TypeVar("RowT")


class Listing(msgspec.Struct, frozen=True):
    """Which part of a table is wanted, in which order."""

    filter: str = ""
    """Only rows that contain this text, in any case."""
    sort: str = ""
    """Name of the column; empty = the table's own order."""
    descending: bool = False
    offset: int = 0
    limit: int = 50
    range: str = "5m"
    """The time that charts show."""


def listed(
    rows: Collection[RowT],
    listing: Listing,
    *,
    search: Callable[[RowT], str],
    orders: Mapping[str, Callable[[RowT], Any]],
    shown: Callable[[RowT], dict[str, Any]],
) -> dict[str, Any]:
    """Return one page of a table: its rows, how many there are, and how many of them match the filter.

    Args:
        search: the text of a row that the filter looks into.
        orders: what a row is sorted by, for each column that can be.
        shown: makes what the page gets of a row; called only for rows of the page.
    """
    wanted = listing.filter.lower()
    found = [row for row in rows if wanted in search(row).lower()] if wanted else list(rows)
    order = orders.get(listing.sort)
    if order is not None:
        found.sort(key=order, reverse=listing.descending)
    limit = max(1, min(listing.limit, ROWS_MAX))
    # A page beyond the end, of a table that has become shorter, is the last one.
    offset = max(0, min(listing.offset, (len(found) - 1) // limit * limit))
    return {
        "rows": [shown(row) for row in found[offset : offset + limit]],
        "total": len(rows),
        "found": len(found),
        "offset": offset,
    }
