"""The cases of the client benchmark on a bare socket: what the server has left for a client that does no work.

It takes replies out of the bytes with one regular expression and never builds a message. It leaves the server the same
work: as many messages under way, writes of the same size, pulls with the same bodies (a fetch is over before the next
one), the same acknowledgements, a reply subject for each publish.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from _client_setup import (
    CONSUME_MESSAGES,
    CORE,
    PUBLISHER,
    RESPONDER,
    SERVICE,
    STREAM,
    SUBJECT,
    WINDOW_MESSAGES,
    BareRun,
    Seconds,
    Stopwatch,
    empty,
    go,
    neighbour,
)
from jetlake.client.connection.socket_connection import SocketConnection, connect_socket

_WRITE_BYTES = 64 * 1024
_ACKS = re.compile(rb"(\$JS\.ACK\.[^ ]+) \d+\r\n")
_CUT_BYTES = 512
"""More than a reply subject with what is behind it on its line."""


def publish(url: str, count: int, size: int) -> Seconds:
    with connect_socket(url, request_timeout=60) as connection:
        block = b"PUB %b %d\r\n%b\r\n" % (CORE.encode(), size, b"x" * size) * 500
        with Stopwatch() as watch:
            for _ in range(count // 500):
                connection.send(block)
            connection.flush(60)
    return watch.seconds


def subscribe(url: str, count: int, size: int) -> Seconds:
    with connect_socket(url) as connection:
        connection.subscribe(CORE.encode())
        connection.flush()
        with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
            go(publisher)
            _drain(connection, count * (size + 2))
    return watch.seconds


def _drain(connection: SocketConnection, wanted: int) -> None:
    buffer = memoryview(bytearray(1 << 20))
    received = 0
    while received < wanted:
        received += connection.recv_into(buffer, 60)


def publish_ack(url: str, count: int, size: int) -> Seconds:
    empty(url)
    payload = b"x" * size
    with connect_socket(url) as connection:
        connection.request(SUBJECT.encode(), payload)
        with Stopwatch() as watch:
            for _ in range(count):
                connection.request(SUBJECT.encode(), payload)
    return watch.seconds


def publish_pipelined(url: str, count: int, size: int) -> Seconds:
    empty(url)
    with connect_socket(url) as connection:
        # Each has a reply subject of its own: whoever wants to know which message was stored needs that, and it is a
        # third of the server's work, which remembers where a subject that it has just seen leads to.
        frames = [
            b"PUB %b %b.%d %d\r\n%b\r\n" % (SUBJECT.encode(), connection.inbox, number, size, b"x" * size)
            for number in range(1, count + 1)
        ]
        step = max(1, _WRITE_BYTES // len(frames[-1]))
        blocks = [b"".join(frames[start : start + step]) for start in range(0, count, step)]
        del frames
        sent = acknowledged = 0
        rest = b""
        with Stopwatch() as watch:
            while acknowledged < count:
                while sent < count and sent - acknowledged <= WINDOW_MESSAGES - step:
                    connection.send(blocks[sent // step])
                    sent += step
                data = rest + connection.recv(60)
                acknowledged += data.count(b"}\r\n")
                rest = data[-2:] if data[-1:] != b"\n" else b""  # The end of an answer may be cut.
    return watch.seconds


class Pulls(NamedTuple):
    """How a bare socket pulls: as the client of the same row does, by the same counts."""

    window: int
    """Messages asked for and not received, at most."""
    threshold: int
    """Messages that may be missing for the next pull, which fills the window again; 0 ends each pull first."""
    consumer: str
    """The consumer's name, which is in every reply subject."""
    acks: bool
    body: bytes
    """What a pull says, with the number of messages to fill in."""


_HEARTBEATS = b'{"batch":%d,"expires":60000000000,"idle_heartbeat":30000000000}'
_ORDERED = f"ordered_{'x' * 22}_1"

FETCH_100 = Pulls(100, 0, "fetch", acks=True, body=b'{"batch":%d,"expires":5000000000}')
FETCH_1000 = FETCH_100._replace(window=1000)
CONSUME = Pulls(CONSUME_MESSAGES, CONSUME_MESSAGES // 4, "consume", acks=True, body=_HEARTBEATS)
ORDERED = Pulls(CONSUME_MESSAGES, CONSUME_MESSAGES // 4, _ORDERED, acks=False, body=_HEARTBEATS)
TABLE = Pulls(20_000, 10_000, "table", acks=False, body=_HEARTBEATS)


def pull(pulls: Pulls) -> BareRun:
    def run(url: str, count: int, size: int) -> Seconds:
        with connect_socket(url) as connection:
            connection.subscribe(connection.inbox + b".pull.x")
            if pulls.acks:
                _create_consumer(connection, pulls)
            with Stopwatch() as watch:
                if not pulls.acks:  # Ordered reads and tables make a consumer themselves.
                    _create_consumer(connection, pulls)
                _take(connection, pulls, count)
                connection.flush(60)
        return watch.seconds

    return run


def _create_consumer(connection: SocketConnection, pulls: Pulls) -> None:
    name = pulls.consumer
    policy = '"ack_policy":"none","mem_storage":true'
    if pulls.acks:
        policy = '"ack_policy":"explicit","max_ack_pending":100000'
    config = f'{{"stream_name":"{STREAM}","config":{{"name":"{name}","durable_name":"{name}",{policy}}}}}'
    connection.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}".encode(), config.encode())


def _take(connection: SocketConnection, pulls: Pulls, count: int) -> None:
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{pulls.consumer}".encode()
    asked = received = 0
    rest = data = b""
    while received < count:
        missing = asked - received
        if missing <= pulls.threshold and asked < count:
            batch = pulls.window - missing
            body = pulls.body % batch
            connection.send(b"PUB %b %b.pull.x %d\r\n%b\r\n" % (subject, connection.inbox, len(body), body))
            asked += batch
        data = rest + connection.recv(60)
        replies = _ACKS.findall(data)
        received += len(replies)
        # What follows the last line's end may be the beginning of a reply; in the midst of a payload there is none.
        last = data.rfind(b"\r\n", -_CUT_BYTES)
        rest = data[last + 2 :] if last >= 0 or len(data) < _CUT_BYTES else b""
        if pulls.acks and replies:
            connection.send(b"PUB " + b" 4\r\n+ACK\r\nPUB ".join(replies) + b" 4\r\n+ACK\r\n")
    while data[-3:] != b"x\r\n":  # The last message is counted by its first line; its payload may still be on its way.
        data = data[-2:] + connection.recv(60)


def request(url: str, count: int, size: int) -> Seconds:
    payload = b"x" * size
    with connect_socket(url) as connection, neighbour(RESPONDER, url, SERVICE):
        connection.request(SERVICE.encode(), payload)
        with Stopwatch() as watch:
            for _ in range(count):
                connection.request(SERVICE.encode(), payload)
    return watch.seconds
