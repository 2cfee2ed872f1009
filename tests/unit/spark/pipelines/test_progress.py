from __future__ import annotations

import io
import json
import tempfile

from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.progress import (
    BatchDone,
    JsonLines,
    ServerReports,
    Summary,
    TerminalLines,
    lag_of,
    late_of,
    reporter_for,
)
from jetlake.spark.pipelines.runner import OutageWatch, explain, name_full_disk


def offset(**streams):
    return json.dumps({"v": 1, "streams": {name: {"created": "", "next": place} for name, place in streams.items()}})


def test_lag_is_what_all_streams_have_left():
    sources = [
        {"endOffset": offset(A=10, B=5), "latestOffset": offset(A=30, B=5)},
        {"endOffset": offset(C=1), "latestOffset": offset(C=8)},
        {"endOffset": None, "latestOffset": None},
        {"endOffset": '{"logOffset": 3}', "latestOffset": "no JSON"},
    ]
    assert lag_of(sources) == 27
    assert lag_of([{"endOffset": {"logOffset": 1}}]) is None
    assert lag_of([{"endOffset": offset(A=10), "latestOffset": offset(A=9)}]) == 0


def test_the_time_left_follows_from_lag_and_rate():
    assert BatchDone("", 1, 10, 10, 5.0, 100, 2.0).left_s == 20.0
    assert BatchDone("", 1, 10, 10, 0.0, 100, 2.0).left_s is None
    assert BatchDone("", 1, 10, 10, 0.0, 0, 2.0).left_s == 0.0
    assert BatchDone("", 1, 10, 10, 5.0, None, 2.0).left_s is None


def test_scripts_get_one_object_a_line():
    out = io.StringIO()
    lines = reporter_for(out)
    assert isinstance(lines, JsonLines)
    lines.began("archive A", {"target": "/lake"})
    lines.batch(BatchDone("", 3, 10, 40, 5.04, 100, 2.0))
    lines.note("waiting for messages")
    lines.ended(Summary("failed", 4, 40, 8.0, (("made", 1),), "no way"))
    began, batch, ended = (json.loads(line) for line in out.getvalue().splitlines())
    assert began == {"event": "began", "pipeline": "archive A", "target": "/lake"}
    assert batch["rows_total"] == 40
    assert (batch["rows_per_second"], batch["lag"], batch["left_s"]) == (5.0, 100, 19.8)
    assert (ended["state"], ended["error"], ended["made"]) == ("failed", "no way", 1)


def test_people_get_one_line_that_changes():
    out = io.StringIO()
    lines = TerminalLines(out)
    lines.note("starting")
    lines.began("archive A", {"target": "/lake"})
    lines.batch(BatchDone("q", 3, 10, 4000, 50.0, 100_000, 2.0))
    lines.note("waiting for messages")
    lines.note("waiting for messages")
    lines.ended(Summary("stopped", 1, 4000, 80.0, (("made", 1),)))
    blank = "\r        \r"
    text = out.getvalue()
    assert text.startswith(f"\rstarting{blank}archive A\n  target: /lake\n\rq: batch 3, 4,000 rows, 50 rows/s, lag 100")
    assert text.count("waiting for messages") == 1
    assert text.endswith("\rstopped: 4,000 rows in 1 batch, 1 min, 50 rows/s\n  made: 1\n")


def test_an_outage_is_told_once_to_scripts_and_all_the_time_to_people():
    out = io.StringIO()
    lines = JsonLines(out)
    lines.began("archive A", {})
    for away_s in (2.0, 65.0, None):
        lines.outage(away_s, 86_400)
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["began", "away", "back"]
    shown = io.StringIO()
    TerminalLines(shown).outage(65.0, 86_400)
    assert shown.getvalue() == "\rthe server is away for 1 min, waiting for it (at most 24.0 h)"


