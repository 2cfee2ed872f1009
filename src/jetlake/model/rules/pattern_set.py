"""A set of subject patterns that knows whether another one meets any of them, without comparing it with each.

Configurations may list thousands of subjects; comparing all pairs would hold up the server for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PatternSet"]

# A node of the tree: the nodes of the next tokens, and under no token how many patterns end here.
_Node = dict[bytes | None, "_Node | int"]

_ANY = b"*"
_REST = b">"


class PatternSet:
    """Patterns, kept as a tree of their tokens; the same pattern may be in it several times."""

    def __init__(self, patterns: Iterable[bytes] = ()) -> None:
        self._root: _Node = {}
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: bytes) -> None:
        """Put a pattern in."""
        self._count(pattern, 1)

    def remove(self, pattern: bytes) -> None:
        """Take out a pattern that was put in."""
        self._count(pattern, -1)

    def overlaps(self, pattern: bytes) -> bool:
        """Return whether some subject is covered by the pattern and by one of the set."""
        return _overlaps(self._root, pattern.split(b"."))

    def covers(self, pattern: bytes) -> bool:
        """Return whether one of the set covers every subject that the pattern covers."""
        return _covers(self._root, pattern.split(b"."))

    def _count(self, pattern: bytes, change: int) -> None:
        node: _Node = self._root
        path = []
        for token in pattern.split(b"."):
            path.append((node, token))
            node = node.setdefault(token, {})  # type: ignore[assignment]
        count = node.get(None, 0)
        assert isinstance(count, int)
        if count + change:
            node[None] = count + change
            return
        node.pop(None, None)
        for parent, token in reversed(path):
            if parent[token]:
                break
            del parent[token]


def _overlaps(root: _Node, tokens: list[bytes]) -> bool:
    last = len(tokens)
    to_visit = [(root, 0)]  # a list instead of recursion: a pattern may have any number of tokens
    while to_visit:
        node, index = to_visit.pop()
        if index == last:
            if None in node:
                return True
            continue
        token = tokens[index]
        if _REST in node:
            return True
        if token == _REST:
            if any(key is not None for key in node):
                return True
        elif token == _ANY:
            to_visit += [(child, index + 1) for child in node.values() if isinstance(child, dict)]
        else:
            to_visit += [(child, index + 1) for child in (node.get(token), node.get(_ANY)) if isinstance(child, dict)]
    return False


def _covers(root: _Node, tokens: list[bytes]) -> bool:
    last = len(tokens)
    to_visit = [(root, 0)]
    while to_visit:
        node, index = to_visit.pop()
        if index == last:
            if None in node:
                return True
            continue
        if _REST in node:
            return True
        token = tokens[index]
        if token != _REST:
            to_visit += [(child, index + 1) for key in {token, _ANY} if isinstance(child := node.get(key), dict)]
    return False
