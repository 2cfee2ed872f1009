"""Which messages of an archive are replayed, as conditions in SQL."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from jetlake.errors import ConfigError
from jetlake.protocol.subjects import is_valid_config

__all__ = ["Selection", "subject_pattern"]


@dataclass(frozen=True)
class Selection:
    """Which messages of the archive: all, or those within all the limits that are given.

    Attributes:
        from_time, to_time: when they were stored, nanoseconds since 1970; the end is exclusive.
        from_sequence, to_sequence: both inclusive.
        subjects: patterns, of which one must match.
        stream: the stream that was archived, when a folder holds several.
    """

    from_time: int | None = None
    to_time: int | None = None
    from_sequence: int | None = None
    to_sequence: int | None = None
    subjects: tuple[str, ...] = ()
    stream: str = ""

    def __post_init__(self) -> None:
        for subject in self.subjects:
            if not is_valid_config(subject.encode()):
                raise ConfigError(f"{subject!r} is no valid subject or pattern")

    @property
    def has_times(self) -> bool:
        """Whether the messages' times decide."""
        return self.from_time is not None or self.to_time is not None

    def conditions(self) -> list[str]:
        """Return the limits in SQL."""
        found = []
        if self.stream:
            found.append(f"stream = {_text(self.stream)}")
        if self.from_time is not None:
            found.append(f"timestamp >= {_timestamp(self.from_time)}")
        if self.to_time is not None:
            found.append(f"timestamp < {_timestamp(self.to_time)}")
        if self.from_sequence is not None:
            found.append(f"sequence >= {self.from_sequence}")
        if self.to_sequence is not None:
            found.append(f"sequence <= {self.to_sequence}")
        if self.subjects:
            found.append(f"subject rlike {_text('|'.join(subject_pattern(subject) for subject in self.subjects))}")
        return found

    def of(self, frame: DataFrame) -> DataFrame:
        """Return the messages that are meant."""
        for condition in self.conditions():
            frame = frame.where(condition)
        return frame


def _text(value: str) -> str:
    return "r'" + value.replace("'", "\\x27") + "'"


def _timestamp(time_ns: int) -> str:
    return f"timestamp_micros({time_ns // 1000})"


def subject_pattern(subject: str) -> str:
    """Return a subject pattern as a regular expression of Java: `*` is one token, `>` the rest."""
    special = "\\^$.|?*+()[]{}-"
    pieces = []
    for token in subject.split("."):
        if token == "*":
            pieces.append("[^.]+")
        elif token == ">":
            pieces.append(".+")
        else:
            pieces.append("".join(f"\\{letter}" if letter in special else letter for letter in token))
    return "^" + "\\.".join(pieces) + "$"
