"""Accounts that share: exported and imported streams and services, JetStream of another account, limits."""

import json
from contextlib import suppress

import pytest

from jetlake.errors import ConfigError
from tests.support.clients import until

SHARED = """
    jetstream { store_dir: "STORE_DIR" }
    accounts {
      A {
        jetstream: enabled
        users: [ { user: a, password: a } ]
        exports: [
          { stream: "ev.>" }, { stream: "pv.>" }, { stream: "private", accounts: [C] }, { stream: "deliver.>" }
          { service: "calc.*" }, { service: "many", response: stream }, { service: "chunks", response_type: chunked }
          { service: "map.*.*" }, { service: "store.>" }
          { service: "$JS.API.>", response: stream }, { service: "$JS.ACK.>" }
        ]
      }
      B {
        users: [ { user: b, password: b } ]
        imports: [
          { stream: { account: A, subject: "ev.>" } }
          { stream: { account: A, subject: "ev.*.*" }, to: "swap.$2.$1" }
          { stream: { account: A, subject: "pv.>" }, prefix: "pre" }
          { stream: { account: A, subject: "deliver.>" } }
          { service: { account: A, subject: "calc.*" } }
          { service: { account: A, subject: "calc.add" }, to: "plus" }
          { service: { account: A, subject: "calc.shared" }, to: "shared", share: true }
          { service: { account: A, subject: "many" } }
          { service: { account: A, subject: "chunks" } }
          { service: { account: A, subject: "map.*.*" }, to: "m.$2.$1" }
          { service: { account: A, subject: "store.>" }, to: "there.>" }
          { service: { account: A, subject: "$JS.API.>" } }
          { service: { account: A, subject: "$JS.ACK.>" } }
        ]
        exports: [ { stream: "ev.>" }, { service: "calc.*" } ]
      }
      C {
        jetstream: enabled
        users: [ { user: c, password: c } ]
        imports: [
          { stream: { account: A, subject: "private" }, to: "got.private" }
          { stream: { account: A, subject: "pv.>" } }
          { stream: { account: B, subject: "ev.>" }, prefix: "via.b" }
          { service: { account: B, subject: "calc.*" }, to: "cc.{{wildcard(1)}}" }
        ]
      }
    }
"""


async def user(server, connect, name):
    return await (await connect(server)).hello(user=name, **{"pass": name})


@pytest.fixture
async def shared(start):
    return await start(SHARED)


@pytest.fixture
async def a(shared, connect):
    return await user(shared, connect, "a")


@pytest.fixture
async def b(shared, connect):
    return await user(shared, connect, "b")


@pytest.fixture
async def c(shared, connect):
    return await user(shared, connect, "c")


async def subscribe(wire, subject, sid, queue=""):
    await wire.subscribe(subject, sid, queue)
    assert await wire.ping() == b""


async def publish(wire, *arguments, **options):
    """Publish, and wait until the server has routed it."""
    await wire.publish(*arguments, **options)
    return await wire.ping()


async def received(wire):
    """What has come so far, as (subject, sid, reply, payload), without order."""
    await wire.send(b"SUB flush end\r\nPUB flush 0\r\n\r\nUNSUB end\r\n")
    messages = []
    while (message := await wire.message()).subject != "flush":
        messages.append((message.subject, message.sid, message.reply, message.payload))
    return sorted(messages)


async def test_streams(a, b):
    await subscribe(b, "ev.x", 1)
    await subscribe(b, "pre.pv.>", 2)
    await subscribe(b, "swap.*.7", 3)
    await publish(a, "ev.x", b"1", reply="back")
    await publish(a, "pv.y.z", b"2")
    await publish(a, "ev.7.8", b"3")
    await publish(a, "ev.8.7", b"not swapped to 7")
    assert await received(b) == [
        ("ev.x", "1", "back", b"1"),
        ("pre.pv.y.z", "2", "", b"2"),
        ("swap.8.7", "3", "", b"3"),
    ]
    await b.publish("ev.x", b"at home")
    assert await received(b) == [("ev.x", "1", "", b"at home")]
    await b.send(b"UNSUB 1\r\nUNSUB 2\r\nUNSUB 3\r\n")
    await b.ping()
    assert (await a.request("ev.x")).status == 503, "interest ends with the subscription"


