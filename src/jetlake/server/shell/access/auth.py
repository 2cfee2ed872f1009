"""Authentication: by token, user and password, nkey or certificate; or as the user of clients without credentials.

The reasons are in decision 12 (docs/decisions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from jetlake.errors import ConfigError
from jetlake.server.config.options import GLOBAL_ACCOUNT, ConnectionLimits, Options, Permissions, Secret, User
from jetlake.server.nkey import verify_signature
from jetlake.server.shell.access.certificate import Certificate
from jetlake.server.shell.access.connect_options import ConnectOptions

if TYPE_CHECKING:
    from jetlake.auth.claims import SigningScope, UserClaims

__all__ = ["Applicant", "Arbiter", "Authentication", "Authenticator", "Identity"]


class Identity(Struct, frozen=True, kw_only=True):
    """An authenticated user, with account and permissions."""

    user: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None
    kind: str = ""
    """How the client authenticated: `token`, `user`, `nkey`, `certificate`, `jwt`, or by the decision of an `arbiter`;
    empty = without credentials."""
    expires_ns: int = 0
    """When the connection ends; 0 = not by itself."""
    limits: ConnectionLimits = ConnectionLimits()
    """The user's own, which the account's may narrow."""
    claims: UserClaims | None = None
    """What the user's token says; None = the user has none."""
    jwt: str = ""
    """That token."""
    scope: SigningScope | None = None
    """The template that the user's permissions come from; None = there is none."""
    is_bearer: bool = False
    """The token was enough, and nothing had to be signed."""

    def describe_token(self) -> dict[str, Any]:
        """Describe the user's token for monitoring; one that is enough to log in is not shown itself."""
        claims = self.claims
        if claims is None:
            return {}
        shown = {"jwt": "" if self.is_bearer else self.jwt, "issuer_key": claims.iss, "tags": claims.nats.tags}
        return {key: value for key, value in shown.items() if value}


class Applicant(Struct, frozen=True, kw_only=True):
    """A client that wants to connect, for the decision about it."""

    connect: ConnectOptions
    nonce: str
    """What the client had to sign; empty = nothing."""
    cid: int
    host: str
    """The client's address; empty for a socket without one."""
    connection_type: str
    """As `allowed_connection_types` names it."""
    client_type: str
    """As monitoring names it."""
    tls: dict[str, str]
    """Version and cipher; empty without TLS."""
    certificate: Certificate | None = None


class Arbiter(Protocol):
    """A party beside the configuration that decides about a client: a service, or a function."""

    async def decide(self, applicant: Applicant) -> Identity | None:
        """Return who the client is; None = it is refused. The caller bounds the time."""
        ...


class Authentication(Protocol):
    """The check of credentials as connections know it; the attributes are `Authenticator`'s."""

    required: bool
    default: Identity | None
    has_default_user: bool
    uses_nonce: bool

    def knows(self, name: str) -> bool:
        """Return whether there is a user of this name."""
        ...

    def is_slow(self, connect: ConnectOptions) -> bool:
        """Return whether `authenticate` belongs into a thread."""
        ...

    def authenticate(
        self, connect: ConnectOptions, nonce: str, certificate: Certificate | None = None, host: str = ""
    ) -> Identity | None:
        """Check the credentials of a CONNECT; None = they are not enough."""
        ...

    def arbiter(self, connect: ConnectOptions, identity: Identity | None) -> Arbiter | None:
        """Return who decides about a client instead, after its credentials were checked; None = they decide."""
        ...

    def recognize(self, identity: Identity, previous: Authentication) -> Identity | None:
        """Find the user behind an identity of `previous` after a reload; None = unknown, or with new credentials."""
        ...


