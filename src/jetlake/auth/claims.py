"""Claims: what the tokens of operators, accounts, users, activations and authorizations say, as typed values.

Every field that NATS defines is here, and no other is accepted: a claim that restricts its owner and is not known must
not be passed over. The fields have the names of the wire.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar
from urllib.parse import urlsplit

from msgspec import Struct, field

from jetlake.auth.keys import ACCOUNT, CURVE, OPERATOR, USER, kind_of
from jetlake.errors import TokenError
from jetlake.protocol.subjects import is_valid_config, is_valid_publish

__all__ = [
    "UNLIMITED",
    "Account",
    "AccountClaims",
    "ActivationClaims",
    "AuthorizationRequest",
    "AuthorizationResponse",
    "Claims",
    "ClientInformation",
    "ConnectInformation",
    "Export",
    "ExternalAuthorization",
    "GenericClaims",
    "Import",
    "JetStreamTier",
    "Latency",
    "Mapping",
    "Operator",
    "OperatorClaims",
    "OperatorLimits",
    "Permission",
    "Responses",
    "ServerInformation",
    "SigningScope",
    "Template",
    "TimeRange",
    "TlsInformation",
    "Trace",
    "UnlimitedUser",
    "User",
    "UserClaims",
    "UserLimits",
]

UNLIMITED = -1

_KINDS = ("stream", "service")
_RESPONSES = ("", "Singleton", "Stream", "Chunked")
_CLUSTER_TRAFFIC = ("", "system", "owner")
_INT_MAX = 2**62
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d", re.ASCII)


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a token; an unknown field is an error."""


class _Described(_Part, frozen=True, kw_only=True):
    """What every kind of token may say of itself."""

    tags: tuple[str, ...] = ()
    type: str = ""
    version: int = 0


