"""How many messages a second does the server acknowledge, beside nats-server?

    python benchmarks/publish.py [--quick] [--json FILE]

One raw publisher keeps 2048 messages of 128 bytes in flight, each with a reply of its own, and counts the
acknowledgements. Both servers run as processes of their own, with a file store and the same `sync_interval`, in turns.
Whether that stays so in a long stream is asked by `scale.py`.
"""

from __future__ import annotations

import select
import time
from functools import partial

from _harness import Report, Sample, parse_arguments, take_sample
from _raw_client import RawClient
from _servers import KINDS, OURS, PEER, server

QUESTION = "How many messages a second does the server acknowledge?"
PAYLOAD = b"x" * 128
WINDOW = 2048
CHUNK = 256
SUBJECTS = 100
CHUNKS = {"always": {PEER: 50, OURS: 400}, "2m": {PEER: 1200, OURS: 1200}}
"""How many chunks are published; nats-server stores a thousand messages a second when it syncs each."""


class Publisher:
    """A raw client: what it sends is made before the clock starts, what it receives is counted and not read."""

    def __init__(self, port: int) -> None:
        self.client = RawClient(port)
        self.client.socket.sendall(b"SUB _INBOX.a.* 2\r\n")
        self.client.ping()
        self._chunks = [
            b"".join(
                b"PUB bench.%d _INBOX.a.%d %d\r\n%b\r\n" % (index % SUBJECTS, index, len(PAYLOAD), PAYLOAD)
                for index in range(start, start + CHUNK)
            )
            for start in range(0, WINDOW, CHUNK)
        ]

    def create_stream(self) -> None:
        config = {"name": "BENCH", "subjects": ["bench.*"], "allow_direct": True}
        self.client.request("$JS.API.STREAM.CREATE.BENCH", config)

    def publish(self, count: int) -> float:
        """Publish so many messages, window by window; the acknowledged messages a second."""
        sock, chunks = self.client.socket, self._chunks
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
                received = sock.recv(1 << 18)
                if not received:
                    raise SystemExit("the server closed the connection")
                data = tail + received
                # Every acknowledgement has one `"seq":`; what a read cuts off is looked at with the next.
                acked += data.count(b'"seq":')
                tail = data[-5:] if not data.endswith(b"\r\n") else b""
                if b"PING\r\n" in data:
                    pong = b"PONG\r\n"  # A client that never says so is taken for dead after a while.
        seconds = time.perf_counter() - started
        sock.setblocking(True)
        return count / seconds


def measure_rate(report: Report, sync_interval: str, counts: dict[str, int], repeats: int) -> None:
    """The median rate and CPU time a message of each server; they run in turns, each time on a new store."""
    found: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind, count in counts.items():
            with server(kind, sync_interval) as running:
                publisher = Publisher(running.port)
                publisher.create_stream()
                publisher.publish(min(count, 4 * WINDOW))
                found[kind].append(take_sample(running.pid, count, partial(publisher.publish, count)))
                publisher.client.close()
    report.add_samples(f"sync {sync_interval}, messages/s", f"publish-{sync_interval}", found)


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    share = 2 if arguments.quick else 1
    for sync_interval, chunks in CHUNKS.items():
        counts = {kind: count // share * CHUNK for kind, count in chunks.items()}
        measure_rate(report, sync_interval, counts, 3 if arguments.quick else 5)
    report.finish()


if __name__ == "__main__":
    main()
