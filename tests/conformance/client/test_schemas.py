"""Schemas in a bucket, and messages validated by them, in both clients and the command, on both servers."""

import json

import pytest

import jetlake.blocking
from jetlake.errors import ConfigError, InvalidOptionError, SchemaError, SchemaMismatchError, StreamNotFoundError
from tests.support.clients import until

V1 = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
V2 = {**V1, "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
BREAKING = {**V1, "properties": {"id": {"type": "string"}}}


@pytest.fixture
async def orders(js):
    return await js.create_stream("ORDERS", subjects=["orders.>"])


async def test_versions_in_a_bucket_that_any_client_reads(js, orders):
    assert await js.schemas().list() == []
    first = await js.schemas().add("ORDERS", "orders.>", json.dumps(V1))
    assert (first.version, first.compatibility) == (1, "backward")
    assert await js.schemas().add("ORDERS", "orders.>", json.dumps(V1)) == first
    assert (await js.schemas().add("ORDERS", "orders.>", json.dumps(V2))).version == 2
    with pytest.raises(SchemaError, match="id was integer and is string"):
        await js.schemas().add("ORDERS", "orders.>", json.dumps(BREAKING))
    assert (await js.schemas().get("ORDERS", "orders.new")).version == 2
    assert (await js.schemas().get("ORDERS", "orders.>", version=1)) == first
    with pytest.raises(SchemaError, match="no version 3"):
        await js.schemas().get("ORDERS", "orders.>", version=3)
    stored = await (await js.key_value("schemas")).get("ORDERS.orders.=rest")
    assert json.loads(stored.value)["schema"] == json.dumps(V2)
    with pytest.raises(StreamNotFoundError):
        await js.schemas().add("NONE", "orders.>", json.dumps(V1))
    with pytest.raises(InvalidOptionError, match="captures no subject"):
        await js.schemas().add("ORDERS", "other", json.dumps(V1))


async def test_publishing_validated_messages(js, orders):
    with pytest.raises(SchemaError, match="has no schema"):
        await js.publish("orders.new", b"{}", validate=True)
    await js.schemas().add("ORDERS", "orders.>", json.dumps(V1))
    assert (await js.publish("orders.new", b'{"id": 1}', validate=True, msg_id="1")).seq == 1
    with pytest.raises(SchemaMismatchError, match="'id' is a required property"):
        await js.publish("orders.new", b"{}", validate=True)
    with pytest.raises(SchemaMismatchError):
        await js.publish_async("orders.new", b"{}", validate=True)
    await (await js.publish_async("orders.new", b'{"id": 2}', validate=True))
    with pytest.raises(SchemaMismatchError) as refused:
        await js.publish_many(
            [("orders.new", b'{"id": 3}', {"validate": True}), ("orders.new", b"", {"validate": True})]
        )
    assert "message 1 of publish_many" in refused.value.__notes__[0]
    await js.publish_async_complete()
    await js.publish("orders.new", b"{}")
    with pytest.raises(InvalidOptionError, match="validate is for"):
        js.batch().publish("orders.new", b"{}", validate=True)
    assert (await orders.info()).state.messages == 4


async def test_a_schema_that_another_client_adds_is_used(js, orders, clients, server, monkeypatch):
    other = (await clients(server)).jetstream()
    await js.schemas().add("ORDERS", "orders.>", json.dumps(V1))
    with pytest.raises(SchemaMismatchError):
        await other.publish("orders.new", b'{"id": "1"}', validate=True)
    await js.schemas().add("ORDERS", "orders.new", json.dumps(BREAKING))
    monkeypatch.setattr("jetlake.client.schemas.schemas._FRESH_S", 0.0)
    other.schemas()._fresh_until_s = 0.0  # As after five seconds.
    assert (await other.publish("orders.new", b'{"id": "1"}', validate=True)).seq == 1
    await (await js.key_value("schemas")).delete("ORDERS.orders.new")

    async def is_refused():
        try:
            await other.publish("orders.new", b'{"id": "1"}', validate=True)
        except SchemaMismatchError:
            return True
        return False

    await until(is_refused)


async def test_two_clients_that_add_at_once(js, orders, clients, server, monkeypatch):
    await js.schemas().add("ORDERS", "orders.>", json.dumps(V1))
    slow = (await clients(server)).jetstream().schemas()
    compared = slow._compared

    async def overtaken(*arguments):
        found = await compared(*arguments)
        await js.schemas().add("ORDERS", "orders.>", json.dumps(V2))
        return found

    monkeypatch.setattr(slow, "_compared", overtaken)
    with pytest.raises(SchemaError, match="another client"):
        await slow.add("ORDERS", "orders.>", json.dumps({**V1, "title": "mine"}))
    assert (await js.schemas().get("ORDERS", "orders.>")).schema == json.dumps(V2)


async def test_the_client_without_await(js, orders, server):
    def work():
        with jetlake.blocking.connect(server.url) as client:
            blocking = client.jetstream()
            assert blocking.schemas().add("ORDERS", "orders.>", json.dumps(V1)).version == 1
            assert blocking.publish("orders.new", b'{"id": 1}', validate=True).seq == 1
            assert blocking.publish_async("orders.new", b'{"id": 1}', validate=True).result().seq == 2
            for publish in (blocking.publish, blocking.publish_async):
                with pytest.raises(SchemaMismatchError):
                    publish("orders.new", b"{}", validate=True)
            assert [one.subject for one in blocking.schemas().list("ORDERS")] == ["orders.>"]

    import asyncio

    await asyncio.to_thread(work)


async def test_in_the_command(js, orders, shell, tmp_path):
    first, second, broken = tmp_path / "v1.json", tmp_path / "v2.json", tmp_path / "bad.json"
    first.write_text(json.dumps(V1))
    second.write_text(json.dumps(V2))
    broken.write_text(json.dumps(BREAKING))
    assert "Version 1 of the schema" in await shell.run(f"schema add ORDERS 'orders.>' {first}")
    assert "may follow version 1" in await shell.run(f"schema check ORDERS 'orders.>' {second}")
    assert "was integer and is string" in await shell.run(f"schema check ORDERS 'orders.>' {broken}", status=1)
    assert (await shell.json(f"schema add ORDERS 'orders.>' {second} --compatibility full"))["version"] == 2
    assert await shell.run("schema get ORDERS orders.new --version 1 --raw") == json.dumps(V1) + "\n"
    assert "full" in await shell.run("schema get ORDERS 'orders.>'")
    assert (await shell.json("schema ls ORDERS"))[0]["version"] == 2
    assert "No schemas" in await shell.run("schema ls OTHER")
    assert "not known by its suffix" in await shell.run(f"schema add ORDERS orders.x {__file__}", status=2)
    assert "Stored in ORDERS as sequence 1" in await shell.run("pub --validate orders.new '{\"id\": 1}'")
    assert "required property" in await shell.run("pub --validate orders.new '{}'", status=1)
    assert "Checked 1 message: 0 do not fit" in await shell.run("schema check ORDERS 'orders.>'")
    await js.publish("orders.old", b"{}")
    assert "ORDERS#2 orders.old: $: 'id' is a required" in await shell.run("schema check ORDERS 'orders.>'", status=1)
    assert (await shell.json("stream get ORDERS 1 --decode"))["value"] == {"id": 1}
    assert "Does not fit orders.> version 2" in await shell.run("stream view ORDERS --decode")


async def test_tables_are_decoded_by_the_schema_of_a_subject(js, orders):
    await js.schemas().add("ORDERS", "orders.>", json.dumps(V2))
    await js.publish("orders.new", b'{"id": 1}')
    for table in (
        await orders.to_arrow(payload="json", schema="bucket:orders.new"),
        (await orders.to_polars(payload="json", schema="bucket:orders.>")).to_arrow(),
    ):
        assert table["value"].to_pylist() == [{"id": 1, "note": None}]
    with pytest.raises(ConfigError, match="no schema of other"):
        await orders.to_arrow(payload="json", schema="bucket:other")
    with pytest.raises(ConfigError, match="is json, not avro"):
        await orders.to_arrow(payload="avro", schema="bucket:orders.>")
    with pytest.raises(InvalidOptionError, match="exclude each other"):
        orders.table(payload="avro", schema="bucket:orders.>", avro_schema="{}")
