"""Advisories and metrics: what a server publishes about streams, consumers, the API and services."""

from __future__ import annotations

from jetlake.model.encoding.fields import Count, Int64, Nanoseconds, Sequence, Timestamp, Value, always
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import ActionKind, UnpinReason
from jetlake.model.stream import StreamState

__all__ = [
    "EVENT_PREFIX",
    "EVENT_TYPES",
    "ApiAudit",
    "BatchAbandoned",
    "ClientInfo",
    "ConsumerActionAdvisory",
    "ConsumerPauseAdvisory",
    "DeliveryAcked",
    "DeliveryExceeded",
    "DeliveryNaked",
    "DeliveryTerminated",
    "Event",
    "GroupPinned",
    "GroupUnpinned",
    "RestoreComplete",
    "RestoreCreate",
    "ServiceLatency",
    "SnapshotComplete",
    "SnapshotCreate",
    "StreamActionAdvisory",
    "event_subject",
]

EVENT_PREFIX = "$JS.EVENT."
"""What every event's subject starts with."""

_ADVISORY = "io.nats.jetstream.advisory.v1."
_METRIC = "io.nats.jetstream.metric.v1."


class ClientInfo(Value, frozen=True):
    """The connection that caused an event."""

    start: Timestamp | None = None
    """When it was opened."""
    host: str = ""
    """Its address."""
    id: Count = 0
    """Its number on the server."""
    acc: str = always("")
    """Its account."""
    svc: str = ""
    """The account that served it, when another one did."""
    user: str = ""
    """Its user."""
    name: str = ""
    """What it calls itself."""
    lang: str = ""
    """Language of its library."""
    ver: str = ""
    """Version of its library."""
    rtt: Nanoseconds = 0
    """Its round trip, nanoseconds."""
    server: str = ""
    """The server it is connected to."""
    cluster: str = ""
    """The cluster of that server."""
    stop: Timestamp | None = None
    """When it was closed."""
    kind: str = ""
    """`Client` or another kind of connection."""
    client_type: str = ""
    """`nats`, `mqtt` or `websocket`."""


class Event(Value, frozen=True, tag_field="type"):
    """What all events have; the type is of the class."""

    id: str = always("")
    """A NUID."""
    timestamp: Timestamp = always(ZERO_TIME)
    """When it happened."""


class ApiAudit(Event, frozen=True, tag=_ADVISORY + "api_audit"):
    """An API request was answered. Subject: `ADVISORY.API`."""

    server: str = always("")
    """Name of the server."""
    client: ClientInfo | None = always(None)
    """Who asked."""
    subject: str = always("")
    """The request's subject."""
    request: str = ""
    """Its body."""
    response: str = always("")
    """The answer."""
    domain: str = ""
    """The JetStream domain."""


class StreamActionAdvisory(Event, frozen=True, tag=_ADVISORY + "stream_action"):
    """A stream was made, changed or deleted. Subjects: `ADVISORY.STREAM.CREATED|UPDATED|DELETED.<stream>`."""

    stream: str = always("")
    """Name of the stream."""
    action: ActionKind = always(ActionKind.CREATE)
    """What happened to it."""
    domain: str = ""
    """The JetStream domain."""


class ConsumerActionAdvisory(Event, frozen=True, tag=_ADVISORY + "consumer_action"):
    """A consumer was made or deleted. Subjects: `ADVISORY.CONSUMER.CREATED|DELETED.<stream>.<consumer>`."""

    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    action: ActionKind = always(ActionKind.CREATE)
    """What happened to it."""
    domain: str = ""
    """The JetStream domain."""


class ConsumerPauseAdvisory(Event, frozen=True, tag=_ADVISORY + "consumer_pause"):
    """A consumer was paused or resumed. Subject: `ADVISORY.CONSUMER.PAUSE.<stream>.<consumer>`."""

    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    paused: bool = always(False)
    """Whether it is paused now."""
    pause_until: Timestamp = always(ZERO_TIME)
    """Until when; the zero time when it resumed."""
    domain: str = ""
    """The JetStream domain."""


class DeliveryAcked(Event, frozen=True, tag=_METRIC + "consumer_ack"):
    """A sampled message was acknowledged. Subject: `METRIC.CONSUMER.ACK.<stream>.<consumer>`."""

    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    consumer_seq: Sequence = always(0)
    """Number of the delivery."""
    stream_seq: Sequence = always(0)
    """The message's sequence."""
    ack_time: Nanoseconds = always(0)
    """From the last delivery to the acknowledgement, nanoseconds."""
    deliveries: Count = always(0)
    """How often it was delivered."""
    domain: str = ""
    """The JetStream domain."""


class DeliveryExceeded(Event, frozen=True, tag=_ADVISORY + "max_deliver"):
    """A message was delivered as often as allowed. Subject: `ADVISORY.CONSUMER.MAX_DELIVERIES.<stream>.<consumer>`."""

    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    stream_seq: Sequence = always(0)
    """The message's sequence."""
    deliveries: Count = always(0)
    """How often it was delivered."""
    domain: str = ""
    """The JetStream domain."""


class DeliveryNaked(Event, frozen=True, tag=_ADVISORY + "nak"):
    """A message was refused. Subject: `ADVISORY.CONSUMER.MSG_NAKED.<stream>.<consumer>`."""

    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    consumer_seq: Sequence = always(0)
    """Number of the delivery."""
    stream_seq: Sequence = always(0)
    """The message's sequence."""
    deliveries: Count = always(0)
    """How often it was delivered."""
    domain: str = ""
    """The JetStream domain."""


