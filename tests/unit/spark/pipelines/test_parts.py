from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jetlake.errors import ConfigError, RowPublishError
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import StoredMessage
from jetlake.protocol.subjects import matches
from jetlake.spark.pipelines.archive import Partitioning, parse_partitioning
from jetlake.spark.pipelines.console import text_table
from jetlake.spark.pipelines.dead_letters import Death, letter_rows
from jetlake.spark.pipelines.folder_sink import file_name, is_data_file, plan_compaction
from jetlake.spark.pipelines.replay import Replay, Selection, parse_subject_map, subject_pattern
from jetlake.spark.pipelines.replay_task import Pace, Schedule, _renaming, slots
from jetlake.spark.pipelines.settings import PipelineSettings, default_checkpoint
from jetlake.spark.pipelines.sinks import Target, parse_target


@pytest.mark.parametrize("text", ["date,subject:1", "date,hour,subject:3", "subject:2", "none", "date"])
def test_a_partitioning_is_read_and_written(text):
    assert str(parse_partitioning(text)) == text


def test_the_default_is_by_date_and_first_token():
    assert parse_partitioning("date,subject") == Partitioning()


@pytest.mark.parametrize(
    "text", ["", "week", "date,date", "subject:0", "date;hour", "subject:x", "subject:1,subject:2"]
)
def test_a_wrong_partitioning_is_explained(text):
    with pytest.raises(ConfigError, match="is not a partitioning"):
        parse_partitioning(text)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("console", Target("console")),
        ("stream:A", Target("stream", "A")),
        ("parquet:lake", Target("parquet", "lake")),
        ("json:s3a://bucket/x", Target("json", "s3a://bucket/x")),
        ("s3a://bucket/x", Target("parquet", "s3a://bucket/x")),
        ("./lake", Target("parquet", "./lake")),
        ("A", Target("stream", "A")),
    ],
)
def test_targets(text, target):
    assert parse_target(text, plain="stream") == target


@pytest.mark.parametrize("text", ["", "stream:", "stream:a.b", "kafka:x", "console:x", "a b"])
def test_wrong_targets(text):
    with pytest.raises(ConfigError):
        parse_target(text, plain="stream")


def test_files_are_joined_within_their_partition_up_to_the_size():
    files = {"a/1": 10, "a/2": 10, "a/3": 200, "a/4": 85, "a/5": 10, "b/1": 10}
    assert plan_compaction(files, 100) == [["a/1", "a/2"], ["a/4", "a/5"]]
    assert plan_compaction({}, 100) == []


@given(st.dictionaries(st.sampled_from([f"{p}/{n}" for p in "ab" for n in range(9)]), st.integers(1, 150)))
def test_no_file_is_joined_twice_and_no_group_is_too_large(files):
    groups = plan_compaction(dict(sorted(files.items())), 100)
    joined = [path for group in groups for path in group]
    assert len(joined) == len(set(joined))
    for group in groups:
        assert len(group) > 1
        assert len({path[0] for path in group}) == 1
        assert sum(files[path] for path in group) <= 100


def test_file_names():
    assert (
        file_name("date=1/part-00000-uuid.c000.snappy.parquet", 7, 3)
        == "date=1/batch-00000007-00003.c000.snappy.parquet"
    )
    assert is_data_file("date=2026/batch.parquet")
    assert not is_data_file("_jetlake/checkpoint/offsets/0")
    assert not is_data_file("date=1/.x.crc")


@given(st.lists(st.floats(0, 0.2), max_size=200))
def test_slots_hold_every_message_once_in_order_and_none_too_early(steps):
    due, now = [], 0.0
    for step in steps:
        now += step
        due.append(now)
    rows = [row for slot in slots(due) for row in slot.rows]
    assert rows == list(range(len(due)))
    for slot in slots(due):
        assert all(due[row] <= slot.due_s <= due[row] + 0.0201 for row in slot.rows)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3)), min_size=1), st.booleans())
def test_no_message_is_closer_to_the_one_before_than_the_pace_says(steps, in_two_tasks):
    """Each message is due a step after the last one; sending the one before, or starting a task, took its time."""
    schedule, now_s, due_s, sent = Schedule(), 1_000_000.0, 0.0, []
    for number, (step_s, busy_s) in enumerate(steps):
        due_s += step_s if number else 0.0
        if in_two_tasks and number == len(steps) // 2:
            schedule = Schedule(schedule.began_s)
        at_s = schedule.send_at_s(due_s, now_s)
        assert at_s >= now_s
        sent.append((at_s, step_s, now_s))
        now_s = at_s + busy_s
    assert sent[0][0] == 1_000_000.0
    for (before_s, _, _), (at_s, step_s, arrived_s) in pairwise(sent):
        assert at_s - before_s >= step_s - 1e-6
        assert at_s <= max(arrived_s, before_s + step_s) + 1e-6


def test_paces():
    assert Pace(rate=100).due_s(50, 0, 0) == 0.5
    assert Pace(speed=2).due_s(50, 14.0, 10.0) == 2.0
    assert Pace().due_s(50, 14.0, 10.0) == 0.0
    assert Pace().is_instant
    for wrong in ({"rate": 1, "speed": 1}, {"rate": -1}):
        with pytest.raises(ConfigError):
            Pace(**wrong)


