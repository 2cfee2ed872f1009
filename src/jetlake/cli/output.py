"""How commands speak: tables on a terminal, JSON on request, one line for what went wrong."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from jetlake.model.config_text import count_text as count
from jetlake.model.config_text import size_text as size
from jetlake.model.encoding.codec import encode_shown
from jetlake.model.stream import ClusterInfo, StreamInfo

__all__ = [
    "Bar",
    "age",
    "cluster_facts",
    "count",
    "duration",
    "last_contact",
    "metadata_facts",
    "optional_duration",
    "plural",
    "print_facts",
    "print_json",
    "print_leaders",
    "print_names",
    "print_table",
    "printable",
    "size",
    "tell",
    "true_false",
    "version",
    "warn_of_missing",
    "when",
    "words",
    "yes_no",
]


def print_json(value: Any) -> None:
    """Print the value as indented JSON, Structs as they are on the wire."""
    click.echo(msgspec.json.format(encode_shown(value), indent=2))  # In UTF-8, whatever the locale.


def tell(sentence: str, facts: dict[str, Any], as_json: bool) -> None:
    """Report the result: a sentence, or its facts as JSON."""
    print_json(facts) if as_json else sys.stdout.write(f"{sentence}\n")


def print_names(names: Sequence[str], as_json: bool) -> None:
    """Print one name a line, or a JSON list."""
    print_json(names) if as_json else sys.stdout.writelines(f"{printable(name)}\n" for name in names)


def printable(text: str) -> str:
    """Return a text on one line, control characters escaped: names and descriptions come from anybody."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


_LONG_TEXT = 16
"""Columns of text are folded down to this many characters on a narrow terminal."""
_MANY_ROWS = 1000
"""A table of more rows is written without fitting it to the terminal, for that would take its time."""


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Sequence[int] = (),
    spare: Sequence[int] = (),
) -> None:
    """Print a table on a terminal; into a pipe or a file one line a row, however long it is.

    Args:
        numbers: places of the columns that are set to the right.
        spare: places of the columns that a narrow terminal does without, the first to go first. Where that is not
            enough, each row becomes a block of lines.
    """
    from rich.console import Console

    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty() or len(cells) > _MANY_ROWS:
        sys.stdout.writelines(_plain_lines(title, columns, cells, numbers))
        return
    room = shutil.get_terminal_size()  # Of a terminal that says it is dumb, too.
    console = Console(width=room.columns, height=room.lines)
    places = _fitting(columns, cells, numbers, spare, console.width)
    if not places:
        sys.stdout.write("\n".join([title, *(_block(columns, row) for row in cells), ""]))
        return
    console.print(_table(title, columns, cells, places, numbers))
    left_out = [name for place, name in enumerate(columns) if place not in places]
    if left_out:
        console.print(f"Hidden columns: {', '.join(left_out)}", style="dim", highlight=False)


def _plain_lines(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[int]
) -> Iterator[str]:
    """Yield the table as text alone, which is quick for any number of rows."""
    widths = _widths(columns, cells)

    def line(row: Sequence[str]) -> str:
        padded = (
            " " * (width - _width(cell)) + cell if place in numbers else cell + " " * (width - _width(cell))
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return (" " + "  ".join(padded)).rstrip() + "\n"

    yield f"{title}\n\n"
    yield line(columns)
    yield " " + _rule() * (sum(widths) + 2 * (len(widths) - 1)) + "\n"
    yield from map(line, cells)
    yield "\n"


def _rule() -> str:
    """Return what the line below a table's head is made of, where the output's encoding has it."""
    try:
        "─".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "-"
    return "─"


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, (name, *(row[place] for row in cells)))) for place, name in enumerate(columns)]


