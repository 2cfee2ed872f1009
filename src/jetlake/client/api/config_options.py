"""The options of streams and consumers as keyword arguments, for editors and type checkers.

The meaning, default and unit of each stands beside the field of the same name in `jetlake.model.stream` and
`jetlake.model.consumer`; here durations are seconds (or timedelta) and enums may be written as their words.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar

import msgspec

from jetlake.errors import ConfigError, InvalidOptionError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.build import build
from jetlake.model.encoding.durations import Seconds
from jetlake.model.stream import (
    ConsumerLimits,
    Placement,
    Republish,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)

__all__ = ["ConsumerOptions", "DeliverPolicyName", "RestoreOptions", "StreamOptions", "configured", "merged"]

DeliverPolicyName = Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]

ConfigT = TypeVar("ConfigT", StreamConfig, ConsumerConfig)


class StreamOptions(TypedDict, total=False):
    """The options of a stream."""

    description: str
    """Free text, up to 4096 bytes."""
    subjects: Iterable[str]
    """Patterns of the subjects to capture. Default: the stream's name."""
    retention: Literal["limits", "interest", "workqueue"]
    """When a message may go: by limits only, when all consumers have it, or when its one consumer has it."""
    max_consumers: int
    """Most consumers."""
    max_msgs: int
    """Most messages."""
    max_bytes: int
    """Most bytes in the store."""
    max_age: Seconds
    """Seconds that a message lives."""
    max_msgs_per_subject: int
    """Most messages of one subject."""
    max_msg_size: int
    """Largest message, bytes of headers and payload."""
    discard: Literal["old", "new"]
    """What a full stream does: remove the oldest, or refuse new ones."""
    storage: Literal["file", "memory"]
    """Where messages are kept. Default: file."""
    num_replicas: int
    """Copies in a cluster. Default 1."""
    no_ack: bool
    """Do not answer publishers."""
    duplicate_window: Seconds
    """Seconds that message ids are remembered. Default 120."""
    placement: Placement | dict[str, Any]
    """Where in a cluster."""
    mirror: StreamSource | dict[str, Any] | str
    """The stream of which this is a copy; its name alone will do."""
    sources: Iterable[StreamSource | dict[str, Any] | str]
    """Streams from which this one copies; their names alone will do."""
    compression: Literal["none", "s2"]
    """How stored blocks are compressed."""
    first_seq: int
    """Sequence of the first message."""
    subject_transform: SubjectTransform | dict[str, Any]
    """Renames subjects before they are stored."""
    republish: Republish | dict[str, Any]
    """Publishes stored messages again."""
    allow_direct: bool
    """Answer direct gets, which are faster."""
    mirror_direct: bool
    """Let a mirror answer direct gets for its origin."""
    discard_new_per_subject: bool
    """With discard new: refuse messages of a full subject."""
    sealed: bool
    """Nothing goes in or out any more; by update only."""
    deny_delete: bool
    """Messages cannot be deleted."""
    deny_purge: bool
    """The stream cannot be purged."""
    allow_rollup_hdrs: bool
    """A message may replace older ones by its `Nats-Rollup` header."""
    consumer_limits: ConsumerLimits | dict[str, Any]
    """Limits and defaults for consumers."""
    allow_msg_ttl: bool
    """A message may set its own life."""
    subject_delete_marker_ttl: Seconds
    """Seconds that the marker of an expired subject lives."""
    allow_msg_counter: bool
    """Messages are increments of counters."""
    allow_atomic: bool
    """Batches may be published all or nothing."""
    allow_msg_schedules: bool
    """Messages may be schedules of other messages."""
    persist_mode: Literal["default", "async"]
    """What a publish acknowledgement waits for."""
    allow_batched: bool
    """Batches may be published fast."""
    metadata: dict[str, str]
    """Free keys and values."""


class RestoreOptions(StreamOptions, total=False):
    """The options of a stream that is restored."""

    name: str
    """Name of the new stream. Default: the name of the stream that was backed up."""


