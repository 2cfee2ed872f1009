"""Sets of subject patterns as one structure: questions about a subject or pattern do not compare it with each.

Requests and configurations may list tens of thousands of patterns. Comparing each with all others, or with all subjects
of a stream, would hold up the server for seconds.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

__all__ = ["PatternMatcher", "PatternSet"]

# A node of the tree: the nodes of the next tokens, and under no token how many patterns end here.
_Node = dict[bytes | None, "_Node | int"]

_ANY = b"*"
_REST = b">"
_WILDCARDS = (_ANY, _REST)

# The node of a token that no pattern has.
_NOWHERE: _Node = {}

# Tokens that one step adds.
_ADDED_AT_ONCE = 1024
# Nodes of the states that a matcher keeps; a full cache is emptied.
_STATES_MAX = 65_536
# So few nodes are asked one after the other; the tokens of more are merged.
_MERGED_MIN = 8


class PatternSet:
    """Patterns, kept as a tree of their tokens; the same pattern may be in it several times.

    Attributes:
        changes: how often a pattern was added or removed.
    """

    def __init__(self, patterns: Iterable[bytes] = ()) -> None:
        self.root: _Node = {}
        self.changes = 0
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: bytes) -> None:
        """Add a pattern."""
        self.changes += 1
        node: _Node = self.root
        for token in pattern.split(b"."):
            following = node.get(token)
            if following is None:
                following = node[token] = {}
            node = following  # type: ignore[assignment]
        node[None] = node.get(None, 0) + 1  # type: ignore[operator]

    def add_in_steps(self, patterns: Iterable[bytes]) -> Generator[None, None, None]:
        """Add patterns, a bounded number of tokens at a time."""
        tokens = 0
        for pattern in patterns:
            self.add(pattern)
            tokens += 1 + pattern.count(b".")
            if tokens > _ADDED_AT_ONCE:
                tokens = 0
                yield

    def remove(self, pattern: bytes) -> None:
        """Remove a pattern that was added."""
        self.changes += 1
        node: _Node = self.root
        path = []
        for token in pattern.split(b"."):
            path.append((node, token))
            node = _child(node, token)
        count = node[None]
        assert isinstance(count, int)
        if count > 1:
            node[None] = count - 1
            return
        del node[None]
        for parent, token in reversed(path):
            if parent[token]:
                break
            del parent[token]


class _State:
    """Several nodes that the tokens of a subject or pattern lead to.

    Attributes:
        nodes: the nodes of the tree.
        ends: how many patterns end here.
        opens: how many patterns end with `>` behind this node.
        merged: the children of all nodes by token, once many were asked for one.
        known: where each token leads that was asked for and that a pattern names; under `*`, where all others lead.
        every: where all tokens together lead, once that was asked for.
        size: how many patterns continue behind the nodes, once that was asked for.
    """

    __slots__ = ("ends", "every", "known", "merged", "nodes", "opens", "size")

    def __init__(self, nodes: list[_Node]) -> None:
        self.nodes = nodes
        # Under None there is a number, under tokens there are nodes; a state may have as many nodes as the set.
        self.ends = sum(node.get(None, 0) for node in nodes)  # type: ignore[misc]
        self.opens = sum(_child(node, _REST).get(None, 0) for node in nodes if _REST in node)  # type: ignore[misc]
        self.known: dict[bytes, _State | _Node] = {}
        self.every: _State | _Node = {}
        self.merged: dict[bytes, list[_Node]] = {}
        self.size = -1

    def children(self, token: bytes) -> list[_Node]:
        """Return the nodes of this very token."""
        if len(self.nodes) <= _MERGED_MIN:
            return [_child(node, token) for node in self.nodes if token in node]
        if not self.merged:
            self.merged = _merge(self.nodes)
        return self.merged.get(token, [])


def _child(node: _Node, token: bytes) -> _Node:
    return node[token]  # type: ignore[return-value] # only under None there is a number


def _next_of(node: _Node) -> list[_Node]:
    """Return where the tokens lead that stand for one: all but `>`."""
    return [child for token, child in node.items() if isinstance(child, dict) and token != _REST]


def _merge(nodes: list[_Node]) -> dict[bytes, list[_Node]]:
    merged: dict[bytes, list[_Node]] = {}
    for node in nodes:
        for token, child in node.items():
            if token is not None:
                merged.setdefault(token, []).append(child)  # type: ignore[arg-type]
    return merged


def _ends(at: _State | _Node) -> int:
    """Return how many patterns end here."""
    return at.get(None, 0) if isinstance(at, dict) else at.ends  # type: ignore[return-value]


def _opens(at: _State | _Node) -> int:
    """Return how many patterns end with `>` behind this node."""
    if isinstance(at, dict):
        return _ends(_child(at, _REST)) if _REST in at else 0
    return at.opens


def _size_below(nodes: list[_Node]) -> int:
    """Return how many patterns continue behind these nodes."""
    size = 0
    to_visit = nodes[:]
    while to_visit:
        for child in to_visit.pop().values():
            if isinstance(child, dict):
                size += child.get(None, 0)  # type: ignore[operator] # under None there is a number
                if len(child) > 1 or None not in child:
                    to_visit.append(child)
    return size


def _has_below(at: _State | _Node) -> bool:
    """Return whether patterns continue behind this node."""
    nodes = [at] if isinstance(at, dict) else at.nodes
    return any(len(node) > (None in node) for node in nodes)


class PatternMatcher:
    """The answers of a set of patterns, which must not change meanwhile.

    It is the deterministic automaton of the tree: where wildcards lead to several nodes, these are one state, which is
    created when a question leads to it. A question costs a look-up for each token, however many patterns there are and
    however their wildcards are combined.
    """

    __slots__ = ("_joined", "_root", "_size", "_sizes_below")

    def __init__(self, patterns: PatternSet) -> None:
        self._root = patterns.root
        # Where a token leads from one node, and where all its tokens lead (None); the tree keeps the nodes' ids.
        self._joined: dict[tuple[int, bytes | None], _State | _Node] = {}
        self._size = 0
        # How many patterns continue behind a node, by its id.
        self._sizes_below: dict[int, int] = {}

    def matches(self, subject: bytes) -> bool:
        """Return whether a pattern of the set covers the subject, of which `*` and `>` are ordinary tokens."""
        at: _State | _Node = self._root
        for token in subject.split(b"."):
            if _opens(at):
                return True
            at = self._behind(at, token)
            if not at:
                return False
        return _ends(at) > 0

    def overlaps(self, pattern: bytes) -> bool:
        """Return whether some subject is covered by this pattern and by one of the set."""
        at: _State | _Node = self._root
        for token in pattern.split(b"."):
            if token == _REST:
                return _has_below(at)
            if _opens(at):
                return True
            at = self._behind_every(at) if token == _ANY else self._behind(at, token)
            if not at:
                return False
        return _ends(at) > 0

    def count_overlapping(self, pattern: bytes) -> int:
        """Return how many patterns of the set overlap with this one."""
        count = 0
        at: _State | _Node = self._root
        for token in pattern.split(b"."):
            if token == _REST:
                return count + self._patterns_below(at)
            count += _opens(at)
            at = self._behind_every(at) if token == _ANY else self._behind(at, token)
            if not at:
                return count
        return count + _ends(at)

    def _patterns_below(self, at: _State | _Node) -> int:
        """Return how many patterns continue behind a node or state.

        Counted once for each: thousands of patterns ask about the same node when a stream's subjects are replaced.
        """
        if isinstance(at, _State):
            if at.size < 0:
                at.size = _size_below(at.nodes)
            return at.size
        size = self._sizes_below.get(id(at))
        if size is None:
            size = self._sizes_below[id(at)] = _size_below([at])
        return size

    def _behind(self, at: _State | _Node, token: bytes) -> _State | _Node:
        """Return where a token leads; no pattern names a wildcard."""
        if isinstance(at, _State):
            if token in at.known:
                return at.known[token]
            named = [] if token in _WILDCARDS else at.children(token)
            # All tokens that no pattern names lead to the same.
            key = token if named else _ANY
            if key not in at.known:
                at.known[key] = self._created(named + at.children(_ANY))
            return at.known[key]
        star = _child(at, _ANY) if _ANY in at else _NOWHERE
        if token not in at or token in _WILDCARDS:
            return star
        if not star:
            return _child(at, token)
        joined = self._joined.get((id(at), token))
        if joined is None:
            joined = self._joined[id(at), token] = self._created([_child(at, token), star])
        return joined

    def _behind_every(self, at: _State | _Node) -> _State | _Node:
        """Return where all tokens together lead."""
        if isinstance(at, _State):
            if not at.every:
                at.every = self._created([child for node in at.nodes for child in _next_of(node)])
            return at.every
        every = self._joined.get((id(at), None))
        if every is None:
            every = self._joined[id(at), None] = self._created(_next_of(at))
        return every

    def _created(self, nodes: list[_Node]) -> _State | _Node:
        if len(nodes) < 2:
            return nodes[0] if nodes else _NOWHERE
        if self._size >= _STATES_MAX:
            self._size = 0
            self._joined = {}
        created = _State(nodes)
        self._size += len(nodes)
        return created
