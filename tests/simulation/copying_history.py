"""Random histories of streams that copy each other: whatever fails, a mirror is its origin, and a source copies once.

The book notes what every origin acknowledged and what was ever seen of each copy. A seed replays its history exactly.
"""

import errno
import json

from world import World

from faulty_disk import PowerCut
from jetlake.model.source_names import SOURCE_HEADER, parse_source_header
from jetlake.protocol.headers import find_value

ORIGINS = {
    "A": {"subjects": ["A.*"]},
    "B": {"subjects": ["B.*"]},
    "Q": {"subjects": ["Q.*"], "retention": "workqueue"},
    "I": {"subjects": ["I.*"], "retention": "interest"},
}
COPIES = {
    "M": {"mirror": {"name": "A"}},
    "MF": {"mirror": {"name": "B", "filter_subject": "B.a"}, "max_msgs": 7},
    "D": {"sources": [{"name": "A"}, {"name": "B", "filter_subject": "B.b"}, {"name": "Q"}]},
    # So few messages that those of a quiet source are long gone when it speaks again.
    "E": {
        "sources": [
            {"name": "A", "filter_subject": "A.a"},
            {"name": "B", "filter_subject": "B.a"},
            {"name": "B", "filter_subject": "B.c"},
            {"name": "I"},
        ],
        "max_msgs": 3,
    },
    "ME": {"mirror": {"name": "D"}},
}
TOKENS = ("a", "b", "c")


class CopyingWorld(World):
    """A world in which a mirror may tell of messages that a power cut tore out of the middle of what it wrote."""

    def _unreadable(self, line):
        if "lost" not in line:
            super()._unreadable(line)


