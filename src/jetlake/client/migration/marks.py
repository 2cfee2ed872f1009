"""The marks of a migration in the configurations of both streams, by which it resumes after any interruption.

A staged stream, at the target, takes only the migration's own messages; a fenced stream, at the source, takes none.
Each mark is written in the same update as the change that it stands for, so a crash leaves both or neither.
"""

from __future__ import annotations

import msgspec

from jetlake.errors import DecodeError
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.encoding.fields import Value
from jetlake.model.enums import DiscardPolicy
from jetlake.model.stream import StreamConfig, SubjectTransform

_FENCE = "jetlake.moving.fence"
_STAGE = "jetlake.moving.stage"
_COPYING, _FOLLOWING = "copying", "following"

GAP_SUBJECT = "_jetlake.gap"
"""The subject of messages that stand for sequences which the source has no message for, until they are purged."""

PAUSED_UNTIL = "2200-01-01T00:00:00Z"
"""The end of the pause of the source's consumers: until they are resumed."""


class Fence(Value, frozen=True):
    """The state from which a source is opened again."""

    subjects: tuple[str, ...]
    """The subjects that the stream captured."""
    closed_at: str = ""
    """When the stream was closed for publishers; empty while it is open."""
    pauses: dict[str, str] = {}
    """Consumers that were paused before, each with the time until when."""


def fence_subject(name: str) -> str:
    """Return the only subject of a closed stream."""
    return f"_jetlake.moved.{name}"


def staging_prefix(name: str) -> str:
    """Return the prefix of the subjects of messages that are copied into a staged stream."""
    return f"_jetlake.moving.{name}"


def fence_of(config: StreamConfig) -> Fence | None:
    """Read the mark of a source; None while no move has begun to pause it."""
    text = config.metadata.get(_FENCE)
    try:
        return None if text is None else decode(Fence, text.encode())
    except DecodeError:
        return None


def is_closed(config: StreamConfig) -> bool:
    """Tell whether publishers are shut out of a source."""
    return config.subjects == (fence_subject(config.name),)


def marked(config: StreamConfig, fence: Fence) -> StreamConfig:
    """Return the source's configuration with its mark; closed, if the mark says since when."""
    subjects = (fence_subject(config.name),) if fence.closed_at else fence.subjects
    metadata = {**config.metadata, _FENCE: encode(fence).decode()}
    return msgspec.structs.replace(config, subjects=subjects, metadata=metadata)


def unmarked(config: StreamConfig) -> StreamConfig:
    """Return the source's configuration before the migration."""
    fence = fence_of(config)
    return config if fence is None else _without_marks(msgspec.structs.replace(config, subjects=fence.subjects))


def is_staged(config: StreamConfig) -> bool:
    """Tell whether a stream at the target is a copy that is not open yet."""
    return _STAGE in config.metadata


def is_complete(config: StreamConfig) -> bool:
    """Tell whether a staged stream has its bulk, so that only the tail is missing."""
    return config.metadata.get(_STAGE) == _FOLLOWING


def staged(config: StreamConfig, num_replicas: int, *, takes_tail: bool) -> StreamConfig:
    """Return the configuration of the copy while it is made.

    Limits are lifted, since only the source decides which messages are removed; a limit by subject stays where it
    removes the same messages at both.

    Args:
        config: the source's, without marks.
        num_replicas: copies at the target.
        takes_tail: messages will be published into the copy, under the staging prefix.
    """
    prefix = staging_prefix(config.name)
    is_refusing = config.discard_new_per_subject
    return msgspec.structs.replace(
        _placed(config, num_replicas),
        subjects=(f"{prefix}.>" if takes_tail else prefix,),
        subject_transform=SubjectTransform(src=f"{prefix}.>", dest=">") if takes_tail else None,
        republish=None,
        max_msgs=-1,
        max_bytes=-1,
        max_age=0,
        max_msg_size=-1,
        max_msgs_per_subject=-1 if is_refusing else config.max_msgs_per_subject,
        discard=DiscardPolicy.OLD,
        discard_new_per_subject=False,
        no_ack=False,
        deny_delete=False,
        deny_purge=False,
        metadata={**_without_marks(config).metadata, _STAGE: _COPYING},
    )


def with_bulk(config: StreamConfig) -> StreamConfig:
    """Return the configuration of a staged stream whose bulk is copied."""
    return msgspec.structs.replace(config, metadata={**config.metadata, _STAGE: _FOLLOWING})


def opened(config: StreamConfig, num_replicas: int) -> StreamConfig:
    """Return the configuration of the copy when it replaces the source.

    Args:
        config: the source's, without marks.
        num_replicas: copies at the target.
    """
    return _placed(_without_marks(config), num_replicas)


def _placed(config: StreamConfig, num_replicas: int) -> StreamConfig:
    """Return the configuration on other servers, which the source's placement does not name."""
    return msgspec.structs.replace(config, num_replicas=num_replicas, placement=None)


def _without_marks(config: StreamConfig) -> StreamConfig:
    """Return the configuration without the marks and without the metadata that servers write."""
    kept = {
        key: value
        for key, value in config.metadata.items()
        if key not in (_FENCE, _STAGE) and not key.startswith("_nats.")
    }
    return msgspec.structs.replace(config, metadata=kept)
