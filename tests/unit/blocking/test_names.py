"""The blocking client has the names and the arguments of the asyncio one."""

import inspect

import pytest

from jetlake import blocking, client
from jetlake.client.ordered.ordered import OrderedConsume
from jetlake.client.pull.consume import Consume

PAIRS = [(getattr(client, name), getattr(blocking, name)) for name in blocking.__all__ if hasattr(client, name)]
PAIRS += [(Consume, blocking.Reading), (OrderedConsume, blocking.Reading)]

# What the parts of the asyncio client call of each other, besides what they hide themselves.
INTERNAL = {"PushSubscription.attach", "KeyWatch.report", "ObjectWatch.report"}


def names(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_every_name_is_there(pair):
    asynchronous, blocked = pair
    hidden = getattr(asynchronous, "_hidden_names", frozenset())
    expected = (
        {name for name in names(asynchronous) - hidden if f"{asynchronous.__name__}.{name}" not in INTERNAL}
        if isinstance(asynchronous, type)
        else set()
    )
    assert expected - names(blocked) == set()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_every_argument_is_there(pair):
    asynchronous, blocked = pair
    for name in names(asynchronous) & names(blocked) - INTERNAL:
        method, form = getattr(asynchronous, name), getattr(blocked, name)
        if callable(method) and callable(form) and not isinstance(method, type):
            taken = inspect.signature(form).parameters
            if not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
                assert set(inspect.signature(method).parameters) <= set(taken), name


def test_the_modules_have_the_same_names():
    # A fetch has no blocking form: it is a list; consume gives a `Reading`.
    assert set(client.__all__) - set(blocking.__all__) == {"Consume", "Fetch"}
