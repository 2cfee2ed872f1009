"""Object stores with the client on both servers, and with nats-py on the other side."""

import asyncio
import hashlib
import io
import os
import random
import signal
import sys
import textwrap

import nats
import nats.js.errors
import pytest
from msgspec.structs import replace
from nats.js.api import ObjectMeta

import jetlake.blocking
from jetlake.client.ordered.ordered import OrderedConsume
from jetlake.errors import (
    ApiError,
    InvalidOptionError,
    JetlakeError,
    ObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from tests.support.clients import until, with_stale_mirror
from tests.support.relay import BreaksOnce

LARGE = random.Random(1).randbytes(1_000_003)


@pytest.fixture
async def store(js):
    return await js.create_object_store("B")


async def chunk_count(store):
    return sum((await store.stream.info(subjects_filter=f"$O.{store.bucket}.C.>")).state.subjects.values())


async def test_put_and_get(store):
    info = await store.put("a b/ç", LARGE, description="d", headers={"H": "1"}, metadata={"k": "v"})
    assert (info.size, info.chunks, info.chunk_size) == (1_000_003, 8, 131072)
    assert await store.get("a b/ç") == LARGE
    found = await store.info("a b/ç")
    assert (found.name, found.description, found.headers, found.metadata) == ("a b/ç", "d", {"H": ["1"]}, {"k": "v"})
    assert (found.digest, found.revision, found.nuid) == (info.digest, info.revision, info.nuid)
    assert abs(found.modified_ns - info.modified_ns) < 60e9
    empty = await store.put("empty", b"")
    assert (empty.chunks, empty.digest) == (0, "SHA-256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=")
    assert await store.get("empty") == b""
    with pytest.raises(ObjectNotFoundError, match="'B' has no object 'other'"):
        await store.get("other")


async def test_what_an_object_can_be_made_of(store, tmp_path):
    (tmp_path / "source").write_bytes(LARGE)

    async def pieces():
        for start in range(0, len(LARGE), 70_001):
            yield LARGE[start : start + 70_001]

    contents = {
        "bytes": LARGE,
        "bytearray": bytearray(LARGE),
        "memoryview": memoryview(LARGE),
        "path": tmp_path / "source",
        "file": io.BytesIO(LARGE),
        "iterator": (LARGE[start : start + 3] for start in range(0, len(LARGE), 3)),
        "async iterator": pieces(),
    }
    for name, content in contents.items():
        told = []
        info = await store.put(
            name, content, chunk_size=100_000, progress=lambda *numbers, told=told: told.append(numbers)
        )
        assert (info.size, info.chunks) == (len(LARGE), 11), name
        assert told[-1] == (len(LARGE), 0 if "iterator" in name else len(LARGE)), name
        assert hashlib.sha256(await store.get(name)).digest() == hashlib.sha256(LARGE).digest(), name
    for content in ("text", 5, [b"x", "text"], io.StringIO("text")):
        with pytest.raises(InvalidOptionError):
            await store.put("bad", content)
    with pytest.raises(FileNotFoundError):
        await store.put("bad", tmp_path / "missing")
    assert "bad" not in [info.name for info in await store.list()]


async def test_get_to_files_and_chunk_by_chunk(store, tmp_path):
    await store.put("large", LARGE)
    told = []
    info = await store.get_file("large", tmp_path / "copy", progress=lambda *numbers, told=told: told.append(numbers))
    assert (tmp_path / "copy").read_bytes() == LARGE
    assert info.name == "large"
    assert told[-1] == (len(LARGE), len(LARGE))
    written = io.BytesIO()
    await store.get_file("large", written)
    assert written.getvalue() == LARGE
    async with store.open("large") as content:
        assert content.info.size == len(LARGE)
        assert [len(chunk) async for chunk in content] == [131072] * 7 + [len(LARGE) - 7 * 131072]
    with pytest.raises(ObjectNotFoundError):
        await store.get_file("missing", tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


async def test_replacing_and_deleting_leave_no_chunks(store):
    await store.put("o", LARGE)
    await store.put("o", b"small")
    assert await chunk_count(store) == 1
    await store.delete("o")
    assert await chunk_count(store) == 0
    with pytest.raises(ObjectNotFoundError):
        await store.info("o")
    with pytest.raises(ObjectNotFoundError):
        await store.delete("o")
    assert (await store.info("o", include_deleted=True)).is_deleted
    assert await store.list() == []
    assert [info.name for info in await store.list(include_deleted=True)] == ["o"]
    await store.put("o", b"again")
    assert await store.get("o") == b"again"


async def test_writers_of_one_name_leave_one_content(store):
    await asyncio.gather(*(store.put("o", b"%d" % number * 200_000) for number in range(5)))
    content = await store.get("o")
    assert content in [b"%d" % number * 200_000 for number in range(5)]
    assert await chunk_count(store) == 2


async def test_what_cannot_be_described_is_refused(js, store):
    for options in (
        {"description": 5},
        {"description": "d" * 1_100_000},
        {"metadata": {"a": 1}},
        {"headers": {"a": 1}},
        {"headers": {"a": [1]}},
    ):
        with pytest.raises(InvalidOptionError):
            await store.put("o", LARGE, **options)
    assert (await store.status()).stream.state.last_seq == 0
    await store.put("o", b"1")
    with pytest.raises(InvalidOptionError):
        await store.update_meta("o", metadata={"a": 1})
    # Another client may have written what nobody can read; nothing is removed then that may belong to it.
    await js.publish("$O.B.M.eA==", b"nonsense")
    with pytest.raises(ObjectError, match="describes no object"):
        await store.put("x", LARGE)
    assert await chunk_count(store) == 1
    with pytest.raises(ObjectError, match="describes no object"):
        await store.purge_orphans(older_than=0)
    assert await store.get("o") == b"1"


async def test_a_message_that_describes_no_object_hides_no_other_object(js, server):
    errors = []
    async with jetlake.connect(server.url, on_error=errors.append) as client:
        store = await client.jetstream().create_object_store("B")
        await store.put("a", b"1")
        for payload in (b"nonsense", b"", b'{"name": "x", "size": -1}', b'{"name": 5}'):
            await js.publish("$O.B.M.eA==", payload)
            assert [info.name for info in await store.list()] == ["a"]
            assert [(type(error), "subject '$O.B.M.eA=='" in str(error)) for error in errors] == [(ObjectError, True)]
            errors.clear()
        for attempt in (store.info("x"), store.get("x"), store.purge_orphans(older_than=0)):
            with pytest.raises(ObjectError, match="describes no object"):
                await attempt
        handled = []
        async with store.watch() as watch, store.watch(handler=handled.append):
            assert (await watch.next(10)).name == "a"
            await store.put("b", b"2")
            assert (await watch.next(10)).name == "b"
            await until(lambda: [info.name for info in handled] == ["a", "b"])
        assert len(errors) == 2
        await store.stream.purge(subject="$O.B.M.eA==")
        await store.put("x", b"3")
        assert await store.get("x") == b"3"


async def test_damage_is_found(js, store, tmp_path):
    info = await store.put("o", LARGE)
    sequence = (await store.stream.get(last_by_subject=f"$O.B.C.{info.nuid}")).sequence
    await store.stream.delete_message(sequence)
    (tmp_path / "copy").write_bytes(b"before")
    with pytest.raises(ObjectError, match="lacks chunks"):
        await store.get_file("o", tmp_path / "copy")
    await js.publish(f"$O.B.C.{info.nuid}", b"x" * (len(LARGE) % 131072))
    with pytest.raises(ObjectError, match="another digest"):
        await store.get_file("o", tmp_path / "copy")
    with pytest.raises(ObjectError, match="another digest"):
        await store.get("o")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert (tmp_path / "copy").read_bytes() == b"before"


async def test_a_whole_object_is_the_old_or_the_new_one_while_it_is_replaced(store, tmp_path):
    began = asyncio.Event()

    async def replace_soon():
        await began.wait()
        await store.put("o", b"new")

    async def got():
        return await store.get("o", progress=lambda *_: began.set())

    async def got_file():
        await store.get_file("o", tmp_path / "o", progress=lambda *_: began.set())
        return (tmp_path / "o").read_bytes()

    old = LARGE[:400_000]
    for get in (got, got_file):
        began.clear()
        await store.put("o", old, chunk_size=100)  # More chunks than are read ahead.
        content, _ = await asyncio.gather(get(), replace_soon())
        assert content in (old, b"new")
    assert await store.get("o") == b"new"


async def test_an_object_that_is_replaced_while_it_is_read(store):
    await store.put("o", random.Random(2).randbytes(60_000), chunk_size=10)
    async with store.open("o") as content:
        assert await content.next_batch()
        await store.put("o", b"new")
        with pytest.raises(ObjectError, match="replaced or deleted"):
            while await content.next_batch():
                pass


async def test_a_failed_put_leaves_the_old_object(store):
    await store.put("o", b"old")

    def broken():
        yield LARGE
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        await store.put("o", broken())
    assert await store.get("o") == b"old"
    assert await chunk_count(store) == 1
    for chunk_size in (0, -1, True, 10_000_000):
        with pytest.raises(InvalidOptionError, match="chunk_size must be 1 to"):
            await store.put("o", b"", chunk_size=chunk_size)


async def test_a_put_that_is_cancelled_leaves_no_chunks(store):
    half = asyncio.Event()

    async def content():
        yield LARGE
        half.set()
        await asyncio.Event().wait()

    put = asyncio.create_task(store.put("o", content()))
    await half.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert await chunk_count(store) == 0
    assert await store.list() == []


async def test_a_store_that_is_deleted_while_it_is_read(js, store):
    await store.put("o", random.Random(2).randbytes(60_000), chunk_size=10)
    async with store.open("o") as content:
        assert await content.next_batch()
        await js.delete_object_store("B")
        with pytest.raises(JetlakeError):
            while await content.next_batch():
                pass


async def test_a_read_survives_a_restart_of_the_server(start, clients):
    server = await start(process=True)
    store = await (await clients(server)).jetstream().create_object_store("B")
    content = random.Random(2).randbytes(60_000)
    await store.put("o", content, chunk_size=10)
    async with store.open("o") as reader:
        first = await reader.next_batch()
        await server.restart()
        assert b"".join(first) + await reader.read() == content


async def test_a_server_that_takes_little(start, clients):
    server = await start("max_payload: 1024")
    store = await (await clients(server)).jetstream().create_object_store("B")
    info = await store.put("n" * 200, LARGE[:10_000])
    assert info.chunks == 14
    assert await store.get("n" * 200) == LARGE[:10_000]


async def test_a_full_store_refuses(js):
    store = await js.create_object_store("FULL", max_bytes=500_000)
    with pytest.raises(ApiError) as refused:
        await store.put("o", LARGE)
    assert refused.value.err_code == 10077
    assert await store.list() == []
    assert await chunk_count(store) == 0


async def test_links(js, store):
    target = await store.put("target", b"content")
    other = await js.create_object_store("OTHER")
    await other.add_link("far", target)
    link = await store.add_link("near", "target")
    assert (link.link.bucket, link.link.name) == ("B", "target")
    assert await other.get("far") == await store.get("near") == b"content"
    async with other.open("far") as content:
        assert content.info.name == "target"
    await other.add_bucket_link("bucket", store)
    with pytest.raises(ObjectError, match="whole object store 'B'"):
        await other.get("bucket")
    with pytest.raises(InvalidOptionError, match="link itself"):
        await store.add_link("again", "near")
    with pytest.raises(ObjectExistsError):
        await store.add_link("target", "target")
    await store.add_link("near", "target")
    await store.put("near", b"no link any more")
    assert await store.get("near") == b"no link any more"
    await store.delete("target")
    with pytest.raises(ObjectNotFoundError):
        await other.get("far")


async def test_metadata(store):
    await store.put("o", b"content", description="d", metadata={"a": "1"})
    await store.put("taken", b"")
    await store.update_meta("o", description="e", headers={"H": ["1", "2"]})
    info = await store.info("o")
    assert (info.description, info.headers, info.metadata) == ("e", {"H": ["1", "2"]}, {"a": "1"})
    with pytest.raises(ObjectExistsError):
        await store.update_meta("o", rename="taken")
    await store.delete("taken")
    await store.update_meta("o", rename="taken")
    assert await store.get("taken") == b"content"
    with pytest.raises(ObjectNotFoundError):
        await store.update_meta("o", description="")
    assert [info.name for info in await store.list()] == ["taken"]


async def test_whoever_changes_a_name_first_has_its_content(store):
    await store.put("o", b"older")
    seen = await store.info("o")
    await store.put("o", b"newer")  # Between the look of a rename and what it writes.
    with pytest.raises(WrongLastSequenceError):
        await store._catalog.rename(seen, replace(seen, name="renamed"))
    assert [info.name for info in await store.list()] == ["o"]
    assert await store.get("o") == b"newer"
    seen = await store.info("o")
    await store.delete("o")
    with pytest.raises(WrongLastSequenceError):
        await store._catalog.rename(seen, replace(seen, name="renamed"))
    assert await store.list() == []


async def test_a_rename_that_was_cut_off_is_finished_by_another_one(store):
    await store.put("o", b"content")
    old = await store.info("o")
    await store._catalog.publish(replace(old, name="renamed"), None)
    await store.update_meta("o", rename="renamed")
    assert {info.name: info.is_deleted for info in await store.list(include_deleted=True)} == {
        "o": True,
        "renamed": False,
    }
    # Some clients purge what the marker of a name names.
    assert (await store.info("o", include_deleted=True)).nuid != old.nuid
    await store.put("o", b"another")
    assert [await store.get(name) for name in ("o", "renamed")] == [b"another", b"content"]


async def test_a_read_that_is_cut_off_at_its_beginning_leaves_nothing_behind(server, clients):
    client = await clients(server)
    store = await client.jetstream().create_object_store("O")
    await store.put("o", bytes(2_000_000), chunk_size=1000)
    before = client.statistics.subscriptions
    turns = 0
    while True:
        reader = store.open("o")
        starting = asyncio.create_task(reader.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            break
        starting.cancel()
        await asyncio.wait([starting])
        assert client.statistics.subscriptions == before
        turns += 1
    await reader.stop()
    await until(lambda: _has_no_consumers(store.stream))


async def _has_no_consumers(stream):
    return not await stream.consumer_names()


async def test_watching(store):
    await store.put("before", b"1")
    async with store.watch() as watch:
        assert [info.name for info in await watch.current()] == ["before"]
        await store.put("after", b"22")
        await store.delete("before")
        changes = [await watch.next(5) for _ in range(2)]
        assert [(info.name, info.size, info.is_deleted) for info in changes] == [
            ("after", 2, False),
            ("before", 0, True),
        ]
    seen = []
    async with store.watch(handler=lambda info: seen.append(info.name)):
        await store.put("third", b"")
        await until(lambda: seen == ["after", "before", "third"])


async def test_stores(js, store):
    await store.put("o", b"x" * 1000)
    status = await store.status()
    assert (status.bucket, status.is_sealed, status.ttl_s) == ("B", False, 0)
    assert status.bytes > 1000
    await store.seal()
    assert (await store.status()).is_sealed
    with pytest.raises(ApiError) as refused:
        await store.put("p", b"x")
    assert refused.value.err_code == 10109
    assert await store.get("o") == b"x" * 1000
    await js.create_or_update_object_store("A", description="first", ttl=3600)
    await js.create_or_update_object_store("A", description="second", ttl=3600)
    assert (await (await js.object_store("A")).status()).description == "second"
    assert await js.object_store_names() == ["A", "B"]
    await js.create_stream("OBJ_C", subjects=["c"])
    with pytest.raises(InvalidOptionError, match="not an object store"):
        await js.object_store("C")
    with pytest.raises(InvalidOptionError, match="no option 'history'"):
        await js.create_object_store("D", history=1)
    for name in ("", 5, "x" * 2401, "\udcff"):
        with pytest.raises(InvalidOptionError, match="an object's name"):
            await store.put(name, b"")
    await js.delete_object_store("A")
    with pytest.raises(StreamNotFoundError):
        await js.object_store("A")


KILLED = """
import asyncio, sys, jetlake

async def main(url):
    client = await jetlake.connect(url)
    store = await client.jetstream().object_store("B")

    async def slow():
        for number in range(1000):
            yield b"new" * 100_000
            if number == 5:
                print("half", flush=True)
            if number > 5:
                await asyncio.sleep(1)

    await store.put("o", slow())

asyncio.run(main(sys.argv[1]))
"""


async def test_a_writer_that_is_killed_leaves_no_half_object(store, server):
    await store.put("o", b"old")
    for name in ("o", "new"):
        writer = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(KILLED).replace('"o"', repr(name)),
            server.url,
            stdout=asyncio.subprocess.PIPE,
        )
        assert await asyncio.wait_for(writer.stdout.readline(), 30) == b"half\n"
        os.kill(writer.pid, signal.SIGKILL)
        await writer.communicate()
    assert [info.name for info in await store.list()] == ["o"]
    assert await store.get("o") == b"old"
    assert await chunk_count(store) > 1
    # Writers that are still at work have chunks without an object too.
    assert await store.purge_orphans() == 0
    assert await store.purge_orphans(older_than=0) == 2
    assert await chunk_count(store) == 1
    assert await store.get("o") == b"old"


async def test_a_put_survives_a_restart_of_the_server(start, clients):
    server = await start(process=True)
    store = await (await clients(server)).jetstream().create_object_store("B")
    half = asyncio.Event()

    async def content():
        for number in range(20_000):
            if number == 5_000:
                half.set()
            if not number % 10:
                await asyncio.sleep(0)
            yield b"%06d" % number

    # Chunks are under way all the time, when the connection is lost too.
    put = asyncio.create_task(store.put("o", content(), chunk_size=6))
    await half.wait()
    await server.restart()
    info = await asyncio.wait_for(put, 60)
    assert info.chunks == await chunk_count(store) == 20_000
    assert await store.get("o") == b"".join(b"%06d" % number for number in range(20_000))


DESCRIPTION = b"PUB $O.B.M."
PURGE = b"PUB $JS.API.STREAM.PURGE.OBJ_B "


async def test_a_put_whose_answer_is_lost_purges_what_it_replaced(store, server):
    await store.put("o", b"old")
    async with BreaksOnce(server.port, DESCRIPTION, is_sent=True) as line, jetlake.connect(line.url) as client:
        put = asyncio.create_task((await client.jetstream().object_store("B")).put("o", b"new"))
        await line.is_lost.wait()
        line.is_open.set()
        info = await put
    assert await store.get("o") == b"new"
    assert (await store.info("o")).revision == info.revision
    assert await chunk_count(store) == 1


async def test_a_replaced_content_is_purged_though_the_connection_breaks(store, server):
    await store.put("o", b"old")
    async with BreaksOnce(server.port, PURGE, is_sent=False) as line, jetlake.connect(line.url) as client:
        put = asyncio.create_task((await client.jetstream().object_store("B")).put("o", b"new"))
        await line.is_lost.wait()
        line.is_open.set()
        await put
    assert await store.get("o") == b"new"
    assert await chunk_count(store) == 1


async def test_a_put_whose_answer_is_lost_does_not_replace_a_newer_object(store, server):
    await store.put("o", b"old")
    other = await nats.connect(server.url)
    async with BreaksOnce(server.port, DESCRIPTION, is_sent=True) as line, jetlake.connect(line.url) as client:
        put = asyncio.create_task((await client.jetstream().object_store("B")).put("o", b"new"))
        await line.is_lost.wait()
        try:
            assert await store.get("o") == b"new"
            theirs = await other.jetstream().object_store("B")
            newest = await theirs.put("o", b"newest")
        finally:
            await other.close()
            line.is_open.set()
        await put
    assert await store.get("o") == b"newest"
    assert (await store.info("o")).nuid == newest.nuid


async def test_what_one_client_writes_the_other_reads(js, server):
    other = await nats.connect(server.url)
    try:
        theirs = await other.jetstream().create_object_store(bucket="B")
        ours = await js.object_store("B")
        await theirs.put("theirs", LARGE, meta=ObjectMeta(description="d", headers={"H": "1"}))
        await ours.put("ours", LARGE, description="e", headers={"H": "1"})
        assert await ours.get("theirs") == LARGE
        assert (await ours.info("theirs")).headers == {"H": ["1"]}
        result = await theirs.get("ours")
        assert (result.data, result.info.description, result.info.headers) == (LARGE, "e", {"H": ["1"]})
        await ours.add_link("link", "theirs")
        assert (await theirs.get("link")).data == LARGE
        assert sorted(info.name for info in await theirs.list()) == ["link", "ours", "theirs"]
        await ours.delete("theirs")
        await theirs.delete("ours")
        with pytest.raises(nats.js.errors.ObjectNotFoundError):
            await theirs.get("theirs")
        with pytest.raises(ObjectNotFoundError):
            await ours.get("ours")
        await ours.delete("link")
        assert await chunk_count(ours) == 0
        await theirs.seal()
        assert (await ours.status()).is_sealed
    finally:
        await other.close()


async def test_without_await(server, tmp_path):
    def work():
        with jetlake.blocking.connect(server.url) as client:
            js = client.jetstream()
            store = js.create_object_store("B")
            assert repr(store) == "<blocking <ObjectStore 'B'>>"
            (tmp_path / "source").write_bytes(LARGE)
            store.put("file", tmp_path / "source")
            store.put("pieces", iter([b"a", b"b"]))
            assert store.get("pieces") == b"ab"
            store.get_file("file", tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == LARGE
            with store.open("file") as content:
                assert content.info.chunks == 8
                assert b"".join(content) == LARGE
            assert store.open("file").read() == LARGE
            store.add_link("link", "pieces")
            assert store.get("link") == b"ab"
            with store.watch() as watch:
                assert sorted(info.name for info in watch.current()) == ["file", "link", "pieces"]
                store.delete("link")
                assert watch.next(5).is_deleted
            seen = []
            with store.watch(updates_only=True, handler=lambda info: seen.append(info.name)) as watch:
                while not seen:
                    store.put("later", b"")
                assert set(seen) == {"later"}
                with pytest.raises(InvalidOptionError):
                    watch.current()
            assert store.stream.name == "OBJ_B"
            with pytest.raises(ObjectNotFoundError):
                store.open("missing").read()
            assert js.object_store_names() == ["B"]
            js.delete_object_store("B")

    await asyncio.to_thread(work)


async def test_an_object_is_read_through_a_replica_that_lags(js, monkeypatch):
    """Its consumer counts fewer chunks than the leader has, and they are waited for."""
    store = await js.create_object_store("B")
    await store.put("o", b"x" * 3000, chunk_size=1000)

    async def behind(reading):
        reading.start()
        return 1

    monkeypatch.setattr(OrderedConsume, "pending_at_start", behind)
    assert await store.get("o") == b"x" * 3000


async def test_objects_are_found_whoever_answers(server, clients):
    client = await clients(server)
    store = await client.jetstream().create_object_store("B")
    kept = await store.put("o", b"x" * 300_000)
    await with_stale_mirror(client, "OBJ_B", kept.revision)
    others = await (await clients(server)).jetstream().object_store("B")
    for _ in range(8):
        assert len(await store.get("o")) == len(await others.get("o", leader=True)) == 300_000
        assert (await others.info("o")).revision == kept.revision
