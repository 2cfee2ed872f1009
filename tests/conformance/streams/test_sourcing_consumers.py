"""The consumers through which mirrors and sources read, as any client may create them."""

import re

import pytest

from tests.support.workbench import SECOND, Workbench

SOURCING = {
    "deliver_subject": "inbox",
    "ack_policy": "none",
    "ack_wait": 79200 * SECOND,
    "max_deliver": 1,
    "flow_control": True,
    "idle_heartbeat": SECOND,
    "inactive_threshold": 10 * SECOND,
    "direct": True,
    "sourcing": True,
}


@pytest.fixture
async def bench(server):
    bench = await Workbench.open(server)
    yield bench
    await bench.close()


async def create(bench, name, header=b"", **config):
    body = {"stream_name": "S", "config": {**SOURCING, "name": name, **config}}
    return await bench.control.request(f"$JS.API.CONSUMER.CREATE.S.{name}", body, header)


def identity(value):
    return b"NATS/1.0\r\nNats-Stream-Identity: %b\r\n\r\n" % value


async def test_a_direct_consumer_is_not_listed_and_does_not_count(bench):
    await bench.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_consumers": 1})
    await bench.fill(3)
    answer = await create(bench, "D")
    info = answer.json
    assert re.fullmatch(r"D-\w{8}", info["name"])
    assert re.fullmatch(r"\w{8}", answer.headers["Nats-Stream-Identity"])
    assert (await create(bench, "E", sourcing=False)).json["name"] == "E"
    assert (await create(bench, "F", direct=False)).json["name"] == "F"
    assert (await bench.api("CONSUMER.NAMES.S"))["consumers"] == ["F"]
    assert [consumer["name"] for consumer in (await bench.api("CONSUMER.LIST.S"))["consumers"]] == ["F"]
    assert (await bench.api("STREAM.INFO.S"))["state"]["consumer_count"] == 1
    assert (await bench.api("INFO"))["consumers"] == 3
    assert (await bench.info(info["name"]))["config"]["direct"]
    await bench.consumer("app")
    refused = await bench.api(
        "CONSUMER.CREATE.S.b", {"stream_name": "S", "config": {"durable_name": "b", "ack_policy": "none"}}
    )
    assert refused["error"]["err_code"] == 10026


async def test_the_identity_of_another_stream_is_refused(bench):
    known = (await create(bench, "D")).headers["Nats-Stream-Identity"]
    assert (await create(bench, "D", identity(known.encode()))).headers["Nats-Stream-Identity"] == known
    assert "error" not in (await create(bench, "D", identity(b""))).json
    error = (await create(bench, "D", identity(b"stranger"))).json["error"]
    assert error == {
        "code": 400,
        "err_code": 10225,
        "description": f"consumer's stream identity does not match: {known}",
    }
    await bench.api("STREAM.DELETE.S")
    await bench.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    assert (await create(bench, "D", identity(known.encode()))).json["error"]["err_code"] == 10225


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_where_consumed_messages_leave_the_consumer_is_durable(server, retention):
    bench = await Workbench.open(server, retention=retention)
    info = (await create(bench, "D")).json
    config = info["config"]
    assert (info["name"], config["durable_name"], config["ack_policy"]) == ("D", "D", "flow_control")
    assert (config["max_deliver"], config["max_ack_pending"], config["sourcing"]) == (-1, 1000, True)
    assert not {"direct", "ack_wait", "inactive_threshold"} & config.keys()
    assert config["metadata"]["_nats.req.level"] == "4"
    assert (await bench.api("CONSUMER.NAMES.S"))["consumers"] == ["D"]
    await bench.close()


async def flow_control_request(bench):
    """The messages up to the next flow control request, and that request."""
    messages = []
    while not (message := await bench.take()).reply.startswith("$JS.FC."):
        if message.status is None:
            messages.append(message)
    return messages, message


async def answer(bench, request, stored):
    header = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % (stored, stored)
    await bench.data.publish(request.reply, header=header)


async def test_a_work_queue_keeps_what_any_reader_has_not_stored(server):
    bench = await Workbench.open(server, retention="workqueue")
    await bench.fill(4)
    await bench.consumer("app")
    await create(bench, "D")
    messages, request = await flow_control_request(bench)
    assert len(messages) == 4
    await answer(bench, request, 3)
    await bench.reaches(((4, 4), (3, 3), 0, 1, 0, 0), "D")
    assert (await bench.api("STREAM.INFO.S"))["state"]["messages"] == 4
    await bench.pull({"batch": 4}, "app")
    taken = [message for message in await bench.take(4) if message.reply.startswith("$JS.ACK.S.app")]
    for message in taken[:2]:
        await bench.answer(message)
    state = (await bench.api("STREAM.INFO.S"))["state"]
    assert (state["first_seq"], state["messages"]) == (3, 2)

    # Asked for again, it continues behind what was stored, whatever start the request names.
    info = (await create(bench, "D", deliver_policy="by_start_sequence", opt_start_seq=1)).json
    assert (info["delivered"]["stream_seq"], info["config"]["deliver_policy"]) == (3, "all")
    messages, _ = await flow_control_request(bench)
    assert [message.reply.split(".")[5:7] for message in messages] == [["4", "1"]]
    await bench.close()
