"""Random histories of a query from streams to a stream: both halves of source and sink, an intruder, and kills.

The harness plays Spark: offsets through JSON into a log, tasks that may be repeated, commits, restarts that forget the
processes. At every single request the intruder may act on the streams first, or the process may die. What happened to
every message is known here; so after the history it is checked that each was read exactly once, or need not have been
(it was superseded, deleted, not wanted), or that its loss was told, and that nothing else was called a loss.

Between source and sink rows may be dealt to other tasks, to others in each attempt; and the checkpoint may be set back
by a batch, which is then planned anew with other messages. The sink may refuse such a batch; the harness then deals its
rows as they were dealt first, and tells the sink to go by the rows' content if that is refused too.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from unittest import mock

import pyarrow as pa
from pyspark.sql.types import StructType

import jetlake.spark.options.connection_options as connection_options
import jetlake.spark.sink.stored_rows as stored_rows
import jetlake.spark.sink.writer as writers
from jetlake.client.settings.options import build_options
from jetlake.client.tables.spark_offsets import Offset, read_offset
from jetlake.errors import BatchWrittenError, DataLossError, JetlakeError, StreamRecreatedError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.driver import Driver
from jetlake.spark.source.executor import read_partition
from jetlake.spark.source.stream_watch import Clock

SCHEMA = StructType().add("stream", "string", False).add("sequence", "long", False).add("data", "binary", False)
DATA = StructType().add("data", "binary")
TARGET = "OUT"
DEAD = (JetlakeError, OSError)

# How a message left its stream. What limits or a purge take in order is lost to whoever had not read it; whether what
# was deleted by hand counts is left to the source; what was superseded never does.
LIMIT, PURGED, DELETED, SUPERSEDED, RELEASED, REPLACED = "limit", "purged", "deleted", "superseded", "released", "new"


@dataclass
class Fate:
    """One message: what it was, and how it left its stream."""

    uid: str
    stream: str
    sequence: int
    wanted: bool
    gone: str = ""
    # Whether the query can know that it was there, and must tell.
    must_tell: bool = False
    # It is of an older state that was restored: perhaps it had been told as lost.
    resurrected: bool = False


@dataclass
class Known:
    """What the harness knows of a stream."""

    config: dict
    created: str = ""
    present: dict[int, Fate] = field(default_factory=dict)
    # Whether anything left in order, or was deleted, that the query had not committed: then a loss may be told.
    may_alarm: bool = False
    restored: bool = False


class Break:
    """A socket that tells the harness of every write; the harness may let it break."""

    def __init__(self, sock, before_write) -> None:
        self._sock = sock
        self._before_write = before_write

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def sendall(self, data) -> None:
        self._before_write(bytes(data[:200]))
        self._sock.sendall(data)


class Context:
    """What a task asks Spark."""

    batch = partition = 0

    def get(self) -> Context:
        return self

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str:
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(self.batch)}[name]


class History:
    """One seeded history on one server.

    Args:
        world: the server with the intruder's hands: create, delete, publish, purge, delete_message, look, and
            connections for the query.
    """

    def __init__(self, world, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.world = world
        self.steps: list[str] = []
        self.numbers = 0
        self.quiet = True
        self.known: dict[str, Known] = {}
        self.fates: list[Fate] = []
        self.committed: Counter[str] = Counter()
        self.attempts: dict[int, list[list[str]]] = {}
        self.alarms = 0
        # What the sink's side does, chosen apart, so that it does not change the rest of a history.
        self.choices = Random(seed * 104_729)
        self.refusals = 0
        self.rollbacks = 0
        # Into how many tasks the rows are dealt before they are written (0: as they are read), now and in the first
        # attempt of the batch; and what the sink is told to do with a batch that it refused.
        self.dealt = 0
        self.first_dealt: dict[int, int] = {}
        self.changed_batch = "fail"
        self.by_content = False
        self.is_planned_anew = False
        self.recreated: set[str] = set()
        # Which range was planned for each stream's first batch, from `earliest`: what went before that is no loss.
        self.opened: dict[str, tuple[int, int]] = {}
        self.by_uid: dict[str, Fate] = {}
        self.now_s = 1000.0
        self._choose()

    def note(self, text: str) -> None:
        self.steps.append(text)

    # The streams and the query

    def _choose(self) -> None:
        random = self.random
        self.filters = random.choice([[], [], ["*.a"], ["*.a", "*.b"]])
        names = ["S1", "S2", "S3"][: random.choice([1, 2, 3])]
        for name in names:
            kind = random.choice(["plain", "limited", "bucket", "workqueue", "interest", "aged"])
            config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True}
            if kind == "limited":
                config["max_msgs"] = random.choice([5, 12, 30])
            elif kind == "bucket":
                config["max_msgs_per_subject"] = random.choice([1, 2])
            elif kind in ("workqueue", "interest"):
                config["retention"] = kind
            elif kind == "aged" and self.world.moves_time:
                config["max_age"] = 300 * 10**9
            self.known[name] = Known(config)
            self.world.create(config)
        self.world.create({"name": TARGET, "subjects": [f"{TARGET}.>"], "duplicate_window": 3600 * 10**9})
        self.sync("")
        self.given = {
            "servers": self.world.url,
            "stream": ",".join(names),
            "retryFor": random.choice(["0s", "60s"]),
            "reader": random.choice(["auto", "auto", "leader"]),
            "directGetBelow": random.choice(["1", "20000"]),
            "messagesPerPartition": random.choice(["3", "100"]),
            "failOnDataLoss": random.choice(["true", "false"]),
            # A server that is slow because the machine is busy breaks no promise.
            "requestTimeout": "60s",
        }
        if self.filters:
            self.given["subjects"] = ",".join(self.filters)
        if random.random() < 0.4:
            self.given["maxMessagesPerTrigger"] = random.choice(["1", "4", "10"])
        if Random(self.seed * 7919).random() < 0.3:
            self.given["maxBytesPerTrigger"] = "20"
        self.note(f"{self.given} {[known.config for known in self.known.values()]}")
        self.names = names
        self.start = Offset(start="earliest").to_json()
        self.end = None
        self.batch = 0
        self.restart()

    def wanted(self, subject: str) -> bool:
        return not self.filters or any(subject.endswith(pattern[1:]) for pattern in self.filters)

    def restart(self) -> None:
        self.options = SourceOptions.of(self.given)
        self.driver = Driver(self.options, Clock(lambda: self.now_s, lambda: self.world.now_ns, self.sleep))

    def make_writer(self) -> writers.StreamWriter:
        """As Spark does for each attempt of a batch."""
        sink = {"servers": self.world.url, "subject": f"{TARGET}.x", "retryFor": self.given["retryFor"]}
        return writers.StreamWriter(DATA, SinkOptions.of({**sink, "changedBatch": self.changed_batch}))

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    # What happens to the streams

    def sync(self, how: str) -> None:
        """Look at the streams; what is gone left in that way."""
        for name, known in self.known.items():
            created, present = self.world.look(name)
            if known.created and created != known.created:
                for fate in known.present.values():
                    fate.gone = REPLACED
                known.present = {}
                known.may_alarm = False
            known.created = created
            for sequence in sorted(set(known.present) - present):
                self._gone(known, known.present.pop(sequence), how)

    def _gone(self, known: Known, fate: Fate, how: str) -> None:
        fate.gone = how
        if how == RELEASED:
            assert fate.wanted, f"{fate} was removed by the query, which has no business with it"
            assert self.committed[fate.uid] or fate.resurrected, f"{fate} was removed by the query and never committed"
            return
        fate.must_tell = how in (LIMIT, PURGED) and self.can_know(known, fate)
        # Where the stream has limits, nobody can tell what they took from what was deleted.
        limits = "max_msgs" in known.config or "max_age" in known.config
        if how in (LIMIT, PURGED) or (how == DELETED and (fate.wanted or limits)):
            known.may_alarm = known.may_alarm or not self.committed[fate.uid]

    def can_know(self, known: Known, fate: Fate) -> bool:
        """Whether a query can tell that this message went from the stream's head.

        A purge by hand of a bucket, or under a filter, it can tell from overwriting, or from a head that it does not
        want, only if the message was counted: in the range of a batch of a limits stream.
        """
        if fate.gone == LIMIT or not (self.filters or "max_msgs_per_subject" in known.config):
            return True
        if self.end is None or "max_msgs_per_subject" in known.config or "retention" in known.config:
            return False
        entry = self.end["streams"].get(fate.stream, {})
        batch = entry.get("batch", {})
        return batch.get("messages") is not None and batch["from"] <= fate.sequence < entry["next"]

    def intrude(self) -> None:
        """Do something to the streams."""
        random = self.random
        name = random.choice(list(self.known))
        known = self.known[name]
        self.sync(RELEASED)
        if self.world.moves_time:
            self.world.now_ns += random.choice([10**7, 10**9, 10**10, 10**11])
            self.world.expire()
            self.sync(LIMIT)
        action = random.choices(
            ["publish", "purge", "purge subject", "delete", "replace", "restore"], [20, 2, 2, 2, 0.4, 0.4]
        )[0]
        last = max(known.present, default=0)
        if action == "publish":
            for _ in range(random.choice([1, 2, 8])):
                self.publish(name)
        elif action == "purge" and known.present:
            below = random.choice([random.randint(1, last + 1), last + 1])
            self.note(f"purge {name} below {below}")
            self.world.purge(name, {"seq": below})
            self.sync(PURGED)
        elif action == "purge subject":
            subject = f"{name}.{random.choice('abc')}"
            self.note(f"purge {subject}")
            self.world.purge(name, {"filter": subject})
            self.sync(DELETED)
        elif action == "delete" and known.present:
            sequence = random.choice(list(known.present))
            self.note(f"delete {name} {sequence}")
            self.world.delete_message(name, sequence)
            self.sync(DELETED)
        elif action == "replace":
            self.note(f"replace {name}")
            self.world.delete(name)
            self.world.create(known.config)
            self.recreated.add(name)
            self.sync(REPLACED)
        elif action == "restore" and self.world.moves_time:
            self.restore(name, known)

    def publish(self, name: str) -> None:
        known = self.known[name]
        self.numbers += 1
        subject, uid = f"{name}.{self.random.choice('aabc')}", f"m{self.numbers}"
        if self.world.moves_time:
            self.world.now_ns += 10**6
        sequence = self.world.publish(subject, uid.encode())
        fate = Fate(uid, name, sequence, self.wanted(subject))
        self.fates.append(fate)
        self.by_uid[uid] = fate
        known.present[sequence] = fate
        how = SUPERSEDED if "max_msgs_per_subject" in known.config else LIMIT
        self.note(f"publish {subject} {sequence} {uid}")
        self.sync(DELETED if known.config.get("retention") == "interest" else how)

    def restore(self, name: str, known: Known) -> None:
        """Put the stream back to an older state, which a backup had."""
        kept = self.world.backups.get(name)
        if kept is None or kept[0] != known.created:
            self.note(f"backup {name}")
            self.world.backups[name] = (known.created, self.world.snapshot(name), dict(known.present))
            return
        self.note(f"restore {name}")
        _, state, present = self.world.backups.pop(name)
        self.world.now_ns += 10**10
        self.world.restore(name, state)
        for fate in known.present.values():
            if fate.sequence not in present or present[fate.sequence] is not fate:
                fate.gone = REPLACED
        for fate in present.values():
            fate.resurrected = True
        known.present = dict(present)
        known.restored = True
        self.recreated.add(name)

    # What Spark does

    def disconnect(self) -> None:
        """Lose the connections, as a process that dies does."""
        for idle in connection_options._idle.values():
            for _, connection in idle:
                connection.close()
        connection_options._idle.clear()

    def before_write(self, data: bytes = b"") -> None:
        """Whatever happens between any two requests of the query."""
        if self.quiet:
            return
        self.now_s += self.random.choice([0.0, 0.05, 1.0])
        # The server takes no condition with these; what happens between look and release is left out, as documented.
        releases = b".STREAM.PURGE." in data or b".CONSUMER.RESET." in data
        if self.random.random() < self.intrusion and not releases:
            self.intrude()
        if self.random.random() < self.mortality:
            self.note("break")
            raise OSError("the connection breaks, as the history says")

    def open_connection(self, _) -> connection_options.SocketConnection:
        self.before_write()
        return self.world.open_connection(lambda sock: Break(sock, self.before_write), build_options(self.world.url))

    def run(self, steps: int) -> None:
        random = self.random
        self.intrusion, self.mortality = random.choice([(0.0, 0.0), (0.05, 0.01), (0.02, 0.05), (0.15, 0.02)])
        self.context = Context()
        patches = (
            mock.patch.object(connection_options, "open_connection", self.open_connection),
            mock.patch.object(connection_options.time, "sleep", lambda seconds: None),
            mock.patch.object(writers, "TaskContext", self.context),
            # Tasks run one after the other: none confirms its rows while another one waits.
            mock.patch.object(stored_rows, "_CONFIRMATION_WAIT_S", 0.0),
            mock.patch.object(writers, "warn_of_short_memory", lambda *_: None),
        )
        for patch in patches:
            patch.start()
        try:
            for _ in range(steps):
                if random.random() < 0.5:
                    self.intrude()
                else:
                    self.quiet = False
                    self.spark()
                    self.quiet = True
            self.finish()
        finally:
            self.quiet = True
            for patch in patches:
                patch.stop()
            self.disconnect()

    def spark(self) -> bool:
        """One batch, or as much of it as the history lets happen; says whether there was nothing to do."""
        random = self.random
        if random.random() < 0.2:
            self.note("restart")
            self.restart()
        if random.random() < 0.1 and self.end is None:
            chosen = random.sample(self.names, random.randint(1, len(self.names)))
            self.given["stream"] = ",".join(sorted(chosen))
            self.note(f"streams {self.given['stream']}")
            self.restart()
        if self.choices.random() < 0.15:
            self.dealt = self.choices.choice([0, 0, 1, 2, 3])
            self.note(f"rows are dealt to {self.dealt or 'as many'} tasks")
        try:
            return self.one_batch()
        except BatchWrittenError as error:
            self.refused(error)
        except StreamRecreatedError as error:
            self.alarm(error)
        except DataLossError as error:
            self.alarm(error)
        except DEAD as error:
            self.note(f"died: {type(error).__name__} {str(error)[:90]}")
            self.disconnect()
            self.restart()
        return False

    def refused(self, error: BatchWrittenError) -> None:
        """The sink does not know a batch again: go back to how it was dealt, or go by the rows' content."""
        self.note(f"refused: {str(error)[:150]}")
        assert self.changed_batch == "fail", f"this was allowed, but: {error}"
        self.refusals += 1
        first = self.first_dealt[self.batch]
        if self.dealt != first:
            self.dealt = first
        else:
            self.changed_batch = "skip"
        self.restart()

    def alarm(self, error: DataLossError) -> None:
        """The query says that something is lost: it must be true. Somebody lets it go on."""
        self.note(f"alarm: {str(error)[:150]}")
        streams = [name for name in self.names if f"stream {name} " in str(error)]
        if isinstance(error, StreamRecreatedError):
            assert self.recreated & set(streams), f"no stream was made again or restored, but: {error}"
        else:
            assert any(self.known[name].may_alarm or name in self.recreated for name in streams), (
                f"nothing was lost, but: {error}"
            )
        self.alarms += 1
        self.given["failOnDataLoss"] = "false"
        self.restart()

    def one_batch(self) -> bool:
        start = read_offset(self.start)
        self.now_s += self.random.choice([0.0, 1.0])
        if self.end is None:
            end = self.driver.latest_offset(start)
            if end is start:
                return True
            self.end = json.loads(json.dumps(end.to_json()))
            self.note(f"batch {self.batch}: {json.dumps(self.end['streams'])}")
        end = read_offset(self.end)
        rows, messages = self.write_batch(self.driver.partitions(start, end))
        self.writer.commit(messages, self.batch)
        if self.is_planned_anew and not messages:
            # A batch without tasks cannot tell the sink that it is not the one that was written.
            self.by_content = True
        self.is_planned_anew = False
        if not self.quiet and start.streams and self.choices.random() < 0.1 and self.changed_batch == "fail":
            # Restored from a copy that lacks the batch: it is planned anew, with what is there by then.
            self.note(f"commit {self.batch}: {rows}, rolled back")
            forgotten, self.end = self.end["streams"], None
            for fate in self.fates:
                # What only the batch's count told is not known any more.
                if fate.must_tell and fate.sequence < forgotten.get(fate.stream, {}).get("next", 0):
                    fate.must_tell = bool(self.committed[fate.uid]) or self.can_know(self.known[fate.stream], fate)
            self.rollbacks += 1
            self.is_planned_anew = True
            self.restart()
            return False
        # What was left out, or left standing, by the content of rows may come again in a later batch.
        self.by_content |= self.changed_batch != "fail"
        self.changed_batch = "fail"
        self.committed.update(rows)
        for uid in rows:
            assert self.committed[uid] == 1, f"{uid} was read twice"
        self.note(f"commit {self.batch}: {rows}")
        for name, offset in end.streams:
            if start.of(name) is None:
                self.opened[name] = offset.range_after(None)
        self.start, self.end = self.end, None
        self.batch += 1
        return False

    def write_batch(self, partitions):
        """Run a batch's tasks; says which rows they wrote, and what they told the driver."""
        self.writer = self.make_writer()
        self.first_dealt.setdefault(self.batch, self.dealt)
        if self.dealt:
            read = [self.repeated(lambda partition=partition: self.read(partition)) for partition in partitions]
            rows = [uid for found in read for uid in found]
            tasks = [(rows[number :: self.dealt], None) for number in range(self.dealt)]
        else:
            tasks = [([], partition) for partition in partitions]
        done = [self.repeated(lambda task=task: self.task(*task)) for task in enumerate(tasks)]
        return [uid for rows, _ in done for uid in rows], [message for _, message in done]

    def read(self, partition) -> list[str]:
        batches = list(read_partition(partition, SCHEMA, self.options))
        return [uid.decode() for batch in batches for uid in batch.column("data").to_pylist()]

    def task(self, number: int, task):
        """Write the rows that were dealt to a task, or that it reads."""
        rows, partition = task
        rows = self.read(partition) if partition is not None else rows
        self.context.batch, self.context.partition = self.batch, number
        self.attempts.setdefault(self.batch, []).append(rows)
        table = pa.table({"data": pa.array([uid.encode() for uid in rows], pa.binary())})
        return rows, self.writer.write(iter(table.to_batches()))

    def repeated(self, work):
        """Run a task, repeated as Spark does it, a few times, whatever it died of, a loss as well."""
        attempts = self.random.choice([2, 2, 4])
        for attempt in range(attempts):
            try:
                return work()
            except BatchWrittenError:
                raise
            except DEAD as error:
                if isinstance(error, DataLossError):
                    self.note(str(error)[:120])
                else:
                    self.disconnect()
                if attempt == attempts - 1:
                    raise
            # Between two attempts time passes.
            if not self.quiet and self.random.random() < 0.5:
                self.intrude()
        raise AssertionError

    # What must be true in the end

    def finish(self) -> None:
        """Let the query come to rest with all its streams, and count."""
        if self.end is not None:
            self.restart()
            while self.end is not None:
                self.spark_quietly()
        self.given["stream"] = ",".join(self.names)
        self.restart()
        for _ in range(500):
            if self.spark_quietly():
                break
        else:
            raise AssertionError("the query never comes to rest")
        self.sync(RELEASED)
        self.check_rows()
        self.check_target()

    def spark_quietly(self) -> bool:
        try:
            return self.one_batch()
        except BatchWrittenError as error:
            self.refused(error)
        except (DataLossError, StreamRecreatedError) as error:
            self.alarm(error)
        return False

    def lost(self, name: str) -> int:
        return self.start.get("streams", {}).get(name, {}).get("lost", 0)

    def check_rows(self) -> None:
        unread = [fate for fate in self.fates if fate.wanted and not self.committed[fate.uid]]
        for name in self.names:
            known = self.known[name]
            still = [fate for fate in unread if fate.stream == name and not fate.gone]
            assert not still or known.restored, f"{still} are there and were never read"
            missing = [fate for fate in unread if fate.stream == name and fate.must_tell]
            if name in self.recreated or self.alarms:
                continue
            lost = self.lost(name)
            assert not lost or known.may_alarm, f"{name} counts {lost} as lost, and nothing was"
            began, ended = self.opened.get(name, (0, 0))
            # Of the first batch, what the stream's limits may have removed need not be told.
            limits = "max_msgs" in known.config or "max_age" in known.config
            strict = [fate for fate in missing if fate.sequence >= (ended if limits else began)]
            assert lost >= len(strict), f"{name} counts {lost} as lost, and these are: {strict}"

    def check_target(self) -> None:
        """The target holds what was committed, once, and nothing that no task ever brought."""
        found = Counter(self.world.payloads(TARGET))
        missing = [uid for uid, count in self.committed.items() if count and not found[uid]]
        assert not missing, f"{missing} were committed and are not in the target"
        attempted = {uid for attempts in self.attempts.values() for rows in attempts for uid in rows}
        assert set(found) <= attempted
        twice = {uid for uid, count in found.items() if count > 1}
        assert not twice or self.by_content, f"{twice} are in the target more than once"
