"""The server's options: frozen values, each with its default and its unit, checked when they are built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, structs

from jetlake.errors import ConfigError
from jetlake.model.ack_subject import NO_DOMAIN
from jetlake.model.weighted_mappings import MappingOptions
from jetlake.protocol.subjects import is_valid_config
from jetlake.server.config.leaf_options import LeafListen, LeafOptions, LeafRemote, parse_leaf_url
from jetlake.server.config.operator_options import CalloutOptions, OperatorOptions
from jetlake.server.config.secret import Secret
from jetlake.server.config.sharing import ExportOptions, ImportOptions, TraceOptions, check_sharing

__all__ = [
    "DEFAULT_INDEX_CACHE",
    "DEFAULT_STORE_DIR",
    "GLOBAL_ACCOUNT",
    "SYSTEM_ACCOUNT",
    "AccountOptions",
    "ConnectionLimits",
    "JetStreamLimits",
    "JetStreamOptions",
    "Options",
    "Permissions",
    "ResponsePermission",
    "Secret",
    "SubjectPermissions",
    "TlsOptions",
    "User",
    "WebSocketOptions",
    "is_subject",
    "is_subject_with_group",
]

GLOBAL_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"
DEFAULT_STORE_DIR = "jetlake-data"
DEFAULT_INDEX_CACHE = 64 * 1024 * 1024

KIB = 1024
MIB = 1024 * 1024

STORED_PAYLOAD_MAX = 64 * MIB
"""The highest `max_payload` that goes with JetStream: streams store what clients may publish."""
_STORED_LINE_MAX = 64 * KIB
"""The highest `max_control_line` that goes with JetStream, for the same reason."""


class SubjectPermissions(Struct, frozen=True, kw_only=True):
    """Which subjects a user may publish to, or subscribe; patterns, for subscriptions also `subject queue`."""

    allow: tuple[str, ...] | None = None
    """Only these; None = all that are not denied; an empty tuple = none."""
    deny: tuple[str, ...] = ()
    """Never these, whatever is allowed."""

    def __post_init__(self) -> None:
        for name in ("allow", "deny"):
            given: Any = getattr(self, name)
            if isinstance(given, list):
                structs.force_setattr(self, name, tuple(given))
            # A text would be read letter by letter, and `>` in it would permit everything.
            elif not isinstance(given, tuple) and (given is not None or name == "deny"):
                raise ConfigError(
                    f"{name} of permissions must be a tuple of subjects, such as ('orders.>',), not {given!r}"
                )


class ResponsePermission(Struct, frozen=True, kw_only=True):
    """Permission to publish to the reply subject of a received message."""

    max: int = 1
    """The most answers to each request; negative = any number."""
    expires_s: float = 120.0
    """For so long after the message; 0 or negative = for ever."""


class Permissions(Struct, frozen=True, kw_only=True):
    """A user's permissions."""

    publish: SubjectPermissions | None = None
    subscribe: SubjectPermissions | None = None
    responses: ResponsePermission | None = None

    def check(self) -> None:
        """Check the subjects.

        Raises:
            ConfigError: one is not valid: it would match nothing, and what it denies would be permitted.
        """
        for rules, is_valid in ((self.publish, is_subject), (self.subscribe, is_subject_with_group)):
            for subject in () if rules is None else (*(rules.allow or ()), *rules.deny):
                if not is_valid(subject):
                    raise ConfigError(f"permissions: {subject!r} is not a valid subject")


def is_subject(text: str) -> bool:
    """Return whether permissions take it as a subject."""
    return is_valid_config(text.encode())


def is_subject_with_group(text: str) -> bool:
    """Return whether it is a subject, or a subject and the queue group that it concerns."""
    words = text.split()
    return is_subject(text) or (len(words) == 2 and is_subject(words[0]))


