"""Foreign, missing, swapped, empty, huge and unreadable files in every place of a store's folder."""

import asyncio
import os
import shutil

import pytest
from store_folder import MESSAGES, everything_in, make_folder, running, streams_of

ALL = list(range(1, MESSAGES + 1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
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
    async with running(stopped) as server:
        assert server.streams == ["A", "B"]
        for name in ("HALF", "EMPTY", "C.deleted3", "A/consumers/half"):
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
        with pytest.raises(Exception, match="move it away first"):
            await server.jetstream.add_stream(name="A", subjects=["a.>"])
    assert (streams / "A").exists()
