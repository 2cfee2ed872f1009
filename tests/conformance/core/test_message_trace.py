"""Messages that are followed: `Nats-Trace-Dest` tells which way one took, `Nats-Trace-Only` has it take none."""

import base64

import pytest

CONFIG = """
jetstream { store_dir: STORE_DIR }
accounts { A { jetstream: enabled, users: [
    { user: a, password: p }
    { user: limited, password: p, permissions: { publish: { deny: ["trace"] }, subscribe: { deny: ["plain.no"] } } }
] } }
no_auth_user: a
"""


def header(**pairs):
    lines = [f"{key.replace('_', '-')}: {value}\r\n" for key, value in {"Nats-Trace-Dest": "trace", **pairs}.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


@pytest.fixture
async def clients(start, connect):
    """A publisher that wants no echo, a reader of reports, and a user who may not do everything."""
    server = await start(CONFIG)
    publisher = await (await connect(server)).hello(name="publisher", echo=False)
    reader = await (await connect(server)).hello(name="reader")
    limited = await (await connect(server)).hello(user="limited", **{"pass": "p"})
    await reader.subscribe("trace", "1")
    await reader.ping()
    return publisher, reader, limited


async def events_of(reader):
    """The stations in the report that comes next, without times and numbers."""
    message = await reader.message()
    assert message.subject == "trace", message
    assert {"id", "name", "seq", "time", "ver"} <= message.json["server"].keys()
    events = [{key: event[key] for key in event if key not in ("ts", "cid")} for event in message.json["events"]]
    assert all(event["ts"] for event in message.json["events"])
    return sorted(events, key=lambda event: (event["type"] != "in", event.get("queue", ""), event.get("error", "")))


def came_in(subject):
    return {"type": "in", "kind": 0, "name": "publisher", "acc": "A", "subj": subject}


async def test_who_got_it(clients):
    publisher, reader, limited = clients
    for wire in clients:
        await wire.subscribe("plain.*", "8")
    await reader.subscribe("plain.no", "9", "group")
    for wire in clients:
        await wire.ping()
    out = {"type": "eg", "kind": 0, "sub": "plain.*"}
    expected = [
        came_in("plain.no"),
        {**out, "name": "reader"},
        {**out, "name": "publisher", "error": "Not delivered because of no echo"},
        {**out, "error": "Not delivered because subscription denies this subject"},
        {"type": "eg", "kind": 0, "name": "reader", "sub": "plain.no", "queue": "group"},
    ]
    await publisher.publish("plain.no", b"body", header=header())
    assert sorted([(await reader.message()).sid for _ in range(2)]) == ["8", "9"]
    assert await events_of(reader) == expected
    await publisher.publish("plain.no", b"body", header=header(Nats_Trace_Only="true", Key="value"))
    message = await reader.message()
    assert message.subject == "trace"
    request = message.json["request"]
    assert request["header"] == {"Nats-Trace-Dest": ["trace"], "Nats-Trace-Only": ["true"], "Key": ["value"]}
    assert request["msgsize"] == len(header(Nats_Trace_Only="true", Key="value")) + 4
    await publisher.publish("nobody.there", b"", header=header())
    assert await events_of(reader) == [came_in("nobody.there")]
    assert await limited.ping() == b""


async def test_who_may_not_publish_to_the_destination(clients):
    _, reader, limited = clients
    await reader.subscribe("plain.*", "8")
    await reader.ping()
    await limited.publish("plain.x", b"body", header=header())
    assert await limited.ping() == b"-ERR 'Permissions Violation for Publish to \"trace\"'\r\n"
    assert await reader.ping() == b""
    await limited.publish("plain.x", b"body", header=header().replace(b"trace", b"$NRG.x"))
    assert await limited.ping() == b"-ERR 'Permissions Violation for Publish to \"$NRG.x\"'\r\n"
    assert await reader.ping() == b""


async def test_what_is_no_destination(clients):
    publisher, reader, _ = clients
    await reader.subscribe("plain.*", "8")
    await reader.ping()
    for block in (header().replace(b"trace", b"tr*"), header().replace(b"Nats-T", b"nats-T")):
        await publisher.publish("plain.x", b"body", header=block)
        assert (await reader.message()).header == block


async def test_streams(clients):
    publisher, reader, limited = clients
    for name, config in (
        ("S", {"subjects": ["s.>"], "subject_transform": {"src": "s.from", "dest": "s.to"}}),
        ("I", {"subjects": ["i"], "retention": "interest"}),
        ("N", {"subjects": ["n"], "no_ack": True}),
    ):
        await limited.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, **config})
    await reader.subscribe("ack", "2")
    await reader.ping()
    kept = {"type": "js", "stream": "S"}
    for subject, block, answer, event in (
        ("s.from", header(Nats_Msg_Id="1"), {"stream": "S", "seq": 1}, {**kept, "subject": "s.to"}),
        ("s.from", header(Nats_Msg_Id="1"), {"stream": "S", "seq": 1, "duplicate": True}, "msgid is duplicate"),
        ("s.x", header(Nats_Expected_Stream="Q"), None, "expected stream does not match"),
        ("s.x", header(Nats_Trace_Only="on"), {}, {**kept, "subject": "s.x"}),
        ("i", header(), {"stream": "I", "seq": 1}, {"type": "js", "stream": "I", "subject": "i", "nointerest": True}),
        ("n", header(), {}, {"type": "js", "stream": "N", "subject": "n"}),
        ("n", header(Nats_Trace_Only="1"), {}, {"type": "js", "stream": "N", "subject": "n"}),
    ):
        await publisher.publish(subject, b"body", reply="ack", header=block)
        if answer != {}:
            acknowledged = (await reader.message()).json
            assert answer == acknowledged if answer else acknowledged["error"]["err_code"] == 10060
        event = event if isinstance(event, dict) else {**kept, "error": event}
        assert await events_of(reader) == [came_in(subject), event]
    for name, count in (("S", 1), ("I", 0), ("N", 1)):
        assert (await limited.request(f"$JS.API.STREAM.INFO.{name}")).json["state"]["messages"] == count
    stored = (await limited.request("$JS.API.STREAM.MSG.GET.S", {"seq": 1})).json["message"]
    expected = header(Nats_Msg_Id="1").replace(b"trace", b"trace disabled")
    assert base64.b64decode(stored["hdrs"]) == expected, "what leaves the stream again is not followed again"


