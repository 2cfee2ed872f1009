"""The events of a server: clients that come and go, refused clients, heartbeats, lame duck mode and shutdown."""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from jetlake.model.encoding.times import format_time
from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.monitoring.server_view import ServerView

__all__ = ["SystemEvents"]

_TYPE = "io.nats.server.advisory.v1."
# Heartbeats begin soon, and come less and less often.
_FIRST_S = 0.25
_NEXT_S = 1.0
_LATER_S = 10.0


class SystemEvents:
    """Publishes the server's events in its system account; an event without a subscriber is not made.

    Args:
        account: the system account.
    """

    def __init__(self, server: ServerView, account: Account) -> None:
        self._server = server
        self._account = account
        self._pause_s = _NEXT_S

    def start(self) -> None:
        """Begin the heartbeats."""
        self._server.engine_loop.call_later(_FIRST_S, self._beat)

    def connected(self, connection: Connection) -> None:
        """Publish that a client was authenticated."""
        name = connection.session.account.name
        if name == self._account.name:
            return
        self._publish_connections(name)
        subject = f"$SYS.ACCOUNT.{name}.CONNECT"
        if self._is_wanted(subject):
            client = self._client(connection)
            client.pop("rtt", None)
            self._publish(subject, {**self._head("client_connect"), "client": client})

    def closed(self, connection: Connection) -> None:
        """Publish that a client is gone, and that it was refused if that is why."""
        name = connection.session.account.name
        if connection.session.identity is not None:
            self._publish_connections(name)
        subjects = [f"$SYS.ACCOUNT.{name}.DISCONNECT"] if name != self._account.name else []
        if connection.close_reason == "Authentication Failure":
            subjects.insert(0, f"$SYS.SERVER.{self._server.info.id}.CLIENT.AUTH.ERR")
        for subject in subjects:
            if self._is_wanted(subject):
                self._publish(subject, {**self._head("client_disconnect"), **self._farewell(connection)})

    def lame_duck(self) -> None:
        """Publish that the server closes its connections and stops."""
        self._publish_state("LAMEDUCK")

    def shut_down(self) -> None:
        """Publish that the server stops now."""
        self._publish_state("SHUTDOWN")

    def _publish_state(self, word: str) -> None:
        subject = f"$SYS.SERVER.{self._server.info.id}.{word}"
        if self._is_wanted(subject):
            self._publish(subject, self._server.info.describe_sender())

    def _publish_connections(self, name: str) -> None:
        subjects = [f"$SYS.SERVER.ACCOUNT.{name}.CONNS", f"$SYS.ACCOUNT.{name}.SERVER.CONNS"]
        wanted = [subject for subject in subjects if self._is_wanted(subject)]
        if wanted and name != self._account.name:
            from jetlake.server.shell.monitoring.account_reports import account_row

            event = self._head("account_connections") | account_row(self._server, self._server.accounts[name])
            for subject in wanted:
                self._publish(subject, event)

    def _beat(self) -> None:
        """Publish the server's statistics, and again after a pause."""
        server = self._server
        if not server.running:
            return
        subject = f"$SYS.SERVER.{server.info.id}.STATSZ"
        if self._is_wanted(subject):
            from jetlake.server.shell.system.answers import statistics

            self._publish(subject, {"server": server.info.describe_sender(), "statsz": statistics(server)})
            server.engine_loop.schedule()
        server.engine_loop.call_later(self._pause_s, self._beat)
        self._pause_s = min(2 * self._pause_s, _LATER_S)

    def _is_wanted(self, subject: str) -> bool:
        return self._account.has_interest(subject.encode())

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "type": _TYPE + kind,
            "id": next_nuid(),
            "timestamp": format_time(self._server.clock.now_ns()),
            "server": self._server.info.describe_sender(),
        }

    def _publish(self, subject: str, event: dict[str, Any]) -> None:
        self._account.publish(subject.encode(), b"", b"", encode(event))

    def _client(self, connection: Connection) -> dict[str, Any]:
        client = connection.client_info()
        del client["server"]
        tried = connection.session.options.user
        if tried and self._server.settings.authenticator.knows(tried):
            client["user"] = tried  # of a client that was refused, too
        return client | {"name_tag": connection.session.account.label}

    def _farewell(self, connection: Connection) -> dict[str, Any]:
        """Describe a client that is gone: what it has sent and received, and why it ended."""
        return {
            "client": self._client(connection) | {"stop": format_time(connection.stop_ns)},
            "sent": {"msgs": connection.in_msgs, "bytes": connection.in_bytes},
            "received": {"msgs": connection.out_msgs, "bytes": connection.out_bytes},
            "reason": connection.close_reason,
        }
