"""Docstrings of the asyncio client, worded for callers that wait."""

from __future__ import annotations

import re

__all__ = ["blocking_wording"]

# Sentences of their own first, then words.
_WORDINGS = (
    (r"`await` it for a list, which is empty (.*?); `async for` over it takes .*? comes\.", r"The list is empty \1."),
    (r"; `await` it, or use it as an async context manager, which", "; the client is a context manager, which"),
    (r"a plain or a coroutine function", "a function, which runs in a thread"),
    (r"runs in this event loop, instead", "runs in the client's event loop, instead"),
    (r"an iterator or async iterator of bytes", "an iterator of bytes"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait (?=\w)", ""),
    (r"\bjetlake\.connect\(", "jetlake.blocking.connect("),
)
# A sentence may be broken into lines anywhere.
_PATTERNS = [(re.compile(pattern.replace(" ", r"\s+"), re.DOTALL), words) for pattern, words in _WORDINGS]


def blocking_wording(text: str) -> str:
    """Return the docstring without `await`, `async with` and `async for`."""
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text
