"""How the server and a client are described: the JSON of INFO, and the `client` object of advisories."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from jetlake.model.encoding.times import format_time
from jetlake.server.version import API_LEVEL, COMPATIBLE_VERSION, JETLAKE_VERSION, PROTOCOL

if TYPE_CHECKING:
    from jetlake.server.shell.connection.connection import Connection
    from jetlake.server.shell.connection.handshake import Entrance
    from jetlake.server.shell.server import Server

__all__ = ["describe_client", "describe_sender", "describe_server", "identify"]

# What `flags` says of a server: it has JetStream.
_HAS_JETSTREAM = 1

_RUNTIME = "python" + sys.version.partition(" ")[0]


def describe_server(server: Server, connection: Entrance, *, connect_info: bool = False) -> bytes:
    """The JSON of INFO as this client gets it; with `connect_info` as the answer to its CONNECT."""
    options = server.options
    host, _, port = options.client_advertise.rpartition(":")
    fields: dict[str, Any] = {
        "server_id": server.id,
        "server_name": server.name,
        "version": COMPATIBLE_VERSION,
        "jetlake": JETLAKE_VERSION,
        "proto": PROTOCOL,
        "go": _RUNTIME,
        "host": host or options.host,
        "port": int(port) if port.isdecimal() else server.port,
        "headers": True,
        "max_payload": options.max_payload,
        "client_id": connection.cid,
        "client_ip": connection.peer_host,
        "api_lvl": API_LEVEL,
    }
    if server.authenticator.required and (connect_info or server.authenticator.default is None):
        fields["auth_required"] = True
    if options.tls is not None:
        fields["tls_available" if options.allow_non_tls else "tls_required"] = True
        if options.tls.verify:
            fields["tls_verify"] = True
    if server.engine is not None:
        fields["jetstream"] = True
        if options.jetstream is not None and options.jetstream.domain:
            fields["domain"] = options.jetstream.domain
    if connection.nonce:
        fields["nonce"] = connection.nonce
    if server.lame_duck:
        fields["ldm"] = True
    if connect_info:
        fields["connect_info"] = True
        fields["remote_account"] = connection.account.name
    return encode(fields)


def describe_client(server: Server, connection: Connection) -> dict[str, Any]:
    """Who a client is, with the keys that advisories use; what is not known is left out."""
    options = connection.options
    fields = {
        "start": format_time(connection.start_ns),
        "host": connection.peer_host,
        "id": connection.cid,
        "acc": connection.account.name,
        "user": connection.identity.user if connection.identity is not None else "",
        "name": options.name,
        "lang": options.lang,
        "ver": options.version,
        "rtt": connection.rtt_ns,
        "server": server.name,
        "kind": "Client",
        "client_type": "nats",
    }
    return {key: value for key, value in fields.items() if value not in ("", 0)}


def identify(server: Server) -> dict[str, Any]:
    """Which server this is."""
    return {"name": server.name, "host": server.options.host, "id": server.id}


def describe_sender(server: Server) -> dict[str, Any]:
    """The server as it signs what it says, with a number that grows with each message of this kind."""
    server.said += 1
    has_jetstream = server.engine is not None
    return {
        **identify(server),
        "ver": COMPATIBLE_VERSION,
        "jetstream": has_jetstream,
        **({"flags": _HAS_JETSTREAM} if has_jetstream else {}),
        "seq": server.said,
        "time": format_time(server.clock.now_ns()),
    }
