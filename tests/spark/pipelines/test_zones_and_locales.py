"""Times and names of folders mean the same in every time zone and every locale."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from jetlake.spark.pipelines.archive import Archive, Partitioning, read_archive
from jetlake.spark.pipelines.console import collect_shown
from jetlake.spark.pipelines.dead_letters import letters_as_messages
from jetlake.spark.pipelines.folder_sink import FolderSink

pytestmark = pytest.mark.spark

ZONES = ["Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata"]
# A second around midnight, and around both changes of summer time in Berlin and in Los Angeles.
MOMENTS = [
    datetime(2026, *day, tzinfo=UTC) + timedelta(microseconds=offset)
    for day in ((1, 31, 0), (3, 29, 1), (10, 25, 1), (3, 8, 10), (11, 1, 9))
    for offset in (-1, 0, 1_500_000)
]


@pytest.fixture
def in_zone(spark):
    """Sets the session's zone, and puts it back."""
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("format_name", ["orc", "json"])
def test_times_are_utc_in_every_zone(spark, in_zone, tmp_path, format_name):
    partitioning = Partitioning(("date", "hour"))
    micros = [round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) for moment in MOMENTS]
    for zone in ZONES:
        in_zone(zone)
        rows = spark.createDataFrame([(number, value) for number, value in enumerate(micros)], "sequence long, us long")
        rows = rows.selectExpr(
            "'A' as stream", "sequence", "'a' as subject", "timestamp_micros(us) as timestamp",
            "cast(map() as map<string,array<string>>) as headers", "cast('' as binary) as data",
        ).coalesce(1)  # fmt: skip
        folder = tmp_path / zone.replace("/", "-")
        FolderSink(spark, str(folder), format_name, ["date", "hour"]).add(partitioning.added_to(rows), 0)
        assert {str(path.parent.relative_to(folder)) for path in folder.glob("date=*/hour=*/batch-*")} == {
            moment.strftime("date=%Y-%m-%d/hour=%H") for moment in MOMENTS
        }
        in_zone(ZONES[ZONES.index(zone) - 1])
        found = read_archive(spark, str(folder), format_name).orderBy("sequence")
        assert [row.us for row in found.selectExpr("unix_micros(timestamp) as us").collect()] == micros
        if format_name == "json":
            contents = [gzip.decompress(path.read_bytes()).decode() for path in folder.glob("*/*/*.gz")]
            lines = [line for content in contents for line in content.splitlines()]
            told = {json.loads(line)["sequence"]: json.loads(line)["timestamp"] for line in lines}
            wanted = [moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for moment in MOMENTS]
            assert [told[number] for number in range(len(MOMENTS))] == wanted
            shown = collect_shown(found.select("sequence", "timestamp"))
            assert [row.timestamp for row in shown] == [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in MOMENTS]
            letters = found.selectExpr(
                "stream", "'w' as consumer", "sequence", "'terminated' as reason", "'' as description",
                "1 as deliveries", "timestamp as died_at", "true as found", "cast(null as string) as missing",
                "'0' as incarnation", "subject", "headers", "data",
            )  # fmt: skip
            headers = letters_as_messages(letters, "x").select("headers").collect()
            assert [row.headers["Dead-Letter-Time"] for row in headers] == [[text] for text in wanted]


