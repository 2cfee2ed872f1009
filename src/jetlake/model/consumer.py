"""Consumers as values: what they are configured to do, how far they are, and what the server says about both."""

from __future__ import annotations

from typing import Any, Self

from jetlake.model.encoding.build import build
from jetlake.model.encoding.fields import Count, Int64, Nanoseconds, Sequence, StartTime, Timestamp, Value, always
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import AckPolicy, DeliverPolicy, PriorityPolicy, ReplayPolicy
from jetlake.model.stream import ClusterInfo

__all__ = ["ConsumerConfig", "ConsumerInfo", "PriorityGroupState", "SequenceInfo"]


class ConsumerConfig(Value, frozen=True):
    """Where a consumer starts, what it takes, how it delivers and what it waits for.

    The zeros are what a request that leaves a field out means; `jetlake.model.rules.consumer_rules` turns them into
    what a server stores. With a `deliver_subject` it is a push consumer, without one a pull consumer.
    """

    durable_name: str = ""
    """Name of a consumer that stays while it is unused. Default: ephemeral."""
    name: str = ""
    """Name; equal to `durable_name` if both are given. Default: chosen by the server."""
    description: str = ""
    """Free text, up to 4096 bytes."""
    deliver_policy: DeliverPolicy = always(DeliverPolicy.ALL)
    """Where to start; fixed at creation. Default: all."""
    opt_start_seq: Sequence = 0
    """The sequence to start at; for `by_start_sequence` only, and required there."""
    opt_start_time: StartTime | None = None
    """The time to start at; for `by_start_time` only, and required there."""
    ack_policy: AckPolicy = always(AckPolicy.NONE)
    """Which acknowledgements to wait for; fixed at creation. Default on the wire: none."""
    ack_wait: Nanoseconds = 0
    """How long to wait for an acknowledgement before delivering again, nanoseconds.
    Default 30 s, or the first of `backoff`; 0 where nothing is acknowledged."""
    max_deliver: Int64 = 0
    """Most deliveries of one message. Default -1: unlimited."""
    backoff: tuple[Nanoseconds, ...] = ()
    """Waits of the first, second … delivery instead of `ack_wait`, nanoseconds; the last one repeats. Default: none."""
    filter_subject: str = ""
    """Take only what matches. Default: all."""
    filter_subjects: tuple[str, ...] = ()
    """Take only what matches one of these, which may not overlap; not together with `filter_subject`. Default: all."""
    replay_policy: ReplayPolicy = always(ReplayPolicy.INSTANT)
    """How fast to deliver what is stored; fixed at creation. Default: instant."""
    rate_limit_bps: Count = 0
    """Most bits per second; push only. Default 0: unlimited."""
    sample_freq: str = ""
    """Percentage of acknowledgements that are published as metrics, `30` or `30%`. Default: none."""
    max_waiting: Int64 = 0
    """Most pull requests that wait at once; pull only, fixed at creation. Default 512."""
    max_ack_pending: Int64 = 0
    """Most messages that wait for acknowledgement; -1 unlimited.
    Default 1000, or the stream's limit; 0 where nothing is acknowledged."""
    flow_control: bool = False
    """Pause when the subscriber does not keep up; push only, needs `idle_heartbeat`. Default: false."""
    headers_only: bool = False
    """Leave payloads out and say their size in `Nats-Msg-Size`. Default: false."""
    max_batch: Int64 = 0
    """Largest `batch` of a pull request. Default 0: unlimited."""
    max_expires: Nanoseconds = 0
    """Longest `expires` of a pull request, nanoseconds, at least 1 ms. Default 0: unlimited."""
    max_bytes: Int64 = 0
    """Largest `max_bytes` of a pull request. Default 0: unlimited."""
    deliver_subject: str = ""
    """The subject to deliver to. Default: none, a pull consumer."""
    deliver_group: str = ""
    """The queue group that shares the deliver subject. Default: none."""
    idle_heartbeat: Nanoseconds = 0
    """Send a sign of life after this much silence, nanoseconds, at least 100 ms; push only. Default 0: none."""
    inactive_threshold: Nanoseconds = 0
    """How long the consumer outlives its last use, nanoseconds. Default: 5 s if ephemeral, 0 (unlimited) if durable."""
    num_replicas: Int64 = always(0)
    """Copies of its state in a cluster. Default 0: as the stream."""
    mem_storage: bool = False
    """Keep its state in memory; fixed at creation. Default: false."""
    direct: bool = False
    """Made by the server to feed a mirror or source."""
    sourcing: bool = False
    """Made by the server to feed a mirror or source through a durable consumer."""
    metadata: dict[str, str] = {}
    """Free keys and values, up to 128 KiB; keys that start with `_nats.` are the server's."""
    pause_until: Timestamp | None = None
    """Deliver nothing before this time; later changed by the pause request only. Default: none."""
    priority_groups: tuple[str, ...] = ()
    """The group that pull requests must name, 1 to 16 of `A-Z a-z 0-9 - _ / =`; one only. Default: none."""
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    """How pull requests of the group compete; pull only, fixed at creation. Default: none."""
    priority_timeout: Nanoseconds = 0
    """How long a pinned client may go without a pull request, nanoseconds. Default: 2 minutes when pinned."""

    @classmethod
    def of(cls, name: str | None = None, **options: Any) -> Self:
        """Return the configuration from what people write: durations in seconds, enums by their words, lists, dicts.

        Raises:
            ConfigError: a field that does not exist or a value that does not fit.
        """
        return build(cls, options if name is None else {"name": name, **options})

    @property
    def filters(self) -> tuple[str, ...]:
        """All filter subjects, however they were written; empty when everything is taken."""
        return (self.filter_subject,) if self.filter_subject else self.filter_subjects

    @property
    def is_copying(self) -> bool:
        """Whether it feeds a mirror or source, and so does not count as a consumer of its stream."""
        return self.direct or self.sourcing

    @property
    def is_push(self) -> bool:
        """Whether the server sends messages by itself, to `deliver_subject`."""
        return self.deliver_subject != ""


