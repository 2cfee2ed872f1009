"""How the patterns of one list relate: which of them overlap, and which cover another."""

from __future__ import annotations

from collections.abc import Callable, Generator

from jetlake.protocol.subjects import is_subset, overlaps

__all__ = ["PatternOverlaps"]

_ANY = b"*"
_REST = b">"

# Patterns that are read, and masks that are built, in one step.
_READ_AT_ONCE = 128
_BUILT_AT_ONCE = 16
# A token is common when it is that of more patterns than this, and than one of so many patterns.
_COMMON_MIN = 16
_COMMON_SHARE = 256


class PatternOverlaps:
    """Finds overlaps among the patterns of one list, however their wildcards are combined.

    A tree of tokens finds out late that patterns differ only in their last tokens, and follows all of them up to there.
    Here every pattern is a bit, and each position has a mask for each token: the patterns that take this token there.
    The masks of all its tokens have in common what overlaps with a pattern. That compares it with all others, but by
    the machine word; and where a token is that of a few patterns only, just these are compared.

    Args:
        patterns: of at most some hundred tokens each.

    Attributes:
        patterns: the same.
    """

    __slots__ = ("_bytes", "_closed", "_common", "_exact", "_opens", "_stars", "patterns")

    def __init__(self, patterns: list[bytes]) -> None:
        self.patterns = patterns
        self._bytes = len(patterns) // 8 + 1
        self._exact: list[dict[bytes, list[int]]] = []  # by position and token: the patterns that spell it out
        self._common: list[dict[bytes, int]] = []  # the masks of common tokens, with the patterns that take any token
        self._stars: list[int] = []  # by position: the patterns that take any token there
        self._closed: list[int] = []  # by length: the patterns that end there
        self._opens: list[int] = []  # by length: the open patterns that spell out so much, or less

    def prepare(self) -> Generator[None, None, None]:
        """Build the masks, in steps."""
        stars: list[list[int]] = []
        closed: list[list[int]] = [[]]
        opens: list[list[int]] = [[]]
        for number, pattern in enumerate(self.patterns):
            if number and not number % _READ_AT_ONCE:
                yield
            tokens = pattern.split(b".")
            ending = closed
            if tokens[-1] == _REST:
                ending = opens
                tokens.pop()
            for _ in range(len(tokens) - len(stars)):
                self._exact.append({})
                for lists in (stars, closed, opens):
                    lists.append([])
            ending[len(tokens)].append(number)
            for position, token in enumerate(tokens):
                if token == _ANY:
                    stars[position].append(number)
                else:
                    self._exact[position].setdefault(token, []).append(number)
        yield from self._build(stars, closed, opens)

    def _build(self, stars: list[list[int]], closed: list[list[int]], opens: list[list[int]]) -> Generator[None]:
        common_min = max(_COMMON_MIN, len(self.patterns) // _COMMON_SHARE)
        open_here = 0
        for length, numbers in enumerate(closed):
            yield
            self._closed.append(self._mask_of(numbers))
            open_here |= self._mask_of(opens[length])
            self._opens.append(open_here)
            if length == len(stars):
                break
            star = self._mask_of(stars[length]) | open_here
            self._stars.append(star)
            common = {token: found for token, found in self._exact[length].items() if len(found) > common_min}
            masks: dict[bytes, int] = {}
            for token, found in common.items():
                if not len(masks) % _BUILT_AT_ONCE:
                    yield
                masks[token] = self._mask_of(found) | star
            self._common.append(masks)

    def _mask_of(self, numbers: list[int]) -> int:
        if not numbers:
            return 0
        mask = bytearray(self._bytes)
        for number in numbers:
            mask[number >> 3] |= 1 << (number & 7)
        return int.from_bytes(mask, "little")

    def overlapping(self, number: int) -> int | None:
        """Return the number of the first other pattern that overlaps with this one; None if there is none."""
        return self._find(number, covers=False)

    def covering(self, number: int) -> int | None:
        """Return the number of the first other pattern that covers all of this one; None if there is none."""
        return self._find(number, covers=True)

    def _find(self, number: int, *, covers: bool) -> int | None:
        pattern = self.patterns[number]
        tokens = pattern.split(b".")
        is_open = tokens[-1] == _REST
        if is_open:
            tokens.pop()
        for position, token in enumerate(tokens):
            if token != _ANY and not self._stars[position] and token not in self._common[position]:
                few = self._exact[position][token]
                relates: Callable[[bytes, bytes], bool] = is_subset if covers else overlaps
                return next((one for one in few if one != number and relates(pattern, self.patterns[one])), None)
        own = 1 << number
        found = self._of_length(len(tokens), is_open=is_open, covers=covers)
        for position, token in enumerate(tokens):
            if token == _ANY:
                if covers:
                    found &= self._stars[position]
            elif (mask := self._common[position].get(token)) is not None:
                found &= mask
            else:
                found &= self._stars[position] | self._mask_of(self._exact[position][token])
            if found == own:
                return None
        found &= ~own
        return (found & -found).bit_length() - 1 if found else None

    def _of_length(self, length: int, *, is_open: bool, covers: bool) -> int:
        """Return the patterns whose length alone allows that they overlap with, or cover, one of this length."""
        if not is_open:
            return self._closed[length] | self._opens[length - 1]
        if covers:
            return self._opens[length]
        longer = 0
        for mask in self._closed[length + 1 :]:
            longer |= mask
        return longer | self._opens[-1]
