"""The handshake of a connection: INFO, TLS before or after it, CONNECT, and authentication."""

from __future__ import annotations

import asyncio
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jetlake.errors import ConfigError
from jetlake.protocol.encoder import OK, PONG, info
from jetlake.server.engine.core.timers import Timer
from jetlake.server.shell.access.auth import Applicant, Arbiter, Identity
from jetlake.server.shell.access.certificate import Certificate
from jetlake.server.shell.access.connect_options import BadConnectError, ConnectOptions
from jetlake.server.shell.access.decision import Decision
from jetlake.server.shell.access.permissions import PermissionCheck
from jetlake.server.shell.access.tls import TLS_HANDSHAKE, TlsChannel, TlsError, certificate_of, describe_tls
from jetlake.server.shell.connection.gone import GONE
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection.subscriptions import ClientSubscriptions

if TYPE_CHECKING:
    from jetlake.server.shell.connection.connection import Connection

__all__ = ["Handshake"]

_SECOND_NS = 1_000_000_000
_ACCOUNT_FULL = "maximum account active connections exceeded"


class Handshake:
    """The handshake of a connection, from its first byte to an authenticated session.

    Args:
        connection: its session is bound to the user, and it gets the flags that the client's CONNECT asks for.
        subscriptions: checked again when the account or the permissions change.

    Attributes:
        is_encrypted: bytes from the network have to go through `decrypt`.
        tls_ended: the peer has ended TLS, and sends nothing more.
        awaits_tls: nothing can be sent because the TLS handshake is not complete.
        checking: a thread checks the credentials, or another program decides; frames wait until that is done.
        tls_description: version and cipher, for monitoring; empty without TLS.
        cookies: credentials that came before CONNECT, by their names there.
    """

    def __init__(
        self, connection: Connection, subscriptions: ClientSubscriptions, services: ConnectionServices
    ) -> None:
        self.checking = False
        self.tls_description: dict[str, str] = {}
        self.cookies: dict[str, str] = {}
        self._connection = connection
        self._peer = connection.peer
        self._session = connection.session
        self._subscriptions = subscriptions
        self._writer = connection.writer
        self._settings = services.settings
        self._clock = services.clock
        self._log = services.log
        self._engine_loop = services.engine_loop
        self._accounts = services.accounts
        self._info = services.info
        self._entered = ""  # the account that counts this connection
        self._nonce = ""
        self._tls: TlsChannel | None = None
        self._certificate_below: Certificate | None = None
        self.is_encrypted = self.awaits_tls = self.tls_ended = False
        self._info_sent = False
        self._connected = False  # CONNECT was accepted
        self._connect_info_sent = False
        self._timer: Timer | None = None
        self._expiry: Timer | None = None
        self._decision: Decision | None = None

    def take_over(self, transport: asyncio.BaseTransport) -> None:
        """Take what the transport below knows of the client: credentials in cookies, and TLS."""
        self.cookies = transport.get_extra_info("cookies") or {}
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None:
            self.tls_description = describe_tls(ssl_object)
            self._certificate_below = certificate_of(ssl_object)

    def start(self) -> None:
        """Send INFO, or wait for TLS where TLS comes first."""
        if self._settings.authenticator.uses_nonce:
            self._nonce = urlsafe_b64encode(os.urandom(11)).decode().rstrip("=")
        tls = self._settings.options.tls
        if tls is None or self.tls_description:
            self.send_first_info()
            self._expect_authentication()
            return
        self.is_encrypted = self.awaits_tls = True
        if tls.handshake_first:
            self._set_timer(tls.handshake_first_fallback_s or tls.timeout_s, self._time_out_tls)
        else:
            self.send_first_info()
            self._set_timer(tls.timeout_s, self._time_out_tls)

    def close(self) -> None:
        """Cancel the deadline of the current step, and leave the account."""
        self._engine_loop.timers.cancel(self._timer)
        self._engine_loop.timers.cancel(self._expiry)
        if self._decision is not None:
            self._decision.cancel()
        self._accounts.leave(self._entered)
        self._entered = ""

    def detach(self) -> None:
        """Release the TLS channel and the connection, which are gone."""
        self._tls = None
        self._connection = GONE

    # INFO

    def send_first_info(self) -> None:
        """Send INFO at once: the client waits for it."""
        self._info_sent = True
        self._writer.send(info(self._info.encode_info(self._settings, self._peer, self._nonce)))
        self._writer.flush()

    def send_info(self, *, lame_duck: bool = False) -> None:
        """Send INFO again, to a client that understands it: the server has changed, or the client is to leave."""
        if self._connected and self._session.options.protocol >= 1:
            self._writer.send(
                info(self._info.encode_info(self._settings, self._peer, self._nonce, lame_duck=lame_duck))
            )

    def answer_ping(self) -> None:
        """Send PONG, and behind the first one the INFO that names the client's account."""
        self._writer.send(PONG)
        if not self._connect_info_sent and self._connected and self._session.options.protocol >= 1:
            self._connect_info_sent = True
            self._writer.send(info(self._info.encode_info(self._settings, self._peer, self._nonce, self._session)))

    # TLS

    def decrypt(self, data: bytes) -> bytes:
        """Return the plaintext; empty while the TLS handshake continues, and when the connection ends here."""
        tls = self._tls
        if tls is None:
            if data[0] != TLS_HANDSHAKE:
                return self._accept_cleartext(data)
            assert self._settings.tls_context is not None
            tls = self._tls = TlsChannel(self._settings.tls_context)
            self._writer.encrypt = tls.encrypt
        try:
            plaintext = tls.receive(data)
        except TlsError as error:
            self._writer.write_raw(tls.to_send())
            if self.awaits_tls:
                self._log.error(f"{self._peer} - TLS handshake error: {error}")
            self._connection.drop("TLS Handshake Failure" if self.awaits_tls else "Client Closed")
            return b""
        self._writer.write_raw(tls.to_send())
        if self.awaits_tls and tls.established:
            self.awaits_tls = False
            self.tls_description = tls.describe()
            if not self._info_sent:
                self.send_first_info()
            self._expect_authentication()
        self.tls_ended = tls.ended
        return plaintext

    def _accept_cleartext(self, data: bytes) -> bytes:
        """Let a client continue without TLS where the options allow it, and end the connection elsewhere."""
        if self._settings.options.allow_non_tls:
            self.is_encrypted = self.awaits_tls = False
            self._expect_authentication()
            return data
        self._connection.end("Secure Connection - TLS Required", reason="TLS Handshake Failure")
        return b""

    def _time_out_tls(self, _now_ns: int) -> None:
        tls = self._settings.options.tls
        if tls is not None and tls.handshake_first_fallback_s and self._tls is None and not self._info_sent:
            # An older client, which waits for INFO before it begins TLS.
            self.send_first_info()
            self._set_timer(tls.timeout_s, self._time_out_tls)
            return
        self._log.error(f"{self._peer} - TLS handshake error: timeout")
        self._connection.end(reason="TLS Handshake Failure")

    # Authentication

    def connect(self, json: bytes) -> None:
        """Handle CONNECT: take over its options, and authenticate the client."""
        session, authenticator = self._session, self._settings.authenticator
        try:
            options = session.options.changed_by(json).completed_by(self.cookies)
        except BadConnectError:
            self._connection.end(reason="Parse Error")
            return
        if session.identity is not None and self._connected:
            self._accept(options, session.identity)  # a second CONNECT changes options, never the user
        elif authenticator.is_slow(options):
            self.checking = True
            self._engine_loop.start_task(self._check_in_thread(options))
        else:
            certificate = self._certificate()
            self._complete(options, authenticator.authenticate(options, self._nonce, certificate, self._peer.host))

    def _certificate(self) -> Certificate | None:
        return self._tls.certificate() if self._tls is not None else self._certificate_below

    async def _check_in_thread(self, options: ConnectOptions) -> None:
        """Compute a password hash without keeping the loop from its work."""
        authenticator, certificate = self._settings.authenticator, self._certificate()

        def authenticate() -> Identity | None:
            # Hashes wait for a thread: hashes of clients that have gone meanwhile are skipped.
            if self._connection.closed:
                return None
            return authenticator.authenticate(options, self._nonce, certificate, self._peer.host)

        identity: Identity | None = None
        try:
            identity = await self._engine_loop.loop.run_in_executor(None, authenticate)
        except ConfigError as error:
            self._log.error(f"{self._peer} - {error}")
        self.checking = False
        if not self._connection.closed:
            current = self._settings.authenticator
            if identity is not None and current is not authenticator:
                identity = current.recognize(identity, authenticator)  # A reload may have removed the user.
            self._complete(options, identity)
            if not self.checking and not self._connection.closed:
                self._connection.checked()

    def _complete(self, options: ConnectOptions, identity: Identity | None) -> None:
        """Continue once the credentials are checked: let the client in, refuse it, or have another program decide."""
        arbiter = self._settings.authenticator.arbiter(options, identity)
        if arbiter is not None:
            self.checking = True
            self._engine_loop.start_task(self._ask(arbiter, options))
        elif identity is None:
            self.refuse(options)
        else:
            self._accept(options, identity)

    async def _ask(self, arbiter: Arbiter, options: ConnectOptions) -> None:
        """Let an arbiter decide, for as long as authentication may take; no answer is a refusal."""
        authenticator, settings, peer = self._settings.authenticator, self._settings, self._peer
        applicant = Applicant(
            connect=options,
            nonce=self._nonce,
            cid=peer.cid,
            host=peer.host,
            connection_type=settings.connection_type,
            client_type=peer.client_type,
            tls=self.tls_description,
            certificate=self._certificate(),
        )
        self._decision = Decision(arbiter, applicant, self._engine_loop.loop)
        self._engine_loop.schedule()  # At the end of this turn its deadline is armed.
        identity = await self._decision.wait(
            self._engine_loop.timers, self._clock.now_ns(), settings.options.auth_timeout_s, self._report
        )
        self._decision = None
        self.checking = False
        if self._connection.closed:
            return
        if identity is not None:
            # Accounts may have changed since the arbiter's word.
            identity = self._settings.authenticator.recognize(identity, authenticator)
        if identity is None:
            self.refuse(options)
        else:
            self._accept(options, identity)
        if not self._connection.closed:
            self._connection.checked()
        self._engine_loop.schedule()

    def _report(self, text: str) -> None:
        if not self._connection.closed:
            self._log.error(f"{self._peer} - {text}")

    def _accept(self, options: ConnectOptions, identity: Identity) -> None:
        if options.protocol not in (0, 1):
            self._connection.end("invalid client protocol", reason="Bad Client Protocol Version")
            return
        if options.headers and self._settings.options.no_header_support:
            options = replace(options, headers=False)
        if options.no_responders and not options.headers:
            self._connection.end("no responders requires headers support", reason="No Responders Requires Headers")
            return
        is_first, self._connected = not self._connected, True
        self._session.options = options.without_secrets()
        subscriber = self._connection
        subscriber.headers = options.headers
        subscriber.echo = options.echo
        subscriber.no_responders = options.no_responders
        if self._bind(identity):
            if options.verbose:
                self._writer.send(OK)
            if is_first:
                self._connection.connected()

    def _bind(self, identity: Identity) -> bool:
        """Bind the session to the authenticated user; False when the user's account takes no more connections."""
        session = self._session
        timers = self._engine_loop.timers
        timers.cancel(self._timer)
        if session.identity is not identity:
            account = self._accounts.get_or_create(identity.account)
            rules = identity.permissions
            permissions = PermissionCheck(rules, self._clock) if rules is not None else None
            if not self._enter(account.name):
                self.refuse_surplus()
                return False
            self._subscriptions.move(account, permissions)
            session.bind(identity, account, permissions)
            timers.cancel(self._expiry)
            self._expiry = timers.schedule(identity.expires_ns, self._expire) if identity.expires_ns else None
        session.limits = self._accounts.limits_of(session.account.name).narrowed_by(identity.limits)
        self._connection.bound()
        session.update_guard()
        return True

    def _expire(self, _now_ns: int) -> None:
        """End the connection of a user whose token is not valid any more."""
        self._log.debug(f"{self._peer} - User Authentication Expired")
        self._connection.end("User Authentication Expired", reason="Authentication Expired")

    def _enter(self, account: str) -> bool:
        """Count the connection in its account; False when the account has as many as it may."""
        if account != self._entered:
            if not self._accounts.enter(account):
                return False
            self._accounts.leave(self._entered)
            self._entered = account
        return True

    def refuse_surplus(self) -> None:
        """End a connection that its account has no room for."""
        self._log.error(f"{self._peer} - {_ACCOUNT_FULL}")
        self._connection.end(_ACCOUNT_FULL, reason="Maximum Account Connections Exceeded")

    def is_authenticated(self) -> bool:
        """Return whether the client is authenticated; binds the default user where credentials are not required."""
        if self._session.identity is None:
            default = self._settings.authenticator.default
            return default is not None and self._bind(default)
        return True

    def refuse(self, options: ConnectOptions | None = None) -> None:
        """End a connection whose client is not authenticated, or not any more."""
        if self._connection.closed:
            return
        known = options is not None and self._settings.authenticator.knows(options.user)
        user = f' - User "{options.user}"' if options is not None and known else ""
        self._log.error(f"{self._peer} - authentication error{user}")
        if options is not None:
            self._session.options = options.without_secrets()
        self._connection.end("Authorization Violation", reason="Authentication Failure")

    def reauthorize(self, identity: Identity | None) -> None:
        """Continue as this user after a reload, or end the connection: None = the user is not known any more."""
        current = self._session.identity
        if identity is None or (current is not None and identity.account != current.account):
            self.refuse()
        else:
            self._bind(identity)

    def _expect_authentication(self) -> None:
        if self._settings.authenticator.default is None:
            self._set_timer(self._settings.options.auth_timeout_s, self._time_out_authentication)
        else:
            self._engine_loop.timers.cancel(self._timer)

    def _time_out_authentication(self, _now_ns: int) -> None:
        if self._session.identity is None and not self.checking:
            self._log.error(f"{self._peer} - authentication timeout")
            self._connection.end("Authentication Timeout", reason="Authentication Timeout")

    def _set_timer(self, seconds: float, callback: Callable[[int], None]) -> None:
        timers = self._engine_loop.timers
        timers.cancel(self._timer)
        self._timer = timers.schedule(self._clock.now_ns() + int(seconds * _SECOND_NS), callback)
