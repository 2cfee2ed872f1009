"""Pipelines over both servers, each test with a server of its own that it may kill."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest


class StopAfter:
    """A reporter that stops the run after so many batches, and keeps what it was told."""

    def __init__(self, batches: int | None, stopping: threading.Event) -> None:
        self.batches: list[Any] = []
        self.summary: Any = None
        self._left = batches
        self._stopping = stopping

    def began(self, name: str, facts: Any) -> None:
        self.name, self.facts = name, facts

    def batch(self, done: Any) -> None:
        self.batches.append(done)
        if self._left is not None and len(self.batches) >= self._left:
            self._stopping.set()

    def note(self, text: str) -> None:
        pass

    def outage(self, away_s: float | None, limit_s: float) -> None:
        pass

    def ended(self, summary: Any) -> None:
        self.summary = summary


@pytest.fixture(params=["embedded", "nats-server"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own_server(kind: str, server_of: Callable[[str], Any]) -> Any:
    return server_of(kind)


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> Any:
    """Starts a server of a kind, which is removed with the test."""
    process_class = None
    for plugin in request.config.pluginmanager.get_plugins():
        process_class = getattr(plugin, "ServerProcess", process_class)
    assert process_class is not None
    started: list[Any] = []

    def start(kind: str) -> Any:
        started.append(process_class(kind))
        return started[-1]

    yield start
    for process in started:
        process.remove()


@pytest.fixture
def run_on(spark: Any) -> Any:
    """Runs a pipeline against a server, to its end or for some batches; gives the reporter."""
    from jetlake.spark.pipelines.runner import run_pipeline
    from jetlake.spark.pipelines.settings import PipelineSettings

    def run(server: Any, pipeline: Any, *, stop_after: int | None = None, **settings: Any) -> StopAfter:
        stopping = threading.Event()
        reporter = StopAfter(stop_after, stopping)
        options = PipelineSettings(connection={"servers": server.url}, **settings)
        run_pipeline(pipeline, spark, options, (reporter,), stopping=stopping)
        return reporter

    return run
