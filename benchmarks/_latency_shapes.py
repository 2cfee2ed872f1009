"""The loads of `latency.py`: generators that prepare, yield once, and then do what others may suffer from.

They return how many messages, requests or entries that was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from _raw_client import RawClient

__all__ = ["SHAPES", "Shape", "Steps"]

API = "$JS.API."
CHUNK_BYTES = 1 << 20

Steps = Generator[None, None, int]
Load = Callable[[int, Callable[[int], int]], Steps]
"""Takes the server's port and what scales a full number down; what follows its only `yield` is measured."""


class Shape(NamedTuple):
    """A load and how the servers are set up for it."""

    run: Load
    durable: bool = False
    """nats-server syncs every message too; elsewhere it syncs as it comes, ours always syncs."""


def _chunks(frames: list[bytes]) -> list[bytes]:
    """The frames joined into writes of about a megabyte."""
    size = max(sum(map(len, frames)) // CHUNK_BYTES, 1)
    step = -(-len(frames) // size)
    return [b"".join(frames[start : start + step]) for start in range(0, len(frames), step)]


def _flood(port: int, frames: list[bytes]) -> Steps:
    client = RawClient(port)
    chunks = _chunks([*frames, b"PING\r\n"])
    yield
    client.send_and_count(chunks, b"PONG\r\n", 1)
    client.close()
    return len(frames)


def tiny_publishes(port: int, scaled: Callable[[int], int]) -> Steps:
    """37 MiB of the smallest PUBs from one client."""
    return (yield from _flood(port, [b"PUB a 1\r\nx\r\n"] * scaled(3_500_000)))


def subscribes(port: int, scaled: Callable[[int], int]) -> Steps:
    """100,000 subscriptions from one client."""
    return (
        yield from _flood(port, [b"SUB many.%d %d\r\n" % (number, number + 2) for number in range(scaled(100_000))])
    )


def pulls(port: int, scaled: Callable[[int], int]) -> Steps:
    """100,000 pull requests without waiting, of an empty stream, from one client."""
    client = RawClient(port)
    _create_stream(client, "PULLED")
    config = {"durable_name": "c", "ack_policy": "explicit"}
    client.request(API + "CONSUMER.DURABLE.CREATE.PULLED.c", {"stream_name": "PULLED", "config": config})
    body = b'{"batch":1,"no_wait":true}'
    frame = b"PUB $JS.API.CONSUMER.MSG.NEXT.PULLED.c _INBOX.p %d\r\n%b\r\n" % (len(body), body)
    count = yield from _flood(port, [frame] * scaled(100_000))
    client.close()
    return count


def stream_infos(port: int, scaled: Callable[[int], int]) -> Steps:
    """50,000 requests for a stream's info from one client."""
    client = RawClient(port)
    _create_stream(client, "ASKED")
    count = scaled(50_000)
    chunks = _chunks([b"PUB $JS.API.STREAM.INFO.ASKED _INBOX.b.x 0\r\n\r\n"] * count)
    yield
    client.send_and_count(chunks, b"MSG _INBOX.b.x ", count)
    client.close()
    return count


def burst(port: int, scaled: Callable[[int], int]) -> Steps:
    """Bursts of 1.8 MB to one subscriber."""
    subscriber, publisher = RawClient(port), RawClient(port)
    subscriber.socket.sendall(b"SUB burst 2\r\n")
    subscriber.ping()
    count = 14_000
    data = b"".join([b"PUB burst 110\r\n" + b"x" * 110 + b"\r\n"] * count)
    yield
    for _ in range(scaled(10)):
        publisher.socket.sendall(data)
        subscriber.read_count(b"MSG burst 2 ", count)
    subscriber.close()
    publisher.close()
    return scaled(10) * count


def congested(port: int, scaled: Callable[[int], int]) -> Steps:
    """A subscriber that never reads, and a publisher that floods it."""
    subscriber, publisher = RawClient(port), RawClient(port)
    subscriber.socket.sendall(b"SUB flood 2\r\n")
    subscriber.ping()
    chunk = b"".join([b"PUB flood 1024\r\n" + b"x" * 1024 + b"\r\n"] * 1000)
    publisher.socket.settimeout(0.1)
    yield
    deadline = time.monotonic() + scaled(80) / 10
    sent = 0
    while time.monotonic() < deadline:
        sent += 1000
        try:
            publisher.socket.sendall(chunk)
        except TimeoutError:  # the server does not read: the rest of a frame would be missing
            break
    while time.monotonic() < deadline:
        time.sleep(0.01)
    subscriber.close()
    publisher.close()
    return sent


def to_itself(port: int, scaled: Callable[[int], int]) -> Steps:
    """One connection that publishes 256,000 messages of 1 KiB to itself and reads all the time."""
    client = RawClient(port)
    client.socket.sendall(b"SUB self 2\r\n")
    client.ping()
    count = scaled(256_000)
    chunk = b"".join([b"PUB self 1024\r\n" + b"x" * 1024 + b"\r\n"] * 1000)
    yield
    client.send_and_count([chunk] * (count // 1000), b"MSG self 2 ", count // 1000 * 1000)
    client.close()
    return count // 1000 * 1000


def create_streams(port: int, scaled: Callable[[int], int]) -> Steps:
    """100 streams and 500 ephemeral consumers, one request after the other was sent."""
    client = RawClient(port)
    _create_stream(client, "HOME")
    yield
    client.requests([_stream_call(f"S{number}") for number in range(scaled(100))])
    client.requests([(API + "CONSUMER.CREATE.HOME", _ephemeral()) for _ in range(scaled(500))])
    client.close()
    return scaled(100) + scaled(500)


def delete_consumers(port: int, scaled: Callable[[int], int]) -> Steps:
    """The deletion of a stream with 2,000 consumers."""
    client = RawClient(port)
    client.request(*_stream_call("CROWD", max_consumers=2000))
    for start in range(0, scaled(2000), 100):
        names = [f"c{number}" for number in range(start, start + 100)]
        client.requests([(f"{API}CONSUMER.DURABLE.CREATE.CROWD.{name}", _durable("CROWD", name)) for name in names])
    yield
    client.request(API + "STREAM.DELETE.CROWD")
    client.close()
    return scaled(2000)


def delete_streams(port: int, scaled: Callable[[int], int]) -> Steps:
    """The deletion of 100 streams."""
    client = RawClient(port)
    count = scaled(100)
    client.requests([_stream_call(f"S{number}") for number in range(count)])
    yield
    client.requests([(f"{API}STREAM.DELETE.S{number}", None) for number in range(count)])
    client.close()
    return count


def purge_filter(port: int, scaled: Callable[[int], int]) -> Steps:
    """A purge by filter of every second of 500,000 messages, over 250,000 subjects."""
    client = RawClient(port)
    count = scaled(250_000)
    _fill(client, "WIDE", [b"wide.%d.%b" % (number, kind) for number in range(count) for kind in (b"a", b"b")])
    yield
    client.request(API + "STREAM.PURGE.WIDE", {"filter": "wide.*.a"})
    client.close()
    return count


def info_subjects(port: int, scaled: Callable[[int], int]) -> Steps:
    """A stream's info with 250,000 subjects, page by page."""
    client = RawClient(port)
    count = scaled(250_000)
    _fill(client, "WIDE", [b"wide.%d" % number for number in range(count)])
    yield
    for offset in range(0, count, 100_000):
        client.request(API + "STREAM.INFO.WIDE", {"subjects_filter": ">", "offset": offset})
    client.close()
    return count


def last_per_subject(port: int, scaled: Callable[[int], int]) -> Steps:
    """Three consumers that start with the last message of each of 250,000 subjects."""
    client = RawClient(port)
    _fill(client, "WIDE", [b"wide.%d" % number for number in range(scaled(250_000))])
    config = {"deliver_policy": "last_per_subject", "ack_policy": "explicit", "filter_subject": "wide.>"}
    yield
    for _ in range(3):
        client.request(API + "CONSUMER.CREATE.WIDE", {"stream_name": "WIDE", "config": config})
    client.close()
    return 3 * scaled(250_000)


def purge_keep(port: int, scaled: Callable[[int], int]) -> Steps:
    """A purge that keeps half of a million messages."""
    client = RawClient(port)
    count = scaled(1_000_000)
    _fill(client, "LONG", [b"long.%d" % (number % 1000) for number in range(count)])
    yield
    client.request(API + "STREAM.PURGE.LONG", {"keep": count // 2})
    client.close()
    return count // 2


def list_streams(port: int, scaled: Callable[[int], int]) -> Steps:
    """All pages of 3,000 streams: names and infos."""
    client = RawClient(port)
    count = scaled(3000)
    for start in range(0, count, 100):
        client.requests([_stream_call(f"S{number}", storage="memory") for number in range(start, start + 100)])
    yield
    for verb, limit in (("NAMES", 1024), ("LIST", 256)):
        for offset in range(0, count, limit):
            client.request(f"{API}STREAM.{verb}", {"offset": offset})
    client.close()
    return count


def message_ids(port: int, scaled: Callable[[int], int]) -> Steps:
    """A million messages with ids, as fast as the server reads them."""
    client = RawClient(port)
    _create_stream(client, "IDS")
    frames = []
    for number in range(scaled(1_000_000)):
        header = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number
        frames.append(b"HPUB ids %d %d\r\n%bx\r\n" % (len(header), len(header) + 1, header))
    count = yield from _flood(port, frames)
    client.close()
    return count


def _create_stream(client: RawClient, name: str) -> None:
    client.request(*_stream_call(name))


def _stream_call(name: str, **options: object) -> tuple[str, object]:
    subjects = [name.lower(), f"{name.lower()}.>"]
    return f"{API}STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **options}


def _durable(stream: str, name: str) -> dict[str, object]:
    return {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit"}}


def _ephemeral() -> dict[str, object]:
    return {"stream_name": "HOME", "config": {"ack_policy": "explicit"}}


# Servers refuse publishes when more than 100,000 of a stream wait to be stored.
_FILL_MESSAGES = 50_000


def _fill(client: RawClient, stream: str, subjects: list[bytes]) -> None:
    """Store a message for each subject, and return when they are all there."""
    _create_stream(client, stream)
    stored = _last_sequence(client, stream)
    for first in range(0, len(subjects), _FILL_MESSAGES):
        block = subjects[first : first + _FILL_MESSAGES]
        for chunk in _chunks([b"PUB %b 1\r\nx\r\n" % subject for subject in block]):
            client.socket.sendall(chunk)
        stored += len(block)
        while _last_sequence(client, stream) < stored:
            time.sleep(0.01)


def _last_sequence(client: RawClient, stream: str) -> int:
    state = client.request(f"{API}STREAM.INFO.{stream}")["state"]
    return int(state["last_seq"])  # type: ignore[index]


SHAPES: dict[str, Shape] = {
    "tiny-publishes": Shape(tiny_publishes),
    "subscribes": Shape(subscribes),
    "pulls": Shape(pulls),
    "stream-infos": Shape(stream_infos),
    "burst": Shape(burst),
    "congested": Shape(congested),
    "to-itself": Shape(to_itself),
    "create-streams": Shape(create_streams, durable=True),
    "delete-consumers": Shape(delete_consumers, durable=True),
    "delete-streams": Shape(delete_streams, durable=True),
    "purge-filter": Shape(purge_filter),
    "info-subjects": Shape(info_subjects),
    "last-per-subject": Shape(last_per_subject),
    "purge-keep": Shape(purge_keep),
    "list-streams": Shape(list_streams),
    "message-ids": Shape(message_ids),
}
