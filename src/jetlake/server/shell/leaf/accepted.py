"""The hub's end of a leaf connection: INFO, TLS, CONNECT and the check of its credentials, up to the link.

Nothing that a leaf node sends is acted on before its credentials are checked, and nothing that it sent in the clear
where TLS is required. A leaf node that violates the permissions of its user is disconnected: a server that respects
them, as announced in the second INFO, never does.
"""

from __future__ import annotations

import asyncio
import os
from base64 import urlsafe_b64encode
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from jetlake.errors import ConfigError
from jetlake.protocol.encoder import info
from jetlake.protocol.frames import Connect, Frame, Info, LeafSub, Pong
from jetlake.protocol.leaf import LeafParser
from jetlake.server.config.leaf_options import LeafListen, read_version
from jetlake.server.config.options import Permissions, SubjectPermissions
from jetlake.server.engine.core.timers import Timer
from jetlake.server.shell.access.auth import Applicant, Arbiter, Identity
from jetlake.server.shell.access.connect_options import BadConnectError, ConnectOptions
from jetlake.server.shell.access.decision import Decision
from jetlake.server.shell.access.tls import certificate_of, describe_tls
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.leaf.announcements import LeafAccounts
from jetlake.server.shell.leaf.connection import LeafConnection
from jetlake.server.shell.leaf.link import LeafLink
from jetlake.server.shell.leaf.peer_info import PeerInfo
from jetlake.server.version import API_LEVEL, COMPATIBLE_VERSION, JETLAKE_VERSION

if TYPE_CHECKING:
    from jetlake.server.shell.leaf.leaf_nodes import LeafNodes

__all__ = ["AcceptedConnection", "AcceptedConnections"]

_PROTOCOL = 3
# What is read of one frame before the credentials are checked: a CONNECT with a JWT fits.
_STRANGER_BYTES = 64 * 1024
_NOT_A_LEAF = "attempted to connect to leaf node port"
_ACCOUNT_FULL = "maximum account active connections exceeded"
_SUBSCRIPTIONS_FULL = "maximum subscriptions exceeded"
_DUPLICATE = "Duplicate Remote LeafNode Connection"


class LeafConnect(msgspec.Struct, frozen=True):
    """The CONNECT of a leaf node, without its credentials."""

    name: str = ""
    version: str = ""
    cluster: str = ""
    domain: str = ""
    remote_account: str = ""
    headers: bool = False
    is_hub: bool = False
    isolate: bool = False
    deny_pub: tuple[str, ...] | None = None
    lang: str = ""
    gateway: str = ""


class AcceptedConnections:
    """The leaf nodes of a server, those in their handshake among them.

    Args:
        nodes: the leaf connections of the server, accepted and dialled.
        listen: the options of the listener.
        leaf_accounts: the interest of each account.
    """

    def __init__(self, nodes: LeafNodes, listen: LeafListen, leaf_accounts: LeafAccounts) -> None:
        self.nodes = nodes
        self.listen = listen
        self.leaf_accounts = leaf_accounts
        self.all: set[AcceptedConnection] = set()

    def open(self) -> list[AcceptedConnection]:
        """List the connections that carry a link, the oldest first."""
        return sorted((each for each in self.all if each.is_open), key=lambda each: each.peer.cid)

    def limit_of(self, account: str) -> int:
        """Return how many leaf nodes the account may have; negative = any number."""
        return self.nodes.services.accounts.limits_of(account).max_leafnodes

    def of_account(self, account: str) -> list[AcceptedConnection]:
        """List the open connections of one account, the oldest first."""
        return [each for each in self.open() if each.link.account.name == account]

    def apply_settings(self) -> None:
        """End the connections of users who are unknown after a reload, and the newest above the account's limit."""
        for each in list(self.all):
            each.reauthorize()
        for account in {each.link.account.name for each in self.open()}:
            limit = self.limit_of(account)
            for each in self.of_account(account)[limit:] if limit >= 0 else ():
                each.refuse_surplus()

    def end_all(self) -> None:
        """End all connections: the server stops."""
        for each in list(self.all):
            each.end(reason="Server Shutdown")


class _State(Enum):
    SECURING = "waits for TLS"
    GREETED = "waits for CONNECT"
    CHECKING = "waits for a thread that checks the credentials"
    OPEN = "carries a link"