class DeliveryTerminated(Event, frozen=True, tag=_ADVISORY + "terminated"):
    """A message will not be delivered again. Subject: `ADVISORY.CONSUMER.MSG_TERMINATED.<stream>.<consumer>`."""

    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    consumer_seq: Sequence = always(0)
    """Number of the delivery."""
    stream_seq: Sequence = always(0)
    """The message's sequence."""
    deliveries: Count = always(0)
    """How often it was delivered."""
    reason: str = ""
    """What the subscriber wrote after `+TERM`, or why the server gave up."""
    domain: str = ""
    """The JetStream domain."""


class GroupPinned(Event, frozen=True, tag=_ADVISORY + "consumer_group_pinned"):
    """A client was pinned. Subject: `ADVISORY.CONSUMER.PINNED.<stream>.<consumer>`."""

    account: str = ""
    """Name of the account."""
    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    domain: str = ""
    """The JetStream domain."""
    group: str = always("")
    """Name of the priority group."""
    pinned_id: str = always("")
    """The pin."""
    client: ClientInfo | None = None
    """Who was pinned (NATS ADR-42); other servers leave it out."""


class GroupUnpinned(Event, frozen=True, tag=_ADVISORY + "consumer_group_unpinned"):
    """A client lost its pin. Subject: `ADVISORY.CONSUMER.UNPINNED.<stream>.<consumer>`."""

    account: str = ""
    """Name of the account."""
    stream: str = always("")
    """Name of the stream."""
    consumer: str = always("")
    """Name of the consumer."""
    domain: str = ""
    """The JetStream domain."""
    group: str = always("")
    """Name of the priority group."""
    reason: UnpinReason = always(UnpinReason.TIMEOUT)
    """Why."""


class BatchAbandoned(Event, frozen=True, tag=_ADVISORY + "stream_batch_abandoned"):
    """A batch was given up. Subject: `ADVISORY.STREAM.BATCH_ABANDONED.<stream>`."""

    account: str = ""
    """Name of the account."""
    stream: str = always("")
    """Name of the stream."""
    domain: str = ""
    """The JetStream domain."""
    batch: str = always("")
    """Id of the batch."""
    reason: str = always("")
    """`timeout`, `large`, `incomplete` or `unsupported`."""


class SnapshotCreate(Event, frozen=True, tag=_ADVISORY + "snapshot_create"):
    """A backup began. Subject: `ADVISORY.STREAM.SNAPSHOT_CREATE.<stream>`."""

    stream: str = always("")
    """Name of the stream."""
    state: StreamState = always(StreamState())
    """What it holds."""
    client: ClientInfo | None = None
    """Who asked."""
    domain: str = ""
    """The JetStream domain."""


class SnapshotComplete(Event, frozen=True, tag=_ADVISORY + "snapshot_complete"):
    """A backup ended. Subject: `ADVISORY.STREAM.SNAPSHOT_COMPLETE.<stream>`."""

    stream: str = always("")
    """Name of the stream."""
    start: Timestamp = always(ZERO_TIME)
    """When it began."""
    end: Timestamp = always(ZERO_TIME)
    """When it ended."""
    client: ClientInfo | None = None
    """Who asked."""
    domain: str = ""
    """The JetStream domain."""
    error: str = ""
    """Why it ended early."""


class RestoreCreate(Event, frozen=True, tag=_ADVISORY + "restore_create"):
    """A restore began. Subject: `ADVISORY.STREAM.RESTORE_CREATE.<stream>`."""

    stream: str = always("")
    """Name of the stream."""
    client: ClientInfo | None = None
    """Who asked."""
    domain: str = ""
    """The JetStream domain."""


class RestoreComplete(Event, frozen=True, tag=_ADVISORY + "restore_complete"):
    """A restore ended. Subject: `ADVISORY.STREAM.RESTORE_COMPLETE.<stream>`."""

    stream: str = always("")
    """Name of the stream."""
    start: Timestamp = always(ZERO_TIME)
    """When it began."""
    end: Timestamp = always(ZERO_TIME)
    """When it ended."""
    bytes: Int64 = always(0)
    """Bytes that were received."""
    client: ClientInfo | None = None
    """Who asked."""
    domain: str = ""
    """The JetStream domain."""


class ServiceLatency(Event, frozen=True, tag="io.nats.server.metric.v1.service_latency"):
    """A request to a service of another account was answered, or not. Subject: the export's `latency` subject."""

    status: Count = always(200)
    """200, or as HTTP has it for what went wrong."""
    description: str = ""
    """What went wrong."""
    requestor: ClientInfo | None = None
    """Who asked; only the account, unless the import shares more."""
    responder: ClientInfo | None = None
    """Who answered."""
    header: dict[str, tuple[str, ...]] | None = None
    """The request's headers that say its trace is sampled."""
    start: Timestamp = always(ZERO_TIME)
    """When the request was sent."""
    service: Nanoseconds = always(0)
    """How long the service took."""
    system: Nanoseconds = always(0)
    """How long the server took."""
    total: Nanoseconds = always(0)
    """How long the requester waited, round trips included."""


_EVENTS: tuple[type[Event], ...] = (
    ApiAudit,
    BatchAbandoned,
    ConsumerActionAdvisory,
    ConsumerPauseAdvisory,
    DeliveryAcked,
    DeliveryExceeded,
    DeliveryNaked,
    DeliveryTerminated,
    GroupPinned,
    GroupUnpinned,
    RestoreComplete,
    RestoreCreate,
    ServiceLatency,
    SnapshotComplete,
    SnapshotCreate,
    StreamActionAdvisory,
)

EVENT_TYPES: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in _EVENTS}
"""The class of every event by the `type` on the wire."""


def event_subject(kind: str, *names: str) -> bytes:
    """Return the subject of an event: `event_subject("ADVISORY.CONSUMER.PINNED", stream, consumer)`."""
    return ".".join((EVENT_PREFIX + kind, *names)).encode()
