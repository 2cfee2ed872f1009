"""Which subjects a reader wants: one or several patterns as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.protocol.subjects import compile_matcher, has_wildcards

__all__ = ["SubjectFilter"]


class SubjectFilter:
    """A set of patterns; a subject passes when one of them covers it.

    Stores and consumers pass None where every subject is wanted; `SubjectFilter.of` makes that choice.

    Attributes:
        patterns: the patterns as they were given, without repetition.
        literal: the subject itself when exactly one subject can pass, else None.
        literals: the patterns when none of them has wildcards, else None.
        matches: says whether a subject passes.
    """

    __slots__ = ("literal", "literals", "matches", "patterns")

    patterns: tuple[bytes, ...]
    literal: bytes | None
    literals: frozenset[bytes] | None
    matches: Callable[[bytes], bool]

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        if not self.patterns:
            raise ValueError("a subject filter needs at least one pattern")
        only_literals = not any(map(has_wildcards, self.patterns))
        self.literals = frozenset(self.patterns) if only_literals else None
        self.literal = self.patterns[0] if only_literals and len(self.patterns) == 1 else None
        self.matches = _matcher(self.patterns, self.literals)

    @classmethod
    def of(cls, patterns: Iterable[bytes]) -> SubjectFilter | None:
        """Return the filter for these patterns; None when every subject passes: without patterns, or with `>`."""
        given = tuple(patterns)
        return None if not given or b">" in given else cls(given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubjectFilter) and other.patterns == self.patterns

    def __hash__(self) -> int:
        return hash(self.patterns)

    def __repr__(self) -> str:
        return f"SubjectFilter({list(self.patterns)!r})"


def _matcher(patterns: tuple[bytes, ...], literals: frozenset[bytes] | None) -> Callable[[bytes], bool]:
    if len(patterns) == 1:
        return compile_matcher(patterns[0])
    if literals is not None:
        return literals.__contains__
    matchers = [compile_matcher(pattern) for pattern in patterns]
    return lambda subject: any(matcher(subject) for matcher in matchers)
