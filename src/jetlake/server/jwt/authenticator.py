"""The check of user tokens: signature and chain, times, networks, and the nonce that the user's key must sign.

The order is the design: nothing of a token counts before its signature and its account's are known to be good, and the
nonce comes before what tells a stranger anything about the account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.auth.claims import UserClaims, UserLimits
from jetlake.auth.tokens import check_times, decode_token
from jetlake.errors import TokenError
from jetlake.server.config.options import ConnectionLimits
from jetlake.server.jwt.account_options import is_revoked
from jetlake.server.jwt.operators import Operators
from jetlake.server.jwt.user_rules import check_source, fill_template, permissions_of, permits_type, valid_until
from jetlake.server.nkey import verify_signature
from jetlake.server.shell.access.auth import Applicant, Arbiter, Authentication, Identity
from jetlake.server.shell.access.certificate import Certificate
from jetlake.server.shell.access.connect_options import ConnectOptions

if TYPE_CHECKING:
    from jetlake.server.engine.core.clock import Clock
    from jetlake.server.shell.log import Log

__all__ = ["JwtAuthenticator", "identify"]

_SECOND_NS = 1_000_000_000


class JwtAuthenticator:
    """Lets in who shows a token that leads back to a trusted operator.

    Args:
        operators: the accounts.
        connection_type: how clients connect, as `allowed_connection_types` names it.
    """

    required = True
    default: Identity | None = None
    has_default_user = False
    uses_nonce = True

    def __init__(self, operators: Operators, connection_type: str, clock: Clock, log: Log) -> None:
        self._operators = operators
        self._connection_type = connection_type
        self._clock = clock
        self._log = log

    def knows(self, name: str) -> bool:
        return False

    def is_slow(self, connect: ConnectOptions) -> bool:
        return False

    def arbiter(self, connect: ConnectOptions, identity: Identity | None) -> Arbiter | None:
        try:
            return _Lookup(self) if identity is None and self._to_look_up(connect) else None
        except TokenError:
            return None

    def _to_look_up(self, connect: ConnectOptions) -> str:
        """Return the account that has to be looked up first; empty = none has to be.

        Raises:
            TokenError: the client has no good token.
        """
        operators, token = self._operators, connect.jwt or self._operators.sentinel
        return operators.to_look_up(decode_token(token, UserClaims)) if operators.lookup is not None and token else ""

    async def look_up(self, applicant: Applicant) -> Identity | None:
        """Look up the account of a client that holds its key, and then decide about the client."""
        connect, operators = applicant.connect, self._operators
        try:
            claims = decode_token(connect.jwt or operators.sentinel, UserClaims)
            check_times(claims, self._clock.now_ns() / _SECOND_NS)
            # Whether a token is enough without a signature, its account may say.
            if connect.sig and not verify_signature(claims.sub, applicant.nonce.encode(), connect.sig):
                raise TokenError("the signature of the nonce is wrong")
            assert operators.lookup is not None
            await operators.lookup.resolve(claims.account)
        except TokenError as error:
            self._log.error(f"user JWT refused: {error}")
            return None
        identity = self.authenticate(connect, applicant.nonce, applicant.certificate, applicant.host)
        following = self.arbiter(connect, identity)
        if following is not None and not isinstance(following, _Lookup):
            return await following.decide(applicant)
        return identity

    def authenticate(
        self, connect: ConnectOptions, nonce: str, certificate: Certificate | None = None, host: str = ""
    ) -> Identity | None:
        """Check the token of a CONNECT, and the signature that goes with it; None = the client is refused."""
        try:
            if self._to_look_up(connect):
                return None  # The arbiter decides.
            return self._check(connect, nonce, host)
        except TokenError as error:
            self._log.error(f"user JWT refused: {error}")
            return None

    def _check(self, connect: ConnectOptions, nonce: str, host: str) -> Identity:
        operators = self._operators
        token = connect.jwt or operators.sentinel
        if not token:
            raise TokenError("Authentication requires a user JWT")
        claims = decode_token(token, UserClaims)
        now_ns = self._clock.now_ns()
        check_times(claims, now_ns / _SECOND_NS)
        if not operators.may_connect(claims.account):
            raise TokenError(f"Account {claims.account} not listed as operator pinned account")
        identity = identify(operators, claims, self._connection_type, host, now_ns, token)
        if not identity.is_bearer:
            if not connect.jwt:
                raise TokenError("default sentinel JWT not bearer")
            if not nonce or not verify_signature(claims.sub, nonce.encode(), connect.sig):
                raise TokenError("the signature of the nonce is missing or wrong")
        return identity

    def recognize(self, identity: Identity, previous: Authentication) -> Identity | None:
        """Return the identity while its account has nothing against it."""
        return identity if self._operators.refusal(identity) is None else None


class _Lookup:
    """Decides about a client whose account is looked up first."""

    def __init__(self, authenticator: JwtAuthenticator) -> None:
        self._authenticator = authenticator

    async def decide(self, applicant: Applicant) -> Identity | None:
        return await self._authenticator.look_up(applicant)


def identify(
    operators: Operators, claims: UserClaims, connection_type: str, host: str, now_ns: int, token: str
) -> Identity:
    """Return who a verified token stands for; the client has yet to show that it has the key.

    Raises:
        TokenError: the account or the token does not let the user in: in this way, from there, or now.
    """
    account = operators.accounts.get(claims.account)
    if account is None:
        raise TokenError(f"there is no account {claims.account}")
    if operators.is_expired(claims.account):
        raise TokenError("Account JWT has expired")
    scope = operators.scope_of(claims)
    limits: UserLimits = claims.nats
    if scope is not None:
        limits = fill_template(scope, claims, account.name, account.nats.tags)
    if is_revoked(account.nats.revocations, claims.sub, claims.iat):
        raise TokenError("User authentication revoked")
    if limits.bearer_token and account.nats.limits.disallow_bearer:
        raise TokenError("Account does not allow bearer tokens")
    if not permits_type(limits, connection_type):
        raise TokenError(f"Connection type not allowed: {connection_type}")
    if not check_source(limits, host):
        raise TokenError(f"Bad src Ip {host!r}")
    until_ns = valid_until(limits, now_ns)
    if until_ns is None:
        raise TokenError("Outside connect times")
    permissions = permissions_of(limits.pub, limits.sub, limits.resp)
    if permissions is None:
        defaults = account.nats.default_permissions
        permissions = permissions_of(defaults.pub, defaults.sub, defaults.resp)
    ends = [moment for moment in (claims.exp * _SECOND_NS, until_ns) if moment]
    return Identity(
        user=claims.sub,
        account=claims.account,
        permissions=permissions,
        kind="jwt",
        expires_ns=min(ends, default=0),
        limits=ConnectionLimits(max_subscriptions=limits.subs, max_payload=limits.payload),
        claims=claims,
        jwt=token,
        scope=scope,
        is_bearer=limits.bearer_token,
    )
