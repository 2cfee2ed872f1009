"""What a user may do is decided by subjects alone, and JetStream's own subjects are no exception."""

CONFIG = """
jetstream { store_dir: "STORE_DIR" }
authorization { users: [
  {user: admin, password: p}
  {user: writer, password: p, permissions: { publish: ["orders.>"], subscribe: ["_INBOX.>"] } }
  {user: worker, password: p, permissions: {
     publish: { allow: ["$JS.API.CONSUMER.MSG.NEXT.S.c", "$JS.ACK.S.c.>"] }, subscribe: ["_INBOX.>"] } }
  {user: peeker, password: p, permissions: {
     publish: { allow: [">"], deny: ["$JS.ACK.>", "$JS.API.STREAM.DELETE.*"] }, subscribe: { deny: ["secret.>"] } } }
] }
"""


async def set_up(start, connect):
    server = await start(CONFIG)
    admin = await connect(server, user="admin", **{"pass": "p"})
    answer = (await admin.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["orders.>"]})).json
    assert "error" not in answer
    for name in ("c", "other"):
        config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 60_000_000_000}
        body = {"stream_name": "S", "config": config}
        assert "error" not in (await admin.request(f"$JS.API.CONSUMER.CREATE.S.{name}", body)).json
    return server, admin


async def pending(admin, consumer="c"):
    info = (await admin.request(f"$JS.API.CONSUMER.INFO.S.{consumer}")).json
    return info["num_pending"], info["num_ack_pending"]


async def denied(wire, subject, payload=b""):
    """The errors that a publish with a reply brings, up to the next PONG."""
    await wire.publish(subject, payload, reply="_INBOX.denied")
    return await wire.ping()


async def test_a_writer_stores_messages_and_manages_nothing(start, connect):
    server, _ = await set_up(start, connect)
    writer = await connect(server, user="writer", **{"pass": "p"})
    assert (await writer.request("orders.new", b"x")).json["seq"] == 1
    for subject in (
        "$JS.API.INFO",
        "$JS.API.STREAM.DELETE.S",
        "$JS.API.STREAM.PURGE.S",
        "$JS.API.STREAM.MSG.GET.S",
        "$JS.API.DIRECT.GET.S",
        "$JS.API.CONSUMER.MSG.NEXT.S.c",
        "$JS.API.CONSUMER.CREATE.S.mine",
        "$JS.ACK.S.c.1.1.1.1.0",
    ):
        assert (
            await denied(writer, subject) == f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode()
        )
    assert len(server.server.engine.jetstreams["$G"].streams["S"].consumers) == 2


async def test_a_worker_works_on_its_own_consumer_alone(start, connect):
    server, admin = await set_up(start, connect)
    await admin.request("orders.new", b"x")
    worker = await connect(server, user="worker", **{"pass": "p"})
    await worker.subscribe("_INBOX.w", 1)
    await worker.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="_INBOX.w")
    message = await worker.message()
    assert b"Permissions Violation" in await denied(worker, "$JS.API.CONSUMER.MSG.NEXT.S.other", b"1")
    assert b"Permissions Violation" in await denied(worker, "$JS.ACK.S.other.1.1.1.1.0")
    assert b"Permissions Violation" in await denied(worker, "orders.new", b"y")
    assert await pending(admin) == (0, 1)
    await worker.publish(message.reply, b"+ACK")
    await worker.ping()
    assert await pending(admin) == (0, 0)


async def test_an_ack_that_is_not_allowed_acknowledges_nothing(start, connect):
    server, admin = await set_up(start, connect)
    await admin.request("orders.new", b"x")
    peeker = await connect(server, user="peeker", **{"pass": "p"})
    await peeker.subscribe("_INBOX.w", 1)
    await peeker.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="_INBOX.w")
    message = await peeker.message()
    for body in (b"+ACK", b"+TERM", b"-NAK", b"+NXT"):
        assert b"Permissions Violation" in await denied(peeker, message.reply, body)
    assert await pending(admin) == (0, 1)
    assert b"Permissions Violation" in await denied(peeker, "$JS.API.STREAM.DELETE.S")


async def test_denied_subjects_do_not_come_through_wildcards_or_queues(start, connect):
    server, admin = await set_up(start, connect)
    peeker = await connect(server, user="peeker", **{"pass": "p"})
    for subject, queue in (("secret.>", ""), ("secret.a", ""), ("secret.*", "workers")):
        await peeker.subscribe(subject, 1, queue)
        assert b"Permissions Violation for Subscription" in await peeker.ping()
    await peeker.subscribe(">", 2)
    await peeker.subscribe("*.a", 3, "workers")
    await peeker.ping()
    await admin.publish("secret.a", b"hidden")
    await admin.publish("open.a", b"shown")
    await admin.ping()
    seen = await peeker.ping()
    assert b"hidden" not in seen
    assert seen.count(b"shown") == 2


async def test_replies_that_only_servers_hand_out_cannot_be_asked_for(start, connect):
    server, admin = await set_up(start, connect)
    await admin.request("orders.new", b"x")
    await admin.publish("orders.new", b"y", reply="$JS.ACK.S.c.1.1.1.1.0")
    assert b"Permissions Violation for Publish with Reply" in await admin.ping()
    assert server.server.engine.jetstreams["$G"].streams["S"].store.messages == 1


async def test_no_answer_of_the_server_is_a_request_in_the_name_of_who_may_not_make_it(start, connect):
    server, admin = await set_up(start, connect)
    await admin.request("orders.new", b"x")
    worker = await connect(server, user="worker", **{"pass": "p"})
    await worker.subscribe("_INBOX.w", 1)
    await worker.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="_INBOX.w")
    message = await worker.message()
    writer = await connect(server, user="writer", **{"pass": "p"})
    for wire, subject, reply in (
        (worker, message.reply, "$JS.API.STREAM.DELETE.S"),
        (worker, message.reply, "$JS.API.CONSUMER.DELETE.S.other"),
        (writer, "orders.new", "$JS.API.CONSUMER.RESET.S.c"),
        (writer, "orders.new", "$KV.config.key"),
    ):
        await wire.publish(subject, reply=reply)
        violation = f"-ERR 'Permissions Violation for Publish with Reply of \"{reply}\"'\r\n"
        assert await wire.ping() == violation.encode()
    assert await pending(admin) == (0, 1)
    assert len(server.server.engine.jetstreams["$G"].streams["S"].consumers) == 2
    await admin.publish("orders.new", reply="$JS.API.STREAM.DELETE.S")
    assert await admin.ping() == b"", "who may make the request may have it made"
