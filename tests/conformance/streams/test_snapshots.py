"""Backup and restore: nats-server's archives, its answers and its errors, and from one server into the other."""

import asyncio
import io
import json
import tarfile
from random import Random

import pytest

from jetlake.model.archive.archive import END, MAGIC, encode_entry
from jetlake.model.archive.s2 import IDENTIFIER, S2Reader, compress
from jetlake.store.files.folders import folder_name
from tests.support.backups import content, fill, put, take
from tests.support.servers import make_server
from tests.support.wire import Wire


def refusal(answer):
    return answer["error"]["code"], answer["error"]["err_code"], answer["error"]["description"]


def framed(data):
    return IDENTIFIER + b"".join(compress(data[at : at + 60_000]) for at in range(0, len(data), 60_000))


def archive_of(state, *messages):
    entries = [encode_entry(b"state.json", 1, 0, b"", state)]
    entries += [encode_entry(b"s.a", 1_700_000_000 * 10**9 + sequence, sequence, b"", b"x") for sequence in messages]
    return framed(MAGIC + b"".join(entries) + END)


def archive_with_consumer(delivered, floor, *pending):
    """An archive of three messages and a consumer that stands there."""
    state = {
        "delivered": {"consumer_seq": delivered[0], "stream_seq": delivered[1]},
        "ack_floor": {"consumer_seq": floor[0], "stream_seq": floor[1]},
        "pending": {str(sequence): {"Sequence": sequence, "Timestamp": 1} for sequence in pending},
    }
    consumer = {"config": {"durable_name": "c", "name": "c", "ack_policy": "explicit"}, "state": state}
    entries = [
        encode_entry(b"state.json", 1, 0, b"", b'{"messages":3,"first_seq":1,"last_seq":3,"consumer_count":1}'),
        encode_entry(b"consumers/c", 1, 0, b"", json.dumps(consumer).encode()),
        *(encode_entry(b"s.a", 1_700_000_000 * 10**9, sequence, b"", b"x") for sequence in (1, 2, 3)),
    ]
    return framed(MAGIC + b"".join(entries) + END)


TOO_MANY = "invalid stream state: message count exceeds sequence range"
NO_RANGE = "invalid stream state: inconsistent message count or sequence range"
NOT_SET = 'failed to set consumer "c" state: '
OUT_OF_RANGE = "bad pending entry, sequence [%d] out of range"


@pytest.fixture
async def other_server(kind):
    """A connection to a server of the other kind."""
    server = make_server("embedded" if kind == "nats-server" else "nats-server")
    await server.start()
    wire = await (await Wire.open(server.host, server.port)).hello()
    yield wire
    await wire.close()
    await server.discard()


