"""Validity, matching, subset and overlap of subjects, against a plain definition over small alphabets."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.protocol.subjects import (
    CONFIG_TOKENS_MAX,
    compile_matcher,
    has_wildcards,
    is_subset,
    is_valid_config,
    is_valid_publish,
    is_valid_subscribe,
    matches,
    overlaps,
    tokens,
)


def covers(pattern: list[bytes], subject: list[bytes]) -> bool:
    """The definition of a match, as short as it can be written."""
    if pattern == [b">"]:
        return len(subject) >= 1
    if not pattern or not subject:
        return pattern == subject
    return pattern[0] in (b"*", subject[0]) and covers(pattern[1:], subject[1:])


# One token more than any pattern has, and one letter that no pattern has: whatever tells two patterns apart is in here.
UNIVERSE = [list(parts) for length in range(1, 5) for parts in product((b"a", b"b", b"x"), repeat=length)]
PATTERNS = [
    b".".join([*parts, *rest])
    for length in range(4)
    for parts in product((b"a", b"b", b"*"), repeat=length)
    for rest in ([], [b">"])
    if parts or rest
]
PATTERNS = [pattern for pattern in PATTERNS if pattern.count(b".") <= 2]
COVERED = {
    pattern: frozenset(i for i, subject in enumerate(UNIVERSE) if covers(pattern.split(b"."), subject))
    for pattern in PATTERNS
}

LETTERS = st.sampled_from([b"a", b"b", b"ab", b"foo*", b"a>", b"*x", b"\xc3\xa9", b"-1", b"[a-z]", b"(", b"\\", b"$JS"])
LITERALS = st.lists(LETTERS, min_size=1, max_size=6).map(b".".join)
WILD = st.lists(LETTERS | st.just(b"*"), min_size=0, max_size=6)
WILD_PATTERNS = st.builds(lambda parts, rest: b".".join(parts + rest) or b">", WILD, st.sampled_from([[], [b">"]]))


def test_all_small_patterns_match_as_defined():
    for pattern in PATTERNS:
        matcher = compile_matcher(pattern)
        for index, parts in enumerate(UNIVERSE):
            subject = b".".join(parts)
            assert matches(pattern, subject) is (index in COVERED[pattern]), (pattern, subject)
            assert matcher(subject) is (index in COVERED[pattern]), (pattern, subject)


def test_subset_and_overlap_are_exact_on_all_pairs_of_small_patterns():
    for a, b in product(PATTERNS, repeat=2):
        assert is_subset(a, b) is (COVERED[a] <= COVERED[b]), (a, b)
        assert overlaps(a, b) is bool(COVERED[a] & COVERED[b]), (a, b)


@given(WILD_PATTERNS, LITERALS)
def test_any_pattern_matches_as_defined(pattern: bytes, subject: bytes):
    expected = covers(pattern.split(b"."), subject.split(b"."))
    assert matches(pattern, subject) is expected
    assert compile_matcher(pattern)(subject) is expected


@given(WILD_PATTERNS, WILD_PATTERNS, LITERALS)
def test_subset_and_overlap_agree_with_any_witness(a: bytes, b: bytes, subject: bytes):
    in_a, in_b = matches(a, subject), matches(b, subject)
    if is_subset(a, b):
        assert in_b or not in_a
    if in_a and in_b:
        assert overlaps(a, b)
    assert overlaps(a, b) is overlaps(b, a)
    assert is_subset(a, a)
    if is_subset(a, b):
        assert overlaps(a, b)


@given(LITERALS)
def test_a_subject_without_wildcards_is_its_own_only_match(subject: bytes):
    assert not has_wildcards(subject)
    assert is_valid_publish(subject)
    assert matches(subject, subject)
    assert is_subset(subject, subject)
    assert b".".join(tokens(subject)) == subject


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_get_an_answer(a: bytes, b: bytes):
    for check in (is_valid_publish, is_valid_subscribe, is_valid_config, has_wildcards):
        assert check(a) in (True, False)
    for relation in (matches, is_subset, overlaps):
        assert relation(a, b) in (True, False)
    assert compile_matcher(a)(b) is matches(a, b)
    if is_valid_config(a):
        assert is_valid_subscribe(a)
    if is_valid_publish(a):
        assert is_valid_subscribe(a)
        assert not has_wildcards(a)


@pytest.mark.parametrize("check", [is_valid_publish, is_valid_subscribe, is_valid_config])
@pytest.mark.parametrize(
    "subject",
    [b"", b".", b"a.", b".a", b"a..b", b"..", b"a b", b"a\tb", b"a.\r", b"a\nb", b"\f", b" a", b"a "],
)
def test_empty_tokens_and_blanks_are_never_valid(check, subject: bytes):
    assert not check(subject)


@pytest.mark.parametrize("check", [is_valid_publish, is_valid_subscribe, is_valid_config])
@pytest.mark.parametrize("subject", [b"a", b"a.b.c", b"foo*.bar", b"a>", b"*a.b", b"a.>b", b"$JS.API.INFO", b"a-b_c/d"])
def test_plain_subjects_are_always_valid(check, subject: bytes):
    assert check(subject)


@pytest.mark.parametrize("subject", [b"*", b">", b"a.*", b"a.>", b"*.b", b"*.*.>"])
def test_wildcards_are_for_subscriptions(subject: bytes):
    assert has_wildcards(subject)
    assert not is_valid_publish(subject)
    assert is_valid_subscribe(subject)
    assert is_valid_config(subject)


@pytest.mark.parametrize("token", [b"a", b"*"])
def test_a_configuration_takes_subjects_of_so_many_tokens(token: bytes):
    assert is_valid_config(b".".join([token] * CONFIG_TOKENS_MAX))
    assert not is_valid_config(b".".join([token] * (CONFIG_TOKENS_MAX + 1)))
    assert is_valid_subscribe(b".".join([token] * (CONFIG_TOKENS_MAX + 1)))


@pytest.mark.parametrize("subject", [b">.a", b"a.>.b", b"a.>.>"])
def test_the_rest_is_last_or_nowhere(subject: bytes):
    assert not is_valid_subscribe(subject)
    assert not is_valid_config(subject)
    assert not is_valid_publish(subject)


def test_configurations_want_text():
    assert is_valid_config("größe.*".encode())
    for subject in (b"a\0b", b"a.\xff", "a.\N{REPLACEMENT CHARACTER}".encode()):
        assert is_valid_subscribe(subject)
        assert not is_valid_config(subject)


def test_a_published_wildcard_is_an_ordinary_token():
    assert matches(b"$JS.API.CONSUMER.CREATE.*.>", b"$JS.API.CONSUMER.CREATE.S.dur.t.>")
    assert not matches(b"a.b", b"a.*")
    assert not matches(b"a.b", b"a.>")
