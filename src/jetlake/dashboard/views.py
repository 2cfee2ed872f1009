"""The pages that show samples: streams, consumers, copies, pipelines, connections, events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.dashboard.viewers import Viewers
from jetlake.dashboard.watching.board import Board
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.timeline import RANGES
from jetlake.dashboard.web import json_answer, whole_number
from jetlake.errors import InvalidOptionError
from jetlake.model.stream import StreamInfo, StreamSource, StreamSourceInfo

KV_PREFIX = "KV_"
"""Prefix of the streams of key-value buckets."""
OBJECT_PREFIX = "OBJ_"
"""Prefix of the streams of object stores."""


def watching_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def view(request: Request) -> Response:
        return json_answer(await _view((await viewers.viewer(request)).collector, request))

    async def live(request: Request) -> Response:
        viewer = await viewers.viewer(request)
        collector = viewer.collector
        await _view(collector, request)  # a bad question is answered as such

        async def views() -> AsyncGenerator[Any, None]:
            async with aclosing(collector.samples()) as samples:
                async for _ in samples:
                    yield await _view(collector, request)

        return viewers.events(viewer, request, views())

    return [Route("/api/view", view), Route("/api/live", live)]


async def _view(collector: Collector, request: Request) -> dict[str, Any]:
    """Return what is on every page, and the page that the query names."""
    query = request.query_params
    listing = listing_of(request)
    page, stream, consumer = query.get("page", "streams"), query.get("stream"), query.get("consumer")
    return {"board": collector.summary(), "page": await _page(collector, page, stream, consumer, listing)}


async def _page(
    collector: Collector, page: str, stream: str | None, consumer: str | None, listing: Listing
) -> dict[str, Any]:
    board, now_s = collector.board, time.time()
    match page:
        case "stream" if stream:
            return await collector.stream(stream, listing) or {"error": _absence(board, f"Stream {stream}")}
        case "consumer" if stream and consumer:
            detail = await collector.consumer(stream, consumer, listing)
            return detail or {"error": _absence(board, f"Consumer {stream} > {consumer}")}
        case "streams":
            return {**board.streams(listing, now_s), **board.totals(listing, now_s)}
        case "consumers":
            return board.consumers(listing, now_s)
        case "buckets":
            return board.streams(listing, now_s, KV_PREFIX)
        case "object-stores":
            return board.streams(listing, now_s, OBJECT_PREFIX)
        case "copies":
            return copies(board.infos())
        case "pipelines":
            return {"rows": board.pipelines(now_s), "dropped": board.dropped, "unheard": board.unheard}
        case "connections":
            return {"rows": None if board.connections is None else board.connections.get("connections", [])}
        case "events":
            return {"rows": board.advisories(), "dropped": board.dropped, "unheard": board.unheard}
        case "none":
            return {}
    raise InvalidOptionError(f"unknown page {page[:40]!r}")


def _absence(board: Board, what: str) -> str:
    """Say that something is not there; of a server that has not said what it has, nothing is known."""
    return (
        f"{what} not found." if board.server["connected"] or board.server.get("seen") else f"{what} is not known yet."
    )


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


EDGES_MAX = 300
"""How many copies are drawn, beside the number of all."""


def copies(infos: list[StreamInfo]) -> dict[str, Any]:
    """Return the streams that copy or are copied, and the edges between them, from origin to copy."""
    known = {info.config.name for info in infos}
    edges: list[dict[str, Any]] = []
    for info in infos:
        config = info.config
        if config.mirror is not None:
            edges.append(_edge(config.name, config.mirror, info.mirror, "mirror"))
        states = {state.name: state for state in info.sources}
        edges += [_edge(config.name, source, states.get(source.name), "source") for source in config.sources]
    shown = edges[:EDGES_MAX]
    names = dict.fromkeys(name for edge in shown for name in (edge["from"], edge["to"]))
    nodes = [{"name": name, "is_here": name in known, "depth": 0} for name in names]
    _place(nodes, shown)
    return {"nodes": nodes, "edges": shown, "total": len(edges)}


def _edge(stream: str, source: StreamSource, state: StreamSourceInfo | None, kind: str) -> dict[str, Any]:
    away = source.external is not None
    return {
        "from": f"{source.name} ({source.external.api})" if away and source.external is not None else source.name,
        "to": stream,
        "kind": kind,
        "filter": source.filter_subject or ", ".join(one.src for one in source.subject_transforms),
        "lag": 0 if state is None else state.lag,
        "active": -1 if state is None else state.active,
        "error": "" if state is None or state.error is None else state.error.description,
    }


def _place(nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> None:
    """Give each node its column: one further right than everything that it copies. Cycles end somewhere."""
    depth = {node["name"]: 0 for node in nodes}
    for _ in range(min(len(nodes), 50)):
        moved = False
        for edge in edges:
            wanted = min(depth[edge["from"]] + 1, len(nodes) - 1)
            if depth[edge["to"]] < wanted and edge["from"] != edge["to"]:
                depth[edge["to"]], moved = wanted, True
        if not moved:
            break
    for node in nodes:
        node["depth"] = depth[node["name"]]
