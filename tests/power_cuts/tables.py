"""Names whose values change one after the other: buckets, objects, counters, and streams with their consumers."""

import io

from tests.power_cuts.promises import Timeline
from tests.power_cuts.scenario import Scenario


class Keys(Scenario):
    """A table of names whose values change one after the other: the base of buckets and streams."""

    names = ("a", "b", "c", "d")
    is_at_once = False

    def __init__(self, name, random, position):
        super().__init__(name, random, position)
        self.timeline = Timeline(position, {}, self.is_at_once)

    def promises(self):
        return self.timeline.acts

    def _begin(self, key, value):
        state = {**self.timeline.state, key: value}
        return self.timeline.begin({key: value for key, value in state.items() if value is not None})

    async def look(self, jetstream):
        act = self.timeline.begin(None)
        act.state = await self.values(jetstream)
        self.timeline.end(act)

    async def values(self, jetstream):
        """What there is, by name."""
        raise NotImplementedError

    async def check(self, jetstream, cut):
        allowed = [state for state in self.timeline.allowed(cut) if state is not None]
        found = await self.values(jetstream)
        return [
            f"{name} is {_short(found.get(name))}, not {[_short(state.get(name)) for state in allowed][:3]}"
            for name in self.names
            if found.get(name) not in [state.get(name) for state in allowed]
        ]


def _short(value):
    return value[:24] if isinstance(value, bytes) else value


class Bucket(Keys):
    """A key-value bucket."""

    def __init__(self, name, random, position, **options):
        super().__init__(name, random, position)
        self._options = options

    async def create(self, jetstream):
        await jetstream.create_key_value(self.name, **self._options)

    async def act(self, jetstream):
        bucket = await jetstream.key_value(self.name)
        key = self.random.choice(self.names)
        way = self.random.choices(["put", "delete", "purge"], [80, 10, 10])[0]
        if way == "put":
            value = self.payload()
            act = self._begin(key, value)
            await bucket.put(key, value)
        else:
            act = self._begin(key, None)
            await (bucket.delete(key) if way == "delete" else bucket.purge(key))
        self.timeline.end(act)

    async def values(self, jetstream):
        bucket = await jetstream.key_value(self.name)
        return {key: (await bucket.get(key)).value for key in await bucket.keys()}


class Objects(Keys):
    """An object store."""

    async def create(self, jetstream):
        await jetstream.create_object_store(self.name)

    async def act(self, jetstream):
        store = await jetstream.object_store(self.name)
        name = self.random.choice(self.names)
        if self.random.random() < 0.8 or name not in self.timeline.state:
            content = self.random.randbytes(self.random.choice([10, 1000, 50_000, 200_000]))
            act = self._begin(name, content)
            await store.put(name, content, chunk_size=32_768)
        else:
            act = self._begin(name, None)
            await store.delete(name)
        self.timeline.end(act)

    async def values(self, jetstream):
        store = await jetstream.object_store(self.name)
        return {info.name: await store.get(info.name) for info in await store.list()}


class Counts(Keys):
    """Counters."""

    async def create(self, jetstream):
        await jetstream.create_counters(self.name, subjects=[f"{self.name}.*"])

    async def act(self, jetstream):
        counters = await jetstream.counters(self.name)
        name = self.random.choice(self.names)
        increment = self.random.randint(-5, 20)
        act = self._begin(name, self.timeline.state.get(name, 0) + increment)
        await counters.add(f"{self.name}.{name}", increment)
        self.timeline.end(act)

    async def values(self, jetstream):
        counters = await jetstream.counters(self.name)
        return {entry.subject.rpartition(".")[2]: entry.value async for entry in counters.entries(f"{self.name}.*")}


class Streams(Keys):
    """Streams with consumers that are created, changed, filled and deleted; these answers are promises at once."""

    is_at_once = True

    async def act(self, jetstream):
        key = self.random.choice(self.names)
        name = f"{self.name}_{key}"
        config = {"subjects": [f"{name}.>"], "allow_direct": True, "description": f"number {next(self._numbers)}"}
        known = self.timeline.state.get(key)
        if known is None:
            act = self._begin(key, (config["description"], 0, ()))
            await jetstream.create_stream(name, **config)
        elif (way := self.random.random()) < 0.3:
            act = self._begin(key, (config["description"], *known[1:]))
            await jetstream.update_stream(name, **config)
        elif way < 0.6:
            consumer = self.random.choice("xyz")
            present = set(known[2]) ^ {consumer}
            act = self._begin(key, (*known[:2], tuple(sorted(present))))
            if consumer in present:
                await jetstream.create_consumer(name, consumer, ack_policy="explicit")
            else:
                await jetstream.delete_consumer(name, consumer)
        elif way < 0.8:
            act = self._begin(key, None)
            await jetstream.delete_stream(name)
        else:
            # With a sync interval, messages are no promise at once.
            act = self._begin(key, (known[0], known[1] + 1, known[2]))
            await jetstream.publish(f"{name}.1", self.payload())
        self.timeline.end(act)

    async def values(self, jetstream):
        found = {}
        for info in await jetstream.streams():
            owner, _, key = info.config.name.rpartition("_")
            if owner == self.name:
                stream = await jetstream.stream(info.config.name)
                names = tuple(sorted(await stream.consumer_names()))
                found[key] = (info.config.description, info.state.messages, names)
        return found

    async def check(self, jetstream, cut):
        if cut.grace_s == 0:
            return await super().check(jetstream, cut)
        allowed = [state for state in self.timeline.allowed(cut) if state is not None]
        found = await self.values(jetstream)
        return [
            f"{name} is {found.get(name)}, not {[state.get(name) for state in allowed][:3]}"
            for name in self.names
            if _without_messages(found.get(name)) not in [_without_messages(state.get(name)) for state in allowed]
        ]


class Restored(Keys):
    """Streams that are made of a backup, and deleted: all of a stream is there or nothing."""

    names = ("a", "b")
    is_at_once = True

    async def create(self, jetstream):
        stream = await jetstream.create_stream(f"{self.name}_ORIGIN", subjects=[f"{self.name}.origin"])
        await stream.create_consumer("worker", ack_policy="explicit")
        await jetstream.publish_many((f"{self.name}.origin", self.payload()) for _ in range(40))
        archive = io.BytesIO()
        await stream.backup(archive)
        self._config, self._archive = stream.config, archive.getvalue()

    async def act(self, jetstream):
        key = self.random.choice(self.names)
        name = f"{self.name}_{key}"
        if key in self.timeline.state:
            act = self._begin(key, None)
            await jetstream.delete_stream(name)
        else:
            act = self._begin(key, (40, 1))
            await jetstream.restore(io.BytesIO(self._archive), self._config, name=name, subjects=[name])
        self.timeline.end(act)

    async def values(self, jetstream):
        streams = {info.config.name: info.state for info in await jetstream.streams()}
        return {
            key: (state.messages, state.consumer_count)
            for key in self.names
            if (state := streams.get(f"{self.name}_{key}")) is not None
        }


def _without_messages(value):
    return value and (value[0], value[2])
