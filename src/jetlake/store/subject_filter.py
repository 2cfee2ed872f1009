"""Which subjects a reader wants: one or several patterns as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.model.steps import Steps
from jetlake.protocol.pattern_set import PatternMatcher, PatternSet
from jetlake.protocol.subjects import compile_matcher, compile_search, has_wildcards

__all__ = ["SubjectFilter"]

# An expression of more tokens takes long to compile.
_TOKENS_MAX = 64


class SubjectFilter:
    """A set of patterns; a subject passes when one of them covers it.

    Stores and consumers pass None where every subject is wanted; `SubjectFilter.of` makes that choice.

    Attributes:
        patterns: the patterns as they were given, without repetition.
        literal: the subject itself when exactly one subject can pass, else None.
        literals: the patterns when none of them has wildcards, else None.
    """

    __slots__ = ("_hash", "_matches", "literal", "literals", "patterns")

    patterns: tuple[bytes, ...]
    literal: bytes | None
    literals: frozenset[bytes] | None

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        if not self.patterns:
            raise ValueError("a subject filter needs at least one pattern")
        # A look at all of very many patterns has to be quick.
        suspects = [pattern for pattern in self.patterns if b"*" in pattern or b">" in pattern]
        only_literals = not any(map(has_wildcards, suspects))
        self.literals = frozenset(self.patterns) if only_literals else None
        self.literal = self.patterns[0] if only_literals and len(self.patterns) == 1 else None
        self._hash = hash(self.patterns)
        self._matches: Callable[[bytes], bool] | None = None
        if self._is_simple():
            self._matches = compile_matcher(self.patterns[0])
        elif self.literals is not None:
            self._matches = self.literals.__contains__

    def _is_simple(self) -> bool:
        """Return whether one expression is quicker than a tree."""
        return len(self.patterns) == 1 and self.patterns[0].count(b".") < _TOKENS_MAX

    @classmethod
    def of(cls, patterns: Iterable[bytes]) -> SubjectFilter | None:
        """Return the filter for these patterns; None when every subject passes: without patterns, or with `>`."""
        given = tuple(patterns)
        return None if not given or b">" in given else cls(given)

    @property
    def matches(self) -> Callable[[bytes], bool]:
        """A function that tells whether a subject passes."""
        if self._matches is None:
            self._matches = PatternMatcher(PatternSet(self.patterns)).matches
        return self._matches

    @property
    def passes(self) -> Callable[[bytes], object]:
        """As `matches`, with any true value for True: quicker for very many subjects."""
        return compile_search(self.patterns[0]) if self._is_simple() and self.literals is None else self.matches

    def compile(self) -> Steps[None]:
        """Prepare `matches` in steps: there may be many patterns."""
        if self._matches is None:
            patterns = PatternSet()
            yield from patterns.add_in_steps(self.patterns)
            self._matches = PatternMatcher(patterns).matches

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SubjectFilter) and other.patterns == self.patterns)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"SubjectFilter({list(self.patterns)!r})"
