"""The checker of orders finds what is there, and what was planted."""

import pytest

from tests.world.linearizable import UNKNOWN, Call, find_order


def register(state, action, outcome):
    """A value with compare-and-set: ("set", new), ("get",), ("cas", old, new)."""
    if action[0] == "set":
        return action[1]
    if action[0] == "get":
        return state if outcome is UNKNOWN or outcome == state else None
    if outcome is UNKNOWN or outcome:
        return action[2] if state == action[1] else None
    return state if state != action[1] else None


def order(*calls):
    return find_order([Call(*call) for call in calls], 0, register)


def test_calls_one_after_the_other_have_that_order():
    found = order((0, 1, ("set", 1), None), (2, 3, ("get",), 1), (4, 5, ("cas", 1, 2), True), (6, 7, ("get",), 2))
    assert [call.begin for call in found] == [0, 2, 4, 6]


def test_calls_at_the_same_time_may_have_any_order():
    assert order((0, 9, ("set", 1), None), (1, 8, ("set", 2), None), (10, 11, ("get",), 1))
    assert order((0, 9, ("set", 1), None), (1, 8, ("set", 2), None), (10, 11, ("get",), 2))


def test_a_call_without_an_answer_may_happen_late_or_never():
    lost = (0, None, ("set", 1), UNKNOWN)
    assert order(lost, (1, 2, ("get",), 0), (3, 4, ("get",), 1))
    assert order(lost, (1, 2, ("get",), 0), (3, 4, ("get",), 0))


@pytest.mark.parametrize(
    "calls",
    [
        # A stale read.
        [(0, 1, ("set", 1), None), (2, 3, ("get",), 0)],
        # A write that is undone.
        [(0, 1, ("set", 1), None), (2, 3, ("get",), 1), (4, 5, ("get",), 0)],
        # Two that both win.
        [(0, 5, ("cas", 0, 1), True), (1, 6, ("cas", 0, 2), True)],
        # One that loses against nobody.
        [(0, 1, ("cas", 0, 1), False)],
        # A call without an answer that happens and is undone.
        [(0, None, ("set", 1), UNKNOWN), (1, 2, ("get",), 1), (3, 4, ("get",), 0)],
        # A value of nobody.
        [(0, 9, ("set", 1), None), (1, 2, ("get",), 7)],
    ],
)
def test_planted_violations_are_found(calls):
    assert order(*calls) is None
