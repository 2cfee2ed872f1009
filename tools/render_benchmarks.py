"""Draws the pages' tables of measured figures from the log of a run of `make bench`.

    python tools/render_benchmarks.py [LOG …]

A log that is given (`build/bench.log`) is kept as `benchmarks/results/latest.txt` first; all tables come from there.
What further logs have (`build/bench-some.log`, of `make bench ONLY=…`) replaces it, and the page tells when that was.
In README and in pages of `docs/` they stand between `<!-- benchmark: NAME -->` and `<!-- /benchmark -->`. A test
compares the pages with what this draws.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "benchmarks" / "results" / "latest.txt"

_BLOCK = re.compile(r"(<!-- benchmark: ([\w-]+) -->\n).*?(<!-- /benchmark -->)", re.DOTALL)


class Table(NamedTuple):
    """Rows with the same columns, as they were printed."""

    columns: list[str]
    rows: list[list[str]]

    def cells(self, column: str) -> dict[str, str]:
        """A column's cells by their case."""
        place = self.columns.index(column)
        return {row[0]: row[place] for row in self.rows}


class Section(NamedTuple):
    """What one script printed."""

    command: str
    question: str
    tables: list[Table]
    ratios: dict[str, float]
    end: str
    machine: str

    def cell(self, case: str, column: str) -> str:
        """One cell."""
        for table in self.tables:
            if column in table.columns and case in (cells := table.cells(column)):
                return cells[case]
        raise SystemExit(f"{self.command} has no row {case!r} with {column!r}: run make bench again")

    def ratio(self, name: str) -> float:
        """How many times better ours is."""
        if name not in self.ratios:
            raise SystemExit(f"{self.command} has no ratio {name!r}: run make bench again")
        return self.ratios[name]

    def spread(self) -> float:
        """The widest spread among the rows of the first table, which compares with the peer, in percent."""
        table = self.tables[0]
        return max(map(number, table.cells("spread %").values())) if "spread %" in table.columns else 0.0


class Run(NamedTuple):
    """One run of `make bench`."""

    machine: str
    sections: dict[str, Section]

    def section(self, script: str) -> Section:
        """What a script printed."""
        if script not in self.sections:
            raise SystemExit(f"the log has nothing of benchmarks/{script}.py: run make bench again")
        return self.sections[script]


def number(cell: str) -> float:
    """The value of a cell."""
    return float(cell.replace(",", ""))


# Reading the log


def read_log(text: str) -> Run:
    """Parse a log; one with a script that failed is refused."""
    runs = re.split(r"^# (?=.*\n== benchmarks/)", text, flags=re.MULTILINE)
    if len(runs) < 2 or runs[0]:
        raise SystemExit("this is no log of make bench: its first line does not tell the machine")
    sections = {}
    for one in runs[1:]:
        machine, _, rest = one.partition("\n")
        for part in re.split(r"^== (?=benchmarks/)", rest, flags=re.MULTILINE)[1:]:
            section = _read_section(part, machine)
            if not section.end.startswith("done"):
                raise SystemExit(f"{section.command} {section.end or 'was cut off'}: run make bench again")
            sections[Path(section.command.split()[0]).stem] = section
    return Run(runs[1].partition("\n")[0], sections)


def _read_section(part: str, machine: str) -> Section:
    command, *lines = part.splitlines()
    end = next((line.removeprefix("== ") for line in lines if line.startswith("== ")), "")
    ratios = {}
    for line in lines:
        if line.startswith("ratio "):
            name, value = line.removeprefix("ratio ").rsplit(" ", 1)
            ratios[name] = float(value)
    question = lines[0].partition("  ")[0] if lines else ""
    return Section(command, question, list(_read_tables(lines)), ratios, end, machine)


def _read_tables(lines: list[str]) -> Iterator[Table]:
    """A table begins with `case` and ends with an empty line; its cells are two spaces apart."""
    for is_empty, block in groupby(lines, key=lambda line: not line):
        cells = [re.split(r"\s{2,}", line) for line in block]
        if not is_empty and cells[0][0] == "case":
            yield Table(cells[0], cells[1:])


# Drawing


class Line(NamedTuple):
    """A row of README's table: one figure of jetlake beside the peer's, from one run."""

    question: str
    script: str
    case: str
    peer: str
    columns: tuple[str, str] = ("jetlake", "nats-server")
    """The columns of jetlake and of the peer; where both are one column, `peer_case` names the peer's row."""
    peer_case: str = ""
    lower_is_better: bool = False


_CLIENTS = ("jetlake asyncio /s", "nats-py asyncio /s")
_ROWS = ("rows/s", "rows/s")
_P50 = ("jetlake p50", "nats-server p50")
LINES = [
    Line("publish, synced before each ack, messages/s", "publish", "sync always, messages/s", "nats-server"),
    Line("publish, synced every 2 minutes, messages/s", "publish", "sync 2m, messages/s", "nats-server"),
    Line("pull from a file stream with acks, messages/s", "deliver", "fetch, with acks, file", "nats-server"),
    Line("the same without acks, messages/s", "deliver", "fetch, without acks, file", "nats-server"),
    Line("one publish at a time, synced, median ms", "latency", "ack-alone (both always sync)", "nats-server", _P50,
         lower_is_better=True),
    Line("memory with 10 million messages, MiB", "scale", "memory at most, MiB (10,000,000)", "nats-server",
         lower_is_better=True),
    Line("start after a clean stop, CPU seconds", "scale", "restart after stop, CPU s (10,000,000)", "nats-server",
         lower_is_better=True),
    Line("client: consume with acks, messages/s", "client", "consume_ack 128 B", "nats-py", _CLIENTS),
    Line("client: pipelined publish, messages/s", "client", "publish_pipelined 128 B", "nats-py", _CLIENTS),
    Line("Spark source from nats-server, rows/s", "spark", "source batch", "nats-py in a Spark task", _ROWS,
         "nats-py source"),
    Line("Spark sink to nats-server, rows/s", "spark", "sink", "nats-py in a Spark task", _ROWS, "nats-py publish"),
]  # fmt: skip


