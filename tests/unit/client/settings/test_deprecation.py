"""The older API is marked for type checkers, and says nothing at run time."""

import warnings

import pytest

from jetlake import blocking, client


@pytest.mark.parametrize("kind", [client.JetStream, blocking.JetStream])
@pytest.mark.parametrize("name", ["subscribe", "queue_subscribe", "pull_subscribe"])
def test_the_older_workflow_is_marked(kind, name):
    assert "NATS ADR-37" in getattr(kind, name).__deprecated__


def test_nothing_is_said_at_run_time():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        client.JetStream.pull_subscribe(None).close()  # a coroutine that never runs
    assert said == []