class Authenticator:
    """The check of credentials against the users of the configuration, recreated by each reload.

    Args:
        options: the options with the users or the token.
        connection_type: how clients connect; users who may not connect in this way are unknown.

    Attributes:
        required: clients must authenticate, or fall back to `no_auth_user`.
        default: the user of clients without credentials; None = such clients are refused.
        has_default_user: the configuration names that user: `auth_required` is false for clients that ask first.
        uses_nonce: INFO carries a nonce to be signed.
    """

    def __init__(self, options: Options, connection_type: str = "STANDARD") -> None:
        self._token = options.token
        self._users = {
            user.name: user
            for user in options.users
            if user.connection_types is None or connection_type in user.connection_types
        }
        self.required = bool(options.users) or self._token is not None
        self.uses_nonce = any(user.is_nkey for user in options.users)
        self.has_default_user = bool(options.no_auth_user)
        self.default: Identity | None = None
        if not self.required:
            self.default = Identity()
        elif options.no_auth_user in self._users:
            self.default = _identity(self._users[options.no_auth_user], "")
        elif self._users and _is_system_only(options):
            self.default = Identity()
        self._maps_certificates = options.tls is not None and options.tls.verify_and_map
        hashes = [user.password for user in options.users if user.password is not None and user.password.is_bcrypt()]
        # The hash that takes longest, by the cost that follows the version: `$2a$11$…`.
        self._decoy = max(hashes, key=lambda secret: secret.reveal()[4:6], default=None)

    def knows(self, name: str) -> bool:
        """Return whether there is a user of this name; an unknown one may be a password typed into the wrong field."""
        return name in self._users

    def is_slow(self, connect: ConnectOptions) -> bool:
        """Return whether `authenticate` will compute a bcrypt hash, and so belongs into a thread."""
        if _is_hash(self._token):
            return bool(connect.auth_token)
        return bool(connect.user) and self._decoy is not None

    def arbiter(self, connect: ConnectOptions, identity: Identity | None) -> Arbiter | None:
        return None

    def authenticate(
        self, connect: ConnectOptions, nonce: str, certificate: Certificate | None = None, host: str = ""
    ) -> Identity | None:
        """Check the credentials of a CONNECT, or the client's certificate; None = the client is refused."""
        if connect.account or connect.new_account:
            return None
        if self._maps_certificates:
            return self._by_certificate(connect, certificate)
        if not self.required:
            return Identity(user=connect.user)
        if not connect.has_credentials():
            return self.default
        if self._token is not None:
            return Identity(kind="token") if _is_secret(self._token, connect.auth_token) else None
        if connect.nkey:
            user = self._users.get(connect.nkey)
            if user is None or not user.is_nkey or not nonce:
                return None
            return _identity(user, "nkey") if verify_signature(user.name, nonce.encode(), connect.sig) else None
        return self._by_password(connect)

    def recognize(self, identity: Identity, previous: Authentication) -> Identity | None:
        """Find the user behind an identity of `previous` after a reload; None = unknown, or with new credentials."""
        if not isinstance(previous, Authenticator):
            return None
        if not self.required:
            return Identity(user=identity.user)
        if identity.kind == "token":
            return identity if self._token is not None and self._token == previous._token else None
        if identity.kind == "":
            return self.default
        user, before = self._users.get(identity.user), previous._users.get(identity.user)
        if user is None or before is None or user.password != before.password:
            return None
        if identity.kind == "certificate" and not self._maps_certificates:
            return None
        return _identity(user, identity.kind)

    def _by_certificate(self, connect: ConnectOptions, certificate: Certificate | None) -> Identity | None:
        """Take the user that the certificate names; a password, where the user has one, must be right too."""
        name = certificate.find_user(self._users) if certificate is not None else None
        if name is None or not _is_secret(self._users[name].password or Secret(""), connect.password):
            return None
        return _identity(self._users[name], "certificate")

    def _by_password(self, connect: ConnectOptions) -> Identity | None:
        user = self._users.get(connect.user)
        if user is None or user.is_nkey:
            # The same work as for a known user, so that the time taken does not reveal which names exist.
            _is_secret(self._decoy or Secret(""), connect.password or "?")
            return None
        if self._decoy is not None and not _is_hash(user.password):
            # Nor which passwords are hashed.
            _is_secret(self._decoy, connect.password or "?")
        return _identity(user, "user") if _is_secret(user.password or Secret(""), connect.password) else None


def _is_system_only(options: Options) -> bool:
    """Return whether only the system account is configured: clients without credentials use the global one."""
    names = {*(user.account for user in options.users), *(account.name for account in options.accounts)}
    return names == {options.system_account}


def _identity(user: User, kind: str) -> Identity:
    return Identity(user=user.name, account=user.account, permissions=user.permissions, kind=kind)


def _is_hash(secret: Secret | None) -> bool:
    return secret is not None and secret.is_bcrypt()


def _is_secret(expected: Secret, given: str) -> bool:
    """Compare in constant time."""
    if not expected.is_bcrypt():
        from hmac import compare_digest  # It loads OpenSSL, which a start without users does not need.

        return compare_digest(_bytes(expected.reveal()), _bytes(given))
    try:
        import bcrypt
    except ImportError:
        raise ConfigError("hashed passwords need the package bcrypt: install jetlake[server]") from None
    try:
        # bcrypt hashes the first 72 bytes and ignores the rest.
        return bcrypt.checkpw(_bytes(given)[:72], _bytes(expected.reveal()))
    except ValueError:
        return False


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
