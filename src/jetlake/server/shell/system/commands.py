"""The commands of the system account: reload, end a client, or ask it to leave; and remove an account's streams."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.json import encode

from jetlake.errors import JetlakeError
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_view import ServerView

__all__ = ["COMMANDS", "purge_account", "run_command"]


def _reload(server: ServerView, query: Query) -> None:
    server.reload_configuration()


def _kick(server: ServerView, query: Query) -> None:
    _client(server, query).end(reason="Kicked")


def _ask_to_leave(server: ServerView, query: Query) -> None:
    _client(server, query).handshake.send_info(lame_duck=True)


def _client(server: ServerView, query: Query) -> Connection:
    connection = server.connections.get(query.number("cid", 0))
    if connection is None:
        raise JetlakeError("no such client or leafnode id")
    return connection


COMMANDS: dict[str, Callable[[ServerView, Query], None]] = {"RELOAD": _reload, "KICK": _kick, "LDM": _ask_to_leave}


def run_command(server: ServerView, name: str, body: bytes) -> bytes:
    """Run a command, and encode the answer: the server alone, or with an error."""
    error = None
    try:
        COMMANDS[name](server, Query.from_json(body))
    except BadQueryError as bad:
        error = {"code": 400, "description": str(bad)}
    except JetlakeError as failed:
        error = {"code": 500, "description": str(failed)}
    answer = {"server": server.info.describe_sender()}
    return encode(answer if error is None else {**answer, "error": error})


def purge_account(server: ServerView, name: str) -> bytes:
    """Delete all streams of an account; the answer says that it has begun, also for an account without any."""
    engine = server.engine_loop.engine
    jetstream = engine.jetstreams.get(name) if engine is not None else None
    if jetstream is not None:
        for stream in tuple(jetstream.streams):
            # Through the account's API, where it waits its turn behind requests about the stream.
            jetstream.account.publish(b"$JS.API.STREAM.DELETE." + stream.encode(), b"", b"", b"")
    return encode({"type": "io.nats.jetstream.api.v1.account_purge_response", "initiated": True})
