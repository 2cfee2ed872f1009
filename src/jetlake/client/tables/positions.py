"""Where reading starts and ends, as people write it: earliest, latest, a sequence, a time, a time ago, the last few."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jetlake.client.tables.option_values import duration_s
from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.encoding.times import parse_time

Kind = Literal["earliest", "latest", "sequence", "time", "ago", "last"]


@dataclass(frozen=True)
class Position:
    """A position in a stream.

    Attributes:
        kind: what `value` counts.
        value: the sequence, nanoseconds since 1970, nanoseconds before now, or number of messages before the end.
    """

    kind: Kind
    value: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind in ("earliest", "latest") else f"{self.kind}:{self.value}"

    def time_ns(self, now_ns: int) -> int | None:
        """Return the position's point in time, or None for a position that is no time."""
        if self.kind == "time":
            return self.value
        if self.kind == "ago":
            return now_ns - self.value
        return None


EARLIEST = Position("earliest")
LATEST = Position("latest")
_FORMS = "earliest, latest, seq:N, time:2026-01-31T12:00:00Z, '-10 minutes' or last:N"


def parse_position(text: str) -> Position:
    """Read one position.

    Raises:
        ValueError: it is none; the text says which forms there are.
    """
    word, _, rest = text.strip().partition(":")
    word, rest = word.strip().lower(), rest.strip()
    if text.strip().startswith("-"):
        return Position("ago", round(duration_s(text.strip()[1:]) * NANOSECONDS_PER_SECOND))
    if word in ("earliest", "latest") and not rest:
        return EARLIEST if word == "earliest" else LATEST
    if word in ("seq", "sequence", "last") and rest.isascii() and rest.isdigit():
        if word != "last" and int(rest) < 1:
            raise ValueError("sequences count from 1")
        return Position("last" if word == "last" else "sequence", int(rest))
    if word == "time" and rest:
        try:
            return Position("time", parse_time(rest))
        except ConfigError as error:
            raise ValueError(str(error)) from None
    raise ValueError(f"it is not a position; write {_FORMS}")


@dataclass(frozen=True)
class Positions:
    """A position for every stream: one for all, or one by name with a default for the others."""

    default: Position
    by_stream: tuple[tuple[str, Position], ...] = ()

    def of(self, stream: str) -> Position:
        """Return the position of that stream."""
        return dict(self.by_stream).get(stream, self.default)

    def __str__(self) -> str:
        if not self.by_stream:
            return str(self.default)
        return json.dumps({name: str(position) for name, position in self.by_stream})


def parse_positions(default: Position) -> Callable[[str], Positions]:
    """Return a parser of one position for all streams, or of a JSON object with one for each, else `default`."""

    def parse(text: str) -> Positions:
        if not text.strip().startswith("{"):
            return Positions(parse_position(text))
        try:
            entries = json.loads(text)
        except ValueError as error:
            raise ValueError(f"it begins like a JSON object but is not one ({error})") from None
        return Positions(default, tuple((name, parse_position(str(value))) for name, value in entries.items()))

    return parse
