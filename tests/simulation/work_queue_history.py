"""Random histories of a work queue whose consumer changes its filters and is reset, through crashes at any write.

Whatever was published and never acknowledged stays in the queue, delivered or not; what a confirmed acknowledgement
removed never comes back.
"""

import json

from tests.simulation.history import History

SECOND = 1_000_000_000
FILTERS = (["W.a"], ["W.b"], ["W.>"], ["W.a", "W.b"], [])


class WorkQueueHistory(History):
    """One history."""

    weights = {
        "publish": 20,
        "pull": 20,
        "acknowledge": 30,
        "change_filters": 4,
        "reset": 1,
        "wait": 8,
        "stop": 2,
        "kill": 2,
        "cut_power": 2,
        "cut_power_soon": 3,
    }

    def __init__(self, seed):
        super().__init__(seed)
        self.stored = set()  # sequences of publishes that were acknowledged
        self.acknowledged = set()  # confirmed or not
        self.removed = set()  # by a confirmed acknowledgement
        self.replies = {}  # sequence to ack subject
        self._answers = {}  # inbox to who waits for the answer
        self._api("STREAM.CREATE.W", {"name": "W", "subjects": ["W.*"], "retention": "workqueue"})
        self.change_filters()

    def _api(self, verb, body):
        answer, frames = self.world.api(verb, body)
        assert "error" not in answer, answer
        self._take(frames)

    def _turn(self):
        self.world.turn()
        self._take(self.world.client.take())

    def _take(self, frames):
        for frame in frames:
            if frame.reply.startswith(b"$JS.ACK."):
                sequence = int(frame.reply.split(b".")[5])
                assert sequence not in self.removed, f"{sequence} is delivered after its confirmed acknowledgement"
                self.replies[sequence] = frame.reply
            elif frame.subject in self._answers:
                self._answers.pop(frame.subject)(frame)

    @property
    def _store(self):
        return self.world.jetstream.streams["W"].store

    # What happens

    def publish(self):
        """Some messages, of which the consumer wants some."""
        for _ in range(self.random.randint(1, 5)):
            inbox = self.world.inbox()
            self._answers[inbox] = lambda frame: self.stored.add(json.loads(frame.payload)["seq"])
            self.world.publish(self.random.choice([b"W.a", b"W.b", b"W.c"]), b"", inbox)
        self._turn()

    def pull(self):
        """Some messages are asked for."""
        body = {"batch": self.random.randint(1, 5), "no_wait": True}
        self.world.publish(b"$JS.API.CONSUMER.MSG.NEXT.W.c", json.dumps(body).encode(), self.world.inbox())
        self._turn()

    def acknowledge(self):
        """Some of what was delivered is acknowledged, most of it with a confirmation."""
        for sequence in self.random.sample(sorted(self.replies), min(len(self.replies), self.random.randint(1, 4))):
            self.acknowledged.add(sequence)
            inbox = b""
            if self.random.random() < 0.6:
                inbox = self.world.inbox()
                self._answers[inbox] = lambda frame, sequence=sequence: self._confirmed(sequence)
            self.world.publish(self.replies[sequence], b"", inbox)
            if self.random.random() < 0.5:
                self._turn()
        self._turn()

    def _confirmed(self, sequence):
        # After a reset, an acknowledgement of an earlier delivery is answered and does nothing.
        if not self._store.has(sequence):
            self.removed.add(sequence)

    def change_filters(self):
        """The consumer wants other messages from now on."""
        config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 2 * SECOND}
        config["filter_subjects"] = self.random.choice(FILTERS)
        self._api("CONSUMER.CREATE.W.c", {"stream_name": "W", "config": config})

    def reset(self):
        """The consumer begins anew, anywhere."""
        self._api("CONSUMER.RESET.W.c", {"seq": self.random.randint(1, self._store.last_sequence + 1)})

    def wait(self):
        """Time passes."""
        self.world.advance(self.random.choice([0.05, 0.5, 3]))
        self._turn()

    def started(self):
        self._answers.clear()

    # What must hold

    def check(self):
        self.world.advance(0)
        store = self._store
        held = {one for one in range(max(store.first_sequence, 1), store.last_sequence + 1) if store.has(one)}
        lost = self.stored - self.acknowledged - held
        assert not lost, f"lost {sorted(lost)}"
        assert not self.removed & held, f"{sorted(self.removed & held)} came back"
