"""Every kind of change: what is shown before, the command that does the same, and what it does."""

from __future__ import annotations

import shlex
import shutil
import tarfile
from base64 import b64encode

import click
import pytest

import jetlake
from jetlake.cli.app import app as command_line
from jetlake.dashboard.app import KINDS, prepare
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import InvalidOptionError, NotFoundError, StreamNotFoundError
from jetlake.testing import make_stream


@pytest.fixture
async def api(server):
    async with await jetlake.connect(server.url, connect_timeout=20) as client:
        yield ServerApi(client)


def parse(command):
    """Let the real command line read a command, without running it."""
    words = shlex.split(command)
    assert words.pop(0) == "jetlake"
    group, context = command_line, click.Context(command_line, info_name="jetlake")
    while isinstance(group, click.Group):
        name, group, words = group.resolve_command(context, words)
        context = click.Context(group, info_name=name, parent=context)
    return group.make_context(context.info_name, words, parent=context.parent).params


async def test_every_change_shows_a_command_that_the_command_line_reads(api):
    stream = await make_stream(api.jetstream, "ORDERS", messages=3)
    await stream.create_consumer("worker")
    await stream.create_consumer("pinned", priority_policy="pinned_client", priority_groups=["jobs"])
    await api.jetstream.create_key_value("SETTINGS")
    await (await api.jetstream.create_object_store("FILES")).put("a b", b"x")
    await api.jetstream.create_stream("DEAD", subjects=["dead"])
    letter = {"Dead-Letter-Stream": "ORDERS", "Dead-Letter-Subject": "ORDERS.x"}
    await api.jetstream.publish("dead", b"x", headers=letter)
    named, worker = {"stream": "ORDERS"}, {"stream": "ORDERS", "consumer": "worker"}
    options = {
        "subjects": ["new.>", "it's"],
        "storage": "memory",
        "retention": "workqueue",
        "max_age": 90,
        "max_msgs": 10,
    }
    options |= {"deny_delete": True, "allow_direct": False, "description": "a 'quoted' word", "max_bytes": 1 << 20}
    given = {
        "stream.create": {"stream": "NEW", "options": options},
        "stream.edit": {**named, "options": {"max_msgs": 7, "max_age": 3600, "subjects": ["ORDERS.>", "more"]}},
        "stream.purge": {**named, "subject": "ORDERS.>", "keep": 1},
        "stream.delete": named,
        "stream.seal": named,
        "stream.backup": named,
        "consumer.create": {**worker, "consumer": "new", "options": {"ack_wait": 5, "filter_subjects": ["ORDERS.a"]}},
        "consumer.edit": {**worker, "options": {"max_ack_pending": 5, "sample_freq": "50"}},
        "consumer.pause": {**worker, "seconds": 60},
        "consumer.resume": worker,
        "consumer.reset": {**worker, "sequence": 2},
        "consumer.unpin": {"stream": "ORDERS", "consumer": "pinned"},
        "consumer.delete": worker,
        "message.publish": {"subject": "ORDERS.x", "payload": b64encode(b"it's").decode(), "headers": [("A", "b c")]},
        "message.again": {**named, "sequence": 1},
        "message.delete": {**named, "sequence": 2},
        "key.put": {"bucket": "SETTINGS", "key": "a", "value": b64encode(b"it's").decode()},
        "key.delete": {"bucket": "SETTINGS", "key": "a"},
        "key.purge": {"bucket": "SETTINGS", "key": "a"},
        "bucket.create": {"bucket": "NEW", "history": 3, "ttl": 60, "max_bytes": 1 << 20, "description": "it's"},
        "store.create": {"bucket": "NEW", "ttl": 60, "max_bytes": 1 << 20, "storage": "memory"},
        "object.put": {"bucket": "FILES", "name": "a b", "content": b64encode(b"it's").decode()},
        "object.delete": {"bucket": "FILES", "name": "a b"},
        "letters.replay": {"stream": "DEAD", "first": 1, "last": 1},
    }
    assert given.keys() == KINDS.keys()
    for kind, arguments in given.items():
        prepared = await prepare(api, kind, arguments)
        shown = prepared.shown("id")
        assert shown["title"] and shown["command"] and shown["changes"], kind
        assert parse(shown["command"])
    # Nothing of it was done.
    assert set(await api.jetstream.stream_names()) == {"ORDERS", "DEAD", "KV_SETTINGS", "OBJ_FILES"}
    assert (await stream.info()).state.messages == 3
    command = parse((await prepare(api, "stream.create", given["stream.create"])).command)
    assert (command["name"], command["storage"], command["deny_delete"]) == ("NEW", "memory", True)


