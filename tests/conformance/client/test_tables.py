"""Streams and buckets as tables, by the asyncio and the blocking client, on both servers."""

import asyncio
import datetime
import io
import json
import socket
from contextlib import contextmanager, suppress

import duckdb
import fastavro
import polars
import pyarrow as pa
import pytest

import jetlake
import jetlake.blocking
from jetlake.client.connection.socket_connection import connect_socket
from jetlake.client.kv import Base64Values, PathKeys
from jetlake.errors import (
    BadPayloadError,
    ConfigError,
    ConnectionClosedError,
    DataLossError,
    InvalidOptionError,
    JetlakeError,
    StreamNotFoundError,
    UnsupportedStreamError,
)
from tests.support.clients import LACKS, with_partial_mirror


async def orders(js, count, **options):
    """A stream of JSON orders on `orders.0` to `orders.9`; every seventh has a header."""
    stream = await js.create_stream("ORDERS", subjects=["orders.>"], **options)
    for number in range(count):
        headers = {"Kind": "odd"} if number % 7 == 0 else None
        await js.publish_async(f"orders.{number % 10}", b'{"id": %d}' % number, headers=headers)
    await js.publish_async_complete()
    return stream


async def test_the_rows_of_a_stream(js):
    stream = await orders(js, 50, allow_direct=True)
    for reader in ("consumer", "direct", "leader"):
        table = await stream.to_arrow(reader=reader)
        assert table["sequence"].to_pylist() == list(range(1, 51))
        first = table.slice(0, 1).to_pylist()[0]
        message = await stream.get(1)
        assert (first["subject"], first["data"], first["headers"]) == ("orders.0", b'{"id": 0}', [("Kind", ["odd"])])
        assert table["timestamp"].cast(pa.int64())[0].as_py() == message.time_ns
        assert table["headers"][1].as_py() == []


async def test_ranges_filters_and_columns(js):
    stream = await orders(js, 50)

    async def sequences(**options):
        return (await stream.to_arrow(columns=["sequence"], **options))["sequence"].to_pylist()

    assert await sequences(start=10, end=12) == [10, 11, 12]
    assert await sequences(start="last:2") == [49, 50]
    assert await sequences(subjects=["orders.3", "orders.4"], start=30) == [34, 35, 44, 45]
    assert await sequences(subjects="orders.3", start="last:2") == [34, 44]
    stored = (await stream.get(20)).time_ns
    at = datetime.datetime.fromtimestamp(stored // 10**9 + 3600, datetime.UTC)
    assert await sequences(start=at) == []
    assert await sequences(start=datetime.timedelta(hours=1), end=at) == list(range(1, 51))
    assert await sequences(start="latest") == []
    far, long_ago = (moment.replace(tzinfo=datetime.UTC) for moment in (datetime.datetime.max, datetime.datetime.min))
    assert await sequences(start=long_ago, end=far) == list(range(1, 51))
    assert await sequences(start="time:2300-01-01T00:00:00Z") == await sequences(end="time:1500-01-01T00:00:00Z") == []
    assert await sequences(subjects="orders.none") == []
    wide = await stream.to_arrow(columns=["stream", "size", "msg_id", "headers_raw"], end=2)
    assert wide.to_pylist()[1] == {"stream": "ORDERS", "size": 9, "msg_id": None, "headers_raw": b""}


async def test_an_option_that_does_not_exist_is_named_with_the_one_that_does(js):
    stream = await js.create_stream("S")
    for read in (stream.to_arrow, stream.scan):
        with pytest.raises(TypeError, match="a table has no option 'subject'; did you mean 'subjects'"):
            await read(subject="s")


async def test_payloads_are_decoded(js):
    stream = await orders(js, 20)
    assert (await stream.to_arrow(payload="json"))["value"].to_pylist()[:2] == [{"id": 0}, {"id": 1}]
    typed = await stream.to_arrow(payload="json", schema={"id": pa.int16(), "more": pa.string()})
    assert typed.schema.field("value").type == pa.struct([("id", pa.int16()), ("more", pa.string())])
    await js.publish("orders.x", b"nonsense")
    with pytest.raises(BadPayloadError, match=r"message 21 of stream ORDERS.*bad_rows='column'"):
        await stream.to_arrow(payload="json")
    last = (await stream.to_arrow(payload="json", bad_rows="column")).to_pylist()[-1]
    assert (last["value"], last["bad_data"]) == (None, b"nonsense")
    assert "malformed" in last["bad_reason"]
    empty = await stream.to_arrow(payload="json", subjects="orders.none")
    assert empty.num_rows == 0


async def test_avro(js):
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    for number in range(3):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, {"id": number})
        await js.publish("orders.a", written.getvalue())
    for given in (schema, json.dumps(schema)):
        table = await stream.to_arrow(payload="avro", avro_schema=given)
        assert table["value"].to_pylist() == [{"id": 0}, {"id": 1}, {"id": 2}]
    with pytest.raises(ConfigError, match="must describe a record"):
        await stream.to_arrow(payload="avro", avro_schema='"long"')


