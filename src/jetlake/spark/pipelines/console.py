"""Rows on the console."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.types import TimestampType

from jetlake.spark.pipelines.utc import utc_text

__all__ = ["collect_shown", "print_rows", "text_table"]


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under their columns' names, numbers set to the right."""
    cells = [[_text(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[place]) for row in cells)) if cells else len(name)
        for place, name in enumerate(columns)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[place], (int, float)) for row in rows) for place in range(len(columns))
    ]

    def line(values: Sequence[str]) -> str:
        padded = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *(line(row) for row in cells)]) + "\n"


def collect_shown(frame: DataFrame) -> list[Row]:
    """Rows to show: times are texts in UTC, not in the zone of this process."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    return frame.select(
        *(
            sql.expr(f"replace(substring({utc_text(f'`{name}`')}, 1, 19), 'T', ' ')").alias(name)
            if isinstance(kind, TimestampType)
            else sql.col(f"`{name}`")
            for name, kind in kinds.items()
        )
    ).collect()


def print_rows(rows: Sequence[Row]) -> None:
    """Print rows as a table; nothing when there are none."""
    if rows:
        sys.stdout.write(text_table(list(rows[0].asDict()), [tuple(row) for row in rows]))
        sys.stdout.flush()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return " ".join(str(value).splitlines())  # A line break would end the row.
