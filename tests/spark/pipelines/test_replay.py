from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import ARCHIVE_COLUMNS
from jetlake.spark.pipelines.folder_sink import FolderSink
from jetlake.spark.pipelines.replay import Replay, Selection

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
    with pytest.raises(ConfigError, match="still holds messages of its own"):
        run_on(server, Replay(lake, "A", "orc"))
    with pytest.raises(Exception, match=r"A\.0.*no subject map of the replay matches"):
        other = Selection(subjects=("A.0",))
        run_on(server, Replay(lake, "B", "orc", subject_map=(("A.1", "B.y"),), selection=other))
    with pytest.raises(ConfigError, match="name the format"):
        run_on(server, Replay(str(tmp_path), "B"))
