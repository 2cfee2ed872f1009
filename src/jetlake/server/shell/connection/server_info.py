"""The server's description of itself: the JSON of INFO, and the `server` object of advisories and system replies."""

from __future__ import annotations

import sys
from typing import Any

from msgspec.json import encode

from jetlake.model.consumer_features import SERVER_FEATURES
from jetlake.model.encoding.times import format_time
from jetlake.server.engine.core.clock import Clock
from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.session import Session
from jetlake.server.shell.engine_loop import EngineLoop
from jetlake.server.version import API_LEVEL, COMPATIBLE_VERSION, JETLAKE_VERSION, PROTOCOL

__all__ = ["ServerInfo"]

# The value of `flags` for a server with JetStream.
_HAS_JETSTREAM = 1

_RUNTIME = "python" + sys.version.partition(" ")[0]


class ServerInfo:
    """Name, address and state of a server, for clients and other servers.

    Attributes:
        id: the server's public nkey.
        start_ns: when the server was made.
        lame_duck: the server closes its connections and stops.
    """

    def __init__(self, id: str, clock: Clock, settings: Settings, engine_loop: EngineLoop) -> None:
        self.id = id
        self.start_ns = clock.now_ns()
        self.lame_duck = False
        self._clock = clock
        self._settings = settings
        self._engine_loop = engine_loop
        self._sent = 0

    @property
    def name(self) -> str:
        """The server's name; its id unless the options name it."""
        return self._settings.options.server_name or self.id

    @property
    def port(self) -> int:
        """The port for clients; 0 before the server listens."""
        return self._settings.port

    def encode_info(
        self, settings: Settings, peer: Peer, nonce: str, session: Session | None = None, *, lame_duck: bool = False
    ) -> bytes:
        """Encode the JSON of INFO for one client.

        Args:
            settings: what the client is served with.
            nonce: what a client with an nkey has to sign; empty = nothing.
            session: the client's session, for the INFO that answers its CONNECT; None = another INFO.
            lame_duck: this client is asked to leave, also when the server stays.
        """
        options, authenticator = settings.options, settings.authenticator
        host, _, port = options.client_advertise.rpartition(":")
        fields: dict[str, Any] = {
            "server_id": self.id,
            "server_name": self.name,
            "version": COMPATIBLE_VERSION,
            "jetlake": JETLAKE_VERSION,
            "jetlake_features": SERVER_FEATURES,
            "proto": PROTOCOL,
            "go": _RUNTIME,
            "host": host or options.host,
            "port": int(port) if port.isdecimal() else settings.port,
            "headers": not options.no_header_support,
            "max_payload": options.max_payload if session is None else session.payload_max(options.max_payload),
            "client_id": peer.cid,
            "client_ip": peer.host,
            "api_lvl": API_LEVEL,
        }
        if authenticator.required and (session is not None or not authenticator.has_default_user):
            fields["auth_required"] = True
        if options.tls is not None:
            fields["tls_available" if options.allow_non_tls else "tls_required"] = True
            if options.tls.verify:
                fields["tls_verify"] = True
        if self._engine_loop.engine is not None:
            fields["jetstream"] = True
            if options.jetstream is not None and options.jetstream.domain:
                fields["domain"] = options.jetstream.domain
        if nonce:
            fields["nonce"] = nonce
        if self.lame_duck or lame_duck:
            fields["ldm"] = True
        if session is not None:
            fields["connect_info"] = True
            fields["remote_account"] = session.account.name
            if session.account.name == options.system_account:
                fields["acc_is_sys"] = True
        return encode(fields)

    def identify(self) -> dict[str, Any]:
        """Describe the server in short."""
        return {"name": self.name, "host": self._settings.options.host, "id": self.id}

    def describe_sender(self) -> dict[str, Any]:
        """Describe the server as the sender of a report, with the number and the time of the report."""
        self._sent += 1
        options = self._settings.options
        has_jetstream = self._engine_loop.engine is not None
        return {
            **self.identify(),
            "ver": COMPATIBLE_VERSION,
            "feature_flags": {"js_ack_fc_v2": options.ack_subject_v2},
            **({"domain": options.jetstream.domain} if options.jetstream and options.jetstream.domain else {}),
            "jetstream": has_jetstream,
            **({"flags": _HAS_JETSTREAM} if has_jetstream else {}),
            "seq": self._sent,
            "time": format_time(self._clock.now_ns()),
        }
