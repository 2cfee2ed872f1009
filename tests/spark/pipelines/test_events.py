from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter

import pytest
from click.testing import CliRunner

import jetlake
from jetlake.cli.app import app
from jetlake.errors import ConfigError
from jetlake.model.encoding.times import parse_time
from jetlake.spark.pipelines.dead_letters import DeadLetters
from jetlake.spark.pipelines.event_pipeline import EVENTS_STREAM, events_config
from jetlake.spark.pipelines.health import Health
from jetlake.spark.pipelines.sinks import Target

pytestmark = pytest.mark.spark

WINDOW_NS = 50_000_000


async def _work(url: str, first: int, count: int) -> None:
    """Publish jobs and let a worker ack, nak, forget and give up, until each has come to an end."""
    async with await jetlake.connect(url) as client:
        js = client.jetstream()
        await js.create_or_update_stream(EVENTS_STREAM, **events_config())
        jobs = await js.create_stream("JOBS", subjects=["jobs.>"], allow_direct=True)
        worker = await jobs.create_consumer("worker", max_deliver=2, sample_freq="100")
        for number in range(first, first + count):
            await js.publish(f"jobs.{number}", b"job %d" % number, headers={"N": str(number)})
        events = await js.stream(EVENTS_STREAM)

        async def seen() -> int:
            subjects = (await events.info(subjects_filter=">")).state.subjects
            kinds = ("MAX_DELIVERIES", "MSG_TERMINATED", "CONSUMER.ACK")
            return sum(number for subject, number in subjects.items() if any(kind in subject for kind in kinds))

        before = await seen()
        while await seen() - before < count:
            for message in await worker.fetch(100, expires=0.3):
                number = int(message.data.split()[1])
                if number % 5 == 1:
                    message._settle(b"+TERM broken\nby hand")  # as other clients may
                elif number % 5 == 0 or (number % 5 == 2 and message.metadata.delivered == 1):
                    await message.nak()
                else:
                    await message.ack()


def work(server, first, count):
    asyncio.run(asyncio.wait_for(_work(server.url, first, count), 60))


