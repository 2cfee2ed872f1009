"""The streams that a read means: those that are named, and those whose names match a pattern by now."""

from __future__ import annotations

import re

from jetlake.errors import UnsupportedStreamError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.clock import Clock
from jetlake.spark.source.stream_watch import StreamWatch

__all__ = ["StreamNames"]


class StreamNames:
    """The names of a read's streams; patterns are looked up again from time to time."""

    def __init__(self, options: SourceOptions, watch: StreamWatch, clock: Clock) -> None:
        self._options = options
        self._watch = watch
        self._clock = clock
        self._patterns = [
            re.compile(".*".join(map(re.escape, name.split("*")))) for name in options.streams if "*" in name
        ]
        self._found: tuple[str, ...] = ()
        self._due_s = 0.0 if self._patterns else float("inf")

    def current(self) -> tuple[str, ...]:
        """Return all streams, those that are named first.

        Raises:
            UnsupportedStreamError: no stream matches, and none is named.
        """
        if self._clock.monotonic_s() >= self._due_s:
            self._found = tuple(filter(self.matches, self._watch.ask(lambda api: api.stream_names())))
            self._due_s = self._clock.monotonic_s() + self._options.discovery_interval_s
        named = [name for name in self._options.streams if "*" not in name]
        names = tuple(dict.fromkeys([*named, *self._found]))
        if not names:
            raise UnsupportedStreamError(
                f"no stream matches {', '.join(self._options.streams)} on "
                f"{', '.join(self._options.connection.servers)}: create one first, or check option stream"
            )
        return names

    def drop_deleted(self) -> bool:
        """Leave out streams of a pattern that are gone by now, before it is time to look for new ones.

        Returns whether there are any.
        """
        if not self._found:
            return False
        present = self._watch.ask(lambda api: api.stream_names())
        kept = tuple(name for name in self._found if name in present)
        is_changed = kept != self._found
        self._found = kept
        return is_changed

    def freeze(self) -> None:
        """Look for no more streams."""
        self._due_s = float("inf")

    def matches(self, stream: str) -> bool:
        """Return whether a pattern means that stream."""
        return any(pattern.fullmatch(stream) for pattern in self._patterns)

    def has(self, stream: str) -> bool:
        """Return whether the read means that stream."""
        return stream in self._options.streams or self.matches(stream)
