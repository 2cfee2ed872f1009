"""Line graphs made of characters, redrawn on a terminal as values come."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import click
import msgspec

from jetlake.cli.session import EXIT_USAGE, fail

__all__ = ["NEEDS_TERMINAL", "Chart", "plot", "show_graphs"]

NEEDS_TERMINAL = "a graph needs a terminal; standard output is none"
_LABEL_COLUMNS = 12
_WIDTH_MAX = 1000
_HEIGHT_MIN = 3


def plot(values: Sequence[float], caption: str, *, width: int, height: int) -> list[str]:
    """Draw the newest values as columns between zero and their maximum, with the maximum and zero at the axis.

    Args:
        width: columns for values, without the axis.
        height: lines for values, without the caption.
    """
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    # How many eighths of a line each column has.
    eighths = [round(value / top * height * 8) if top > 0 else 0 for value in shown]
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for line in range(height - 1, -1, -1):
        label = number(top) if line == height - 1 else "0" if line == 0 else ""
        columns = "".join(blocks[min(max(count - line * 8, 0), 8)] for count in eighths)
        lines.append(f"{label:>{_LABEL_COLUMNS - 2}} ┤{columns}")
    newest = number(shown[-1]) if shown else "none"
    return [*lines, f"{'':{_LABEL_COLUMNS}}{caption}: {newest}"]


def number(value: float) -> str:
    """Write a value with thousands set apart, and a decimal where it is small."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


class Chart:
    """The values of one graph, oldest first; a bounded number is kept."""

    def __init__(self, caption: str) -> None:
        self.caption = caption
        self.values: deque[float] = deque(maxlen=_WIDTH_MAX)


async def show_graphs(
    title: str,
    charts: Sequence[Chart],
    sample: Callable[[], Awaitable[None]],
    *,
    interval_s: float = 1.0,
    count: int = 0,
    as_json: bool = False,
) -> None:
    """Redraw the charts below each other at an interval until Ctrl-C; the sample adds a value to each.

    Args:
        count: how many samples to draw; 0 for no end.
        as_json: print the values of each sample as a line instead.
    """
    if not sys.stdout.isatty() and not as_json:
        fail(NEEDS_TERMINAL, EXIT_USAGE)
    drawn = 0
    while True:
        await sample()
        drawn += 1
        if as_json:
            click.echo(msgspec.json.encode({chart.caption: round(chart.values[-1], 3) for chart in charts}))
        else:
            _draw(title, charts)
        if drawn == count:
            return
        await asyncio.sleep(interval_s)


def _draw(title: str, charts: Sequence[Chart]) -> None:
    screen = shutil.get_terminal_size()
    height = (screen.lines - 2) // len(charts) - 2
    if height < _HEIGHT_MIN or screen.columns < 2 * _LABEL_COLUMNS:
        fail(f"the terminal is too small for {len(charts)} graphs; make it larger", EXIT_USAGE)
    lines = [title, ""]
    for chart in charts:
        lines += [*plot(chart.values, chart.caption, width=screen.columns - _LABEL_COLUMNS, height=height), ""]
    click.clear()
    click.echo("\n".join(lines).rstrip())
