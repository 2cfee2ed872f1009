"""How commands speak: tables on a terminal, JSON on request, one line for what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

__all__ = [
    "age",
    "count",
    "duration",
    "plural",
    "print_facts",
    "print_json",
    "print_table",
    "size",
    "when",
    "yes_no",
]


def print_json(value: Any) -> None:
    """The value as indented JSON, Structs as they are on the wire."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Sequence[int] = ()
) -> None:
    """A table; columns whose places are in `numbers` are set to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # Into a pipe or a file a row stays on its line, however long it is.
    Console(width=None if sys.stdout.isatty() else 500).print(table)


def print_facts(title: str, groups: dict[str, Iterable[tuple[str, Any]]]) -> None:
    """Named groups of name and value, aligned at the colon; values that are empty are left out."""
    kept = {
        name: [(key, value) for key, value in facts if value not in (None, "", [], ())]
        for name, facts in groups.items()
    }
    width = max((len(key) for facts in kept.values() for key, _ in facts), default=0)
    lines = [title]
    for name, facts in kept.items():
        if facts:
            lines += ["", f"{name}:", ""]
            lines += [f"  {key:>{width}}: {value}" for key, value in facts]
    sys.stdout.write("\n".join(lines) + "\n")


def count(number: int) -> str:
    """A number with its thousands set apart; below zero means no limit."""
    return "unlimited" if number < 0 else f"{number:,}"


def plural(number: int, noun: str) -> str:
    """So many of them: `1 subject`, `2,000 subjects`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def size(number: int) -> str:
    """A number of bytes in the unit that fits; below zero means no limit."""
    if number < 0:
        return "unlimited"
    amount, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{number:,} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(nanoseconds: int) -> str:
    """A length of time as people write it."""
    from jetlake.model.durations import format_duration

    return "none" if nanoseconds <= 0 else format_duration(nanoseconds)


def when(time: str | None) -> str:
    """A time of the wire, `never` for its zero."""
    return "never" if not time or time.startswith("0001-") else time[:19].replace("T", " ")


def age(seconds: float) -> str:
    """How long ago, roughly."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.1f}{name}"
    return f"{seconds:.1f}s"
