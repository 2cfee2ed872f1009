"""How many messages a second does the server acknowledge, beside nats-server, and does it stay as fast as it grows?

    python benchmarks/publish.py [--quick] [--json FILE]

One raw publisher keeps 2048 messages of 128 bytes in flight, each with a reply of its own, and counts the
acknowledgements. Both servers run as processes of their own, with a file store and the same `sync_interval`, in turns.
Growth is ours against itself: what publish, get by sequence, last by subject and stream info cost at the end of a long
stream, beside what they cost near its beginning; 1 is the same, and more than 1 is cheaper.
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _harness import Pace, Report, cpu_s, measure_pace, pace_columns, parse_arguments

QUESTION = "How many messages a second does the server acknowledge?"
PAYLOAD = b"x" * 128
WINDOW = 2048
CHUNK = 256
SUBJECTS = 100
REQUESTS = 1000
BIN = Path(sys.executable).parent

COMMANDS = {"nats-server": [str(BIN / "nats-server")], "jetlake": [str(BIN / "jetlake"), "serve"]}


class Running(NamedTuple):
    """A server process."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """The processor time it has used so far."""
        return cpu_s(self.pid)


@contextmanager
def server(kind: str, sync_interval: str) -> Iterator[Running]:
    """A server of that kind in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "server.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{folder}", max_file: 20GB, sync_interval: "{sync_interval}" }}\n'
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
        yield Running(port, process.pid)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


