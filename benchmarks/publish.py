"""How many messages a second does the server acknowledge, beside nats-server?

    python benchmarks/publish.py [--quick] [--json FILE]

One raw publisher keeps 2048 messages of 128 bytes in flight, each with a reply of its own, and counts the
acknowledgements. Both servers run as processes of their own, with a file store and the same `sync_interval`, in turns.
Once more with message ids: a header block with a `Nats-Msg-Id` of its own in each message, all made before the clock
starts. And once more encrypted, by AES. Whether that stays so in a long stream is asked by `scale.py`.
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
ID_SYNC_INTERVAL = "2m"
"""Of the rows with message ids, and of those that are encrypted."""
ENCRYPTION = 'key: "0123456789abcdef0123456789abcdef", cipher: aes'


def frame(index: int, prefix: bytes = b"bench") -> bytes:
    return b"PUB %b.%d _INBOX.a.%d %d\r\n%b\r\n" % (prefix, index % SUBJECTS, index, len(PAYLOAD), PAYLOAD)


def frame_with_id(index: int, prefix: bytes = b"bench") -> bytes:
    header = b"NATS/1.0\r\nNats-Msg-Id: 5ZGtXd2l/0/%d-0123456789abcdef\r\n\r\n" % index
    sizes = (len(header), len(header) + len(PAYLOAD))
    reply = index % WINDOW
    return b"HPUB %b.%d _INBOX.a.%d %d %d\r\n%b%b\r\n" % (prefix, index % SUBJECTS, reply, *sizes, header, PAYLOAD)


class Publisher:
    """A raw client: what it sends is made before the clock starts, what it receives is counted and not read.

    Args:
        ids: how many messages with ids are made; 0 sends messages without ids, the same ones again and again.
        stream: the name of the stream, and in lower case the first token of its subjects.
    """

    def __init__(self, port: int, ids: int = 0, stream: str = "BENCH") -> None:
        self._stream = stream
        self.client = RawClient(port)
        self.client.socket.sendall(b"SUB _INBOX.a.* 2\r\n")
        self.client.ping()
        make, prefix = frame_with_id if ids else frame, stream.lower().encode()
        self._chunks = [
            b"".join(make(index, prefix) for index in range(start, start + CHUNK))
            for start in range(0, ids or WINDOW, CHUNK)
        ]
        self._next_chunk = 0

    def create_stream(self) -> None:
        config = {"name": self._stream, "subjects": [f"{self._stream.lower()}.*"], "allow_direct": True}
        self.client.request(f"$JS.API.STREAM.CREATE.{self._stream}", config)

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
                unsent = memoryview(pong + chunks[self._next_chunk % len(chunks)])
                self._next_chunk += 1
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


def measure_rate(
    report: Report,
    sync_interval: str,
    counts: dict[str, int],
    repeats: int,
    *,
    has_ids: bool = False,
    is_encrypted: bool = False,
) -> None:
    """The median rate and CPU time a message of each server; they run in turns, each time on a new store."""
    case, name = ("sync {}, with ids", "publish-ids-{}") if has_ids else ("sync {}", "publish-{}")
    if is_encrypted:
        case, name = "sync {}, encrypted", "publish-encrypted-{}"
    found: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind, count in counts.items():
            with server(kind, sync_interval, jetstream=ENCRYPTION if is_encrypted else "") as running:
                warm = min(count, 4 * WINDOW)
                publisher = Publisher(running.port, (warm + count) * has_ids)
                publisher.create_stream()
                publisher.publish(warm)
                found[kind].append(take_sample(running.pid, count, partial(publisher.publish, count)))
                publisher.client.close()
    report.add_samples(f"{case.format(sync_interval)}, messages/s", name.format(sync_interval), found)


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    share = 2 if arguments.quick else 1
    repeats = 3 if arguments.quick else 5
    for sync_interval, chunks in CHUNKS.items():
        counts = {kind: count // share * CHUNK for kind, count in chunks.items()}
        measure_rate(report, sync_interval, counts, repeats)
        if sync_interval == ID_SYNC_INTERVAL:
            measure_rate(report, sync_interval, counts, repeats, has_ids=True)
            measure_rate(report, sync_interval, counts, repeats, is_encrypted=True)
    report.finish()


if __name__ == "__main__":
    main()
