"""Users, permissions and accounts in a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jetlake.auth.keys import USER, kind_of
from jetlake.errors import ConfigError
from jetlake.server.config.conf import Value
from jetlake.server.config.mappings_reader import read_mappings
from jetlake.server.config.operator_section import read_callout
from jetlake.server.config.options import (
    GLOBAL_ACCOUNT,
    AccountOptions,
    ConnectionLimits,
    JetStreamLimits,
    Permissions,
    ResponsePermission,
    Secret,
    SubjectPermissions,
    User,
    is_subject,
    is_subject_with_group,
)
from jetlake.server.config.section import Findings, Section
from jetlake.server.config.sharing_reader import read_exports, read_imports, read_trace

if TYPE_CHECKING:
    from jetlake.server.config.operator_options import CalloutOptions

__all__ = ["Authorization", "check_names", "read_accounts", "read_authorization"]

_NOT_BUILT = "this server does not have it"
_INSECURE = "ignoring it would admit clients that it is meant to keep out"
_CONNECTION_TYPES = {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}

_KNOWN_TYPES = {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS"}


class Authorization:
    """The content of the `authorization` map."""

    def __init__(self) -> None:
        self.token: Secret | None = None
        self.users: list[User] = []
        self.timeout_s: float | None = None
        self.callout: CalloutOptions | None = None


def read_authorization(section: Section) -> Authorization:
    """Read a token, a single user or a list of users."""
    found = Authorization()
    defaults = _permissions(section.find("default_permissions"), section.findings)
    section.refuse(_INSECURE, "proxy_required")
    found.callout = read_callout(section.section("auth_callout"), GLOBAL_ACCOUNT)
    if section.has("timeout"):
        found.timeout_s = section.seconds("timeout", default=2.0)
    token = section.string("token")
    user = section.string("user", "username")
    password = section.string("pass", "password")
    permissions = _permissions(section.find("permissions", "permission", "authorization"), section.findings)
    listed = section.find("users")
    if token and (user or password):
        raise ConfigError(f"{section.value.place}: Cannot have a user/pass and token")
    if token and listed is not None:
        raise ConfigError(f"{section.value.place}: Can not have a token and a users array")
    if (user or password) and listed is not None:
        raise ConfigError(f"{section.value.place}: Can not have a single user/pass and a users array")
    if token:
        found.token = Secret(token)
    elif user or password:
        found.users = [User(name=user, password=Secret(password), permissions=permissions or defaults)]
    elif listed is not None:
        found.users = _users(listed, GLOBAL_ACCOUNT, defaults, section.findings)
    section.finish()
    return found


def _users(value: Value, account: str, defaults: Permissions | None, findings: Findings) -> list[User]:
    if not isinstance(value.data, list):
        raise ConfigError(f"{value.place}: expected users to be a list of maps")
    users = [_user(entry, account, defaults, findings) for entry in value.data]
    check_names(users, set(), value)
    return users


def check_names(users: Iterable[User], known: set[str], value: Value) -> None:
    """Add the names of users to the known ones, which must have none of them.

    Raises:
        ConfigError: two users have one name; the error names the place of the value.
    """
    for user in users:
        if user.name in known:
            raise ConfigError(f'{value.place}: Duplicate user "{user.name}" detected')
        known.add(user.name)


def _user(value: Value, account: str, defaults: Permissions | None, findings: Findings) -> User:
    section = Section(value, findings)
    nkey = section.string("nkey")
    name = section.string("user", "username")
    password = section.string("pass", "password")
    permissions = _permissions(section.find("permissions", "permission", "authorization"), findings) or defaults
    section.refuse(_INSECURE, "proxy_required")
    kinds = section.strings("allowed_connection_types", "connection_types", "clients")
    connection_types = tuple(kind.upper() for kind in kinds) if kinds is not None else None
    if unknown := set(connection_types or ()) - _CONNECTION_TYPES:
        raise ConfigError(f"{value.place}: invalid connection types {sorted(unknown)}")
    if connection_types is not None and not set(connection_types) & _KNOWN_TYPES:
        listed = ", ".join(sorted(_KNOWN_TYPES))
        raise ConfigError(f"{value.place}: allowed_connection_types must include one of {listed}: {_NOT_BUILT}")
    section.finish()
    if nkey:
        if name or password:
            raise ConfigError(f"{value.place}: Nkey users do not take usernames or passwords")
        if kind_of(nkey) != USER:
            raise ConfigError(f"{value.place}: Not a valid public nkey for a user")
        return User(
            name=nkey, is_nkey=True, account=account, permissions=permissions, connection_types=connection_types
        )
    if not name:
        raise ConfigError(f"{value.place}: User entry requires a user")
    return User(
        name=name,
        password=Secret(password),
        account=account,
        permissions=permissions,
        connection_types=connection_types,
    )


def _permissions(value: Value | None, findings: Findings) -> Permissions | None:
    if value is None:
        return None
    section = Section(value, findings)
    publish = _subjects(section.find("pub", "publish", "import"), findings, is_valid=is_subject)
    subscribe = _subjects(section.find("sub", "subscribe", "export"), findings, is_valid=is_subject_with_group)
    responses = _responses(section.find("publish_allow_responses", "allow_responses"), findings)
    section.finish()
    if responses is not None and (publish is None or publish.allow is None):
        # With response permissions alone nothing else may be published.
        publish = SubjectPermissions(allow=(), deny=publish.deny if publish is not None else ())
    return Permissions(publish=publish, subscribe=subscribe, responses=responses)


def _subjects(value: Value | None, findings: Findings, *, is_valid: Callable[[str], bool]) -> SubjectPermissions | None:
    if value is None:
        return None
    if isinstance(value.data, dict):
        section = Section(value, findings)
        permissions = SubjectPermissions(allow=section.strings("allow"), deny=section.strings("deny") or ())
        section.finish()
    else:
        wrapper = Section(Value({"allow": value}, value.file, value.line, value.column), findings)
        permissions = SubjectPermissions(allow=wrapper.strings("allow"))
    for subject in (*(permissions.allow or ()), *permissions.deny):
        if not is_valid(subject):
            raise ConfigError(f'{value.place}: subject "{subject}" is not a valid subject')
    return permissions


def _responses(value: Value | None, findings: Findings) -> ResponsePermission | None:
    if value is None or value.data is False:
        return None
    if value.data is True:
        return ResponsePermission()
    section = Section(value, findings)
    permission = ResponsePermission(
        max=section.integer("max", "max_msgs", "max_messages", "max_responses", default=1),
        expires_s=section.duration("expires", "expiration", "ttl", default=120.0),
    )
    section.finish()
    return permission


def read_accounts(section: Section) -> tuple[list[AccountOptions], list[User]]:
    """Read the accounts and all their users."""
    accounts: list[AccountOptions] = []
    users: list[User] = []
    known: set[str] = set()
    for name, value in section.items():
        if name == GLOBAL_ACCOUNT:
            raise ConfigError(f'{value.place}: "{name}" is a Reserved Account')
        if value.is_variable:
            continue
        inner = Section(value, section.findings)
        defaults = _permissions(inner.find("default_permissions"), section.findings)
        listed = inner.find("users")
        if listed is not None:
            of_account = _users(listed, name, defaults, section.findings)
            check_names(of_account, known, value)
            users += of_account
        limits = _jetstream_limits(inner.find("jetstream"), section.findings)
        accounts.append(
            AccountOptions(
                name=name,
                jetstream=limits,
                limits=_connection_limits(inner.find("limits"), section.findings),
                exports=read_exports(inner.find("exports"), section.findings),
                imports=read_imports(inner.find("imports"), section.findings),
                mappings=read_mappings(inner.section("mappings", "maps")),
                trace=read_trace(inner.find("msg_trace", "trace_dest"), section.findings),
            )
        )
        inner.ignore("only operators use it", "nkey")
        inner.ignore("there is no traffic of a cluster", "cluster_traffic")
        inner.finish()
    return accounts, users


def _connection_limits(value: Value | None, findings: Findings) -> ConnectionLimits:
    if value is None:
        return ConnectionLimits()
    section = Section(value, findings)
    limits = ConnectionLimits(
        max_connections=section.integer("max_connections", "max_conn", default=-1),
        max_subscriptions=section.integer("max_subscriptions", "max_subs", default=-1),
        max_payload=section.integer("max_payload", "max_pay", default=-1),
        max_leafnodes=section.integer("max_leafnodes", "max_leafs", default=-1),
    )
    section.finish()
    return limits


def _jetstream_limits(value: Value | None, findings: Findings) -> JetStreamLimits | None:
    if value is None or value.data is False:
        return None
    if value.data is True:
        return JetStreamLimits()
    if isinstance(value.data, str):
        if value.data.lower() in ("enabled", "enable"):
            return JetStreamLimits()
        if value.data.lower() in ("disabled", "disable"):
            return None
        raise ConfigError(f"{value.place}: Expected 'enabled' or 'disabled' for string value, got '{value.data}'")
    section = Section(value, findings)
    limits = JetStreamLimits(
        max_memory=section.size("max_memory", "max_mem", "mem", "memory", default=-1),
        max_storage=section.size("max_store", "max_file", "max_disk", "store", "disk", default=-1),
        max_streams=section.integer("max_streams", "streams", default=-1),
        max_consumers=section.integer("max_consumers", "consumers", default=-1),
        max_ack_pending=section.integer("max_ack_pending", default=-1),
        memory_max_stream_bytes=section.size("memory_max_stream_bytes", "mem_max_stream_bytes", default=-1),
        storage_max_stream_bytes=section.size(
            "disk_max_stream_bytes", "store_max_stream_bytes", "storage_max_stream_bytes", default=-1
        ),
        max_bytes_required=section.boolean("max_bytes_required", "max_stream_bytes", "max_bytes", default=False),
    )
    section.ignore("there is no traffic of a cluster", "cluster_traffic")
    section.finish()
    return limits
