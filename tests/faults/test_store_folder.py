"""Foreign, missing, swapped, empty, huge and unreadable files in every place of a store's folder."""

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from jetlake.dashboard.watching.board import Board
from jetlake.server.shell.monitoring.jetstream_reports import health_report
from jetlake.server.shell.monitoring.query import Query
from jetlake.store.steps import finish
from jetlake.store.stream_folder import StreamFolder
from tests.faults.killable import KillableServer
from tests.faults.store_folder import MESSAGES, SEGMENT_BYTES, everything_in, make_folder, running, streams_of

ALL = list(range(1, MESSAGES + 1))


@pytest.fixture(scope="module", autouse=True)
def short_segments():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(StreamFolder.open_store.__kwdefaults__, "segment_bytes", SEGMENT_BYTES)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory, short_segments):
    """The folders of a killed and of a stopped server, made once."""
    folders = asyncio.run(make_folder(tmp_path_factory.mktemp("store")))
    return dict(zip(("killed", "stopped"), folders, strict=True))


@pytest.fixture(params=["killed", "stopped"])
def folder(request, made, tmp_path):
    """A copy to tamper with."""
    return shutil.copytree(made[request.param], tmp_path / "store")


@pytest.fixture
def stopped(made, tmp_path):
    return shutil.copytree(made["stopped"], tmp_path / "store")


async def test_a_start_on_its_own_files_removes_nothing_and_warns_of_nothing(folder):
    async with running(folder) as server:
        assert server.streams == ["A", "B", "C"]
        assert await server.sequences() == ALL
        assert server.log.about() == []
        assert server.health() == (200, "")
        assert server.metric("jetlake_set_aside") == server.metric("jetlake_stream_lost_messages") == 0


# What is not the store's stays


def backup(streams):
    (streams / "backup" / "old").mkdir(parents=True)
    (streams / "backup" / "old" / "notes").write_text("mine")


def half_copied(streams):
    shutil.copytree(streams / "A" / "consumers", streams / "D" / "consumers")


def loose_files(streams):
    (streams / "notes.txt").write_text("mine")
    (streams / "A" / "notes.txt").write_text("mine")
    (streams / "A" / "msgs" / "notes.tmp").write_text("mine")
    (streams / "A" / "msgs" / "subfolder").mkdir()
    (streams / "A" / "consumers" / "notes").write_text("mine")
    (streams / "A" / "consumers" / "c1" / "notes.tmp").write_text("mine")


def link_to_all(streams):
    (streams / "LOOP").symlink_to(streams)


def link_to_itself(streams):
    (streams / "LOOP").symlink_to("LOOP")


def deleted_link(streams):
    elsewhere = streams.parents[2] / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    (streams / "X.deleted0").symlink_to(elsewhere)


def deleted_with_something(streams):
    (streams / "X.deleted0" / "msgs").mkdir(parents=True)
    (streams / "X.deleted0" / "msgs" / "precious").write_text("mine")


def deleted_file(streams):
    (streams / "X.deleted0").write_text("mine")


def beside_the_streams(streams):
    shutil.copytree(streams, streams.parent / "streams.old")


