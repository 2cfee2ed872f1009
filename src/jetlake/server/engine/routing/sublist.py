"""The sublist: a trie of subject patterns that matches subjects to items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Sublist"]

Item = TypeVar("Item")


class _Node(Generic[Item]):
    """One level of the trie; dicts serve as sets that keep the order of insertion."""

    __slots__ = ("children", "items", "star", "tail")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[Item]] = {}
        self.star: _Node[Item] | None = None
        self.items: dict[Item, None] = {}  # patterns that end here
        self.tail: dict[Item, None] = {}  # patterns that continue with `>`

    def is_empty(self) -> bool:
        return not (self.children or self.star or self.items or self.tail)


class Sublist(Generic[Item]):
    """Items under subject patterns (`*` one token, a last `>` one or more).

    Patterns must have been checked before: no empty token, `>` only as the last.
    """

    def __init__(self) -> None:
        self._root: _Node[Item] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, pattern: bytes, item: Item) -> None:
        """Insert `item` under `pattern`; the same item twice under one pattern counts once."""
        node = self._root
        tokens = pattern.split(b".")
        tail = tokens[-1] == b">"
        for token in tokens[:-1] if tail else tokens:
            if token == b"*":
                if node.star is None:
                    node.star = _Node()
                node = node.star
            else:
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _Node()
                node = child
        items = node.tail if tail else node.items
        if item not in items:
            items[item] = None
            self._count += 1

    def remove(self, pattern: bytes, item: Item) -> bool:
        """Remove `item` from under `pattern`, and empty nodes with it; False when it is not there."""
        node = self._root
        path: list[tuple[_Node[Item], bytes]] = []
        tokens = pattern.split(b".")
        tail = tokens[-1] == b">"
        for token in tokens[:-1] if tail else tokens:
            child = node.star if token == b"*" else node.children.get(token)
            if child is None:
                return False
            path.append((node, token))
            node = child
        items = node.tail if tail else node.items
        if item not in items:
            return False
        del items[item]
        self._count -= 1
        for parent, token in reversed(path):
            if not node.is_empty():
                break
            if token == b"*":
                parent.star = None
            else:
                del parent.children[token]
            node = parent
        return True

    def items(self) -> list[Item]:
        """Return all items."""
        return _items_below([self._root])

    def at(self, pattern: bytes) -> list[Item]:
        """Return the items under this very pattern."""
        node = self._root
        tokens = pattern.split(b".")
        tail = tokens[-1] == b">"
        for token in tokens[:-1] if tail else tokens:
            child = node.star if token == b"*" else node.children.get(token)
            if child is None:
                return []
            node = child
        return list(node.tail if tail else node.items)

    def within(self, pattern: bytes) -> list[Item]:
        """Return the items under literal subjects that match the pattern; there must be no others."""
        tokens = pattern.split(b".")
        tail = tokens[-1] == b">"
        level = [self._root]
        for token in tokens[:-1] if tail else tokens:
            if token == b"*":
                level = [child for node in level for child in node.children.values()]
            else:
                level = [node.children[token] for node in level if token in node.children]
        if tail:
            return _items_below([child for node in level for child in node.children.values()])
        return [item for node in level for item in node.items]

    def match(self, subject: bytes) -> list[Item]:
        """Return all items whose pattern matches the subject; `*` and `>` in the subject are literal."""
        tokens = subject.split(b".")
        found: list[Item] = []
        if b"" in tokens:
            return found
        level = self._descend(tokens, found)
        for node in level:
            found.extend(node.items)
        return found

    def overlapping(self, pattern: bytes) -> Iterator[Item]:
        """Yield the items whose pattern matches a subject that this one matches too; perhaps one several times."""
        tokens = pattern.split(b".")
        to_visit = [(self._root, 0)]
        while to_visit:
            node, index = to_visit.pop()
            if index == len(tokens):
                yield from node.items
                continue
            yield from node.tail
            token = tokens[index]
            if token == b">":
                yield from _items_below([*node.children.values(), *([node.star] if node.star is not None else [])])
                continue
            if token == b"*":
                to_visit += [(child, index + 1) for child in node.children.values()]
            elif token in node.children:
                to_visit.append((node.children[token], index + 1))
            if node.star is not None:
                to_visit.append((node.star, index + 1))

    def match_family(self, prefix: bytes) -> tuple[list[Item], tuple[Mapping[bytes, object], ...]]:
        """Return the items that match `prefix.<any one token>`, and the tables of tokens for which more may match.

        The items are complete for every last token that is in none of the tables.
        """
        tokens = prefix.split(b".")
        found: list[Item] = []
        if b"" in tokens:
            return found, ()
        exceptions: list[Mapping[bytes, object]] = []
        for node in self._descend(tokens, found):
            found.extend(node.tail)
            if node.star is not None:
                found.extend(node.star.items)
            if node.children:
                exceptions.append(node.children)
        return found, tuple(exceptions)

    def has_below(self, prefix: bytes) -> bool:
        """Return whether an item's pattern could match a subject that begins with the prefix and a dot."""
        found: list[Item] = []
        return bool(self._descend(prefix.split(b"."), found) or found)

    def _descend(self, tokens: list[bytes], found: list[Item]) -> list[_Node[Item]]:
        """Return the nodes that all tokens lead to, and add the items of `>` patterns on the way to `found`."""
        level = [self._root]
        for token in tokens:
            following = []
            for node in level:
                if node.tail:
                    found.extend(node.tail)
                child = node.children.get(token)
                if child is not None:
                    following.append(child)
                if node.star is not None:
                    following.append(node.star)
            level = following
            if not level:
                break
        return level


def _items_below(nodes: list[_Node[Item]]) -> list[Item]:
    """Return all items of these nodes and those below them."""
    found: list[Item] = []
    while nodes:
        node = nodes.pop()
        found += [*node.items, *node.tail]
        nodes += [*node.children.values(), *([node.star] if node.star is not None else [])]
    return found
