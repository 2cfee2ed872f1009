"""Whatever a client sends, it costs itself and nobody else: depth, size, names and numbers beyond all measure."""

import json
from asyncio import IncompleteReadError

import pytest

DEEP = b"[" * 200_000
DEEP_OBJECT = b'{"a":' * 100_000


@pytest.mark.parametrize("body", [DEEP, DEEP_OBJECT, b'{"name":"S","metadata":' + DEEP_OBJECT])
@pytest.mark.parametrize(
    "verb",
    ["STREAM.CREATE.S", "STREAM.INFO.T", "CONSUMER.CREATE.T.c", "STREAM.MSG.GET.T", "STREAM.PURGE.T", "STREAM.NAMES"],
)
async def test_json_of_any_depth_is_refused_with_an_error(start, connect, verb, body):
    server = await start()
    wire = await connect(server)
    await wire.request("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    answer = await wire.request(f"$JS.API.{verb}", body)
    assert answer.json["error"]["code"] == 400
    assert await wire.ping() == b""


async def test_deep_pulls_and_acks_leave_the_connection_alone(start, connect):
    server = await start()
    wire = await connect(server)
    await wire.request("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    config = {"durable_name": "c", "ack_policy": "explicit"}
    await wire.request("$JS.API.CONSUMER.CREATE.T.c", {"stream_name": "T", "config": config})
    await wire.request("t", b"x")
    await wire.subscribe("_INBOX.p", 1)
    await wire.publish("$JS.API.CONSUMER.MSG.NEXT.T.c", DEEP_OBJECT, reply="_INBOX.p")
    assert (await wire.message()).status == 400
    await wire.publish("$JS.API.CONSUMER.MSG.NEXT.T.c", b"1", reply="_INBOX.p")
    message = await wire.message()
    for body in (b"-NAK " + DEEP_OBJECT, b"+NXT " + DEEP_OBJECT, b"\xff" * 1000):
        await wire.publish(message.reply, body)
    await wire.ping()
    assert "error" not in (await wire.request("$JS.API.CONSUMER.INFO.T.c")).json


async def test_a_deep_connect_ends_that_connection_only(start, connect):
    server = await start()
    good = await connect(server)
    bad = await connect(server)
    await bad.send(b"CONNECT " + b'{"a":' * 700 + b"\r\n")
    await bad.rest()
    assert await good.ping() == b""


@pytest.mark.parametrize(
    "name", ["..", ".", "../../x", "a/b", "a\\b", "a b", "a.b", "a*", "", "\x00", "x" * 300, "ü/ö", "~", "%2e%2e"]
)
async def test_names_of_streams_and_consumers_cannot_leave_their_folder(start, connect, name):
    server = await start()
    wire = await connect(server)
    await wire.request("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    token = name if name and all(letter not in name for letter in " .*\x00") else "x"
    for subject, body in (
        (f"$JS.API.STREAM.CREATE.{token}", {"name": name, "subjects": ["n"]}),
        (f"$JS.API.CONSUMER.DURABLE.CREATE.T.{token}", {"stream_name": "T", "config": {"durable_name": name}}),
        (f"$JS.API.CONSUMER.CREATE.T.{token}", {"stream_name": "T", "config": {"name": name, "durable_name": name}}),
    ):
        answer = await wire.request(subject, json.dumps(body).encode())
        assert answer.status is None
    root = (server.folder / "data" / "jetstream" / "$G" / "streams").resolve()
    inside = {path.resolve() for path in server.folder.rglob("*") if path.name in ("meta.json", "msgs")}
    assert all(path.is_relative_to(root) for path in inside)
    outside = {path.name for path in server.folder.iterdir()} - {"data", "log", "server.conf"}
    assert not outside


async def test_numbers_beyond_all_measure(start, connect):
    server = await start()
    wire = await connect(server)
    for number in (2**63, -(2**63) - 1, 10**400, 1e400):
        body = b'{"name":"S","subjects":["s"],"max_msgs":%s}' % (b"1e400" if number == 1e400 else b"%d" % number)
        assert (await wire.request("$JS.API.STREAM.CREATE.S", body)).json["error"]["code"] == 400
    for line in (
        b"PUB a 99999999999999999999\r\n",
        b"PUB a -1\r\n",
        b"HPUB a 9 5\r\n",
        b"UNSUB 1 99999999999999999999999\r\n",
    ):
        bad = await connect(server)
        await bad.send(line + b"PING\r\n")
        try:
            await bad.until(b"\r\n")
        except IncompleteReadError:
            pass  # closed without a word, as for every frame that makes no sense
    assert await wire.ping() == b""


async def test_what_is_sent_before_connect_is_bounded(start, connect):
    server = await start('authorization { token: "s3cret" }\njetstream { store_dir: "STORE_DIR" }')
    stranger = await connect(server)
    await stranger.send(b"CONNECT " + b"x" * 20_000)
    assert b"-ERR" in await stranger.rest()
    assert not server.server.connections
