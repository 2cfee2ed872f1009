from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from jetlake.errors import ConfigError, SparkError
from jetlake.spark.pipelines import delta_sink
from jetlake.spark.pipelines.archive import Archive, Partitioning
from jetlake.spark.pipelines.delta_sink import DeltaSink
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import FolderSink, compact, finish_compaction
from jetlake.spark.pipelines.lake_lock import locked
from jetlake.spark.pipelines.replay import Replay, Selection
from jetlake.spark.pipelines.replay_task import Pace
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.pipelines.sql import SqlPipeline
from jetlake.spark.pipelines.sql_file import parse_sql_file
from jetlake.spark.pipelines.verify import Verify

pytestmark = pytest.mark.spark


MAP = (("orders.>", "again.>"),)


def payloads(admin, stream):
    return [base64.b64decode(message["data"]) for message in admin.messages(stream)]


def data_files(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    )


def test_a_stream_goes_to_the_lake_and_back_each_message_once(spark, own_server, run_on, tmp_path):
    admin = own_server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    admin.publish([(f"orders.{number % 3}.x", b"%d" % number, {"N": str(number)}) for number in range(900)])
    lake = tmp_path / "lake"
    archive = Archive("ORDERS", str(lake), partitioning=Partitioning(("date", "subject_root"), 2))
    first = run_on(own_server, archive, batch_messages=200, stop_after=1)
    assert first.summary.state == "stopped"
    assert 200 <= first.summary.rows < 900
    own_server.kill()
    own_server.start()
    admin = own_server.admin()
    admin.publish([("orders.9.y", b"%d" % number, {"N": str(number)}) for number in range(900, 950)])
    second = run_on(own_server, archive, batch_messages=400)
    assert second.summary.state == "finished"
    assert first.summary.rows + second.summary.rows == 950
    assert second.batches[-1].lag == 0
    rows = spark.read.parquet(str(lake)).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(1, 951))
    assert [bytes(row.data) for row in rows] == [b"%d" % number for number in range(950)]
    assert all(row.headers["N"] == [str(number)] for number, row in enumerate(rows))
    folders = {Path(path).parent.name for path in data_files(lake)}
    assert folders == {f"subject_root=orders.{name}" for name in "0129"}

    # So short a memory for ids that only a look at the stream can tell what it holds.
    admin.create_stream("COPY", subjects=["again.>"], duplicate_window=100_000_000)
    part = Replay(str(lake), "COPY", subject_map=MAP, selection=Selection(to_sequence=600))
    assert run_on(own_server, part).summary.rows == 600
    own_server.kill()
    own_server.start()
    admin = own_server.admin()
    rest = run_on(own_server, Replay(str(lake), "COPY", subject_map=MAP, pace=Pace(rate=50_000)))
    assert dict(rest.summary.facts) == {"published": 350, "there already": 600}
    again = run_on(own_server, Replay(str(lake), "COPY", subject_map=MAP))
    assert dict(again.summary.facts) == {"published": 0, "there already": 950}
    assert payloads(admin, "COPY") == [b"%d" % number for number in range(950)]
    message = admin.messages("COPY")[7]
    assert message["subject"] == "again.1.x"
    header = base64.b64decode(message["hdrs"])
    assert b"N: 7\r\n" in header
    assert b"Nats-Msg-Id: ORDERS:8\r\n" in header


