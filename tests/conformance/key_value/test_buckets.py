"""Key-value buckets with the client on both servers, and with nats-py on the other side."""

import asyncio

import nats
import nats.js.errors
import pytest

import jetlake.blocking
from jetlake.client.connection.socket_connection import connect_socket
from jetlake.client.kv import Base64Keys, Base64Values, KeyChain, Operation, PathKeys, ValueChain
from jetlake.errors import (
    DecodeError,
    InvalidOptionError,
    KeyExistsError,
    KeyNotFoundError,
    NoRespondersError,
    PermissionsError,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamReplacedError,
    WrongLastSequenceError,
)
from tests.support.clients import until, until_both_answer, until_value, with_stale_mirror


async def test_values(js):
    bucket = await js.create_key_value("B", history=3)
    assert await bucket.put("a.b", b"1") == 1
    assert await bucket.put("a.b", b"2") == 2
    entry = await bucket.get("a.b")
    assert (entry.bucket, entry.key, entry.value, entry.revision) == ("B", "a.b", b"2", 2)
    assert entry.operation is Operation.PUT
    assert entry.operation == "put"
    assert entry.created.year >= 2024
    assert (await bucket.get("a.b", revision=1)).value == b"1"
    with pytest.raises(KeyNotFoundError, match="'B' has no key 'other'"):
        await bucket.get("other")
    assert await bucket.get("other", default=None) is None
    assert await bucket.get("a.b", default=None) == entry
    with pytest.raises(KeyNotFoundError):
        await bucket.get("other", revision=1)
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a.b", revision=99)


async def test_create_and_update(js):
    bucket = await js.create_key_value("B")
    assert await bucket.create("k", b"1") == 1
    with pytest.raises(KeyExistsError, match="already has the key 'k'"):
        await bucket.create("k", b"2")
    assert await bucket.update("k", b"2", 1) == 2
    with pytest.raises(WrongLastSequenceError):
        await bucket.update("k", b"3", 1)
    # A deleted key can be created anew, whichever way it was deleted.
    await bucket.delete("k")
    assert await bucket.create("k", b"4") == 4
    await bucket.purge("k")
    assert await bucket.create("k", b"6") == 6
    assert (await bucket.get("k")).value == b"6"


async def test_delete_and_purge(js):
    bucket = await js.create_key_value("B", history=5)
    for value in (b"1", b"2"):
        await bucket.put("k", value)
    with pytest.raises(WrongLastSequenceError):
        await bucket.delete("k", revision=1)
    await bucket.delete("k", revision=2)
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k")
    assert [(entry.value, entry.operation.value) for entry in await bucket.history("k")] == [
        (b"1", "put"),
        (b"2", "put"),
        (b"", "delete"),
    ]
    with pytest.raises(WrongLastSequenceError):
        await bucket.purge("k", revision=1)
    await bucket.purge("k", revision=3)
    assert [entry.operation for entry in await bucket.history("k")] == [Operation.PURGE]
    with pytest.raises(KeyNotFoundError):
        await bucket.history("never")


async def test_keys(js):
    bucket = await js.create_key_value("B")
    assert await bucket.keys() == []
    for key in ("a.1", "a.2", "b.1"):
        await bucket.put(key, b"x")
    await bucket.delete("a.2")
    assert sorted(await bucket.keys()) == ["a.1", "b.1"]
    assert await bucket.keys("a.*") == ["a.1"]
    assert sorted(await bucket.keys("a.1", "b.>")) == ["a.1", "b.1"]
    assert await bucket.keys("c.>") == []