@pytest.mark.parametrize("content", [b"it's", b"", b"-5", b"--", b"-", b"\xff", b"a\0b", b"{{Count}}"])
async def test_commands_send_the_content_that_was_typed_or_take_standard_input(api, content):
    await make_stream(api.jetstream, "ORDERS")
    bucket = await api.jetstream.create_key_value("SETTINGS")
    await bucket.put("old", b"x")
    sent = b64encode(content).decode()
    can_be_typed = content in (b"it's", b"", b"-5", b"--")
    typed = content.decode() if can_be_typed else None
    published = await prepare(api, "message.publish", {"subject": "ORDERS.x", "payload": sent})
    created = await prepare(api, "key.put", {"bucket": "SETTINGS", "key": "-new", "value": sent})
    updated = await prepare(api, "key.put", {"bucket": "SETTINGS", "key": "old", "value": sent})
    assert [bool(one.file) for one in (published, created, updated)] == [not can_be_typed] * 3
    assert parse(published.command)["body"] == typed
    assert [parse(created.command)[name] for name in ("key", "value")] == ["-new", typed]
    assert parse(updated.command)["value"] == (typed if can_be_typed else "-")
    for kind in ("key.delete", "key.purge"):
        assert parse((await prepare(api, kind, {"bucket": "SETTINGS", "key": "-new"})).command)["key"] == "-new"


async def test_commands_have_the_durations_to_the_nanosecond(api):
    options = {"max_age": 30 * 86_400, "duplicate_window": 0.25}
    shown = parse((await prepare(api, "stream.create", {"stream": "S", "options": options})).command)
    assert (shown["max_age"], shown["duplicate_window"]) == (2_592_000_000_000_000, 250_000_000)


async def run(api, kind, **arguments):
    return await (await prepare(api, kind, arguments)).run()


async def test_streams_are_created_edited_purged_sealed_and_deleted(api):
    js = api.jetstream
    await run(api, "stream.create", stream="ORDERS", options={"subjects": ["orders.>"], "max_age": 60})
    stream = await js.stream("ORDERS")
    assert stream.config.max_age == 60_000_000_000
    prepared = await prepare(api, "stream.edit", {"stream": "ORDERS", "options": {"max_msgs": 5, "max_age": 60}})
    assert prepared.changes == [("max_msgs", "unlimited", "5")]
    assert prepared.command == "jetlake stream edit ORDERS --max-msgs 5 --force"
    await prepared.run()
    assert (await stream.info()).config.max_msgs == 5
    for number in range(4):
        await js.publish("orders.new", b"%d" % number)
    assert (await run(api, "stream.purge", stream="ORDERS", keep=1)).text == "Purged 3 messages from ORDERS."
    await run(api, "stream.seal", stream="ORDERS")
    assert (await stream.info()).config.sealed
    await run(api, "stream.delete", stream="ORDERS")
    with pytest.raises(StreamNotFoundError):
        await stream.info()


async def test_what_has_no_option_of_the_command_goes_into_a_file(api):
    prepared = await prepare(
        api, "stream.create", {"stream": "S", "options": {"consumer_limits": {"max_ack_pending": 3}}}
    )
    assert "--config stream.json" in prepared.command
    assert '"max_ack_pending": 3' in prepared.file


async def test_no_value_is_the_default_and_goes_into_a_file(api):
    prepared = await prepare(api, "stream.create", {"stream": "S", "options": {"max_age": None}})
    assert "--config" in shlex.split(prepared.command)
    assert prepared.file