def test_every_subject_has_a_folder(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("A", subjects=["t.>"])
    tokens = [
        "plain",
        "größe",
        "日本",
        "a" * 300,
        "ü" * 200,
        "ü" * 199 + "v",
        "a:b=c",
        "~7E",
        "%41",
        "$KV",
        "a/b",
        "\\",
        "#?",
    ]
    admin.publish([(f"t.{token}", token.encode()) for token in tokens])
    run_on(server, Archive("A", str(tmp_path / "lake"), partitioning=Partitioning(subject_tokens=2)))
    folders = [path.name for path in (tmp_path / "lake").glob("date=*/subject_root=*")]
    assert len(folders) == len(tokens)
    for name in folders:
        assert name.isascii()
        assert len(name) <= 255
    assert "subject_root=t.plain" in folders
    assert "subject_root=t.gr~C3~B6~C3~9Fe" in folders
    rows = spark.read.parquet(str(tmp_path / "lake")).orderBy("sequence").collect()
    assert [row.subject for row in rows] == [f"t.{token}" for token in tokens]
    assert [bytes(row.data).decode() for row in rows] == tokens


COMMANDS = """
import sys
from jetlake.cli.app import app

url, folder = sys.argv[1:]
there = ["--master", "local[1]", "--conf", "spark.sql.session.timeZone=Asia/Kolkata"]
for line in [
    ["archive", "ORDERS", folder + "/größe", "--format", "json"],
    ["verify", "ORDERS", folder + "/größe"],
    ["replay", folder + "/größe", "AGAIN", "--subject-map", "größe.>:again.größe.>"],
    ["health", "ORDERS"],
    ["dead-letters", "ORDERS", "--to", "DEAD", "--checkpoint", folder + "/check"],
    ["sql", folder + "/file.yml", "--checkpoint", folder + "/sql"],
]:
    print("running", line[0], flush=True)
    app(["-s", url, "pipeline", *line, *there], standalone_mode=False)
app(["-s", url, "pipeline", "requeue", "DEAD", "--dry-run"], standalone_mode=False)
"""


@pytest.mark.own_process
def test_every_command_runs_in_locale_c_and_far_from_utc(server_of, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("EVENTS", subjects=["$JS.EVENT.ADVISORY.CONSUMER.>", "$JS.EVENT.METRIC.>"])
    admin.create_stream("ORDERS", subjects=["größe.>"])
    admin.create_stream("AGAIN", subjects=["again.>"])
    admin.publish([(f"größe.{number}", b'{"town": "K\xc3\xb6ln"}', {"Straße": "Ärger"}) for number in range(20)])
    died = {"type": "io.nats.jetstream.advisory.v1.terminated", "stream": "ORDERS", "consumer": "w", "stream_seq": 3}
    admin.publish([("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.ORDERS.w", json.dumps(died).encode())])
    (tmp_path / "file.yml").write_text(
        "sources:\n  orders: {stream: ORDERS, schema: town string}\n"
        "steps:\n  - {name: towns, sql: \"SELECT town, sequence FROM orders WHERE town <> 'Düren'\"}\n"
        f"sinks:\n  - {{from: towns, to: 'parquet:{tmp_path}/towns', partition_by: town}}\n",
        encoding="utf-8",
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
    result = subprocess.run(
        [sys.executable, "-c", COMMANDS, server.url, str(tmp_path)],
        env={**kept, "LANG": "C", "LC_ALL": "C", "TZ": "Asia/Kolkata"},
        capture_output=True,
        timeout=560,
        check=False,
    )
    said = result.stdout.decode() + result.stderr.decode()
    assert result.returncode == 0, said
    assert "Traceback" not in said
    assert '"the same": 20' in said
    assert "1: größe.2 in ORDERS" in said
    copied = admin.messages("AGAIN")
    assert [message["subject"] for message in copied] == [f"again.größe.{number}" for number in range(20)]
    assert "Straße: Ärger\r\n" in base64.b64decode(copied[0]["hdrs"]).decode()
    (letter,) = admin.messages("DEAD")
    (event,) = [message for message in admin.messages("EVENTS") if "TERMINATED" in message["subject"]]
    assert f"Dead-Letter-Time: {event['time'][:19]}" in base64.b64decode(letter["hdrs"]).decode()
    assert f"{event['time'][:16].replace('T', ' ')}:00" in said
    (folder,) = (tmp_path / "größe").glob("date=*/subject_root=*")
    assert folder.name == "subject_root=gr~C3~B6~C3~9Fe"
    assert folder.parent.name == f"date={admin.messages('ORDERS')[0]['time'][:10]}"
    assert [path.name for path in (tmp_path / "towns").glob("town=*")] == ["town=Köln"]