async def test_one_subscription_gets_a_copy_of_each_import(a, b):
    await subscribe(b, ">", 4)
    await publish(a, "ev.1.2", b"x", header=b"NATS/1.0\r\nK: v\r\n\r\n")
    assert [message[0] for message in await received(b)] == ["ev.1.2", "swap.2.1"]


async def test_a_subscription_with_a_maximum_ends(kind, a, b):
    await b.send(b"SUB ev.x 1\r\nUNSUB 1 2\r\n")
    await b.ping()
    for payload in b"1", b"2", b"3":
        await publish(a, "ev.x", payload)
    messages = [message[3] for message in await received(b)]
    assert messages == ([b"1", b"2"] if kind == "embedded" else [b"1", b"2", b"3"])


async def test_members_of_a_queue_group_share_across_accounts(a, b):
    await subscribe(a, "ev.q", 5, "group")
    await subscribe(b, "ev.q", 6, "group")
    for _ in range(40):
        await a.publish("ev.q", b"x")
    await a.ping()
    count = len(await received(b))
    assert 0 < count < 40


async def test_private_streams_and_streams_of_streams(a, b, c):
    await subscribe(c, "got.>", 1)
    await subscribe(c, "via.b.ev.>", 2)
    await publish(a, "private", b"for c")
    await publish(a, "ev.x", b"not passed on")
    await publish(b, "ev.x", b"b's own")
    assert await received(c) == [("got.private", "1", "", b"for c"), ("via.b.ev.x", "2", "", b"b's own")]


async def answered(a, b, subject, answers, **options):
    """Send a request; what the service received, and the payloads that came back."""
    await b.send(b"SUB inbox.1 9\r\n")
    await publish(b, subject, b"?", reply="inbox.1", **options)
    request = await a.message()
    for answer in answers:
        await publish(a, request.reply, answer)
    back = await received(b)
    assert {message[0] for message in back} == {"inbox.1"}
    await b.send(b"UNSUB 9\r\n")
    await b.ping()
    return request, [message[3] for message in back]


async def test_services(a, b):
    await subscribe(a, "calc.*", 1)
    await subscribe(a, "map.*.*", 2)
    request, back = await answered(a, b, "calc.mul", [b"first", b"second"])
    assert (request.subject, back) == ("calc.mul", [b"first"])
    assert request.reply.startswith("_R_.")
    request, _ = await answered(a, b, "plus", [b"x"], header=b"NATS/1.0\r\nNats-Request-Info: forged\r\nK: v\r\n\r\n")
    assert (request.subject, request.headers["K"]) == ("calc.add", "v")
    assert request.header.count(b"Nats-Request-Info") == 1
    assert json.loads(request.headers["Nats-Request-Info"])["acc"] == "B"
    request, _ = await answered(a, b, "m.1.2", [b"x"])
    assert request.subject == "map.2.1"
    request, _ = await answered(a, b, "shared", [b"x"])
    assert {"acc", "user", "host", "id", "start", "kind"} <= json.loads(request.headers["Nats-Request-Info"]).keys()
    assert await received(a) == []


async def test_a_service_with_many_answers(a, b):
    await subscribe(a, "many", 1)
    await subscribe(a, "chunks", 2)
    assert (await answered(a, b, "many", [b"1", b"2", b"3"]))[1] == [b"1", b"2", b"3"]
    assert (await answered(a, b, "chunks", [b"1", b"2", b"", b"4"]))[1] == [b"", b"1", b"2"]


async def test_a_service_without_a_taker(a, b):
    for subject in ("calc.mul", "plus"):
        answer = await b.request(subject)
        assert (answer.status, answer.headers["Nats-Subject"]) == (503, subject)
    await subscribe(a, "calc.one.way", 1)
    await subscribe(a, "calc.note", 2)
    await publish(b, "calc.note", b"no reply wanted")
    assert (await a.message()).reply == ""


async def test_an_answer_that_asks_back(a, b):
    await subscribe(a, "calc.*", 1)
    await subscribe(a, "further", 2)
    await b.send(b"SUB inbox.1 9\r\n")
    await publish(b, "calc.ask", b"?", reply="inbox.1")
    await publish(a, (await a.message()).reply, b"which?", reply="further")
    question = await b.message()
    assert question.reply.startswith("_R_.")
    await publish(b, question.reply, b"this")
    assert await received(a) == [("further", "2", "", b"this")]