def copy_of_a_stream(streams):
    shutil.copytree(streams / "B", streams / "B-copy")


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (backup, "backup"),
        (half_copied, "D"),
        (loose_files, "notes"),
        (link_to_all, "LOOP"),
        (link_to_itself, "LOOP"),
        (deleted_link, "X.deleted0"),
        (deleted_with_something, "X.deleted0"),
        (deleted_file, "X.deleted0"),
        (copy_of_a_stream, "B-copy"),
        (beside_the_streams, "streams.old"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_what_the_store_did_not_write_stays_and_is_named(stopped, tamper, named):
    streams = streams_of(stopped)
    tamper(streams)
    before = everything_in(stopped)
    async with running(stopped) as server:
        assert server.streams == ["A", "B", "C"]
        assert await server.sequences() == ALL
        assert server.log.about(named)
        assert everything_in(stopped).keys() >= before.keys() - {"jetstream.lock"}
    after = everything_in(stopped)
    assert {name: after.get(name) for name in before if "msgs/index" not in name and "mark" not in name} == {
        name: data for name, data in before.items() if "msgs/index" not in name and "mark" not in name
    }


async def test_what_the_store_left_unfinished_goes_and_is_logged(stopped):
    streams = streams_of(stopped)
    (streams / "HALF").mkdir()
    (streams / "HALF" / "meta.json.tmp").write_text("torn")
    (streams / "EMPTY").mkdir()
    shutil.move(streams / "C", streams / "C.deleted3")
    (streams / "A" / "consumers" / "half").mkdir()
    shutil.copy(streams / "A" / "meta.json", streams / "A" / "meta.json.tmp")
    (streams / "A" / "consumers" / "c1" / "meta.json.2.tmp").write_text("torn")
    async with running(stopped) as server:
        assert server.streams == ["A", "B"]
        unfinished = ("A/meta.json.tmp", "A/consumers/c1/meta.json.2.tmp")
        for name in ("HALF", "EMPTY", "C.deleted3", "A/consumers/half", *unfinished):
            assert not (streams / name).exists()
            assert server.log.about("Removed", name)
        assert server.health() == (200, "")


# One bad place does not stop the rest


def no_folder(path):
    def tamper(streams):
        shutil.rmtree(streams / path)
        (streams / path).write_text("a file")

    return tamper


def linked_folder(path):
    def tamper(streams):
        shutil.move(streams / path, streams.parents[2] / "moved")
        (streams / path).symlink_to(streams.parents[2] / "moved")

    return tamper


def looping(path):
    def tamper(streams):
        place = streams / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        place.symlink_to(place.name)

    return tamper


def both_metas(write):
    def tamper(streams):
        for name in ("meta.json", "meta.copy.json"):
            (streams / "A" / name).unlink()
            write(streams / "A" / name)

    return tamper


@pytest.mark.parametrize(
    "tamper",
    [
        no_folder("A/msgs"),
        no_folder("A/consumers"),
        linked_folder("A/msgs"),
        linked_folder("A/consumers"),
        looping("A/msgs"),
        looping("A/consumers"),
        looping("A/msgs/0000000002.seg"),
        both_metas(lambda path: path.write_bytes(b"")),
        both_metas(lambda path: path.symlink_to("meta.json")),
        both_metas(lambda path: path.mkdir()),
        both_metas(os.mkfifo),
        both_metas(lambda path: path.write_bytes(b"[" * 100_000)),
        both_metas(lambda path: shutil.copy(path.parents[1] / "B" / "meta.json", path)),
        both_metas(lambda path: path.touch() or os.truncate(path, 1 << 40)),
    ],
    ids=[
        "msgs is a file",
        "consumers is a file",
        "msgs is a link",
        "consumers is a link",
        "msgs is a loop",
        "consumers is a loop",
        "a segment is a loop",
        "empty metas",
        "looping metas",
        "metas are folders",
        "metas are pipes",
        "deep metas",
        "metas of another stream",
        "huge metas",
    ],
)
async def test_a_stream_that_cannot_be_opened_is_set_aside_and_the_rest_starts(stopped, tamper):
    streams = streams_of(stopped)
    tamper(streams)
    async with running(stopped) as server:
        assert server.streams == ["B", "C"]
        assert await server.sequences("B") == [1, 2, 3]
        assert server.log.about("streams/A can not be opened")
        assert server.health()[0] == 503
        assert "stream in A of account $G is set aside" in server.health()[1]
        assert [entry["folder"] for entry in server.jsz()["set_aside"]] == ["A"]
        assert server.metric("jetlake_set_aside") == 1
        # As NATS ADR-44 wants it: a list shows what is offline, and why.
        listed = await server.jetstream._api_request("$JS.API.STREAM.LIST", timeout=30)
        assert [*listed["offline"]] == ["A"]
        assert listed["offline"]["A"]
        with pytest.raises(Exception, match="move it away first"):
            await server.jetstream.add_stream(name="A", subjects=["a.>"])
    assert (streams / "A").exists()


async def test_a_stream_of_nats_server_is_named_as_such(stopped):
    for name in ("meta.json", "meta.copy.json"):
        (streams_of(stopped) / "A" / name).unlink()
    (streams_of(stopped) / "A" / "meta.inf").write_text("{}")
    async with running(stopped) as server:
        assert server.log.about("streams/A can not be opened", "nats-server wrote it", "jetlake migrate")


# The files of a stream's messages


def segments_of(folder):
    return sorted((streams_of(folder) / "A" / "msgs").glob("*.seg"))


def cut_to_nothing(place):
    return lambda folder: os.truncate(segments_of(folder)[place], 0)


def take_away(place):
    return lambda folder: segments_of(folder)[place].unlink()


def put_another_streams(place):
    return lambda folder: shutil.copy(streams_of(folder) / "B" / "msgs" / "0000000001.seg", segments_of(folder)[place])


def put_text(place):
    return lambda folder: segments_of(folder)[place].write_bytes(b"my notes, which are not a segment. " * 100_000)


def first_sequences(folder):
    return [int.from_bytes(path.read_bytes()[24:32], "little") for path in segments_of(folder)]


@pytest.mark.parametrize("damage", [cut_to_nothing, take_away, put_another_streams, put_text])
@pytest.mark.parametrize("place", [0, 1, -1])
async def test_a_segment_that_is_gone_is_told_everywhere(folder, damage, place):
    firsts = [*first_sequences(folder), MESSAGES + 1]
    assert len(firsts) == 4
    index = place % 3
    gone = list(range(firsts[index], firsts[index + 1]))
    damage(place)(folder)
    for _ in range(2):
        async with running(folder) as server:
            assert server.streams == ["A", "B", "C"]
            assert await server.lost() == gone
            assert await server.sequences() == [sequence for sequence in ALL if sequence not in gone]
            words = f"sequences {gone[0]}-{gone[-1]}"
            assert server.log.about(words)
            status, error = server.health()
            assert status == 503
            assert f"stream A of account $G lost {len(gone)} messages: {words}" in error
            assert server.metric("jetlake_stream_lost_messages") == len(gone)
            board = Board()
            board.health = finish(health_report(server.server, Query("")))[1]
            assert any(words in found["text"] for found in board.summary(0.0)["attention"])
    async with running(folder) as server:
        assert (await server.jetstream.publish("a.new", b"")).seq == MESSAGES + 1
        await server.jetstream.purge_stream("A", seq=gone[-1] + 1)
        assert server.health() == (200, "")
        assert await server.lost() == []
    async with running(folder) as server:
        assert server.health() == (200, "")
        assert await server.lost() == []


async def test_swapped_segments_cost_nothing(folder):
    first, second, _ = segments_of(folder)
    first.rename(first.with_suffix(".aside"))
    second.rename(first)
    first.with_suffix(".aside").rename(second)
    async with running(folder) as server:
        assert await server.sequences() == ALL
        assert len(server.log.about("under a wrong name")) == 2
        assert server.health() == (200, "")


@pytest.mark.parametrize("name", ["9999999999.seg", "4294967295.seg", "0000000000.seg", "0000000002.seg.tmp.old"])
async def test_files_with_odd_names_are_no_matter(folder, name):
    (streams_of(folder) / "A" / "msgs" / name).write_text("mine")
    async with running(folder) as server:
        assert await server.sequences() == ALL
        assert server.log.about(name)
        assert (await server.jetstream.publish("a.new", b"")).seq == MESSAGES + 1
    assert (streams_of(folder) / "A" / "msgs" / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["msgs/mark", "msgs/index", "segments", "ids", "lifetimes", "meta.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(missing_ok=True),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(5000)),
        lambda path: path.touch() or os.truncate(path, 1 << 42),
        lambda path: (path.unlink(missing_ok=True), path.symlink_to(path.name)),
        lambda path: (path.unlink(missing_ok=True), path.mkdir()),
    ],
    ids=["missing", "empty", "garbage", "huge", "loop", "folder"],
)
async def test_one_of_the_other_files_costs_no_message(folder, name, damage):
    damage(streams_of(folder) / "A" / name)
    async with running(folder) as server:
        assert server.streams == ["A", "B", "C"]
        assert (await server.sequences(), await server.lost()) == (ALL, [])
        assert (await server.jetstream.publish("a.new", b"")).seq == MESSAGES + 1
        assert (await server.jetstream.consumer_info("A", "c1")).ack_floor.stream_seq == 4


@pytest.mark.parametrize("name", ["mark", "index", "../segments"])
async def test_another_streams_files_are_not_believed(stopped, name):
    folder = stopped
    shutil.copy(streams_of(folder) / "B" / "msgs" / name, streams_of(folder) / "A" / "msgs" / name)
    async with running(folder) as server:
        if name == "../segments":
            assert server.streams == ["B", "C"]
            assert server.log.about("streams/A can not be opened", "another stream's")
        else:
            assert (await server.sequences(), await server.lost()) == (ALL, [])
            assert (await server.jetstream.publish("a.new", b"")).seq == MESSAGES + 1


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "removed"])
async def test_a_stream_whose_messages_are_all_gone_is_set_aside(folder, emptied):
    place = streams_of(folder) / "A" / "msgs"
    shutil.rmtree(place)
    if emptied:
        place.mkdir()
    async with running(folder) as server:
        assert server.streams == ["B", "C"]
        assert server.log.about("streams/A can not be opened", "gone")
        assert server.health()[0] == 503


