"""The notebook among the examples, run cell by cell as a kernel runs it: one namespace, one loop, await at the top."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[3] / "examples" / "stream_to_dataframe.ipynb"


async def run_cells(cells: list[str]) -> dict[str, object]:
    names: dict[str, object] = {}
    for number, source in enumerate(cells):
        code = compile(source, f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
    return names


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_the_notebook_runs_from_its_first_cell_to_its_last(spark, server, monkeypatch):
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    monkeypatch.setenv("JETLAKE_URL", server.url)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = asyncio.run(run_cells(cells))
    assert names["messages"] == len(names["frame"]) == 900
    assert len(names["minutes"]) == 30
    titles = [pyplot.figure(number).axes[0].get_title() for number in pyplot.get_fignums()]
    assert titles == ["Mean, lowest and highest reading per minute", "All readings"]
    pyplot.close("all")
    spark.catalog.dropTempView("minutes")
