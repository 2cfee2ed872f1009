"""Seeded histories of pipelines whose streams are purged, recreated and moved between and during runs, without Java.

A failing seed is run again by: pytest tests/spark/pipelines/test_histories.py -k 'seed-NUMBER'
"""

from __future__ import annotations

import base64
import itertools
import random
import re

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from jetlake.model.encoding.times import format_time
from jetlake.model.replies import StoredMessage
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.archive import archive_schema
from jetlake.spark.pipelines.dead_letters import Death, letter_rows
from jetlake.spark.pipelines.replay import HELD_ID, ReplayTarget, find_target
from jetlake.spark.pipelines.replay_task import Pace, ReplayTask

ROWS = 40
SLICE = 10


class Replays:
    """Replays of forty messages, slice by slice as the driver does it, against real servers.

    `notes` is the file that a replay keeps. Everything else that it knows it has to ask the target for.
    """

    def __init__(self, servers, stream, *, keeps_all):
        self.servers = servers
        self.stream = stream
        self.keeps_all = keeps_all
        self.here = 0
        self.notes = {}
        for server, admin in servers:
            self.create(server, admin)

    def create(self, server, admin):
        limits = {} if self.keeps_all else {"retention": "workqueue"}
        admin.create_stream(self.stream, **limits)

    @property
    def admin(self):
        return self.servers[self.here][1]

    def held(self):
        """The sequences that the target holds, in its order."""
        found = []
        for message in self.admin.messages(self.stream):
            header = base64.b64decode(message["hdrs"]).decode()
            message_id = header.partition("Nats-Msg-Id: LAKE:")[2].split("\r\n")[0]
            found.append(int(re.fullmatch(HELD_ID, message_id)[1]))
        return found

    def run(self, slices):
        """Replay so many slices; all that is chosen when there are enough."""
        options = {"servers": self.servers[self.here][0].url}
        target = find_target(ConnectionOptions.of(options), self.stream)
        first = target.resume(self.notes).next_sequence
        held = set(self.held())
        left = [number for number in range(max(first, 1), ROWS + 1) if number not in held]
        for number, group in itertools.groupby(left, lambda sequence: (sequence - 1) // SLICE):
            if slices == 0:
                return
            slices -= 1
            self.publish(list(group), options, target)
            self.notes = target.note(self.notes, "f", (number + 1) * SLICE + 1)
        self.notes = target.note(self.notes, "f", ROWS + 1)

    def publish(self, sequences, options, target: ReplayTarget):
        schema = archive_schema().add("msg_id", "string")
        columns = [
            ["LAKE"] * len(sequences),
            sequences,
            [f"{self.stream}.x"] * len(sequences),
            [0] * len(sequences),
            [[]] * len(sequences),
            [b"%d" % sequence for sequence in sequences],
            [f"LAKE:{sequence}{target.id_suffix()}" for sequence in sequences],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, to_arrow_schema(schema, timezone="UTC"), strict=True)]
        sink = {**options, "stream": self.stream, "messageId": "column", "ledger": "none"}
        task = ReplayTask(schema, tuple(sink.items()), (), Pace(), None, 0.0, 0)
        list(task(iter([pa.RecordBatch.from_arrays(arrays, names=schema.fieldNames())])))

    def purge(self, chance):
        self.admin.api(f"STREAM.PURGE.{self.stream}", {"keep": chance.choice([0, 0, 7])})

    def delete_one(self, chance):
        messages = self.admin.messages(self.stream)
        if messages:
            self.admin.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": chance.choice(messages)["seq"]})

    def recreate(self, chance):
        self.admin.api(f"STREAM.DELETE.{self.stream}")
        self.create(*self.servers[self.here])

    def move(self, chance):
        self.here = 1 - self.here


@pytest.fixture(scope="module")
def two_servers(request):
    process_class = next(
        found
        for plugin in request.config.pluginmanager.get_plugins()
        if (found := getattr(plugin, "ServerProcess", None)) is not None
    )
    processes = [process_class("embedded"), process_class("nats-server")]
    yield [(process, process.admin()) for process in processes]
    for process in processes:
        process.remove()


