"""Random histories of consumers, in which every frame, advisory and number of a consumer's info is foretold.

`delivery_model.py` foretells them, so that what is delivered to whom, when and in which order is checked, and not only
that nothing is lost. Disks and crashes are left to `simulation.py`: here a server dies when everything is written.
"""

import json
from itertools import groupby

from jetlake.model.encoding.times import format_time
from tests.simulation.delivery_model import SECOND, ConsumerModel, StreamModel
from tests.simulation.history import History

SUBJECTS = ("a", "b", "c.x", "c.y", "d.x.y")
FILTERS = ([], [], ["a"], ["*"], ["c.*"], ["a", "c.>"], ["*", "*.x"], ["a", "b", "c.x"], ["*.*.*", "c.y"], [">"])
STREAMS = {
    "L": {"retention": "limits", "max_msgs": 25},
    "W": {"retention": "workqueue"},
    "I": {"retention": "interest"},
}


class Subscriber:
    """An inbox, and what it is about to get."""

    def __init__(self, inbox, subscription):
        self.inbox, self.subscription = inbox, subscription
        self.expected = []


class DeliveryHistory(History):
    """One history."""

    weights = {
        "publish": 25,
        "create_consumer": 6,
        "delete_consumer": 1,
        "pull": 30,
        "leave": 3,
        "acknowledge": 30,
        "update": 6,
        "pause": 2,
        "reset": 1,
        "unpin": 2,
        "bind": 4,
        "delete_message": 3,
        "purge": 1,
        "wait": 14,
        "stop": 1,
        "kill_at_rest": 1,
    }

    def __init__(self, seed):
        super().__init__(seed)
        self.streams = {}
        self.inboxes = {}  # sid to subscriber
        self.expected_events = []
        self.deliveries = []
        self.pins = {}  # as clients see them, to the model's
        self.pin_count = 0
        self.delivered = 0
        self._listen()
        for name, config in STREAMS.items():
            body = {"name": name, "subjects": [f"{name}.>"], **config}
            answer, _ = self.world.api(f"STREAM.CREATE.{name}", body)
            assert "error" not in answer, answer
            self.streams[name] = StreamModel(name, config["retention"], config.get("max_msgs", 0))

    def _listen(self):
        self.world.account.subscribe(b"$JS.EVENT.ADVISORY.CONSUMER.>", b"events", self.world.client)

    # The world of the model

    def now_ns(self):
        return self.world.clock.now_ns()

    def emit(self, inbox, frame):
        for subscriber in self.inboxes.values():
            if subscriber.inbox == inbox:
                subscriber.expected.append(frame)

    def advise(self, event):
        self.expected_events.append(event)

    def has_interest(self, inbox):
        return any(one.inbox == inbox for one in self.inboxes.values())

    def new_pin(self):
        self.pin_count += 1
        return b"pin%d" % self.pin_count

    # Helpers

    def consumers(self):
        return [one for stream in self.streams.values() for one in stream.consumers.values()]

    def _any_consumer(self, *, push=None):
        some = [one for one in self.consumers() if push is None or bool(one.config.get("deliver_subject")) == push]
        return self.random.choice(some) if some else None

    def _api(self, verb, body=None):
        answer, frames = self.world.api(verb, body)
        self.frames += frames
        return answer

    def _chance(self, probability):
        return self.random.random() < probability

    # Steps

    def step(self):
        self.frames = []
        super().step()

    def check(self):
        self.world.advance(0)
        for consumer in self.consumers():
            consumer.settle()
        self._compare_frames()
        for consumer in self.consumers():
            self._compare_info(consumer)
        for name, stream in self.streams.items():
            state = self._api(f"STREAM.INFO.{name}")["state"]
            store = self.world.jetstream.streams[name].store
            held = [one for one in range(max(store.first_sequence, 1), store.last_sequence + 1) if store.has(one)]
            assert held == sorted(stream.messages), f"{name}: holds {held}, expected {sorted(stream.messages)}"
            assert state["messages"] == len(stream.messages)
            assert state["last_seq"] == stream.last
        self._compare_frames()

    def _compare_frames(self):
        frames = self.frames + self.world.client.take()
        self.frames = []
        got = {sid: [] for sid in self.inboxes}
        events = []
        for frame in frames:
            if frame.sid == b"events":
                events.append(self._event(frame))
            elif frame.sid in got:
                got[frame.sid].append(self._plain(frame))
            else:
                assert frame.sid == b"1", frame
        for sid, subscriber in self.inboxes.items():
            expected, subscriber.expected = subscriber.expected, []
            is_same = _by_time(got[sid]) == _by_time(expected)
            assert is_same, f"{subscriber.inbox}:\n  got      {got[sid]}\n  expected {expected}"
        events = [one for one in events if one is not None]
        expected, self.expected_events = self.expected_events, []
        assert sorted(events) == sorted(expected), f"advisories:\n  got      {events}\n  expected {expected}"

    def _plain(self, frame):
        header = frame.header
        if b"Nats-Pin-Id: " in header:
            pin = header.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0]
            header = header.replace(pin, self._pin_name(pin))
        if frame.reply.startswith(b"$JS.ACK."):
            self.delivered += 1
            self.deliveries.append(frame.reply)
            del self.deliveries[:-60]
        return frame.subject, frame.reply, header, frame.payload

    def _pin_name(self, pin):
        return self.pins.setdefault(pin, b"pin%d" % (len(self.pins) + 1))

    def _event(self, frame):
        kind = frame.subject.split(b".")[4].decode()
        event = json.loads(frame.payload)
        if kind in ("CREATED", "DELETED", "PAUSE"):
            return None
        if kind == "PINNED":
            return kind, event["consumer"], self._pin_name(event["pinned_id"].encode())
        if kind == "UNPINNED":
            return kind, event["consumer"], event["reason"]
        return kind, event["consumer"], event["stream_seq"], event["deliveries"]

    def _compare_info(self, consumer):
        info = self._api(f"CONSUMER.INFO.{consumer.stream.name}.{consumer.name}")
        assert "error" not in info, f"{consumer.name}: {info}"
        expected = consumer.numbers()
        got = {name: info.get(name, False) for name in expected}
        for name in ("delivered", "ack_floor"):
            got[name] = got[name]["consumer_seq"], got[name]["stream_seq"]
        assert got == expected, f"{consumer.stream.name} {consumer.name}:\n  got      {got}\n  expected {expected}"
        assert info.get("paused", False) == consumer.is_paused(), "paused"
        for name in ("ack_wait", "max_deliver", "max_ack_pending"):
            if name in consumer.config:
                assert info["config"][name] == consumer.config[name], name
        if consumer.group == "pinned_client":
            pinned = info["priority_groups"][0].get("pinned_client_id", "")
            assert bool(pinned) == (consumer.pin is not None), f"{consumer.name}: pin {pinned}"
            if pinned and consumer.pin.name:
                assert self.pins[pinned.encode()] == consumer.pin.name

    # What happens

    def publish(self):
        name = self.random.choice(list(STREAMS))
        for _ in range(self.random.randint(1, 6)):
            subject = f"{name}.{self.random.choice(SUBJECTS)}"
            payload = b"x" * self.random.choice([0, 1, 10, 100])
            self.world.publish(subject.encode(), payload)
            self.streams[name].publish(subject, payload, self.now_ns())
        self.world.turn()

    def create_consumer(self):
        name = self.random.choice(list(STREAMS))
        stream = self.streams[name]
        if len(stream.consumers) >= 3:
            return
        consumer = f"c{self.world.inboxes}"
        config = {"durable_name": consumer, "deliver_policy": "all", "ack_policy": "explicit"}
        filters = self.random.choice(FILTERS)
        self._filter(config, name, filters)
        if name != "W":
            config["deliver_policy"] = self.random.choice(
                ["all", "all", "new", "last", "by_start_sequence", "by_start_time", "last_per_subject"]
            )
            config["ack_policy"] = self.random.choice(["explicit", "explicit", "all", "none"])
        if config["deliver_policy"] == "by_start_sequence":
            config["opt_start_seq"] = self.random.randint(1, stream.last + 5)
        start_ns = 0
        if config["deliver_policy"] == "by_start_time":
            start_ns = self.now_ns() - self.random.randint(-2, 20) * SECOND
            config["opt_start_time"] = format_time(start_ns)
        if config["ack_policy"] != "none":
            config |= self._ack_settings()
        if self._chance(0.2):
            config["headers_only"] = True
        if self._chance(0.25):
            config["deliver_subject"] = f"push.{consumer}.0"
            if self._chance(0.5):
                config["idle_heartbeat"] = 2 * SECOND
        else:
            config["max_waiting"] = self.random.choice([3, 512])
            if config["ack_policy"] == "explicit" and self._chance(0.5):
                config["priority_policy"] = self.random.choice(["overflow", "prioritized", "pinned_client"])
                config["priority_groups"] = ["jobs"]
                if config["priority_policy"] == "pinned_client":
                    config["priority_timeout"] = self.random.choice([5, 30]) * SECOND
        answer = self._api(f"CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})
        if "error" in answer:
            self._check_refusal(stream, config, answer["error"]["err_code"])
            return
        model = {**config, "start_ns": start_ns}
        stream.consumers[consumer] = ConsumerModel(stream, consumer, model, self)

    def _check_refusal(self, stream, config, code):
        if code == 10094:
            assert config["deliver_policy"] == "last_per_subject" and not config.get("filter_subject")
        else:
            assert stream.retention == "workqueue" and code in (10099, 10100), (code, config)

    def _filter(self, config, stream, filters):
        config.pop("filter_subject", None)
        config.pop("filter_subjects", None)
        if len(filters) == 1:
            config["filter_subject"] = f"{stream}.{filters[0]}"
        elif filters:
            config["filter_subjects"] = [f"{stream}.{one}" for one in filters]

    def _ack_settings(self):
        settings = {
            "ack_wait": self.random.choice([2, 5, 10]) * SECOND,
            "max_deliver": self.random.choice([-1, -1, 1, 2, 4]),
            "max_ack_pending": self.random.choice([1, 3, 20, 1000]),
        }
        if self._chance(0.3):
            settings["backoff"] = [self.random.choice([1, 3, 7]) * SECOND for _ in range(self.random.randint(1, 3))]
            settings["max_deliver"] = self.random.choice([-1, len(settings["backoff"]) + 1])
            settings["ack_wait"] = settings["backoff"][0]
        return settings

    def delete_consumer(self):
        consumer = self._any_consumer()
        if consumer is None:
            return
        consumer.end_requests("409 Consumer Deleted")
        answer = self._api(f"CONSUMER.DELETE.{consumer.stream.name}.{consumer.name}")
        assert answer["success"]
        del consumer.stream.consumers[consumer.name]
        consumer.stream.sweep()

    def _subscribe(self, inbox):
        self.world.inboxes += 1
        sid = b"s%d" % self.world.inboxes
        subscription = self.world.account.subscribe(inbox, sid, self.world.client)
        self.inboxes[sid] = Subscriber(inbox, subscription)

    def pull(self):
        consumer = self._any_consumer(push=None if self._chance(0.03) else False)
        if consumer is None:
            return
        body = {"batch": self.random.choice([1, 1, 2, 5, 30])}
        if self._chance(0.7):
            body["expires"] = self.random.randint(1, 20) * SECOND
        if self._chance(0.3):
            body["no_wait"] = True
        if self._chance(0.2):
            body["max_bytes"] = self.random.randint(30, 400)
        if self._chance(0.3):
            body["idle_heartbeat"] = 2 * SECOND
        model = {}
        if consumer.group and not self._chance(0.02):
            body["group"] = "jobs"
        if consumer.group == "overflow" and self._chance(0.5):
            body[self.random.choice(["min_pending", "min_ack_pending"])] = self.random.randint(1, 6)
        if consumer.group == "prioritized":
            body["priority"] = self.random.randint(0, 3)
        if consumer.group == "pinned_client" and self._chance(0.6):
            if consumer.pin is not None and consumer.pin.name and self._chance(0.8):
                body["id"] = next(pin for pin, name in self.pins.items() if name == consumer.pin.name).decode()
                model["id"] = consumer.pin
            elif self._chance(0.3):
                body["id"], model["id"] = "wrong", "wrong"
        start = f"pull.{consumer.name}.".encode()
        mine = [one for one in self.inboxes.values() if one.inbox.startswith(start)]
        if mine and self._chance(0.4):
            inbox = self.random.choice(mine).inbox
        else:
            inbox = self.world.inbox().replace(b"_INBOX.", start)
            self._subscribe(inbox)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream.name}.{consumer.name}"
        self.world.publish(subject.encode(), json.dumps(body).encode(), inbox)
        consumer.pull(inbox, {**body, **model})
        self.world.turn()

    def leave(self):
        mine = [sid for sid, one in self.inboxes.items() if one.inbox.startswith(b"pull.")]
        if mine:
            sid = self.random.choice(mine)
            gone = self.inboxes.pop(sid)
            self.world.account.unsubscribe(gone.subscription)
            for consumer in self.consumers():
                consumer.leave(gone.inbox)
            self.world.turn()

    def bind(self):
        """The deliver subject of a push consumer gets a subscriber, or loses it."""
        consumer = self._any_consumer(push=True)
        if consumer is None:
            return
        subject = consumer.config["deliver_subject"].encode()
        bound = [sid for sid, one in self.inboxes.items() if one.inbox == subject]
        if bound:
            self.world.account.unsubscribe(self.inboxes.pop(bound[0]).subscription)
        else:
            self._subscribe(subject)
        consumer.bind(not bound)
        self.world.turn()

    def acknowledge(self):
        for _ in range(self.random.randint(1, 6)):
            if self._chance(0.2):
                self._acknowledge_run()
            else:
                self._acknowledge()
            self.world.turn()
            for consumer in self.consumers():
                consumer.settle()

    def _acknowledge_run(self):
        """Many are acknowledged with the bytes of one read."""
        some = self.random.choices(self.deliveries, k=12) if self.deliveries else []
        name = some[0].split(b".")[2:4] if some else None
        some = [one for one in some if one.split(b".")[2:4] == name]
        consumer = self.streams[name[0].decode()].consumers.get(name[1].decode()) if some else None
        if consumer is None or consumer.policy == "none":
            return
        body = self.random.choice([b"", b"+ACK"])
        self.world.acknowledge(some, body)
        for reply in some:
            consumer.acknowledge(reply, body)

    def _acknowledge(self):
        if not self.deliveries:
            return
        reply = self.random.choice(self.deliveries)
        tokens = reply.decode().split(".")
        consumer = self.streams[tokens[2]].consumers.get(tokens[3])
        if consumer is None or consumer.policy == "none":
            return
        body = self.random.choice(
            [b"", b"", b"", b"+ACK", b"-NAK", b"-NAK", b"-NAK 3s", b"-NAK 12s", b"+WPI", b"+TERM no", b"what"]
        )
        inbox = b""
        if self._chance(0.1) and not consumer.group and not consumer.config.get("deliver_subject"):
            inbox = self.world.inbox().replace(b"_INBOX.", f"pull.{consumer.name}.".encode())
            self._subscribe(inbox)
            request = {"batch": self.random.randint(1, 3), "no_wait": self._chance(0.5)}
            self.world.publish(reply, b"+NXT " + json.dumps(request).encode(), inbox)
            if consumer.acknowledge(reply, b""):
                consumer.pull(inbox, request)
            return
        if self._chance(0.4):
            inbox = self.world.inbox().replace(b"_INBOX", b"ack")
            self._subscribe(inbox)
        self.world.publish(reply, body, inbox)
        if consumer.acknowledge(reply, body) and inbox:
            self.emit(inbox, (inbox, b"", b"", b""))

    def update(self):
        """A consumer's configuration is changed while messages are in flight."""
        consumer = self._any_consumer()
        if consumer is None:
            return
        changes = {}
        kind = self.random.choice(["filter", "acks", "headers_only", "waiting", "subject"])
        if kind == "filter" and not consumer.resume:
            self._filter(changes, consumer.stream.name, self.random.choice(FILTERS))
            changes = {"filter_subject": None, "filter_subjects": None, **changes}
        elif kind == "acks" and consumer.policy != "none":
            changes = {"backoff": None, **self._ack_settings()}
        elif kind == "headers_only":
            changes["headers_only"] = not consumer.config.get("headers_only", False)
        elif kind == "subject" and consumer.config.get("deliver_subject"):
            changes["deliver_subject"] = f"push.{consumer.name}.{self.random.randint(0, 2)}"
        config = {**consumer.config, **changes}
        del config["start_ns"]
        config = {name: value for name, value in config.items() if value is not None}
        verb = f"CONSUMER.CREATE.{consumer.stream.name}.{consumer.name}"
        answer = self._api(verb, {"stream_name": consumer.stream.name, "config": config, "action": "update"})
        if "error" in answer:
            known = answer["error"]["err_code"]
            other = changes.get("deliver_subject") not in (None, consumer.config.get("deliver_subject"))
            if known == 10013:
                assert other and consumer.bound
            else:
                self._check_refusal(consumer.stream, config, known)
            return
        moved = changes.get("deliver_subject") not in (None, consumer.config.get("deliver_subject"))
        consumer.update(changes)
        if moved:
            subject = consumer.config["deliver_subject"].encode()
            consumer.bind(self.has_interest(subject))
        consumer.deliver()  # Before the timers, which changed waits may have made due.

    def pause(self):
        consumer = self._any_consumer()
        if consumer is None:
            return
        until = self.now_ns() + self.random.choice([-1, 3, 8]) * SECOND
        answer = self._api(
            f"CONSUMER.PAUSE.{consumer.stream.name}.{consumer.name}", {"pause_until": format_time(until)}
        )
        assert "error" not in answer
        consumer.pause(until)

    def reset(self):
        consumer = self._any_consumer()
        if consumer is None:
            return
        body = {}
        sequence = consumer.floor[1] + 1
        if consumer.config["deliver_policy"] == "all" and self._chance(0.7):
            sequence = body["seq"] = self.random.randint(1, consumer.stream.last + 1)
        answer = self._api(f"CONSUMER.RESET.{consumer.stream.name}.{consumer.name}", body)
        assert "error" not in answer, answer
        consumer.reset(sequence)

    def unpin(self):
        some = [one for one in self.consumers() if one.group == "pinned_client"]
        if some:
            consumer = self.random.choice(some)
            answer = self._api(f"CONSUMER.UNPIN.{consumer.stream.name}.{consumer.name}", {"group": "jobs"})
            assert "error" not in answer
            consumer.unpin("admin")

    def delete_message(self):
        stream = self.streams[self.random.choice(list(STREAMS))]
        if stream.messages:
            sequence = self.random.choice(list(stream.messages))
            assert self._api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence})["success"]
            stream.remove(sequence)

    def purge(self):
        stream = self.streams[self.random.choice(list(STREAMS))]
        body = {}
        if self._chance(0.6):
            body["filter"] = f"{stream.name}.{self.random.choice(SUBJECTS)}"
        if self._chance(0.5) and stream.last:
            body["seq"] = self.random.randint(1, stream.last + 1)
        assert self._api(f"STREAM.PURGE.{stream.name}", body)["success"]
        stream.purge(
            lambda one: (
                one.sequence < body.get("seq", one.sequence + 1) and one.subject == body.get("filter", one.subject)
            )
        )

    def wait(self):
        for _ in range(self.random.randint(1, 4)):
            self.world.advance(self.random.choice([0.05, 0.5, 1, 3, 11]))
            for consumer in self.consumers():
                consumer.settle()

    # Restarts

    def _has_unwanted(self):
        """Whether a message is pending that its consumer's filters, changed since, do not want.

        After a restart, the consumer learns of its removal only when it is to be redelivered.
        """
        return any(
            not one.wants(one.stream.messages[sequence].subject)
            for one in self.consumers()
            for sequence in {*one.pending, *one.exhausted}
        )

    def stop(self):
        if self._has_unwanted():
            return
        self.world.advance(0)
        for consumer in self.consumers():
            consumer.settle()
        self.world.stop()
        for consumer in self.consumers():
            consumer.restart(clean=True)
        self._compare_frames()
        self._start()

    def kill_at_rest(self):
        """The process dies when everything that it knows is written."""
        if self._has_unwanted():
            return
        for _ in range(2):
            self.world.advance(0.2)
            for consumer in self.consumers():
                consumer.settle()
        self._compare_frames()
        for consumer in self.consumers():
            consumer.restart(clean=False)
        self._crash(self.world.disk.kill)

    def started(self):
        for stream in self.streams.values():
            stream.sweep()
        self.inboxes.clear()
        self._listen()


def _by_time(frames):
    """Sort neighbouring time-outs and heartbeats: requests with one inbox end by deadline or in order of arrival."""
    ordered = []
    for is_timed, group in groupby(frames, key=lambda frame: any(status in frame[2] for status in _TIMED)):
        frames = list(group)
        ordered += sorted(frames) if is_timed else frames
    return ordered


_TIMED = (b" 408 Request Timeout", b" 100 Idle Heartbeat")
