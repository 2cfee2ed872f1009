"""Subject mappings between accounts work in both directions, on subjects and on patterns."""

import pytest

from jetlake.errors import ConfigError
from jetlake.model.subject_mapping import SubjectMapping


@pytest.mark.parametrize(
    ("remote", "local", "theirs", "ours"),
    [
        ("a.b", "", "a.b", "a.b"),
        ("a.b", "c", "a.b", "c"),
        ("a.*", "x.a.*", "a.1", "x.a.1"),
        ("a.*.*", "b.$2.$1", "a.1.2", "b.2.1"),
        ("a.*.*", "{{wildcard(2)}}.{{ Wildcard( 1 ) }}", "a.1.2", "2.1"),
        ("a.>", "x.y.>", "a.1.2", "x.y.1.2"),
        ("*.b.>", "from.$1.>", "1.b.2.3", "from.1.2.3"),
        (">", "all.>", "a.b", "all.a.b"),
    ],
)
def test_subjects(remote, local, theirs, ours):
    mapping = SubjectMapping(remote, local)
    assert mapping.to_local(theirs.encode()) == ours.encode()
    assert mapping.to_remote(ours.encode()) == theirs.encode()


@pytest.mark.parametrize(
    ("remote", "local", "pattern", "expected"),
    [
        ("a.*", "x.$1", "x.*", "a.*"),
        ("a.*", "x.$1", ">", "a.*"),
        ("a.*", "x.$1", "*.7", "a.7"),
        ("a.*.*", "x.$2.$1", "x.7.>", "a.*.7"),
        ("a.*.*", "x.$2.$1", "x.7.*", "a.*.7"),
        ("a.>", "x.>", "x.1.>", "a.1.>"),
        ("a.>", "x.>", "x.*.b", "a.*.b"),
        ("a.>", "x.>", "*.>", "a.>"),
        ("a.>", "x.>", "x", None),
        ("a.>", "x.>", "y.>", None),
        ("a.*", "x.$1", "x.1.2", None),
        ("a.*", "x.$1", "x", None),
        ("a", "", "b", None),
    ],
)
def test_patterns(remote, local, pattern, expected):
    found = SubjectMapping(remote, local).to_remote(pattern.encode())
    assert found == (None if expected is None else expected.encode())


@pytest.mark.parametrize(
    ("remote", "local"),
    [
        ("a.*", "b"),
        ("a.*", "b.$2"),
        ("a.*", "b.$1.$1"),
        ("a.*", "b.{{partition(3,1)}}"),
        ("a.>", "b"),
        ("a", "b.>"),
        ("a..b", ""),
        ("a", "b c"),
    ],
)
def test_mappings_that_make_no_sense(remote, local):
    with pytest.raises(ConfigError):
        SubjectMapping(remote, local)
