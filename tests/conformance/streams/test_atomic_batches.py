"""Atomic batches: staging, commit, every check and limit, on both servers with the same answers."""

import pytest

from tests.support.pair import Pair


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


def member(batch, sequence, commit=None, **more):
    """The headers of one message of a batch."""
    headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(sequence)}
    if commit is not None:
        headers["Nats-Batch-Commit"] = commit
    return headers | {f"Nats-{key.replace('_', '-')}": value for key, value in more.items()}


async def create(pair, name="B", **config):
    await pair.api(
        f"STREAM.CREATE.{name}",
        {"name": name, "subjects": [f"{name.lower()}.>"], "allow_atomic": True, **config},
    )


async def stored(pair, name="B"):
    """Subject, headers and payload of every message, the same on both servers."""
    info = await pair.api(f"STREAM.INFO.{name}")
    state = info["state"]
    return [
        await pair.api(f"STREAM.MSG.GET.{name}", {"seq": sequence})
        for sequence in range(state["first_seq"], state["last_seq"] + 1)
    ]


async def test_a_batch_is_stored_as_a_whole(pair):
    await create(pair)
    await pair.store("b.before")
    assert (await pair.request("b.a", b"1", member("x", 1))).payload == b""
    await pair.store("b.between")
    assert (await pair.request("b.b", b"2", member("x", 2))).payload == b""
    assert (await pair.api("STREAM.INFO.B"))["state"]["messages"] == 2
    assert await pair.store("b.c", b"3", member("x", 3, "1")) == {"stream": "B", "seq": 5, "batch": "x", "count": 3}
    assert len(await stored(pair)) == 5
    await pair.store("b.after")


async def test_a_batch_ends_without_another_message(pair):
    await create(pair)
    await pair.request("b.a", b"1", member("x", 1))
    await pair.request("b.b", b"2", member("x", 2))
    assert (await pair.store("b.c", b"3", member("x", 3, "eob")))["count"] == 2
    assert len(await stored(pair)) == 2
    await pair.store("b.a", b"", member("y", 1, "eob"))
    await pair.store("b.a", b"", member("z", 1, "1"))
    await pair.store("b.a", b"", member("z", 1, "1"))
    await stored(pair)


HEADERS = {
    "no sequence": {"Nats-Batch-Id": "x"},
    "junk sequence": member("x", "one"),
    "sequence zero": member("x", 0),
    "signed sequence": member("x", "+1"),
    "negative sequence": member("x", -1),
    "huge sequence": member("x", 2**70),
    "unknown batch": member("x", 2),
    "unknown batch, too large": member("x", 1001),
    "unknown batch, largest": member("x", 1000),
    "unknown batch, end too large": member("x", 1002, "eob"),
    "unknown batch, end at largest": member("x", 1001, "eob"),
    "long id": member("i" * 65, 1),
    "longest id": member("i" * 64, 1),
    "empty id": member("", 1),
    "junk commit": member("x", 1, "yes"),
    "empty commit": member("x", 1, ""),
    "zero commit": member("x", 1, "0"),
    "api level": member("x", 1, Required_Api_Level="9"),
    "junk api level": member("x", 1, Required_Api_Level="x"),
    "api level of today": member("x", 1, "1", Required_Api_Level="2"),
}


@pytest.mark.parametrize("enabled", [True, False])
async def test_the_first_message(pair, enabled):
    await create(pair, allow_atomic=enabled)
    for headers in HEADERS.values():
        await pair.request("b.a", b"x", headers)
        await pair.request("b.a", b"x", member("x", 1, "1"))
        await pair.request("b.a", b"x", member("i" * 64, 1, "1"))
    await stored(pair)


@pytest.mark.parametrize("second", [1, 3, 0])
async def test_a_gap_drops_the_batch(pair, second):
    await create(pair)

    async def act(wire):
        await wire.request("b.a", b"1", block(member("x", 1)))
        await wire.request("b.a", b"2", block(member("x", second)))

    await pair.heard("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>", act, 1)
    await pair.request("b.a", b"2", member("x", 2))
    await pair.request("b.a", b"3", member("x", 3, "1"))
    await stored(pair)


async def test_a_level_too_high_drops_the_batch(pair):
    await create(pair)

    async def act(wire):
        await wire.request("b.a", b"1", block(member("x", 1)))
        await wire.request("b.a", b"2", block(member("x", 2, Required_Api_Level="9")))

    await pair.heard("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>", act, 1)
    await pair.request("b.a", b"2", member("x", 2))


async def test_a_bad_commit_drops_the_batch(pair):
    await create(pair)
    await pair.request("b.a", b"1", member("x", 1))
    await pair.request("b.a", b"1", member("x", 2, "no"))
    await pair.request("b.a", b"1", member("x", 2))


