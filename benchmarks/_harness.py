"""What every benchmark shares: its arguments, its clock, its table and its ratios.

A benchmark is a script that answers one question. It makes a `Report`, measures peer and ours in turns on the same data
in several rounds, adds one row for each case, and ends with `finish`. A row has the median of the rounds, the CPU time
a message (or a request) of each server process, and how far the rounds lie apart. `ratio NAME VALUE` lines at the end
say how many times better ours is; above 1 is better. `tools/render_benchmarks.py` reads what is printed here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

__all__ = ["Medians", "Report", "Sample", "cpu_s", "measure", "parse_arguments", "spread", "take_sample", "wall_s"]


def parse_arguments(question: str, *extra: tuple[str, dict[str, object]]) -> argparse.Namespace:
    """The arguments that every benchmark takes: `--quick`, `--json FILE`, and what `extra` adds."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and less data, within minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file too")
    for name, options in extra:
        parser.add_argument(name, **options)  # type: ignore[arg-type]
    return parser.parse_args()


def spread(values: Sequence[float]) -> float:
    """How far apart the rounds of a figure lie: from the lowest to the highest, in percent of the median."""
    return (max(values) - min(values)) / statistics.median(values) * 100


class Medians(dict[str, float]):
    """The median of each candidate's rounds, the spread of each, and the widest among them."""

    def __init__(self, rounds: Mapping[str, Sequence[float]]) -> None:
        super().__init__({name: statistics.median(values) for name, values in rounds.items()})
        self.spreads = {name: spread(values) for name, values in rounds.items()}
        self.spread = max(self.spreads.values())


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
    process = Path("/proc", str(pid))
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    in_ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    # The threads tell it in nanoseconds, but those that have ended are not among them.
    nanoseconds = 0
    for thread in (process / "task").iterdir():
        try:
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
        except OSError:
            pass
    return max(in_ticks, nanoseconds / 1e9)


class Sample(NamedTuple):
    """What one round of a case found on one server."""

    value: float
    """A rate, or a time."""
    cpu_us: float
    """CPU time of the server a message, or a request, in microseconds."""


def take_sample(pid: int, count: int, run: Callable[[], float]) -> Sample:
    """Let so many messages pass the server of that process; `run` does it and returns their rate, or their time."""
    before_s = cpu_s(pid)
    value = run()
    return Sample(value, (cpu_s(pid) - before_s) / count * 1e6)


def wall_s(run: Callable[[], object]) -> float:
    """The seconds that something takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


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

    def add_samples(
        self,
        case: str,
        name: str,
        found: Mapping[str, Sequence[Sample]],
        *,
        lower_is_better: bool = False,
        more: Mapping[str, float] | None = None,
    ) -> None:
        """Add the row of a case that nats-server and ours have run, and note the ratio of their medians.

        Args:
            name: the name of the ratio.
            found: the rounds of the peer, then those of ours, each under the column's name.
            lower_is_better: the values are times, not rates.
            more: further columns.
        """
        medians = Medians({kind: [sample.value for sample in samples] for kind, samples in found.items()})
        costs = {kind: statistics.median(sample.cpu_us for sample in samples) for kind, samples in found.items()}
        cpu = {f"{kind} CPU us": cost for kind, cost in costs.items()}
        ratio = self._compare_all(name, medians, lower_is_better=lower_is_better)
        if all(costs.values()):
            self._compare_all(f"{name}_cpu", costs, lower_is_better=True)
        self.add(case, {**medians, **ratio, **cpu, "spread %": medians.spread, **(more or {})})

    def add_figures(self, case: str, name: str, figures: Mapping[str, float], *, lower_is_better: bool = False) -> None:
        """Add the row of a case with one figure each of the peer and of ours, and note their ratio."""
        self.add(case, {**figures, **self._compare_all(name, figures, lower_is_better=lower_is_better)})

    def _compare_all(self, name: str, figures: Mapping[str, float], *, lower_is_better: bool) -> dict[str, float]:
        """The column of the ratio; there is none where only one server was measured."""
        if len(figures) < 2:
            return {}
        peer, ours = figures.values()
        return {"ratio": self.compare(name, ours, peer, lower_is_better=lower_is_better)}

    def compare(self, name: str, ours: float, peer: float, *, lower_is_better: bool = False) -> float:
        """Note how many times better ours is than the peer's."""
        ratio = peer / ours if lower_is_better else ours / peer
        self._ratios[name] = ratio
        return ratio

    def finish(self) -> None:
        """Print table and ratios, and write the file that was asked for."""
        print(f"{self._question}  (Python {platform.python_version()}, {os.cpu_count()} CPUs)\n")
        for line in _tables(self._rows):
            print(line)
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


def _tables(rows: list[dict[str, str | float]]) -> list[str]:
    """The rows as aligned lines, columns two spaces apart; rows with other columns are a table of their own."""
    lines: list[str] = []
    for columns, group in groupby(rows, key=list):
        cells = [columns, *([_cell(value) for value in row.values()] for row in group)]
        width, *widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  ".join([case.ljust(width), *map(str.rjust, others, widths)]).rstrip() for case, *others in cells]
        lines.append("")
    return lines


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int):  # counted, not measured
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
