"""Sets of patterns say what comparing with each would say."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol import pattern_set
from jetlake.protocol.pattern_set import PatternMatcher, PatternSet, _State
from jetlake.protocol.subjects import matches, overlaps

TOKENS = st.sampled_from([b"a", b"b", b"*"])
PATTERNS = st.builds(
    lambda tokens, is_open: b".".join([*tokens, b">"] if is_open or not tokens else tokens),
    st.lists(TOKENS, max_size=4),
    st.booleans(),
)


@given(st.lists(PATTERNS, max_size=6), PATTERNS)
@pytest.mark.parametrize("merged_min", [0, 8])
def test_the_set_says_what_each_would(merged_min: int, patterns: list[bytes], asked: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_set, "_MERGED_MIN", merged_min)
        matcher = PatternMatcher(PatternSet(patterns))
        assert matcher.overlaps(asked) == any(overlaps(asked, pattern) for pattern in patterns)
        assert matcher.count_overlapping(asked) == sum(overlaps(asked, pattern) for pattern in patterns)


@given(st.lists(PATTERNS, max_size=6), st.lists(PATTERNS, max_size=6), PATTERNS)
def test_what_was_taken_out_is_gone(kept: list[bytes], taken: list[bytes], asked: bytes) -> None:
    patterns_set = PatternSet(kept + taken)
    for pattern in taken:
        patterns_set.remove(pattern)
    assert PatternMatcher(patterns_set).overlaps(asked) == PatternMatcher(PatternSet(kept)).overlaps(asked)
    for pattern in kept:
        patterns_set.remove(pattern)
    assert not PatternMatcher(patterns_set).overlaps(b">")
    assert not patterns_set.root


# `a.>.b` and `a..b` are no valid patterns, but direct gets take them.
ANY_TOKENS = st.sampled_from([b"a", b"b", b"c", b"*", b">", b""])
ANY_PATTERNS = st.lists(ANY_TOKENS, min_size=1, max_size=5).map(b".".join)
SUBJECTS = st.lists(st.sampled_from([b"a", b"b", b"x", b"*", b""]), min_size=1, max_size=5).map(b".".join)


@given(st.lists(ANY_PATTERNS, min_size=1, max_size=30), st.lists(SUBJECTS, max_size=8))
@pytest.mark.parametrize("merged_min", [0, 8])
@pytest.mark.parametrize("states_max", [2, 65_536])
def test_a_matcher_says_what_each_pattern_would(merged_min, states_max, patterns, subjects) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_set, "_MERGED_MIN", merged_min)
        patch.setattr(pattern_set, "_STATES_MAX", states_max)
        matcher = PatternMatcher(PatternSet(patterns))
        for subject in subjects:
            assert matcher.matches(subject) == any(matches(pattern, subject) for pattern in patterns)


@pytest.fixture
def created(monkeypatch):
    """The number of nodes of each state that a matcher creates."""
    created = []
    monkeypatch.setattr(PatternMatcher, "_created", lambda self, nodes: created.append(len(nodes)) or _State(nodes))
    return created


def test_a_subject_costs_a_look_up_for_each_token_however_wildcards_are_combined(created) -> None:
    patterns = [b".".join(tokens) + b".end" for tokens in product((b"a", b"*"), repeat=10)]
    matcher = PatternMatcher(PatternSet(patterns))
    for number in range(5000):
        assert not matcher.matches(b"a." * 10 + b"%d" % number)
    assert len(created) <= 11
    assert matcher.matches(b"a." * 10 + b"end")


def test_patterns_with_a_wildcard_first_are_not_compared_with_each_of_the_others(created) -> None:
    patterns = [b"a%d.b" % number for number in range(2000)] + [b"*.c%d" % number for number in range(2000)]
    matcher = PatternMatcher(PatternSet(patterns))
    assert all(matcher.count_overlapping(pattern) == 1 for pattern in patterns)
    assert sum(created) <= 5 * len(patterns)


@pytest.mark.parametrize("token", [b"a", b"*"])
def test_a_pattern_of_very_many_tokens(token: bytes) -> None:
    long = b".".join([token] * 100_000)
    patterns = PatternMatcher(PatternSet([long]))
    assert patterns.overlaps(long)
    assert not patterns.overlaps(long + b".b")
