from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from jetlake.errors import ConfigError, SparkError
from jetlake.spark.pipelines import replay_task
from jetlake.spark.pipelines.archive import ARCHIVE_COLUMNS, archive_schema
from jetlake.spark.pipelines.folder_sink import FolderSink
from jetlake.spark.pipelines.replay import Replay, Selection
from jetlake.spark.pipelines.replay_task import Pace

pytestmark = pytest.mark.spark

BEGAN = datetime(2026, 1, 31, tzinfo=UTC)


def payloads(admin, stream):
    return [base64.b64decode(message["data"]) for message in admin.messages(stream)]


def archived(spark, folder, format_name, count):
    """Files as an archive of stream A has them."""
    rows = [
        ("A", number + 1, f"A.{number % 3}", BEGAN + timedelta(seconds=number), {"N": [str(number)]}, b"%d" % number)
        for number in range(count)
    ]
    FolderSink(spark, str(folder), format_name).add(spark.createDataFrame(rows, ARCHIVE_COLUMNS), 0)
    return str(folder)


def test_a_stopped_replay_goes_on(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("B", subjects=["B.>"])
    replay = Replay(archived(spark, tmp_path / "lake", "json", 350), "B", "json", subject_map=(("A.>", "B.>"),))
    first = run_on(server, replay, stop_after=1, batch_messages=100)
    assert first.summary.state == "stopped"
    assert 0 < first.summary.rows < 350
    second = run_on(server, replay)
    assert second.summary.rows == 350 - first.summary.rows
    assert payloads(admin, "B") == [b"%d" % number for number in range(350)]


def test_a_target_that_was_purged_or_made_again_gets_every_message(spark, server_of, run_on, tmp_path):
    own_server = server_of("embedded")
    admin = own_server.admin()
    admin.create_stream("B", subjects=["B.>"])
    replay = Replay(archived(spark, tmp_path / "lake", "parquet", 300), "B", "parquet", subject_map=(("A.>", "B.>"),))
    everything = [b"%d" % number for number in range(300)]
    run_on(own_server, replay, stop_after=1, batch_messages=100)
    # Within the duplicate window: the stream still knows the ids of what it no longer holds.
    admin.api("STREAM.PURGE.B", {})
    run_on(own_server, replay)
    assert payloads(admin, "B") == everything
    again = run_on(own_server, replay)
    assert dict(again.summary.facts) == {"published": 0, "there already": 300}
    admin.api("STREAM.PURGE.B", {"keep": 120})
    run_on(own_server, replay, stop_after=1, batch_messages=50)
    admin.api("STREAM.DELETE.B")
    admin.create_stream("B", subjects=["B.>"])
    run_on(own_server, replay)
    assert payloads(admin, "B") == everything


def test_a_work_queue_gets_what_it_had_again_only_when_asked(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    queue = {"subjects": ["B.>"], "retention": "workqueue", "duplicate_window": 100_000_000}
    admin.create_stream("B", **queue)
    lake = archived(spark, tmp_path / "lake", "parquet", 90)
    replay = Replay(lake, "B", "parquet", subject_map=(("A.>", "B.>"),))
    first = run_on(server, replay, stop_after=1, batch_messages=30).summary.rows
    assert 0 < first < 90
    admin.api("STREAM.PURGE.B", {})  # which is what the workers' acks come to
    second = run_on(server, replay).summary
    assert second.rows == 90 - first
    assert dict(second.facts)["noted as replayed before"].startswith(f"{first} (--restart")
    admin.api("STREAM.PURGE.B", {})
    planned = dict(run_on(server, replace(replay, restart=True, dry_run=True)).summary.facts)
    assert planned["would publish"] == 90
    assert planned["sequences"] == "1 to 90"
    assert "A.0 -> B.0 (30)" in planned["subjects"]
    assert admin.state("B")["messages"] == 0
    assert run_on(server, replace(replay, restart=True)).summary.rows == 90
    assert payloads(admin, "B") == [b"%d" % number for number in range(90)]
    admin.api("STREAM.DELETE.B")
    admin.create_stream("B", **queue)
    anew = dict(run_on(server, replay).summary.facts)
    assert anew["published"] == 90
    assert "not the one" in anew["begun anew"]


def test_files_of_others_are_replayed_or_told_what_they_lack(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("B", subjects=["B.>"])
    rows = spark.createDataFrame([("B.1", "one", 1), ("B.2", "two", 2)], "subject string, data string, number int")
    folder = str(tmp_path / "parquet")
    rows.select("subject", "data").write.parquet(folder)
    with pytest.raises(ConfigError, match=r"have no column sequence \(bigint\), but subject, data"):
        run_on(server, Replay(folder, "B", "parquet"))
    for kind in ("parquet", "orc", "json"):
        own = str(tmp_path / f"own-{kind}")
        encoded = rows.withColumnRenamed("number", "sequence")
        encoded = (
            encoded.selectExpr("subject", "sequence", "cast(data as binary) as data") if kind == "json" else encoded
        )
        encoded.write.format(kind).save(own)
        assert dict(run_on(server, Replay(own, "B", kind)).summary.facts)["published"] == 2
        with pytest.raises(ConfigError, match=r"have no column timestamp .*--original"):
            run_on(server, Replay(own, "B", kind, pace=Pace(speed=1)))
    assert payloads(admin, "B") == [b"one", b"two"] * 3
    with pytest.raises(ConfigError, match=r"column data of the files .* is int, not binary"):
        wrong = rows.selectExpr("subject", "number as sequence", "number as data")
        wrong.write.parquet(str(tmp_path / "wrong"))
        run_on(server, Replay(str(tmp_path / "wrong"), "B", "parquet"))
    with pytest.raises(ConfigError, match=r"1 rows of .* have no sequence"):
        rows.selectExpr("subject", "data", "nullif(number, 1) as sequence").write.parquet(str(tmp_path / "null"))
        run_on(server, Replay(str(tmp_path / "null"), "B", "parquet"))


def test_what_goes_wrong_names_the_file_and_the_remedy(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("B", subjects=["B.>"])
    lake = archived(spark, tmp_path / "lake", "parquet", 30)
    with pytest.raises(SparkError, match=r"stream B takes B\.>: rename subjects by --subject-map"):
        run_on(server, Replay(lake, "B", "parquet"))
    file = next((tmp_path / "lake").glob("batch-*"))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(SparkError, match=f"file .*{file.name} can't be read"):
        run_on(server, Replay(lake, "B", "parquet", subject_map=(("A.>", "B.>"),)))


def test_a_paced_replay_begins_when_it_publishes_and_makes_up_for_nothing(server, admin, stream, monkeypatch):
    """The tasks alone, on a clock of their own: the first starts late, the second after a pause."""
    admin.create_stream(stream)
    clock = Clock()
    monkeypatch.setattr(replay_task, "time", clock)
    sent: list[tuple[float, int]] = []
    publish_all = replay_task.Publisher.publish_all

    def publish(publisher, batches):
        kept = list(batches)
        sent.extend((clock.now_s, 1) for batch in kept for _ in range(len(batch)))
        publish_all(publisher, kept)

    monkeypatch.setattr(replay_task.Publisher, "publish_all", publish)
    schema = archive_schema().add("msg_id", "string")
    options = (("servers", server.url), ("stream", stream), ("messageId", "column"), ("ledger", "none"))
    began_s = None
    for pace, first_time_s in ((Pace(rate=60), 0.0), (Pace(speed=2), 100.0)):
        sent.clear()
        for first in (0, 100):
            clock.now_s += 5.0
            rows = [
                (stream, n, f"{stream}.x", 1_000_000 * 100 + n * 10_000, [], b"%d" % n, f"{pace}:{n}")
                for n in range(first, first + 100)
            ]
            columns = [list(column) for column in zip(*rows, strict=True)]
            batch = pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, to_arrow_schema(schema, timezone="UTC"), strict=True)],
                names=schema.fieldNames(),
            )
            task = replay_task.ReplayTask(schema, options, (), pace, began_s, first_time_s, first)
            (result,) = task(iter([batch]))
            assert result.to_pydict()["rows"] == [100]
            began_s = result.to_pydict()["began_s"][0]
        began_s = None
        step_s = 1 / 60 if pace.rate else 0.01 / 2
        times_s = [at_s for at_s, _ in sent]
        assert len(times_s) == 200
        # A slot of a fiftieth of a second goes out together, at its end.
        for number, at_s in enumerate(times_s[20:], 20):
            assert at_s - times_s[number - 20] >= 20 * step_s - 0.021
        assert times_s[100] - times_s[99] >= 5.0
        assert times_s[99] - times_s[0] <= 99 * step_s + 0.021
    assert admin.state(stream)["messages"] == 400


@pytest.mark.parametrize("pace", [Pace(), Pace(rate=1000)], ids=["at once", "paced"])
def test_a_task_that_comes_again_adds_what_is_missing(own_server, pace):
    """Also when the target no longer knows the ids of what the lost attempt has stored."""
    admin = own_server.admin()
    admin.create_stream("B", duplicate_window=100_000_000)
    admin.fill("B", 5)
    schema = archive_schema().add("msg_id", "string")
    rows = [("A", n, "B.x", n, [], b"%d" % n, f"A:{n}") for n in range(100)]
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    columns = [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), arrow_schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=schema.fieldNames())
    options = (("servers", own_server.url), ("stream", "B"), ("messageId", "column"), ("ledger", "none"))
    task = replay_task.ReplayTask(schema, options, (), pace, None, 0.0, 0, after=5, alone=True)
    (first,) = task(iter([batch.slice(0, 60)]))
    own_server.kill()
    own_server.start()
    (again,) = task(iter([batch.slice(0, 40), batch.slice(40)]))
    found = [result.to_pydict() for result in (first, again)]
    assert [(figures["rows"], figures["duplicates"]) for figures in found] == [([60], [0]), ([100], [0])]
    assert payloads(own_server.admin(), "B")[5:] == [b"%d" % n for n in range(100)]


