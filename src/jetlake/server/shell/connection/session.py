"""The session of a connection: whose account it uses, as which user, with which permissions and options."""

from __future__ import annotations

from jetlake.protocol.encoder import err
from jetlake.server.config.options import ConnectionLimits
from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.access.auth import Identity
from jetlake.server.shell.access.connect_options import ConnectOptions
from jetlake.server.shell.access.permissions import PermissionCheck
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.log import Log

__all__ = ["RESERVED_REPLIES", "RESERVED_SUBJECTS", "Session", "may_subscribe"]

# Reserved for servers: subjects of their own protocols, and replies that only a server hands out.
RESERVED_SUBJECTS = (b"$NRG.", b"$GR.", b"_GR_.")
RESERVED_REPLIES = (b"$JS.ACK.", b"_R_.", b"_GR_.")
_RESERVED_QUEUE = b"_sys_"


class Session:
    """What a connection is authenticated as.

    Attributes:
        identity: the authenticated user; None before authentication.
        account: the account whose subjects the client uses.
        limits: what the account allows its connections.
        permissions: what the user may publish and receive; None = everything.
        options: the client's CONNECT, without secrets.
        guarded: each publish has to be checked, mapped, traced or answered.
    """

    __slots__ = ("_log", "_peer", "account", "guarded", "identity", "limits", "options", "permissions")

    def __init__(self, peer: Peer, account: Account, log: Log) -> None:
        self.identity: Identity | None = None
        self.account = account
        self.permissions: PermissionCheck | None = None
        self.limits = ConnectionLimits()
        self.options = ConnectOptions()
        self.guarded = True
        self._peer = peer
        self._log = log

    def bind(self, identity: Identity, account: Account, permissions: PermissionCheck | None) -> None:
        """Bind the connection to the authenticated user."""
        self.identity, self.account, self.permissions = identity, account, permissions

    def update_guard(self) -> None:
        """Decide again whether publishes have to be looked at one by one."""
        options = self.options
        is_plain = options.headers and not options.verbose and not options.pedantic
        is_followed = self.account.mappings is not None or self.account.trace is not None
        self.guarded = self.permissions is not None or is_followed or not is_plain or self._log.tracing

    def payload_max(self, server_max: int) -> int:
        """Return the largest message that the client may publish, in bytes of header and payload."""
        limit = self.limits.max_payload
        return limit if 0 <= limit < server_max else server_max

    def may_publish(self, subject: bytes) -> bool:
        """Return whether the client may publish to this subject."""
        if subject.startswith(RESERVED_SUBJECTS):
            return False
        return self.permissions is None or self.permissions.may_publish(subject)

    def may_reply_to(self, reply: bytes) -> bool:
        """Return whether the client may have answers to a message sent to this subject.

        A server acts on subjects that begin with `$`, and would act on its own answer there in the client's name.
        """
        if reply.startswith(RESERVED_REPLIES):
            return False
        return self.permissions is None or not reply.startswith(b"$") or self.permissions.may_publish(reply)

    def deny(self, what: str) -> bytes:
        """Log a permissions violation and return the -ERR for the client."""
        user = f'"{self.identity.user}"' if self.identity is not None and self.identity.user else "without a name"
        self._log.error(f"{self._peer} - Permissions Violation for {what} - user {user}")
        return err(f"Permissions Violation for {what}")


def may_subscribe(subject: bytes, queue: bytes, permissions: PermissionCheck | None) -> bool:
    """Return whether these permissions allow the subscription."""
    return queue != _RESERVED_QUEUE and (permissions is None or permissions.may_subscribe(subject, queue))