async def test_frames_and_sql(js):
    stream = await orders(js, 30)
    frame = await stream.to_polars(payload="json")
    assert frame["value"].struct.field("id").sum() == sum(range(30))
    assert list((await stream.to_pandas(columns=["sequence"]))["sequence"]) == list(range(1, 31))
    table = stream.table(payload="json", subjects="orders.1")

    def ask():
        connection = duckdb.connect()
        relation = table.to_duckdb(connection).aggregate("count(*), max(value.id)")
        taken = table
        replaced = connection.sql("select count(*) from taken").fetchall()
        heights = polars.DataFrame(taken).height, pa.table(taken).num_rows
        return relation.fetchall(), relation.fetchall(), replaced, heights

    first, again, replaced, heights = await asyncio.to_thread(ask)
    assert (first, again, replaced, heights) == ([(3, 21)], [(3, 21)], [(3,)], (3, 3))
    await js.publish("orders.1", b'{"id": 100}')
    assert (await table.to_arrow()).num_rows == 4
    assert (await table.schema()).names == ["sequence", "subject", "timestamp", "headers", "value"]


async def test_batches_are_read_as_they_are_taken(js):
    stream = await orders(js, 3000)
    sizes = [len(batch) async for batch in stream.arrow_batches(batch_rows=700)]
    assert sum(sizes) == 3000
    assert max(sizes) <= 700
    async for batch in stream.arrow_batches(batch_rows=100):
        assert 0 < batch.num_rows <= 100
        break


async def test_a_connection_that_breaks_is_replaced(js):
    stream = await orders(js, 3000, allow_direct=True)
    for reader in ("consumer", "direct"):
        read = stream.table(columns=["sequence"], batch_rows=500, reader=reader).read
        link = read.make_link()
        seen = []

        def take(link=link, read=read, seen=seen):
            for batch in read.begin(link).batches:
                seen.extend(batch["sequence"].to_pylist())
                for connection in link._open:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

        await asyncio.to_thread(take)
        assert seen == list(range(1, 3001))


async def test_a_read_goes_on_when_the_server_was_killed(start, clients):
    server = await start(process=True)
    client = await clients(server, reconnect_wait=0.01, on_error=lambda error: None)
    js = client.jetstream()
    stream = await js.create_stream("LARGE", subjects=["large"])
    for _ in range(1500):
        await js.publish_async("large", bytes(20_000))
    await js.publish_async_complete()
    read = stream.table(columns=["sequence", "size"]).read
    batches = await asyncio.to_thread(read.arrow_batches)
    seen = await asyncio.to_thread(next, batches)
    await server.kill()
    await server.start()
    rest = await asyncio.to_thread(list, batches)
    table = pa.Table.from_batches([seen, *rest])
    assert table["sequence"].to_pylist() == list(range(1, 1501))
    assert set(table["size"].to_pylist()) == {20_000}


async def test_what_is_gone_is_told(js, caplog):
    stream = await orders(js, 20)
    await stream.purge(before=11)
    assert (await stream.to_arrow()).num_rows == 10
    with pytest.raises(DataLossError, match="messages 5 to 10"):
        await stream.to_arrow(start=5)
    assert (await stream.to_arrow(start=5, fail_on_data_loss=False)).num_rows == 10
    assert "messages 5 to 10" in caplog.text
    await stream.delete()
    with pytest.raises(StreamNotFoundError):
        await stream.to_arrow()


async def test_a_work_queue_keeps_its_messages(js):
    stream = await orders(js, 20, retention="workqueue", allow_direct=True)
    assert (await stream.to_arrow()).num_rows == 20
    assert (await stream.info()).state.messages == 20
    await stream.update(allow_direct=False)
    with pytest.raises(UnsupportedStreamError, match="direct gets"):
        await stream.to_arrow()


async def test_logins_domains_and_inboxes_are_the_clients(start, clients):
    config = """
        authorization { users: [ { user: me, password: secret, permissions: {
            publish: { allow: ["$JS.hub.API.>", "$JS.API.>", "orders.>"] }, subscribe: { allow: ["_MINE.>"] } } } ] }
        jetstream { store_dir: STORE_DIR, domain: hub }
    """
    server = await start(config)
    client = await clients(server, user=lambda: "me", password=lambda: "secret", inbox_prefix="_MINE")
    stream = await orders(client.jetstream(domain="hub"), 5)
    assert (await stream.to_arrow(reader="consumer")).num_rows == 5
    assert (await stream.to_arrow(reader="leader")).num_rows == 5


