"""How many stored messages a second does a consumer get from the server, beside nats-server?

    python benchmarks/deliver.py [--quick] [--json FILE]

A raw client reads as fast as a socket gives: it counts messages by their ack subjects and, where acknowledgements are
on, answers each with one `PUB`, written once a read. Both servers run as processes of their own with the same
configuration (a sync every two minutes, so that the disk's speed is not what is measured), in turns. Fetch asks for
1000 messages and waits until they are there; continuous keeps two requests of 2500 open and renews each when it is
half used up. The CPU time is that of the server a message, its consumer and all acknowledgements included. Growth is
ours against itself: a cost under a load, beside the same without it; 1 is the same.
"""

from __future__ import annotations

import re
import socket
import time
from functools import partial

from _harness import Report, Sample, parse_arguments, take_sample, wall_s
from _raw_client import RawClient
from _servers import KINDS, OURS, PEER, Running, server

QUESTION = "How many stored messages a second does a consumer get?"
PAYLOAD = b"x" * 128
SYNC_INTERVAL = "2m"
ROUNDS = 3
FEW, MANY = "jetlake, few", "jetlake, many"

_ACK_SUBJECT = re.compile(rb"\$JS\.ACK\.\S+")


class Client:
    """A raw client: requests for the set-up, and readers that do as little as they can."""

    def __init__(self, port: int) -> None:
        self._raw = RawClient(port)
        self._socket = self._raw.socket
        self._socket.sendall(b"SUB _INBOX.m 3\r\n")
        self._raw.ping()
        self.request, self.close = self._raw.request, self._raw.close

    def fill(self, stream: str, storage: str, count: int, subjects: int = 100) -> None:
        """A stream with so many messages."""
        prefix = stream.lower()
        config = {"name": stream, "subjects": [f"{prefix}.*"], "storage": storage}
        self.request(f"$JS.API.STREAM.CREATE.{stream}", config)
        lines = [
            b"PUB %b.%d _INBOX.b.p %d\r\n%b\r\n" % (prefix.encode(), index, len(PAYLOAD), PAYLOAD)
            for index in range(subjects)
        ]
        for start in range(0, count, 1000):
            chunk = [lines[index % subjects] for index in range(start, min(start + 1000, count))]
            self._publish_acked(b"".join(chunk), len(chunk))

    def _publish_acked(self, data: bytes, count: int) -> None:
        """Publish messages that ask for an acknowledgement, and wait for all of them."""
        self._raw.send_and_count([data], b"MSG _INBOX.b.p ", count)

    def consumer(self, stream: str, name: str, **config: object) -> None:
        body = {"stream_name": stream, "config": {"durable_name": name, "max_ack_pending": 100_000, **config}}
        self.request(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body)

    def info(self, stream: str, name: str) -> dict[str, int]:
        return self.request(f"$JS.API.CONSUMER.INFO.{stream}.{name}")  # type: ignore[return-value]

    def take(self, ask: bytes, count: int) -> list[bytes]:
        """Ask, and return the ack subjects of so many messages."""
        self._socket.sendall(ask)
        data = b""
        while data.count(b" $JS.ACK.") < count or not data.endswith(b"\r\n"):
            received = self._socket.recv(1 << 16)
            if not received:
                raise SystemExit("the server closed the connection")
            data += received
        return [bytes(subject) for subject in _ACK_SUBJECT.findall(data)]

    def publish(self, subjects: list[bytes]) -> None:
        """An empty message to each of these subjects."""
        self._socket.sendall(b"".join(b"PUB %b 0\r\n\r\n" % subject for subject in subjects))

    def publish_acked(self, subject: str, count: int) -> float:
        """Publish with a reply, a hundred in flight; acknowledged messages a second."""
        line = b"PUB %b _INBOX.b.p %d\r\n%b\r\n" % (subject.encode(), len(PAYLOAD), PAYLOAD)
        started = time.perf_counter()
        for _ in range(0, count, 100):
            self._publish_acked(line * 100, 100)
        return count / (time.perf_counter() - started)

    def pull(self, stream: str, name: str, batch: int) -> bytes:
        """The bytes of a pull request."""
        body = b'{"batch":%d}' % batch
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        return b"PUB %b _INBOX.m %d\r\n%b\r\n" % (subject, len(body), body)

    def fetch(self, stream: str, name: str, count: int, batch: int = 1000, *, ack: bool = False) -> float:
        """Ask for a batch, take it, ask for the next; messages a second."""
        ask = self.pull(stream, name, batch)
        reader = _Reader(self._socket, ack=ack)
        started = time.perf_counter()
        for _ in range(0, count, batch):
            self._socket.sendall(ask)
            reader.take(batch)
        return count / (time.perf_counter() - started)

    def consume(self, stream: str, name: str, count: int, batch: int = 2500, *, ack: bool = False) -> float:
        """Keep two requests open, and renew one whenever half of what was asked for has come; messages a second."""
        ask = self.pull(stream, name, batch)
        reader = _Reader(self._socket, ack=ack)
        started = time.perf_counter()
        self._socket.sendall(ask + ask)
        asked = 2 * batch
        while reader.seen < count:
            reader.read()
            while asked - reader.seen <= batch and asked < count:
                self._socket.sendall(ask)
                asked += batch
        return count / (time.perf_counter() - started)


