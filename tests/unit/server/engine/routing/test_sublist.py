"""The trie finds exactly the patterns that match, as the plain predicate does."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.protocol.subjects import matches
from jetlake.server.engine.routing.sublist import Sublist

TOKENS = st.sampled_from([b"a", b"b", b"foo*", b">x"])
LITERALS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
PATTERNS = st.tuples(
    st.lists(st.one_of(TOKENS, st.just(b"*")), min_size=0, max_size=4), st.sampled_from([b"a", b"*", b">"])
).map(lambda parts: b".".join([*parts[0], parts[1]]))


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=20), LITERALS)
def test_the_trie_agrees_with_the_predicate(patterns, subject):
    sublist = Sublist()
    for number, pattern in enumerate(patterns):
        sublist.insert(pattern, number)
    expected = [number for number, pattern in enumerate(patterns) if matches(pattern, subject)]
    assert sorted(sublist.match(subject)) == expected


@settings(deadline=None)
@given(st.lists(LITERALS, max_size=20), PATTERNS)
def test_subjects_are_found_by_a_pattern(subjects, pattern):
    sublist = Sublist()
    for number, subject in enumerate(subjects):
        sublist.insert(subject, number)
    expected = [number for number, subject in enumerate(subjects) if matches(pattern, subject)]
    assert sorted(sublist.within(pattern)) == expected


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=20), st.lists(TOKENS, min_size=1, max_size=3).map(b".".join), TOKENS)
def test_a_family_holds_for_every_last_token_outside_its_exceptions(patterns, prefix, token):
    sublist = Sublist()
    for number, pattern in enumerate(patterns):
        sublist.insert(pattern, number)
    found, exceptions = sublist.match_family(prefix)
    if not any(token in table for table in exceptions):
        assert sorted(found) == sorted(sublist.match(prefix + b"." + token))


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=20), st.randoms(use_true_random=False))
def test_removing_everything_leaves_nothing(patterns, random):
    sublist = Sublist()
    for number, pattern in enumerate(patterns):
        sublist.insert(pattern, number)
    assert len(sublist) == len(patterns)
    entries = list(enumerate(patterns))
    random.shuffle(entries)
    for number, pattern in entries:
        assert sublist.remove(pattern, number)
        assert not sublist.remove(pattern, number)
    assert len(sublist) == 0
    assert sublist._root.is_empty()


def test_wildcards_in_a_published_subject_are_plain_tokens():
    sublist = Sublist()
    for pattern in (b"a.*", b"a.>", b"a.b", b"*.b"):
        sublist.insert(pattern, pattern)
    assert sublist.match(b"a.>") == [b"a.>", b"a.*"]
    assert sublist.match(b"a.*") == [b"a.>", b"a.*"]
    assert sublist.match(b"*.b") == [b"*.b"]


def test_empty_tokens_match_nothing():
    sublist = Sublist()
    sublist.insert(b">", 1)
    sublist.insert(b"a.*", 2)
    for subject in (b"", b"a.", b".a", b"a..b"):
        assert sublist.match(subject) == []
    assert sublist.match_family(b"a.") == ([], ())