class AcceptedConnection(LeafConnection):
    """One connection from a leaf node.

    Args:
        table: the server's leaf nodes, this one among them until it ends.
        services: with the settings of the way in which the leaf node came.
        number: the connection's number in logs and monitoring.
    """

    def __init__(self, table: AcceptedConnections, services: ConnectionServices, number: int) -> None:
        self._table = table
        self._settings = services.settings
        self._info = services.info
        self._accounts = services.accounts
        self._nonce = urlsafe_b64encode(os.urandom(11)).decode().rstrip("=")
        self._state = _State.GREETED
        self._connect = LeafConnect()
        self._identity: Identity | None = None
        self._expiry: Timer | None = None
        self._is_full = False  # of subscriptions, and the log says so
        link = LeafLink(is_hub=True, domain=table.nodes.domain, report=services.log.warn)
        super().__init__(services, number, link, table.nodes.sockets)
        table.all.add(self)

    def make_parser(self) -> LeafParser:
        """Make the parser: strangers have room for a CONNECT and no more, servers for long lists of queue groups."""
        if self._identity is None:
            return LeafParser(max_control_line=_STRANGER_BYTES, max_payload=_STRANGER_BYTES)
        payload_max = self._settings.options.max_payload
        limit = self._accounts.limits_of(self.link.account.name).max_payload
        return LeafParser(max_payload=limit if 0 <= limit < payload_max else payload_max)

    # Handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.closed:
            return
        self.writer.send(info(self._encode_info(with_nonce=True)))
        self.writer.flush()
        tls = self._settings.options.tls
        if tls is not None and not self._is_encrypted():
            self._state = _State.SECURING
            assert self._transport is not None
            self._transport.pause_reading()  # The next bytes are for TLS.
            self._expect_within(tls.timeout_s, self._time_out)
            self._engine_loop.start_task(self._secure())
        else:
            self._expect_within(self._settings.options.auth_timeout_s, self._time_out)

    def _is_encrypted(self) -> bool:
        return self._tls_channel() is not None

    async def _secure(self) -> None:
        transport, context = self._transport, self._settings.tls_context
        assert transport is not None and context is not None
        try:
            loop = self._engine_loop.loop
            if self.closed:
                return
            secured = await loop.start_tls(transport, self, context, server_side=True)
        except OSError as error:  # Errors of TLS are OSErrors.
            self._log.error(f"{self.peer} - TLS leafnode handshake error: {error}")
            self.drop("TLS Handshake Failure")
            return
        if secured is None or self.closed:
            self.drop("TLS Handshake Failure")
            return
        self._attach(secured)
        self._state = _State.GREETED
        self._expect_within(self._settings.options.auth_timeout_s, self._time_out)

    def _time_out(self, _now_ns: int) -> None:
        if self._state is _State.SECURING:
            self._log.error(f"{self.peer} - TLS leafnode handshake error: timeout")
            self.drop("TLS Handshake Failure", at_once=True)
        elif self._state is _State.GREETED:
            self._log.error(f"{self.peer} - authentication timeout")
            self.end("Authentication Timeout", reason="Authentication Timeout")

    def _encode_info(self, *, with_nonce: bool = False) -> bytes:
        """Encode INFO: the greeting with the nonce to be signed, or behind CONNECT what the leaf node may do."""
        options, about, identity = self._settings.options, self._info, self._identity
        address = self._table.listen.advertise or _own_address(self._transport)
        host, _, port = address.rpartition(":")
        fields: dict[str, Any] = {
            "server_id": about.id,
            "server_name": about.name,
            "version": COMPATIBLE_VERSION,
            "jetlake": JETLAKE_VERSION,
            "proto": _PROTOCOL,
            "host": host.strip("[]"),
            "port": int(port),
            "headers": not options.no_header_support,
            "max_payload": self.make_parser().max_payload if identity is not None else options.max_payload,
            "client_id": self.peer.cid,
            "api_lvl": API_LEVEL,
            "info_on_connect": True,
            "leafnode_urls": [address],
        }
        if self._settings.authenticator.required:
            fields["auth_required"] = True
        if options.tls is not None:
            fields["tls_required"] = True
            if options.tls.verify:
                fields["tls_verify"] = True
        if self._engine_loop.engine is not None:
            fields["jetstream"] = True
        if self._table.nodes.domain:
            fields["domain"] = self._table.nodes.domain
        if with_nonce:
            fields["nonce"] = self._nonce
        if identity is not None:
            fields["connect_info"] = True
            fields["remote_account"] = self.link.account.name
            if self.link.account.name == options.system_account:
                fields["acc_is_sys"] = True
            permissions = identity.permissions or Permissions()
            # The leaf node subscribes for its clients here, and publishes for them.
            for name, lists in (("import", permissions.subscribe), ("export", permissions.publish)):
                if lists is not None:
                    fields[name] = {"allow": lists.allow, "deny": lists.deny}
        return msgspec.json.encode(fields)

    # Frames

    def handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
        for place, frame in enumerate(frames):
            if self._state is _State.OPEN:
                return super().handle(frames[place:] if place else frames, deadline_s)
            if self._state is not _State.GREETED:
                # A leaf node waits for the answer to CONNECT: this one is not to be waited for.
                self._refuse_credentials()
                return []
            if isinstance(frame, Connect):
                self._receive_connect(frame.json)
            elif not isinstance(frame, Info | Pong):
                self._refuse_frame(frame)
            if self.closed:
                return []
        return []

    def _refuse_frame(self, frame: Frame) -> None:
        if not self.is_open and not self.closed:
            self._refuse_credentials()

    def _subscribe(self, frame: LeafSub) -> None:
        limits = self._accounts.limits_of(self.link.account.name)
        limit = limits.max_subscriptions if limits.max_subscriptions > 0 else self._settings.options.max_subscriptions
        if 0 < limit <= self.link.interest_count and not self.link.knows(frame):
            if not self._is_full:
                self._is_full = True
                self._log.error(f"{self.peer} - {_SUBSCRIPTIONS_FULL}")
            self.writer.send(b"-ERR '%b'\r\n" % _SUBSCRIPTIONS_FULL.encode())
            return
        super()._subscribe(frame)

    # CONNECT

    def _receive_connect(self, json: bytes) -> None:
        try:
            credentials = ConnectOptions().changed_by(json)
            connect = msgspec.json.decode(json, type=LeafConnect)
        except (BadConnectError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._log.error(f"{self.peer} - malformed CONNECT")
            self.end(reason="Parse Error")
            return
        problem = self._problem_of(connect)
        if problem:
            self._log.error(f"{self.peer} - {problem}")
            self.end(problem, reason=problem)
            return
        self._connect = connect
        authenticator = self._settings.authenticator
        if authenticator.is_slow(credentials):
            self._state = _State.CHECKING
            self._engine_loop.start_task(self._check_in_thread(credentials))
        else:
            certificate = self._certificate()
            identity = authenticator.authenticate(credentials, self._nonce, certificate, self.peer.host)
            self._settle(credentials, identity)

    def _settle(self, credentials: ConnectOptions, identity: Identity | None) -> None:
        """Continue once the credentials are checked, unless another program decides."""
        arbiter = self._settings.authenticator.arbiter(credentials, identity)
        if arbiter is None:
            self._complete(identity)
        else:
            self._state = _State.CHECKING
            self._engine_loop.start_task(self._ask(arbiter, credentials))

    async def _ask(self, arbiter: Arbiter, credentials: ConnectOptions) -> None:
        authenticator, settings = self._settings.authenticator, self._settings
        applicant = Applicant(
            connect=credentials,
            nonce=self._nonce,
            cid=self.peer.cid,
            host=self.peer.host,
            connection_type=settings.connection_type,
            client_type=self.peer.client_type,
            tls=describe_tls(channel) if (channel := self._tls_channel()) is not None else {},
            certificate=self._certificate(),
        )
        decision = Decision(arbiter, applicant, self._engine_loop.loop)
        self._engine_loop.schedule()  # At the end of this turn its deadline is armed.
        identity = await decision.wait(
            self._engine_loop.timers,
            self._clock.now_ns(),
            settings.options.auth_timeout_s,
            lambda text: self._log.error(f"{self.peer} - {text}"),
        )
        if self.closed:
            return
        if identity is not None:
            # Accounts may have changed since the arbiter's word.
            identity = settings.authenticator.recognize(identity, authenticator)
        self._complete(identity)
        self._engine_loop.schedule()

    def _problem_of(self, connect: LeafConnect) -> str:
        """Return why this is no leaf node for this server; empty when it is one."""
        if connect.lang:
            return _NOT_A_LEAF
        if connect.gateway:
            return f'Rejecting connection from gateway "{connect.gateway[:80]}" on the leafnode port'
        if any(letter.isspace() for letter in connect.cluster):
            return "cluster name cannot contain spaces"
        least = self._table.listen.min_version
        if least and read_version(connect.version) < read_version(least):
            return f'connection rejected since minimum version required is "{least}"'
        return ""

    def _tls_channel(self) -> Any:
        return self._transport.get_extra_info("ssl_object") if self._transport is not None else None

    def _certificate(self) -> Any:
        channel = self._tls_channel()
        return certificate_of(channel) if channel is not None else None

    async def _check_in_thread(self, credentials: ConnectOptions) -> None:
        """Compute a password hash without keeping the loop from its work."""
        authenticator, certificate = self._settings.authenticator, self._certificate()

        def authenticate() -> Identity | None:
            if self.closed:
                return None
            return authenticator.authenticate(credentials, self._nonce, certificate, self.peer.host)

        identity: Identity | None = None
        try:
            identity = await self._engine_loop.loop.run_in_executor(None, authenticate)
        except ConfigError as error:
            self._log.error(f"{self.peer} - {error}")
        if self.closed:
            return
        current = self._settings.authenticator
        if identity is not None and current is not authenticator:
            identity = current.recognize(identity, authenticator)  # A reload may have removed the user.
        self._settle(credentials, identity)

    def _complete(self, identity: Identity | None) -> None:
        if identity is None:
            self._refuse_credentials()
            return
        table, connect = self._table, self._connect
        name = self._account_of(identity)
        account = self._accounts.get_or_create(name)
        for twin in table.of_account(name):
            if twin.is_twin_of(connect):
                # The leaf node has come back before its old connection was found dead.
                twin.end(_DUPLICATE, reason=_DUPLICATE)
        if 0 <= table.limit_of(name) <= len(table.of_account(name)):
            self.refuse_surplus()
            return
        self._identity = identity
        if identity.expires_ns:
            self._expiry = self._engine_loop.timers.schedule(identity.expires_ns, self._expire)
        self.link.join(account, table.leaf_accounts.of(account))
        self._state = _State.OPEN
        self._reader.apply_limits()
        self.writer.send(info(self._encode_info()))
        self._open(self._peer_info(identity))

    def _expire(self, _now_ns: int) -> None:
        self.end("User Authentication Expired", reason="Authentication Expired")

    def _account_of(self, identity: Identity) -> str:
        """Return the account of the leaf node; without credentials the listener's, where it has one."""
        return self._table.listen.account or identity.account if not identity.kind else identity.account

    def _peer_info(self, identity: Identity) -> PeerInfo:
        connect, permissions = self._connect, identity.permissions or Permissions()
        exports = permissions.subscribe or SubjectPermissions()
        return PeerInfo(
            name=connect.name,
            domain=connect.domain,
            cluster=connect.cluster,
            headers=connect.headers and not self._settings.options.no_header_support,
            max_payload=self._settings.options.max_payload,
            imports=permissions.publish or SubjectPermissions(),
            exports=SubjectPermissions(allow=exports.allow, deny=(*exports.deny, *(connect.deny_pub or ()))),
            is_isolated=connect.isolate or self._table.listen.isolate,
            is_hub=connect.is_hub,
        )

    def is_twin_of(self, connect: LeafConnect) -> bool:
        """Return whether this connection is of the same leaf node, for the same account there."""
        mine = self._connect
        if not mine.remote_account or not mine.name:
            return False
        return (mine.name, mine.cluster, mine.remote_account) == (
            connect.name,
            connect.cluster,
            connect.remote_account,
        )

    # The end

    def _refuse_credentials(self) -> None:
        self._log.error(f"{self.peer} - authentication error")
        self.end("Authorization Violation", reason="Authentication Failure")

    def refuse_surplus(self) -> None:
        """End a connection that its account has no room for."""
        self._log.error(f"{self.peer} - {_ACCOUNT_FULL}")
        self.end(_ACCOUNT_FULL, reason="Maximum Account Connections Exceeded")

    def reauthorize(self) -> None:
        """Take over new limits; end the connection when a reload has changed its user, who then connects again."""
        if self._identity is not None:
            settings = self._settings
            found = settings.authenticator.recognize(self._identity, settings.previous_authenticator)
            if found != self._identity:
                self._refuse_credentials()
            else:
                self._reader.apply_limits()
                self.writer.apply_limits()

    def _close(self, reason: str) -> None:
        super()._close(reason)
        self._engine_loop.timers.cancel(self._expiry)
        self._table.all.discard(self)


def _own_address(transport: asyncio.Transport | None) -> str:
    """Return the address that the leaf node connected to."""
    address = transport.get_extra_info("sockname") if transport is not None else None
    if not isinstance(address, tuple):
        return "localhost:0"
    host = str(address[0]).removeprefix("::ffff:")
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