def _width(text: str) -> int:
    """Count the columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fitting(
    columns: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[int], spare: Sequence[int], width: int
) -> list[int]:
    """Choose the columns that fit; none when not even the required ones do."""
    least = [need if place in numbers else min(need, _LONG_TEXT) for place, need in enumerate(_widths(columns, cells))]
    for gone in range(len(spare) + 1):
        places = [place for place in range(len(columns)) if place not in spare[:gone]]
        if sum(least[place] + 2 for place in places) + 1 <= width:
            return places
    return []


def _table(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], places: Sequence[int], numbers: Sequence[int]
) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place in places:
        right = place in numbers
        table.add_column(columns[place], justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in cells:
        table.add_row(*(Text(row[place]) for place in places))
    return table


def _block(columns: Sequence[str], row: Sequence[str]) -> str:
    """Write one row of a table for a narrow terminal: its first cell, and the others below it with their names."""
    width = max(map(len, columns[1:]))
    return "\n".join(
        ["", row[0], *(f"  {name:<{width}}  {cell}" for name, cell in zip(columns[1:], row[1:], strict=True))]
    )


def print_facts(title: str, groups: dict[str, Iterable[tuple[str, Any]]]) -> None:
    """Named groups of name and value, aligned at the colon; values that are empty are left out."""
    kept = {
        name: [(printable(key), value) for key, value in facts if value not in (None, "", [], ())]
        for name, facts in groups.items()
    }
    width = max((len(key) for facts in kept.values() for key, _ in facts), default=0)
    lines = [printable(title)]
    for name, facts in kept.items():
        if facts:
            lines += ["", f"{name}:", ""] if name else [""]
            lines += [f"  {key:>{width}}: {printable(str(value))}" for key, value in facts]
    sys.stdout.write("\n".join(lines) + "\n")


def print_leaders(what: str, leaders: list[str]) -> None:
    """Print how many each server leads; nothing outside of clusters."""
    counted = Counter(leader for leader in leaders if leader)
    if not counted:
        click.echo("No leaders: this server is not part of a cluster")
        return
    rows = [[server, count(number)] for server, number in counted.most_common()]
    print_table(f"Leaders of {what}", ["Server", what.capitalize()], rows, numbers=[1])


def cluster_facts(cluster: ClusterInfo | None) -> list[tuple[str, str]]:
    """List the leader of a stream or consumer in a cluster, and how far each replica is; nothing elsewhere."""
    if cluster is None or not cluster.name:
        return []
    facts = [("Name", cluster.name), ("Leader", cluster.leader or "none (election in progress)")]
    for replica in cluster.replicas:
        state = "offline" if replica.offline else "current" if replica.current else "not current"
        lag = f", {plural(replica.lag, 'operation')} behind" if replica.lag else ""
        facts.append((f"Replica {replica.name}", f"{state}{lag}, {last_contact(replica.active)}"))
    return facts


def plural(number: int, noun: str) -> str:
    """Write a number with its noun: `1 subject`, `2,000 subjects`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def quoted(text: str) -> str:
    """Write a text in double quotes, as JSON, configurations and GraphViz have it."""
    import msgspec

    return msgspec.json.encode(text).decode()


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def true_false(value: bool) -> str:
    return "true" if value else "false"


def words(value: str) -> str:
    """Write a configuration's word as a title: `by_start_time` becomes `By Start Time`."""
    return value.replace("_", " ").title()


def metadata_facts(metadata: dict[str, str]) -> list[tuple[str, str]]:
    """List the metadata that users gave, without the server's own."""
    return [(key, value) for key, value in sorted(metadata.items()) if not key.startswith("_nats.")]


def optional_duration(nanoseconds: int) -> str | None:
    """Write a length of time, None for zero."""
    return duration(nanoseconds) if nanoseconds > 0 else None


def duration(nanoseconds: int) -> str:
    """Write a length of time as people do."""
    from jetlake.model.encoding.durations import format_duration

    return "none" if nanoseconds <= 0 else format_duration(nanoseconds)


def when(time: str | None) -> str:
    """Write a time of the wire, `never` for its zero."""
    return "never" if not time or time.startswith("0001-") else time[:19].replace("T", " ")


def version(compatible: str, own: str) -> str:
    """Write a server's version: nats-server's, or our own beside the nats-server that it is compatible with."""
    return f"jetlake {own} (compatible with nats-server {compatible})" if own else compatible


def age(seconds: float) -> str:
    """Write an age roughly, in its largest unit."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.1f}{name}"
    return f"{seconds:.1f}s"


def last_contact(nanoseconds: int) -> str:
    """Write how long ago a replica or origin was last seen; below zero is never."""
    return f"last contact {age(nanoseconds / 1e9)} ago" if nanoseconds >= 0 else "no contact yet"


class Bar:
    """A progress bar on a terminal, silence elsewhere."""

    def __init__(self, title: str, total: int, *, is_shown: bool = True) -> None:
        self._progress: Any = None
        if is_shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, count: int) -> None:
        """Advance by this many units."""
        if self._progress is not None:
            self._progress.advance(self._task, count)

    def show(self, done: int, total: int) -> None:
        """Move to a place; a total of 0 is not known."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total or None)


def warn_of_missing(folder: str | Path, info: StreamInfo) -> None:
    """Say on stderr that a restored stream holds fewer messages than its backup counts."""
    from jetlake.client.streams.backup import count_missing

    if missing := count_missing(folder, info):
        click.echo(
            f"warning: stream {info.config.name} was restored without {plural(missing, 'message')} "
            "that the backup counts: removed while it was made, from the archive since, or by the stream's limits",
            err=True,
        )
