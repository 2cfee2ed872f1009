"""How long a publisher waits for its acknowledgement, alone and beside publishers on other streams."""

from __future__ import annotations

import multiprocessing
import selectors
import statistics
import time
from multiprocessing.connection import Connection

from _raw_client import RawClient

__all__ = ["OTHERS", "ack_median_ms"]

OTHERS = (0, 5, 20)
"""How many other streams are busy: each has a publisher with one message under way at all times."""

_PAYLOAD = b"x" * 100


def ack_median_ms(port: int, others: int, seconds: float) -> float:
    """The median wait of one publisher with one message under way, while so many others do the same."""
    client = RawClient(port)
    names = [f"ACK{others}N{number}" for number in range(others + 1)]
    for name in names:
        client.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
    client.close()
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    busy = context.Process(target=_keep_busy, args=(port, names[1:], theirs))
    busy.start()
    ours.recv()
    publisher = _publisher(port, names[0])
    frame = _frame(names[0])
    waits: list[float] = []
    deadline = time.perf_counter() + seconds
    while (started := time.perf_counter()) < deadline:
        publisher.socket.sendall(frame)
        publisher.read_count(b"}\r\n", 1)
        waits.append(time.perf_counter() - started)
    ours.send(None)
    busy.join()
    publisher.close()
    return statistics.median(waits) * 1e3


def _keep_busy(port: int, names: list[str], channel: Connection) -> None:
    selector = selectors.DefaultSelector()
    for name in names:
        client = _publisher(port, name)
        selector.register(client.socket, selectors.EVENT_READ, _frame(name))
        client.socket.sendall(_frame(name))
    channel.send(None)
    while not channel.poll():
        for key, _ in selector.select(0.05) if names else ():
            if key.fileobj.recv(1 << 16).endswith(b"}\r\n"):  # type: ignore[union-attr]
                key.fileobj.sendall(key.data)  # type: ignore[union-attr]
        if not names:
            channel.poll(0.05)


def _publisher(port: int, name: str) -> RawClient:
    """A client that alone hears the acknowledgements of its stream."""
    client = RawClient(port)
    client.socket.sendall(b"SUB _ACK.%b 2\r\n" % name.encode())
    client.ping()
    return client


def _frame(name: str) -> bytes:
    return b"PUB %b _ACK.%b %d\r\n%b\r\n" % (name.encode(), name.encode(), len(_PAYLOAD), _PAYLOAD)
