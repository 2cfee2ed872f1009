"""The masks of a list of patterns say what comparing each with all others would say."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol import pattern_overlaps
from jetlake.protocol.pattern_overlaps import PatternOverlaps
from jetlake.protocol.subjects import is_subset, overlaps
from tests.support.executed_lines import ExecutedLines

TOKENS = st.sampled_from([b"a", b"b", b"c", b"*"])
PATTERNS = st.builds(
    lambda tokens, is_open: b".".join([*tokens, b">"] if is_open or not tokens else tokens),
    st.lists(TOKENS, max_size=4),
    st.booleans(),
)


def prepared(patterns: list[bytes]) -> PatternOverlaps:
    found = PatternOverlaps(patterns)
    for _ in found.prepare():
        pass
    return found


@given(st.lists(PATTERNS, min_size=1, max_size=20))
@pytest.mark.parametrize("common_min", [0, 2, 16])
def test_the_masks_say_what_comparing_would(common_min: int, patterns: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_overlaps, "_COMMON_MIN", common_min)
        masks = prepared(patterns)
    for number, pattern in enumerate(patterns):
        others = [other for other in range(len(patterns)) if other != number]
        found = [other for other in others if overlaps(pattern, patterns[other])]
        assert masks.overlapping(number) == (found[0] if found else None)
        found = [other for other in others if is_subset(pattern, patterns[other])]
        assert masks.covering(number) == (found[0] if found else None)


@pytest.mark.parametrize("end", ["each its own", "shared by some"])
def test_entangled_patterns_cost_little_each(end: str) -> None:
    """Their wildcards are combined in every way, and only the last tokens tell them apart."""
    ways = [b".".join(tokens) for tokens in product((b"a", b"*"), repeat=10)]
    if end == "each its own":
        patterns = [b"%b.%d" % (way, number) for number, way in enumerate(ways)]
    else:
        patterns = [b"%b.%d.%d" % (way, number % 30, number // 30) for number, way in enumerate(ways)]
    lines = ExecutedLines()
    lines.during(lambda: prepared(patterns))
    masks = prepared(patterns)
    lines.during(lambda: [masks.overlapping(number) for number in range(len(patterns))])
    assert lines.total < 300 * len(patterns)
    assert not any(masks.overlapping(number) for number in range(len(patterns)))