def events_of(admin):
    found = []
    for message in admin.messages(EVENTS_STREAM):
        body = json.loads(base64.b64decode(message["data"]))
        found.append((parse_time(message["time"]) // 1000 * 1000, message["subject"].split(".")[4], body))
    return [entry for entry in found if "consumer" in entry[2]]


def test_windows_and_dead_letters_are_written_once(spark, own_server, run_on, tmp_path):
    health = Health(Target("parquet", str(tmp_path / "health")), ("JOBS",), window="50ms", late="0s")
    dead = Target("stream", "DEAD") if own_server.kind == "embedded" else Target("json", str(tmp_path / "dead"))
    letters = DeadLetters(("JOBS",), dead)
    work(own_server, 0, 15)
    run_on(own_server, health)
    run_on(own_server, letters, checkpoint=str(tmp_path / "check"))
    own_server.kill()
    own_server.start()
    admin = own_server.admin()
    work(own_server, 15, 10)
    # The same advisory once more, as a server that was restarted may send it.
    repeated = next(body for _, kind, body in events_of(admin) if kind == "MSG_TERMINATED")
    admin.publish([("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.JOBS.worker", json.dumps(repeated).encode())])
    run_on(own_server, health)
    run_on(own_server, letters, checkpoint=str(tmp_path / "check"))
    check_health(spark, admin, health.target)
    check_letters(spark, admin, dead)


def check_health(spark, admin, target):
    events = [
        event for event in events_of(admin) if event[1] in ("ACK", "MSG_NAKED", "MSG_TERMINATED", "MAX_DELIVERIES")
    ]
    newest = max(time_ns // WINDOW_NS for time_ns, _, _ in events)
    counted: dict[int, Counter[str]] = {}
    for time_ns, kind, body in events:
        if time_ns // WINDOW_NS < newest:
            window = counted.setdefault(time_ns // WINDOW_NS, Counter())
            window[kind] += 1
            window["redeliveries"] += body["deliveries"] - 1 if kind != "MSG_NAKED" else 0
    rows = spark.read.parquet(target.value).selectExpr("*", "unix_millis(minute) as at").collect()
    assert sorted(row["at"] * 1_000_000 // WINDOW_NS for row in rows) == sorted(counted)
    for row in rows:
        window = counted[row["at"] * 1_000_000 // WINDOW_NS]
        assert (row.stream, row.consumer) == ("JOBS", "worker")
        assert (row.acks, row.naks) == (window["ACK"], window["MSG_NAKED"])
        assert (row.terminated, row.max_deliveries) == (window["MSG_TERMINATED"], window["MAX_DELIVERIES"])
        assert row.redeliveries == window["redeliveries"]
        assert (row.ack_p50_ms is None) == (row.acks == 0)
        assert row.acks == 0 or 0 < row.ack_p50_ms <= row.ack_p95_ms <= row.ack_p99_ms


def check_letters(spark, admin, target):
    dead = {
        number: ("max_deliveries", "") if number % 5 == 0 else ("terminated", "broken\nby hand")
        for number in range(25)
        if number % 5 < 2
    }
    if target.is_folder:
        rows = spark.read.json(target.value).collect()
        assert sorted(row.sequence - 1 for row in rows) == sorted(dead)
        for row in rows:
            number = row.sequence - 1
            assert (row.reason, row.description) == dead[number]
            assert base64.b64decode(row.data) == b"job %d" % number
            assert (row.found, row.subject, row.headers["N"]) == (True, f"jobs.{number}", [str(number)])
            assert row.deliveries == (2 if row.reason == "max_deliveries" else 1)
        return
    messages = admin.messages("DEAD")
    assert len(messages) == len(dead)
    for message in messages:
        header = base64.b64decode(message["hdrs"]).decode()
        number = int(header.partition("Dead-Letter-Sequence: ")[2].split("\r\n")[0]) - 1
        reason, description = dead.pop(number)
        assert base64.b64decode(message["data"]) == b"job %d" % number
        assert message["subject"] == "DEAD.JOBS.worker"
        assert f"Dead-Letter-Reason: {reason}\r\n" in header
        assert f"Dead-Letter-Subject: jobs.{number}\r\n" in header
        assert f"\r\nN: {number}\r\n" in header
        assert ("Dead-Letter-Description: broken by hand\r\n" in header) == bool(description)


def test_a_stream_that_was_made_again_has_dead_letters_of_its_own(spark, server_of, run_on, tmp_path):
    own_server = server_of("nats-server")
    admin = own_server.admin()
    letters = DeadLetters(("JOBS",), Target("stream", "DEAD"))

    def collected():
        run_on(own_server, letters, checkpoint=str(tmp_path / "check"))
        found = []
        for message in admin.messages("DEAD"):
            header = base64.b64decode(message["hdrs"]).decode()
            missing = header.partition("Dead-Letter-Missing: ")[2].split("\r\n")[0]
            sequence = int(header.partition("Dead-Letter-Sequence: ")[2].split("\r\n")[0])
            found.append((sequence, base64.b64decode(message.get("data", "")), missing))
        return found

    work(own_server, 0, 5)
    assert sorted(collected()) == [(1, b"job 0", ""), (2, b"job 1", "")]
    # Deaths of the second stream are collected after it is gone too, those of the third in its time.
    for first in (10, 20):
        admin.api("STREAM.DELETE.JOBS")
        work(own_server, first, 5)
    found = sorted(collected())
    assert [sequence for sequence, _, _ in found] == [1, 1, 1, 2, 2, 2]
    assert [payload for _, payload, missing in found if not missing] == [b"job 0", b"job 20", b"job 1", b"job 21"]
    assert [payload for _, payload, missing in found if "recreated" in missing] == [b"", b""]


def test_dead_letters_go_back_where_they_came_from(own_server):
    """No Spark here: letters as the pipeline writes them, one of which was requeued before without being deleted."""
    admin = own_server.admin()
    admin.create_stream("JOBS", subjects=["jobs.>"])
    admin.create_stream("DEAD")
    base = {"Dead-Letter-Stream": "JOBS", "Dead-Letter-Reason": "terminated", "Nats-Msg-Id": "JOBS:w:1:0"}
    for number in range(5):
        consumer = "w" if number < 3 else "other"
        extra = {"Dead-Letter-Missing": "gone"} if number == 1 else {"Dead-Letter-Subject": f"jobs.{number}"}
        headers = {**base, **extra, "Dead-Letter-Consumer": consumer, "N": str(number), "Nats-Msg-Id": str(number)}
        admin.publish([("DEAD.JOBS.w", b"job %d" % number, headers)])
    admin.publish([("DEAD.note", b"no letter")])
    stored_ns = parse_time(admin.messages("DEAD")[2]["time"])
    admin.publish([("jobs.2", b"job 2", {"Nats-Msg-Id": f"requeue:DEAD:3:{stored_ns}"})])

    def requeue(*words):
        result = CliRunner().invoke(app, ["pipeline", "requeue", "DEAD", *words, "-s", own_server.url])
        assert result.exit_code == 0, result.output
        return result.output

    assert "1: jobs.0 in JOBS, 5 bytes" in requeue("--dry-run", "--consumer", "w")
    assert admin.state("DEAD")["messages"] == 6
    said = requeue("--consumer", "w")
    assert said == (
        "1 published, 1 without their message, left where they are, 1 published before, 2 not chosen, "
        "1 no dead letters\n"
    )
    assert [message["subject"] for message in admin.messages("JOBS")] == ["jobs.2", "jobs.0"]
    header = base64.b64decode(admin.messages("JOBS")[1]["hdrs"]).decode()
    assert "Dead-Letter" not in header and "N: 0\r\n" in header
    assert [message["seq"] for message in admin.messages("DEAD")] == [2, 4, 5, 6]
    assert requeue("--keep", "--from-seq", "5", "--reason", "terminated", "--of", "JOBS").startswith("1 published")
    assert admin.state("DEAD")["messages"] == 4
    # The stream of letters is made again: its first letter is another one, though it has the sequence of an old one.
    admin.api("STREAM.DELETE.DEAD")
    admin.create_stream("DEAD")
    for subject in ("jobs.9", "elsewhere", "jobs.10"):
        headers = {**base, "Dead-Letter-Subject": subject, "Nats-Msg-Id": subject}
        admin.publish([("DEAD.JOBS.w", b"job", headers)])
    result = CliRunner().invoke(app, ["pipeline", "requeue", "DEAD", "-s", own_server.url])
    assert (result.exit_code, result.stdout) == (1, "2 published, 1 refused, left where they are\n")
    assert "jetlake: letter 2, elsewhere in JOBS: " in result.stderr
    assert [message["subject"] for message in admin.messages("JOBS")][-2:] == ["jobs.9", "jobs.10"]
    assert [message["seq"] for message in admin.messages("DEAD")] == [2]


def test_health_of_a_stream_that_does_not_exist_is_an_error(own_server):
    own_server.admin().create_stream("EVENTS", subjects=["$JS.EVENT.>"])
    result = CliRunner().invoke(app, ["-s", own_server.url, "pipeline", "health", "NOSUCH"])
    assert (result.exit_code, "stream NOSUCH does not exist" in result.output) == (2, True)


def test_health_is_shown_with_its_open_windows_and_goes_to_a_stream(spark, server_of, run_on, tmp_path, capsys):
    server = server_of("nats-server")
    with pytest.raises(ConfigError, match="jetlake events init"):
        run_on(server, Health(Target("console")))
    work(server, 0, 10)
    run_on(server, Health(Target("console"), ("JOBS",)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["minute", "stream", "consumer", "acks"]
    figures = [dict(zip(lines[0].split(), line.split()[1:], strict=True)) for line in lines[2:]]
    assert sum(int(row["acks"]) for row in figures) == 6
    assert sum(int(row["naks"]) for row in figures) == 6
    run_on(server, Health(Target("stream", "HEALTH"), window="50ms", late="0s"), checkpoint=str(tmp_path / "check"))
    rows = [json.loads(base64.b64decode(message["data"])) for message in server.admin().messages("HEALTH")]
    assert rows
    assert {row["consumer"] for row in rows} == {"worker"}


def test_a_letter_whose_message_is_gone_is_kept_without_it(spark, server_of, run_on, capsys):
    server = server_of("nats-server")
    work(server, 0, 5)
    server.admin().api("STREAM.MSG.DELETE.JOBS", {"seq": 2})
    run_on(server, DeadLetters(("JOBS",), Target("console")))
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[2]: line for line in lines[2:]}
    assert "broken by hand" in found["2"]
    assert "False" in found["2"]
    assert "True" in found["1"]