class CopyingHistory:
    """One history."""

    def __init__(self, seed):
        self.world = CopyingWorld(seed)
        self.random = self.world.random
        self.published = 0
        self.crashes = 0
        self.fault_left = 0
        self.is_failing = False
        # By origin: sequence to (subject, payload, time) of what was seen there, and what was acknowledged.
        self.history = {name: {} for name in ORIGINS}
        self.acknowledged = {name: {} for name in ORIGINS}
        self.copied = {}  # (stream, source, origin's sequence) to the sequence of the copy
        self.removed = set()  # stream and sequence of what was deleted on request
        self.dropped = set()
        for name, config in {**ORIGINS, **COPIES}.items():
            answer, _ = self.world.api(f"STREAM.CREATE.{name}", {"name": name, **config})
            assert "error" not in answer, answer
        self.world.advance(1)

    def run(self, steps):
        for _ in range(steps):
            self.step()
        self.finish()

    def step(self):
        """One random thing happens, and everything is looked at."""
        try:
            self.random.choices(self.ACTIONS, self.WEIGHTS)[0](self)
            if self.fault_left:
                self.fault_left -= 1
                if not self.fault_left:
                    self._crash(self.world.disk.kill)
            self.look()
        except PowerCut:
            self._crash(self.world.disk.cut_power)
            self.look()

    # What happens

    def publish(self):
        """A few messages to one origin, in one turn."""
        name = self.random.choice(list(ORIGINS))
        sent = {}
        for _ in range(self.random.randint(1, 12)):
            self.published += 1
            reply, payload = self.world.inbox(), b"%d" % self.published
            subject = f"{name}.{self.random.choice(TOKENS)}".encode()
            sent[reply] = (subject, payload)
            self.world.publish(subject, payload, reply)
        self.world.turn()
        for frame in self.world.client.take():
            if frame.subject in sent:
                answer = json.loads(frame.payload)
                assert "error" not in answer or self.is_failing, answer
                if "error" not in answer:
                    self.acknowledged[name][answer["seq"]] = sent[frame.subject]

    def wait(self):
        """Time passes."""
        for _ in range(self.random.randint(1, 3)):
            self.world.advance(self.random.choice([0.05, 0.3, 1, 3, 11]))

    def delete_copy(self):
        """A copy is deleted on request, or all of them are purged."""
        name = self.random.choice(list(COPIES))
        store = self.world.jetstream.streams[name].store
        if not store.messages:
            return
        if self.random.random() < 0.3:
            self.removed |= {(name, sequence) for sequence in range(1, store.last_sequence + 1)}
            self.world.api(f"STREAM.PURGE.{name}")
        else:
            sequence = self.random.randint(store.first_sequence, store.last_sequence)
            self.removed.add((name, sequence))
            self.world.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})

    def change_sources(self):
        """A source is removed, or all are there again."""
        config = {"name": "D", **COPIES["D"]}
        if self.random.random() < 0.5:
            config["sources"] = config["sources"][::2]
        self.world.api("STREAM.UPDATE.D", config)

    def stop(self):
        """The server is stopped cleanly and started again."""
        if not self.fault_left:
            self.world.stop()
            self._start()

    def kill(self):
        """The process dies; what it had written is there."""
        self._crash(self.world.disk.kill)

    def cut_power(self):
        """The machine dies; what was synced is there."""
        self._crash(self.world.disk.cut_power)

    def cut_power_soon(self):
        """The machine will die in the middle of something that it writes."""
        self.world.disk.cut_at = self.world.disk.operations + self.random.randint(1, 40)

    def fail_disk(self):
        """The disk is full or failing for some steps."""
        if self.fault_left:
            return
        number = self.random.choice([errno.ENOSPC, errno.EIO])
        operations = ("write",) if number == errno.ENOSPC else self.random.choice([("sync",), ("write", "sync")])
        chance = self.random.choice([0.3, 1.0])

        def fault(operation, path):
            if operation in operations and self.random.random() < chance:
                self.is_failing = True
                raise OSError(number, "simulated")

        self.world.disk.fault = fault
        self.fault_left = self.random.randint(1, 6)

    def mend_disk(self):
        """The disk takes everything again, and the server goes on."""
        if self.fault_left:
            self.fault_left = 0
            self.world.disk.fault = None
            for _ in range(5):
                self.world.advance(1.1)
            self.is_failing = False

    def _crash(self, how):
        self.crashes += 1
        self.fault_left = 0
        self.is_failing = False
        self.world.disk.fault = None
        how()
        self._start()

    def _start(self):
        while True:
            try:
                self.world.start()
                return
            except PowerCut:
                self.world.disk.cut_power()

    # What must hold

    def look(self):
        """Compare every copy with its origin, and with what was seen of it before."""
        if self.is_failing:
            return
        for name in ORIGINS:
            history = self.history[name]
            for message in held(self.world.jetstream.streams[name].store):
                seen = (message.subject, message.payload, message.time_ns)
                assert history.setdefault(message.sequence, seen) == seen, f"{name} {message.sequence}"
        for name in ("M", "MF"):
            origin = self.history[COPIES[name]["mirror"]["name"]]
            for message in held(self.world.jetstream.streams[name].store):
                seen = (message.subject, message.payload, message.time_ns)
                assert origin.get(message.sequence) == seen, f"{name} {message.sequence}: {seen}"
        for name in ("D", "E"):
            self._look_at_sources(name)

    def _look_at_sources(self, name):
        last = {}
        for message in held(self.world.jetstream.streams[name].store):
            source = parse_source_header(find_value(message.header, SOURCE_HEADER))
            where = (name, source.index_name, source.sequence)
            known = self.copied.setdefault(where, message.sequence)
            assert known == message.sequence, f"{where} is copied as {known} and {message.sequence}"
            assert source.sequence > last.get(source.index_name, 0), f"{where} is out of order"
            last[source.index_name] = source.sequence
            origin = source.index_name.split(" ")[0]
            # A work queue's message may be gone before anybody looks.
            original = self.history[origin].setdefault(source.sequence, (message.subject, message.payload, 0))
            assert original[:2] == (message.subject, message.payload), f"{where} is another message"

    def finish(self):
        """Nothing fails any more: every message is where it should be."""
        self.world.disk.cut_at = None
        if self.fault_left:
            self._crash(self.world.disk.kill)
        self.world.api("STREAM.UPDATE.D", {"name": "D", **COPIES["D"]})
        for _ in range(12):
            self.world.advance(3)
            self.look()
        streams = self.world.jetstream.streams
        origin, mirror = streams["A"].store, streams["M"].store
        assert mirror.last_sequence == origin.last_sequence
        expected = {sequence for sequence in self.history["A"] if ("M", sequence) not in self.removed}
        missing = expected - {message.sequence for message in held(mirror)} - set(mirror.lost)
        assert not missing, f"M lacks {sorted(missing)}"
        again = {message.sequence: message for message in held(streams["ME"].store)}
        for message in held(streams["D"].store):
            if ("ME", message.sequence) not in self.removed and message.sequence not in streams["ME"].store.lost:
                assert again.get(message.sequence) == message, f"ME {message.sequence}"
        for name, index, token in (("D", "A > >", ""), ("D", "B B.b >", "b"), ("D", "Q > >", "")):
            self._check_complete(name, index, token)
        for name in ("Q",):
            assert streams[name].store.messages == 0, f"{name} keeps {streams[name].store.messages}"

    def _check_complete(self, name, index, token):
        """Every acknowledged message of the origin was copied."""
        for sequence, (subject, _) in self.acknowledged[index.split(" ")[0]].items():
            if not token or subject.endswith(token.encode()):
                seen = (name, index, sequence) in self.copied
                # What was deleted between two looks may never have been seen.
                assert seen or self._may_be_unseen(name), f"{name} lacks {index} {sequence}"

    def _may_be_unseen(self, name):
        return any(stream == name for stream, _ in self.removed)

    ACTIONS = (
        publish,
        wait,
        delete_copy,
        change_sources,
        stop,
        kill,
        cut_power,
        cut_power_soon,
        fail_disk,
        mend_disk,
    )
    WEIGHTS = (40, 40, 3, 3, 2, 2, 3, 3, 3, 2)


def held(store):
    """All messages of a store."""
    first = max(store.first_sequence, 1)
    found = [store.get(sequence) for sequence in range(first, store.last_sequence + 1)]
    return [message for message in found if message is not None]
