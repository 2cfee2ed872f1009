"""Streams that move between the embedded server and nats-server while they are in use, interrupted at every request."""

import asyncio
import re
import signal
from contextlib import AsyncExitStack, suppress

import pytest

import jetlake
from jetlake import JetlakeError
from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.connection.socket_connection import connect_socket
from jetlake.client.migration.marks import PAUSED_UNTIL, is_closed, is_staged
from jetlake.client.migration.migration import Migration
from jetlake.client.migration.tail import StagedPublisher, Tail
from jetlake.errors import ApiError, MessageNotFoundError, MigrationError, StreamNotFoundError
from jetlake.model.replies import StreamRestoreReply
from jetlake.model.requests import StreamRestoreRequest
from jetlake.model.stream import StreamConfig, StreamState
from tests.support.clients import Clients, until
from tests.support.servers import BIN, make_server

BULK_FIRST = {"whole_max_bytes": 0, "drain_s": 0}
WHOLE = {"drain_s": 0}


@pytest.fixture(params=["to nats-server", "to embedded"])
async def ends(request):
    """The JetStream contexts of a source and a target."""
    kinds = ("embedded", "nats-server")
    clients = Clients()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(clients.close)
        contexts = []
        for kind in kinds if request.param == "to nats-server" else kinds[::-1]:
            server = make_server(kind)
            stack.push_async_callback(server.discard)
            await server.start()
            contexts.append((await clients(server)).jetstream())
        yield contexts


async def create_again(js, **options):
    """Create S; nats-server refuses for a moment while it still removes the directory of the one before."""
    for _ in range(100):
        try:
            return await js.create_stream("S", **options)
        except ApiError as error:
            if error.err_code != 10049 or is_embedded(js):
                raise
        await asyncio.sleep(0.05)
    raise AssertionError("nats-server does not create the stream")


async def fill(js, **options):
    """A stream of forty messages of two subjects with a hole, and a consumer of one subject that is done with five."""
    stream = await create_again(js, subjects=["s.>"], allow_direct=True, **options)
    worker = await stream.create_consumer("worker", filter_subject="s.a")
    for number in range(40):
        await js.publish(f"s.{'ab'[number % 2]}", b"%d" % number, headers={"Number": str(number)})
    await work(worker, 5)
    await stream.delete_message(31)
    return stream, worker


async def work(worker, count):
    """Acknowledge the next messages, for good."""
    messages = await worker.fetch(count, no_wait=True)
    for message in messages:
        await message.ack_sync()
    return [message.metadata.stream_seq for message in messages]


async def content(js, name="S"):
    """All messages of the stream with their sequences."""
    stream = await js.stream(name)
    state = stream.cached_info.state
    found = []
    for sequence in range(max(1, state.first_seq), state.last_seq + 1):
        try:
            message = await stream.get(sequence, direct=False)
        except MessageNotFoundError:
            continue
        found.append((message.sequence, message.subject, message.header, message.payload))
    return found


async def rest_of(js):
    """What the consumer has yet to deliver, taken from it and acknowledged."""
    worker = await (await js.stream("S")).consumer("worker")
    rest = []
    while found := await worker.fetch(1000, no_wait=True):
        for message in found:
            rest.append(message.metadata.stream_seq)
            await message.ack()
    return rest


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
@pytest.mark.parametrize("how", [BULK_FIRST, WHOLE], ids=["bulk first", "whole"])
async def test_a_stream_moves_while_it_is_in_use(ends, retention, how):
    source, target = ends
    await fill(source, retention=retention)
    before = (await source.stream("S")).config
    acknowledged, done = [], []

    async def publish():
        while True:
            acknowledged.append((await source.publish("s.a", b"later", retries=1000)).seq)

    async def consume():
        worker = await (await source.stream("S")).consumer("worker")
        while True:
            for message in await worker.fetch(10, no_wait=True):
                done.append(message.metadata.stream_seq)
                await message.ack_sync()
            await asyncio.sleep(0)

    users = asyncio.create_task(publish()), asyncio.create_task(consume())
    await until(lambda: len(acknowledged) > 10 and done)
    moved = await Migration(source, target, "S", **(how | {"drain_s": 60})).run()
    for user in users:
        assert not user.done()
        user.cancel()
    await asyncio.gather(*users, return_exceptions=True)

    assert moved.pause_s > 0
    assert bool(moved.whole_because) is (how is WHOLE or retention == "interest")
    assert moved.before.messages == moved.after.messages
    assert moved.consumers[0].before == moved.consumers[0].after
    assert await content(target) == await content(source)
    rest = await rest_of(target)
    assert set(acknowledged) <= set(done) | set(rest)
    assert not set(done) & set(rest)
    # Programs that create what they need find it as they left it.
    await target.create_stream("S", subjects=["s.>"], allow_direct=True, retention=retention)
    await (await target.stream("S")).create_consumer("worker", filter_subject="s.a")
    assert (await target.stream("S")).config.subjects == before.subjects
    assert (await target.publish("s.b")).seq == moved.after.last_seq + 1
    again = await Migration(source, target, "S", **how).run()
    assert again.pause_s == 0


