"""What every benchmark shares: its arguments, its clock, its table and its ratios.

A benchmark is a script that answers one question. It makes a `Report`, measures peer and ours in turns on the same data
with `measure`, adds one row for each case, and ends with `finish`. `ratio NAME VALUE` lines at the end say how many
times better ours is; above 1 is better.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Medians", "Pace", "Report", "cpu_s", "measure", "measure_pace", "pace_columns", "parse_arguments", "spread"]


def parse_arguments(question: str, *extra: tuple[str, dict[str, object]]) -> argparse.Namespace:
    """The arguments that every benchmark takes: `--quick`, `--json FILE`, and what `extra` adds."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and less data, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file too")
    for name, options in extra:
        parser.add_argument(name, **options)  # type: ignore[arg-type]
    return parser.parse_args()


def spread(values: Sequence[float]) -> float:
    """How far apart the rounds of a figure lie: from the lowest to the highest, in percent of the median."""
    return (max(values) - min(values)) / statistics.median(values) * 100


class Medians(dict[str, float]):
    """The median of each candidate's rounds, and the widest spread among the candidates."""

    def __init__(self, rounds: Mapping[str, Sequence[float]]) -> None:
        super().__init__({name: statistics.median(values) for name, values in rounds.items()})
        self.spread = max(map(spread, rounds.values()))


def measure(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Medians:
    """The median seconds of each candidate.

    They run in turns, so that a busy moment of the machine hits all of them; one round before the first warms them up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):
        for name, run in candidates.items():
            started = clock()
            run()
            taken = clock() - started
            if repeat:
                seconds[name].append(taken)
    return Medians(seconds)


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used so far, all its threads together, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pace(NamedTuple):
    """How fast messages passed a server, and what they cost it."""

    rate: float
    """Messages a second."""
    cpu_us: float
    """CPU time of the server a message, in microseconds."""


def measure_pace(pid: int, count: int, run: Callable[[], float]) -> Pace:
    """Let so many messages pass the server of that process; `run` does it and returns their rate."""
    before_s = cpu_s(pid)
    rate = run()
    return Pace(rate, (cpu_s(pid) - before_s) / count * 1e6)


def pace_columns(found: Mapping[str, list[Pace]]) -> dict[str, float]:
    """The columns of a row: the median rate of each server, its median CPU time a message, the spread of several."""
    rates = Medians({kind: [pace.rate for pace in paces] for kind, paces in found.items()})
    costs = {f"{kind} CPU us": statistics.median(pace.cpu_us for pace in paces) for kind, paces in found.items()}
    several = {"spread %": rates.spread} if any(len(paces) > 1 for paces in found.values()) else {}
    return {**rates, **costs, **several}


class Report:
    """Rows of figures and the ratios between them."""

    def __init__(self, question: str, arguments: argparse.Namespace) -> None:
        self._question = question
        self._json_file: Path | None = arguments.json
        self._rows: list[dict[str, str | float]] = []
        self._ratios: dict[str, float] = {}

    def add(self, case: str, figures: Mapping[str, float]) -> None:
        """Add a row: what was measured, and a figure for each column."""
        self._rows.append({"case": case, **figures})

    def compare(self, name: str, ours: float, peer: float, *, lower_is_better: bool = False) -> float:
        """Note how many times better ours is than the peer's."""
        ratio = peer / ours if lower_is_better else ours / peer
        self._ratios[name] = ratio
        return ratio

    def finish(self) -> None:
        """Print table and ratios, and write the file that was asked for."""
        print(f"{self._question}  (Python {platform.python_version()}, {os.cpu_count()} CPUs)\n")
        for line in _table(self._rows):
            print(line)
        print()
        for name, ratio in self._ratios.items():
            print(f"ratio {name} {ratio:.2f}")
        if self._json_file is not None:
            figures = {
                "question": self._question,
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "rows": self._rows,
                "ratios": self._ratios,
            }
            self._json_file.write_text(json.dumps(figures, indent=2) + "\n")


def _table(rows: list[dict[str, str | float]]) -> list[str]:
    """The rows as aligned lines; a column that a row does not have stays empty."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip() for first, *others in lines
    ]


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int):  # counted, not measured
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
