"""Accounts see nothing of each other: not by subjects, not by JetStream, not in what monitoring shows of one."""

import json
import urllib.request
from asyncio import get_running_loop

CONFIG = """
jetstream { store_dir: "STORE_DIR" }
accounts {
  A { jetstream: enabled, users: [{user: ann, password: p}] }
  B { jetstream: enabled, users: [{user: bob, password: p}] }
  C { users: [{user: cid, password: p}] }
}
"""


async def set_up(start, connect):
    server = await start(CONFIG)
    ann = await connect(server, user="ann", **{"pass": "p"})
    bob = await connect(server, user="bob", **{"pass": "p"})
    body = {"name": "S", "subjects": ["s.>"]}
    assert "error" not in (await ann.request("$JS.API.STREAM.CREATE.S", body)).json
    assert (await ann.request("s.a", b"ann's")).json["seq"] == 1
    return server, ann, bob


async def test_streams_of_the_same_name_and_subject_are_two(start, connect):
    server, ann, bob = await set_up(start, connect)
    assert (await bob.request("$JS.API.STREAM.INFO.S")).json["error"]["err_code"] == 10059
    assert (await bob.request("$JS.API.STREAM.NAMES")).json["total"] == 0
    assert (await bob.request("$JS.API.INFO")).json["streams"] == 0
    assert (await bob.request("s.a", b"nobody")).status == 503
    body = {"name": "S", "subjects": ["s.>"]}
    assert "error" not in (await bob.request("$JS.API.STREAM.CREATE.S", body)).json
    assert (await bob.request("$JS.API.STREAM.DELETE.S")).json["success"]
    assert (await ann.request("$JS.API.STREAM.INFO.S")).json["state"]["messages"] == 1
    folders = {path.name for path in (server.folder / "data" / "jetstream").iterdir()}
    assert folders == {"A", "B"}


async def test_events_and_acks_stay_at_home(start, connect):
    _, ann, bob = await set_up(start, connect)
    config = {"durable_name": "c", "ack_policy": "explicit"}
    await ann.request("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    for subject, sid in ((">", 1), ("$JS.EVENT.>", 2), ("$SYS.>", 3), ("_INBOX.>", 4)):
        await bob.subscribe(subject, sid)
    await bob.ping()
    await ann.subscribe("_INBOX.p", 1)
    await ann.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="_INBOX.p")
    message = await ann.message()
    assert await bob.ping() == b""
    await bob.publish(message.reply, b"+ACK")
    await bob.ping()
    info = (await ann.request("$JS.API.CONSUMER.INFO.S.c")).json
    assert info["num_ack_pending"] == 1


async def test_an_account_without_jetstream_is_told_so(start, connect):
    server, _, _ = await set_up(start, connect)
    cid = await connect(server, user="cid", **{"pass": "p"})
    assert (await cid.request("$JS.API.INFO")).json["error"]["err_code"] == 10039


async def test_monitoring_of_one_account_names_no_other(start, connect):
    server, ann, bob = await set_up(start, connect)
    await ann.subscribe("ann.only", 7)
    await bob.subscribe("bob.only", 7)
    await ann.ping()
    await bob.ping()

    def ask(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.monitor_port}{path}") as answer:
            return json.loads(answer.read())

    async def get(path):
        return await get_running_loop().run_in_executor(None, ask, path)

    connections = await get("/connz?acc=B&subs=1&auth=1")
    assert [each["account"] for each in connections["connections"]] == ["B"]
    for path in (
        "/connz?acc=B&subs=1&auth=1",
        "/subsz?acc=B&subs=1",
        "/jsz?acc=B&streams=1&consumers=1",
        "/accountz?acc=B",
    ):
        text = json.dumps(await get(path))
        assert "ann" not in text, path
        assert '"A"' not in text, path
