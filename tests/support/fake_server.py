"""A server without sockets: it takes what the client writes apart, answers by a script, and breaks when told to."""

import asyncio
import json

import jetlake
from jetlake.client.connection.handshake import ServerInfo
from jetlake.model.encoding.codec import decode
from jetlake.model.requests import PullRequest
from jetlake.protocol.frames import Ping, Pub, Sub, Unsub
from jetlake.protocol.parser import ClientParser, ServerParser


class FakeTransport:
    def __init__(self):
        self.reading = True
        self.unsent = 0

    def get_write_buffer_size(self):
        return self.unsent

    def is_reading(self):
        return self.reading

    def is_closing(self):
        return False

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class FakeWire:
    """Stands in for one TCP connection; while `is_cut`, what is written is lost and nothing comes."""

    def __init__(self, server, connection, on_lost):
        self._server = server
        self._parser = ServerParser()
        self._client_parser = ClientParser(message_type=connection.message_type, message_runs=True)
        self._on_frames = connection.receive
        self._on_lost = on_lost
        self.transport = FakeTransport()
        self.is_congested = False
        self.frames = []
        self.writes = []
        self.subscriptions = {}
        self.alive = True
        self.is_cut = False

    def write(self, data):
        if not data:
            return
        self.writes.append(data)
        if self.is_cut:
            return
        for frame in self._parser.feed(data):
            self.frames.append(frame)
            if isinstance(frame, Sub):
                self.subscriptions[frame.subject] = frame.sid
            elif isinstance(frame, Unsub) and not frame.max:
                self.subscriptions = {key: sid for key, sid in self.subscriptions.items() if sid != frame.sid}
            self._server.heard(self, frame)
        assert self._parser.error is None, self._parser.error

    async def writable(self):
        pass

    async def written(self):
        return not self.transport.unsent

    def start(self):
        pass

    def deliver(self, data):
        """Let bytes come from the server, as one read."""
        if self.alive and not self.is_cut:
            self._on_frames(self._client_parser.feed(data))

    def lose(self, error=None):
        """Break the connection."""
        if self.alive:
            self.alive = False
            self._on_lost(self, error)

    def abort(self, error):
        self.lose(error)

    def close(self):
        self.alive = False