def block(headers):
    return b"NATS/1.0\r\n" + b"".join(f"{key}: {value}\r\n".encode() for key, value in headers.items()) + b"\r\n"


# The messages of a batch, as (subject, headers besides those of the batch).
BATCHES = {
    "plain": [("b.x", {}), ("b.y", {})],
    "other stream": [("b.x", {}), ("b.y", {"Expected_Stream": "C"})],
    "right stream": [("b.x", {"Expected_Stream": "B"}), ("b.y", {"Expected_Stream": "B"})],
    "last id": [("b.x", {"Expected_Last_Msg_Id": "two"})],
    "lifetime": [("b.x", {}), ("b.y", {"TTL": "5s"})],
    "junk lifetime": [("b.x", {"TTL": "junk"})],
    "fresh ids": [("b.x", {"Msg_Id": "a1"}), ("b.y", {"Msg_Id": "a2"})],
    "the same id twice": [("b.x", {"Msg_Id": "a"}), ("b.y", {"Msg_Id": "a"})],
    "a known id": [("b.x", {}), ("b.y", {"Msg_Id": "two"})],
    "source": [("b.x", {"Stream_Source": "x"})],
    "last sequence": [("b.x", {"Expected_Last_Sequence": "3"}), ("b.y", {})],
    "wrong last sequence": [("b.x", {"Expected_Last_Sequence": "2"}), ("b.y", {})],
    "running last sequence": [("b.x", {}), ("b.y", {"Expected_Last_Sequence": "4"})],
    "wrong running last sequence": [("b.x", {}), ("b.y", {"Expected_Last_Sequence": "3"})],
    "subject sequence": [
        ("b.x", {"Expected_Last_Subject_Sequence": "0"}),
        ("b.1", {"Expected_Last_Subject_Sequence": "1"}),
    ],
    "wrong subject sequence": [("b.x", {}), ("b.1", {"Expected_Last_Subject_Sequence": "9"})],
    "subject written before": [("b.x", {}), ("b.x", {"Expected_Last_Subject_Sequence": "0"})],
    "subject sequence twice": [
        ("b.x", {"Expected_Last_Subject_Sequence": "0"}),
        ("b.x", {"Expected_Last_Subject_Sequence": "0"}),
    ],
    "sequence of another subject": [
        ("b.x", {"Expected_Last_Subject_Sequence": "1", "Expected_Last_Subject_Sequence_Subject": "b.1"}),
        ("b.y", {}),
    ],
    "the other subject is written later": [
        ("b.x", {"Expected_Last_Subject_Sequence": "1", "Expected_Last_Subject_Sequence_Subject": "b.1"}),
        ("b.1", {}),
    ],
    "the other subject is expected again": [
        ("b.x", {"Expected_Last_Subject_Sequence": "1", "Expected_Last_Subject_Sequence_Subject": "b.1"}),
        ("b.y", {"Expected_Last_Subject_Sequence": "1", "Expected_Last_Subject_Sequence_Subject": "b.1"}),
    ],
    "the other subject is expected for itself": [
        ("b.x", {"Expected_Last_Subject_Sequence": "1", "Expected_Last_Subject_Sequence_Subject": "b.1"}),
        ("b.1", {"Expected_Last_Subject_Sequence": "1"}),
    ],
    "another subject that was written": [
        ("b.1", {}),
        ("b.y", {"Expected_Last_Subject_Sequence": "1", "Expected_Last_Subject_Sequence_Subject": "b.1"}),
    ],
    "a pattern": [
        ("b.x", {"Expected_Last_Subject_Sequence": "3", "Expected_Last_Subject_Sequence_Subject": "b.*"}),
    ],
    "a pattern later": [
        ("b.x", {}),
        ("b.y", {"Expected_Last_Subject_Sequence": "3", "Expected_Last_Subject_Sequence_Subject": "b.*"}),
    ],
    "subject without sequence": [("b.x", {"Expected_Last_Subject_Sequence_Subject": "b.1"})],
    "rollup": [("b.1", {"Rollup": "sub"}), ("b.1", {})],
    "late rollup": [("b.1", {}), ("b.1", {"Rollup": "sub"})],
    "rollup twice": [("b.1", {"Rollup": "sub"}), ("b.1", {"Rollup": "sub"})],
    "rollup of two subjects": [("b.1", {"Rollup": "sub"}), ("b.2", {"Rollup": "sub"})],
    "rollup of all": [("b.1", {"Rollup": "all"}), ("b.2", {})],
    "late rollup of all": [("b.1", {}), ("b.2", {"Rollup": "all"})],
    "junk rollup": [("b.1", {"Rollup": "junk"})],
    "upper case rollup": [("b.1", {"Rollup": "SUB"})],
    "increment": [("b.x", {"Incr": "1"})],
    "schedule": [("b.x", {"Schedule": "@every 1s"})],
    "scheduler": [("b.x", {"Scheduler": "b.1"})],
    "stream before id": [("b.x", {"Msg_Id": "one", "Expected_Stream": "C"})],
    "id before sequence": [("b.x", {"Msg_Id": "one", "Expected_Last_Sequence": "9"})],
    "source before sequence": [("b.x", {"Stream_Source": "one", "Expected_Last_Sequence": "9"})],
    "both sequences": [("b.x", {"Expected_Last_Subject_Sequence": "8", "Expected_Last_Sequence": "9"})],
    "rollup before sequence": [("b.x", {"Rollup": "junk", "Expected_Last_Sequence": "9"})],
    "schedule before rollup": [("b.x", {"Rollup": "junk", "Schedule": "@every 1s"})],
    "stream before last id": [("b.x", {"Expected_Last_Msg_Id": "one", "Expected_Stream": "C"})],
    "lifetime before id": [("b.x", {"Msg_Id": "one", "TTL": "junk"})],
    "headers": [("b.x", {"Custom": "kept"}), ("b.y", {"Custom": "kept"})],
    "the same subjects": [(f"b.{name}", {}) for name in ("x", "1", "x", "y", "z", "3", "y")],
}
STREAMS = {
    "plain": {},
    "rollups and lifetimes": {"allow_rollup_hdrs": True, "allow_msg_ttl": True},
    "full": {"discard": "new", "max_msgs": 4},
    "full of bytes": {"discard": "new", "max_bytes": 260},
    "full subjects": {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
    "one for each subject": {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    "few": {"max_msgs": 3},
    "few, and one for each subject": {"max_msgs": 3, "max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    "few, and two for each subject": {"max_msgs": 4, "max_msgs_per_subject": 2, "allow_rollup_hdrs": True},
    "interest": {"retention": "interest", "allow_rollup_hdrs": True},
    "transformed": {"subject_transform": {"src": "b.>", "dest": "b.t.>"}, "allow_rollup_hdrs": True},
    "in memory": {"storage": "memory", "allow_rollup_hdrs": True},
    "no deduplication": {"duplicate_window": 0},
}


# What the rules of a stream may change.
CHANGING = {
    "plain",
    "fresh ids",
    "a known id",
    "subject sequence",
    "rollup",
    "late rollup",
    "rollup of all",
    "headers",
    "the same subjects",
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_the_checks_of_the_commit(pair, kind):
    differences = []
    for number, (name, messages) in enumerate(BATCHES.items()):
        if kind != "rollups and lifetimes" and name not in CHANGING:
            continue
        stream = f"S{number}"
        await create(pair, stream, **STREAMS[kind])
        prefix = stream.lower()

        def own(text, prefix=prefix, stream=stream):
            return text.replace("b.", f"{prefix}.") if text != "B" else stream

        for at, message_id in enumerate(["one", "two", "three"], 1):
            await pair.request(f"{prefix}.{at}", b"x", {"Nats-Msg-Id": message_id})
        for at, (subject, headers) in enumerate(messages, 1):
            headers = {key: own(value) for key, value in headers.items()}
            commit = "1" if at == len(messages) else None
            try:
                await pair.request(own(subject), b"", member(name, at, commit, **headers))
            except AssertionError as error:
                differences.append(f"{name}: {error}")
        try:
            await stored(pair, stream)
        except AssertionError as error:
            differences.append(f"{name}: {error}")
        await pair.api(f"STREAM.DELETE.{stream}")
    assert not differences, "\n".join(differences)


LIMITS = """jetstream {
  store_dir: STORE_DIR
  limits { batch { max_inflight_per_stream: 1, max_inflight_total: 2, max_msgs: 2, timeout: "TIMEOUT" } }
}"""


async def test_limits_of_the_configuration():
    async with Pair(LIMITS.replace("TIMEOUT", "1m")) as pair:
        for name in ("B", "C", "D"):
            await create(pair, name)
        await pair.request("b.a", b"", member("x", 1))
        await pair.request("b.a", b"", member("y", 1))
        await pair.request("c.a", b"", member("x", 1))
        await pair.request("d.a", b"", member("x", 1))
        await pair.request("b.a", b"", member("x", 2))
        await pair.request("b.a", b"", member("x", 3))
        await pair.request("b.a", b"", member("x", 1))
        await pair.request("b.a", b"", member("x", 2))
        await pair.request("b.a", b"", member("x", 3, "eob"))


async def test_a_batch_that_nobody_goes_on_with_is_abandoned():
    async with Pair(LIMITS.replace("TIMEOUT", "1s")) as pair:
        await create(pair, "B")

        async def act(wire):
            await wire.request("b.a", b"", block(member("slow", 1)))

        await pair.heard("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.B", act, 1)
        await pair.request("b.a", b"", member("slow", 2))