async def test_keys_of_a_bucket_that_is_written_to_all_the_time(js):
    bucket = await js.create_key_value("B", storage="memory")
    names = {f"k{number}" for number in range(300)}
    is_over = asyncio.Event()

    async def write():
        while not is_over.is_set():
            for name in names:
                await js.publish_async(f"$KV.B.{name}", b"1")
            await asyncio.sleep(0)
        await js.publish_async_complete()

    writer = asyncio.create_task(write())
    try:
        await until(lambda: has_all(bucket, names))
        # nats-server counts too few pending messages while others are replaced.
        for _ in range(20):
            keys = await bucket.keys()
            assert (len(keys), set(keys)) == (len(names), names)
    finally:
        is_over.set()
        await writer


async def has_all(bucket, names):
    return (await bucket.status()).values == len(names)


async def test_markers_can_be_removed(js):
    bucket = await js.create_key_value("B", history=5)
    await bucket.put("old", b"1")
    await bucket.put("kept", b"1")
    await bucket.delete("old")
    assert await bucket.purge_deletes() == 1
    assert [entry.operation for entry in await bucket.history("old")] == [Operation.DELETE]
    assert await bucket.purge_deletes(older_than=0) == 1
    with pytest.raises(KeyNotFoundError):
        await bucket.history("old")
    assert await bucket.keys() == ["kept"]


