"""Mirrors and sources as a graph."""

from __future__ import annotations

from jetlake.dashboard.views import EDGES_MAX, copies
from jetlake.model.stream import (
    ErrorBody,
    ExternalStream,
    StreamConfig,
    StreamInfo,
    StreamSource,
    StreamSourceInfo,
)


def stream(name, *, mirror=None, sources=()):
    config = StreamConfig(name=name, mirror=mirror and StreamSource(name=mirror), sources=tuple(sources))
    return StreamInfo(config=config)


def test_copies_stand_right_of_what_they_copy():
    graph = copies(
        [
            stream("B", mirror="A"),
            stream("A"),
            stream("C", sources=[StreamSource(name="B"), StreamSource(name="A", filter_subject="a.>")]),
            stream("LONE"),
        ]
    )
    assert {node["name"]: node["depth"] for node in graph["nodes"]} == {"A": 0, "B": 1, "C": 2}
    assert [(edge["from"], edge["to"], edge["kind"], edge["filter"]) for edge in graph["edges"]] == [
        ("A", "B", "mirror", ""),
        ("B", "C", "source", ""),
        ("A", "C", "source", "a.>"),
    ]


def test_lag_and_errors_are_told_and_what_is_elsewhere_is_marked():
    state = StreamSourceInfo(name="GONE", lag=7, active=-1, error=ErrorBody(code=404, description="stream not found"))
    away = StreamSource(name="FAR", external=ExternalStream(api="$JS.hub.API"))
    graph = copies([_with_mirror(state), stream("S", sources=[away])])
    mirror, source = graph["edges"]
    assert (mirror["lag"], mirror["active"], mirror["error"]) == (7, -1, "stream not found")
    assert source["from"] == "FAR ($JS.hub.API)"
    assert {node["name"]: node["is_here"] for node in graph["nodes"]}["GONE"] is False


def _with_mirror(state):
    return StreamInfo(config=StreamConfig(name="M", mirror=StreamSource(name="GONE")), mirror=state)


def test_circles_end_and_many_are_cut():
    circle = [stream("A", sources=[StreamSource(name="B")]), stream("B", sources=[StreamSource(name="A")])]
    assert {node["name"] for node in copies(circle)["nodes"]} == {"A", "B"}
    own = [stream("A", sources=[StreamSource(name="A")])]
    assert copies(own)["nodes"][0]["depth"] == 0
    many = copies([stream(f"M{number}", mirror="A") for number in range(EDGES_MAX + 5)])
    assert (len(many["edges"]), many["total"]) == (EDGES_MAX, EDGES_MAX + 5)
