"""The processes of a Spark session and a server: what they cost a row, and on which cores they run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from _harness import Medians, measure

__all__ = ["Case", "Processes"]

Case = tuple[Callable[[], None], int]
"""Something to run, and how many rows it takes."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_NAMES = ("server CPU us", "Python CPU us", "JVM CPU us")


class Processes:
    """This process, a JVM that it started, and the Python workers below."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm

    def measure(
        self, cases: Mapping[str, Case], repeats: int, server: int
    ) -> tuple[Medians, dict[str, dict[str, float]]]:
        """The median seconds of each case, and its median CPU microseconds a row of server, Python and JVM."""
        rounds: dict[str, list[tuple[float, ...] | None]] = {name: [] for name in cases}

        def candidate(name: str) -> Callable[[], None]:
            run, _ = cases[name]
            return lambda: rounds[name].append(self._cpu_s(run, server))

        seconds = measure({name: candidate(name) for name in cases}, repeats)
        costs = {}
        for name, (run, rows) in cases.items():
            # As `measure` does it: the first round is not counted.
            found = [cost for cost in rounds[name][1:] if cost is not None]
            while not found:
                found = [cost for cost in [self._cpu_s(run, server)] if cost is not None]
            medians = [statistics.median(values) / rows * 1e6 for values in zip(*found, strict=True)]
            costs[name] = {column: round(value, 2) for column, value in zip(_NAMES, medians, strict=True)}
        return seconds, costs

    @contextmanager
    def apart_from(self, server: int) -> Iterator[None]:
        """Give the server a core of its own, and all the others, if there are some, to these processes."""
        cores = os.sched_getaffinity(0)
        own = min(cores)
        try:
            _pin([server], {own})
            _pin([os.getpid(), self._jvm, *_descendants(self._jvm)], cores - {own} or cores)
            yield
        finally:
            _pin([server, os.getpid(), self._jvm, *_descendants(self._jvm)], cores)

    def _cpu_s(self, run: Callable[[], None], server: int) -> tuple[float, ...] | None:
        """CPU seconds of server, Python and JVM; None when some are not known."""
        processes = {*_descendants(self._jvm)}
        before = self._now(server)
        run()
        after = self._now(server)
        # Spark kills the daemon of workers that it has not used for a while, and the daemon's time with it.
        if not processes <= {*_descendants(self._jvm)}:
            return None
        return tuple(b - a for a, b in zip(before, after, strict=True))

    def _now(self, server: int) -> tuple[float, float, float]:
        # A worker that ends in between has its time in the process that started it, in the end in the JVM.
        workers = _cpu_s(_descendants(self._jvm), ended_children=True)
        python = _cpu_s([os.getpid()]) + workers + _cpu_s([self._jvm], own=False, ended_children=True)
        return _cpu_s([server]), python, _cpu_s([self._jvm])


def _cpu_s(pids: list[int], own: bool = True, ended_children: bool = False) -> float:
    """CPU seconds that processes have used themselves, and those of their children that have ended."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:13])) * _TICK_S * own + sum(map(int, fields[13:15])) * _TICK_S * ended_children
    return total


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *_descendants(child)]
    return found


def _pin(pids: list[int], cores: set[int]) -> None:
    """Let all threads of these processes run on these cores alone, and with them what they start from now on."""
    for pid in pids:
        for task in _tasks(pid):
            try:
                os.sched_setaffinity(task, cores)
            except ProcessLookupError:
                continue  # It has ended.


def _tasks(pid: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