class Clock:
    """The time module of a task, whose sleep takes no time."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_parts_of_an_archive_are_chosen_and_mistakes_are_explained(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 3)
    admin.create_stream("B", subjects=["B.>"])
    lake = archived(spark, tmp_path / "lake", "orc", 30)
    second_ns = 1_000_000_000
    began_ns = round(BEGAN.timestamp()) * second_ns
    chosen = Selection(
        from_time=began_ns + 5 * second_ns,
        to_time=began_ns + 20 * second_ns,
        from_sequence=11,
        subjects=("A.1", "A.2"),
    )
    run_on(server, Replay(lake, "B", "orc", selection=chosen, subject_map=(("A.*", "B.x.$1"),)))
    assert payloads(admin, "B") == [b"%d" % number for number in range(10, 20) if number % 3]
    assert admin.messages("B")[0]["subject"] == "B.x.1"
    with pytest.raises(ConfigError, match="still holds archived messages"):
        run_on(server, Replay(lake, "A", "orc"))
    with pytest.raises(Exception, match=r"A\.0.*no subject map of the replay matches"):
        other = Selection(subjects=("A.0",))
        run_on(server, Replay(lake, "B", "orc", subject_map=(("A.1", "B.y"),), selection=other))
    with pytest.raises(ConfigError, match="name the format"):
        run_on(server, Replay(str(tmp_path), "B"))