def test_a_subject_that_holds_a_comma(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.publish([(subject, b"") for subject in ("A.x,y", "A.x", "A.z", "A.x,y")])
    lake = str(tmp_path / "lake")
    run_on(server, Archive("A", lake, subjects=("A.x,y", "A.z")))
    assert sorted(row.sequence for row in spark.read.parquet(lake).collect()) == [1, 3, 4]
    assert dict(run_on(server, Verify("A", lake)).summary.facts) == {"the same": 3}
    spec = (
        f"sources: {{a: {{stream: A, subjects: ['A.x,y', A.z]}}}}\nsinks: [{{from: a, to: 'parquet:{tmp_path}/sql'}}]\n"
    )
    run_on(server, SqlPipeline(parse_sql_file("f.yml", spec)))
    assert sorted(row.sequence for row in spark.read.parquet(str(tmp_path / "sql")).collect()) == [1, 3, 4]


def test_an_archive_goes_on_only_as_what_it_is(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.create_stream("B")
    admin.fill("A", 10)
    lake = str(tmp_path / "lake")
    run_on(server, Archive("A", lake))
    for other, word in (
        (Archive("B", lake), "stream"),
        (Archive("A", lake, "orc"), "format"),
        (Archive("A", lake, subjects=("A.1",)), "subjects"),
    ):
        with pytest.raises(ConfigError, match=f"archive with {word}"):
            run_on(server, other)
    # What tolerates losses does not tolerate sequences that are there twice.
    admin.api("STREAM.DELETE.A")
    admin.create_stream("A")
    admin.fill("A", 5)
    for _ in range(2):
        with pytest.raises(SparkError, match="only continue with its own stream"):
            run_on(server, Archive("A", lake), source={"failOnDataLoss": "false"})
    assert spark.read.parquet(lake).count() == 10
    FileSystem(spark, lake).delete("_jetlake/checkpoint")
    with pytest.raises(ConfigError, match=r"checkpoint .* is gone"):
        run_on(server, Archive("A", lake))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.txt").write_text("mine")
    with pytest.raises(ConfigError, match="contains other files"):
        run_on(server, Archive("A", str(tmp_path / "other")))


def test_a_folder_has_one_writer_and_says_who_it_is(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 10)
    lake = tmp_path / "lake"
    files = FileSystem(spark, str(lake))
    with locked(files, "archive B") as lock:
        with pytest.raises(ConfigError, match=rf"is being written by archive B \(process {os.getpid()} of .* since 20"):
            run_on(server, Archive("A", str(lake)))
        with pytest.raises(ConfigError, match="is being written by archive B"):
            Run(spark, PipelineSettings(), ()).closing.enter_context(locked(files, "sql"))
        lock.require()
        note = json.loads((lake / "_jetlake" / "lock.json").read_text())
        # A process that was killed, and whose pid another one has now.
        files.overwrite_json("_jetlake/lock.json", {**note, "token": "x", "started": "1"})
        with pytest.raises(SparkError, match="taken over by another writer"):
            lock.require()
    # A lock that a full disk or a power cut left empty counts for as long as any other one that nobody refreshes.
    half = lake / "_jetlake" / "lock.json"
    half.write_text("")
    with pytest.raises(ConfigError, match="a process that has just started"):
        run_on(server, Archive("A", str(lake)))
    os.utime(half, (0, 0))
    run_on(server, Archive("A", str(lake)))
    assert not half.exists()
    assert spark.read.parquet(str(lake)).count() == 10


def test_an_archive_is_compared_with_its_stream(spark, server_of, run_on, tmp_path):
    own_server = server_of("embedded")
    admin = own_server.admin()
    admin.create_stream("A")
    admin.publish([(f"A.{number % 3}", b"%d" % number, {"K": f"v{number}", "Q": "1"}) for number in range(30)])
    # A mirror that answers for the stream and lacks most of it changes nothing.
    admin.create_stream("A_COPY", subjects=[], mirror={"name": "A"}, mirror_direct=True, max_msgs=3)
    while admin.state("A_COPY")["last_seq"] < 30:
        time.sleep(0.02)
    lake = tmp_path / "lake"
    run_on(own_server, Archive("A", str(lake), "json", Partitioning(())))
    admin.api("STREAM.MSG.DELETE.A", {"seq": 4})
    admin.fill("A", 5, 100)
    verify = Verify("A", str(lake))
    same = dict(run_on(own_server, verify).summary.facts)
    assert same == {"gone from the stream": 1, "the same": 29, "not archived yet": 5}
    (file,) = lake.glob("batch-*.gz")
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    spoiled = [line for line in lines if '"sequence":7,' not in line]
    spoiled = [line.replace('"v8"', '"w8"') for line in spoiled] + [line for line in lines if '"sequence":12,' in line]
    (lake / f".{file.name}.crc").unlink()
    file.write_bytes(gzip.compress("\n".join(spoiled).encode()))
    with pytest.raises(SparkError) as caught:
        run_on(own_server, verify)
    said = "1 missing (sequence 7); 1 twice (sequence 12); 1 different (sequence 9)"
    assert str(caught.value).endswith(f"differs from stream A: {said}")
    # Rows that no batch has brought: another stream's, before the first and behind the last message, and one of a
    # message that never was.
    invented = [
        line.replace('"sequence":30,', f'"sequence":{number},') for line in lines[-1:] for number in (-5, 0, 36, 10**9)
    ]
    invented += [line.replace('"stream":"A"', '"stream":"B"') for line in lines if '"sequence":4,' in line]
    others = [line for line in lines if '"sequence":4,' not in line]
    file.write_bytes(gzip.compress("\n".join(others + invented).encode()))
    with pytest.raises(
        SparkError, match=r"5 never archived \(sequence -5, 0, 4, 36, 1000000000\); 1 archived messages are gone"
    ):
        run_on(own_server, verify)
    record = lake / "_jetlake" / "record.json"
    known = record.read_text()
    (lake / "_jetlake" / ".record.json.crc").unlink()
    for counted, said in ((40, "10 archived messages are gone from the archive, and"), (25, "5 more than the 25 that")):
        record.write_text(json.dumps({**json.loads(known), "messages": counted}))
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
        with pytest.raises(SparkError, match=said):
            run_on(own_server, verify)
    record.write_text(known)
    # What the checkpoint knows as archived is missing, also at the end; one of them is gone from the stream as well.
    file.unlink()
    with pytest.raises(SparkError, match=r"29 missing \(sequence 1, 2, 3, 5.*; 1 archived messages are gone"):
        run_on(own_server, verify)
    admin.api("STREAM.DELETE.A")
    admin.create_stream("A")
    with pytest.raises(SparkError, match="was recreated"):
        run_on(own_server, verify)
    for wrong, complaint in (
        (Verify("A", str(tmp_path)), "is not an archive"),
        (Verify("B", str(lake)), "of stream A"),
    ):
        admin.create_stream("B", subjects=["b"])
        with pytest.raises(ConfigError, match=complaint):
            run_on(own_server, wrong)


def test_an_archive_knows_where_it_begins_and_how_much_it_has_taken(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 60)
    archive = Archive("A", str(tmp_path), start="seq:21", partitioning=Partitioning(()))
    run_on(server, archive, batch_messages=10)
    expected = {"the same": 40, "before the archive begins": 20}
    assert dict(run_on(server, Verify("A", str(tmp_path))).summary.facts) == expected
    for file in tmp_path.glob("batch-00000000-*"):
        file.rename(tmp_path / f"_{file.name}")
    with pytest.raises(SparkError, match=r"10 missing \(sequence 21, 22, "):
        run_on(server, Verify("A", str(tmp_path)))
    # The same when the stream no longer has them.
    admin.api("STREAM.PURGE.A", {"seq": 41})
    with pytest.raises(SparkError, match="10 archived messages are gone from the archive, and from the stream"):
        run_on(server, Verify("A", str(tmp_path)))


def test_headers_are_kept_byte_for_byte_when_asked_for_and_told_of_otherwise(spark, server_of, run_on, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    admin.create_stream("B", subjects=["B.>"])
    block = b"NATS/1.0\r\nK: \xff\xfe\r\nk:no blank\r\nNats-Msg-Id: 1\r\nK: two\r\n\r\n"
    admin.publish_block("A.1", block, b"x")
    admin.publish([("A.2", b"y")])
    plain = dict(run_on(server, Archive("A", str(tmp_path / "plain"))).summary.facts)
    assert plain["messages with bytes that are not UTF-8"] == 1
    assert "--raw-headers keeps" in plain["their bytes"]
    lake = str(tmp_path / "raw")
    assert run_on(server, Archive("A", lake, raw_headers=True)).summary.facts == ()
    rows = spark.read.parquet(lake).orderBy("sequence").collect()
    assert [bytes(row.headers_raw) for row in rows] == [block, b""]
    with pytest.raises(ConfigError, match="archive with raw_headers True"):
        run_on(server, Archive("A", lake))
    run_on(server, Replay(lake, "B", subject_map=(("A.>", "B.>"),)))
    first, second = admin.messages("B")
    own = b"Nats-Expected-Stream: B\r\nNats-Msg-Id: A:1\r\n"
    assert base64.b64decode(first["hdrs"]) == b"NATS/1.0\r\n" + own + b"K: \xff\xfe\r\nk:no blank\r\nK: two\r\n\r\n"
    assert b"Nats-Msg-Id: A:2\r\n" in base64.b64decode(second["hdrs"])


def test_a_delta_table_takes_a_batch_once(spark, server_of, run_on, tmp_path, monkeypatch):
    from deltalake import DeltaTable

    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 60)
    lake = str(tmp_path / "lake")
    run_on(server, Archive("A", lake, "delta"), batch_messages=20, stop_after=1)
    run_on(server, Archive("A", lake, "delta", compact_bytes=1 << 20), batch_messages=20)
    table = DeltaTable(lake)
    assert sorted(table.to_pyarrow_table()["sequence"].to_pylist()) == list(range(1, 61))
    assert len(table.file_uris()) == 1
    rows = spark.createDataFrame([(1,)], "a int")
    sink = DeltaSink(spark, str(tmp_path / "again"), "query")
    for batch in (0, 0, 1, 0):
        sink.add(rows, batch)
    assert DeltaTable(str(tmp_path / "again")).to_pyarrow_table().num_rows == 2
    # A disk without enough room for what is aside: told before the package meets it with a panic.
    with monkeypatch.context() as patched:
        patched.setattr(delta_sink, "_ROOM", 1e15)
        with pytest.raises(SparkError, match=rf"no space is left on the disk of {tmp_path}/again: \d+ bytes are free"):
            sink.add(rows, 2)
    assert not sink.add(rows, 2)
    assert DeltaTable(str(tmp_path / "again")).to_pyarrow_table().num_rows == 3


def test_a_delta_table_takes_a_large_batch_in_little_memory(spark, server_of, run_on, tmp_path):
    import pyarrow as pa
    from deltalake import DeltaTable

    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A")
    admin.publish([(f"A.{number % 3}", b"%d" % number + b"." * 250) for number in range(120_000)])
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    lake = str(tmp_path / "lake")
    pa.set_memory_pool(counted)
    try:
        reporter = run_on(server, Archive("A", lake, "delta"), batch_messages=150_000)
    finally:
        pa.set_memory_pool(usual)
    assert [batch.rows for batch in reporter.batches if batch.rows] == [120_000]
    assert counted.max_memory() < 120_000 * 250 / 3
    rows = DeltaTable(lake).to_pyarrow_table(columns=["sequence", "timestamp"])
    assert sorted(rows["sequence"].to_pylist()) == list(range(1, 120_001))
    assert str(rows["timestamp"].type) == "timestamp[us, tz=UTC]"
    assert not (tmp_path / "lake" / "_jetlake" / "staging" / "0").exists()
    # A crash behind Delta's commit repeats the batch, which the table then has.
    shutil.rmtree(tmp_path / "lake" / "_jetlake" / "checkpoint" / "commits")
    run_on(server, Archive("A", lake, "delta"), batch_messages=150_000)
    assert DeltaTable(lake).count() == 120_000


def test_a_batch_that_broke_off_is_finished(spark, tmp_path, monkeypatch):
    sink = FolderSink(spark, str(tmp_path / "folder"), "parquet", ["part"])
    sink.add(spark.createDataFrame([(1, 1), (2, 2)], "n int, part int"), 0)
    moves = []
    real_move = FileSystem.move

    def failing_move(files, source, target):
        moves.append(target)
        if target.startswith("part=") and len([move for move in moves if move.startswith("part=")]) == 2:
            raise OSError("the power is gone")
        real_move(files, source, target)

    def rows():
        found = spark.read.parquet(str(tmp_path / "folder")).orderBy("n").collect()
        return [(row.n, row.part) for row in found]

    monkeypatch.setattr(FileSystem, "move", failing_move)
    with pytest.raises(OSError, match="power"):
        sink.add(spark.createDataFrame([(3, 1), (4, 2)], "n int, part int"), 1)
    monkeypatch.undo()
    # By now the stream may have lost what the batch has read.
    nothing = spark.createDataFrame([], "n int, part int")
    for _ in range(2):
        assert not sink.add(nothing, 1)
        assert rows() == [(1, 1), (2, 2), (3, 1), (4, 2)]
    # A file that was taken away, or that a power cut left short: the batch is computed again.
    for damage in (Path.unlink, lambda path: path.write_bytes(b"PAR1")):
        file = next((tmp_path / "folder" / "part=1").glob("batch-00000001-*"))
        file.with_name(f".{file.name}.crc").unlink()
        damage(file)
        assert sink.add(spark.createDataFrame([(3, 1), (4, 3)], "n int, part int"), 1)
        assert rows() == [(1, 1), (2, 2), (3, 1), (4, 3)]
    for _ in range(2):
        sink.replace_all(spark.createDataFrame([(9, 9)], "n int, part int"), 2)
        assert rows() == [(9, 9)]


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_what_is_archived_stays_though_its_batch_is_repeated_and_the_stream_has_lost_it(
    spark, server_of, run_on, tmp_path, format_name
):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    archive = Archive("A", str(tmp_path), format_name)
    for _ in range(2):
        admin.fill("A", 10)
        run_on(server, archive)
    # Killed between the folder and Spark's commit log, and started again when all that it has read is gone.
    for file in (tmp_path / "_jetlake" / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    admin.api("STREAM.PURGE.A")
    admin.fill("A", 5)
    run_on(server, archive)
    assert dict(run_on(server, Verify("A", str(tmp_path))).summary.facts) == {"gone from the stream": 20, "the same": 5}


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_a_batch_that_is_aside_is_finished_though_the_stream_has_lost_it(
    spark, server_of, run_on, tmp_path, format_name, monkeypatch
):
    """Killed when the rows are aside and before they are in the table, or in their places."""
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    archive = Archive("A", str(tmp_path), format_name)
    sink, step = (DeltaSink, "_append") if format_name == "delta" else (FolderSink, "_place")

    def dies(*_):
        raise OSError("killed")

    for rows in (20, 10):
        admin.fill("A", rows)
        with monkeypatch.context() as patched:
            patched.setattr(sink, step, dies)
            with pytest.raises(SparkError, match="killed"):
                run_on(server, archive)
        admin.api("STREAM.PURGE.A")
        run_on(server, archive)
    assert dict(run_on(server, Verify("A", str(tmp_path))).summary.facts) == {"gone from the stream": 30}
    assert not [*(tmp_path / "_jetlake" / "staging").glob("*")]
    # What is aside and not whole is read again, and what is not there any more is told.
    admin.fill("A", 10)
    with monkeypatch.context() as patched:
        patched.setattr(sink, step, dies)
        with pytest.raises(SparkError, match="killed"):
            run_on(server, archive)
    admin.api("STREAM.PURGE.A")
    (file, *_) = (tmp_path / "_jetlake" / "staging").rglob("part-*.parquet")
    file.unlink()
    with pytest.raises(SparkError, match="messages 31 to 40 of stream A are gone before they were read"):
        run_on(server, archive)


@pytest.mark.parametrize("format_name", ["parquet", "json"])
def test_a_compaction_that_broke_off_is_finished(spark, tmp_path, monkeypatch, format_name):
    root = str(tmp_path / "folder")
    sink = FolderSink(spark, root, format_name)
    for batch in range(4):
        sink.add(spark.createDataFrame([(batch, b"\x00\xff")], "sequence bigint, data binary").coalesce(1), batch)
    real_delete = FileSystem.delete

    def failing_delete(files, path):
        if path.startswith("batch-00000001"):
            raise OSError("the power is gone")
        real_delete(files, path)

    monkeypatch.setattr(FileSystem, "delete", failing_delete)
    with pytest.raises(OSError, match="power"):
        compact(spark, root, format_name, 1 << 20, StructType.fromDDL("sequence bigint, data binary"))
    monkeypatch.undo()
    finish_compaction(FileSystem(spark, root))
    # The last batch is left alone: it may be repeated, and must then find its own file.
    assert len(data_files(tmp_path / "folder")) == 2
    rows = (
        spark.read.format(format_name).schema("sequence bigint, data binary").load(root).orderBy("sequence").collect()
    )
    assert [(row.sequence, bytes(row.data)) for row in rows] == [(batch, b"\x00\xff") for batch in range(4)]


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_folders_may_be_called_as_one_likes(spark, server_of, run_on, tmp_path, format_name):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A", subjects=["A.>", "$A.>"])
    admin.create_stream("B", subjects=["B.>"])
    lake = tmp_path / ("my lake{1,2}*?größe#+" if format_name == "delta" else "my lake[1]{1,2}*?größe%20#+\\")
    admin.fill("A", 10)
    admin.publish([("$A.x", b"10")])
    for _ in range(3):
        run_on(server, Archive("A", str(lake), format_name, compact_bytes=1 << 20))
        admin.fill("A", 1)
    same = dict(run_on(server, Verify("A", str(lake))).summary.facts)
    assert same == {"the same": 13, "not archived yet": 1}
    whole = spark.read.format("jetstream").option("servers", server.url).option("archive", str(lake)).load("A")
    assert sorted(row.sequence for row in whole.select("sequence").collect()) == list(range(1, 15))
    again = run_on(server, Replay(str(lake), "B", subject_map=(("A.>", "B.>"), ("$A.>", "B.>"))))
    assert again.summary.rows == 13
    if format_name == "delta":
        for name in ("a[1]", "a%20b", "a|b"):
            with pytest.raises(ConfigError, match="a Delta table can't be written to"):
                run_on(server, Archive("A", str(tmp_path / name), "delta"))