async def test_a_stream_that_was_changed_meanwhile_is_not_edited(api):
    stream = await make_stream(api.jetstream, "ORDERS")
    prepared = await prepare(api, "stream.edit", {"stream": "ORDERS", "options": {"max_msgs": 5}})
    await stream.update(max_bytes=1 << 20)
    with pytest.raises(InvalidOptionError, match="changed in the meantime"):
        await prepared.run()
    assert (await stream.info()).config.max_msgs == -1


async def test_a_backup_is_a_tar_file_that_can_be_restored(api, tmp_path):
    stream = await make_stream(api.jetstream, "ORDERS", messages=5)
    done = await run(api, "stream.backup", stream="ORDERS")
    with tarfile.open(done.file) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.rmtree(done.file.parent)
    await stream.delete()
    await api.jetstream.restore(tmp_path / "ORDERS")
    assert (await (await api.jetstream.stream("ORDERS")).info()).state.messages == 5


async def test_consumers_are_created_edited_paused_reset_and_deleted(api):
    stream = await make_stream(api.jetstream, "ORDERS", messages=5)
    where = {"stream": "ORDERS", "consumer": "worker"}
    await run(api, "consumer.create", **where, options={"ack_wait": 5})
    worker = await stream.consumer("worker")
    assert (worker.config.ack_policy, worker.config.ack_wait) == ("explicit", 5_000_000_000)
    for message in await worker.fetch(5):
        await message.ack_sync()
    await run(api, "consumer.edit", **where, options={"max_ack_pending": 7})
    await run(api, "consumer.pause", **where, seconds=600)
    info = await worker.info()
    assert (info.config.max_ack_pending, info.paused) == (7, True)
    await run(api, "consumer.resume", **where)
    await run(api, "consumer.reset", **where, sequence=2)
    info = await worker.info()
    assert (info.paused, info.num_pending) == (False, 4)
    await run(api, "consumer.delete", **where)
    with pytest.raises(NotFoundError):
        await worker.info()


async def test_messages_are_published_once_more_and_deleted(api):
    stream = await make_stream(api.jetstream, "ORDERS")
    large = bytes(range(256)) * 400
    await api.jetstream.publish("ORDERS.big", large, headers={"Kind": "large"}, msg_id="once")
    assert (await run(api, "message.again", stream="ORDERS", sequence=1)).text == "Stored in ORDERS at sequence 2."
    again = await stream.get(2)
    assert (again.payload, again.subject, list(again.headers.items())) == (large, "ORDERS.big", [("Kind", "large")])
    headers = [("A", "1"), ("A", "2")]
    await run(api, "message.publish", subject="ORDERS.new", payload="", headers=headers)
    assert list((await stream.get(3)).headers.items()) == headers
    await run(api, "message.delete", stream="ORDERS", sequence=1)
    assert (await stream.info()).state.first_seq == 2


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("stream.create", {"stream": "a.b", "options": {}}),
        ("stream.create", {"stream": "S", "options": {"nonsense": 1}}),
        ("stream.create", {"stream": "S", "options": {"max_age": "soon"}}),
        ("stream.create", {"stream": "S"}),
        ("stream.edit", {"stream": "ORDERS", "options": {}}),
        ("stream.purge", {"stream": "ORDERS", "keep": 1, "before": 1}),
        ("consumer.pause", {"stream": "ORDERS", "consumer": "worker", "seconds": -1}),
        ("consumer.reset", {"stream": "ORDERS", "consumer": "worker", "sequence": -1}),
        ("message.publish", {"subject": "a..b"}),
        ("message.publish", {"subject": "a.*"}),
        ("message.publish", {"subject": "a", "payload": "not base64!"}),
        ("message.publish", {"subject": "a", "payload": "é"}),
        ("key.put", {"bucket": "B", "key": "k", "value": "é"}),
        ("stream.create", {"stream": "S", "options": {"sources": 5}}),
        ("stream.create", {"stream": "S", "options": {"sources": "ORDERS"}}),
        ("consumer.create", {"stream": "ORDERS", "consumer": "c", "options": {"opt_start_time": 5}}),
        ("stream.burn", {}),
    ],
)
async def test_bad_wishes_get_a_sentence(api, kind, arguments):
    await (await make_stream(api.jetstream, "ORDERS")).create_consumer("worker")
    with pytest.raises(InvalidOptionError):
        await prepare(api, kind, arguments)
