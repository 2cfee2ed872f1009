"""A stream whose messages are removed in every way."""

from tests.power_cuts.promises import Timeline
from tests.power_cuts.scenario import Scenario, lost_sequences, stored


class Sequential(Scenario):
    """One stream to which one thing happens after the other: publishes, roll-ups, deletes, purges, atomic batches.

    Args:
        limits: `max_msgs` or `max_msgs_per_subject`, and other configuration.
    """

    def __init__(self, name, random, position, **limits):
        super().__init__(name, random, position)
        self._limits = limits
        self.timeline = Timeline(position, ({}, 0))

    def promises(self):
        return self.timeline.acts

    async def create(self, jetstream):
        await jetstream.create_stream(
            self.name,
            subjects=[f"{self.name}.>"],
            allow_direct=True,
            allow_rollup_hdrs=True,
            allow_atomic=True,
            **self._limits,
        )

    async def act(self, jetstream):
        choices = [self._publish, self._roll_up, self._batch, self._delete, self._purge]
        await self.random.choices(choices, [50, 4, 5, 12, 4])[0](jetstream)

    def _subject(self):
        return f"{self.name}.{self.random.randint(0, 3)}"

    def _after(self, *messages, rolled_up=lambda _: False):
        held, last = self.timeline.state
        held = {sequence: message for sequence, message in held.items() if not rolled_up(message[0])}
        for message in messages:
            last += 1
            held[last] = message
        return self._limited(held), last

    def _limited(self, held):
        """Remove what is over the stream's limits."""
        per_subject = self._limits.get("max_msgs_per_subject", 1000)
        for subject in {subject for subject, _ in held.values()}:
            same = [sequence for sequence, message in held.items() if message[0] == subject]
            for sequence in same[: max(len(same) - per_subject, 0)]:
                del held[sequence]
        for sequence in list(held)[: max(len(held) - self._limits.get("max_msgs", 1000), 0)]:
            del held[sequence]
        return held

    async def _publish(self, jetstream):
        subject, payload = self._subject(), self.payload()
        act = self.timeline.begin(self._after((subject, payload)))
        ack = await jetstream.publish(subject, payload)
        assert ack.seq == act.state[1], (ack, act.state[1])
        self.timeline.end(act)

    async def _roll_up(self, jetstream):
        subject, payload = self._subject(), self.payload()
        which = self.random.choice(["sub", "all"])
        after = self._after((subject, payload), rolled_up=lambda other: which == "all" or other == subject)
        act = self.timeline.begin(after)
        await jetstream.publish(subject, payload, headers={"Nats-Rollup": which})
        self.timeline.end(act)

    async def _batch(self, jetstream):
        messages = [(self._subject(), self.payload()) for _ in range(self.random.randint(2, 6))]
        act = self.timeline.begin(self._after(*messages))
        async with jetstream.batch() as batch:
            for subject, payload in messages:
                batch.publish(subject, payload)
        self.timeline.end(act)

    async def _delete(self, jetstream):
        held, last = self.timeline.state
        if held:
            sequence = self.random.choice(list(held))
            after = {other: message for other, message in held.items() if other != sequence}
            stream = await jetstream.stream(self.name)
            act = self.timeline.begin((after, last))
            await stream.delete_message(sequence, erase=self.random.random() < 0.5)
            self.timeline.end(act)

    async def _purge(self, jetstream):
        held, last = self.timeline.state
        if not held:
            return
        stream = await jetstream.stream(self.name)
        way = self.random.choice(["all", "subject", "before", "keep"])
        if way == "all":
            after, options = {}, {}
        elif way == "subject":
            subject = self._subject()
            after, options = {n: m for n, m in held.items() if m[0] != subject}, {"subject": subject}
        elif way == "before":
            before = self.random.choice(list(held))
            after, options = {n: m for n, m in held.items() if n >= before}, {"before": before}
        else:
            keep = self.random.randint(1, len(held))
            after, options = dict(list(held.items())[-keep:]), {"keep": keep}
        act = self.timeline.begin((after, last))
        await stream.purge(**options)
        self.timeline.end(act)

    async def look(self, jetstream):
        act = self.timeline.begin(None)
        found, state = await stored(jetstream, self.name)
        act.state = (dict(sorted(found.items())), state.last_seq)
        self.timeline.end(act)

    async def check(self, jetstream, cut):
        allowed = [state for state in self.timeline.allowed(cut) if state is not None]
        found, state = await stored(jetstream, self.name)
        broken = []
        possible = set.union(*(set(held.items()) for held, _ in allowed))
        # A message that is back, since its removal was no promise yet, takes its place from another one.
        certain = set(self._limited(dict(sorted(possible))).items())
        certain = certain.intersection(*(held.items() for held, _ in allowed))
        if missing := certain - set(found.items()):
            broken.append(f"{len(missing)} messages are lost: {sorted(missing)[0][0]} of {sorted(found)}")
        if back := set(found.items()) - possible:
            broken.append(f"{len(back)} removed messages are back: {sorted(back)[0][0]}")
        if state.last_seq < min(last for _, last in allowed):
            broken.append(f"the last sequence is {state.last_seq} and was {min(last for _, last in allowed)}")
        if told := lost_sequences(state) & {sequence for sequence, _ in certain}:
            broken.append(f"acknowledged sequences are called lost: {sorted(told)[:5]}")
        if len(allowed) == 2:
            news = set(allowed[1][0].items()) - set(allowed[0][0].items())
            if 0 < len(news & set(found.items())) < len(news):
                broken.append(f"of a batch of {len(news)} messages only some are there")
        return broken
