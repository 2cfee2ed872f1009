"""What a service says about itself, as NATS ADR-32 writes it: the answers to PING, INFO and STATS."""

from __future__ import annotations

import re
from typing import Any

from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.fields import Count, Timestamp, Value, always
from jetlake.model.encoding.times import ZERO_TIME

__all__ = [
    "DEFAULT_QUEUE",
    "ERROR_CODE_HEADER",
    "ERROR_HEADER",
    "EndpointInfo",
    "EndpointStats",
    "ServiceIdentity",
    "ServiceInfo",
    "ServiceStats",
    "check_service_name",
    "check_version",
    "discovery_subject",
]

DEFAULT_QUEUE = "q"
"""The queue group of endpoints that name no other."""
ERROR_HEADER = "Nats-Service-Error"
"""The header that says what went wrong."""
ERROR_CODE_HEADER = "Nats-Service-Error-Code"
"""The header with the number of the error."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


class ServiceIdentity(Value, frozen=True):
    """The answer to PING: one running instance of a service."""

    type: str = always("io.nats.micro.v1.ping_response")
    """The kind of the answer."""
    name: str = always("")
    """Name of the service, shared by its instances."""
    id: str = always("")
    """Unique id of the instance."""
    version: str = always("")
    """Version of the service, by semantic versioning."""
    metadata: dict[str, str] | None = always({})
    """Free keys and values."""


class EndpointInfo(Value, frozen=True):
    """An endpoint of a service."""

    name: str = always("")
    """Name of the endpoint."""
    subject: str = always("")
    """Subject that requests go to."""
    queue_group: str = always("")
    """Queue group of the instances; empty when every instance answers."""
    metadata: dict[str, str] | None = always({})
    """Free keys and values."""


class ServiceInfo(ServiceIdentity, frozen=True):
    """The answer to INFO: what an instance offers."""

    type: str = always("io.nats.micro.v1.info_response")
    """The kind of the answer."""
    description: str = always("")
    """Free text."""
    endpoints: tuple[EndpointInfo, ...] | None = always(())
    """Its endpoints."""


class EndpointStats(Value, frozen=True):
    """How an endpoint of an instance is doing."""

    name: str = always("")
    """Name of the endpoint."""
    subject: str = always("")
    """Subject that requests go to."""
    queue_group: str = always("")
    """Queue group of the instances."""
    num_requests: Count = always(0)
    """Requests so far."""
    num_errors: Count = always(0)
    """Requests that ended with an error."""
    last_error: str | None = always("")
    """The last error, as `code:description`."""
    processing_time: Count = always(0)
    """Time spent in the handler, nanoseconds."""
    average_processing_time: Count = always(0)
    """The same for each request, nanoseconds."""
    data: Any = always(None)
    """Whatever the service adds; nats-py does without none of these fields, so null is written too."""


class ServiceStats(ServiceIdentity, frozen=True):
    """The answer to STATS: how an instance is doing."""

    type: str = always("io.nats.micro.v1.stats_response")
    """The kind of the answer."""
    started: Timestamp = always(ZERO_TIME)
    """When it was started, or its figures were reset."""
    endpoints: tuple[EndpointStats, ...] | None = always(())
    """Its endpoints."""


def check_service_name(what: str, name: str) -> str:
    """Check the name of a service or endpoint.

    Raises:
        InvalidOptionError: other clients would refuse it.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidOptionError(f"the name of {what} has letters, digits, - and _ only, not {name!r}")
    return name


def check_version(version: str) -> str:
    """Check a version.

    Raises:
        InvalidOptionError: the version is not semantic.
    """
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise InvalidOptionError(f"version must be semantic, like 1.2.3, not {version!r}")
    return version


def discovery_subject(verb: str, name: str = "", instance: str = "") -> str:
    """Build the subject of PING, INFO or STATS: of all services, the instances of a name, or one instance.

    Raises:
        InvalidOptionError: an instance without the name of its service.
    """
    if instance and not name:
        raise InvalidOptionError("an instance is found by the name of its service and its id")
    tokens = ["$SRV", verb]
    if name:
        tokens.append(check_service_name("a service", name))
    if instance:
        tokens.append(check_service_name("an instance", instance))
    return ".".join(tokens)
