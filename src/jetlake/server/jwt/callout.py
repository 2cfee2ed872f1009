"""Authorization callouts (NATS ADR-26): a service in one of the accounts decides who may connect.

What always holds: each question is about a user key that was made for it, so an old answer fits no new question; an
answer counts only when it is about that key, for this server, and signed by the issuer; whatever else comes, and no
answer at all, is a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import structs

from jetlake.auth.claims import (
    AuthorizationRequest,
    AuthorizationResponse,
    ClientInformation,
    ConnectInformation,
    ServerInformation,
    TlsInformation,
    UserClaims,
)
from jetlake.auth.keys import USER, CurveKey, KeyPair
from jetlake.auth.tokens import check_times, decode_token, encode_token
from jetlake.errors import TokenError
from jetlake.protocol.nuid import next_nuid
from jetlake.server.config.options import (
    GLOBAL_ACCOUNT,
    ConnectionLimits,
    Options,
    Permissions,
    SubjectPermissions,
)
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.jwt.authenticator import JwtAuthenticator, identify
from jetlake.server.jwt.operators import Operators
from jetlake.server.jwt.user_rules import check_source, permissions_of, permits_type, valid_until
from jetlake.server.shell.access.auth import Applicant, Arbiter, Authentication, Authenticator, Identity
from jetlake.server.shell.access.certificate import Certificate
from jetlake.server.shell.access.connect_options import ConnectOptions
from jetlake.server.shell.account_table import AccountTable
from jetlake.server.shell.log import Log
from jetlake.server.version import COMPATIBLE_VERSION

__all__ = ["CalloutAuthenticator", "CalloutService", "OperatorCalloutAuthenticator", "ServerKeys"]

_SUBJECT = "$SYS.REQ.USER.AUTH"
_AUDIENCE = "nats-authorization-request"
_SECOND_NS = 1_000_000_000


class ServerKeys:
    """The keys by which a service knows this server: one that signs, and one that seals."""

    def __init__(self) -> None:
        self.identity = KeyPair.create("server")
        self.curve = CurveKey.create()


class CalloutService:
    """Asks the services of accounts.

    Args:
        keys: the server's.
        accounts: where the services listen.
        flush: writes published messages to the socket.
    """

    def __init__(self, keys: ServerKeys, accounts: AccountTable, clock: Clock, flush: Callable[[], None]) -> None:
        self.clock = clock
        self._keys = keys
        self._accounts = accounts
        self._flush = flush

    async def ask(
        self,
        account: str,
        subject: str,
        xkey: str,
        applicant: Applicant,
        options: Options,
        may_answer: Callable[[AuthorizationResponse], bool],
    ) -> tuple[UserClaims, str]:
        """Return the user's token that the service answers with, and its text.

        Args:
            subject: whom the question is addressed to: the issuer of the answer.
            xkey: the service's curve key; empty = nothing is sealed.
            may_answer: whether who signed an answer may do so.

        Raises:
            TokenError: the service refuses the client or does not answer, or its answer cannot be trusted.
        """
        user = KeyPair.create(USER)
        home = self._accounts.get_or_create(account)
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(_subject: bytes, _reply: bytes, _header: bytes, payload: bytes, _origin: Subscriber | None) -> None:
            if not answered.done():
                answered.set_result(payload)

        reply = f"$SYS._INBOX.{next_nuid()}.{user.public}".encode()
        listener = home.listen(reply, take)
        try:
            question = self._question(subject, xkey, user.public, applicant, options).encode()
            header = b""
            if xkey:
                question = self._keys.curve.seal(question, xkey)
                header = b"NATS/1.0\r\nNats-Server-Xkey: %b\r\n\r\n" % self._keys.curve.public.encode()
            if not home.publish(_SUBJECT.encode(), reply, header, question):
                raise TokenError(f"no authorization service listens in account {account}")
            self._flush()
            answer = await answered
        finally:
            home.unlisten(listener)
        return self._read(answer, xkey, user.public, may_answer)

    def _question(self, subject: str, xkey: str, user: str, applicant: Applicant, options: Options) -> str:
        connect, server_id = applicant.connect, self._keys.identity.public
        now_s = self.clock.now_ns() // _SECOND_NS
        request = AuthorizationRequest(sub=subject, aud=_AUDIENCE, exp=now_s + int(options.auth_timeout_s) + 1)
        body = structs.replace(
            request.nats,
            server_id=ServerInformation(
                name=options.server_name or server_id,
                host=options.host,
                id=server_id,
                version=COMPATIBLE_VERSION,
                tags=options.server_tags,
                xkey=self._keys.curve.public if xkey else "",
            ),
            user_nkey=user,
            client_info=ClientInformation(
                host=applicant.host,
                id=applicant.cid,
                user=connect.nkey or connect.user,
                name=connect.name,
                kind="Leafnode" if applicant.connection_type.startswith("LEAFNODE") else "Client",
                type=applicant.client_type,
                nonce=applicant.nonce if connect.sig else "",
            ),
            connect_opts=ConnectInformation(
                jwt=connect.jwt,
                nkey=connect.nkey,
                sig=connect.sig,
                auth_token=connect.auth_token,
                user=connect.user,
                password=connect.password,
                name=connect.name,
                lang=connect.lang,
                version=connect.version,
                protocol=connect.protocol,
            ),
            client_tls=_tls(applicant) if applicant.tls else None,
        )
        return encode_token(structs.replace(request, nats=body), self._keys.identity, now_s)

    def _read(
        self, answer: bytes, xkey: str, user: str, may_answer: Callable[[AuthorizationResponse], bool]
    ) -> tuple[UserClaims, str]:
        if xkey and not answer.startswith(b"eyJ"):
            opened = self._keys.curve.open(answer, xkey)
            if opened is None:
                raise TokenError("the answer of the authorization service cannot be decrypted")
            answer = opened
        if not answer:
            raise TokenError("the authorization service supplied no reason")
        response = decode_token(answer.decode("ascii", "replace"), AuthorizationResponse)
        now_s = self.clock.now_ns() / _SECOND_NS
        check_times(response, now_s)
        if response.sub != user:
            raise TokenError("auth callout response is not for expected user")
        if response.aud != self._keys.identity.public:
            raise TokenError("auth callout response is not for server")
        if not may_answer(response):
            raise TokenError("auth callout signing key is unknown")
        if response.nats.error:
            raise TokenError(f"auth callout service returned an error: {response.nats.error!r:.200}")
        claims = decode_token(response.nats.jwt, UserClaims)
        check_times(claims, now_s)
        if claims.sub != user:
            raise TokenError(f"Expected authorized user of {user} but got {claims.sub}")
        return claims, response.nats.jwt


def _tls(applicant: Applicant) -> TlsInformation:
    tls = applicant.tls
    certificate = applicant.certificate
    chains = ((certificate.pem,),) if certificate is not None and certificate.pem else ()
    return TlsInformation(
        version=tls.get("tls_version", ""), cipher=tls.get("tls_cipher_suite", ""), verified_chains=chains
    )


class CalloutAuthenticator(Authenticator):
    """The check of a server whose configuration names a service: only the service's own users are checked here."""

    def __init__(self, options: Options, connection_type: str, service: CalloutService, log: Log) -> None:
        super().__init__(options, connection_type)
        assert options.callout is not None
        self._callout = options.callout
        self._options = options
        self._service = service
        self._log = log
        self.required = True
        self.uses_nonce = True
        if options.no_auth_user not in self._callout.users:
            self.default = None
            self.has_default_user = False

    def is_slow(self, connect: ConnectOptions) -> bool:
        return self._is_own(connect) and super().is_slow(connect)

    def authenticate(
        self, connect: ConnectOptions, nonce: str, certificate: Certificate | None = None, host: str = ""
    ) -> Identity | None:
        """Check the service's own users; all others wait for what the service says."""
        if not self._is_own(connect):
            return None
        identity = super().authenticate(connect, nonce, certificate, host)
        return identity if identity is None else _without_questions(identity, self._callout.account)

    def arbiter(self, connect: ConnectOptions, identity: Identity | None) -> Arbiter | None:
        return None if self._is_own(connect) or connect.account or connect.new_account else self

    def _is_own(self, connect: ConnectOptions) -> bool:
        if connect.has_credentials():
            return (connect.nkey or connect.user) in self._callout.users
        return self.default is not None

    async def decide(self, applicant: Applicant) -> Identity | None:
        """Ask the service; a refusal is logged."""
        callout = self._callout
        try:
            claims, token = await self._service.ask(
                callout.account,
                callout.issuer,
                callout.xkey,
                applicant,
                self._options,
                lambda response: response.iss == callout.issuer and not response.nats.issuer_account,
            )
            return self._identify(claims, token, applicant)
        except TokenError as error:
            self._log.error(f"auth callout: {error}")
            return None

    def _identify(self, claims: UserClaims, token: str, applicant: Applicant) -> Identity:
        callout, limits = self._callout, claims.nats
        if limits.issuer_account:
            raise TokenError("attempted to use issuer_account without operators")
        if claims.iss != callout.issuer:
            raise TokenError(f"wrong issuer for auth callout response, expected {callout.issuer} got {claims.iss}")
        if not _is_configured(claims.aud, self._options):
            raise TokenError(f"no valid account {claims.aud!r:.80} for auth callout response")
        if callout.allowed_accounts is not None and claims.aud not in callout.allowed_accounts:
            raise TokenError(f"account {claims.aud!r:.80} is not among the allowed_accounts of auth_callout")
        if not permits_type(limits, applicant.connection_type):
            raise TokenError(f"connection type not allowed: {applicant.connection_type}")
        if not check_source(limits, applicant.host):
            raise TokenError(f"Bad src Ip {applicant.host!r}")
        until_ns = valid_until(limits, self._service.clock.now_ns())
        if until_ns is None:
            raise TokenError("outside of valid connect times")
        ends = [moment for moment in (claims.exp * _SECOND_NS, until_ns) if moment]
        connect = applicant.connect
        identity = Identity(
            user=claims.name or connect.nkey or connect.user,
            account=claims.aud,
            permissions=permissions_of(limits.pub, limits.sub, limits.resp),
            kind="callout",
            expires_ns=min(ends, default=0),
            limits=ConnectionLimits(max_subscriptions=limits.subs, max_payload=limits.payload),
            claims=claims,
            jwt=token,
        )
        return _without_questions(identity, callout.account)

    def recognize(self, identity: Identity, previous: Authentication) -> Identity | None:
        if identity.kind != "callout":
            found = super().recognize(identity, previous)
            return found if found is None else _without_questions(found, self._callout.account)
        known = isinstance(previous, CalloutAuthenticator) and previous._callout == self._callout
        return identity if known and _is_configured(identity.account, self._options) else None