async def test_a_service_of_a_service(a, b, c):
    await subscribe(a, "calc.*", 1)
    await subscribe(b, "calc.z", 2)
    request, back = await answered(a, c, "cc.z", [b"from a"])
    info = json.loads(request.headers["Nats-Request-Info"])
    assert (request.subject, info["acc"], info["svc"], back) == ("calc.z", "C", "B", [b"from a"])
    assert (await b.message()).payload == b"?", "subscribers on the way get a copy"


async def test_publishing_to_a_stream_of_another_account(a, b):
    await a.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["store.>"]})
    assert (await b.request("there.x", b"hello")).json == {"stream": "S", "seq": 1}
    message = (await a.request("$JS.API.STREAM.MSG.GET.S", {"seq": 1})).json["message"]
    assert message["subject"] == "store.x"
    assert "hdrs" not in message


async def test_a_stream_captures_what_its_account_imports(a, c):
    created = await c.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["pv.>"]})
    assert "error" not in created.json
    await publish(a, "pv.x", b"hello")

    async def has_captured():
        return (await c.request("$JS.API.STREAM.INFO.S")).json["state"]["messages"]

    await until(has_captured)
    message = (await c.request("$JS.API.STREAM.MSG.GET.S", {"seq": 1})).json["message"]
    assert message["subject"] == "pv.x"


async def test_an_account_has_of_jetstream_what_it_imports(start, connect):
    server = await start(
        """
        jetstream { store_dir: "STORE_DIR" }
        accounts {
          A {
            jetstream: enabled, users: [ { user: a, password: a } ]
            exports: [ { service: "$JS.API.INFO" }, { service: "$JS.API.CONSUMER.MSG.NEXT.S.d", response: stream } ]
          }
          B {
            users: [ { user: b, password: b } ]
            imports: [
              { service: { account: A, subject: "$JS.API.INFO" } }
              { service: { account: A, subject: "$JS.API.CONSUMER.MSG.NEXT.S.d" } }
            ]
          }
          C {
            users: [ { user: c, password: c } ]
            imports: [ { service: { account: A, subject: "$JS.API.CONSUMER.MSG.NEXT.S.d" } } ]
          }
        }
        """
    )
    b, c = await user(server, connect, "b"), await user(server, connect, "c")
    assert (await b.request("$JS.API.INFO")).json["api"]["level"] == 5
    for subject in ("$JS.API.CONSUMER.INFO.S.d", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.CREATE.S"):
        assert (await b.request(subject)).status == 503, "a client binds to its consumer without a look at it"
        assert (await c.request(subject)).json["error"]["err_code"] == 10039


@pytest.fixture
async def stored(a):
    """Three messages in a stream of account A."""
    await a.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    for number in range(3):
        await a.request(f"s.{number}", b"%d" % number)


async def test_jetstream_of_another_account(a, b, stored):
    assert (await b.request("$JS.API.STREAM.NAMES")).json["streams"] == ["S"]
    config = {"durable_name": "d", "ack_policy": "explicit"}
    await b.request("$JS.API.CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": config})
    await subscribe(b, "inbox.9", 9)
    await b.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":3,"expires":5000000000}', reply="inbox.9")
    messages = await b.messages(3)
    assert [message.subject for message in messages] == ["s.0", "s.1", "s.2"]
    assert (await b.request(messages[0].reply, b"+ACK")).payload == b""
    await publish(b, messages[1].reply, b"+ACK")

    async def has_settled():
        info = (await b.request("$JS.API.CONSUMER.INFO.S.d")).json
        return (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (2, 1)

    await until(has_settled)


async def test_a_pull_ends_with_its_inbox(a, b, stored):
    config = {"durable_name": "d", "ack_policy": "explicit", "filter_subject": "s.later"}
    await b.request("$JS.API.CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": config})
    await subscribe(b, "inbox.9", 9)
    await publish(b, "$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":3,"expires":60000000000}', reply="inbox.9")

    async def shows(key, number):
        info = (await a.request("$JS.API.CONSUMER.INFO.S.d")).json
        assert info["delivered"]["consumer_seq"] == 0
        return info[key] == number

    await until(lambda: shows("num_waiting", 1))
    await b.send(b"UNSUB 9\r\n")
    await b.ping()
    await until(lambda: shows("num_waiting", 0))
    await a.request("s.later", b"kept")
    await until(lambda: shows("num_pending", 1))


