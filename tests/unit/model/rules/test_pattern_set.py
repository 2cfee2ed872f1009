"""Sets of patterns say what comparing with each would say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.model.rules.pattern_set import PatternSet
from jetlake.protocol.subjects import is_subset, overlaps

TOKENS = st.sampled_from([b"a", b"b", b"*"])
PATTERNS = st.builds(
    lambda tokens, is_open: b".".join([*tokens, b">"] if is_open or not tokens else tokens),
    st.lists(TOKENS, max_size=4),
    st.booleans(),
)


@given(st.lists(PATTERNS, max_size=6), PATTERNS)
def test_the_set_says_what_each_would(patterns: list[bytes], asked: bytes) -> None:
    patterns_set = PatternSet(patterns)
    assert patterns_set.overlaps(asked) == any(overlaps(asked, pattern) for pattern in patterns)
    assert patterns_set.covers(asked) == any(is_subset(asked, pattern) for pattern in patterns)


@given(st.lists(PATTERNS, max_size=6), st.lists(PATTERNS, max_size=6), PATTERNS)
def test_what_was_taken_out_is_gone(kept: list[bytes], taken: list[bytes], asked: bytes) -> None:
    patterns_set = PatternSet(kept + taken)
    for pattern in taken:
        patterns_set.remove(pattern)
    assert patterns_set.overlaps(asked) == PatternSet(kept).overlaps(asked)
    assert patterns_set.covers(asked) == PatternSet(kept).covers(asked)
    for pattern in kept:
        patterns_set.remove(pattern)
    assert not patterns_set.overlaps(b">")


@pytest.mark.parametrize("token", [b"a", b"*"])
def test_a_pattern_of_very_many_tokens(token: bytes) -> None:
    long = b".".join([token] * 100_000)
    patterns = PatternSet([long])
    assert patterns.overlaps(long)
    assert patterns.covers(long)
    assert not patterns.overlaps(long + b".b")