def _times(value: float) -> str:
    """Format a ratio with two significant digits."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def measured(run: Run) -> Iterator[str]:
    """README's table."""
    is_mixed = any(run.section(line.script).machine != run.machine for line in LINES)
    later = " Some rows are from later runs, whose times are [on the page](docs/benchmarks.md)." if is_mixed else ""
    yield f"Measured by {run.machine}.{later} Ratios above 1 mean that jetlake is better."
    yield ""
    yield "| | jetlake | peer | | ratio |"
    yield "|---|--:|--:|---|--:|"
    for line in LINES:
        section = run.section(line.script)
        ours = section.cell(line.case, line.columns[0])
        theirs = section.cell(line.peer_case or line.case, line.columns[1])
        ratio = number(theirs) / number(ours) if line.lower_is_better else number(ours) / number(theirs)
        yield f"| {line.question} | {ours} | {theirs} | {line.peer} | {_times(ratio)} |"


_SERVER, _FLIP = "server killed: ", "byte flipped: "
# What a row says: the losses that are added up, and the promises that they are part of.
_LOSSES = {
    "messages acknowledged, and lost, doubled, undelivered or renumbered by a kill": (
        [f"{_SERVER}{loss}" for loss in ("lost", "stored twice", "never delivered", "sequences reused")],
        f"{_SERVER}messages acknowledged",
    ),
    "acks confirmed, and pending again after the restart": ([f"{_SERVER}pending again"], f"{_SERVER}acks confirmed"),
    "one byte flipped, {flips} times: other records lost": ([f"{_FLIP}other records lost"], ""),
    "flipped or torn, {damages} times: sequences reused": (["damaged: sequences reused"], ""),
}


def losses(run: Run) -> Iterator[str]:
    """What kills and damaged files cost."""
    section = run.section("durability")
    flips, cuts = (section.cell(f"{what}: experiments", "jetlake") for what in ("byte flipped", "tail torn"))
    yield "| | jetlake | nats-server | with `sync_interval: always` |"
    yield "|---|--:|--:|--:|"
    for text, (lost_cases, promised) in _LOSSES.items():
        cells = []
        for kind in ("jetlake", "nats-server", "nats-server always"):
            lost = sum(number(section.cell(case, kind)) for case in lost_cases)
            cells.append(f"{lost:,.0f}" + (f" of {section.cell(promised, kind)}" if promised else ""))
        yield f"| {text.format(flips=flips, damages=int(flips) + int(cuts))} | {' | '.join(cells)} |"


_LOAD = {
    "{} MiB": "memory at most, MiB",
    "{}": "bystander, median ms",
    "{} worst ms": "worst ms",
    "{} CPU us": "CPU us",
}


def load(run: Run) -> Iterator[str]:
    """What a bystander suffers from under load; ours first, then nats-server."""
    (table,) = run.section("load").tables
    yield f"| shape | {' | '.join(f'{title}: jetlake, nats-server' for title in _LOAD.values())} |"
    yield "|---|" + "--:|" * len(_LOAD)
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        pairs = [f"{cells[column.format('jetlake')]}, {cells[column.format('nats-server')]}" for column in _LOAD]
        yield f"| {row[0]} | {' | '.join(pairs)} |"


def _markdown(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.columns)} |"
    yield "|---|" + "--:|" * (len(table.columns) - 1)
    for row in table.rows:
        yield f"| {' | '.join(row)} |"


def everything(run: Run) -> Iterator[str]:
    """Every row of every script."""
    yield f"Measured by {run.machine}."
    for name, section in sorted(run.sections.items()):
        when = "" if section.machine == run.machine else f" Measured by {section.machine}."
        yield from ("", f"## {name}", "", f"{section.question} `{section.command}`, {section.end}.{when}")
        for table in section.tables:
            yield ""
            yield from _markdown(table)


BLOCKS: dict[str, Callable[[Run], Iterator[str]]] = {
    "everything": everything,
    "measured": measured,
    "losses": losses,
    "load": load,
}


def redraw(text: str, run: Run) -> str:
    """A page's text with its tables drawn anew."""

    def block(found: re.Match[str]) -> str:
        if found[2] not in BLOCKS:
            raise SystemExit(f"no benchmark table is named {found[2]!r}; there are {', '.join(BLOCKS)}")
        return found[1] + "\n".join(BLOCKS[found[2]](run)) + "\n" + found[3]

    return _BLOCK.sub(block, text)


def pages() -> list[Path]:
    """The pages that have such tables."""
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in candidates if _BLOCK.search(path.read_text())]


def main(arguments: list[str]) -> None:
    """Keep the log that is given, and draw all pages."""
    if arguments:
        text = "".join(Path(log).read_text() for log in arguments)
        given = read_log(text)
        for script in sorted((ROOT / "benchmarks").glob("[a-z]*.py")):
            given.section(script.stem)  # A log of some scripts would leave holes in the pages.
        KEPT.write_text(text)
    run = read_log(KEPT.read_text())
    drawn = {path: redraw(path.read_text(), run) for path in pages()}
    for path, text in drawn.items():
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