async def test_a_push_consumer_delivers_into_another_account(a, b, stored):
    await subscribe(b, "deliver.b", 5)
    config = {"durable_name": "p", "ack_policy": "explicit", "deliver_subject": "deliver.b"}
    created = await a.request("$JS.API.CONSUMER.DURABLE.CREATE.S.p", {"stream_name": "S", "config": config})
    assert created.json["push_bound"] is True
    assert [message.subject for message in await b.messages(3)] == ["s.0", "s.1", "s.2"]


CYCLES = [
    """
    A { exports: [ { service: "a.>" } ], imports: [ { service: { account: B, subject: "b.x" }, to: "a.x" } ] }
    B { exports: [ { service: "b.>" } ], imports: [ { service: { account: A, subject: "a.x" }, to: "b.x" } ] }
    """,
    """
    A { exports: [ { stream: "s.>" } ], imports: [ { stream: { account: B, subject: "t.>" }, prefix: s } ] }
    B { exports: [ { stream: "t.>" } ], imports: [ { stream: { account: A, subject: "s.>" }, to: "t.>" } ] }
    """,
]


@pytest.mark.parametrize("accounts", CYCLES, ids=["services", "streams"])
async def test_cycles_are_refused(start, accounts):
    with pytest.raises((ConfigError, AssertionError), match="import forms a cycle"):
        await start(f"accounts {{ {accounts} }}", ["no_jetstream"])