_token = st.text("ab*>.-$+", min_size=1, max_size=3).filter(lambda text: "." not in text)
_literal = st.lists(st.sampled_from(["a", "b", "a+", "$b", "ab"]), min_size=1, max_size=4).map(".".join)
_pattern = st.lists(st.sampled_from(["a", "b", "a+", "$b", "*"]), min_size=1, max_size=4).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"])])
)


@given(_pattern, _literal)
def test_a_subject_pattern_matches_the_same_in_sql(pattern, literal):
    assert bool(re.search(subject_pattern(pattern), literal)) == matches(pattern.encode(), literal.encode())


def test_selections_in_sql():
    chosen = Selection(from_time=1_000, to_time=2_000, from_sequence=3, to_sequence=4, stream="A")
    assert chosen.conditions() == [
        "stream = r'A'",
        "timestamp >= timestamp_micros(1)",
        "timestamp < timestamp_micros(2)",
        "sequence >= 3",
        "sequence <= 4",
    ]
    with pytest.raises(ConfigError, match="not a valid subject"):
        Selection(subjects=("a..b",))


def test_subject_maps():
    assert parse_subject_map(("a.>:b.>", "c:d")) == (("a.>", "b.>"), ("c", "d"))
    rename = _renaming((("a.>", "b.>"), ("*.x", "y.$1")), system=False)
    assert rename(b"a.1") == b"b.1"
    assert rename(b"q.x") == b"y.q"
    with pytest.raises(RowPublishError, match="no subject map"):
        rename(b"q.z")
    assert _renaming((), system=False)(b"q.z") == b"q.z"
    for wrong in ("a", ":a", "a:"):
        with pytest.raises(ConfigError, match="is not a subject map"):
            parse_subject_map((wrong,))
    with pytest.raises(ConfigError, match="can't be used"):
        Replay("/lake", "A", subject_map=(("a.*", "b.$2"),))
    with pytest.raises(ConfigError, match="--unordered cannot be combined"):
        Replay("/lake", "A", unordered=True, pace=Pace(rate=1))


def test_a_replays_place_depends_on_what_is_replayed_and_not_on_the_pace():
    plain = Replay("/lake", "A")
    assert plain.fingerprint() == Replay("/lake", "A", pace=Pace(rate=3)).fingerprint()
    assert plain.fingerprint() != Replay("/lake", "A", selection=Selection(to_sequence=3)).fingerprint()
    assert plain.fingerprint() != Replay("/lake", "B").fingerprint()


def test_a_dead_letter_keeps_its_message_or_says_that_it_is_gone():
    message = StoredMessage(
        subject="a.b", seq=3, data=b"x", hdrs=b"NATS/1.0\r\nK: 1\r\nK: 2\r\n\r\n", time="2026-01-31T12:00:00.000001Z"
    )
    made_ns, died_us = parse_time("2026-01-31T11:00:00Z"), parse_time("2026-01-31T12:30:00Z") // 1000

    def row(stored=message, made=made_ns, died=died_us):
        (found,) = letter_rows([Death("A", 3, died)], lambda stream, sequence: stored, lambda stream: made)
        return found

    kept = row()
    assert (kept["found"], kept["missing"], kept["subject"]) == (True, None, "a.b")
    assert (kept["headers"], kept["data"]) == ([("K", ["1", "2"])], b"x")
    # A header that no sink can write would keep the letter, and all others of its batch, from their stream.
    broken = b"NATS/1.0\r\na b: 1\r\nNoColon\r\nK\xff: \xfe\r\nK: 2\r\n\r\n"
    assert row(replace(message, hdrs=broken))["headers"] == [("K\ufffd", ["\ufffd"]), ("K", ["2"])]
    assert kept["timestamp"] % 1_000_000 == 1
    assert kept["incarnation"] == str(made_ns // 1000)
    later_ns = parse_time("2026-01-31T12:45:00Z")
    for gone, why, incarnation in (
        (row(stored=None), "removed before", made_ns // 1000),
        (row(stored=None, made=None), "stream was deleted", died_us),
        # The sequence belongs to another message: of a stream that was made again, or put back to an earlier state.
        (row(made=later_ns), "recreated since", died_us),
        (row(died=parse_time("2026-01-31T11:30:00Z") // 1000), "recreated since", made_ns // 1000),
    ):
        assert why in gone["missing"]
        assert (gone["found"], gone["subject"], gone["headers"], gone["data"]) == (False, None, [], None)
        assert gone["incarnation"] == str(incarnation)


def test_settings_are_checked_and_become_options(monkeypatch, tmp_path):
    settings = PipelineSettings(
        connection={"servers": "nats://a"}, batch_messages=7, source={"failOnDataLoss": "false"}
    )
    assert settings.source_options(stream="A", subjects="") == {
        "servers": "nats://a",
        "maxMessagesPerTrigger": "7",
        "failOnDataLoss": "false",
        "stream": "A",
    }
    for wrong in ({"batch_messages": 0}, {"every_s": -1}):
        with pytest.raises(ConfigError):
            PipelineSettings(**wrong)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_checkpoint("sql", "A", "x") == default_checkpoint("sql", "A", "x")
    assert default_checkpoint("sql", "A", "x") != default_checkpoint("sql", "A", "y")
    assert default_checkpoint("sql", "A", "x").startswith(str(tmp_path))


def test_tables_for_people():
    table = text_table(("name", "count"), [("a", 1), ("bb", 20)])
    assert table == "name  count\n----  -----\na         1\nbb       20\n"
    assert text_table(("a",), []) == "a\n-\n"
