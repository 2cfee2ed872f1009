"""What every candidate of the client benchmark shares: a stream, neighbours in processes of their own."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from jetlake.client.connection.socket_connection import SocketConnection, connect_socket

STREAM = "BENCH"
SUBJECT = "bench.subject"
CORE = "core.subject"
SERVICE = "service.echo"
CONSUME_MESSAGES = 5000
"""What a continuous read asks for ahead, at most."""
WINDOW_MESSAGES = 4000
"""Messages that a pipelined publisher has under way, at most."""
OBJECT_UNIT = 8192
"""Bytes of an object that count as one."""
STORED_WITHIN_S = 60


class Seconds(NamedTuple):
    """What a run took."""

    wall: float
    cpu: float
    """CPU time of this process."""


Run = Callable[[str, int, int], Awaitable[Seconds]]
"""A run on the server of this address, of so many messages, of so many bytes."""
BareRun = Callable[[str, int, int], Seconds]


PUBLISHER = """
import sys
from jetlake.client.connection.socket_connection import connect_socket
url, subject, count, size = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
connection = connect_socket(url)
frame = b"PUB %b %d\\r\\n%b\\r\\n" % (subject, size, b"x" * size)
block = frame * 500
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count // 500):
    connection.send(block)
connection.flush(60)
"""

RESPONDER = """
import sys
from jetlake.client.connection.socket_connection import connect_socket
connection = connect_socket(sys.argv[1])
connection.subscribe(sys.argv[2].encode())
connection.flush()
print("ready", flush=True)
try:
    while True:
        for message in connection.receive():
            connection.publish(message.reply, message.payload)
except (ConnectionError, KeyboardInterrupt):
    pass
"""


@contextmanager
def neighbour(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process that is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def go(process: subprocess.Popen[str]) -> None:
    """Let the neighbour begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def fill(url: str, count: int, size: int) -> None:
    """Make a stream of so many messages, in memory; the server answers a PING before it has stored all of them."""
    empty(url)
    frame = b"PUB %b %d\r\n%b\r\n" % (SUBJECT.encode(), size, b"x" * size)
    with connect_socket(url, request_timeout=60) as connection:
        for start in range(0, count, 500):
            connection.send(frame * min(500, count - start))
        end_at = time.monotonic() + STORED_WITHIN_S
        while (stored := messages_in_stream(connection)) < count:
            if time.monotonic() > end_at:
                raise RuntimeError(f"of {count} published messages {stored} are stored")
            time.sleep(0.01)


def messages_in_stream(connection: SocketConnection) -> int:
    """How many messages the stream has."""
    answer = connection.request(f"$JS.API.STREAM.INFO.{STREAM}".encode())
    return msgspec.json.decode(answer.payload)["state"]["messages"]


def empty(url: str) -> None:
    """Make a new stream without messages, in memory."""
    with connect_socket(url, request_timeout=60) as connection:
        connection.request(f"$JS.API.STREAM.DELETE.{STREAM}".encode())
        config = f'{{"name":"{STREAM}","subjects":["bench.>"],"storage":"memory"}}'
        connection.request(f"$JS.API.STREAM.CREATE.{STREAM}".encode(), config.encode())


def delete_consumers(url: str) -> None:
    """Delete the consumers of the last run: the next one reads the stream from its beginning."""
    with connect_socket(url, request_timeout=60) as connection:
        answer = connection.request(f"$JS.API.CONSUMER.NAMES.{STREAM}".encode())
        for name in msgspec.json.decode(answer.payload).get("consumers") or ():
            connection.request(f"$JS.API.CONSUMER.DELETE.{STREAM}.{name}".encode())


class Stopwatch:
    """Wall and CPU seconds of what is done with it."""

    def __enter__(self) -> Stopwatch:
        gc.collect()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = Seconds(time.perf_counter() - self._wall, time.process_time() - self._cpu)
