"""How long one-by-one publishes and requests wait for their answers, alone and beside publishers on other streams."""

from __future__ import annotations

import multiprocessing
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from _raw_client import RawClient

__all__ = ["OTHERS", "PERCENTILES", "percentiles_ms", "publish_waits", "request_waits"]

OTHERS = (0, 5, 20)
"""How many other streams are busy: each has a publisher with one message under way at all times."""
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}

_PAYLOAD = b"x" * 100
_CONTEXT = multiprocessing.get_context("fork")


def percentiles_ms(waits: list[float]) -> dict[str, float]:
    """The percentiles of waits, in milliseconds."""
    ordered = sorted(waits)
    return {
        name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3 for name, share in PERCENTILES.items()
    }


def publish_waits(port: int, others: int, seconds: float) -> list[float]:
    """The waits of one publisher with one message under way, while so many others do the same."""
    names = [f"ACK{others}N{number}" for number in range(others + 1)]
    _create_streams(port, names)
    with _beside(_keep_busy, port, names[1:]):
        return _waits(_client(port, f"_ACK.{names[0]}"), _publish(names[0]), seconds)


def request_waits(port: int, others: int, seconds: float) -> list[float]:
    """The waits of one requester with one request under way, which another client answers, beside busy streams."""
    names = [f"REQ{others}N{number}" for number in range(others)]
    _create_streams(port, names)
    with _beside(_keep_busy, port, names), _beside(_answer, port):
        frame = b"PUB service _ACK.requester %d\r\n%b\r\n" % (len(_PAYLOAD), _PAYLOAD)
        return _waits(_client(port, "_ACK.requester"), frame, seconds)


def _create_streams(port: int, names: list[str]) -> None:
    client = RawClient(port)
    for name in names:
        client.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
    client.close()


def _waits(client: RawClient, frame: bytes, seconds: float) -> list[float]:
    waits: list[float] = []
    deadline = time.perf_counter() + seconds
    while (started := time.perf_counter()) < deadline:
        client.socket.sendall(frame)
        client.read_count(b"}\r\n", 1)
        waits.append(time.perf_counter() - started)
    client.close()
    return waits


@contextmanager
def _beside(run: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Run a function in a process of its own, which says when it is ready and ends when it hears something."""
    ours, theirs = multiprocessing.Pipe()
    process = _CONTEXT.Process(target=run, args=(*arguments, theirs))
    process.start()
    ours.recv()
    try:
        yield
    finally:
        ours.send(None)
        process.join()


def _keep_busy(port: int, names: list[str], channel: Connection) -> None:
    selector = selectors.DefaultSelector()
    for name in names:
        client = _client(port, f"_ACK.{name}")
        selector.register(client.socket, selectors.EVENT_READ, _publish(name))
        client.socket.sendall(_publish(name))
    channel.send(None)
    while not channel.poll():
        for key, _ in selector.select(0.05) if names else ():
            received = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            # A server's own PING may come with the acknowledgement, or alone.
            answer = b"PONG\r\n" if b"PING\r\n" in received else b""
            key.fileobj.sendall(answer + (key.data if b"}\r\n" in received else b""))  # type: ignore[union-attr]
        if not names:
            channel.poll(0.05)


def _answer(port: int, channel: Connection) -> None:
    client = _client(port, "service")
    client.socket.settimeout(0.05)
    channel.send(None)
    while not channel.poll():
        try:
            if client.socket.recv(1 << 16):
                client.socket.sendall(b"PUB _ACK.requester 2\r\n{}\r\n")
        except TimeoutError:
            pass


def _client(port: int, subject: str) -> RawClient:
    """A client that alone hears what is sent to a subject."""
    client = RawClient(port)
    client.socket.sendall(b"SUB %b 2\r\n" % subject.encode())
    client.ping()
    return client


def _publish(name: str) -> bytes:
    return b"PUB %b _ACK.%b %d\r\n%b\r\n" % (name.encode(), name.encode(), len(_PAYLOAD), _PAYLOAD)