@pytest.mark.parametrize("seed", range(8), ids=lambda seed: f"seed-{seed}")
def test_a_target_that_keeps_its_messages_has_all_of_them_after_a_replay(two_servers, seed):
    chance = random.Random(seed)
    replays = Replays(two_servers, f"KEEPS{seed}", keeps_all=True)
    for _ in range(8):
        chance.choice([replays.purge, replays.delete_one, replays.recreate, replays.move])(chance)
        before = replays.held()
        replays.run(chance.choice([1, 2, 99]))
        assert replays.held()[: len(before)] == before
        assert replays.held()[len(before) :] == sorted(set(replays.held()[len(before) :]) - set(before))
    replays.run(99)
    assert sorted(replays.held()) == list(range(1, ROWS + 1))


@pytest.mark.parametrize("seed", range(8), ids=lambda seed: f"seed-{seed}")
def test_a_work_queue_gets_each_message_once_however_much_was_done_of_it(two_servers, seed):
    """Workers take messages away at any time; a queue that is made again, or is elsewhere, gets all of them."""
    chance = random.Random(seed)
    replays = Replays(two_servers, f"QUEUE{seed}", keeps_all=False)
    given: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(8):
        step = chance.choice([replays.purge, replays.delete_one, replays.delete_one, replays.recreate, replays.move])
        step(chance)
        if step == replays.recreate:
            given[replays.here] = []
        before = len(replays.held())
        replays.run(chance.choice([1, 2, 99]))
        given[replays.here] += replays.held()[before:]
        assert given[replays.here] == list(range(1, len(given[replays.here]) + 1))
    before = len(replays.held())
    replays.run(99)
    assert [*given[replays.here], *replays.held()[before:]] == list(range(1, ROWS + 1))


class Deaths:
    """A stream that is deleted and made again, whose messages die, and a collector with the keys it remembers."""

    def __init__(self):
        self.now_ns = 1_800_000_000_000_000_000
        self.created_ns = None
        self.messages: dict[int, StoredMessage] = {}
        self.last = 0
        self.waiting: list[tuple[Death, bytes]] = []
        self.letters: dict[tuple[int, str], list[tuple[bytes, bytes | None]]] = {}

    def tick(self):
        self.now_ns += 1_000_000

    def recreate(self, chance):
        self.created_ns, self.messages, self.last = self.now_ns, {}, 0

    def delete_stream(self, chance):
        self.created_ns, self.messages = None, {}

    def publish(self, chance):
        if self.created_ns is not None:
            self.last += 1
            payload = b"%d/%d" % (self.created_ns, self.last)
            self.messages[self.last] = StoredMessage(
                subject="a", seq=self.last, data=payload, time=format_time(self.now_ns)
            )

    def die(self, chance):
        if self.messages:
            sequence = chance.choice(list(self.messages))
            self.waiting.append((Death("A", sequence, self.now_ns // 1000), self.messages[sequence].data))

    def remove(self, chance):
        if self.messages:
            del self.messages[chance.choice(list(self.messages))]

    def collect(self, chance):
        deaths = [death for death, _ in self.waiting]
        rows = letter_rows(deaths, lambda stream, sequence: self.messages.get(sequence), lambda stream: self.created_ns)
        for (death, died), row in zip(self.waiting, rows, strict=True):
            self.letters.setdefault((death.sequence, row["incarnation"]), []).append((died, row["data"]))
            if row["found"]:
                assert row["data"] == died
        self.waiting = []


@pytest.mark.parametrize("seed", range(300), ids=lambda seed: f"seed-{seed}")
def test_no_death_is_taken_for_another_and_no_payload_for_another(seed):
    chance = random.Random(seed)
    world = Deaths()
    world.recreate(chance)
    steps = [world.publish] * 4 + [world.die] * 3 + [world.remove, world.collect, world.recreate, world.delete_stream]
    died = set()
    for _ in range(60):
        world.tick()
        chance.choice(steps)(chance)
        died |= {payload for _, payload in world.waiting}
    world.collect(chance)
    # One key never stands for two messages, and every message that died has a letter.
    for found in world.letters.values():
        assert len({payload for payload, _ in found}) == 1
    assert {payload for found in world.letters.values() for payload, _ in found} == died
