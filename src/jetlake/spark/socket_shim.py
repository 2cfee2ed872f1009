"""Temporary blocking connection until jetlake.client.socket_connection lands."""

from __future__ import annotations

import json
import socket
from typing import Any

from jetlake.protocol.frames import Err, Msg, Ping
from jetlake.protocol.nuid import next_nuid
from jetlake.protocol.parser import ClientParser


class SocketConnection:
    def __init__(self, sock: socket.socket, info: dict[str, Any]) -> None:
        self.sock = sock
        self.info = info
        self.closed = False
        self.inbox = f"_INBOX.{next_nuid()}".encode()
        self._n = 0
        self._parser = ClientParser()
        self._frames: list[Any] = []

    @classmethod
    def connect(cls, host: str, port: int, auth: dict[str, str], timeout_s: float) -> SocketConnection:
        sock = socket.create_connection((host, port), timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        parser = ClientParser()
        frames: list[Any] = []
        while not frames:
            frames = parser.feed(sock.recv(65536))
        info = json.loads(frames[0].json)
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python-jetlake",
            "version": "0.1.0",
            "name": "jetlake-spark",
            **auth,
        }
        c = cls(sock, info)
        sock.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nSUB " + c.inbox + b".* 1\r\nPING\r\n")
        while True:
            for f in parser.feed(sock.recv(65536)):
                if isinstance(f, Err):
                    raise ConnectionError(f.text)
                if type(f).__name__ == "Pong":
                    return c

    @property
    def server_version(self) -> str:
        return str(self.info["version"])

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def request(self, subject: bytes, payload: bytes = b"", timeout_s: float = 5.0) -> Msg:
        self._n += 1
        reply = b"%b.%d" % (self.inbox, self._n)
        self.sock.settimeout(timeout_s)
        self.sock.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))
        while True:
            data = self.sock.recv(65536)
            if not data:
                self.closed = True
                raise ConnectionError("closed")
            for f in self._parser.feed(data):
                if isinstance(f, Ping):
                    self.sock.sendall(b"PONG\r\n")
                elif isinstance(f, Err):
                    raise ConnectionError(f.text)
                elif isinstance(f, Msg) and (f.subject == reply):
                    return f

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def handle_line(self, line: bytes) -> None:
        if line == b"PING":
            self.sock.sendall(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise ConnectionError(line.decode())

    def new_inbox(self) -> bytes:
        self._n += 1
        return b"%b.s.%d" % (self.inbox, self._n)

    def request_many(self, requests: list[tuple[bytes, bytes]], timeout_s: float) -> list[Msg]:
        out = []
        first = self._n + 1
        for subject, payload in requests:
            self._n += 1
            out.append(b"PUB %b %b.%d %d\r\n%b\r\n" % (subject, self.inbox, self._n, len(payload), payload))
        self.sock.settimeout(timeout_s)
        self.sock.sendall(b"".join(out))
        answers: dict[int, Msg] = {}
        while len(answers) < len(requests):
            data = self.sock.recv(65536)
            if not data:
                self.closed = True
                raise ConnectionError("closed")
            for f in self._parser.feed(data):
                if isinstance(f, Ping):
                    self.sock.sendall(b"PONG\r\n")
                elif isinstance(f, Msg):
                    answers[int(f.subject.rpartition(b".")[2]) - first] = f
        return [answers[i] for i in range(len(requests))]