@pytest.mark.parametrize("place", [0, -1])
def test_gigabytes_of_nothing_are_read_in_little_memory(made, place):
    """A process of its own, whose memory is its own."""
    with KillableServer("jetlake") as server:
        server.stop()
        shutil.rmtree(server.folder / "data")
        shutil.copytree(made["killed"], server.folder / "data")
        usual_kib = highest_memory_kib(server)
        server.stop()
        shutil.rmtree(server.folder / "data")
        shutil.copytree(made["killed"], server.folder / "data")
        segment = segments_of(server.folder / "data")[place]
        os.truncate(segment, 1 << 40)
        assert highest_memory_kib(server) < usual_kib + 64 * 1024
        server.kill()


def highest_memory_kib(server):
    server.start()
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


# The files of a consumer


def consumer_of(folder, name="c1"):
    return streams_of(folder) / "A" / "consumers" / name


def journal_of(folder, name="c1"):
    return next(consumer_of(folder, name).glob("*.journal"))


def swap_journals(folder):
    one, other = journal_of(folder).read_bytes(), journal_of(folder, "c2").read_bytes()
    journal_of(folder).write_bytes(other)
    journal_of(folder, "c2").write_bytes(one)


def swap_consumers(folder):
    consumer_of(folder).rename(consumer_of(folder, "aside"))
    consumer_of(folder, "c2").rename(consumer_of(folder))
    consumer_of(folder, "aside").rename(consumer_of(folder, "c2"))