class Claims(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every token says: who signed it, about whom, and from when until when."""

    TYPE: ClassVar[str] = ""

    sub: str
    """The public key of whom it is about."""
    iss: str = ""
    """The public key that signed it."""
    name: str = ""
    aud: str = ""
    iat: int = 0
    """When it was signed, in seconds since 1970."""
    exp: int = 0
    """When it ends; 0 = never."""
    nbf: int = 0
    """When it begins; 0 = at once."""
    jti: str = ""

    def check(self) -> None:
        """Check what the types alone do not say.

        Raises:
            TokenError: a value is out of its range, or is no key or subject where it must be one.
        """
        for name in ("iat", "exp", "nbf"):
            if not 0 <= getattr(self, name) < _INT_MAX:
                raise TokenError(f"{name} of a token must be a time in seconds, not {getattr(self, name)}")


# What a user may do


class Permission(_Part, frozen=True, kw_only=True):
    """Subjects that may be used, and subjects that may not."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Responses(_Part, frozen=True, kw_only=True):
    """Permission to publish to the reply subject of a received message."""

    max: int = 0
    ttl: int = 0
    """Nanoseconds."""


class _Permissions(_Part, frozen=True, kw_only=True):
    pub: Permission = Permission()
    sub: Permission = Permission()
    resp: Responses | None = None


class TimeRange(_Part, frozen=True, kw_only=True):
    """Hours of the day, as `08:30:00`."""

    start: str = ""
    end: str = ""


class UserLimits(_Part, frozen=True, kw_only=True):
    """What a user, or the users of a signing key, may do: subjects, networks, hours and sizes."""

    pub: Permission = Permission()
    sub: Permission = Permission()
    resp: Responses | None = None
    src: tuple[str, ...] | str = ()
    """Networks that the user may connect from."""
    times: tuple[TimeRange, ...] | None = None
    times_location: str = ""
    subs: int = 0
    """Subscriptions; -1 = any number."""
    data: int = 0
    payload: int = 0
    """Bytes of a message; -1 = no limit of its own."""
    bearer_token: bool = False
    """The token is enough to log in: nothing has to be signed."""
    allowed_connection_types: tuple[str, ...] | None = None
    proxy_required: bool = False

    def networks(self) -> tuple[str, ...]:
        """Return the networks as a list, in whichever form the token has them."""
        if isinstance(self.src, str):
            return tuple(part for text in self.src.split(",") if (part := text.strip().lower()))
        return self.src


class User(UserLimits, frozen=True, kw_only=True):
    """The part of a user's token that is about users."""

    issuer_account: str = ""
    """The account, where one of its signing keys signed."""
    tags: tuple[str, ...] = ()
    type: str = ""
    version: int = 0


def UnlimitedUser(**settings: Any) -> User:  # noqa: N802  # reads like the value it makes
    """Return what a user may do without limits of its own, but for these settings."""
    return User(**{"subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED, **settings})


class UserClaims(Claims, frozen=True, kw_only=True):
    """The token of a user."""

    TYPE: ClassVar[str] = "user"

    nats: User = User()

    @property
    def account(self) -> str:
        """The public key of the user's account."""
        return self.nats.issuer_account or self.iss

    def check(self) -> None:
        super().check()
        _check_account(self.nats.issuer_account)
        _check_user(self.nats)


def _check_account(key: str) -> None:
    if key and kind_of(key) != ACCOUNT:
        raise TokenError(f"issuer_account must be the public key of an account, not {key!r:.60}")


def _check_user(limits: UserLimits, *, is_template: bool = False) -> None:
    if not is_template:
        _check_permissions(limits.pub, limits.sub)
    _check_numbers(limits)
    if limits.data > 0:
        raise TokenError("data: a limit of bytes in all is not supported")
    for hours in limits.times or ():
        if not (_CLOCK.fullmatch(hours.start) and _CLOCK.fullmatch(hours.end)):
            raise TokenError(f"hours must be like 08:30:00, not {hours.start!r:.40} and {hours.end!r:.40}")
    if limits.proxy_required:
        raise TokenError("proxy_required is not supported")


def _check_numbers(part: Struct) -> None:
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, int) and not -_INT_MAX <= value < _INT_MAX:
            raise TokenError(f"{name}: {value} is too large")


def _check_permissions(publish: Permission, subscribe: Permission) -> None:
    for subject in (*publish.allow, *publish.deny):
        if not is_valid_config(subject.encode()):
            raise TokenError(f"{subject!r:.80} is not a valid subject")
    for subject in (*subscribe.allow, *subscribe.deny):
        words = subject.split(" ")
        if len(words) > 2 or not all(is_valid_config(word.encode()) for word in words):
            raise TokenError(f"{subject!r:.80} is not a valid subject, with or without a queue group")


# Accounts


class Import(_Part, frozen=True, kw_only=True):
    """Subjects of another account."""

    name: str = ""
    subject: str = ""
    """Of a stream the exporter's; of a service the exporter's with `local_subject`, else the importer's."""
    account: str = ""
    token: str = ""
    """The activation, where the export asks for one."""
    to: str = ""
    local_subject: str = ""
    type: str = ""
    share: bool = False
    allow_trace: bool = False


class Latency(_Part, frozen=True, kw_only=True):
    """How the time that a service takes is measured."""

    sampling: int | str = 0
    results: str = ""


class Export(_Part, frozen=True, kw_only=True):
    """Subjects that other accounts may import."""

    name: str = ""
    subject: str = ""
    type: str = ""
    token_req: bool = False
    """Only accounts with an activation token."""
    revocations: dict[str, int] | None = None
    """Accounts whose activations up to a time are void."""
    response_type: str = ""
    response_threshold: int = 0
    service_latency: Latency | None = None
    account_token_position: int = 0
    advertise: bool = False
    allow_trace: bool = False
    description: str = ""
    info_url: str = ""


class JetStreamTier(_Part, frozen=True, kw_only=True):
    """JetStream limits of an account, or of its streams with one number of replicas."""

    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0
    max_ack_pending: int = 0
    mem_max_stream_bytes: int = 0
    disk_max_stream_bytes: int = 0
    max_bytes_required: bool = False


class OperatorLimits(JetStreamTier, frozen=True, kw_only=True):
    """What the operator allows an account."""

    subs: int = 0
    data: int = 0
    payload: int = 0
    imports: int = 0
    exports: int = 0
    wildcards: bool = False
    disallow_bearer: bool = False
    conn: int = 0
    leaf: int = 0
    tiered_limits: dict[str, JetStreamTier] | None = None


class Template(UserLimits, frozen=True, kw_only=True):
    """What the users of a signing key may do; other than in a user's token, a limit that is missing is none."""

    subs: int = UNLIMITED
    data: int = UNLIMITED
    payload: int = UNLIMITED


class SigningScope(_Part, frozen=True, kw_only=True):
    """A signing key whose users may do what its template says."""

    kind: str
    key: str
    role: str = ""
    description: str = ""
    template: Template = Template()


class ExternalAuthorization(_Part, frozen=True, kw_only=True):
    """A service of the account that decides who may connect."""

    auth_users: tuple[str, ...] | None = None
    allowed_accounts: tuple[str, ...] | None = None
    xkey: str = ""


class Trace(_Part, frozen=True, kw_only=True):
    """Where messages are traced to."""

    dest: str = ""
    sampling: int = 0


class Mapping(_Part, frozen=True, kw_only=True):
    """Where a share of the messages to a subject goes."""

    subject: str
    weight: int = 0
    cluster: str = ""


class _DefaultPermissions(_Permissions, frozen=True, kw_only=True):
    """The permissions of users without any."""


class Account(_Described, frozen=True, kw_only=True):
    """The part of an account's token that is about accounts."""

    imports: tuple[Import, ...] | None = None
    exports: tuple[Export, ...] | None = None
    limits: OperatorLimits = OperatorLimits()
    signing_keys: tuple[str | SigningScope, ...] | None = None
    revocations: dict[str, int] | None = None
    """Users (`*` = all) whose tokens up to a time are void."""
    default_permissions: _DefaultPermissions = _DefaultPermissions()
    mappings: dict[str, tuple[Mapping, ...]] | None = None
    authorization: ExternalAuthorization = ExternalAuthorization()
    trace: Trace | None = None
    cluster_traffic: str = ""
    description: str = ""
    info_url: str = ""


class AccountClaims(Claims, frozen=True, kw_only=True):
    """The token of an account."""

    TYPE: ClassVar[str] = "account"

    nats: Account = Account()

    def check(self) -> None:
        super().check()
        account, limits = self.nats, self.nats.limits
        imports, exports = account.imports or (), account.exports or ()
        for part in (limits, *(limits.tiered_limits or {}).values()):
            _check_numbers(part)
        if limits.data > 0:
            raise TokenError("data: a limit of bytes in all is not supported")
        if account.cluster_traffic not in _CLUSTER_TRAFFIC:
            raise TokenError(f"unknown cluster traffic option: {account.cluster_traffic!r:.40}")
        _check_url(account.info_url)
        if limits.tiered_limits:
            if any(getattr(limits, name) for name in JetStreamTier.__struct_fields__):
                raise TokenError("JetStream Limits and tiered JetStream Limits are mutually exclusive")
            if "" in limits.tiered_limits:
                raise TokenError('Tiered JetStream Limits can not contain a blank "" tier name')
        if 0 <= limits.imports < len(imports):
            raise TokenError("the account contains more imports than allowed by the operator")
        if 0 <= limits.exports < len(exports):
            raise TokenError("the account contains more exports than allowed by the operator")
        for export in exports:
            _check_export(export)
            if limits.exports != UNLIMITED and not limits.wildcards and _has_wildcards(export.subject):
                raise TokenError("the account contains wildcard exports that are not allowed by the operator")
        for entry in imports:
            _check_import(entry)
        for key in account.signing_keys or ():
            _check_signing_key(key)
        _check_permissions(account.default_permissions.pub, account.default_permissions.sub)
        _check_authorization(account.authorization)
        if account.trace is not None:
            _check_trace(account.trace)


def _check_trace(trace: Trace) -> None:
    if not is_valid_publish(trace.dest.encode()):
        raise TokenError(f"the account Trace.Destination {trace.dest!r:.80} is not a valid subject")
    if not 0 <= trace.sampling <= 100:
        raise TokenError("the account Trace.Sampling must be between 1 and 100")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.scheme and parts.hostname)
    except ValueError:
        is_whole = False
    if url and not is_whole:
        raise TokenError(f"info_url: {url!r:.80} has no scheme or host")


def _check_export(export: Export) -> None:
    _check_url(export.info_url)
    if export.type not in _KINDS:
        raise TokenError(f"invalid export type: {export.type!r:.40}")
    if not is_valid_config(export.subject.encode()):
        raise TokenError(f"export: {export.subject!r:.80} is not a valid subject")
    if export.response_type not in (_RESPONSES if export.type == "service" else ("",)):
        raise TokenError(f"invalid response type for {export.type}: {export.response_type!r:.40}")
    if export.response_threshold < 0 or (export.response_threshold and export.type != "service"):
        raise TokenError("response_threshold must be a duration, of a service")
    if export.service_latency is not None:
        sampling = export.service_latency.sampling
        if export.type != "service":
            raise TokenError("latency tracking only permitted for services")
        if sampling != "headers" and not (isinstance(sampling, int) and 0 <= sampling <= 100):
            raise TokenError("sampling percentage needs to be between 1-100")
        if not is_valid_publish(export.service_latency.results.encode()):
            raise TokenError("the subject of latency results is not a valid subject")
    position, tokens = export.account_token_position, export.subject.split(".")
    if position and (not 1 <= position <= len(tokens) or tokens[position - 1] != "*"):
        raise TokenError(f"account_token_position {position} of {export.subject!r:.80} must be that of a *")


def _check_import(entry: Import) -> None:
    if entry.type not in _KINDS:
        raise TokenError(f"invalid import type: {entry.type!r:.40}")
    if not is_valid_config(entry.subject.encode()):
        raise TokenError(f"import: {entry.subject!r:.80} is not a valid subject")
    if entry.local_subject and entry.to:
        raise TokenError("an import has `to` or `local_subject`, not both")
    if entry.share and entry.type != "service":
        raise TokenError("sharing information is only valid for services")
    if entry.allow_trace and entry.type != "stream":
        raise TokenError("AllowTrace only valid for stream imports")


def _check_signing_key(key: str | SigningScope) -> None:
    public = key if isinstance(key, str) else key.key
    if kind_of(public) != ACCOUNT:
        raise TokenError(f"{public!r:.60} is not a valid account signing key")
    if isinstance(key, SigningScope):
        if key.kind != "user_scope":
            raise TokenError(f"unknown signing key scope {key.kind!r:.40}")
        _check_user(key.template, is_template=True)


def _check_authorization(external: ExternalAuthorization) -> None:
    users, accounts = external.auth_users or (), external.allowed_accounts or ()
    if accounts and not users:
        raise TokenError("External authorization cannot have accounts without users specified")
    for user in users:
        if kind_of(user) != USER:
            raise TokenError(f"AuthUser {user!r:.60} is not a valid user public key")
    for account in accounts:
        if account == "*" and len(accounts) > 1:
            raise TokenError('AllowedAccounts can only be a list of accounts or "*"')
        if account != "*" and kind_of(account) != ACCOUNT:
            raise TokenError(f"Account {account!r:.60} is not a valid account public key")
    if external.xkey and kind_of(external.xkey) != CURVE:
        raise TokenError(f"XKey {external.xkey!r:.60} is not a valid public xkey")


def _has_wildcards(subject: str) -> bool:
    return any(token in ("*", ">") for token in subject.split("."))


# Operators


class Operator(_Described, frozen=True, kw_only=True):
    """The part of an operator's token that is about operators."""

    signing_keys: tuple[str, ...] | None = None
    account_server_url: str = ""
    operator_service_urls: tuple[str, ...] | None = None
    system_account: str = ""
    assert_server_version: str = ""
    strict_signing_key_usage: bool = False


class OperatorClaims(Claims, frozen=True, kw_only=True):
    """The token of an operator."""

    TYPE: ClassVar[str] = "operator"

    nats: Operator = Operator()

    def check(self) -> None:
        super().check()
        for key in self.nats.signing_keys or ():
            if kind_of(key) != OPERATOR:
                raise TokenError(f"{key!r:.60} is not an operator public key")
        if self.nats.system_account and kind_of(self.nats.system_account) != ACCOUNT:
            raise TokenError(f"{self.nats.system_account!r:.60} is not an account public key")


# Activations


class _Activation(_Described, frozen=True, kw_only=True):
    subject: str = ""
    kind: str = ""
    issuer_account: str = ""


class ActivationClaims(Claims, frozen=True, kw_only=True):
    """The token by which an account lets another one import."""

    TYPE: ClassVar[str] = "activation"

    nats: _Activation = _Activation()

    def check(self) -> None:
        super().check()
        _check_account(self.nats.issuer_account)
        if self.nats.kind not in _KINDS:
            raise TokenError(f"invalid activation type: {self.nats.kind!r:.40}")
        if not is_valid_config(self.nats.subject.encode()):
            raise TokenError(f"activation: {self.nats.subject!r:.80} is not a valid subject")


# Authorization by a service


class ServerInformation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The server that asks."""

    name: str = ""
    host: str = ""
    id: str = ""
    version: str = ""
    cluster: str = ""
    tags: tuple[str, ...] = ()
    xkey: str = ""


class ClientInformation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client that wants to connect, as the server knows it."""

    host: str = ""
    id: int = 0
    user: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    name_tag: str = ""
    kind: str = ""
    type: str = ""
    mqtt_id: str = ""
    nonce: str = ""


class ConnectInformation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the client's CONNECT said."""

    jwt: str = ""
    nkey: str = ""
    sig: str = ""
    auth_token: str = ""
    user: str = ""
    password: str = field(default="", name="pass")
    name: str = ""
    lang: str = ""
    version: str = ""
    protocol: int = 0


class TlsInformation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's TLS."""

    version: str = ""
    cipher: str = ""
    certs: tuple[str, ...] = ()
    verified_chains: tuple[tuple[str, ...], ...] = ()
    server_name: str = ""


class _Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    server_id: ServerInformation = ServerInformation()
    user_nkey: str = ""
    client_info: ClientInformation = ClientInformation()
    connect_opts: ConnectInformation = ConnectInformation()
    client_tls: TlsInformation | None = None
    request_nonce: str = ""
    tags: tuple[str, ...] = ()
    type: str = ""
    version: int = 0


class AuthorizationRequest(Claims, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The question of a server whether a client may connect; a newer server may say more than is known here."""

    TYPE: ClassVar[str] = "authorization_request"

    nats: _Request = _Request()


class _Response(_Described, frozen=True, kw_only=True):
    jwt: str = ""
    error: str = ""
    issuer_account: str = ""


class AuthorizationResponse(Claims, frozen=True, kw_only=True):
    """The answer to that question: the token of a user, or an error."""

    TYPE: ClassVar[str] = "authorization_response"

    nats: _Response = _Response()

    def check(self) -> None:
        super().check()
        _check_account(self.nats.issuer_account)
        if bool(self.nats.jwt) == bool(self.nats.error):
            raise TokenError("an answer has either a token or an error")


# Other requests


class GenericClaims(Claims, frozen=True, kw_only=True):
    """A request that an operator signs, such as which accounts to delete."""

    TYPE: ClassVar[str] = "generic"

    nats: dict[str, Any] = {}
