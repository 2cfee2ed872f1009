"""What a user's token allows: the template of its signing key filled in, its hours, networks and ways to connect."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import product
from math import prod
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import structs

from jetlake.auth.claims import Permission, Responses, SigningScope, UserClaims, UserLimits
from jetlake.errors import TokenError
from jetlake.protocol.subjects import is_valid_config
from jetlake.server.config.options import Permissions, ResponsePermission, SubjectPermissions

__all__ = ["CONNECTION_TYPES", "check_source", "fill_template", "permissions_of", "permits_type", "valid_until"]

CONNECTION_TYPES = frozenset({"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"})

# Subjects that one pattern of a template may become, by tags with several values.
_SUBJECTS_MAX = 1000
_NOTHING_IN_TEMPLATE = UserLimits()
_TAG = re.compile(r"(account-)?tag\((.*)\)", re.DOTALL)
_NETWORK = re.compile(r"[0-9a-f.:]+/[0-9]{1,3}", re.ASCII | re.IGNORECASE)
_SECOND_NS = 1_000_000_000


# Templates


def fill_template(
    scope: SigningScope, claims: UserClaims, account_name: str, account_tags: Sequence[str]
) -> UserLimits:
    """Return what the user of a signing key with a scope may do: the template, with its placeholders filled in.

    The user's own token says who it is and nothing else; the holder of the signing key chooses name and tags of its
    users, so these fill whole tokens of a subject and never become wildcards.

    Raises:
        TokenError: the token has permissions of its own, or the template makes no valid subject of it.
    """
    own = UserLimits(**{name: getattr(claims.nats, name) for name in UserLimits.__struct_fields__})
    if structs.replace(own, pub=_or_none(own.pub), sub=_or_none(own.sub)) != _NOTHING_IN_TEMPLATE:
        raise TokenError("scoped users require no permissions or limits set")
    filler = _Filler(claims, account_name, account_tags)
    template = scope.template
    return structs.replace(template, pub=filler.fill(template.pub), sub=filler.fill(template.sub))


def _or_none(permission: Permission) -> Permission:
    return permission if permission.allow or permission.deny else Permission()


class _Filler:
    """Fills the placeholders of one user's template."""

    def __init__(self, claims: UserClaims, account_name: str, account_tags: Sequence[str]) -> None:
        self._values = {
            "name()": claims.name,
            "subject()": claims.sub,
            "account-name()": account_name,
            "account-subject()": claims.account,
        }
        self._tags = claims.nats.tags
        self._account_tags = account_tags

    def fill(self, permission: Permission) -> Permission:
        allow = [subject for pattern in permission.allow for subject in self._fill(pattern, is_deny=False)]
        deny = [subject for pattern in permission.deny for subject in self._fill(pattern, is_deny=True)]
        if permission.allow and not allow:
            deny.append(">")  # Without any allowed subject, every subject would be allowed.
        return Permission(allow=tuple(allow), deny=tuple(deny))

    def _fill(self, pattern: str, *, is_deny: bool) -> list[str]:
        """Return the subjects of one pattern; none where a value is missing of an allowed one.

        Raises:
            TokenError: a denied pattern makes no valid subject, and would deny too little.
        """
        subject, space, queue = pattern.partition(" ")
        choices = [self._choices(token) for token in subject.split(".")]
        if prod(len(values) for values in choices) > _SUBJECTS_MAX:
            raise TokenError(f"the template makes more than {_SUBJECTS_MAX} subjects of {pattern!r:.80}")
        found = [".".join(tokens) + space + queue for tokens in product(*choices)]
        if not is_valid_config(queue.encode() or b"x"):
            found = []
        if not found and is_deny:
            raise TokenError(f"the template makes no valid subject of {pattern!r:.80}")
        return found

    def _choices(self, token: str) -> list[str]:
        """Return what one token of a pattern may become.

        Raises:
            TokenError: the placeholder is not known, or its value has a wildcard.
        """
        if not (token.startswith("{{") and token.endswith("}}")):
            return [token] if is_valid_config(token.encode()) else []
        operation = token[2:-2].lower()
        found = _TAG.fullmatch(operation)
        if found is not None:
            prefix = f"{found[2]}:"
            tags = self._account_tags if found[1] else self._tags
            values = [tag[len(prefix) :] for tag in tags if tag.startswith(prefix)]
        elif operation in self._values:
            values = [self._values[operation]]
        else:
            raise TokenError(f"the template has an unknown placeholder {token!r:.60}")
        for value in values:
            if "*" in value or ">" in value:
                raise TokenError(f"a name or tag of the token has a wildcard: {value!r:.60}")
        return [value for value in values if is_valid_config(value.encode("utf-8", "surrogatepass"))]


# Permissions


def permissions_of(pub: Permission, sub: Permission, resp: Responses | None) -> Permissions | None:
    """Return permissions in the form of the configuration; None = everything is allowed."""
    publish = SubjectPermissions(allow=pub.allow or None, deny=pub.deny) if pub.allow or pub.deny else None
    subscribe = SubjectPermissions(allow=sub.allow or None, deny=sub.deny) if sub.allow or sub.deny else None
    responses = None
    if resp is not None:
        # With response permissions alone nothing else may be published; 0 stands for the default.
        responses = ResponsePermission(max=resp.max or 1, expires_s=resp.ttl / _SECOND_NS if resp.ttl else 120.0)
        if publish is None or publish.allow is None:
            publish = SubjectPermissions(allow=(), deny=publish.deny if publish is not None else ())
    if publish is None and subscribe is None and responses is None:
        return None
    return Permissions(publish=publish, subscribe=subscribe, responses=responses)


# How, from where and when


def permits_type(limits: UserLimits, connection_type: str) -> bool:
    """Return whether the user may connect in this way; of a list, types that are not known here permit nothing."""
    allowed = limits.allowed_connection_types
    return not allowed or connection_type in {name.upper() for name in allowed} & CONNECTION_TYPES


def check_source(limits: UserLimits, host: str) -> bool:
    """Return whether the user may connect from this address; an invalid address or network refuses everyone."""
    networks = limits.networks()
    if not networks:
        return True
    # Python takes masks too, in either direction: 10.1.2.3/0.0.0.0 would be every address, or this one.
    if not all(_NETWORK.fullmatch(network) for network in networks):
        return False
    try:
        address = ipaddress.ip_address(host)
        known = [ipaddress.ip_network(network, strict=False) for network in networks]
    except ValueError:
        return False
    return any(address in network for network in known)


def valid_until(limits: UserLimits, now_ns: int) -> int | None:
    """Return when the hours end in which the user may be connected; 0 = never, None = it is outside of them.

    In a place that is not known, it is outside at any time, also without hours.
    """
    try:
        zone: tzinfo | None = ZoneInfo(limits.times_location) if limits.times_location else None
        ranges = [(time.fromisoformat(hours.start), time.fromisoformat(hours.end)) for hours in limits.times or ()]
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
    if not ranges:
        return 0
    now = datetime.fromtimestamp(now_ns // _SECOND_NS, UTC).astimezone(zone)
    ends = []
    for start, end in ranges:
        # A range over midnight may have begun yesterday.
        for day in (now.date(), now.date() - timedelta(days=1)):
            begins = datetime.combine(day, start, now.tzinfo)
            until = datetime.combine(day + timedelta(days=1) if end < start else day, end, now.tzinfo)
            if begins <= now < until:
                ends.append(int(until.timestamp()) * _SECOND_NS)
    return max(ends, default=None)
