"""The blocking client's docstrings speak to callers that wait."""

import inspect
import re

import jetlake.blocking
from jetlake.blocking.wording import blocking_wording

ASYNC_WORDS = re.compile(r"\bawait\b|\basync (with|for)\b|async iterator")


def test_no_docstring_speaks_of_await():
    found = []
    for name in jetlake.blocking.__all__:
        value = getattr(jetlake.blocking, name)
        members = [inspect.getattr_static(value, one) for one in dir(value) if not one.startswith("_")]
        texts = [one.__doc__ or "" for one in [value, *(members if inspect.isclass(value) else [])]]
        found += [(name, text) for text in texts if ASYNC_WORDS.search(text)]
    assert found == []


def test_sentences_over_line_ends():
    text = "`await` it for a list, which is empty when none\n came; `async for` over it takes each as it comes. A"
    assert blocking_wording(text) == "The list is empty when none\n came. A"
    assert blocking_wording("async with a as b:\n    await b.ack()") == "with a as b:\n    b.ack()"
    assert blocking_wording("Wait until all are acknowledged (`publish_async`)") == (
        "Wait until all are acknowledged (`publish_async`)"
    )


def test_bound_methods_show_it_too():
    consume = jetlake.blocking.Consumer.consume.__get__(jetlake.blocking.Consumer(Inner(), None), None)
    assert "with consumer.consume() as messages" in consume.__doc__
    assert "async" not in consume.__doc__


class Inner:
    """Stands for an asyncio consumer."""