async def test_cancelling_stops_the_read(js):
    stream = await orders(js, 2000)
    for wait in range(3):
        task = asyncio.create_task(stream.to_arrow(reader="leader"))
        for _ in range(wait):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    batches = stream.arrow_batches(batch_rows=10)
    await anext(batches)
    await batches.aclose()
    assert (await stream.to_arrow()).num_rows == 2000


async def test_a_closed_client_is_told(server, clients):
    client = await clients(server)
    stream = await orders(client.jetstream(), 1)
    await client.close()
    with pytest.raises(ConnectionClosedError):
        await stream.to_arrow()


async def test_a_bucket(js):
    bucket = await js.create_key_value("B", history=5)
    for number in range(30):
        await bucket.put(f"k.{number % 10}", b'{"n": %d}' % number)
    await bucket.delete("k.3")
    table = await bucket.to_arrow(payload="json")
    assert dict(zip(table["key"].to_pylist(), (value["n"] for value in table["value"].to_pylist()), strict=True)) == {
        f"k.{key}": 20 + key for key in range(10) if key != 3
    }
    entry = await bucket.get("k.9")
    row = (await bucket.to_arrow("k.9")).to_pylist()[0]
    assert (row["key"], row["value"], row["revision"]) == ("k.9", entry.value, entry.revision)
    history = await bucket.to_arrow("k.3", history=True, payload="json")
    assert history["operation"].to_pylist() == ["put", "put", "put", "delete"]
    assert history["value"].to_pylist() == [{"n": 3}, {"n": 13}, {"n": 23}, None]
    await bucket.put("bad", b"{")
    with pytest.raises(BadPayloadError, match="key 'bad' of bucket B"):
        await bucket.to_arrow(payload="json", schema={"n": pa.int64()})
    assert (await bucket.to_arrow("nobody")).num_rows == 0
    with pytest.raises(InvalidOptionError, match="pattern"):
        bucket.table("a b")


async def test_a_key_whose_bytes_are_no_text_hides_no_other_key(js, server):
    bucket = await js.create_key_value("B")
    await bucket.put("good", b"1")

    def put_raw() -> None:
        with connect_socket(server.url) as connection:
            connection.request(b"$KV.B.\xff", b"2")

    await asyncio.to_thread(put_raw)
    assert await bucket.keys() == ["good", "\udcff"]
    assert (await bucket.to_arrow())["key"].to_pylist() == ["good", "\ufffd"]


async def test_a_bucket_through_codecs(js):
    bucket = (await js.create_key_value("B")).with_codec(keys=PathKeys(), values=Base64Values())
    await bucket.put("/a/b", b"value")
    assert [(row["key"], row["value"]) for row in (await bucket.to_arrow()).to_pylist()] == [("/a/b", b"value")]


async def test_a_bucket_that_changes_while_it_is_read_has_all_keys(js):
    bucket = await js.create_key_value("B")
    for number in range(300):
        await bucket.put(f"k.{number}", b"old")
    writing = asyncio.create_task(_change(bucket))
    tables = [await bucket.to_arrow() for _ in range(3)]
    await writing
    assert [table.num_rows for table in tables] == [300] * 3
    assert set((await bucket.to_arrow())["value"].to_pylist()) == {b"new"}


async def _change(bucket):
    for number in range(300):
        await bucket.put(f"k.{number}", b"new")


class WrittenLink:
    """A link whose bucket is written to before each lease."""

    def __init__(self, link, write):
        self._link = link
        self._write = write

    def __getattr__(self, name):
        return getattr(self._link, name)

    @contextmanager
    def lease(self):
        self._write()
        with self._link.lease() as connection:
            yield connection


@pytest.mark.parametrize("history", [1, 3])
async def test_a_bucket_that_changes_faster_than_it_is_read_has_all_keys(js, server, history):
    await js.create_key_value("B", history=history)

    def read():
        with jetlake.blocking.connect(server.url) as client:
            bucket = client.jetstream().key_value("B")
            for key in ("hot", "cold", "hotter", "gone"):
                bucket.put(key, b"old")
            bucket.delete("gone")

            def write():
                for _ in range(history):
                    for key in ("hotter", "hot"):
                        bucket.put(key, b"new")

            table = bucket.table()
            return table.to_arrow(WrittenLink(table.make_link(), write))

    table = await asyncio.to_thread(read)
    values = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    assert list(values) == [("cold", b"old"), ("hotter", b"new"), ("hot", b"new")]
    assert table["revision"].to_pylist() == sorted(table["revision"].to_pylist())