class User(Struct, frozen=True, kw_only=True):
    """A user, who connects with name and password, or with an nkey."""

    name: str
    """The user's name, or the public nkey."""
    password: Secret | None = None
    """None = there is no password to give (an nkey user, or a user without one)."""
    is_nkey: bool = False
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None
    """None = everything is allowed."""
    connection_types: tuple[str, ...] | None = None
    """How the user may connect: `STANDARD`, `WEBSOCKET`, `LEAFNODE`; None = in any way."""

    def __post_init__(self) -> None:
        if isinstance(self.connection_types, str):  # A part of the text would do.
            raise ConfigError(f"connection_types of user {self.name!r} must be a tuple of names, not a str")
        if self.permissions is not None:
            self.permissions.check()


class JetStreamLimits(Struct, frozen=True, kw_only=True):
    """JetStream limits of one account; -1 = only the server's own."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    tiers: tuple[tuple[str, JetStreamLimits], ...] = ()
    """The limits by a stream's number of replicas, `R1`, `R3` and so on; then the others do not count."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Connection limits of one account; -1 = only the server's own."""

    max_connections: int = -1
    max_subscriptions: int = -1
    """Of one connection."""
    max_payload: int = -1
    max_leafnodes: int = -1

    def narrowed_by(self, other: ConnectionLimits) -> ConnectionLimits:
        """Return these limits with the smaller one of each for a connection."""
        if other.max_subscriptions < 0 and other.max_payload < 0:
            return self
        return structs.replace(
            self,
            max_subscriptions=_smaller(self.max_subscriptions, other.max_subscriptions),
            max_payload=_smaller(self.max_payload, other.max_payload),
        )


def _smaller(one: int, other: int) -> int:
    """Return the smaller of two limits, of which a negative one is none."""
    return max(one, other) if one < 0 or other < 0 else min(one, other)


class AccountOptions(Struct, frozen=True, kw_only=True):
    """An account, the server's unit of isolation."""

    name: str
    label: str = ""
    """The name for people, where the other is a public key."""
    jetstream: JetStreamLimits | None = None
    """None = no JetStream in this account."""
    limits: ConnectionLimits = ConnectionLimits()
    exports: tuple[ExportOptions, ...] = ()
    imports: tuple[ImportOptions, ...] = ()
    mappings: tuple[MappingOptions, ...] = ()
    """Where messages that clients publish to some subjects really go."""
    trace: TraceOptions | None = None
    """Which messages are traced by their `traceparent`; None = none."""


class TlsOptions(Struct, frozen=True, kw_only=True):
    """TLS settings of client connections."""

    cert_file: str
    key_file: str
    ca_file: str = ""
    verify: bool = False
    """Clients must show a certificate signed by the CA."""
    verify_and_map: bool = False
    """As `verify`; and the certificate names the user: by an e-mail address, DNS name, URI, or its subject."""
    timeout_s: float = 2.0
    """The handshake must be over by then."""
    handshake_first: bool = False
    """The handshake comes before INFO; otherwise INFO goes out in the clear and says that TLS is required."""
    handshake_first_fallback_s: float = 0.0
    """With handshake_first: INFO goes out in the clear when the client has said nothing for so long; 0 = never."""
    min_version: str = ""
    """The least TLS version, `1.2` or `1.3`; empty = the library's own."""
    cipher_suites: str = ""
    """The ciphers of TLS 1.2 by OpenSSL's names; empty = the library's own."""


