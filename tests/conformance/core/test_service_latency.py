"""The latency of services: what an exporting account is told of the requests of others."""

import json

import pytest

CONFIG = """
    accounts {
      SERVICE {
        users: [ { user: service, password: service } ]
        exports: [
          { service: "ask.>", latency: { sampling: 100, subject: "latency.all" }, threshold: "100ms" }
          { service: "trace", latency: { sampling: "headers", subject: "latency.traced" } }
        ]
      }
      CLIENT {
        users: [ { user: client, password: client } ]
        imports: [
          { service: { account: SERVICE, subject: "ask.>" } }
          { service: { account: SERVICE, subject: "ask.shared" }, to: "shared", share: true }
          { service: { account: SERVICE, subject: "trace" } }
        ]
      }
    }
"""
KIND = "io.nats.server.metric.v1.service_latency"


async def user(server, connect, name):
    return await (await connect(server)).hello(user=name, name=f"{name} here", **{"pass": name})


@pytest.fixture
async def shared(start):
    return await start(CONFIG)


@pytest.fixture
async def service(shared, connect):
    wire = await user(shared, connect, "service")
    for sid, subject in enumerate(("ask.me", "ask.shared", "ask.slow", "trace"), 1):
        await wire.subscribe(subject, sid)
    await wire.ping()
    return wire


@pytest.fixture
async def client(shared, connect):
    return await user(shared, connect, "client")


@pytest.fixture
async def metrics(shared, connect):
    wire = await user(shared, connect, "service")
    await wire.subscribe("latency.>", 1)
    await wire.ping()
    return wire


async def ask(client, service, subject, header=b""):
    await client.subscribe("inbox", 1)
    await client.publish(subject, b"?", reply="inbox", header=header)
    request = await service.message()
    await service.publish(request.reply, b"!")
    assert (await client.message()).payload == b"!"
    await client.send(b"UNSUB 1\r\n")


async def measured(metrics):
    message = await metrics.message()
    values = json.loads(message.payload)
    assert values["type"] == KIND
    assert len(values["id"]) == 22
    assert values["start"] < values["timestamp"]
    return message.subject, values


async def test_an_answer_is_measured(client, service, metrics):
    await ask(client, service, "ask.me")
    subject, values = await measured(metrics)
    assert (subject, values["status"]) == ("latency.all", 200)
    assert "description" not in values
    assert "header" not in values
    assert set(values["requestor"]) <= {"acc", "rtt"}
    assert values["requestor"]["acc"] == "CLIENT"
    assert (values["responder"]["acc"], values["responder"]["name"]) == ("SERVICE", "service here")
    assert values["total"] >= values["service"] + values["system"] > 0


async def test_a_shared_requester_is_named(client, service, metrics):
    await ask(client, service, "shared")
    _, values = await measured(metrics)
    assert (values["requestor"]["acc"], values["requestor"]["name"]) == ("CLIENT", "client here")


async def test_each_failure_has_its_status(client, service, metrics):
    await client.publish("ask.me", b"without a reply")
    _, values = await measured(metrics)
    assert (values["status"], values["description"]) == (400, "Bad Request")
    assert (await client.request("ask.nobody")).status == 503
    _, values = await measured(metrics)
    assert (values["status"], values["description"]) == (503, "Service Unavailable")
    await client.subscribe("inbox", 1)
    await client.publish("ask.slow", b"?", reply="inbox")
    _, values = await measured(metrics)
    assert (values["status"], values["description"]) == (504, "Service Timeout")
    assert (values["service"], values["total"]) == (0, 0)


async def test_a_requester_that_gives_up(shared, connect, client, service, metrics):
    await client.send(b"SUB inbox 1\r\nPUB ask.slow inbox 1\r\n?\r\nUNSUB 1\r\n")
    _, values = await measured(metrics)
    assert (values["status"], values["description"]) == (408, "Request Timeout")


async def test_headers_choose_the_requests(client, service, metrics):
    def header(*lines):
        return "\r\n".join(("NATS/1.0", *lines, "", "")).encode()

    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
    await ask(client, service, "trace")
    await ask(client, service, "trace", header(f"traceparent: {parent}-00"))
    await ask(client, service, "trace", header("X-B3-Sampled: 0", "X-B3-TraceId: 1"))
    await ask(client, service, "trace", header("Uber-Trace-Id: 1:2:3:0"))
    await ask(client, service, "trace", header("b3: 0"))
    await ask(client, service, "trace", header(f"traceparent: {parent}-01", "tracestate: a=b", "other: x"))
    expected = [{"Traceparent": [f"{parent}-01"], "Tracestate": ["a=b"]}]
    for lines, found in (
        (("X-B3-TraceId: 1", "X-B3-SpanId: 2"), {"X-B3-Traceid": ["1"], "X-B3-Spanid": ["2"]}),
        (("X-B3-Sampled: 1",), {"X-B3-Sampled": ["1"]}),
        (("b3: 1-2-1",), {"B3": ["1-2-1"]}),
        (("b3: d",), {"B3": ["d"]}),
        (
            ("uber-trace-id: 1:2:3:1", "Uberctx-K: v"),
            {"Uber-Trace-Id": ["1:2:3:1"], "Uberctx-K": ["v"]},
        ),
    ):
        await ask(client, service, "trace", header(*lines))
        expected.append(found)
    assert [(await measured(metrics))[1]["header"] for _ in expected] == expected