def test_a_server_is_asked_now_and_then_whether_it_is_there():
    now_s, is_there, asked = [0.0], [True], []

    class Connection:
        def flush(self) -> None:
            asked.append(now_s[0])
            if not is_there[0]:
                raise OSError

        def close(self) -> None:
            pass

    def connect(options):
        if not is_there[0]:
            raise OSError
        return Connection()

    watch = OutageWatch(ConnectionOptions.of({}), lambda: now_s[0], connect)
    told = []
    for step in range(20):
        now_s[0] = step * 0.5
        is_there[0] = not 3.0 <= now_s[0] < 7.0
        told.append(watch.away_s())
    assert told[:8] == [None] * 8
    assert told[8:16] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    assert told[16:] == [None] * 4
    assert len(asked) < 10


def test_late_rows_are_counted_over_all_operators():
    assert late_of([{"numRowsDroppedByWatermark": 3}, {}, {"numRowsDroppedByWatermark": 4}]) == 7
    out = io.StringIO()
    JsonLines(out).batch(BatchDone("", 1, 1, 1, 1.0, 0, 1.0, late=7))
    assert json.loads(out.getvalue())["late"] == 7


def test_a_line_is_cut_where_the_terminal_ends(monkeypatch):
    monkeypatch.setattr("jetlake.spark.pipelines.progress._columns", lambda out: 20)
    out = io.StringIO()
    TerminalLines(out).batch(BatchDone("", 3, 10, 4000, 50.0, 100_000, 2.0))
    assert out.getvalue() == "\rbatch 3, 4,000 row…"


def test_a_run_without_work_says_so():
    out = io.StringIO()
    TerminalLines(out).ended(Summary("finished", 0, 0, 3.0))
    assert out.getvalue() == "\rfinished: there was nothing to do\n"


def test_reports_to_a_server_that_is_away_cost_nothing():
    now_s = [0.0]
    options = ConnectionOptions.of({"servers": "nats://127.0.0.1:1", "connectTimeout": "1s"})
    reports = ServerReports(options, lambda: now_s[0])
    reports.began("x", {})
    reports.batch(BatchDone("", 1, 1, 1, 1.0, 0, 1.0))
    reports.ended(Summary("finished", 1, 1, 1.0))


def test_an_error_is_told_without_the_tracebacks_around_it():
    wrapped = (
        "Traceback\n  File x\njetlake.errors.DataLossError: messages 1 to 3 are gone: do this\n\n\tat org.apache.spark"
    )
    assert explain(Exception(wrapped)) == "messages 1 to 3 are gone: do this"
    assert explain(Exception("Traceback\nValueError: no number\nJVM stack")) == "ValueError: no number"
    assert explain(Exception("first\nsecond")) == "first"
    from_java = "An error occurred while calling o46.create.\n: java.io.IOException: Mkdirs failed\n\tat java.base/x"
    assert explain(Exception(from_java)) == "Mkdirs failed"
    deeper = f"{from_java}\nCaused by: java.io.IOException: No space left on device\n\tat y"
    assert explain(Exception(deeper)) == "No space left on device"
    from_foreach_batch = f"Traceback\npy4j.protocol.Py4JJavaError: {deeper}\n\n"
    assert explain(Exception(from_foreach_batch)) == "No space left on device"


def test_a_full_disk_is_told_with_its_folder(tmp_path):
    # Nothing can be stored below /proc.
    folders = [str(tmp_path), "/proc/lake", "s3://bucket/lake"]
    for said in ("No space left on device", "Disk quota exceeded (os error 122)"):
        told = name_full_disk(f"f.yml:11: sink a: {said}", folders)
        assert told.startswith("f.yml:11: sink a: no space is left on the disk of /proc/lake. Free some")
    # Others may have made room meanwhile.
    freed = name_full_disk("No space left on device (os error 28)", [str(tmp_path), f"{tmp_path}/_jetlake"])
    assert freed.startswith(f"no space is left on the disk of {tmp_path} or {tempfile.gettempdir()}. Free some")
    assert name_full_disk("no such folder", folders) == "no such folder"


def test_an_error_without_a_text_is_told_by_its_kind():
    assert explain(KeyError()) == "KeyError"