class WebSocketOptions(Struct, frozen=True, kw_only=True):
    """The listener for clients that speak WebSocket."""

    host: str = ""
    """Empty = the address of the other clients."""
    port: int = 0
    """0 or -1 = any free port."""
    advertise: str = ""
    """The address that INFO names instead of the one listened on."""
    tls: TlsOptions | None = None
    no_tls: bool = False
    """Without `tls`: clients may connect in the clear."""
    compression: bool = False
    """Compress messages for clients that offer it."""
    same_origin: bool = False
    """A page may connect only if it came from the host and port that it connects to."""
    allowed_origins: tuple[str, ...] = ()
    """The origins from which a page may connect; empty = any."""
    handshake_timeout_s: float = 2.0
    """The upgrade must be over by then."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the answer to the upgrade."""
    user_cookie: str = ""
    """The cookie with the user's name, for a client whose CONNECT names none; likewise the next three."""
    password_cookie: str = ""
    token_cookie: str = ""
    jwt_cookie: str = ""
    user: User | None = None
    """The only user of this listener; None = the server's users."""
    token: Secret | None = None
    """The token of this listener; None = the server's token."""
    no_auth_user: str = ""
    """The user of clients without credentials; empty = the server's setting."""
    auth_timeout_s: float | None = None
    ping_interval_s: float | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.port <= 65535:
            raise ConfigError(f"websocket port must be between -1 and 65535, not {self.port}")
        if self.tls is None and not self.no_tls:
            raise ConfigError("websocket requires TLS configuration")
        if self.user is not None and self.token is not None:
            raise ConfigError("websocket authorization cannot have a user/pass and token")
        for seconds in (self.handshake_timeout_s, self.auth_timeout_s, self.ping_interval_s):
            if seconds is not None and seconds <= 0:
                raise ConfigError(f"websocket timeouts and ping_interval must be above zero, not {seconds} s")
        for name, _ in self.headers:
            if name.lower().startswith("sec-websocket-"):
                raise ConfigError(f'websocket: invalid header "{name}", "Sec-WebSocket-" prefix not allowed')
        for origin in self.allowed_origins:
            if not is_origin(origin):
                raise ConfigError(f'unable to parse allowed origin: "{origin}" is not like "https://host:port"')


def is_origin(text: str) -> bool:
    """Return whether the text names a scheme and a host."""
    scheme, separator, rest = text.partition("://")
    return bool(separator and scheme.isalpha() and rest and not set(rest) & set("%/?#@ "))


class JetStreamOptions(Struct, frozen=True, kw_only=True):
    """JetStream settings of the server."""

    store_dir: str
    """The data lies in the folder `jetstream` below."""
    max_memory: int = -1
    """Bytes for streams in memory; -1 = three quarters of the machine's memory."""
    max_storage: int = -1
    """Bytes for streams in files; -1 = three quarters of what the disk has free."""
    domain: str = ""
    sync_interval_s: float | None = None
    """None = always: an acknowledgement waits for the disk; a number = the disk is synced that often."""
    index_cache: int = DEFAULT_INDEX_CACHE
    """Bytes of memory for the index of full segments, of all streams together; the rest is read when it is needed."""
    strict: bool = True
    """API requests with unknown fields are refused."""
    max_ack_pending: int = -1
    """Upper limit for consumers' max_ack_pending; -1 = none."""
    max_request_batch: int = -1
    """Upper limit for the batch of a pull request; -1 = none."""
    duplicate_window_s: float = 0.0
    """Upper limit for streams' duplicate window; 0 = none."""
    batches_per_stream: int = 50
    """Atomic batches that a stream may have open at once."""
    batches_total: int = 1000
    """Atomic batches that all streams together may have open at once."""
    batch_messages: int = 1000
    """Most messages of an atomic batch."""
    batch_timeout_s: float = 10.0
    """How long an atomic batch waits for its next message."""
    key: Secret | None = None
    """Encrypts what is stored; None = it is stored in the clear."""
    previous_key: Secret | None = None
    """The key before a rotation: opens what `key` does not."""
    cipher: str = "chacha"
    """How new files are encrypted: `chacha` (ChaCha20) or `aes` (AES-256)."""

    def __post_init__(self) -> None:
        if any(letter in self.domain for letter in ".*>"):
            raise ConfigError("invalid domain name: may not contain ., * or >")
        if any(letter.isspace() for letter in self.domain):
            raise ConfigError("invalid domain name: may not contain blanks")
        if self.domain == NO_DOMAIN:
            raise ConfigError("invalid domain name: _ stands for no domain in acknowledgement subjects")
        if not self.store_dir:
            raise ConfigError("jetstream store_dir must not be empty")
        if self.sync_interval_s is not None and self.sync_interval_s <= 0:
            raise ConfigError("sync_interval must be 'always' or a duration above zero")
        if self.index_cache < 0:
            raise ConfigError("index_cache must not be negative")
        if self.cipher not in ("aes", "chacha"):
            raise ConfigError(f"unknown cipher type: '{self.cipher}', use chacha or aes")
        if self.previous_key is not None and self.key is None:
            raise ConfigError("prev_key needs key: the one that the streams are encrypted with from now on")


