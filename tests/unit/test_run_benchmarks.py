"""`make bench` runs every script, whatever becomes of one of them, and tells it by its exit status."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import time
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "tools" / "run_benchmarks.py"
_spec = importlib.util.spec_from_file_location("run_benchmarks", _PATH)
assert _spec is not None
assert _spec.loader is not None
run_benchmarks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run_benchmarks)

# A script that waits for ever beside a process of its own, which it has told the number of.
HANGS = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path(__file__).with_name("child").write_text(str(child.pid))
child.wait()
"""


@pytest.mark.parametrize("path", sorted(_PATH.parents[1].glob("benchmarks/*.py")), ids=lambda path: path.stem)
def test_the_names_that_a_benchmark_imports_are_there(path):
    """They are imported only when a benchmark runs, some of them in the midst of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "jetlake":
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):  # A module of the package, which no other test has imported yet.
                    importlib.import_module(f"{node.module}.{name.name}")


def is_alive(pid):
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_benchmarks, "ROOT", tmp_path)
    monkeypatch.setattr(run_benchmarks, "LOG", tmp_path / "build" / "bench.log")
    scripts = tmp_path / "benchmarks"
    scripts.mkdir()
    (scripts / "_part.py").write_text("raise SystemExit('no benchmark')")
    (scripts / "breaks.py").write_text("print('half a table')\nraise SystemExit(3)")
    (scripts / "works.py").write_text("import sys; print(*sys.argv[1:])")
    return scripts


def test_a_script_that_fails_does_not_stop_the_others(folder, capsys):
    assert run_benchmarks.main([]) == 1
    log = run_benchmarks.LOG.read_text()
    machine, *lines = log.splitlines()
    assert machine.startswith("# ") and "nats-server 2." in machine and "CPUs" in machine
    assert [line.partition(" after")[0].partition(" in ")[0] for line in lines] == [
        "== benchmarks/breaks.py --quick",
        "half a table",
        "== failed",
        "== benchmarks/works.py --quick",
        "--quick",
        "== done",
    ]
    assert "exit status 3" in log
    assert capsys.readouterr().out == f"{log}log: build/bench.log; failed: breaks\n"


def test_chosen_scripts_run_alone(folder):
    assert run_benchmarks.main(["works"]) == 0
    assert not run_benchmarks.LOG.exists()
    assert "breaks" not in run_benchmarks.LOG.with_name("bench-some.log").read_text()


def test_an_unknown_script_is_named(folder):
    with pytest.raises(SystemExit, match="no such benchmark: nothing; there are breaks, works"):
        run_benchmarks.main(["nothing"])


def test_a_script_that_hangs_is_ended_with_all_that_it_started(folder):
    (folder / "hangs.py").write_text(HANGS)
    bound_s = 0.5
    while not (folder / "child").exists():  # on a slow machine the bound was over before
        output, is_well = run_benchmarks.run("hangs", bound_s)
        bound_s *= 2
    assert not is_well
    assert "not done within" in output
    child = int((folder / "child").read_text())
    while is_alive(child):  # it has been killed, which takes the kernel a moment
        time.sleep(0.01)