class _Reader:
    """Counts messages, and acknowledges them when told to."""

    def __init__(self, connection: socket.socket, *, ack: bool) -> None:
        self._socket = connection
        self._ack = ack
        self._buffer = bytearray(1 << 20)
        self._tail = b""
        self.seen = 0

    def take(self, count: int) -> None:
        """Read until so many more messages are there."""
        goal = self.seen + count
        while self.seen < goal:
            self.read()

    def read(self) -> None:
        size = self._socket.recv_into(self._buffer)
        if not size:
            raise SystemExit("the server closed the connection")
        data = self._tail + self._buffer[:size]
        # Whatever follows the last line break may be half a subject.
        whole = data.rfind(b"\n") + 1
        self._tail = bytes(data[whole:])
        data = data[:whole]
        if not self._ack:
            self.seen += data.count(b" $JS.ACK.")
            return
        subjects = _ACK_SUBJECT.findall(data)
        self.seen += len(subjects)
        if subjects:
            self._socket.sendall(b"PUB " + b" 0\r\n\r\nPUB ".join(subjects) + b" 0\r\n\r\n")


# Side by side


def side_by_side(report: Report, count: int) -> None:
    with server(PEER, SYNC_INTERVAL) as theirs, server(OURS, SYNC_INTERVAL) as ours:
        pids = {PEER: theirs.pid, OURS: ours.pid}
        clients = {PEER: Client(theirs.port), OURS: Client(ours.port)}
        number = 0
        for storage in ("memory", "file"):
            stream = storage.upper()
            for client in clients.values():
                client.fill(stream, storage, count)
            for way in ("fetch", "continuous"):
                for ack in (False, True):
                    found: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
                    for _ in range(ROUNDS):
                        number += 1
                        for kind, client in clients.items():
                            run = partial(deliver, client, stream, f"c{number}", way, count, ack=ack)
                            found[kind].append(take_sample(pids[kind], count, run))
                    case = f"{way}, {'with' if ack else 'without'} acks, {storage}"
                    report.add_samples(case, case.replace(", ", "_").replace(" ", "_"), found)
        for client in clients.values():
            client.close()


def deliver(client: Client, stream: str, name: str, way: str, count: int, *, ack: bool) -> float:
    """One run through the whole stream with a new consumer; messages a second."""
    client.consumer(stream, name, ack_policy="explicit" if ack else "none")
    run = client.fetch if way == "fetch" else client.consume
    rate = run(stream, name, count, ack=ack)
    # What is still to be acknowledged must not be paid for by the next one.
    while client.info(stream, name)["num_ack_pending"]:
        time.sleep(0.005)
    client.request(f"$JS.API.CONSUMER.DELETE.{stream}.{name}")
    return rate


# Growth


def growth(report: Report, scale: int) -> None:
    with server(OURS, SYNC_INTERVAL) as running:
        client = Client(running.port)
        pending_acks(report, running, client, scale)
        filtered(report, running, client, scale)
        many_consumers(report, running, client, scale)
        client.close()


def pending_acks(report: Report, running: Running, client: Client, scale: int) -> None:
    """Acknowledging from the far end while few or many messages are pending."""
    many = 100_000 // scale
    client.fill("PENDING", "memory", many)
    found: dict[str, list[Sample]] = {FEW: [], MANY: []}

    def acknowledge(name: str, subjects: list[bytes]) -> float:
        started = time.perf_counter()
        client.publish(subjects[-900:][::-1])
        while client.info("PENDING", name)["num_ack_pending"] > len(subjects) - 900:
            pass
        return 900 / (time.perf_counter() - started)

    for number in range(9):
        for column, pending in ((FEW, 1000), (MANY, many)):
            name = f"p{pending}-{number}"
            client.consumer("PENDING", name, ack_policy="explicit", ack_wait=3600 * 10**9)
            subjects = client.take(client.pull("PENDING", name, pending), pending)
            # What follows deliveries is done within a tenth of a second, and grows with them: acks must not pay for it.
            time.sleep(0.3)
            found[column].append(take_sample(running.pid, 900, partial(acknowledge, name, subjects)))
            client.request(f"$JS.API.CONSUMER.DELETE.PENDING.{name}")
    report.add_samples(f"acks/s with 1,000 and {many:,} pending", "ack_growth", found)


def filtered(report: Report, running: Running, client: Client, scale: int) -> None:
    """The next message of a filter that one subject of very many passes."""
    many = 100_000 // scale
    found: dict[str, list[Sample]] = {FEW: [], MANY: []}

    def take_next(stream: str, subjects: int, prefix: str) -> None:
        for number in range(50):
            name = f"{prefix}{number}"
            client.consumer(stream, name, filter_subject=f"{stream.lower()}.{subjects - 1 - number}")
            client.take(client.pull(stream, name, 1), 1)

    for column, subjects in ((FEW, 100), (MANY, many)):
        client.fill(f"F{subjects}", "memory", many * 2, subjects)
        for prefix in "abc"[:ROUNDS]:
            run = partial(take_next, f"F{subjects}", subjects, prefix)
            found[column].append(take_sample(running.pid, 50, lambda run=run: 50 / wall_s(run)))  # type: ignore[misc]
    report.add_samples(f"next/s of one in 100 and {many:,} subjects", "filter_growth", found)


def many_consumers(report: Report, running: Running, client: Client, scale: int) -> None:
    """Publishing into a stream with a thousand consumers, all of which wait for messages."""
    many = 1000 // scale
    found: dict[str, list[Sample]] = {FEW: [], MANY: []}
    for column, consumers in ((FEW, 1), (MANY, many)):
        stream = f"M{consumers}"
        client.fill(stream, "memory", 1)
        for number in range(consumers):
            client.consumer(stream, f"m{number}", deliver_policy="new")
        publish = partial(client.publish_acked, stream.lower() + ".0", 2000)
        found[column] += [take_sample(running.pid, 2000, publish) for _ in range(ROUNDS)]
    report.add_samples(f"publish/s with 1 and {many:,} consumers", "consumers_growth", found)


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    side_by_side(report, 40_000 if arguments.quick else 400_000)
    growth(report, 10 if arguments.quick else 1)
    report.finish()


if __name__ == "__main__":
    main()