class OperatorCalloutAuthenticator(JwtAuthenticator):
    """The check of a server with operators: the users of an account with a service of its own are asked about there."""

    def __init__(
        self,
        operators: Operators,
        options: Options,
        connection_type: str,
        clock: Clock,
        log: Log,
        service: CalloutService,
    ) -> None:
        super().__init__(operators, connection_type, clock, log)
        self._options = options
        self._service = service

    def authenticate(
        self, connect: ConnectOptions, nonce: str, certificate: Certificate | None = None, host: str = ""
    ) -> Identity | None:
        identity = super().authenticate(connect, nonce, certificate, host)
        if identity is not None and self._operators.accounts[identity.account].nats.authorization.auth_users:
            return _without_questions(identity, identity.account)
        return identity

    def arbiter(self, connect: ConnectOptions, identity: Identity | None) -> Arbiter | None:
        if identity is None:
            return super().arbiter(connect, None)
        users = self._operators.accounts[identity.account].nats.authorization.auth_users
        return _AccountArbiter(self, identity.account) if users and identity.user not in users else None

    async def ask(self, name: str, applicant: Applicant) -> Identity | None:
        """Ask the service of an account about a client."""
        operators = self._operators

        def may_answer(response: AuthorizationResponse) -> bool:
            account = operators.accounts.get(name)  # Its token may be another one since the question.
            if account is None or operators.is_expired(name):
                return False
            signers = {name, *(key if isinstance(key, str) else key.key for key in account.nats.signing_keys or ())}
            return response.iss in signers and response.nats.issuer_account in ("", name)

        try:
            claims, token = await self._service.ask(
                name,
                name,
                operators.accounts[name].nats.authorization.xkey,
                applicant,
                self._options,
                may_answer,
            )
            allowed = operators.accounts[name].nats.authorization.allowed_accounts or ()
            if claims.account != name and claims.account not in allowed and "*" not in allowed:
                raise TokenError(f"account {claims.account} not permitted for the auth callout of account {name}")
            now_ns = self._clock.now_ns()
            identity = identify(operators, claims, self._connection_type, applicant.host, now_ns, token)
        except TokenError as error:
            self._log.error(f"auth callout: {error}")
            return None
        connect = applicant.connect
        user = claims.name or connect.nkey or connect.user or claims.sub
        return _without_questions(structs.replace(identity, user=user), name)


class _AccountArbiter:
    """The service of one account."""

    def __init__(self, authenticator: OperatorCalloutAuthenticator, account: str) -> None:
        self._authenticator = authenticator
        self._account = account

    async def decide(self, applicant: Applicant) -> Identity | None:
        return await self._authenticator.ask(self._account, applicant)


def _is_configured(account: str, options: Options) -> bool:
    return account == GLOBAL_ACCOUNT or any(each.name == account for each in options.accounts)


def _without_questions(identity: Identity, account: str) -> Identity:
    """Keep users of the service's account from asking in the server's place."""
    if identity.account != account:
        return identity
    permissions = identity.permissions or Permissions()
    publish = permissions.publish or SubjectPermissions()
    if _SUBJECT in publish.deny:
        return identity
    publish = structs.replace(publish, deny=(*publish.deny, _SUBJECT))
    return structs.replace(identity, permissions=structs.replace(permissions, publish=publish))
