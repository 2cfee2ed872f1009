"""How an archive is cut into folders: by date, by hour, by the first tokens of the subject."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.utc import utc_date, utc_hour

__all__ = ["Partitioning", "folder_text", "parse_partitioning"]

_PART = re.compile(r"date|hour|subject(?::([1-9][0-9]?))?")
_FOLDER_MAX = 64
_FOLDER_KEPT = 46
_FORMS = "date, hour, subject:K (the first K tokens of the subject), separated by commas, or none"


@dataclass(frozen=True)
class Partitioning:
    """The columns that become folders, in their order.

    Attributes:
        subject_tokens: how many tokens of the subject make column `subject_root`; never all of them by default, for
            every value becomes a folder.
    """

    columns: tuple[str, ...] = ("date", "subject_root")
    subject_tokens: int = 1

    def __str__(self) -> str:
        words = [f"subject:{self.subject_tokens}" if name == "subject_root" else name for name in self.columns]
        return ",".join(words) or "none"

    def added_to(self, frame: DataFrame) -> DataFrame:
        """Return the messages with these columns."""
        for name in self.columns:
            frame = frame.withColumn(name, sql.expr(self.expression(name)))
        return frame

    def expression(self, column: str) -> str:
        """Return the column in SQL."""
        return {
            "date": utc_date("timestamp"),
            "hour": utc_hour("timestamp"),
            "subject_root": folder_text(f"substring_index(subject, '.', {self.subject_tokens})"),
        }[column]


def folder_text(text: str) -> str:
    """Return a text in SQL as a folder's name that every file system takes in every locale.

    ASCII letters, digits and `.`, `_`, `-`, `$` stay. A text with anything else is written as in a URL, with `~` for
    `%`; one that is longer than 64 characters then ends with `~~` and a hash of all of it.
    """
    plain = f"if({text} rlike '^[A-Za-z0-9._$-]*$', {text}, replace(url_encode({text}), '%', '~'))"
    short = f"concat(substring({plain}, 1, {_FOLDER_KEPT}), '~~', substring(md5({text}), 1, 16))"
    return f"if(length({plain}) > {_FOLDER_MAX}, {short}, {plain})"


def parse_partitioning(text: str) -> Partitioning:
    """Read `date,subject:2`.

    Raises:
        ConfigError: it is written another way.
    """
    if text.strip() == "none":
        return Partitioning(())
    columns: list[str] = []
    tokens = 1
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{text!r} is no partitioning: {part.strip()!r} is unknown; write {_FORMS}")
        name = "subject_root" if part.strip().startswith("subject") else part.strip()
        if name in columns:
            raise ConfigError(f"{text!r} is no partitioning: it names {part.strip().partition(':')[0]} twice")
        columns.append(name)
        tokens = int(match[1]) if match[1] else tokens
    return Partitioning(tuple(columns), tokens)
