"""A JetStream in memory, as small as source and sink need it, behind a socket that is none.

Time is a number that the owner moves. What a server does by itself (limits, superseding, interest) happens at once.
"""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from dataclasses import dataclass, field
from functools import cache
from random import Random

from jetlake.model.encoding.times import format_time, parse_time
from jetlake.protocol.headers import find_value
from jetlake.protocol.subjects import compile_matcher

_API = "$JS.API."
_TYPE = "io.nats.jetstream.api.v1."
_INFO = b'{"version":"2.15.1","headers":true,"max_payload":1048576,"jetstream":true,"proto":1}'
NOT_FOUND = {"code": 404, "err_code": 10037, "description": "no message found"}
WRONG_LAST = {"code": 400, "err_code": 10071, "description": "wrong last sequence"}
NO_STREAM = {"code": 404, "err_code": 10059, "description": "stream not found"}
NO_CONSUMER = {"code": 404, "err_code": 10014, "description": "consumer not found"}


@dataclass
class Message:
    sequence: int
    subject: str
    header: bytes
    data: bytes
    time_ns: int


@dataclass
class Consumer:
    config: dict
    next: int = 1


@dataclass
class Stream:
    config: dict
    created_ns: int
    messages: dict[int, Message] = field(default_factory=dict)
    first: int = 0
    # As nats-server 2.15 loses the subjects of an interest stream that was purged behind messages nobody wanted.
    has_lost_index: bool = False
    last: int = 0
    last_ns: int = 0
    ids: dict[bytes, int] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)

    def remove(self, sequences) -> None:
        for sequence in list(sequences):
            self.messages.pop(sequence, None)
        self.first = min(self.messages, default=self.last + 1) if self.last else 0

    def matching(self, subjects, first=1):
        match = matcher(subjects)
        return [message for seq, message in sorted(self.messages.items()) if seq >= first and match(message.subject)]

    def from_sequence(self, subject, first):
        """What a get of the next message by subject finds; nothing from the head on where the index is lost."""
        if self.has_lost_index and first <= self.first and subject not in ("", ">"):
            return []
        return self.matching([subject] if subject else [], first)


_compiled = cache(compile_matcher)


def matcher(subjects):
    matchers = [_compiled(subject.encode()) for subject in subjects]
    return lambda subject: not matchers or any(match(subject.encode()) for match in matchers)


def filters_of(config) -> list[str]:
    return config.get("filter_subjects") or ([config["filter_subject"]] if config.get("filter_subject") else [])


