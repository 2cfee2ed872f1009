"""Blocking views of asyncio objects."""

from types import SimpleNamespace

import pytest

from jetlake.blocking.facade import Facade, View


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
