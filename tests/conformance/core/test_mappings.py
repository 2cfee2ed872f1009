"""Subject mappings of accounts and servers: publishes of clients go elsewhere, by weights, on both servers."""

import json
from collections import Counter

import pytest

from tests.support.servers import make_server
from tests.support.wire import Wire

MAPPINGS = """{
  foo: bar
  "w.*": "x.{{wildcard(1)}}"
  "deep.*.*": "d.$2.$1"
  "p.*": [ { destination: "p.{{partition(3,1)}}.{{wildcard(1)}}", weight: 100 } ]
  "rest.>": "moved.>"
  "to.js": "js.stored"
  zero: [ { destination: z, weight: 0 } ]
  elsewhere: [ { destination: c, weight: 100, cluster: other } ]
  half: [ { destination: other, weight: 50% } ]
  loss: [ { destination: loss, weight: "50%" } ]
  "$JS.API.HERE.>": "$JS.API.>"
}"""
PLACES = {
    "server": f"jetstream {{ store_dir: STORE_DIR }}\nmappings {MAPPINGS}",
    "account": f"""jetstream {{ store_dir: STORE_DIR }}
        accounts {{ A {{ jetstream: enabled, mappings {MAPPINGS}, users: [{{user: a, password: a}}] }} }}
        no_auth_user: a""",
}
FIXED = {
    "foo": "bar",
    "w.a": "x.a",
    "deep.1.2": "d.2.1",
    "p.abc": "p.2.abc",
    "rest.a.b": "moved.a.b",
    "zero": "zero",
    "elsewhere": "elsewhere",
    "none": "none",
}


@pytest.mark.parametrize("place", PLACES)
async def test_messages_go_where_the_mapping_says(kind, place):
    server = make_server(kind, PLACES[place], ())
    await server.start()
    try:
        async with await Wire.open(server.host, server.port) as wire:
            await wire.hello()
            made = await wire.request(
                "$JS.API.HERE.STREAM.CREATE.J", json.dumps({"name": "J", "subjects": ["js.>"]}).encode()
            )
            assert made.json["config"]["name"] == "J"
            assert (await wire.request("to.js", b"x")).json["seq"] == 1
            assert b"Nats-Subject: bar\r\n" in (await wire.request("foo", b"x")).header
            await wire.send("SUB > 900\r\n")
            for subject, mapped in FIXED.items():
                assert await _received(wire, subject) == {mapped: 1}
            halves = await _received(wire, "half", 300)
            assert sum(halves.values()) == 300 and min(halves["half"], halves["other"]) > 60
            assert 60 < (await _received(wire, "loss", 300))["loss"] < 240
    finally:
        await server.discard()


async def _received(wire, subject, count=1):
    """How many messages come on which subject when so many are published."""
    await wire.send(f"PUB {subject} 1\r\nx\r\n" * count + "PUB end 1\r\nx\r\n")
    found = Counter()
    while (message := await wire.message()).subject != "end":
        found[message.subject] += 1
    return found
