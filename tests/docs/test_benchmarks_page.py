"""Measured figures in the pages are those of one run of `make bench`, drawn from its log."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.docs.blocks import ROOT, name

_spec = importlib.util.spec_from_file_location("render_benchmarks", ROOT / "tools" / "render_benchmarks.py")
assert _spec is not None
assert _spec.loader is not None
render_benchmarks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(render_benchmarks)

LOG = """# 2026-01-02 03:04 UTC, 2 CPUs, 8 GiB
== benchmarks/publish.py --quick
How many messages a second?  (Python 3.11.7, 2 CPUs)

case                 nats-server  jetlake  ratio  spread %
sync always, msgs/s        1,000   40,000  40.00      7.50

case     ms
growth  1.2

ratio publish-always 40.00
ratio growth read a run 0.97
== done in 12 s
"""


@pytest.mark.parametrize("path", render_benchmarks.pages(), ids=name)
def test_tables_are_drawn_from_the_kept_log(path):
    run = render_benchmarks.read_log(render_benchmarks.KEPT.read_text())
    text = path.read_text()
    assert text == render_benchmarks.redraw(text, run), "run python tools/render_benchmarks.py to draw it again"


def test_readme_and_the_page_of_all_rows_have_tables():
    assert {"README.md", "docs/benchmarks.md"} <= {name(path) for path in render_benchmarks.pages()}


def test_a_figure_that_is_edited_by_hand_is_seen():
    run = render_benchmarks.read_log(LOG)
    drawn = render_benchmarks.redraw("<!-- benchmark: everything -->\n<!-- /benchmark -->\n", run)
    assert "| sync always, msgs/s | 1,000 | 40,000 | 40.00 | 7.50 |" in drawn
    assert render_benchmarks.redraw(drawn.replace("40,000", "41,000"), run) == drawn


def test_a_log_is_read_as_it_was_printed():
    run = render_benchmarks.read_log(LOG)
    assert run.machine == "2026-01-02 03:04 UTC, 2 CPUs, 8 GiB"
    section = run.section("publish")
    assert section.command == "benchmarks/publish.py --quick"
    assert section.question == "How many messages a second?"
    assert section.cell("growth", "ms") == "1.2"
    assert section.ratio("growth read a run") == 0.97
    assert section.spread() == 7.5
    assert section.end == "done in 12 s"


def test_a_script_that_was_measured_again_says_when():
    later = LOG.replace("03:04", "05:06").replace("40,000", "42,000").replace("publish", "deliver")
    run = render_benchmarks.read_log(LOG + later)
    assert run.machine == "2026-01-02 03:04 UTC, 2 CPUs, 8 GiB"
    drawn = "\n".join(render_benchmarks.everything(run))
    assert "`benchmarks/deliver.py --quick`, done in 12 s. Measured by 2026-01-02 05:06 UTC, 2 CPUs, 8 GiB." in drawn
    assert "`benchmarks/publish.py --quick`, done in 12 s.\n" in drawn
    again = render_benchmarks.read_log(LOG + later.replace("deliver", "publish"))
    assert again.section("publish").cell("sync always, msgs/s", "jetlake") == "42,000"


@pytest.mark.parametrize(
    "log",
    [
        "",
        LOG.partition("\n")[2],
        LOG.replace("done in 12 s", "failed after 3 s: exit status 1"),
        LOG.replace("== done in 12 s\n", ""),
    ],
)
def test_a_log_of_a_run_that_failed_is_refused(log):
    with pytest.raises(SystemExit, match="make bench"):
        render_benchmarks.read_log(log)


@pytest.mark.parametrize("question", [("deliver", ""), ("publish", "fetch"), ("publish", "")])
def test_a_figure_that_the_log_lacks_is_named(question):
    script, ratio = question
    run = render_benchmarks.read_log(LOG)
    with pytest.raises(SystemExit, match=f"benchmarks/{script}.py.* has no|nothing of benchmarks/{script}.py"):
        run.section(script).ratio(ratio)


def test_a_log_of_some_scripts_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(render_benchmarks, "KEPT", tmp_path / "latest.txt")
    (tmp_path / "bench.log").write_text(LOG)
    with pytest.raises(SystemExit, match=r"nothing of benchmarks/batches\.py"):
        render_benchmarks.main([str(tmp_path / "bench.log")])
    assert not render_benchmarks.KEPT.exists()


def test_what_the_harness_prints_is_read(capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["publish.py"])
    harness = importlib.import_module("_harness")
    report = harness.Report("Which?", harness.parse_arguments("Which?"))
    rounds = {"nats-server": [(10.0, 6.0), (20.0, 8.0)], "jetlake": [(30.0, 2.0), (31.0, 2.0)]}
    found = {kind: [harness.Sample(*sample) for sample in samples] for kind, samples in rounds.items()}
    report.add_samples("a case, with comma", "speed", found)
    report.add("another", {"count": 12_345})
    report.finish()
    log = f"# machine\n== benchmarks/publish.py\n{capsys.readouterr().out}== done in 1 s\n"
    section = render_benchmarks.read_log(log).section("publish")
    assert section.cell("a case, with comma", "jetlake") == "30.50"
    assert section.cell("a case, with comma", "nats-server CPU us") == "7.00"
    assert section.cell("another", "count") == "12,345"
    assert section.ratios == {"speed": 2.03, "speed_cpu": 3.5}
    assert section.spread() == 66.67
