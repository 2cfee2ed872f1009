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

import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from _harness import Pace, Report, measure_pace, pace_columns, parse_arguments

QUESTION = "How many stored messages a second does a consumer get?"
PAYLOAD = b"x" * 128
BIN = Path(sys.executable).parent
COMMANDS = {"nats-server": [str(BIN / "nats-server")], "jetlake": [str(BIN / "jetlake"), "serve"]}

_PING = b"PING\r\n"
_ACK_SUBJECT = re.compile(rb"\$JS\.ACK\.\S+")


@contextmanager
def server(kind: str) -> Iterator[tuple[int, int]]:
    """A server of that kind in a process of its own; gives its port and process id."""
    folder = Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "server.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{folder}", max_file: 20GB, max_mem: 2GB, sync_interval: "2m" }}\n'
    )
    process = subprocess.Popen([*COMMANDS[kind], "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{kind} did not start") from None
                time.sleep(0.02)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


class Client:
    """A raw client: requests for the set-up, and readers that do as little as they can."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        self._socket.sendall(
            b"CONNECT " + json.dumps(options).encode() + b"\r\nSUB _INBOX.b.* 2\r\nSUB _INBOX.m 3\r\nPING\r\n"
        )
        self._read_until(b"PONG\r\n")

    def close(self) -> None:
        self._socket.close()

    def _read_until(self, end: bytes) -> bytes:
        data = b""
        while end not in data:
            data += self._receive()
        return data

    def _receive(self) -> bytes:
        """What there is to read, without a PING behind it, which is answered."""
        data = self._socket.recv(1 << 16)
        if not data:
            raise SystemExit("the server closed the connection")
        if data.endswith(_PING):
            self._socket.sendall(b"PONG\r\n")
        return data.removesuffix(_PING)

    def request(self, subject: str, body: object = None) -> dict[str, object]:
        """One API request and its JSON answer."""
        payload = b"" if body is None else json.dumps(body).encode()
        self._socket.sendall(b"PUB %b _INBOX.b.1 %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        data = b""
        while True:
            data += self._receive()
            start = data.find(b"MSG _INBOX.b.1 2 ")
            end = data.find(b"\r\n", start)
            if start >= 0 and end >= 0:
                size = int(data[start + 17 : end])
                if len(data) >= end + 2 + size + 2:
                    answer: dict[str, object] = json.loads(data[end + 2 : end + 2 + size])
                    if "error" in answer:
                        raise SystemExit(f"{subject}: {answer['error']}")
                    return answer

    def fill(self, stream: str, storage: str, count: int, subjects: int = 100) -> None:
        """A stream with so many messages."""
        prefix = stream.lower()
        config = {"name": stream, "subjects": [f"{prefix}.*"], "storage": storage}
        self.request(f"$JS.API.STREAM.CREATE.{stream}", config)
        lines = [
            b"PUB %b.%d _INBOX.b.9 %d\r\n%b\r\n" % (prefix.encode(), index, len(PAYLOAD), PAYLOAD)
            for index in range(subjects)
        ]
        for start in range(0, count, 1000):
            chunk = [lines[index % subjects] for index in range(start, min(start + 1000, count))]
            self._publish_acked(b"".join(chunk), len(chunk))

    def _publish_acked(self, data: bytes, count: int) -> None:
        """Publish messages that ask for an acknowledgement, and wait for all of them."""
        self._socket.sendall(data)
        answers = b""
        while answers.count(b"MSG _INBOX.b.9 ") < count or not answers.endswith(b"}\r\n"):
            answers += self._receive()

    def state(self, stream: str) -> dict[str, int]:
        return self.request(f"$JS.API.STREAM.INFO.{stream}")["state"]  # type: ignore[return-value]

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
            data += self._receive()
        return [bytes(subject) for subject in _ACK_SUBJECT.findall(data)]

    def publish(self, subjects: list[bytes]) -> None:
        """An empty message to each of these subjects."""
        self._socket.sendall(b"".join(b"PUB %b 0\r\n\r\n" % subject for subject in subjects))

    def publish_acked(self, subject: str, count: int) -> float:
        """Publish with a reply, a hundred in flight; acknowledged messages a second."""
        line = b"PUB %b _INBOX.b.9 %d\r\n%b\r\n" % (subject.encode(), len(PAYLOAD), PAYLOAD)
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


def side_by_side(report: Report, count: int, rounds: int = 3) -> None:
    with server("nats-server") as theirs, server("jetlake") as ours:
        pids = {"nats-server": theirs[1], "jetlake": ours[1]}
        clients = {"nats-server": Client(theirs[0]), "jetlake": Client(ours[0])}
        number = 0
        for storage in ("memory", "file"):
            stream = storage.upper()
            for client in clients.values():
                client.fill(stream, storage, count)
            for way in ("fetch", "continuous"):
                for ack in (False, True):
                    found: dict[str, list[Pace]] = {kind: [] for kind in clients}
                    for _ in range(rounds):
                        number += 1
                        for kind, client in clients.items():
                            run = partial(deliver, client, stream, f"c{number}", way, count, ack=ack)
                            found[kind].append(measure_pace(pids[kind], count, run))
                    rates = pace_columns(found)
                    case = f"{way}, {'with' if ack else 'without'} acks, {storage}"
                    report.add(case, rates)
                    report.compare(case.replace(", ", "_").replace(" ", "_"), rates["jetlake"], rates["nats-server"])
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
    with server("jetlake") as (port, _):
        client = Client(port)
        pending_acks(report, client, scale)
        filtered(report, client, scale)
        many_consumers(report, client, scale)
        client.close()


def pending_acks(report: Report, client: Client, scale: int) -> None:
    """Acknowledging from the far end while few or many messages are pending; the median of several rounds."""
    many = 100_000 // scale
    client.fill("PENDING", "memory", many)
    found: dict[int, list[float]] = {1000: [], many: []}
    for number in range(9):
        for pending, rates in found.items():
            name = f"p{pending}-{number}"
            client.consumer("PENDING", name, ack_policy="explicit", ack_wait=3600 * 10**9)
            subjects = client.take(client.pull("PENDING", name, pending), pending)
            # What follows deliveries is done within a tenth of a second, and grows with them: acks must not pay for it.
            time.sleep(0.3)
            started = time.perf_counter()
            client.publish(subjects[-900:][::-1])
            while client.info("PENDING", name)["num_ack_pending"] > pending - 900:
                pass
            rates.append(900 / (time.perf_counter() - started))
            client.request(f"$JS.API.CONSUMER.DELETE.PENDING.{name}")
    few_rate, many_rate = (statistics.median(rates) for rates in found.values())
    report.add(f"acks with {many} pending", {"beside": few_rate, "jetlake": many_rate})
    report.compare("ack_growth", many_rate, few_rate)


def filtered(report: Report, client: Client, scale: int) -> None:
    """The next message of a filter that one subject of very many passes."""
    many = 100_000 // scale
    rates = {}
    for subjects in (100, many):
        stream = f"F{subjects}"
        client.fill(stream, "memory", many * 2, subjects)
        started = time.perf_counter()
        for number in range(50):
            name = f"f{number}"
            client.consumer(stream, name, filter_subject=f"{stream.lower()}.{subjects - 1 - number}")
            client.take(client.pull(stream, name, 1), 1)
        rates[subjects] = 50 / (time.perf_counter() - started)
    report.add(f"next of one in {many} subjects", {"beside": rates[100], "jetlake": rates[many]})
    report.compare("filter_growth", rates[many], rates[100])


def many_consumers(report: Report, client: Client, scale: int) -> None:
    """Publishing into a stream with a thousand consumers, all of which wait for messages."""
    many = 1000 // scale
    rates = {}
    for consumers in (1, many):
        stream = f"M{consumers}"
        client.fill(stream, "memory", 1)
        for number in range(consumers):
            client.consumer(stream, f"m{number}", deliver_policy="new")
        rates[consumers] = client.publish_acked(stream.lower() + ".0", 2000)
    report.add(f"publish with {many} consumers", {"beside": rates[1], "jetlake": rates[many]})
    report.compare("consumers_growth", rates[many], rates[1])


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    side_by_side(report, 40_000 if arguments.quick else 400_000)
    growth(report, 10 if arguments.quick else 1)
    report.finish()


if __name__ == "__main__":
    main()
