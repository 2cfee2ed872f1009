"""Random histories of streams that copy each other: whatever fails, a mirror is its origin, and a source copies once.

The book notes what every origin acknowledged and what was ever seen of each copy. A seed replays its history exactly.
"""

import json

from jetlake.model.source_names import SOURCE_HEADER, parse_source_header
from jetlake.protocol.headers import find_value
from tests.simulation.history import History
from tests.simulation.world import World

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


class CopyingHistory(History):
    """One history."""

    weights = {
        "publish": 40,
        "wait": 40,
        "delete_copy": 3,
        "change_sources": 3,
        "stop": 2,
        "kill": 2,
        "cut_power": 3,
        "cut_power_soon": 3,
        "fail_disk": 3,
        "mend_disk": 2,
    }
    cut_within = 40

    def __init__(self, seed):
        super().__init__(seed, CopyingWorld)
        self.published = 0
        # By origin: sequence to (subject, payload, time) of what was seen there, and what was acknowledged.
        self.originals = {name: {} for name in ORIGINS}
        self.acknowledged = {name: {} for name in ORIGINS}
        self.copied = {}  # (stream, source, origin's sequence) to the sequence of the copy
        self.removed = set()  # stream and sequence of what was deleted on request
        self.dropped = set()
        for name, config in {**ORIGINS, **COPIES}.items():
            answer, _ = self.world.api(f"STREAM.CREATE.{name}", {"name": name, **config})
            assert "error" not in answer, answer
        self.world.advance(1)

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
                assert "error" not in answer or self.disk_failed, answer
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

    # What must hold

    def check(self):
        """Compare every copy with its origin, and with what was seen of it before."""
        if self.disk_failed:
            return
        for name in ORIGINS:
            history = self.originals[name]
            for message in held(self.world.jetstream.streams[name].store):
                seen = (message.subject, message.payload, message.time_ns)
                assert history.setdefault(message.sequence, seen) == seen, f"{name} {message.sequence}"
        for name in ("M", "MF"):
            origin = self.originals[COPIES[name]["mirror"]["name"]]
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
            original = self.originals[origin].setdefault(source.sequence, (message.subject, message.payload, 0))
            assert original[:2] == (message.subject, message.payload), f"{where} is another message"

    def finish(self):
        """Nothing fails any more: every message is where it should be."""
        self.world.api("STREAM.UPDATE.D", {"name": "D", **COPIES["D"]})
        for _ in range(12):
            self.world.advance(3)
            self.check()
        streams = self.world.jetstream.streams
        origin, mirror = streams["A"].store, streams["M"].store
        assert mirror.last_sequence == origin.last_sequence
        expected = {sequence for sequence in self.originals["A"] if ("M", sequence) not in self.removed}
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


def held(store):
    """All messages of a store."""
    first = max(store.first_sequence, 1)
    found = [store.get(sequence) for sequence in range(first, store.last_sequence + 1)]
    return [message for message in found if message is not None]
