"""Mirrors and sources as a graph: which stream is copied from which, and how far behind it is."""

from __future__ import annotations

from typing import Any

from jetlake.model.stream import StreamInfo, StreamSource, StreamSourceInfo

__all__ = ["EDGES_MAX", "copies"]

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