async def test_times_pending_messages_and_delivery_counts_move_with_a_whole_stream(ends):
    source, target = ends
    stream, worker = await fill(source)
    messages = await worker.fetch(6, no_wait=True)
    for message in messages[::2]:
        await message.ack_sync()
    await messages[1].nak()
    while (await worker.fetch(1, expires=5))[0].metadata.delivered != 2:
        pass
    await Migration(source, target, "S", **WHOLE).run()
    here, there = await stream.consumer_info("worker"), await (await target.stream("S")).consumer_info("worker")
    assert (here.num_ack_pending, here.num_pending) == (there.num_ack_pending, there.num_pending)
    assert here.ack_floor.stream_seq == there.ack_floor.stream_seq
    assert here.num_redelivered == there.num_redelivered == 1
    assert (await (await target.stream("S")).get(40)).time == (await stream.get(40)).time


async def test_messages_that_are_acknowledged_out_of_order_do_not_come_again(ends):
    source, target = ends
    _, worker = await fill(source)
    messages = await worker.fetch(6, no_wait=True)
    for message in messages[::2]:
        await message.ack_sync()
    moved = await Migration(source, target, "S", **BULK_FIRST).run()
    assert "consumer worker" in moved.whole_because
    undone = {message.metadata.stream_seq for message in messages[1::2]}
    info = await (await target.stream("S")).consumer_info("worker")
    assert info.num_ack_pending == len(undone)
    assert not {message.metadata.stream_seq for message in messages} & set(await rest_of(target))


async def test_a_message_id_that_came_again_after_its_window_moves_too(ends):
    source, target = ends
    stream, _ = await fill(source, duplicate_window=0.1)
    migration = Migration(source, target, "S", **BULK_FIRST)
    copy = await migration._copy_bulk(stream, None)
    stored = 0
    while stored < 2:
        stored += not (await source.publish("s.a", msg_id="once")).duplicate
    await copy.update(duplicate_window=60)
    moved = await migration.run()
    assert "duplicate" in moved.whole_because
    assert await content(target) == await content(source)


async def test_a_subject_whose_bytes_are_no_text_moves_too(ends):
    source, target = ends
    stream, _ = await fill(source)
    migration = Migration(source, target, "S", **BULK_FIRST)
    await migration._copy_bulk(stream, None)
    odd = b"s.\xff".decode("utf-8", "surrogateescape")

    def publish_raw() -> None:
        with connect_socket(str(source.api.connection.address)) as connection:
            connection.request(b"s.\xff", b"odd")

    await asyncio.to_thread(publish_raw)
    moved = await migration.run()
    assert moved.whole_because == ""
    reader = (await target.stream("S")).ordered(deliver_policy="last")
    assert [message.subject for message in await reader.fetch(1, no_wait=True)] == [odd]


async def bucket(js):
    """A bucket with history, a deleted key and a purged one."""
    values = await js.create_key_value("B", history=3)
    for number in range(30):
        await values.put(f"key{number % 7}", b"%d" % number)
    await values.delete("key3")
    await values.purge("key4")
    return "KV_B"


async def objects(js):
    store = await js.create_object_store("O")
    await store.put("object", b"first" * 60_000)
    await store.put("object", b"second" * 50_000)
    return "OBJ_O"


async def empty(js):
    return (await js.create_stream("S", subjects=["s.>"])).name


