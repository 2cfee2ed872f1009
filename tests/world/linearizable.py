"""Whether a history of concurrent calls could have happened one after the other (Wing and Gong's search, with memory).

A call takes effect at one moment between its begin and its end. One whose answer never came may take effect at any
moment after its begin, or never.
"""

from dataclasses import dataclass
from typing import Any

__all__ = ["UNKNOWN", "Call", "find_order"]

UNKNOWN = object()
"""The outcome of a call whose answer never came."""

_VISITS_MAX = 100_000


@dataclass
class Call:
    """One call.

    Attributes:
        begin: when it was made.
        end: when its answer came; None for an outcome that nobody knows.
        action: what was asked.
        outcome: what was answered.
    """

    begin: int
    end: int | None
    action: Any
    outcome: Any


def find_order(calls, state, step):
    """Return an order in which the calls could have happened, or None; a list that ends early when that takes too long.

    Args:
        state: before the first call; hashable.
        step: takes a state, an action and its outcome; returns the next state, or None where that cannot be.
    """
    calls = sorted(calls, key=lambda call: call.begin)
    visited = set()
    known = sum(1 << index for index, call in enumerate(calls) if call.end is not None)
    path = []
    stack = [(0, state, iter(_candidates(calls, 0)))]
    while stack:
        done, state, candidates = stack[-1]
        if done & known == known:
            return [calls[index] for index in path]
        if len(visited) > _VISITS_MAX:
            return [calls[index] for index in path]
        for index in candidates:
            call = calls[index]
            after = step(state, call.action, UNKNOWN if call.end is None else call.outcome)
            key = (done | 1 << index, after)
            if after is not None and key not in visited:
                visited.add(key)
                path.append(index)
                stack.append((done | 1 << index, after, iter(_candidates(calls, done | 1 << index))))
                break
        else:
            stack.pop()
            if path:
                path.pop()
    return None


def _candidates(calls, done):
    """Return the calls that may come next: begun before any other call that is to come has ended."""
    first_end = min(
        (call.end for index, call in enumerate(calls) if not done >> index & 1 and call.end is not None), default=None
    )
    return [
        index
        for index, call in enumerate(calls)
        if not done >> index & 1 and (first_end is None or call.begin <= first_end)
    ]
