"""The entrance of a connection: INFO, TLS before or after it, CONNECT, and who the client turns out to be."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetlake.protocol.encoder import OK, PONG, info
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.connection.auth import Identity
from jetlake.server.shell.connection.connect_options import BadConnectError, ConnectOptions
from jetlake.server.shell.connection.permissions import PermissionCheck
from jetlake.server.shell.connection.tls import TLS_HANDSHAKE, TlsChannel, TlsError
from jetlake.server.shell.connection.writer import Outgoing

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["Entrance"]

_SECOND_NS = 1_000_000_000


class Entrance(Outgoing):
    """A connection as far as who it is and what it said about itself.

    Attributes:
        identity: who it is; None until it is known.
        options: what it said in CONNECT, without secrets.
        account: whose subjects it uses.
        permissions: what it may do; None = everything.
        nonce: what it has to sign to show an nkey; empty where there are none.
        guarded: its publishes need a closer look, or an answer.
        checking: who it is is being found out in a thread; nothing is handled until then.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.headers = False
        self.identity: Identity | None = None
        self.options = ConnectOptions()
        self.account: Account = server.global_account
        self.permissions: PermissionCheck | None = None
        self.nonce: str = ""
        self.guarded = True
        self.checking = False
        self._awaits_tls = False
        self._introduced = False  # INFO was sent
        self._connected = False  # CONNECT was taken
        self._greeted = False  # the second INFO was sent
        self._entry_timer: Timer | None = None

    def open(self) -> None:
        """Begin the conversation: INFO at once, or TLS first."""
        if self.server.authenticator.uses_nonce:
            self.nonce = self.server.new_nonce()
        tls = self.server.options.tls
        if tls is None:
            self.introduce()
            self._expect_authentication()
            return
        self._awaits_tls = True
        if tls.handshake_first:
            self._expect_handshake(tls.handshake_first_fallback_s or tls.timeout_s)
        else:
            self.introduce()
            self._expect_handshake(tls.timeout_s)

    # INFO

    def introduce(self) -> None:
        """Say INFO, the first word of a server."""
        self._introduced = True
        self.send(info(self.server.info_for(self)))
        self.flush()

    def send_info(self) -> None:
        """Tell a client that can take it that something about the server has changed."""
        if self._connected and self.options.protocol >= 1:
            self.send(info(self.server.info_for(self)))

    def answer_ping(self) -> None:
        """PONG; and, behind the first, INFO with what has become of the client."""
        self.send(PONG)
        if not self._greeted and self._connected and self.options.protocol >= 1:
            self._greeted = True
            self.send(info(self.server.info_for(self, connect_info=True)))

    # TLS

    @property
    def is_encrypted(self) -> bool:
        """Whether bytes from the network have to go through `decrypt`."""
        return self._awaits_tls or self.tls is not None

    @property
    def awaits_tls(self) -> bool:
        """Whether nothing can be said yet because the handshake is not over."""
        return self._awaits_tls

    def decrypt(self, data: bytes) -> bytes:
        """Plaintext of what came; nothing while the handshake goes on, or when the connection ends here."""
        if self.tls is None:
            if data[0] != TLS_HANDSHAKE:
                return self._take_cleartext(data)
            assert self.server.tls_context is not None
            self.tls = TlsChannel(self.server.tls_context)
        try:
            plaintext = self.tls.receive(data)
        except TlsError as error:
            self._write(self.tls.to_send())
            if self._awaits_tls:
                self.server.log.error(f"{self} - TLS handshake error: {error}")
            self.forget("TLS Handshake Failure" if self._awaits_tls else "Client Closed")
            self.hang_up()
            return b""
        self._write(self.tls.to_send())
        if self._awaits_tls and self.tls.established:
            self._awaits_tls = False
            self.tls_description = self.tls.describe()
            if not self._introduced:
                self.introduce()
            self._expect_authentication()
        if self.tls.ended and not plaintext:
            self.forget("Client Closed")
            self.hang_up()
        return plaintext

    def _take_cleartext(self, data: bytes) -> bytes:
        """A client that goes on without TLS: fine where that is allowed, else the end."""
        if self.server.options.allow_non_tls:
            self._awaits_tls = False
            self._expect_authentication()
            return data
        self.end("Secure Connection - TLS Required", reason="TLS Handshake Failure")
        return b""

    def _expect_handshake(self, timeout_s: float) -> None:
        self._set_entry_timer(timeout_s, self._handshake_overdue)

    def _handshake_overdue(self) -> None:
        tls = self.server.options.tls
        if tls is not None and tls.handshake_first_fallback_s and self.tls is None and not self._introduced:
            # The client waits for INFO: it is one of the older kind.
            self.introduce()
            self._expect_handshake(tls.timeout_s)
            return
        self.server.log.error(f"{self} - TLS handshake error: timeout")
        self.end(reason="TLS Handshake Failure")

    # Who it is

    def connect(self, json: bytes) -> None:
        """CONNECT: take over the options, and let the client in if it is who it says it is."""
        try:
            options = self.options.changed_by(json)
        except BadConnectError:
            self.end(reason="Parse Error")
            return
        authenticator = self.server.authenticator
        if self.identity is not None and self._connected:
            self._accept(options, self.identity)  # a second CONNECT changes options, never who one is
        elif authenticator.is_slow(options):
            self.checking = True
            self.server.check_in_thread(self, options)
        else:
            self.checked(options, authenticator.authenticate(options, self.nonce))

    def checked(self, options: ConnectOptions, identity: Identity | None) -> None:
        """The credentials in CONNECT were looked at: let the client in as this identity, or refuse it."""
        was_checking, self.checking = self.checking, False
        if self.closed:
            return
        if identity is None:
            self.refuse(options)
            return
        self._accept(options, identity)
        if was_checking and not self.closed:
            self.go_on()

    @abstractmethod
    def go_on(self) -> None:
        """Handle what came in while the credentials were being checked."""

    def _accept(self, options: ConnectOptions, identity: Identity) -> None:
        if options.protocol not in (0, 1):
            self.end("invalid client protocol", reason="Bad Client Protocol Version")
            return
        if options.no_responders and not options.headers:
            self.end("no responders requires headers support", reason="No Responders Requires Headers")
            return
        self._connected = True
        self.options = options.without_secrets()
        self.headers = options.headers
        self.echo = options.echo
        self.no_responders = options.no_responders
        self.enter(identity)
        if options.verbose:
            self.send(OK)

    def enter(self, identity: Identity) -> None:
        """Be this somebody from now on."""
        server = self.server
        self.turns.timers.cancel(self._entry_timer)
        if self.identity is not identity:
            account = server.account(identity.account)
            check = identity.permissions
            permissions = PermissionCheck(check, server.clock.now_ns) if check is not None else None
            self.change_subscriptions(account, permissions)
            self.identity, self.account, self.permissions = identity, account, permissions
        self.guarded = (
            self.permissions is not None
            or self.options.verbose
            or self.options.pedantic
            or not self.headers
            or server.log.tracing
        )

    @abstractmethod
    def change_subscriptions(self, account: Account, permissions: PermissionCheck | None) -> None:
        """The client is about to use another account, or to have other permissions: end what does not fit."""

    def is_in(self) -> bool:
        """Whether the client may speak: it is known, or may do without being known."""
        if self.identity is None:
            default = self.server.authenticator.default
            if default is None:
                return False
            self.enter(default)
        return True

    def refuse(self, options: ConnectOptions | None = None) -> None:
        """End a connection whose client may not come in, or may not stay."""
        known = options is not None and self.server.authenticator.knows(options.user)
        who = f' - User "{options.user}"' if options is not None and known else ""
        self.server.log.error(f"{self} - authentication error{who}")
        self.end("Authorization Violation", reason="Authentication Failure")

    def reauthorize(self, identity: Identity | None) -> None:
        """The configuration was reloaded: go on as this identity, or not at all."""
        if identity is None or (self.identity is not None and identity.account != self.identity.account):
            self.refuse()
        else:
            self.enter(identity)

    def _expect_authentication(self) -> None:
        if self.server.authenticator.default is None:
            self._set_entry_timer(self.server.options.auth_timeout_s, self._authentication_overdue)
        else:
            self.turns.timers.cancel(self._entry_timer)

    def _authentication_overdue(self) -> None:
        if self.identity is None and not self.checking:
            self.server.log.error(f"{self} - authentication timeout")
            self.end("Authentication Timeout", reason="Authentication Timeout")

    def _set_entry_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        timers = self.turns.timers
        timers.cancel(self._entry_timer)
        self._entry_timer = timers.schedule(self.server.clock.now_ns() + int(seconds * _SECOND_NS), callback)

    def release(self) -> None:
        self.turns.timers.cancel(self._entry_timer)
