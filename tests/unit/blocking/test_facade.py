"""Blocking views of asyncio objects."""

from types import SimpleNamespace

import pytest

from jetlake.blocking import Consumer
from jetlake.blocking.facade import Facade, View
from jetlake.client import Consumer as AsyncConsumer


class Shown(Facade):
    name = View[str]("The name.")


def test_a_view_reads_the_asyncio_object_and_cannot_be_set():
    inner = SimpleNamespace(name="a")
    shown = Shown(inner, None)
    assert (shown.name, Shown.name.__doc__) == ("a", "The name.")
    inner.name = "b"
    assert shown.name == "b"
    with pytest.raises(AttributeError):
        shown.name = "c"


def test_bound_methods_point_to_the_asyncio_ones():
    consume = Consumer.consume.__get__(Consumer(Inner(), None), None)
    assert consume.__doc__.startswith("Run `jetlake.client.pull.consumer.Consumer.consume` on the client's thread")
    assert consume.__doc__.endswith(AsyncConsumer.consume.__doc__)


class Inner:
    """Stands for an asyncio consumer."""
