"""A random history of two servers: the embedded one and nats-server get the same requests, and answer alike.

A seed decides everything: the stream's configuration and its updates, messages with headers that set conditions, roll
up, expire, schedule or belong to a batch, purges and deletions, reads of every kind, consumers, pulls and
acknowledgements, restarts on the same data. Left out is what nats-server does at a time of its own (expiry, copies of
other streams), and where it is known to err: it miscounts the pending messages of a consumer whose filter changed, or
that begins at a sequence or at the last message of each subject; a purge or roll-up lifts ack floors above pending
messages, which a restart then forgets, so that a history has consumers or purges; to delete a message acknowledges all
before it where the policy is `all`; a restart loses a sealed stream that allows schedules.
"""

import asyncio
import json
from random import Random

from tests.support.pair import Pair

HOUR = 3600 * 10**9
ATTEMPTS = 250
PAUSE_S = 0.02

SUBJECTS = ("s.1", "s.2", "s.3", "s.a.b")
PATTERNS = (*SUBJECTS, "s.*", "s.>", "*.1", "t.>", "zz")
FEATURES = ("allow_direct", "allow_rollup_hdrs", "allow_msg_ttl", "allow_atomic", "allow_msg_schedules", "deny_delete")
LIMITS = {
    "max_msgs": (-1, 1, 3, 8),
    "max_bytes": (-1, 100, 400),
    "max_msgs_per_subject": (-1, 1, 2),
    "max_msg_size": (-1, 60, 200),
    "discard": ("old", "new"),
    "discard_new_per_subject": (False, True),
    "duplicate_window": (0, HOUR),
    "compression": ("none", "s2"),
    "deny_purge": (False, True),
    "subject_transform": (None, {"src": "s.*", "dest": "s.a.{{wildcard(1)}}"}),
    "subjects": (["s.>"], ["s.*"], ["s.1", "s.>"]),
    "description": ("", "d" * 5000),
    "metadata": ({}, {"k": "v"}),
    "sealed": (False, True),
}
HEADERS = {
    "Nats-Msg-Id": ("a", "b", "c", ""),
    "Nats-Expected-Stream": ("S", "T", ""),
    "Nats-Expected-Last-Sequence": ("0", "1", "2", "3", "5", "8", "x", ""),
    "Nats-Expected-Last-Subject-Sequence": ("0", "1", "2", "3", "5", "x", ""),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("s.1", "s.*", ">", "zz", ""),
    "Nats-Expected-Last-Msg-Id": ("a", "b", ""),
    "Nats-Rollup": ("sub", "all", "SUB", "x", ""),
    "Nats-TTL": ("1h", "100", "never", "Never", ""),
    "Nats-Incr": ("1", "x"),
    "Nats-Stream-Source": ("S 1",),
    "Nats-Schedule-Target": ("s.2", "s.3"),
    "k": ("v", ""),
}
SCHEDULES = ("@at 2090-01-01T00:00:00Z", "@every 1h", "0 0 0 1 1 *", "@yearly", "junk")
TIMES = ("2020-01-01T00:00:00Z", "2090-01-01T00:00:00Z")
ACKS = (b"", b"+ACK", b"+ACK", b"-NAK", b"+TERM", b"+WPI", b"junk")


