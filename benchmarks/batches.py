"""How many messages a second does the server take in batches, beside nats-server?

    python benchmarks/batches.py [--quick] [--json FILE]

One raw publisher sends batches of 128-byte messages as fast as the socket takes them and counts their acknowledgements:
atomic batches of 100 messages, of which the last one commits, and fast batches of 1000 messages with flow control every
100. Both servers run as processes of their own, with a file store and the same `sync_interval`, in turns. nats-server,
which syncs each message of a fast batch, gets a quarter of them there.
"""

from __future__ import annotations

from functools import partial

from _harness import Report, Sample, parse_arguments, take_sample, wall_s
from _raw_client import RawClient
from _servers import KINDS, PEER, server
from publish import PAYLOAD

QUESTION = "How many messages a second does the server take in batches?"
ATOMIC_SIZE = 100
FAST_SIZE = 1000
ROUNDS = 3
CONFIG = {"name": "BENCH", "subjects": ["bench.*"], "allow_atomic": True, "allow_batched": True}


def atomic_batch(number: int) -> bytes:
    """The frames of one atomic batch; the last message commits and has a reply."""
    frames = []
    for at in range(1, ATOMIC_SIZE + 1):
        is_last = at == ATOMIC_SIZE
        header = b"NATS/1.0\r\nNats-Batch-Id: a%d\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (
            number,
            at,
            b"Nats-Batch-Commit: 1\r\n" if is_last else b"",
        )
        reply = b"_INBOX.a.1 " if is_last else b""
        sizes = len(header), len(header) + len(PAYLOAD)
        frames.append(b"HPUB bench.%d %b%d %d\r\n%b%b\r\n" % (at % 10, reply, *sizes, header, PAYLOAD))
    return b"".join(frames)


def fast_batch(number: int) -> bytes:
    """The frames of one fast batch."""
    frames = []
    for at in range(1, FAST_SIZE + 1):
        operation = 0 if at == 1 else 2 if at == FAST_SIZE else 1
        reply = b"_INBOX.a.f%d.100.fail.%d.%d.$FI" % (number, at, operation)
        frames.append(b"PUB bench.%d %b %d\r\n%b\r\n" % (at % 10, reply, len(PAYLOAD), PAYLOAD))
    return b"".join(frames)


def run_batches(kind: str, interval: str, chunks: list[bytes], size: int) -> Sample:
    """The messages a second of one run on a server of its own, and what a message costs it."""
    with server(kind, interval) as running:
        client = RawClient(running.port)
        client.request("$JS.API.STREAM.CREATE.BENCH", CONFIG)
        client.socket.sendall(b"SUB _INBOX.a.> 7\r\n")
        client.ping()
        count = len(chunks) * size

        send = partial(client.send_and_count, chunks, b'"count":%d}' % size, len(chunks))
        found = take_sample(running.pid, count, lambda: count / wall_s(send))
        client.close()
        return found


def main() -> None:
    """Measure both kinds of batches with both sync intervals."""
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    messages = 20_000 if arguments.quick else 200_000
    for name, make, size in (("atomic", atomic_batch, ATOMIC_SIZE), ("fast", fast_batch, FAST_SIZE)):
        chunks = [make(number) for number in range(messages // size)]
        for interval in ("always", "2m"):
            found: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
            for _ in range(ROUNDS):
                for kind, samples in found.items():
                    is_slow = kind == PEER and name == "fast" and interval == "always"
                    samples.append(run_batches(kind, interval, chunks[: len(chunks) // 4] if is_slow else chunks, size))
            report.add_samples(f"{name}, sync {interval}, messages/s", f"batch-{name}-{interval}", found)
    report.finish()


if __name__ == "__main__":
    main()