async def test_markers_of_keys_that_others_named(js, server):
    bucket = await js.create_key_value("B")
    coded = bucket.with_codec(keys=PathKeys())
    await coded.put("a/b", b"stays")
    await bucket.delete("a/b")
    await js.publish("$KV.B.\N{LATIN SMALL LETTER U WITH DIAERESIS}", headers={"KV-Operation": "DEL"})

    def delete_raw() -> None:
        with connect_socket(server.url) as connection:
            connection.request(b"$KV.B.\xff", header=b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")

    await asyncio.to_thread(delete_raw)
    assert await coded.purge_deletes(older_than=0) == 2
    assert (await coded.get("a/b")).value == b"stays"
    assert (await bucket.status()).values == 2


async def test_a_value_that_is_put_while_markers_are_removed_stays(server, clients):
    client, other = await clients(server), await clients(server)
    bucket = await client.jetstream().create_key_value("B")
    other_bucket = await other.jetstream().key_value("B")
    for number in range(50):
        await bucket.delete(f"k{number}")
    first_purge = await other.subscribe("$JS.API.STREAM.PURGE.KV_B")
    await other.flush()

    async def put():
        await first_purge.next()
        await other_bucket.put("k49", b"new")

    await asyncio.gather(put(), bucket.purge_deletes(older_than=0))
    assert (await bucket.get("k49")).value == b"new"


async def test_watching(js):
    bucket = await js.create_key_value("B", history=3)
    for value in (b"1", b"2"):
        await bucket.put("a", value)
    await bucket.put("z.z", b"0")
    async with bucket.watch() as watch:
        assert [(entry.key, entry.value) for entry in await watch.current()] == [("a", b"2"), ("z.z", b"0")]
        assert await watch.current() == []
        await bucket.put("a", b"3")
        await bucket.delete("a")
        assert [(await watch.next(5)).operation.value for _ in range(2)] == ["put", "delete"]
    async with bucket.watch("a", include_history=True, ignore_deletes=True) as watch:
        assert [entry.value for entry in await watch.current()] == [b"2", b"3"]
    async with bucket.watch("z.*", meta_only=True) as watch:
        (entry,) = await watch.current()
        assert (entry.key, entry.value) == ("z.z", b"")
    async with bucket.watch(from_revision=4) as watch:
        assert [entry.revision for entry in await watch.current()] == [4, 5]


async def test_watching_what_comes(js):
    bucket = await js.create_key_value("B")
    await bucket.put("before", b"")
    received = []

    async def read():
        async with bucket.watch("c.>", updates_only=True) as watch:
            assert await watch.current() == []
            ready.set()
            async for entry in watch:
                received.append((entry.key, entry.value))
                if entry.value == b"end":
                    return

    ready = asyncio.Event()
    task = asyncio.create_task(read())
    await ready.wait()
    await bucket.put("c.1", b"x")
    await bucket.put("d", b"no")
    await bucket.put("c.2", b"end")
    await asyncio.wait_for(task, 10)
    assert received == [("c.1", b"x"), ("c.2", b"end")]


async def test_a_watch_ends_with_its_bucket(js):
    bucket = await js.create_key_value("B")
    async with bucket.watch() as watch:
        assert await watch.current() == []
        stream = await js.stream("KV_B")

        async def is_pulled():
            # nats-server says nothing to a pull that it has not looked at yet; then only missed heartbeats would tell.
            return any(info.num_waiting for info in await stream.consumers())

        await until(is_pulled)
        await js.delete_key_value("B")
        with pytest.raises((StreamNotFoundError, StreamReplacedError)):
            await watch.next(60)


async def test_a_life_of_its_own(js):
    bucket = await js.create_key_value("B", limit_marker_ttl=60)
    await bucket.create("brief", b"x", ttl=1)
    await bucket.create("long", b"x", ttl=3600)
    await bucket.put("put", b"x", ttl=1)
    await bucket.update("renewed", b"y", await bucket.create("renewed", b"x", ttl=3600), ttl=1)
    async with bucket.watch("brief", "put", "renewed") as watch:
        assert len(await watch.current()) == 3
        gone = [await watch.next(10) for _ in range(3)]
        assert {entry.key for entry in gone} == {"brief", "put", "renewed"}
        assert {(entry.operation, entry.is_deleted) for entry in gone} == {(Operation.PURGE, True)}
    assert await bucket.keys() == ["long"]
    assert await bucket.create("brief", b"again") > 0
    await bucket.purge("long", ttl=3600)
    assert (await bucket.history("long"))[0].operation is Operation.PURGE


async def test_buckets(js):
    bucket = await js.create_key_value("B", history=7, ttl=3600, description="d", max_value_size=10, storage="memory")
    status = await bucket.status()
    assert (status.bucket, status.values, status.history, status.ttl_s) == ("B", 0, 7, 3600)
    assert status.stream.config.max_msg_size == 10
    with pytest.raises(StreamNameInUseError):
        await js.create_key_value("B")
    await js.create_or_update_key_value("B", history=8, storage="memory")
    assert (await (await js.key_value("B")).status()).history == 8
    await js.create_or_update_key_value("A")
    await js.create_stream("KV_C", subjects=["c"])
    assert await js.key_value_names() == ["A", "B"]
    with pytest.raises(InvalidOptionError, match="not a bucket"):
        await js.key_value("C")
    await js.delete_key_value("B")
    with pytest.raises(StreamNotFoundError):
        await js.key_value("B")


async def test_what_cannot_work_is_refused(js):
    for name in ("", "a.b", "a b", ">"):
        with pytest.raises(InvalidOptionError, match="bucket's name"):
            await js.create_key_value(name)
    for history in (0, 65, True):
        with pytest.raises(InvalidOptionError, match="history must be 1 to 64"):
            await js.create_key_value("B", history=history)
    with pytest.raises(InvalidOptionError, match="no option 'max_age'"):
        await js.create_key_value("B", max_age=1)
    bucket = await js.create_key_value("B")
    for key in ("", ".a", "a.", "a..b", "a b", "a.*", ">"):
        with pytest.raises(InvalidOptionError, match="a key must"):
            await bucket.put(key, b"")
    for pattern in ("", "a.>.b", "a..b", ">.a"):
        with pytest.raises(InvalidOptionError, match="a pattern must"):
            bucket.watch(pattern)
    with pytest.raises(InvalidOptionError, match="mutually exclusive"):
        bucket.watch(include_history=True, updates_only=True)
    with pytest.raises(InvalidOptionError, match="revision"):
        await bucket.get("k", revision=-1)


async def test_what_one_client_writes_the_other_reads(js, server):
    other = await nats.connect(server.url)
    try:
        theirs = await other.jetstream().create_key_value(bucket="B", history=5)
        ours = await js.key_value("B")
        await theirs.put("t", b"theirs")
        await ours.put("o", b"ours")
        assert (await ours.get("t")).value == b"theirs"
        assert (await theirs.get("o")).value == b"ours"
        await ours.delete("t")
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await theirs.get("t")
        await theirs.purge("o")
        with pytest.raises(KeyNotFoundError):
            await ours.get("o")
        assert await ours.create("o", b"again") == await theirs.create("n", b"new") - 1
        assert sorted(await ours.keys()) == sorted(await theirs.keys()) == ["n", "o"]
        assert await theirs.update("n", b"2", (await ours.get("n")).revision) == (await ours.get("n")).revision
        words = {None: Operation.PUT, "DEL": Operation.DELETE, "PURGE": Operation.PURGE}
        assert [entry.operation for entry in await ours.history("t")] == [
            words[entry.operation] for entry in await theirs.history("t")
        ]
        watcher = await theirs.watchall()
        async with ours.watch() as watch:
            current = await watch.current()
        assert [entry.key for entry in current] == [(await watcher.updates()).key for _ in current]
        await watcher.stop()
    finally:
        await other.close()


async def test_in_a_domain(start, clients):
    server = await start('jetstream { store_dir: "STORE_DIR", domain: "hub" }')
    client = await clients(server)
    near, far = client.jetstream(), client.jetstream(domain="hub")
    bucket = await far.create_key_value("B")
    async with await client.subscribe("$KV.B.>") as changes:
        assert await bucket.put("k", b"1") == 1
        assert (await changes.next(5)).subject == "$KV.B.k"
    assert (await bucket.get("k")).value == b"1"
    assert (await (await near.key_value("B")).get("k")).revision == 1
    assert await bucket.keys() == ["k"]
    await near.delete_key_value("B")
    with pytest.raises(NoRespondersError):
        await far.publish("$JS.hub.API.$KV.B.k", b"", retries=0)


async def test_without_await(server):
    def work():
        with jetlake.blocking.connect(server.url) as client:
            js = client.jetstream()
            bucket = js.create_key_value("B", history=2)
            assert repr(bucket) == "<blocking <KeyValue 'B'>>"
            revision = bucket.create("k", b"1")
            bucket.update("k", b"2", revision)
            with pytest.raises(KeyExistsError):
                bucket.create("k", b"3")
            assert [entry.value for entry in bucket.history("k")] == [b"1", b"2"]
            with bucket.watch() as watch:
                assert [entry.value for entry in watch.current()] == [b"2"]
                bucket.put("l", b"3")
                for entry in watch:
                    assert (entry.key, entry.value) == ("l", b"3")
                    break
            assert sorted(bucket.keys()) == ["k", "l"]
            bucket.delete("k")
            bucket.purge("l")
            assert bucket.status().values == 3
            assert bucket.purge_deletes(older_than=0) == 2
            assert js.key_value("B").keys() == []
            coded = bucket.with_codec(keys=PathKeys())
            seen = []
            with coded.watch(handler=lambda entry: seen.append(entry.key)):
                coded.put("/a/b", b"")
                while seen != ["/a/b"]:
                    bucket.status()
            assert js.key_value_names() == ["B"]
            js.delete_key_value("B")

    await asyncio.to_thread(work)


async def test_a_watch_leaves_no_consumer_behind(js):
    bucket = await js.create_key_value("B")
    await bucket.put("k", b"1")
    assert await bucket.keys() == ["k"]

    async def is_gone():
        return await bucket.stream.consumer_names() == []

    await until(is_gone)


async def test_watching_by_a_handler(js):
    bucket = await js.create_key_value("B")
    await bucket.put("a", b"1")
    await bucket.put("other", b"1")
    seen = []

    async def take(entry):
        seen.append((entry.key, entry.operation))
        if entry.key == "fails":
            raise RuntimeError("not this one")

    async with bucket.watch("a", "fails", handler=take) as watch:
        await until(lambda: seen)
        await bucket.put("fails", b"")
        await bucket.delete("a")
        await until(lambda: len(seen) == 3)
        assert seen == [("a", "put"), ("fails", "put"), ("a", "delete")]
        with pytest.raises(InvalidOptionError, match="handler"):
            await watch.next(1)
        await js.delete_key_value("B")
        with pytest.raises((StreamNotFoundError, StreamReplacedError)):
            await asyncio.wait_for(watch.wait(), 60)
    with pytest.raises(InvalidOptionError, match="handler must be a function"):
        bucket.watch(handler="print")


async def test_keys_and_values_in_codecs(js):
    plain = await js.create_key_value("B", history=3)
    for keys, key, stored, pattern in (
        (PathKeys(), "/etc/hosts", "_root_.etc.hosts", "/etc/*"),
        (Base64Keys(), "a key.ü", "YSBrZXk.w7w", "a key.>"),
        (KeyChain(PathKeys(), Base64Keys()), "/a/ü b", "X3Jvb3Rf.YQ.w7wgYg", "/a/*"),
    ):
        coded = plain.with_codec(keys=keys, values=ValueChain(Base64Values(), Base64Values()))
        await coded.create(key, b"value")
        assert (await plain.get(stored)).value == b"ZG1Gc2RXVT0="
        entry = await coded.get(key)
        assert (entry.key, entry.value) == (key, b"value")
        await coded.update(key, b"2", entry.revision)
        assert [entry.value for entry in await coded.history(key)] == [b"value", b"2"]
        assert await coded.keys(pattern) == [key]
        async with coded.watch(key) as watch:
            assert [(entry.key, entry.value) for entry in await watch.current()] == [(key, b"2")]
        with pytest.raises(KeyExistsError):
            await coded.create(key, b"")
        await coded.delete(key)
        with pytest.raises(KeyNotFoundError):
            await coded.get(key)
        assert await coded.purge_deletes(older_than=0) == 1
        assert await plain.keys() == []
        with pytest.raises(KeyNotFoundError):
            await plain.history(stored)
    with pytest.raises(InvalidOptionError, match="must not contain dots"):
        await plain.with_codec(keys=PathKeys()).put("/a/file.txt", b"")
    await plain.put("no!base64".replace("!", "="), b"no base64")
    with pytest.raises(DecodeError, match="not valid base64"):
        await plain.with_codec(values=Base64Values()).get("no=base64")


async def test_a_bucket_of_other_buckets(js):
    for name in ("EAST", "WEST"):
        await (await js.create_key_value(name)).put(f"shop.{name.lower()}", b"1")
    east = await js.key_value("EAST")
    await east.put("other.key", b"2")
    every = await js.create_key_value("ALL", sources=[{"name": "EAST"}, {"name": "WEST"}])
    some = await js.create_key_value("SOME", sources=[{"name": "KV_EAST", "filter_subject": "$KV.EAST.shop.*"}])

    async def is_complete():
        return sorted(await every.keys()) == ["other.key", "shop.east", "shop.west"] and await some.keys() != []

    await until(is_complete)
    assert await some.keys() == ["shop.east"]
    assert (await every.get("other.key")).value == b"2"
    await east.delete("other.key")

    async def is_deleted():
        return sorted(await every.keys()) == ["shop.east", "shop.west"]

    await until(is_deleted)


async def test_a_mirror_of_a_bucket(js):
    origin = await js.create_key_value("ORIGIN")
    await origin.put("k", b"1")
    mirror = await js.create_key_value("MIRROR", mirror={"name": "ORIGIN"})

    async def has_key():
        return await mirror.keys() == ["k"]

    await until(has_key)
    await mirror.put("l", b"2")
    await until_value(origin, "l", b"2")
    seen = []
    async with mirror.watch(handler=lambda entry: seen.append(entry.key)):
        await until(lambda: seen == ["k", "l"])


async def test_a_key_is_created_by_what_the_origin_has(js):
    origin = await js.create_key_value("B")
    part = await js.create_key_value("P", mirror={"name": "B", "filter_subject": "$KV.B.held.>"})
    await origin.put("other.key", b"1")
    await origin.delete("other.gone")
    # The mirror has neither the value nor the marker.
    with pytest.raises(KeyExistsError):
        await part.create("other.key", b"2")
    assert await part.create("other.gone", b"2") == 3
    assert (await origin.get("other.gone")).value == b"2"


async def test_a_key_is_created_by_what_the_leader_has(server, clients):
    client, other = await clients(server), await clients(server)
    bucket = await client.jetstream().create_key_value("B")
    asked = await other.subscribe("$JS.API.*.*.KV_B.>")
    leader = await other.subscribe("$JS.API.STREAM.MSG.GET.KV_B")
    await other.flush()
    await bucket.put("k", b"no base64")
    with pytest.raises(KeyExistsError):
        await bucket.with_codec(values=Base64Values()).create("k", b"2")
    await leader.next(5)
    assert asked.pending_messages == 0


async def test_own_writes_are_read_whoever_answers(server, clients):
    client = await clients(server)
    js = client.jetstream()
    bucket = await js.create_key_value("B", history=5)
    for value in (b"1", b"2"):
        await bucket.put("k", value)
    await bucket.put("only", b"3")
    await with_stale_mirror(client, "KV_B", 2, 3)
    others = await (await clients(server)).jetstream().key_value("B")
    again = await js.key_value("B")
    for _ in range(10):
        assert (await bucket.get("k")).value == (await again.get("k")).value == b"2"
        assert (await others.get("k", leader=True)).value == b"2"
        # Nobody but the leader may say that there is no value.
        assert (await bucket.get("only")).value == (await others.get("only")).value == b"3"
        assert (await others.get("only", revision=3)).value == b"3"

    async def is_old():
        return (await others.get("k")).value == b"1"

    await until(is_old)  # What others wrote may be seen later.


async def test_a_value_of_an_earlier_bucket_is_not_read(server, clients):
    client = await clients(server)
    js = client.jetstream()
    bucket = await js.create_key_value("B")
    await bucket.put("k", b"old")
    await js.create_stream("COPY", mirror={"name": "KV_B"}, mirror_direct=True)
    await until_both_answer(client, "KV_B", "COPY")
    await js.delete_key_value("B")
    bucket = await js.create_key_value("B")
    for _ in range(8):
        with pytest.raises(KeyNotFoundError):
            await bucket.get("k")
    await bucket.put("k", b"new")
    for _ in range(8):
        assert (await bucket.get("k")).value == b"new"


async def test_a_login_that_may_use_direct_gets_only(start, clients):
    """It has nobody else to ask whether there is no value."""
    server = await start(
        """
        authorization { users: [
            { user: admin, password: secret }
            { user: reader, password: secret, permissions: {
                publish: ["$JS.API.DIRECT.GET.>", "$JS.API.STREAM.INFO.>"] } }
        ] }
        """
    )
    bucket = await (await clients(server, user="admin", password="secret")).jetstream().create_key_value("B")
    await bucket.put("k", b"1")
    reader = await clients(server, user="reader", password="secret", on_error=lambda error: None)
    bucket = await reader.jetstream().key_value("B")
    assert (await bucket.get("k")).value == b"1"
    for options in ({}, {"revision": 7}):
        with pytest.raises(KeyNotFoundError):
            await bucket.get("other", **options)
    assert [message async for message in bucket.stream.get_batch(5, sequence=9)] == []
    with pytest.raises(PermissionsError):
        await bucket.get("k", leader=True)
