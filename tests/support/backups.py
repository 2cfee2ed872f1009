"""Backups over a raw connection: take one, put one back."""

import json


async def take(wire, stream, *, subject="backup.x", **request):
    """The answer, the archive, and the message that ended it; every chunk is acknowledged."""
    await wire.subscribe(subject, "77")
    await wire.subscribe("backup.answer", "76")
    body = json.dumps({"deliver_subject": subject, **request})
    await wire.publish(f"$JS.API.STREAM.SNAPSHOT.{stream}", body, reply="backup.answer")
    archive, answer, end = b"", None, None
    while answer is None or end is None:
        message = await wire.message()
        if message.sid == "76":  # may come after the first chunks
            answer = message.json
            continue
        archive += message.payload
        if message.reply:
            await wire.publish(message.reply, b"")
        if not message.payload:
            end = message
    await wire.send("UNSUB 77\r\nUNSUB 76\r\n")
    return answer, archive, end


async def put(wire, name, archive, /, *, chunk=30_000, **config):
    """The answer to a restore: of its beginning when that was refused, else of its end."""
    config = {"name": name, "subjects": ["s.>"], **config}
    answer = (await wire.request(f"$JS.API.STREAM.RESTORE.{name}", {"config": config})).json
    if "error" in answer:
        return answer
    for start in range(0, len(archive), chunk):
        message = await wire.request(answer["deliver_subject"], archive[start : start + chunk])
        assert (message.header, message.payload) == (b"", b"")
    return (await wire.request(answer["deliver_subject"], b"")).json


async def fill(wire, count=400, **config):
    """A stream with messages, gaps, headers and a consumer in the middle of them."""
    config = {"name": "S", "subjects": ["s.>"], **config}
    answer = (await wire.request("$JS.API.STREAM.CREATE.S", config)).json
    assert "error" not in answer, answer
    for number in range(1, count + 1):
        header = b"NATS/1.0\r\nA: %d\r\nNats-Msg-Id: %d\r\n\r\n" % (number, number) if not number % 50 else b""
        await wire.publish(f"s.{number % 7}", b"%d words that are said again and again" % number, header=header)
    await wire.ping()
    for sequence in (20, count):
        await wire.request("$JS.API.STREAM.MSG.DELETE.S", {"seq": sequence})
    # With no room for new messages, the one that is not acknowledged comes again next.
    consumer = {"durable_name": "c", "name": "c", "ack_policy": "explicit", "max_deliver": 5, "max_ack_pending": 8}
    await wire.request("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": consumer})
    await wire.subscribe("fill.in", "78")
    await wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps({"batch": 8}), reply="fill.in")
    messages = await wire.messages(8)
    await wire.publish(messages[5].reply, b"-NAK")
    await wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="fill.in")
    again = await wire.message()
    assert ".2.6.9." in again.reply, "the sixth message for the second time"
    for place in (0, 1, 4):
        await wire.request(messages[place].reply, b"+ACK")
    await wire.send("UNSUB 78\r\n")
    await wire.ping()


async def content(wire, count=400):
    """What a client can see of the stream and its consumer, without the times of their creation."""
    info = (await wire.request("$JS.API.STREAM.INFO.S", {"deleted_details": True})).json
    del info["state"]["last_ts"]  # that of the last message in the archive
    messages = [
        (await wire.request("$JS.API.STREAM.MSG.GET.S", {"seq": sequence})).json.get("message")
        for sequence in (1, 2, 20, 50, 100, count - 1, count)
    ]
    consumer = (await wire.request("$JS.API.CONSUMER.INFO.S.c")).json
    for key in ("delivered", "ack_floor"):
        consumer[key].pop("last_active", None)
    numbers = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending", "config")
    for config in (info["config"], consumer["config"]):
        for key in ("_nats.level", "_nats.ver", "_nats.req.level"):
            config.get("metadata", {}).pop(key, None)
    return info["config"], info["state"], messages, {key: consumer[key] for key in numbers}