async def purged(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    for _ in range(5):
        await js.publish("s.a")
    await stream.purge()
    return "S"


async def full_of_holes(js):
    """A full stream that begins late, with holes at both ends and in the middle, and a transform."""
    transform = {"src": "s.>", "dest": "t.>"}
    stream = await js.create_stream("S", subjects=["s.>"], first_seq=100, max_msgs=10, subject_transform=transform)
    for _ in range(15):
        await js.publish("s.a")
    for sequence in (105, 106, 110, 113, 114):
        await stream.delete_message(sequence)
    return "S"


@pytest.mark.parametrize("shape", [bucket, objects, empty, purged, full_of_holes])
@pytest.mark.parametrize("how", [{"whole_max_bytes": -1}, WHOLE], ids=["bulk first", "whole"])
async def test_streams_of_every_shape(ends, shape, how):
    source, target = ends
    name = await shape(source)
    moved = await Migration(source, target, name, **how).run()
    assert bool(moved.whole_because) is (how is WHOLE)
    assert await content(target, name) == await content(source, name)
    here, there = [(await js.stream(name)).cached_info.state for js in ends]
    assert (here.messages, here.last_seq, here.num_deleted) == (there.messages, there.last_seq, there.num_deleted)


async def test_consumers_of_every_kind(ends):
    source, target = ends
    stream, _ = await fill(source)
    await (await stream.create_consumer("none", ack_policy="none")).fetch(5, no_wait=True)
    every = await (await stream.create_consumer("all", ack_policy="all")).fetch(5, no_wait=True)
    await every[3].ack_sync()
    await work(await stream.create_consumer("filters", filter_subjects=["s.a", "s.b"]), 3)
    await stream.create_consumer("later", deliver_policy="by_start_sequence", opt_start_seq=7)
    await stream.create_consumer("group", priority_groups=["G"], priority_policy="overflow")
    async with await source.subscribe("s.b", durable="pushed", ack_wait=60) as messages:
        async for message in messages:
            await message.ack_sync()
            break
    left = {info.name: info.num_pending + info.num_ack_pending for info in await stream.consumers()}
    moved = await Migration(source, target, "S", **BULK_FIRST).run()
    assert {one.name: one.after for one in moved.consumers} == left


class Interrupted(BaseException):
    """The end of the process that moves."""


class Interruption:
    """Ends a move before one of the requests that it makes."""

    def __init__(self, monkeypatch):
        self.left = None
        for owner, name in ((ApiCaller, "call"), (StagedPublisher, "publish")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function):
        async def run(*arguments, **options):
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Interrupted
            return await function(*arguments, **options)

        return run

    async def after(self, count, migration):
        """Run a move that ends before one request; whether it was interrupted."""
        self.left = count
        try:
            await migration.run()
        except Interrupted:
            return True
        finally:
            self.left = None
        return False


@pytest.mark.parametrize("how", [BULK_FIRST, WHOLE], ids=["bulk first", "whole"])
async def test_a_move_that_is_interrupted_anywhere_goes_on_or_is_undone(ends, how, monkeypatch):
    """Some interruptions are undone: publishers and workers go on where they were, and the copy is gone."""
    source, target = ends
    interruption = Interruption(monkeypatch)
    count, was_interrupted = int(is_embedded(target)), True
    while was_interrupted:
        _, worker = await fill(source, retention="limits" if count % 3 else "workqueue")
        done = set(range(1, 10, 2))
        migration = Migration(source, target, "S", **how)
        was_interrupted = await interruption.after(count, migration)
        if was_interrupted and count // 2 % 2 and not await is_open(target):
            await undo(migration, source, target)
            done.update(await work(worker, 2))
        if was_interrupted and not is_closed((await source.stream("S")).config):
            await source.publish("s.a", b"meanwhile")
        await migration.run()
        expected = await content(source)
        assert await content(target) == expected
        wanted = {sequence for sequence, subject, _, _ in expected if subject == "s.a"} - done
        assert sorted(await rest_of(target)) == sorted(wanted)
        for js in ends:
            await js.delete_stream("S")
        count += 2  # The other direction is interrupted at the requests between.
    assert count > 20


def is_embedded(js):
    return bool(js.api.connection.info.jetlake_features)


async def is_open(js):
    return "S" in await js.stream_names() and not is_staged((await js.stream("S")).config)


async def undo(migration, source, target):
    await migration.undo()
    with pytest.raises(StreamNotFoundError):
        await target.stream("S")
    stream = await source.stream("S")
    assert stream.config.subjects == ("s.>",)
    assert not [key for key in stream.config.metadata if not key.startswith("_nats")]
    assert all(info.config.pause_until != PAUSED_UNTIL for info in await stream.consumers())


async def test_the_command_is_killed_and_run_again(ends):
    source, target = ends
    await fill(source)
    urls = [f"nats://127.0.0.1:{js.api.connection.info.port}" for js in ends]
    command = [str(BIN / "jetlake"), "migrate", "S", "-s", urls[0], "--to", urls[1], "--whole", "0", "--drain", "0"]
    for step in ("copying the stream", "closing the source", "opening the target", ""):
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output = b""
        while line := await process.stdout.readline():
            output += line
            if step and line.endswith(f": {step}\n".encode()):
                with suppress(ProcessLookupError):  # It may have been quicker.
                    process.kill()
        await process.wait()
        assert process.returncode in ((-signal.SIGKILL, 0) if step else (0,))
    assert re.search(rb"messages +39 +39\n", output)
    assert re.search(rb"pending for worker +14 +14\n", output)
    assert await content(source) == await content(target)
    assert len(await rest_of(target)) == 14


async def test_a_message_that_goes_from_the_closed_source_is_no_difference(ends):
    source, target = ends
    stream, _worker = await fill(source)
    removals = []

    def remove(step):
        if step == "comparing":
            removals.append(asyncio.create_task(stream.delete_message(21)))

    moved = await Migration(source, target, "S", **WHOLE, tell=remove).run()
    await asyncio.gather(*removals)
    assert len(removals) == 1
    # One less than before, unless the move was quicker than the removal.
    assert [consumer.after for consumer in moved.consumers] in ([13], [14])
    assert moved.before.messages == moved.after.messages


async def test_pauses_of_before_are_kept(ends):
    source, target = ends
    stream, worker = await fill(source)
    await worker.pause("2100-01-01T00:00:00Z")
    migration = Migration(source, target, "S", **BULK_FIRST)
    await migration._gate(stream).pause_consumers(0)
    await migration.undo()
    assert (await worker.info()).config.pause_until == "2100-01-01T00:00:00Z"
    for how in (BULK_FIRST, WHOLE):
        await Migration(source, target, "S", **how).run()
        assert (await (await target.stream("S")).consumer_info("worker")).config.pause_until == "2100-01-01T00:00:00Z"
        await target.delete_stream("S")
        await migration._gate(stream).open()


async def test_a_mirror_with_a_hole_does_not_shorten_the_tail(ends):
    source, _ = ends
    stream, _ = await fill(source, retention="workqueue")
    copy = await source.create_stream("COPY", mirror={"name": "S"}, mirror_direct=True, max_msgs=3)

    async def is_caught_up():
        # A work queue soon removes what its mirror has stored, but for the fourteen that its consumer is to deliver.
        return ((await copy.info()).state.last_seq, (await stream.info()).state.messages) == (40, 14)

    await until(is_caught_up)
    tail = Tail(await source.stream("S"), stream, ApiCaller(source._connection))
    wanted = [sequence for sequence, *_ in await content(source)]
    for _ in range(8):
        assert [message.sequence async for message in tail._messages(1, 40)] == wanted


async def test_what_can_not_move_is_refused_before_anything_is_done(ends):
    source, target = ends
    stream, _ = await fill(source)
    await source.create_stream("M", mirror={"name": "S"})
    with pytest.raises(MigrationError, match="copies from other streams"):
        await Migration(source, target, "M").run()
    await target.create_stream("S", subjects=["other"])
    with pytest.raises(MigrationError, match="has a stream S already"):
        await Migration(source, target, "S").run()
    with pytest.raises(MigrationError, match="has a stream S already"):
        await Migration(source, target, "S").undo()
    await target.delete_stream("S")
    await target.create_stream("T", subjects=["s.b"])
    for options in (BULK_FIRST, WHOLE):
        with pytest.raises(MigrationError, match="stream T of the target captures s"):
            await Migration(source, target, "S", **options).run()
    await target.delete_stream("T")
    assert (await stream.info()).config.subjects == ("s.>",)
    assert await target.stream_names() == []
    await stream.update(sealed=True)
    with pytest.raises(MigrationError, match="sealed"):
        await Migration(source, target, "S").run()
    with pytest.raises(JetlakeError):
        await Migration(source, target, "NOBODY").run()


async def test_subjects_that_the_target_takes_during_the_copy_leave_the_source_open(ends):
    source, target = ends
    await fill(source)
    migration = Migration(source, target, "S", **BULK_FIRST)
    copy_bulk = migration._copy_bulk

    async def copy_and_take(stream, copy):
        copy = await copy_bulk(stream, copy)
        await target.create_stream("T", subjects=["s.b"])
        return copy

    migration._copy_bulk = copy_and_take
    with pytest.raises(MigrationError, match="stream T of the target captures s"):
        await migration.run()
    await source.publish("s.b", b"goes on")
    await target.delete_stream("T")
    await Migration(source, target, "S", **BULK_FIRST).run()
    assert len(await content(target)) == 40


async def test_a_move_that_is_complete_is_not_undone(ends):
    source, target = ends
    await fill(source)
    migration = Migration(source, target, "S", **WHOLE)
    await migration.run()
    with pytest.raises(MigrationError, match="open at the target"):
        await migration.undo()


async def test_the_copy_of_a_stream_that_was_deleted_at_the_source_is_undone(ends):
    source, target = ends
    stream, _ = await fill(source)

    def interrupt(step):
        if step == "pausing the consumers":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await Migration(source, target, "S", **BULK_FIRST, tell=interrupt).run()
    await stream.delete()
    migration = Migration(source, target, "S", **BULK_FIRST)
    with pytest.raises(MigrationError, match=r"S was deleted at the source: undo the move .* which holds 39 messages"):
        await migration.run()
    assert await migration.undo() is False
    assert await target.stream_names() == []
    with pytest.raises(StreamNotFoundError):
        await migration.undo()


@pytest.mark.flaky(reruns=1)
async def test_programs_that_know_both_addresses_go_on_at_the_target():
    """A publisher and a worker that are connected to the old server raise nothing, lose nothing and repeat nothing."""
    old, new = make_server("embedded"), make_server("nats-server")
    published, done = [], []
    async with AsyncExitStack() as stack:
        for server in (old, new):
            stack.push_async_callback(server.discard)
            await server.start()
        clients = Clients()
        stack.push_async_callback(clients.close)
        source, target = [(await clients(server)).jetstream() for server in (old, new)]
        await fill(source)

        async def program():
            client = await jetlake.connect([old.url, new.url], shuffle_servers=False)
            stack.push_async_callback(client.close)
            return client.jetstream(timeout=30)

        async def publish(js):
            while True:
                number = len(published)
                await js.publish("s.a", b"later", msg_id=f"later-{number}", retries=1000)
                published.append(number)

        async def consume(js):
            worker = await (await js.stream("S")).consumer("worker")
            async with worker.consume(max_messages=20, on_missed_heartbeat="continue") as messages:
                async for message in messages:
                    done.append(message.metadata.stream_seq)
                    await message.ack_sync(timeout=30)

        users = [asyncio.create_task(publish(await program())), asyncio.create_task(consume(await program()))]
        await until(lambda: len(published) > 20 and len(done) > 20)
        await Migration(source, target, "S", whole_max_bytes=0, drain_s=60).run()
        await old.stop()
        before = len(published), len(done)
        await until(lambda: len(published) > before[0] + 20 and len(done) > before[1] + 20, 60)
        for user in users:
            assert not user.done()
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        ids = [header for _, _, header, _ in await content(target) if b"later-" in header]
        assert len(ids) == len(set(ids)) >= len(published)
        assert len(done) == len(set(done))


async def test_a_restore_that_was_cut_off_is_waited_for(ends):
    source, target = ends
    await fill(source)
    before = await content(source)
    # As a command that was killed in the middle leaves it.
    body = StreamRestoreRequest(config=StreamConfig(name="S"), state=StreamState())
    await target.api.call(StreamRestoreReply, "STREAM.RESTORE", "S", body=body)
    await Migration(source, target, "S", **WHOLE).run()
    assert await content(target) == before