def replaced(path_of, make):
    def tamper(folder):
        path = path_of(folder)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return tamper


def both_consumer_metas(make):
    def tamper(folder):
        for name in ("meta.json", "meta.copy.json"):
            (consumer_of(folder) / name).unlink()
            make(consumer_of(folder) / name)

    return tamper


@pytest.mark.parametrize(
    ("tamper", "aside"),
    [
        (swap_journals, {"c1", "c2"}),
        (swap_consumers, {"c1", "c2"}),
        (replaced(journal_of, lambda path: path.symlink_to(path.name)), {"c1"}),
        (replaced(journal_of, lambda path: path.mkdir()), {"c1"}),
        (replaced(journal_of, os.mkfifo), {"c1"}),
        (replaced(journal_of, lambda path: path.touch() or os.truncate(path, 1 << 42)), {"c1"}),
        (both_consumer_metas(lambda path: path.touch()), {"c1"}),
        (both_consumer_metas(lambda path: path.symlink_to(path.name)), {"c1"}),
        (both_consumer_metas(lambda path: path.touch() or os.truncate(path, 1 << 42)), {"c1"}),
    ],
    ids=[
        "journals swapped",
        "folders swapped",
        "journal is a loop",
        "journal is a folder",
        "journal is a pipe",
        "huge journal",
        "empty metas",
        "looping metas",
        "huge metas",
    ],
)
async def test_a_consumer_that_cannot_be_opened_is_set_aside(folder, tamper, aside):
    tamper(folder)
    before = sorted(path.name for path in consumer_of(folder).iterdir())
    async with running(folder) as server:
        assert await server.sequences() == ALL
        stream = server.server.engine.jetstreams["$G"].streams["A"]
        assert stream.storage.missing == aside
        assert server.log.about("consumers/c1 can not be opened")
        assert server.health()[0] == 503
        assert "consumer in c1 of stream A of account $G is set aside" in server.health()[1]
        assert server.metric("jetlake_set_aside") == len(aside)
    assert sorted(path.name for path in consumer_of(folder).iterdir()) == before


@pytest.mark.parametrize(
    "content", [b"my notes", b"JLCJ and then something else", b""], ids=["foreign", "torn", "empty"]
)
async def test_a_journal_without_a_state_stays_and_the_consumer_begins_anew(folder, content):
    journal = journal_of(folder)
    journal.write_bytes(content)
    async with running(folder) as server:
        info = await server.jetstream.consumer_info("A", "c1")
        assert (info.ack_floor.stream_seq, info.num_pending) == (0, MESSAGES)
        assert server.log.about("consumers/c1 cannot be read: the consumer starts over")
        pull = await server.jetstream.pull_subscribe_bind("c1", "A")
        for message in await pull.fetch(2, timeout=20):
            await message.ack_sync(timeout=20)
        assert journal.read_bytes() == content, "it is not written over"
    async with running(folder) as server:
        assert (await server.jetstream.consumer_info("A", "c1")).ack_floor.stream_seq == 2


async def test_a_link_to_a_consumer_or_an_account_is_not_followed(folder):
    (consumer_of(folder, "c3")).symlink_to("c1")
    (folder / "jetstream" / "OTHER").symlink_to("$G")
    async with running(folder) as server:
        assert sorted(server.server.engine.jetstreams["$G"].streams["A"].consumers) == ["c1", "c2"]
        assert server.log.about("consumers", "c3")