class FakeServer:
    """The script: what API calls are answered with, and whether connecting works."""

    def __init__(self):
        self.wires = []
        self.is_down = False
        self.answers = {}
        self.info = ServerInfo(headers=True, max_payload=1024 * 1024, version="2.15.1")
        self.clients = []
        self.answer_pings = True
        self.errors = []
        self.events = []

    async def open_wire(self, options, address, connection, on_lost):
        await asyncio.sleep(0)
        if self.is_down:
            raise ConnectionRefusedError("down")
        wire = FakeWire(self, connection, on_lost)
        self.wires.append(wire)
        return wire, self.info

    async def connect(self, **options):
        options.setdefault("on_error", self.errors.append)
        client = await jetlake.connect("nats://fake:4222", **options)
        self.clients.append(client)
        return client

    async def close(self):
        for client in self.clients:
            await client.close()

    @property
    def wire(self):
        """The connection in use."""
        return self.wires[-1]

    def heard(self, wire, frame):
        if isinstance(frame, Ping):
            if self.answer_pings:
                asyncio.get_running_loop().call_soon(wire.deliver, b"PONG\r\n")
        elif isinstance(frame, Pub) and frame.reply:
            answer = self.answers.get(frame.subject.decode())
            if answer is not None:
                body = answer(frame) if callable(answer) else answer
                if body is not None:
                    text = body if isinstance(body, bytes) else json.dumps(body).encode()
                    asyncio.get_running_loop().call_soon(self.reply, wire, frame.reply, text)

    def reply(self, wire, subject, payload, header=b""):
        """Send to whoever subscribes to the subject, wildcards included."""
        sid = self.sid(wire, subject)
        if sid is not None:
            wire.deliver(message(subject, sid, b"", payload, header))

    def sid(self, wire, subject):
        for pattern, sid in wire.subscriptions.items():
            if pattern == subject or (pattern.endswith(b".*") and subject.startswith(pattern[:-1])):
                return sid
        return None

    # What the client did

    def published(self, subject):
        """The messages that were published to a subject, on all connections."""
        return [
            frame
            for wire in self.wires
            for frame in wire.frames
            if isinstance(frame, Pub) and frame.subject == subject.encode()
        ]

    def pulls(self, stream="S", consumer="C"):
        """The pull requests so far."""
        frames = self.published(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")
        return [decode(PullRequest, frame.payload) for frame in frames]

    def pull_reply(self, stream="S", consumer="C"):
        """The reply subject of the last pull request."""
        return self.published(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")[-1].reply

    # What the server does

    def deliver(self, inbox, *frames):
        """Send frames to the subscription of an inbox as one read; each is a function of the sid."""
        sid = self.sid(self.wire, inbox)
        assert sid is not None, f"nobody subscribes to {inbox}"
        self.wire.deliver(b"".join(frame(sid) for frame in frames))

    def serve_consumer(self, stream="S", consumer="C", **config):
        """Answer CONSUMER.INFO."""
        self.answers[f"$JS.API.CONSUMER.INFO.{stream}.{consumer}"] = consumer_info(stream, consumer, **config)

    def serve_no_leader(self, stream="S", consumer="C"):
        """Answer CONSUMER.INFO as a cluster without a quorum does."""
        self.answers[f"$JS.API.CONSUMER.INFO.{stream}.{consumer}"] = {
            "type": "io.nats.jetstream.api.v1.consumer_info_response",
            "error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"},
        }

    def serve_nobody(self, stream="S", consumer="C"):
        """Tell who asks for CONSUMER.INFO that nobody listens."""

        def refuse(frame):
            asyncio.get_running_loop().call_soon(self.reply, self.wire, frame.reply, b"", b"NATS/1.0 503\r\n\r\n")

        self.answers[f"$JS.API.CONSUMER.INFO.{stream}.{consumer}"] = refuse

    def remove_consumer(self, stream="S", consumer="C"):
        self.answers[f"$JS.API.CONSUMER.INFO.{stream}.{consumer}"] = {
            "type": "io.nats.jetstream.api.v1.consumer_info_response",
            "error": {"code": 404, "err_code": 10014, "description": "consumer not found"},
        }


def consumer_info(stream="S", consumer="C", kind="info", delivered=0, push_bound=False, **config):
    return {
        "type": f"io.nats.jetstream.api.v1.consumer_{kind}_response",
        "stream_name": stream,
        "name": consumer,
        "created": "2026-11-15T00:00:00Z",
        "config": {"name": consumer, "ack_policy": "explicit", **config},
        "delivered": {"consumer_seq": 0, "stream_seq": delivered},
        "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
        "push_bound": push_bound,
        "ts": "2026-11-15T00:00:00Z",
    }


def message(subject, sid, reply, payload, header=b""):
    reply = reply + b" " if reply else b""
    if header:
        sizes = b"%d %d" % (len(header), len(header) + len(payload))
        return b"HMSG %b %b %b%b\r\n%b%b\r\n" % (subject, sid, reply, sizes, header, payload)
    return b"MSG %b %b %b%d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)


def delivery(number, payload=b"x", stream="S", consumer="C", stream_seq=None, header=b"", subject=b"s.1", pending=0):
    """A message that a consumer delivers."""
    seq = number if stream_seq is None else stream_seq
    reply = f"$JS.ACK.{stream}.{consumer}.1.{seq}.{number}.1790000000000000000.{pending}".encode()
    return lambda sid: message(subject, sid, reply, payload, header)


def status(number, description, inbox=b"_INBOX.x", **headers):
    """A status message; keywords become headers with dashes."""
    lines = [f"NATS/1.0 {number} {description}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    block = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return lambda sid: message(inbox, sid, b"", b"", block)


def ended(number, description, messages, size=0, inbox=b"_INBOX.x"):
    """A status that ends a pull and says how much of it was left."""
    return status(number, description, inbox, Nats_Pending_Messages=messages, Nats_Pending_Bytes=size)


async def consumer_of(fake, **config):
    """A consumer that knows of a pull."""
    fake.serve_consumer(**config)
    fake.answers["$JS.API.CONSUMER.INFO.S.C"]["num_waiting"] = 1
    client = await fake.connect()
    return await client.jetstream().consumer("S", "C")


def acks(fake):
    return [
        frame.payload
        for wire in fake.wires
        for frame in wire.frames
        if getattr(frame, "subject", b"").startswith(b"$JS.ACK.")
    ]