class Options(Struct, frozen=True, kw_only=True):
    """All options of a server, as one value."""

    # Where it listens
    host: str = "127.0.0.1"
    port: int = 0
    """0 or -1 = any free port."""
    server_name: str = ""
    """Empty = the server's id."""
    server_tags: tuple[str, ...] = ()
    """Labels that `/varz` shows, in lower case; they place nothing on a single server."""
    client_advertise: str = ""
    """The address that INFO names instead of the one listened on."""
    http_host: str = ""
    """Where monitoring listens; empty = the loopback interface."""
    http_port: int | None = None
    """None = no monitoring; 0 or -1 = any free port."""
    https: bool = False
    """Monitoring speaks TLS with the certificate of `tls`."""
    http_base_path: str = ""
    lake: str = ""
    """The folder whose Iceberg tables the monitoring port serves; empty = none."""

    # Limits
    max_payload: int = 1 * MIB
    """Bytes of header and payload of one message; with JetStream at most 64 MiB."""
    max_pending: int = 64 * MIB
    """Bytes that may wait to be written to one connection; beyond, it is cut off."""
    max_control_line: int = 4 * KIB
    """Bytes of subject, reply and sizes on one line; with JetStream at most 64 KiB."""
    max_connections: int = 64 * KIB
    """-1 = no limit."""
    max_subscriptions: int = 0
    """Of one connection; 0 = no limit."""
    no_header_support: bool = False
    """Messages have no headers, neither from clients nor to them."""

    # Liveness
    ping_interval_s: float = 120.0
    ping_max: int = 2
    """Unanswered pings after which the connection counts as stale."""
    write_deadline_s: float = 10.0
    lame_duck_duration_s: float = 120.0
    lame_duck_grace_period_s: float = 10.0

    # Who may connect
    auth_timeout_s: float = 2.0
    token: Secret | None = None
    users: tuple[User, ...] = ()
    accounts: tuple[AccountOptions, ...] = ()
    mappings: tuple[MappingOptions, ...] = ()
    """The mappings of `$G`, the account of servers without accounts."""
    no_auth_user: str = ""
    system_account: str = SYSTEM_ACCOUNT
    operators: OperatorOptions | None = None
    """Who signs the accounts and users; None = they are configured here."""
    callout: CalloutOptions | None = None
    """The service that decides who may connect; None = this configuration decides."""
    tls: TlsOptions | None = None
    allow_non_tls: bool = False
    """With `tls`: clients may also continue in the clear."""
    websocket: WebSocketOptions | None = None
    """None = no WebSocket."""
    leafnodes: LeafOptions = LeafOptions()
    """The hubs that the server joins as a leaf node, and the listener for leaf nodes that join it."""

    # JetStream
    jetstream: JetStreamOptions | None = None
    """None = core NATS only."""
    ack_subject_v2: bool = False
    """Acks get the longer subject that names domain and account."""

    # Files and logs
    config_file: str = ""
    pid_file: str = ""
    ports_file_dir: str = ""
    log_file: str = ""
    log_size_limit: int = 0
    """Bytes after which the log file is moved aside; 0 = never."""
    log_time: bool = True
    log_time_utc: bool = False
    debug: bool = False
    trace: bool = False
    max_traced_msg_len: int = 0
    """Bytes of a payload that a trace shows; 0 = all."""

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_names()

    def _check_numbers(self) -> None:
        if not -1 <= self.port <= 65535:
            raise ConfigError(f"port must be between -1 and 65535, not {self.port}")
        if self.http_port is not None and not -1 <= self.http_port <= 65535:
            raise ConfigError(f"http_port must be between -1 and 65535, not {self.http_port}")
        if self.lake and self.http_port is None:
            raise ConfigError("--lake serves tables on the monitoring port: name one with --http_port")
        if self.max_payload > self.max_pending:
            raise ConfigError(
                f"max_payload ({self.max_payload}) cannot be higher than max_pending ({self.max_pending})"
            )
        if self.jetstream is not None and self.max_payload > STORED_PAYLOAD_MAX:
            raise ConfigError(
                f"max_payload ({self.max_payload}) cannot be higher than {STORED_PAYLOAD_MAX} with JetStream, "
                "whose streams store no longer message"
            )
        if self.jetstream is not None and self.max_control_line > _STORED_LINE_MAX:
            raise ConfigError(
                f"max_control_line ({self.max_control_line}) cannot be higher than {_STORED_LINE_MAX} with JetStream, "
                "whose streams store no longer subject"
            )
        for name in ("max_payload", "max_pending", "max_control_line", "ping_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above zero, not {getattr(self, name)}")
        for name in ("ping_interval_s", "write_deadline_s", "auth_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name.removesuffix('_s')} must be above zero, not {getattr(self, name)} s")
        if self.lame_duck_grace_period_s >= self.lame_duck_duration_s:
            raise ConfigError(
                f"lame duck grace period ({self.lame_duck_grace_period_s:g}s) should be strictly lower than "
                f"lame duck duration ({self.lame_duck_duration_s:g}s)"
            )

    def _check_names(self) -> None:
        if any(letter.isspace() for letter in self.server_name):
            raise ConfigError("server name cannot contain spaces")
        names = [user.name for user in self.users]
        if len(set(names)) != len(names):
            duplicate = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f'Duplicate user "{duplicate}" detected')
        if self.no_auth_user and not names:
            raise ConfigError(f'no_auth_user: "{self.no_auth_user}" present, but users/nkeys are not defined')
        if self.no_auth_user and self.no_auth_user not in names:
            raise ConfigError(
                f'no_auth_user: "{self.no_auth_user}" not present as user or nkey in authorization block '
                "or account configuration"
            )
        if self.token is not None and self.users:
            raise ConfigError("Cannot have a user/pass and token")
        if self.websocket is not None and self.users and (self.websocket.user or self.websocket.token):
            raise ConfigError("websocket authorization is not compatible with the presence of users/nkeys")
        if self.operators is not None:
            if self.users or self.token is not None or self.no_auth_user:
                raise ConfigError("operators do not allow users to be configured directly")
            if self.callout is not None:
                raise ConfigError("operators do not allow authorization callouts to be configured directly")
            return  # The accounts are in tokens, which are read when the server is made.
        if self.websocket is not None and self.websocket.jwt_cookie:
            raise ConfigError("websocket jwt_cookie needs an operator or trusted_keys")
        known = {GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, *(account.name for account in self.accounts)}
        if self.callout is not None and self.callout.account not in known:
            raise ConfigError(f'auth_callout: the account "{self.callout.account}" is not defined')
        if self.system_account not in known:
            raise ConfigError("error resolving system account: account missing")
        for user in self.users:
            if user.account not in known:
                raise ConfigError(f"account {user.account!r} of user {user.name!r} is not defined")
        self.leafnodes.check_accounts({*known, self.system_account})
        check_sharing(self.accounts)

    def with_websocket(self, port: int) -> Options:
        """Return the same options with a WebSocket listener on this port, with the TLS of other clients or without."""
        present = self.websocket or WebSocketOptions(tls=self.tls, no_tls=self.tls is None)
        return self.replace(websocket=structs.replace(present, port=port))

    def with_leafnodes(self, port: int) -> Options:
        """Return the same options with a listener for leaf nodes on this port, at the address for clients."""
        listen = LeafListen(host=self.host, port=port)
        if self.leafnodes.listen is not None:
            listen = structs.replace(self.leafnodes.listen, port=port)
        return self.replace(leafnodes=structs.replace(self.leafnodes, listen=listen))

    def with_leaf(self, urls: str | Iterable[str]) -> Options:
        """Return the same options with one more hub to join, at any of the URLs.

        Raises:
            ConfigError: one of them is no URL of a hub.
        """
        texts = urls.split(",") if isinstance(urls, str) else urls
        remote = LeafRemote(urls=tuple(parse_leaf_url(text.strip()) for text in texts))
        return self.replace(leafnodes=structs.replace(self.leafnodes, remotes=(*self.leafnodes.remotes, remote)))

    def replace(self, **changes: object) -> Options:
        """Return the options with some values changed, checked again."""
        return structs.replace(self, **changes)