async def test_requests_that_are_refused(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    for verb, body, expected in (
        ("SNAPSHOT.S", b"", (400, 10003)),
        ("SNAPSHOT.S", b"{}", (400, 10003)),
        ("SNAPSHOT.NO", b'{"deliver_subject":"a"}', (404, 10059)),
        ("SNAPSHOT.S", b"{", (400, 10025)),
        ("SNAPSHOT.S", b'{"deliver_subject":"a","bogus":1}', (400, 10025)),
        ("SNAPSHOT.S", b'{"deliver_subject":""}', (400, 10015)),
        ("SNAPSHOT.S", b'{"deliver_subject":"a.*"}', (400, 10015)),
        ("SNAPSHOT.S", b'{"deliver_subject":"a..b"}', (400, 10015)),
        ("RESTORE.R", b"", (400, 10003)),
        ("RESTORE.R", b"{}", (400, 10003)),
        ("RESTORE.R", b"x", (400, 10025)),
        ("RESTORE.R", b'{"config":{"name":"R"},"bogus":1}', (400, 10025)),
        ("RESTORE.R", b'{"config":{"name":"Q"}}', (400, 10056)),
        ("RESTORE.a/b", b'{"config":{"name":"a/b"}}', (400, 10128)),
        ("RESTORE.R", b'{"config":{"name":"R","subjects":["r..>"]}}', (500, 10052)),
        ("RESTORE.S", b'{"config":{"name":"S"}}', (400, 10130)),
    ):
        answer = (await wire.request(f"$JS.API.STREAM.{verb}", body)).json
        assert (answer["error"]["code"], answer["error"]["err_code"]) == expected, (verb, body, answer)
        if verb.startswith("RESTORE"):
            assert answer["deliver_subject"] == ""


async def test_a_stream_comes_back_as_it_was(wire):
    await fill(wire, metadata={"mine": "1"}, max_msgs=1000)
    before = await content(wire)
    answer, archive, end = await take(wire, "S", chunk_size=1024)
    assert answer["type"] == "io.nats.jetstream.api.v1.stream_snapshot_response"
    assert answer["state"]["last_seq"] == 400
    assert end.header == b"NATS/1.0 204\r\n\r\n"
    await wire.request("$JS.API.STREAM.DELETE.S")
    restored = await put(wire, "S", archive, **{**answer["config"], "name": "S"})
    assert restored["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    assert "did_create" not in restored
    assert await content(wire) == before
    assert (await wire.request("s.a", b"next")).json["seq"] == 401


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_a_stream_moves_to_the_other_server(wire, other_server, storage):
    await fill(wire, storage=storage)
    before = await content(wire)
    answer, archive, _ = await take(wire, "S")
    restored = await put(other_server, "S", archive, **{**answer["config"], "name": "S"})
    assert "error" not in restored, restored
    assert await content(other_server) == before
    assert (await other_server.request("s.a", b"next")).json["seq"] == 401
    # The messages that were pending come again; those that were acknowledged do not.
    await other_server.subscribe("in", "5")
    await other_server.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"no_wait":true}', reply="in")
    assert ".1.9.10." in (await other_server.message()).reply, "the consumer goes on behind what it has delivered"


async def test_a_small_archive_ends_without_a_status(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    _, archive, end = await take(wire, "S")
    assert end.header == b""
    assert b"".join(S2Reader().feed(archive)).startswith(MAGIC)


async def test_a_backup_begins_when_its_very_subject_is_subscribed(wire):
    """As the `nats` command does: its wildcard takes the answer, and it subscribes to the deliver subject then."""
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    noise = Random(1)
    for _ in range(20):
        await wire.request("s.a", noise.randbytes(1000))
    await wire.send("SUB in.* 5\r\nSUB in.x others 6\r\n")
    body = {"deliver_subject": "in.x", "chunk_size": 1024, "window_size": 2048}
    await wire.publish("$JS.API.STREAM.SNAPSHOT.S", json.dumps(body), reply="in.answer")
    assert (await wire.message()).subject == "in.answer"
    assert await wire.ping() == b""
    await wire.subscribe("in.x", "7")
    messages = await wire.messages(6)
    assert [message.reply[-7:] for message in messages if message.sid == "7"] == [".1024.1", ".1024.2"]
    # The wildcard and the group stay, and the backup ends.
    await wire.send("UNSUB 7\r\n")
    ends = await wire.messages(2)
    assert {end.header for end in ends} == {b"NATS/1.0 408 No Interest\r\n\r\n"}


async def test_no_more_than_the_window_is_sent_before_an_acknowledgement(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    noise = Random(1)
    for _ in range(20):
        await wire.publish("s.a", noise.randbytes(1000))
    await wire.ping()
    await wire.subscribe("backup.x", "5")
    body = {"deliver_subject": "backup.x", "chunk_size": 1024, "window_size": 2048}
    await wire.publish("$JS.API.STREAM.SNAPSHOT.S", json.dumps(body))
    first, second = await wire.messages(2)
    assert first.reply.endswith(".1024.1")
    assert second.reply.endswith(".1024.2")
    assert len(first.payload) == 1024
    await wire.publish(first.reply, b"")
    assert (await wire.message()).reply.endswith(".1024.3")


@pytest.mark.parametrize(
    ("name", "archive", "reason"),
    [
        ("nothing", b"", "EOF"),
        ("something else", b"hello, this is no archive at all", "s2: corrupt input"),
        ("out of order", archive_of(b'{"first_seq":1,"last_seq":5}', 2, 1), "message sequence 1 out of order"),
        ("no first sequence", archive_of(b"{}", 2), "message sequence 2 out of order"),
        ("more than fit", archive_of(b'{"messages":10,"first_seq":1,"last_seq":1}', 1), TOO_MANY),
        ("no range", archive_of(b'{"messages":0,"first_seq":10,"last_seq":3}'), NO_RANGE),
        ("an empty range", archive_of(b'{"messages":1,"first_seq":5,"last_seq":4}'), NO_RANGE),
        ("no beginning", archive_of(b'{"messages":0,"first_seq":0,"last_seq":5}'), NO_RANGE),
        ("floor", archive_with_consumer((1, 1), (3, 3)), NOT_SET + "bad ack floor for consumer"),
        ("stream floor", archive_with_consumer((3, 1), (1, 2)), NOT_SET + "bad ack floor for stream"),
        ("pending beyond", archive_with_consumer((1, 1), (0, 0), 3), NOT_SET + OUT_OF_RANGE % 3),
        ("pending below", archive_with_consumer((3, 3), (2, 2), 2), NOT_SET + OUT_OF_RANGE % 2),
        ("cut", archive_of(b'{"first_seq":1,"last_seq":3}', 1, 2, 3)[:-9], "s2: corrupt input"),
    ],
)
async def test_a_broken_archive_is_refused(wire, server, name, archive, reason):
    answer = await put(wire, "S", archive)
    assert refusal(answer) == (500, 10062, f"restore failed: {reason}")
    info = (await wire.request("$JS.API.STREAM.INFO.S")).json
    # nats-server leaves what came before the damage, as a stream that takes messages.
    assert "error" in info or not server.is_embedded


async def test_an_archive_without_its_end_leaves_nothing_behind(wire, server):
    whole = MAGIC + encode_entry(b"state.json", 1, 0, b"", b'{"first_seq":1,"last_seq":3}')
    whole += encode_entry(b"s.a", 1_700_000_000 * 10**9, 1, b"", b"x")
    answer = await put(wire, "S", framed(whole))
    assert answer["error"]["err_code"] == 10062
    names = (await wire.request("$JS.API.STREAM.NAMES")).json["streams"]
    assert (names or []) == ([] if server.is_embedded else ["S"])


async def test_sequences_that_are_not_in_the_archive_are_deleted_ones(wire):
    answer = await put(wire, "S", archive_of(b'{"first_seq":10,"last_seq":20}', 10, 12, 15))
    assert (answer["state"]["first_seq"], answer["state"]["last_seq"], answer["state"]["messages"]) == (10, 20, 3)
    state = (await wire.request("$JS.API.STREAM.INFO.S", {"deleted_details": True})).json["state"]
    assert state["deleted"] == [11, 13, 14, 16, 17, 18, 19, 20]
    assert (await wire.request("s.a", b"next")).json["seq"] == 21


async def test_a_sealed_stream_and_one_with_other_limits(wire):
    archive = archive_of(b'{"first_seq":1,"last_seq":3}', 1, 2, 3)
    assert (await put(wire, "S", archive, sealed=True))["config"]["sealed"] is True
    assert (await put(wire, "T", archive, subjects=["t"], max_msgs=2))["state"]["messages"] == 2


async def test_subjects_of_another_stream_are_refused_in_the_end(wire):
    await wire.request("$JS.API.STREAM.CREATE.O", {"name": "O", "subjects": ["s.1"]})
    answer = await put(wire, "S", archive_of(b'{"first_seq":1,"last_seq":3}', 1, 2, 3))
    assert refusal(answer)[2] == "restore failed: error adding stream: subjects overlap with an existing stream (10065)"


async def test_advisories(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    _, archive, _ = await take(wire, "S")
    await wire.request("$JS.API.STREAM.DELETE.S")
    watcher_sid = "9"
    await wire.subscribe("$JS.EVENT.ADVISORY.STREAM.*.S", watcher_sid)
    await wire.subscribe("in", "10")
    await wire.publish("$JS.API.STREAM.RESTORE.S", b'{"config":{"name":"S"}}', reply="in")
    events = sorted(await wire.messages(2), key=lambda message: message.subject)
    answer = events.pop().json
    await wire.publish(answer["deliver_subject"], archive, reply="in")
    await wire.publish(answer["deliver_subject"], b"", reply="in")
    found = [await wire.message() for _ in range(4)]
    events += [message for message in found if message.sid == watcher_sid]
    kinds = {message.subject.split(".")[4]: message.json for message in events}
    assert set(kinds) == {"RESTORE_CREATE", "CREATED", "RESTORE_COMPLETE"}
    assert kinds["RESTORE_COMPLETE"]["bytes"] == len(archive)
    assert kinds["RESTORE_COMPLETE"]["client"]["acc"] == "$G"
    await wire.subscribe("backup.y", "11")
    await wire.publish("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"backup.y"}')
    found = [await wire.message() for _ in range(4)]
    kinds = {message.subject.split(".")[4]: message.json for message in found if message.sid == watcher_sid}
    assert set(kinds) == {"SNAPSHOT_CREATE", "SNAPSHOT_COMPLETE"}
    assert "error" not in kinds["SNAPSHOT_COMPLETE"]


CONSUMERS = {
    "filtered": {"filter_subject": "s.1"},
    "filters": {"filter_subjects": ["s.1", "s.2.>"]},
    "group": {"deliver_subject": "to.group", "deliver_group": "q"},
    "last": {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
    "pinned": {"priority_groups": ["g"], "priority_policy": "pinned_client", "priority_timeout": 5 * 10**9},
    "paused": {"pause_until": "2037-01-01T00:00:00Z"},
    "memory": {"mem_storage": True},
    "flow": {"deliver_subject": "to.flow", "flow_control": True, "idle_heartbeat": 10**9, "headers_only": True},
    "start": {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
    "original": {"replay_policy": "original"},
    "backoff": {"backoff": [10**9, 2 * 10**9], "max_deliver": 4},
    "sourcing": {"ack_policy": "flow_control", "deliver_subject": "to.sourcing"},
}


async def test_consumers_of_every_kind_move_to_the_other_server(wire, other_server):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": "interest"})
    for name, config in CONSUMERS.items():
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        answer = (await wire.request(f"$JS.API.CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})).json
        assert "error" not in answer, answer
    for number in range(6):
        await wire.request(f"s.{number % 3}", b"x")
    answer, archive, _ = await take(wire, "S")
    restored = await put(other_server, "S", archive, **answer["config"])
    assert "error" not in restored, restored
    assert restored["state"]["messages"] == 6
    for name in CONSUMERS:
        before, after = [(await each.request(f"$JS.API.CONSUMER.INFO.S.{name}")).json for each in (wire, other_server)]
        if name == "last":
            del before["num_pending"], after["num_pending"]  # nats-server chooses anew what is the last
        for key in ("config", "delivered", "ack_floor", "num_pending", "num_ack_pending"):
            assert after.get(key) == before.get(key), (name, key)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"max_consumers": 1}, "maximum consumers limit reached (10026)"),
        ({"retention": "workqueue"}, "multiple non-filtered consumers not allowed on workqueue stream (10099)"),
        ({"consumer_limits": {"max_ack_pending": 5}}, "consumer max ack pending exceeds system limit of 5 (10121)"),
    ],
)
async def test_consumers_that_the_new_stream_does_not_allow(wire, config, reason):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    for name in ("a", "b"):
        body = {"stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit"}}
        await wire.request(f"$JS.API.CONSUMER.CREATE.S.{name}", body)
    _, archive, _ = await take(wire, "S")
    code, err_code, description = refusal(await put(wire, "T", archive, subjects=["t"], **config))
    assert (code, err_code) == (500, 10062)
    assert description.startswith('restore failed: failed to add consumer "')
    assert description.endswith(reason)


async def test_a_stream_with_a_filtered_consumer_is_restored_under_other_subjects(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    body = {"stream_name": "S", "config": {"durable_name": "c", "filter_subject": "s.1"}}
    await wire.request("$JS.API.CONSUMER.CREATE.S.c", body)
    _, archive, _ = await take(wire, "S")
    assert (await put(wire, "T", archive, subjects=["t"]))["state"]["consumer_count"] == 1


async def test_nobody_takes_chunks_after_the_end(wire):
    answer = (await wire.request("$JS.API.STREAM.RESTORE.S", {"config": {"name": "S"}})).json
    await wire.request(answer["deliver_subject"], b"")
    assert (await wire.request(answer["deliver_subject"], b"x")).status == 503


async def test_the_files_of_an_older_server(wire, server):
    """The archive is packed from nats-server's own files, as its versions before 2.15 sent them."""
    maker = make_server("nats-server")
    await maker.start()
    try:
        made = await (await Wire.open(maker.host, maker.port)).hello()
        await fill(made)
        before = await content(made)
        await made.close()
        await maker.stop()
        folder = maker.folder / "data" / "jetstream" / "$G" / "streams" / "S"
        names = ["meta.inf", "meta.sum", "msgs/1.blk", "obs/c/meta.inf", "obs/c/meta.sum", "obs/c/o.dat"]
        files = {name: (folder / name).read_bytes() for name in names}
    finally:
        await maker.discard()
    assert refusal(await put(wire, "T", tar_of(files)))[2] == "restore failed: stream names do not match"
    answer = await put(wire, "S", tar_of(files))
    assert "error" not in answer, answer
    after = await content(wire)
    assert after[1:] == before[1:]


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    return framed(out.getvalue())


async def test_a_kill_in_the_middle_of_a_restore_leaves_nothing(kind, start, connect):
    if kind != "embedded":
        return  # nats-server comes back with a part of the stream
    server = await start(process=True)
    wire = await (await connect(server)).hello()
    await fill(wire)
    _, archive, _ = await take(wire, "S")
    answer = (await wire.request("$JS.API.STREAM.RESTORE.T", {"config": {"name": "T", "subjects": ["t"]}})).json
    await wire.request(answer["deliver_subject"], archive[:-100])
    await server.kill()
    await server.start()
    wire = await (await connect(server)).hello()
    assert (await wire.request("$JS.API.STREAM.NAMES")).json["streams"] == ["S"]
    folders = await asyncio.to_thread(
        lambda: sorted(path.name for path in server.folder.glob("data/jetstream/*/streams/*"))
    )
    assert folders == [folder_name("S")]