class FakeJetStream:
    """The server; `connect` gives sockets to it."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.now_ns = 1_800_000_000_000_000_000
        self.loses_indexes = False
        # Chooses who answers a direct get, where every stream has mirrors.
        self.mirrors: Random | None = None

    def connect(self) -> FakeSocket:
        return FakeSocket(self)

    # What others do

    def create(self, config: dict) -> None:
        self.now_ns += 1_000_000
        filled = {"retention": "limits", "storage": "file", "num_replicas": 1, **config}
        is_lossy = self.loses_indexes and filled["retention"] == "interest"
        self.streams[config["name"]] = Stream(filled, self.now_ns, has_lost_index=is_lossy)

    def store(self, stream: Stream, subject: str, header: bytes, data: bytes) -> int:
        stream.last += 1
        stream.last_ns = self.now_ns
        config = stream.config
        if config["retention"] == "interest" and not any(
            matcher(filters_of(consumer.config))(subject) for consumer in stream.consumers.values()
        ):
            stream.remove(())
            return stream.last
        stream.messages[stream.last] = Message(stream.last, subject, header, data, self.now_ns)
        stream.remove(())
        keep = config.get("max_msgs_per_subject", 0)
        if keep > 0:
            same = [seq for seq, message in sorted(stream.messages.items()) if message.subject == subject]
            stream.remove(same[:-keep])
        limit = config.get("max_msgs", 0)
        if limit > 0:
            stream.remove(sorted(stream.messages)[:-limit])
        return stream.last

    def expire(self) -> None:
        for stream in self.streams.values():
            age = stream.config.get("max_age", 0)
            if age > 0:
                stream.remove([seq for seq, message in stream.messages.items() if message.time_ns <= self.now_ns - age])

    def direct_reader(self, name: str) -> Stream | None:
        """The stream, or a mirror of it: a whole one, one that holds less, one that lags, or one of an older stream."""
        stream = self.streams.get(name)
        if stream is None or self.mirrors is None or self.mirrors.random() < 0.4:
            return stream
        mirror = copy.deepcopy(stream)
        mirror.config["name"] = f"COPY_{name}"
        lack = self.mirrors.choice(["nothing", "limited", "filtered", "lags", "older"])
        present = sorted(mirror.messages)
        if lack == "limited":
            mirror.remove(present[:-2])
        elif lack == "filtered":
            mirror.remove([sequence for sequence in present if not mirror.messages[sequence].subject.endswith(".a")])
        elif lack == "lags":
            mirror.remove(present[len(present) // 2 :])
        elif lack == "older":
            for message in mirror.messages.values():
                message.data = b"older"
        return mirror

    def snapshot(self, name: str) -> Stream:
        return copy.deepcopy(self.streams[name])

    # Publishing

    def publish(self, subject: str, header: bytes, data: bytes):
        """The acknowledgement, or None when no stream takes the subject."""
        for name, stream in self.streams.items():
            if matcher(stream.config["subjects"])(subject):
                message_id = find_value(header, b"Nats-Msg-Id") if header else None
                if message_id is not None and message_id in stream.ids:
                    return {"stream": name, "seq": stream.ids[message_id], "duplicate": True}
                expected = find_value(header, b"Nats-Expected-Last-Subject-Sequence") if header else None
                if expected is not None:
                    last = max(
                        (seq for seq, message in stream.messages.items() if message.subject == subject), default=0
                    )
                    if int(expected) != last:
                        return {"stream": name, "seq": 0, "error": WRONG_LAST}
                sequence = self.store(stream, subject, header, data)
                if message_id is not None:
                    stream.ids[message_id] = sequence
                return {"stream": name, "seq": sequence}
        return None

    # The API: every verb answers with a reply's fields, or with an error

    def answer(self, subject: str, body: dict):
        verb, _, names = next(
            (verb, "", subject[len(_API + verb) + 1 :].split(".")) for verb in _VERBS if subject.startswith(_API + verb)
        )
        stream = self.streams.get(names[0])
        if verb == "STREAM.NAMES":
            found = [name for name, one in self.streams.items() if matcher(one.config["subjects"])(body["subject"])]
            return {"type": _TYPE + "stream_names_response", "streams": found, "total": len(found)}
        if verb == "STREAM.CREATE":
            self.create(body)
            return self._info(self.streams[names[0]], body, "stream_create")
        if stream is None:
            return {"type": _TYPE + "x_response", "error": NO_STREAM}
        handler = _VERBS[verb]
        return handler(self, stream, body, *names[1:])

    def _info(self, stream: Stream, body: dict, kind: str = "stream_info") -> dict:
        times = {seq: message.time_ns for seq, message in stream.messages.items()}
        state = {
            "messages": len(times),
            "bytes": sum(30 + len(message.data) for message in stream.messages.values()),
            "first_seq": stream.first,
            "last_seq": stream.last,
            "last_ts": format_time(stream.last_ns),
            "consumer_count": len(stream.consumers),
            "num_deleted": max(stream.last - stream.first + 1 - len(times), 0) if times else 0,
        }
        if body.get("deleted_details"):
            state["deleted"] = [seq for seq in range(stream.first, stream.last + 1) if seq not in times]
        return {
            "type": f"{_TYPE}{kind}_response",
            "config": stream.config,
            "created": format_time(stream.created_ns),
            "state": state,
            "ts": format_time(self.now_ns),
        }

    def _purge(self, stream: Stream, body: dict) -> dict:
        below = body.get("seq") or stream.last + 1
        gone = [
            m.sequence for m in stream.matching([body["filter"]] if body.get("filter") else []) if m.sequence < below
        ]
        stream.remove(gone)
        return {"type": _TYPE + "stream_purge_response", "success": True, "purged": len(gone)}

    def _get(self, stream: Stream, body: dict) -> dict:
        found = None
        if "start_time" in body:
            later = [m for m in stream.matching([]) if m.time_ns >= parse_time(body["start_time"])]
            found = later[0] if later else None
        elif "last_by_subj" in body:
            found = next(iter(stream.matching([body["last_by_subj"]])[::-1]), None)
        elif "next_by_subj" in body:
            found = next(iter(stream.from_sequence(body["next_by_subj"], body.get("seq", 1))), None)
        else:
            found = stream.messages.get(body["seq"])
        kind = _TYPE + "stream_msg_get_response"
        if found is None:
            return {"type": kind, "error": NOT_FOUND}
        message = {"subject": found.subject, "seq": found.sequence, "time": format_time(found.time_ns)}
        if found.data:
            message["data"] = b64encode(found.data).decode()
        if found.header:
            message["hdrs"] = b64encode(found.header).decode()
        return {"type": kind, "message": message}

    def _create_consumer(self, stream: Stream, body: dict, name: str, *_) -> dict:
        config = body["config"]
        known = stream.consumers.get(name)
        if known is None:
            first = config.get("opt_start_seq") or 1
            known = stream.consumers[name] = Consumer(config, first)
        known.config = config
        return self._consumer(stream, name, "consumer_create")

    def _consumer_info(self, stream: Stream, body: dict, name: str) -> dict:
        return self._consumer(stream, name, "consumer_info")

    def _consumer(self, stream: Stream, name: str, kind: str) -> dict:
        consumer = stream.consumers.get(name)
        if consumer is None:
            return {"type": f"{_TYPE}{kind}_response", "error": NO_CONSUMER}
        pending = stream.matching(filters_of(consumer.config), consumer.next)
        return {
            "type": f"{_TYPE}{kind}_response",
            "stream_name": stream.config["name"],
            "name": name,
            "config": consumer.config,
            "num_pending": len(pending),
        }

    def _delete_consumer(self, stream: Stream, body: dict, name: str) -> dict:
        stream.consumers.pop(name, None)
        return {"type": _TYPE + "consumer_delete_response", "success": True}

    def _reset(self, stream: Stream, body: dict, name: str) -> dict:
        consumer = stream.consumers.get(name)
        if consumer is None:
            return {"type": _TYPE + "consumer_reset_response", "error": NO_CONSUMER}
        consumer.next = body["seq"]
        if stream.config["retention"] == "interest":
            done = [m.sequence for m in stream.matching(filters_of(consumer.config)) if m.sequence < body["seq"]]
            stream.remove(done)
        return {**self._consumer(stream, name, "consumer_reset"), "reset_seq": body["seq"]}


_VERBS = {
    "STREAM.NAMES": None,
    "STREAM.CREATE": None,
    "STREAM.INFO": FakeJetStream._info,
    "STREAM.PURGE": FakeJetStream._purge,
    "STREAM.MSG.GET": FakeJetStream._get,
    "CONSUMER.CREATE": FakeJetStream._create_consumer,
    "CONSUMER.INFO": FakeJetStream._consumer_info,
    "CONSUMER.DELETE": FakeJetStream._delete_consumer,
    "CONSUMER.RESET": FakeJetStream._reset,
}


class FakeSocket:
    """One client's end: what it sends is served at once, and the answers wait to be received."""

    def __init__(self, server: FakeJetStream) -> None:
        self._server = server
        self._in = bytearray()
        self._out = bytearray(b"INFO " + _INFO + b"\r\n")
        self._subscriptions: dict[bytes, bytes] = {}

    def settimeout(self, seconds) -> None:
        pass

    def setsockopt(self, *arguments) -> None:
        pass

    def close(self) -> None:
        pass

    def recv(self, size: int) -> bytes:
        if not self._out:
            raise TimeoutError
        data = bytes(self._out[:size])
        del self._out[:size]
        return data

    def recv_into(self, buffer) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data) -> None:
        self._in += data
        while (end := self._in.find(b"\r\n")) >= 0:
            words = bytes(self._in[:end]).split()
            size = int(words[-1]) + 2 if words[0] in (b"PUB", b"HPUB") else 0
            if len(self._in) < end + 2 + size:
                return
            body = bytes(self._in[end + 2 : end + size])
            del self._in[: end + 2 + size]
            self._serve(words, body)

    def _serve(self, words: list[bytes], body: bytes) -> None:
        verb = words[0]
        if verb == b"PING":
            self._out += b"PONG\r\n"
        elif verb == b"SUB":
            self._subscriptions[words[-1]] = words[1]
        elif verb == b"UNSUB" and len(words) == 2:
            self._subscriptions.pop(words[1], None)
        elif verb == b"PUB":
            self._message(words[1], words[2] if len(words) == 4 else b"", b"", body)
        elif verb == b"HPUB":
            length = int(words[-2])
            self._message(words[1], words[2] if len(words) == 5 else b"", body[:length], body[length:])

    def _message(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        text = subject.decode()
        server = self._server
        if text.startswith(_API + "DIRECT.GET."):
            self._direct(server.direct_reader(text.split(".")[-1]), reply, json.loads(body))
        elif text.startswith(_API + "CONSUMER.MSG.NEXT."):
            self._pull(text.split(".")[-2], text.split(".")[-1], reply, json.loads(body))
        elif text.startswith(_API):
            self._send(reply, b"", json.dumps(server.answer(text, json.loads(body) if body else {})).encode())
        else:
            acknowledged = server.publish(text, header, body)
            if acknowledged is None:
                self._send(reply, b"NATS/1.0 503\r\n\r\n", b"")
            else:
                self._send(reply, b"", json.dumps(acknowledged).encode())

    def _send(self, subject: bytes, header: bytes, data: bytes, reply: bytes = b"") -> None:
        for sid, pattern in self._subscriptions.items():
            if pattern == subject or (subject and _compiled(pattern)(subject)):
                place = b" ".join(word for word in (subject, sid, reply) if word)
                if header:
                    self._out += b"HMSG %b %d %d\r\n%b%b\r\n" % (
                        place,
                        len(header),
                        len(header) + len(data),
                        header,
                        data,
                    )
                else:
                    self._out += b"MSG %b %d\r\n%b\r\n" % (place, len(data), data)
                return

    def _direct(self, stream: Stream | None, reply: bytes, body: dict) -> None:
        if stream is None:
            self._send(reply, b"NATS/1.0 503\r\n\r\n", b"")
            return
        found = stream.from_sequence(body.get("next_by_subj", ""), body.get("seq", 1))
        last = 0
        for message in found[: body.get("batch", 1)]:
            own = message.header[:-2] if message.header else b"NATS/1.0\r\n"
            lines = (
                f"Nats-Stream: {stream.config['name']}\r\nNats-Subject: {message.subject}\r\n"
                f"Nats-Sequence: {message.sequence}\r\nNats-Time-Stamp: {format_time(message.time_ns)}\r\n"
                f"Nats-Num-Pending: 0\r\nNats-Last-Sequence: {last}\r\n\r\n"
            )
            self._send(reply, own + lines.encode(), message.data)
            last = message.sequence
        if not found:
            self._send(reply, b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")
        elif "batch" in body:
            self._send(reply, b"NATS/1.0 204 EOB\r\n\r\n", b"")

    def _pull(self, stream_name: str, name: str, reply: bytes, body: dict) -> None:
        stream = self._server.streams.get(stream_name)
        consumer = stream.consumers.get(name) if stream is not None else None
        if stream is None or consumer is None:
            self._send(reply, b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b"")
            return
        found = stream.matching(filters_of(consumer.config), consumer.next)
        wanted = found[: body["batch"]]
        for number, message in enumerate(wanted):
            left = len(found) - number - 1
            subject = f"$JS.ACK.{stream_name}.{name}.1.{message.sequence}.{number + 1}.{message.time_ns}.{left}"
            header, data = message.header, message.data
            if consumer.config.get("headers_only"):
                header = (header[:-2] if header else b"NATS/1.0\r\n") + b"Nats-Msg-Size: %d\r\n\r\n" % len(data)
                data = b""
            self._delivery(reply, message.subject.encode(), subject.encode(), header, data)
            consumer.next = message.sequence + 1
        if len(wanted) < body["batch"]:
            self._send(reply, b"NATS/1.0 404 No Messages\r\n\r\n", b"")

    def _delivery(self, inbox: bytes, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        for sid, pattern in self._subscriptions.items():
            if pattern == inbox:
                if header:
                    sizes = b"%d %d" % (len(header), len(header) + len(data))
                    self._out += b"HMSG %b %b %b %b\r\n%b%b\r\n" % (subject, sid, reply, sizes, header, data)
                else:
                    self._out += b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(data), data)
                return