class SequenceInfo(Value, frozen=True):
    """A position of a consumer in both countings."""

    consumer_seq: Sequence = always(0)
    """Deliveries of this consumer so far, redeliveries included."""
    stream_seq: Sequence = always(0)
    """The stream's sequence."""
    last_active: Timestamp | None = None
    """When it last moved."""


class PriorityGroupState(Value, frozen=True):
    """How a priority group is doing."""

    group: str = always("")
    """Name of the group."""
    pinned_client_id: str = ""
    """The pin that the pinned client must send."""
    pinned_ts: Timestamp = always(ZERO_TIME)
    """Since when that client is pinned; the zero time when none is."""


class ConsumerInfo(Value, frozen=True):
    """A consumer as the server describes it."""

    stream_name: str = always("")
    """Name of its stream."""
    name: str = always("")
    """Its name."""
    created: Timestamp = always(ZERO_TIME)
    """When it was created."""
    config: ConsumerConfig = always(ConsumerConfig())
    """The configuration with all defaults filled in."""
    delivered: SequenceInfo = always(SequenceInfo())
    """The last delivery."""
    ack_floor: SequenceInfo = always(SequenceInfo())
    """Everything up to here is acknowledged."""
    num_ack_pending: Count = always(0)
    """Messages delivered and not yet acknowledged."""
    num_redelivered: Count = always(0)
    """Messages delivered more than once and not yet acknowledged."""
    num_waiting: Count = always(0)
    """Pull requests that wait."""
    num_pending: Count = always(0)
    """Messages never delivered yet."""
    cluster: ClusterInfo | None = None
    """Which servers hold it."""
    push_bound: bool = False
    """Whether the deliver subject has a subscription."""
    paused: bool = False
    """Whether it is paused."""
    pause_remaining: Nanoseconds = 0
    """For how much longer, nanoseconds."""
    ts: Timestamp = always(ZERO_TIME)
    """When this was written."""
    priority_groups: tuple[PriorityGroupState, ...] = ()
    """How its priority group is doing."""