@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
async def test_a_server_in_this_process(tmp_path, kind):
    async with jetlake.Server(tmp_path) as server, jetlake.connect(server=server) as client:
        stream = await orders(client.jetstream(), 20)
        assert (await stream.to_polars()).height == 20
        # Only a thread beside the loop can wait for what the loop serves.
        with pytest.raises(JetlakeError, match="await a method of the table"):
            pa.table(stream.table())
        async with jetlake.connect(server.url) as other:
            with pytest.raises(JetlakeError, match="await a method of the table"):
                pa.table((await other.jetstream().stream("ORDERS")).table())
        assert (await asyncio.to_thread(pa.table, stream.table())).num_rows == 20


async def test_the_blocking_client(js, server):
    await orders(js, 20)
    await (await js.create_key_value("B")).put("k", b"v")

    def read():
        with jetlake.blocking.connect(server.url) as client:
            stream = client.jetstream().stream("ORDERS")
            table = stream.table(columns=["sequence"])
            reader = table.arrow_reader()
            first = next(reader)
            del reader
            bucket = client.jetstream().key_value("B")
            return (
                table.to_arrow().num_rows,
                table.schema().names,
                first.num_rows,
                stream.to_arrow().num_rows,
                stream.to_polars().height,
                len(stream.to_pandas()),
                sum(len(batch) for batch in stream.arrow_batches()),
                bucket.to_arrow().num_rows + bucket.to_polars().height + len(bucket.to_pandas("k")),
            )

    assert await asyncio.to_thread(read) == (20, ["sequence"], 20, 20, 20, 20, 20, 3)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("lack", LACKS)
async def test_a_mirror_does_not_answer_for_its_origin(server, clients, lack, retention):
    client = await clients(server)
    stream = await with_partial_mirror(client, lack, 60, retention=retention)
    stored = [(await stream.get(sequence, direct=False)).time_ns for sequence in range(1, 61)]
    ways = [{"reader": "direct"}, {"reader": "auto"}, {"reader": "direct", "subjects": ["s.3", "s.4"]}]
    for options in ways * 4:
        table = await stream.to_arrow(**options)
        wanted = [number for number in range(60) if "subjects" not in options or number % 10 in (3, 4)]
        assert table["sequence"].to_pylist() == [number + 1 for number in wanted]
        assert table["timestamp"].cast(pa.int64()).to_pylist() == [stored[number] for number in wanted]
    for _ in range(4):
        assert (await stream.to_arrow(subjects="s.4", start="last:2"))["sequence"].to_pylist() == [45, 55]


async def test_a_lazy_table_transfers_what_a_query_needs(js, monkeypatch):
    from jetlake.client.tables.rows import RowBuilder

    stream = await orders(js, 3000, allow_direct=True)
    transferred = []
    build = RowBuilder.build
    monkeypatch.setattr(RowBuilder, "build", lambda self, part: transferred.append(len(part)) or build(self, part))
    lazy = await stream.scan(payload="json")
    wanted = lazy.filter((polars.col("sequence") > 2990) & (polars.col("subject") == "orders.1"))
    transferred.clear()
    found = await asyncio.to_thread(wanted.select(polars.col("value").struct.field("id")).collect)
    assert found["id"].to_list() == [2991]
    assert sum(transferred) == 1
    dataset = await stream.table(columns=["sequence", "timestamp", "subject"]).dataset()
    (since,) = (await stream.to_arrow(start=2500, end=2500))["timestamp"].to_pylist()

    def ask():
        connection = duckdb.connect()
        connection.register("orders", dataset)
        return connection.execute("select min(sequence), count(*) from orders where timestamp >= ?", [since]).fetchall()

    transferred.clear()
    ((first, count),) = await asyncio.to_thread(ask)
    assert first <= 2500
    assert count == 3001 - first
    assert sum(transferred) < 3000


async def test_the_rows_of_a_table_are_published_once(js):
    stream = await orders(js, 0)
    rows = polars.DataFrame({"id": range(2000), "kind": ["a", "b"] * 1000})
    assert await js.publish_table(rows, subject="orders.{kind}", key="id") == (2000, 0)
    assert await js.publish_table(rows, subject="orders.{kind}", key="id") == (2000, 2000)
    frame = await stream.to_polars(payload="json", subjects="orders.b")
    assert frame["value"].struct.field("id").to_list() == list(range(1, 2000, 2))
    # A table of messages goes to another stream as it is.
    copy = await js.create_stream("COPY", subjects=["copy.>"], subject_transform={"src": "", "dest": ""})
    table = (await stream.to_arrow(subjects="orders.a")).drop_columns(["subject"])
    await js.publish_table(table, subject="copy.a", key="sequence")
    assert (await copy.to_arrow())["data"].to_pylist() == table["data"].to_pylist()
