"""Traced messages that cross into other accounts, and messages that an account has traced by itself."""

import pytest

CONFIG = """
    accounts {
      A {
        users: [ { user: a, password: a } ]
        msg_trace: { dest: "sampled", sampling: "100%" }
        exports: [
          { service: "open", allow_trace: true }, { service: "closed" }, { stream: "seen" }, { stream: "unseen" }
        ]
      }
      B {
        users: [ { user: b, password: b } ]
        imports: [
          { service: { account: A, subject: "open" }, to: "ask.open" }
          { service: { account: A, subject: "closed" } }
          { stream: { account: A, subject: "seen" }, to: "b.seen", allow_trace: true }
          { stream: { account: A, subject: "unseen" } }
        ]
      }
    }
"""
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"


def header(**pairs):
    lines = [f"{key.replace('_', '-')}: {value}\r\n" for key, value in pairs.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


TRACED = header(Nats_Trace_Dest="trace")


async def user(server, connect, name):
    return await (await connect(server)).hello(user=name[0], name=name, **{"pass": name[0]})


@pytest.fixture
async def wires(start, connect):
    """A publisher in each account, one that has subscribed in A and one in B, and a reader of reports in each."""
    server = await start(CONFIG)
    found = {
        name: await user(server, connect, name) for name in ("a", "a taker", "a reader", "b", "b taker", "b reader")
    }
    for name, subjects in (("a taker", ("open", "closed", "seen")), ("b taker", ("b.seen", "unseen"))):
        for sid, subject in enumerate(subjects, 1):
            await found[name].subscribe(subject, sid)
    for name in ("a reader", "b reader"):
        await found[name].subscribe("trace", 1)
        await found[name].subscribe("sampled", 2)
    for wire in found.values():
        await wire.ping()
    return found


async def report(reader, subject="trace"):
    message = await reader.message()
    assert message.subject == subject
    return [{key: event[key] for key in event if key not in ("ts", "cid", "kind")} for event in message.json["events"]]


async def test_a_service_that_allows_it_shows_who_got_the_request(wires):
    taken = {"type": "eg", "name": "a taker", "acc": "A", "sub": "open"}
    crossed = [
        {"type": "in", "name": "b", "acc": "B", "subj": "ask.open"},
        {"type": "si", "acc": "A", "from": "ask.open", "to": "open"},
        taken,
    ]
    await wires["b"].publish("ask.open", b"x", header=TRACED)
    assert await report(wires["b reader"]) == crossed
    got = await wires["a taker"].message()
    assert got.headers["Nats-Trace-Dest"].startswith("_R_."), "what A finds out leads back"
    await wires["b"].publish("ask.open", b"x", header=header(Nats_Trace_Dest="trace", Nats_Trace_Only="true"))
    assert await report(wires["b reader"]) == crossed
    await wires["a taker"].ping()


async def test_other_services_show_only_the_way(wires):
    await wires["b"].publish("closed", b"x", header=TRACED)
    assert await report(wires["b reader"]) == [
        {"type": "in", "name": "b", "acc": "B", "subj": "closed"},
        {"type": "si", "acc": "A", "from": "closed", "to": "closed"},
    ]
    got = await wires["a taker"].message()
    assert got.headers["Nats-Trace-Dest"] == "trace disabled"


async def test_streams_show_who_got_the_message_where_the_import_allows_it(kind, wires):
    await wires["a"].publish("seen", b"x", header=TRACED)
    events = await report(wires["a reader"])
    # nats-server shows the subject of the export for a subscription beyond.
    sub = "b.seen" if kind == "embedded" else "seen"
    expected = [
        {"type": "in", "name": "a", "acc": "A", "subj": "seen"},
        {"type": "se", "acc": "B", "to": "b.seen"},
        {"type": "eg", "name": "a taker", "sub": "seen"},
        {"type": "eg", "name": "b taker", "acc": "B", "sub": sub},
    ]
    assert sorted(events, key=str) == sorted(expected, key=str), "in any order but for the first"
    assert events[0] == expected[0]
    await wires["a"].publish("unseen", b"x", header=TRACED)
    assert await report(wires["a reader"]) == [
        {"type": "in", "name": "a", "acc": "A", "subj": "unseen"},
        {"type": "se", "acc": "B", "to": "unseen"},
    ]


async def test_an_account_traces_what_is_sampled(wires):
    await wires["a"].publish("closed", b"x", header=header(traceparent=f"{PARENT}-00"))
    await wires["a"].publish("closed", b"y", header=header(Traceparent=f"{PARENT}-01"))
    assert await report(wires["a reader"], "sampled") == [
        {"type": "in", "name": "a", "acc": "A", "subj": "closed"},
        {"type": "eg", "name": "a taker", "sub": "closed"},
    ]
    await wires["b"].publish("closed", b"z", header=header(traceparent=f"{PARENT}-01"))
    assert await wires["b reader"].ping() == b"", "the other account has no such setting"
    assert [(await wires["a taker"].message()).payload for _ in range(3)] == [b"x", b"y", b"z"]
