"""Publishers: every acknowledged message must be there, without gaps, and its id must still count."""

import asyncio
import contextlib

from jetlake.errors import ApiError
from tests.power_cuts.promises import Act
from tests.power_cuts.scenario import Scenario, lost_sequences, stored

WINDOW_S = 6 * 3600
"""Of message ids."""
PAUSE_S = 0.05
"""After many messages at once: the disk is small."""


class Publisher(Scenario):
    """Publishes in one of several ways; every message must be there, without gaps.

    Args:
        way: `single`, `pipelined`, `many`, `fast`, `ids` or `many ids`.
        config: of the stream.
    """

    is_read_directly = True

    def __init__(self, name, random, position, way, **config):
        super().__init__(name, random, position)
        self._way = way
        self._config = config
        self.acts = []

    def promises(self):
        return self.acts

    async def create(self, jetstream):
        await jetstream.create_stream(
            self.name,
            subjects=[f"{self.name}.>"],
            allow_direct=self.is_read_directly,
            allow_batched=self._way == "fast",
            duplicate_window=WINDOW_S,
            **self._config,
        )

    def _message(self):
        payload = self.payload()
        subject = f"{self.name}.{self.random.randint(0, 5)}"
        options = {"msg_id": f"id {payload[:20].decode()}"} if "ids" in self._way else {}
        return subject, payload, options

    def _begin(self, message):
        act = Act(self.position(), {"message": message, "sequence": None})
        self.acts.append(act)
        return act

    def _end(self, act, sequence):
        act.state["sequence"] = sequence
        act.end(self.position())

    async def act(self, jetstream):
        if self._way in ("single", "ids"):
            message = self._message()
            act = self._begin(message)
            self._end(act, (await jetstream.publish(message[0], message[1], **message[2])).seq)
        elif self._way == "pipelined":
            messages = [self._message() for _ in range(self.random.randint(1, 60))]
            acts = [self._begin(message) for message in messages]
            pending = [await jetstream.publish_async(subject, payload) for subject, payload, _ in messages]
            for act, ack in zip(acts, pending, strict=True):
                self._end(act, (await ack).seq)
            await asyncio.sleep(PAUSE_S)
        else:
            messages = [self._message() for _ in range(self.random.randint(1, 120))]
            acts = [self._begin(message) for message in messages]
            if self._way == "fast":
                async with jetstream.fast_publisher() as fast:
                    for subject, payload, _ in messages:
                        await fast.publish(subject, payload)
            else:
                await jetstream.publish_many(messages)
            for act in acts:
                self._end(act, None)
            await asyncio.sleep(PAUSE_S)

    async def check(self, jetstream, cut):
        broken = []
        found, state = await stored(jetstream, self.name)
        by_payload = {payload: sequence for sequence, (_, payload) in found.items()}
        if len(by_payload) != len(found):
            broken.append("a message is stored twice")
        possible = {act.state["message"][1] for act in self.acts if act.is_possible_at(cut)}
        if foreign := set(by_payload) - possible:
            broken.append(f"messages that nobody had published: {sorted(foreign)[0][:40]}")
        kept = [act for act in self.acts if act.is_kept_by(cut)]
        last = 0
        for act in kept:
            subject, payload, _ = act.state["message"]
            sequence = act.state["sequence"] or by_payload.get(payload, 0)
            if found.get(sequence) != (subject, payload):
                broken.append(f"lost {payload[:24]}, sequence {sequence} of {len(found)}")
            last = max(last, sequence)
        # Behind the last promise, a torn write may have left any of its messages.
        if silent := sorted(set(range(1, last)) - set(found) - lost_sequences(state)):
            broken.append(f"sequences {silent[:5]} … are missing before {last}, and nobody says so")
        if told := [sequence for sequence in lost_sequences(state) if sequence <= last]:
            broken.append(f"acknowledged sequences are called lost: {told[:5]}")
        if self._way in ("ids", "many ids"):
            broken += await self._refusals(jetstream, kept, by_payload)
        if cut.grace_s == 0:
            with contextlib.suppress(ApiError):  # The disk may be full.
                ack = await jetstream.publish(f"{self.name}.after", b"after the cut")
                if ack.seq <= max(last, *found, 0):
                    broken.append(f"sequence {ack.seq} is used again")
        return broken

    async def _refusals(self, jetstream, kept, by_payload):
        broken = []
        for act in self.random.sample(kept, min(3, len(kept))):
            subject, payload, options = act.state["message"]
            if payload in by_payload:
                ack = await jetstream.publish(subject, b"with an old id", **options)
                if not ack.duplicate or ack.seq != by_payload[payload]:
                    broken.append(f"the id of {payload[:24]} counts no more: {ack}")
        return broken


class Copied(Publisher):
    """A stream with a mirror and a stream that has it as its source: each message is in both once."""

    is_read_directly = False

    async def create(self, jetstream):
        await super().create(jetstream)
        await jetstream.create_stream(f"{self.name}_MIRROR", mirror={"name": self.name}, allow_direct=True)
        await jetstream.create_stream(f"{self.name}_SOURCED", sources=[{"name": self.name}], allow_direct=True)

    async def check(self, jetstream, cut):
        broken = await super().check(jetstream, cut)
        if cut.grace_s:
            return broken  # An origin that syncs now and then may lose what was copied.
        found, _ = await stored(jetstream, self.name)
        for copy in ("MIRROR", "SOURCED"):
            copied = await self._caught_up(jetstream, f"{self.name}_{copy}", len(found))
            if copy == "MIRROR" and copied != found:
                broken.append(f"the mirror has {len(copied)} messages, not the {len(found)} of its origin")
            if list(copied.values()) != list(found.values()):
                broken.append(f"{copy}: {len(copied)} copies are not the {len(found)} messages in their order")
        return broken

    async def _caught_up(self, jetstream, name, count):
        for _ in range(100):
            found, _ = await stored(jetstream, name)
            if len(found) >= count:
                break
            await asyncio.sleep(0.1)
        return found


class RemovedIds(Scenario):
    """Messages with ids that are removed: within their window, the ids count all the same."""

    def __init__(self, name, random, position):
        super().__init__(name, random, position)
        self.acts = []

    def promises(self):
        return self.acts

    async def create(self, jetstream):
        await jetstream.create_stream(self.name, subjects=[self.name], duplicate_window=WINDOW_S)

    async def act(self, jetstream):
        act = Act(self.position(), {"id": f"id {len(self.acts)}", "sequence": 0})
        self.acts.append(act)
        act.state["sequence"] = (await jetstream.publish(self.name, self.payload(), msg_id=act.state["id"])).seq
        act.end(self.position())
        stream = await jetstream.stream(self.name)
        way = self.random.choices(["keep", "delete", "purge"], [10, 10, 2])[0]
        if way == "delete":
            await stream.delete_message(act.state["sequence"], erase=self.random.random() < 0.5)
        elif way == "purge":
            await stream.purge()

    async def check(self, jetstream, cut):
        broken = []
        kept = [act for act in self.acts if act.is_kept_by(cut)]
        for act in {*self.random.sample(range(len(kept)), min(8, len(kept))), *range(max(len(kept) - 3, 0), len(kept))}:
            state = kept[act].state
            ack = await jetstream.publish(self.name, b"with an old id", msg_id=state["id"])
            if not ack.duplicate or ack.seq != state["sequence"]:
                broken.append(f"{state} counts no more: {ack}")
        return broken
