"""The servers of histories, with the intruder's hands: one in memory, and real ones."""

from __future__ import annotations

import base64
import copy

from jetlake.client.connection.handshake import read_info
from jetlake.client.connection.socket_connection import SocketConnection, open_socket
from jetlake.model.encoding.times import format_time
from tests.spark.model.fake_jetstream import FakeJetStream, FakeSocket


class FakeWorld:
    """A server in memory, whose time the history moves."""

    moves_time = True
    url = "nats://fake:4222"

    def __init__(self) -> None:
        self.server = FakeJetStream()
        self.backups: dict = {}

    @property
    def now_ns(self) -> int:
        return self.server.now_ns

    @now_ns.setter
    def now_ns(self, value: int) -> None:
        self.server.now_ns = value

    def open_connection(self, wrap, options) -> SocketConnection:
        sock = FakeSocket(self.server)
        info = read_info(sock.recv(1 << 16)[5:-2])
        return SocketConnection(wrap(sock), options.servers[0], info, options)

    def expire(self) -> None:
        self.server.expire()

    def create(self, config: dict) -> None:
        self.server.create(copy.deepcopy(config))

    def delete(self, name: str) -> None:
        del self.server.streams[name]

    def publish(self, subject: str, data: bytes) -> int:
        return self.server.publish(subject, b"", data)["seq"]

    def purge(self, name: str, body: dict) -> None:
        self.server.answer(f"$JS.API.STREAM.PURGE.{name}", body)

    def delete_message(self, name: str, sequence: int) -> None:
        self.server.streams[name].remove([sequence])

    def look(self, name: str):
        stream = self.server.streams[name]
        return format_time(stream.created_ns), set(stream.messages)

    def payloads(self, name: str) -> list[str]:
        return [message.data.decode() for message in self.server.streams[name].messages.values()]

    def snapshot(self, name: str):
        return self.server.snapshot(name)

    def restore(self, name: str, state) -> None:
        self.server.streams[name] = state


class RealWorld:
    """A server in a process of its own; the intruder has a connection of his own (`admin`)."""

    moves_time = False

    def __init__(self, url: str, admin) -> None:
        self.url = url
        self._admin = admin
        self.now_ns = 0

    def open_connection(self, wrap, options) -> SocketConnection:
        connection = open_socket(options)
        connection.sock = wrap(connection.sock)
        return connection

    def create(self, config: dict) -> None:
        self._admin.api(f"STREAM.CREATE.{config['name']}", config)

    def delete(self, name: str) -> None:
        self._admin.api(f"STREAM.DELETE.{name}")

    def publish(self, subject: str, data: bytes) -> int:
        return self._admin.publish([(subject, data)])[0]["seq"]

    def purge(self, name: str, body: dict) -> None:
        self._admin.api(f"STREAM.PURGE.{name}", body)

    def delete_message(self, name: str, sequence: int) -> None:
        # Somebody else may have been faster.
        self._admin.request(f"$JS.API.STREAM.MSG.DELETE.{name}", {"seq": sequence})

    def look(self, name: str):
        info = self._admin.api(f"STREAM.INFO.{name}", {"deleted_details": True})
        state = info["state"]
        present = set(range(state["first_seq"], state["last_seq"] + 1)) if state["messages"] else set()
        return info["created"], present - set(state.get("deleted") or ())

    def payloads(self, name: str) -> list[str]:
        return [base64.b64decode(message["data"]).decode() for message in self._admin.messages(name)]

    def clear(self) -> None:
        """Remove all streams, for the next history."""
        for name in ("S1", "S2", "S3", "OUT", "KV_jetlake_spark"):
            self._admin.request(f"$JS.API.STREAM.DELETE.{name}")