async def test_messages_of_batches(clients):
    publisher, reader, limited = clients
    config = {"name": "S", "subjects": ["s.>"], "allow_atomic": True, "allow_batched": True}
    await limited.request("$JS.API.STREAM.CREATE.S", config)
    await reader.subscribe("ack.>", "2")
    await reader.ping()
    batch = {"Nats_Batch_Id": "a"}
    await publisher.publish("s.x", reply="ack.1", header=header(**batch, Nats_Batch_Sequence="1"))
    assert (await reader.message()).payload == b"", "of what is staged alone nobody is told"
    await publisher.publish(
        "s.x", reply="ack.2", header=header(**batch, Nats_Batch_Sequence="2", Nats_Batch_Commit="1")
    )
    answers = [await reader.message(), await reader.message()]
    (answer,) = [message.json for message in answers if message.subject == "ack.2"]
    assert answer == {"stream": "S", "seq": 2, "batch": "a", "count": 2}
    for place, operation, count in ((1, 0, 2), (2, 1, 1), (3, 2, 2)):
        await publisher.publish("s.x", reply=f"ack.f.10.fail.{place}.{operation}.$FI", header=header())
        messages = [await reader.message() for _ in range(count)]
        (report,) = [message.json for message in messages if message.subject == "trace"]
        assert [event["type"] for event in report["events"]] == ["in", "js"]
    (answer,) = [message.json for message in messages if message.subject != "trace"]
    assert answer == {"stream": "S", "seq": 5, "batch": "f", "count": 3}
    assert await reader.ping() == b""


async def test_an_order_that_is_only_followed_is_not_carried_out(clients):
    publisher, reader, limited = clients
    await limited.request("$JS.API.STREAM.CREATE.S", {"name": "S"})
    subject = "$JS.API.STREAM.DELETE.S"
    imported = {"type": "si", "acc": "$SYS", "from": subject, "to": subject}
    await publisher.publish(subject, b"", reply="ack", header=header(Nats_Trace_Only="true"))
    assert await events_of(reader) == [came_in(subject), imported]
    assert "error" not in (await limited.request("$JS.API.STREAM.INFO.S")).json
    await publisher.publish(subject, b"", reply="ack", header=header())
    assert await events_of(reader) == [came_in(subject), imported]
    assert "error" in (await limited.request("$JS.API.STREAM.INFO.S")).json
