"""Reads which part of a table a request wants."""

from __future__ import annotations

from starlette.requests import Request

from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.timeline import RANGES
from jetlake.dashboard.web.answers import whole_number
from jetlake.errors import InvalidOptionError

__all__ = ["listing_of"]


def listing_of(request: Request) -> Listing:
    """Return the listing that a query describes.

    Raises:
        InvalidOptionError: a number that is none, or a range that there is not.
    """
    query = request.query_params
    name = query.get("range", "5m")
    if name not in RANGES:
        raise InvalidOptionError(f"range must be one of {', '.join(RANGES)}, not {name[:40]!r}")
    return Listing(
        filter=query.get("filter", ""),
        sort=query.get("sort", ""),
        descending=query.get("descending") == "1",
        offset=whole_number(query, "offset") or 0,
        limit=whole_number(query, "limit") or 50,
        range=name,
    )
