"""Weighted subject mappings of an account: messages that clients publish to one subject go to another, by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from jetlake.errors import ConfigError
from jetlake.protocol.subjects import is_valid_config, matches

if TYPE_CHECKING:
    from jetlake.model.transforms import Transform

    Shares = list[tuple[int, Transform | None]]

__all__ = ["MappingDestination", "MappingOptions", "WeightedMappings"]


class MappingDestination(Struct, frozen=True, kw_only=True):
    """Where a share of the messages goes."""

    subject: str
    """The new subject, with the functions of subject transforms."""
    weight: int = 100
    """The share in percent."""


class MappingOptions(Struct, frozen=True, kw_only=True):
    """The mapping of one subject or pattern."""

    source: str
    """The subject or pattern that messages are published to."""
    destinations: tuple[MappingDestination, ...]
    """The rest of 100 percent keeps its subject; it is dropped when the source is among the destinations."""


class WeightedMappings:
    """The mappings of one account.

    Args:
        draw: gives a number below its argument.

    Raises:
        ConfigError: a source is not a valid subject, weights exceed 100 percent, or a destination does not fit.
    """

    def __init__(self, mappings: Iterable[MappingOptions], draw: Callable[[int], int] = random.randrange) -> None:
        self._literals: dict[bytes, Shares] = {}
        self._patterns: list[tuple[bytes, Shares]] = []
        self._draw = draw
        for mapping in mappings:
            source = mapping.source.encode()
            shares = _shares(mapping, draw)
            if b"*" in source.split(b".") or source.endswith(b">"):
                self._patterns.append((source, shares))
            else:
                self._literals[source] = shares

    def apply(self, subject: bytes) -> bytes | None:
        """Return the subject that a message goes to, its own without a mapping; None = the message is dropped.

        The mapping of exactly this subject wins over mappings of patterns, of which the first counts.
        """
        shares = self._literals.get(subject)
        if shares is None:
            shares = next((shares for pattern, shares in self._patterns if matches(pattern, subject)), None)
            if shares is None:
                return subject
        number = self._draw(100)
        for below, transform in shares:
            if number < below:
                return transform.apply(subject) if transform is not None else subject
        return None


def _shares(mapping: MappingOptions, draw: Callable[[int], int]) -> Shares:
    """Return the destinations, each with the number that a draw must stay below; None keeps the subject."""
    from jetlake.model.transforms import compile_transform  # Most servers map nothing, and start without it.

    if not is_valid_config(mapping.source.encode()):
        raise ConfigError(f'Subject "{mapping.source}" is not a valid subject')
    shares: Shares = []
    seen: set[str] = set()
    total = 0
    for destination in mapping.destinations:
        if destination.subject in seen:
            raise _refused(mapping, f'duplicate entry for "{destination.subject}"')
        seen.add(destination.subject)
        total += destination.weight
        if total > 100:
            raise _refused(mapping, "total weight needs to be <= 100")
        if destination.subject == mapping.source:
            shares.append((total, None))
            continue
        try:
            shares.append((total, compile_transform(mapping.source, destination.subject, draw)))
        except ConfigError as error:
            raise _refused(mapping, str(error)) from None
    if total == 0 or mapping.source not in seen:
        shares.append((100, None))
    return shares


def _refused(mapping: MappingOptions, why: str) -> ConfigError:
    return ConfigError(f'Error adding mapping for "{mapping.source}": {why}')
