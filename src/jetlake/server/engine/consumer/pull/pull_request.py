"""A pull request: its body, and its state while it waits."""

from __future__ import annotations

from typing import Any

import msgspec

from jetlake.errors import ConfigError, DecodeError
from jetlake.model.encoding.codec import decode
from jetlake.model.requests import PullRequest

__all__ = ["WaitingPull", "parse_pull_request"]

_INT64_MAX = 2**63 - 1


class WaitingPull(msgspec.Struct, eq=False):
    """One pull request and its state while it waits.

    Durations are nanoseconds; a deadline of 0 means there is none.
    """

    reply: bytes = b""
    """The inbox that gets messages and statuses."""
    batch: int = 1
    """Messages still to come; 0 and less count as 1."""
    max_bytes: int = 0
    """Bytes still allowed; 0 = no limit."""
    expires_ns: int = 0
    """How long the request may wait; 0 = for ever."""
    no_wait: bool = False
    idle_heartbeat_ns: int = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    """The pin that the client was assigned."""
    priority: int = 0

    deadline_ns: int = 0
    next_heartbeat_ns: int = 0
    delivered: int = 0
    """Messages sent to the request."""
    waiting: bool = False
    """The request is in the queue."""
    client: dict[str, Any] | None = None
    """The client, for advisories."""

    @property
    def is_conditional(self) -> bool:
        """Whether the request wants messages only while enough are pending."""
        return self.min_pending > 0 or self.min_ack_pending > 0

    @property
    def is_one_shot(self) -> bool:
        """Whether the request ends as soon as no message is left to deliver."""
        return self.no_wait and (not self.deadline_ns or self.delivered > 0)


def parse_pull_request(reply: bytes, body: bytes) -> WaitingPull:
    """Parse a body: empty for one message, a number of messages, or a JSON object.

    `expires` of zero or less means that the request does not expire (NATS ADR-13).

    Raises:
        ConfigError: the object is invalid; the text is the detail of a 400.
    """
    body = body.strip()
    if not body.startswith(b"{"):
        return WaitingPull(reply=reply, batch=_number(body))
    try:
        read = decode(PullRequest, body)
    except DecodeError as error:
        raise ConfigError(str(error)) from None
    if read.idle_heartbeat > 0 and read.idle_heartbeat * 2 > read.expires:
        raise ConfigError("heartbeat value too large")
    return WaitingPull(
        reply=reply,
        batch=read.batch,
        max_bytes=max(read.max_bytes, 0),
        expires_ns=max(read.expires, 0),
        no_wait=read.no_wait,
        idle_heartbeat_ns=max(read.idle_heartbeat, 0),
        group=read.group,
        min_pending=read.min_pending,
        min_ack_pending=read.min_ack_pending,
        id=read.id,
        priority=read.priority,
    )


def _number(body: bytes) -> int:
    """Return the batch of a body that is not JSON; anything but a number counts as 1."""
    digits = body.removeprefix(b"-") if body.startswith(b"-") else body.removeprefix(b"+")
    if not digits.isdigit() or len(digits) > 19 or int(digits) > _INT64_MAX:
        return 1
    return int(body)