# What A exports, and what B imports.
REFUSED = {
    "an unknown account": ("", "{ stream: { account: Z, subject: s } }"),
    "not exported": ("{ stream: x }", "{ stream: { account: A, subject: y } }"),
    "a stream is no service": ("{ stream: x }", "{ service: { account: A, subject: x } }"),
    "more than exported": ('{ stream: "x.*" }', '{ stream: { account: A, subject: "x.>" } }'),
    "for others": ("{ stream: x, accounts: [C] }", "{ stream: { account: A, subject: x } }"),
    "an export for nobody": ("{ stream: x, accounts: [D] }", ""),
    "a stream and a service": ("{ stream: x, service: y }", ""),
    "a stream's response": ("{ stream: x, response: stream }", ""),
    "an unknown response": ("{ service: x, response: several }", ""),
    "an unknown key": ("{ service: x, colour: red }", ""),
    "a wildcard unused": ('{ stream: "x.*" }', '{ stream: { account: A, subject: "x.*" }, to: q }'),
    "no such wildcard": ('{ service: "x.*" }', '{ service: { account: A, subject: "x.*" }, to: "q.$2" }'),
    "no subject": ("", "{ service: { account: A } }"),
    "twice": ("{ service: x }", "{ service: { account: A, subject: x } }, { service: { account: A, subject: x } }"),
    "another account's token": (
        '{ service: "x.*", account_token_position: 2 }',
        '{ service: { account: A, subject: "x.C" } }',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_makes_no_sense_is_refused(start, name):
    exports, imports = REFUSED[name]
    with pytest.raises((ConfigError, AssertionError)):
        await start(
            f"accounts {{ A {{ exports: [ {exports} ] }}\n B {{ imports: [ {imports} ] }}\n C {{}} }}",
            ["no_jetstream"],
        )


async def test_reload_changes_what_is_shared(start, connect):
    text = """accounts {
        A { users: [ { user: a, password: a } ], exports: [ { stream: "ev.>" }, { service: calc } ] }
        B { users: [ { user: b, password: b } ], imports: [ IMPORTS ] }
    }"""
    server = await start(text.replace("IMPORTS", ""), ["no_jetstream"], process=True)
    a, b = await user(server, connect, "a"), await user(server, connect, "b")
    await subscribe(b, "ev.x", 1)
    await subscribe(a, "calc", 2)
    await publish(a, "ev.x", b"1")
    assert (await b.request("calc")).status == 503
    imports = '{ stream: { account: A, subject: "ev.>" } }, { service: { account: A, subject: calc } }'
    await server.reload(text.replace("IMPORTS", imports))
    await publish(a, "ev.x", b"2")
    message = await b.message()
    assert (message.subject, message.payload) == ("ev.x", b"2")
    await publish(b, "calc", b"?", reply="inbox")
    assert (await a.message()).payload == b"?"
    await server.reload(text.replace("IMPORTS", ""))
    await publish(a, "ev.x", b"3")
    assert (await b.request("calc")).status == 503
    assert await received(b) == []


async def test_a_fast_batch_into_another_account(start, connect):
    server = await start("""jetstream { store_dir: STORE_DIR }
        accounts {
          A {
            jetstream: enabled, users: [ { user: a, password: a } ], exports: [ { service: "f.>", response: stream } ]
          }
          B { users: [ { user: b, password: b } ], imports: [ { service: { account: A, subject: "f.>" } } ] }
        }""")
    a, b = await user(server, connect, "a"), await user(server, connect, "b")
    await a.request("$JS.API.STREAM.CREATE.F", {"name": "F", "subjects": ["f.>"], "allow_batched": True})
    await b.send("SUB in.> 7\r\n")
    for number, operation in ((1, 0), (2, 1), (3, 2)):
        await b.publish("f.x", b"x", reply=f"in.id.10.fail.{number}.{operation}.$FI")
    answers = [(message.subject, message.json) for message in await b.messages(2)]
    assert answers == [
        ("in.id.10.fail.1.0.$FI", {"type": "ack", "seq": 0, "msgs": 10}),
        ("in.id.10.fail.3.2.$FI", {"stream": "F", "seq": 3, "batch": "id", "count": 3}),
    ]


async def test_reload_changes_what_jetstream_may_take(start, connect):
    text = """jetstream { store_dir: STORE_DIR }
    accounts { A { jetstream: { max_file: SIZE, max_streams: COUNT }, users: [ { user: a, password: a } ] } }"""
    server = await start(text.replace("SIZE", "1M").replace("COUNT", "1"), process=True)
    a = await user(server, connect, "a")
    create = ("$JS.API.STREAM.CREATE.S2", {"name": "S2", "max_bytes": 2_000_000})
    assert "error" not in (await a.request("$JS.API.STREAM.CREATE.S1", {"name": "S1"})).json
    assert (await a.request(*create)).json["error"]["err_code"] == 10027
    for size, count, code in (("1M", "2", 10047), ("10M", "2", None), ("1M", "2", None)):
        await server.reload(text.replace("SIZE", size).replace("COUNT", count))
        assert (await a.request(*create)).json.get("error", {}).get("err_code") == code
    limits = (await a.request("$JS.API.INFO")).json["limits"]
    assert (limits["max_storage"], limits["max_streams"]) == (1_000_000, 2)


async def test_reload_changes_mappings(start, connect):
    text = """accounts { A {
        users: [ { user: a, password: a, permissions: { publish: { deny: [ secret, old ] } } } ], mappings { MAPPINGS }
    } }"""
    server = await start(text.replace("MAPPINGS", ""), ["no_jetstream"], process=True)
    a, listener = await user(server, connect, "a"), await user(server, connect, "a")
    await subscribe(listener, ">", 1)
    for mappings, subject, expected in (("in: out", "in", "out"), ("old: new", "old", "new"), ("", "in", "in")):
        await server.reload(text.replace("MAPPINGS", mappings))
        await publish(a, subject, b"1")
        assert (await listener.message()).subject == expected


async def test_permissions_are_those_for_the_mapped_subject(start, connect):
    text = """accounts { A {
        users: [ { user: a, password: a, permissions: { publish: { deny: secret } } } ], mappings { in: secret }
    } }"""
    server = await start(text, ["no_jetstream"])
    a = await user(server, connect, "a")
    await a.send("PUB in 1\r\nx\r\n")
    assert await a.line() == b"-ERR 'Permissions Violation for Publish to \"secret\"'"


async def test_permissions_hold_for_what_is_imported(start, connect):
    text = """accounts {
        A { users: [ { user: a, password: a } ], exports: [ { stream: "ev.>" }, { service: "calc.*" } ] }
        B {
          default_permissions: { subscribe: { deny: "from.secret" }, publish: { deny: "calc.no" } }
          users: [ { user: b, password: b } ]
          imports: [
            { stream: { account: A, subject: "ev.>" }, to: "from.>" }
            { service: { account: A, subject: "calc.*" } }
          ]
        }
    }"""
    server = await start(text, ["no_jetstream"])
    a, b = await user(server, connect, "a"), await user(server, connect, "b")
    await subscribe(a, "calc.*", 1)
    await subscribe(b, "from.*", 2)
    await publish(a, "ev.secret", b"1")
    await publish(a, "ev.open", b"2")
    assert (await b.message()).subject == "from.open"
    await b.publish("calc.no", b"", reply="inbox")
    assert (await b.line()).startswith(b"-ERR 'Permissions Violation for Publish")
    await publish(b, "calc.yes", b"", reply="inbox")
    assert (await a.message()).subject == "calc.yes"


async def test_two_services_under_one_name(start, connect):
    text = """accounts {
        A { users: [ { user: a, password: a } ], exports: [ { service: x } ] }
        C { users: [ { user: c, password: c } ], exports: [ { service: x } ] }
        B {
          users: [ { user: b, password: b } ]
          imports: [ { service: { account: A, subject: x } }, { service: { account: C, subject: x } } ]
        }
    }"""
    server = await start(text, ["no_jetstream"])
    a, b, c = [await user(server, connect, name) for name in "abc"]
    await subscribe(a, "x", 1)
    await subscribe(c, "x", 1)
    await b.send(b"SUB inbox 9\r\n")
    await publish(b, "x", b"?", reply="inbox")
    for wire, answer in ((a, b"from a"), (c, b"from c")):
        await publish(wire, (await wire.message()).reply, answer)
    assert {message.payload for message in await b.messages(2)} == {b"from a", b"from c"}


async def test_limits_of_an_account(start, connect):
    text = """accounts {
        A { users: [ { user: a, password: a } ], limits { max_conn: 2, max_subs: 3, max_payload: 10 } }
        B { users: [ { user: b, password: b } ] }
    }"""
    server = await start(text, ["no_jetstream"])
    one, two = await user(server, connect, "a"), await user(server, connect, "a")
    assert one.info["max_payload"] == 10
    three = await connect(server)
    assert three.info["max_payload"] == 1024 * 1024
    await three.send(b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\nSUB x 1\r\nPING\r\n')
    assert await three.rest() == b"-ERR 'maximum account active connections exceeded'\r\n"
    await user(server, connect, "b")
    await one.send(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nSUB d 4\r\n")
    assert await one.ping() == b"-ERR 'maximum subscriptions exceeded'\r\n"
    await subscribe(two, "a", 1)
    await one.publish("a", b"01234567890")
    assert await one.rest() == b"-ERR 'Maximum Payload Violation'\r\n"
    await one.close()
    for _ in range(100):
        wire = await connect(server)
        await wire.send(b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\nPING\r\n')
        if await wire.line() == b"PONG":
            break
    else:
        pytest.fail("the place of a connection that has gone is free again")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("max_connections: {}", "maximum connections exceeded"),
        (
            "accounts {{ A {{ users: [ {{ user: a, password: a }} ], limits {{ max_conn: {} }} }} }}\nno_auth_user: a",
            "maximum account active connections exceeded",
        ),
    ],
    ids=["server", "account"],
)
async def test_a_lower_number_of_connections_closes_some(start, connect, config, error):
    server = await start(config.format(5), ["no_jetstream"], process=True)
    wires = [await (await connect(server)).hello() for _ in range(4)]
    await server.reload(config.format(2))
    closed = []
    for wire in wires:
        with suppress(ConnectionError):
            await wire.send(b"PING\r\n")
        line = await wire.line()
        assert line in (b"PONG", f"-ERR '{error}'".encode())
        closed.append(line != b"PONG")
    assert closed.count(True) == 2
    if server.is_embedded:
        assert closed == [False, False, True, True], "the newest; nats-server takes any"


async def test_a_server_without_headers(start, connect):
    server = await start("no_header_support: true", ["no_jetstream"])
    wire = await connect(server)
    assert wire.info["headers"] is False
    await wire.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
    assert await wire.rest() == b"-ERR 'no responders requires headers support'\r\n"
    wire = await (await connect(server)).hello(no_responders=False)
    assert wire.info["headers"] is False
    await wire.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    assert (await wire.message()).payload == b"hi"
    await wire.publish("a", b"hi", header=b"NATS/1.0\r\n\r\n")
    assert await wire.rest() == b""