class History:
    """One history on a pair of servers, which a failed assertion ends.

    Attributes:
        steps: what was done so far.
    """

    def __init__(self, seed: int, pair: Pair) -> None:
        self.steps: list[str] = []
        self._random = Random(seed)
        self._pair = pair
        self._config: dict = {}
        self._consumers: set[str] = set()
        self._replies: list[str] = []
        self._batches = 0
        self._has_consumers = self._random.random() < 0.6

    async def run(self, count: int) -> None:
        """Do so many steps, and compare what is left."""
        await self._create()
        actions = {
            self._publish: 20,
            self._publish_batch: 2,
            self._update: 4,
            self._delete_message: 3,
            self._get: 4,
            self._get_directly: 4,
            self._restart: 0.4,
        }
        if self._has_consumers:
            actions.update({self._create_consumer: 4, self._delete_consumer: 1, self._pull: 8, self._acknowledge: 10})
        else:
            actions[self._purge] = 4
        for _ in range(count):
            (action,) = self._random.choices(list(actions), actions.values())
            await action()
        await self._compare_state()
        await self._restart()
        for sequence in range(1, 60):
            await self._pair.api("STREAM.MSG.GET.S", {"seq": sequence})
        await self._pair.api("STREAM.DELETE.S")

    async def _api(self, verb, body=b""):
        self.steps.append(f"{verb} {json.dumps(body) if body else ''}")
        return await self._pair.api(verb, body)

    # The stream

    async def _create(self):
        config = {"name": "S", "subjects": ["s.>"], "storage": self._random.choice(["file", "file", "memory"])}
        config.update((feature, True) for feature in FEATURES if self._random.random() < 0.4)
        config.update(self._limits(2))
        config["retention"] = self._random.choice(["limits", "limits", "interest", "workqueue"])
        config.pop("sealed", None)
        self._config = (await self._api("STREAM.CREATE.S", config)).get("config", {})
        if not self._config:
            await self._create()

    async def _update(self):
        config = {**self._config, **self._limits(2)}
        if self._random.random() < 0.3:
            feature = self._random.choice(FEATURES)
            config[feature] = not config.get(feature)
        if self._random.random() < 0.8 or config.get("allow_msg_schedules"):
            config.pop("sealed", None)
        await self._compare_state()
        self._config = (await self._api("STREAM.UPDATE.S", config)).get("config", self._config)

    def _limits(self, count):
        # On nats-server a roll-up first pushes out the oldest messages of a full stream.
        names = [name for name in LIMITS if self._has_consumers or name not in ("max_msgs", "max_bytes")]
        return {name: self._random.choice(LIMITS[name]) for name in self._random.sample(names, count)}

    async def _restart(self):
        if self._config["storage"] != "memory":
            await self._compare_state()
            self.steps.append("restart")
            await self._pair.restart()
            await self._compare_state()

    async def _purge(self):
        await self._compare_state()
        choices = {"filter": PATTERNS, "seq": range(12), "keep": range(4)}
        names = self._random.sample(list(choices), self._random.choice([0, 1, 1, 2]))
        await self._api("STREAM.PURGE.S", {name: self._random.choice(choices[name]) for name in names})

    async def _compare_state(self):
        """Compare the stream's configuration and state, and each consumer's counts, as soon as nats-server has them."""
        await self._compare("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"}, _stream_view)
        for name in sorted(self._consumers):
            await self._compare(f"CONSUMER.INFO.S.{name}", b"", _consumer_view)

    async def _compare(self, verb, body, view):
        for _ in range(ATTEMPTS):
            answers = [await wire.request(f"$JS.API.{verb}", body) for wire in self._pair._wires]
            ours, theirs = (view(answer.json) for answer in answers)
            if ours == theirs:
                return
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(f"{verb}\n  ours: {ours}\ntheirs: {theirs}")

    # Messages

    async def _publish(self):
        await self._store(self._some_headers())

    async def _publish_batch(self):
        self._batches += 1
        size = self._random.randint(1, 4)
        for number in range(1, size + 1):
            headers = {"Nats-Batch-Id": f"b{self._batches}", "Nats-Batch-Sequence": str(number)}
            if number == size:
                headers["Nats-Batch-Commit"] = self._random.choice(["1", "1", "eob", "x"])
            await self._store({**headers, **(self._some_headers() if self._random.random() < 0.3 else {})})

    async def _store(self, headers):
        if self._consumers and self._config["retention"] != "limits":
            await self._compare_state()
        subject = self._random.choice([*SUBJECTS, *SUBJECTS, "zz"])
        payload = b"x" * self._random.choice([0, 1, 30, 90])
        self.steps.append(f"publish {subject} {len(payload)} bytes {headers}")
        await self._pair.request(subject, payload, headers or b"")

    def _some_headers(self):
        names = self._random.sample(list(HEADERS), self._random.choice([0, 0, 0, 1, 1, 2]))
        headers = {name: self._random.choice(HEADERS[name]) for name in names}
        if self._has_consumers:
            headers.pop("Nats-Rollup", None)
        elif self._random.random() < 0.15:
            headers["Nats-Schedule"] = self._random.choice(SCHEDULES)
        return headers

    async def _delete_message(self):
        await self._compare_state()
        for wire in self._pair._wires:
            state = (await wire.request("$JS.API.STREAM.INFO.S")).json["state"]
        # Of sequences below the first nats-server says one of two things, as its blocks lie.
        sequence = self._random.randint(max(state["first_seq"], 1), state["last_seq"] + 2)
        await self._api("STREAM.MSG.DELETE.S", {"seq": sequence, "no_erase": self._random.random() < 0.5})

    async def _get(self):
        await self._compare_state()
        choices = {"seq": range(12), "last_by_subj": PATTERNS, "next_by_subj": PATTERNS, "start_time": TIMES}
        names = self._random.sample(list(choices), self._random.choice([1, 1, 2]))
        await self._api("STREAM.MSG.GET.S", {name: self._random.choice(choices[name]) for name in names})

    async def _get_directly(self):
        await self._compare_state()
        if not self._config["allow_direct"]:
            return
        body = self._random.choice(
            [
                {"seq": self._random.randrange(12), "batch": self._random.randint(1, 9)},
                {"next_by_subj": self._random.choice(PATTERNS), "seq": self._random.randrange(9), "batch": 3},
                {"multi_last": [self._random.choice(PATTERNS)], "up_to_seq": self._random.randrange(9)},
                {"start_time": self._random.choice(TIMES), "batch": 2, "max_bytes": 40},
            ]
        )
        self.steps.append(f"DIRECT.GET.S {body}")
        await self._pair.exchange("$JS.API.DIRECT.GET.S", body, until=lambda message: message.status is not None)

    # Consumers

    async def _create_consumer(self):
        await self._compare_state()
        name = self._random.choice(["c", "d"])
        if name in self._consumers:
            return
        config = {
            "durable_name": name,
            "ack_policy": self._random.choice(["explicit", "explicit", "none"]),
            "ack_wait": HOUR,
            "deliver_policy": self._random.choice(["all", "all", "last", "new"]),
            "max_deliver": self._random.choice([-1, 2]),
            "headers_only": self._random.random() < 0.2,
        }
        if self._random.random() < 0.5:
            config["filter_subject"] = self._random.choice(PATTERNS)
        answer = await self._api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
        if "error" not in answer:
            self._consumers.add(name)

    async def _delete_consumer(self):
        await self._compare_state()
        name = self._random.choice(["c", "d"])
        await self._api(f"CONSUMER.DELETE.S.{name}")
        self._consumers.discard(name)
        self._replies = [reply for reply in self._replies if f".{name}." not in reply]

    async def _pull(self):
        await self._compare_state()
        if not self._consumers:
            return
        name = self._random.choice(sorted(self._consumers))
        body = {"batch": self._random.choice([1, 3, 100]), "no_wait": True}
        self.steps.append(f"MSG.NEXT.S.{name} {body}")
        left = 0

        def is_last(message):
            nonlocal left
            left = (left or body["batch"]) - 1
            if message.status is not None:
                left = 0
            return left == 0

        messages = await self._pair.exchange(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", body, until=is_last)
        self._replies += [message.reply for message in messages if message.reply]

    async def _acknowledge(self):
        await self._compare_state()
        if self._replies:
            # Its time and pending count are not looked at, so that nats-server takes our subject too.
            reply, body = self._random.choice(self._replies[-8:]), self._random.choice(ACKS)
            self.steps.append(f"{reply} {body}")
            await self._pair.request(reply, body)


def _stream_view(info):
    state = info.get("state", {})
    state.pop("first_ts", None)
    state.pop("last_ts", None)
    if not state.get("messages"):
        # nats-server lists sequence 0 as deleted where nothing was ever stored.
        for name in ("deleted", "num_deleted"):
            state.pop(name, None)
    if not state.get("last_seq"):
        state.pop("first_seq", None)  # 0 or 1, where a stream that was never used was purged
    return info.get("config"), state, info.get("error")


def _consumer_view(info):
    counts = ("num_pending", "num_ack_pending", "num_redelivered", "num_waiting", "error")
    return info.get("config"), info.get("delivered", {}).get("consumer_seq"), [info.get(name) for name in counts]