class ConsumerOptions(TypedDict, total=False):
    """The options of a consumer."""

    strict_acks: bool
    """An acknowledgement of an earlier delivery does not settle a later one; jetlake's own server only."""
    redeliver_lost: bool
    """Deliver messages of a client whose connection closed again at once; jetlake's own server only."""
    description: str
    """Free text, up to 4096 bytes."""
    deliver_policy: DeliverPolicyName
    """Where to start. Default: all."""
    opt_start_seq: int
    """The sequence to start at, for `by_start_sequence`."""
    opt_start_time: datetime | str
    """The time to start at, for `by_start_time`."""
    ack_policy: Literal["explicit", "all", "none"]
    """Which acknowledgements to wait for. Default here: explicit."""
    ack_wait: Seconds
    """Seconds to wait for an acknowledgement before delivering again. Default 30."""
    max_deliver: int
    """Most deliveries of one message. Default -1: unlimited."""
    backoff: Iterable[Seconds]
    """Seconds to wait after the first, second … delivery instead of `ack_wait`."""
    filter_subject: str
    """Take only what matches."""
    filter_subjects: Iterable[str]
    """Take only what matches one of these."""
    replay_policy: Literal["instant", "original"]
    """How fast to deliver what is stored."""
    rate_limit_bps: int
    """Most bits per second; push only."""
    sample_freq: str
    """Percentage of acknowledgements that are published as metrics."""
    max_waiting: int
    """Most pulls that wait at once. Default 512."""
    max_ack_pending: int
    """Most messages that wait for acknowledgement. Default 1000."""
    flow_control: bool
    """Pause when the subscriber does not keep up; push only."""
    headers_only: bool
    """Leave payloads out."""
    max_batch: int
    """Largest batch of a pull."""
    max_expires: Seconds
    """Longest `expires` of a pull, seconds."""
    max_bytes: int
    """Largest `max_bytes` of a pull."""
    deliver_subject: str
    """The subject to push to. Default: none, a pull consumer."""
    deliver_group: str
    """The queue group that shares the deliver subject."""
    idle_heartbeat: Seconds
    """Seconds of silence after which a push consumer gives a sign of life."""
    inactive_threshold: Seconds
    """Seconds that the consumer outlives its last use. Default: for ever if durable, 5 if not."""
    num_replicas: int
    """Copies of its state in a cluster."""
    mem_storage: bool
    """Keep its state in memory."""
    metadata: dict[str, str]
    """Free keys and values."""
    pause_until: datetime | str
    """Deliver nothing before this time."""
    priority_groups: Iterable[str]
    """The group that pulls must name; one only."""
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"]
    """How pulls of the group compete."""
    priority_timeout: Seconds
    """Seconds that a pinned client may go without a pull."""


def configured(kind: type[ConfigT], options: dict[str, Any]) -> ConfigT:
    """Return the configuration that the options describe.

    Raises:
        InvalidOptionError: an option that does not exist, or a value that does not fit.
    """
    try:
        return build(kind, _with_described_sources(options))
    except ConfigError as error:
        raise InvalidOptionError(str(error)) from None


def _with_described_sources(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with streams to copy that were given by name alone as the values that the server is sent."""
    if isinstance(mirror := options.get("mirror"), str):
        options = {**options, "mirror": {"name": mirror}}
    sources = options.get("sources")
    if isinstance(sources, Iterable) and not isinstance(sources, str):
        described = [{"name": source} if isinstance(source, str) else source for source in sources]
        options = {**options, "sources": described}
    return options


def merged(config: ConfigT, options: dict[str, Any]) -> ConfigT:
    """Return the configuration with the options changed and everything else as it was.

    Raises:
        InvalidOptionError: an option that does not exist, or a value that does not fit.
    """
    changes = configured(type(config), {"name": config.name, **options})
    return msgspec.structs.replace(config, **{name: getattr(changes, name) for name in options})