class Publisher:
    """A raw client: what it sends is made before the clock starts, what it receives is counted and not read."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        self._socket.sendall(
            b"CONNECT " + json.dumps(options).encode() + b"\r\nSUB _INBOX.a.* 1\r\nSUB _INBOX.b.* 2\r\nPING\r\n"
        )
        data = b""
        while b"PONG\r\n" not in data:
            data += self._socket.recv(65536)
        self._chunks = [
            b"".join(
                b"PUB bench.%d _INBOX.a.%d %d\r\n%b\r\n" % (index % SUBJECTS, index, len(PAYLOAD), PAYLOAD)
                for index in range(start, start + CHUNK)
            )
            for start in range(0, WINDOW, CHUNK)
        ]

    def close(self) -> None:
        self._socket.close()

    def request(self, subject: str, body: object = None) -> dict[str, object]:
        """One API request and its JSON answer."""
        payload = b"" if body is None else json.dumps(body).encode()
        self._socket.sendall(b"PUB %b _INBOX.b.1 %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        data = b""
        while True:
            received = self._received(self._socket.recv(65536))
            if b"PING\r\n" in received:
                self._socket.sendall(b"PONG\r\n")
            data += received
            start = data.find(b"MSG _INBOX.b.1 2 ")
            end = data.find(b"\r\n", start)
            if start >= 0 and end >= 0:
                size = int(data[start + 17 : end])
                if len(data) >= end + 2 + size + 2:
                    answer: dict[str, object] = json.loads(data[end + 2 : end + 2 + size])
                    if "error" in answer:
                        raise SystemExit(f"{subject}: {answer['error']}")
                    return answer

    @staticmethod
    def _received(data: bytes) -> bytes:
        if not data:
            raise SystemExit("the server closed the connection")
        return data

    def create_stream(self) -> None:
        self.request("$JS.API.STREAM.CREATE.BENCH", {"name": "BENCH", "subjects": ["bench.*"], "allow_direct": True})

    def publish(self, count: int) -> float:
        """Publish so many messages, window by window; the acknowledged messages a second."""
        sock, chunks = self._socket, self._chunks
        sock.setblocking(False)
        sent = acked = 0
        tail = pong = b""
        unsent = memoryview(b"")
        started = time.perf_counter()
        while acked < count:
            if not unsent and sent < count and sent - acked <= WINDOW - CHUNK:
                unsent = memoryview(pong + chunks[sent // CHUNK % len(chunks)])
                pong = b""
                sent += CHUNK
            readable, writable, _ = select.select([sock], [sock] if unsent else [], [])
            if writable:
                unsent = unsent[sock.send(unsent) :]
            if readable:
                data = tail + self._received(sock.recv(1 << 18))
                # Every acknowledgement has one `"seq":`; what a read cuts off is looked at with the next.
                acked += data.count(b'"seq":')
                tail = data[-5:] if not data.endswith(b"\r\n") else b""
                if b"PING\r\n" in data:
                    pong = b"PONG\r\n"  # A client that never says so is taken for dead after a while.
        seconds = time.perf_counter() - started
        sock.setblocking(True)
        return count / seconds


def rates(sync_interval: str, count: int, repeats: int) -> dict[str, float]:
    """The median rate and CPU time a message of each server; they run in turns, each time on a new store."""
    found: dict[str, list[Pace]] = {kind: [] for kind in COMMANDS}
    for _ in range(repeats):
        for kind in COMMANDS:
            with server(kind, sync_interval) as running:
                publisher = Publisher(running.port)
                publisher.create_stream()
                publisher.publish(min(count, 4 * WINDOW))
                found[kind].append(measure_pace(running.pid, count, partial(publisher.publish, count)))
                publisher.close()
    return pace_columns(found)


def cost_us(action: Callable[[int], object], times: int) -> float:
    """The microseconds of an action; the lower quartile, which what else the machine does hardly touches."""
    taken = []
    for number in range(times):
        started = time.perf_counter()
        action(number)
        taken.append(time.perf_counter() - started)
    return statistics.quantiles(taken, n=4)[0] * 1e6


def costs(running: Running, publisher: Publisher, messages: int) -> dict[str, float]:
    """What each operation costs on a stream of that many messages, microseconds.

    For publishing that is the server's processor time: how long it waits for a disk that is busy writing what came
    before says nothing about what a message costs.
    """
    step = max(messages // REQUESTS, 1)

    def get(number: int) -> object:
        return publisher.request("$JS.API.STREAM.MSG.GET.BENCH", {"seq": 1 + number * step})

    def last(number: int) -> object:
        return publisher.request("$JS.API.STREAM.MSG.GET.BENCH", {"last_by_subj": f"bench.{number % SUBJECTS}"})

    def info(_: int) -> object:
        return publisher.request("$JS.API.STREAM.INFO.BENCH")

    count = 100 * WINDOW
    before_s = running.cpu_s()
    publisher.publish(count)
    per_message_us = (running.cpu_s() - before_s) / count * 1e6
    return {
        "publish": per_message_us,
        "get": cost_us(get, REQUESTS),
        "last": cost_us(last, REQUESTS),
        "info": cost_us(info, REQUESTS),
    }


def growth(small: int, large: int) -> tuple[dict[str, float], dict[str, float]]:
    """What operations cost on a small and on a large stream of ours."""
    with server("jetlake", "2m") as running:
        publisher = Publisher(running.port)
        publisher.create_stream()
        publisher.publish(small // CHUNK * CHUNK)
        at_small = costs(running, publisher, small)
        publisher.publish(large // CHUNK * CHUNK)
        at_large = costs(running, publisher, large)
        publisher.close()
    return at_small, at_large


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    repeats = 1 if arguments.quick else 3
    for sync_interval, count in (("always", 200 * CHUNK), ("2m", 1200 * CHUNK)):
        found = rates(sync_interval, count // 2 if arguments.quick else count, repeats)
        report.add(f"sync {sync_interval}, messages/s", found)
        report.compare(f"publish-{sync_interval}", found["jetlake"], found["nats-server"])
    small, large = 10_000, 1_000_000 if arguments.quick else 10_000_000
    at_small, at_large = growth(small, large)
    for operation, at_start in at_small.items():
        at_end = at_large[operation]
        report.add(f"{operation} (growth)", {f"us at {small:,}": at_start, f"us at {large:,}": at_end})
        report.compare(f"growth-{operation}", at_end, at_start, lower_is_better=True)
    report.finish()


if __name__ == "__main__":
    main()
