"""A raw client for benchmarks: sends bytes that were made before, and reads as little as the question needs."""

from __future__ import annotations

import json
import re
import socket
import threading
from functools import partial

__all__ = ["RawClient"]

_OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
_ANSWER = re.compile(rb"MSG _INBOX\.b\.(\d+) 1 (\d+)\r\n")


class RawClient:
    """One connection.

    Args:
        port: where the server listens on this machine.
    """

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = 0
        self._data = bytearray()
        self.socket.sendall(b"CONNECT " + json.dumps(_OPTIONS).encode() + b"\r\nSUB _INBOX.b.* 1\r\n")
        self.ping()

    def close(self) -> None:
        self.socket.close()

    def ping(self) -> None:
        """Return when the server has handled everything sent so far."""
        self.socket.sendall(b"PING\r\n")
        self.read_count(b"PONG\r\n", 1)

    def read_count(self, token: bytes, count: int) -> None:
        """Read until these bytes have come so many times; what else comes is dropped."""
        keep = len(token) - 1
        data = bytes(self._data)
        while count > 0:
            count -= data.count(token)
            if count > 0:
                data = data[-keep:] + self._receive()
        self._data.clear()

    def drain_in_thread(self) -> threading.Thread:
        """Read and drop everything until the connection ends."""
        thread = threading.Thread(target=self._drain, daemon=True)
        thread.start()
        return thread

    def send_and_count(self, chunks: list[bytes], token: bytes, count: int) -> None:
        """Send chunks while a thread reads, until these bytes have come so many times."""
        reader = threading.Thread(target=self.read_count, args=(token, count))
        reader.start()
        for chunk in chunks:
            self.socket.sendall(chunk)
        reader.join()

    def request(self, subject: str, body: object = None) -> dict[str, object]:
        """One API request and its JSON answer."""
        return self.requests([(subject, body)])[0]

    def requests(self, calls: list[tuple[str, object]]) -> list[dict[str, object]]:
        """Many API requests at once, and their answers in the order of the requests."""
        first = self._requests
        lines = []
        for subject, body in calls:
            payload = b"" if body is None else json.dumps(body).encode()
            reply = b"_INBOX.b.%d" % self._requests
            lines.append(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(payload), payload))
            self._requests += 1
        # Answers to few requests fit into the socket's buffers; those to many are read while the requests leave.
        send = partial(self.socket.sendall, b"".join(lines))
        sender = threading.Thread(target=send)
        if len(calls) > 1:
            sender.start()
        else:
            send()
        answers: dict[int, dict[str, object]] = {}
        while len(answers) < len(calls):
            found = _ANSWER.search(self._data)
            end = found.end() + int(found[2]) + 2 if found is not None else 0
            if found is None or len(self._data) < end:
                self._data += self._receive()
                continue
            answer = json.loads(self._data[found.end() : end - 2])
            if "error" in answer:
                raise SystemExit(f"{calls[int(found[1]) - first][0]}: {answer['error']}")
            answers[int(found[1]) - first] = answer
            del self._data[:end]
        if len(calls) > 1:
            sender.join()
        return [answers[index] for index in range(len(calls))]

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise SystemExit("the server closed the connection")
        return data

    def _drain(self) -> None:
        try:
            while self.socket.recv(1 << 20):
                pass
        except OSError:
            pass
