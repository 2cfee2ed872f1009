"""The requests that a receiver sends to the API of its origin, and their answers."""

from __future__ import annotations

from typing import NamedTuple

from jetlake.errors import DecodeError
from jetlake.model.api import API_PREFIX
from jetlake.model.consumer import ConsumerConfig, SequenceInfo
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.encoding.fields import Count, Value
from jetlake.model.enums import AckPolicy, DeliverPolicy
from jetlake.model.requests import ConsumerCreateRequest
from jetlake.model.stream import ErrorBody, StreamSource
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.sourcing.copy_target import CopyTarget, Start

__all__ = ["STREAM_IDENTITY", "Answer", "Owner", "Request", "delete_subject", "read_answer", "request", "reset_request"]

STREAM_IDENTITY = b"Nats-Stream-Identity"
_REQUIRED_LEVEL = b"Nats-Required-Api-Level"
_SECOND_NS = 1_000_000_000
_ACK_WAIT_NS = 22 * 3600 * _SECOND_NS

LEVELS = (5, 4, 0)
"""The API levels that a source requires, one after the other from origins that refuse the level before."""


class Owner(NamedTuple):
    """The stream that copies, as its consumers at origins name it."""

    account: str
    stream: str
    domain: str


class Request(NamedTuple):
    """A request to an API."""

    subject: bytes
    header: bytes
    body: bytes


class Answer(Value, frozen=True):
    """What a receiver reads in the answer to its request."""

    name: str = ""
    config: ConsumerConfig = ConsumerConfig()
    delivered: SequenceInfo = SequenceInfo()
    num_pending: Count = 0
    error: ErrorBody | None = None


def read_answer(payload: bytes) -> Answer:
    """Decode an answer; one that cannot be read is an error."""
    try:
        return decode(Answer, payload)
    except DecodeError as error:
        return Answer(error=ErrorBody(code=500, description=f"malformed answer: {error}"))


def request(
    target: CopyTarget, owner: Owner, name: str, deliver_subject: bytes, start: Start, level: int, identity: str
) -> Request:
    """Return the request that creates the consumer at the origin.

    Args:
        name: the consumer's name.
        level: the API level to require; 0 for an origin that knows neither levels nor sourcing consumers.
        identity: the expected identity of the origin; empty for any.
    """
    source = target.source
    filters = _filters(source)
    kind = "mirror" if target.is_mirror else "src"
    metadata = {f"_nats.{kind}.acc": owner.account, f"_nats.{kind}.stream": owner.stream}
    if owner.domain:
        metadata[f"_nats.{kind}.domain"] = owner.domain
    config = ConsumerConfig(
        name=name,
        ack_policy=AckPolicy.NONE,
        ack_wait=_ACK_WAIT_NS,
        max_deliver=1,
        flow_control=True,
        deliver_subject=deliver_subject.decode(),
        idle_heartbeat=_SECOND_NS,
        inactive_threshold=10 * _SECOND_NS,
        direct=True,
        sourcing=level > 0,
        metadata=metadata,
        deliver_policy=_policy(start),
        opt_start_seq=start.sequence,
        opt_start_time=None if start.sequence else start.time or None,
        filter_subject=filters[0] if len(filters) == 1 else "",
        filter_subjects=filters if len(filters) > 1 else (),
    )
    subject = f"{_prefix(source)}.CONSUMER.CREATE.{source.name}"
    if len(filters) == 1:
        subject += f".{name}.{filters[0]}"
    header = append_pair(b"", _REQUIRED_LEVEL, b"%d" % min(level, 4 if target.is_mirror else 5)) if level else b""
    if level >= 5 and not target.is_mirror:
        header = append_pair(header, STREAM_IDENTITY, identity.encode())
    return Request(subject.encode(), header, encode(ConsumerCreateRequest(stream_name=source.name, config=config)))


def reset_request(target: CopyTarget) -> Request:
    """Return the request that restarts a pre-created consumer after what it knows to be stored."""
    source = target.source
    assert source.consumer is not None
    header = append_pair(b"", _REQUIRED_LEVEL, b"4" if target.is_mirror else b"5")
    header = append_pair(header, STREAM_IDENTITY, target.identity.encode())
    return Request(f"{_prefix(source)}.CONSUMER.RESET.{source.name}.{source.consumer.name}".encode(), header, b"")


def delete_subject(target: CopyTarget) -> bytes:
    """Return the subject of the request that deletes the consumer at the origin."""
    return f"{_prefix(target.source)}.CONSUMER.DELETE.{target.source.name}.{target.consumer_name}".encode()


def _prefix(source: StreamSource) -> str:
    return source.external.api if source.external is not None and source.external.api else API_PREFIX


def _policy(start: Start) -> DeliverPolicy:
    if start.sequence:
        return DeliverPolicy.BY_START_SEQUENCE
    return DeliverPolicy.BY_START_TIME if start.time else DeliverPolicy.ALL


def _filters(source: StreamSource) -> tuple[str, ...]:
    filters = tuple(transform.src or ">" for transform in source.subject_transforms) or (source.filter_subject,)
    return () if ">" in filters or "" in filters else filters
