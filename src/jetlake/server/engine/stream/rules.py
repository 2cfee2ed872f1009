"""The rules of a stream: all that its parts derive from its configuration, built once and replaced whole."""

from __future__ import annotations

from dataclasses import dataclass

from jetlake.model.encoding.times import format_time
from jetlake.model.enums import DiscardPolicy, PersistMode, RetentionPolicy, StorageType
from jetlake.model.publish import DUPLICATE_SUFFIX, pub_ack_prefix
from jetlake.model.stream import StreamConfig
from jetlake.model.transforms import Transform, compile_transform
from jetlake.store.interface import StoreLimits

RECORD_BYTES_MAX = 65 * 1024 * 1024
"""Longest record that a stream accepts: the highest `max_payload` that JetStream allows, and a subject."""

# Record overhead in bytes: without headers, with headers.
_RECORD_OVERHEAD = {StorageType.FILE: (30, 34), StorageType.MEMORY: (16, 16)}

_BARE = b"NATS/1.0\r\n"


@dataclass(frozen=True, slots=True)
class StreamRules:
    """What follows from one configuration.

    Attributes:
        name: the stream's name.
        acknowledges: publishers get PubAcks.
        waits_for_disk: PubAcks and readers wait for the disk, where there is one.
        largest: bytes of header and payload that a message may have.
        overhead: bytes of a record besides subject and payload; `overhead_with_header` of one that has headers.
        is_interest: a message that no consumer wants is not stored.
        replaces: a message may replace older ones of its subject.
        refuses_when_full: a full stream refuses new messages.
        enforces_each: limits are enforced after each message. A message that pushes others out and is then replaced on
            its subject must have pushed them out.
        obeys_rollup: a copied message may roll up others; a published one is refused otherwise.
        deduplicates_copies: a copy whose message id is known is not stored again.
        checks_each: published messages are checked one by one; otherwise only those with control headers are.
        checks_copies: copied messages are checked one by one.
        ack_prefix: the start of PubAcks, up to the sequence.
    """

    config: StreamConfig
    name: bytes
    acknowledges: bool
    waits_for_disk: bool
    largest: int
    overhead: int
    overhead_with_header: int
    is_interest: bool
    replaces: bool
    refuses_when_full: bool
    enforces_each: bool
    obeys_rollup: bool
    deduplicates_copies: bool
    checks_each: bool
    checks_copies: bool
    transform: Transform | None
    republisher: Republisher | None
    ack_prefix: bytes
    ack_template: bytes
    duplicate_template: bytes
    total_template: bytes
    batch_template: bytes

    @classmethod
    def of(cls, config: StreamConfig, domain: str) -> StreamRules:
        """Return the rules of a configuration with all defaults filled in, in a server of this domain."""
        has_size_limit = config.max_msgs > 0 or config.max_bytes > 0
        refuses_when_full = config.discard is DiscardPolicy.NEW and (has_size_limit or config.max_msgs_per_subject > 0)
        enforces_each = config.max_msgs_per_subject > 0 and has_size_limit
        obeys_rollup = config.allow_rollup_hdrs and not config.deny_purge
        checks_each = bool(
            config.sealed
            or config.allow_msg_counter
            or config.subject_transform
            or config.republish
            or enforces_each
            or refuses_when_full
        )
        deduplicates_copies = config.mirror is None and config.duplicate_window > 0
        overhead, overhead_with_header = _RECORD_OVERHEAD[config.storage]
        renaming = config.subject_transform
        prefix = pub_ack_prefix(config.name, domain)
        template = prefix.replace(b"%", b"%%") + b"%d"
        return cls(
            config=config,
            name=config.name.encode(),
            acknowledges=not config.no_ack,
            waits_for_disk=config.persist_mode is not PersistMode.ASYNC,
            largest=config.max_msg_size if config.max_msg_size >= 0 else RECORD_BYTES_MAX,
            overhead=overhead,
            overhead_with_header=overhead_with_header,
            is_interest=config.retention is RetentionPolicy.INTEREST,
            replaces=config.max_msgs_per_subject > 0 or config.allow_rollup_hdrs,
            refuses_when_full=refuses_when_full,
            enforces_each=enforces_each,
            obeys_rollup=obeys_rollup,
            deduplicates_copies=deduplicates_copies,
            checks_each=checks_each,
            checks_copies=(
                checks_each or config.allow_msg_ttl or config.max_msg_size >= 0 or obeys_rollup or deduplicates_copies
            ),
            transform=compile_transform(renaming.src, renaming.dest) if renaming is not None else None,
            republisher=Republisher.of(config),
            ack_prefix=prefix,
            ack_template=template + b"}",
            duplicate_template=template + DUPLICATE_SUFFIX,
            total_template=template + b',"val":"%b"}',
            batch_template=template + b',"batch":%b,"count":%d}',
        )

    def record_size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Return the bytes that a message takes in the store."""
        overhead = self.overhead_with_header if header else self.overhead
        return overhead + len(subject) + len(header) + len(payload)


class Republisher:
    """The republish directive of one stream: stored messages are published again under another subject.

    Args:
        stream: the stream's name.
        transform: maps stored subjects to published ones.
        headers_only: replace payloads by a header with their size.
    """

    def __init__(self, stream: bytes, transform: Transform, *, headers_only: bool) -> None:
        self._stream = stream
        self._transform = transform
        self._headers_only = headers_only

    @classmethod
    def of(cls, config: StreamConfig) -> Republisher | None:
        """Return the republisher of a stream; None without a directive."""
        directive = config.republish
        if directive is None or not directive.dest:
            return None
        transform = compile_transform(directive.src, directive.dest)
        return cls(config.name.encode(), transform, headers_only=directive.headers_only)

    def apply(
        self, subject: bytes, header: bytes, payload: bytes, sequence: int, time_ns: int, previous: int
    ) -> tuple[bytes, bytes, bytes] | None:
        """Return subject, header and payload to publish; None when the directive does not match the subject.

        Args:
            previous: the previous sequence on the same subject; 0 = none.
        """
        destination = self._transform.apply(subject)
        if destination is None:
            return None
        header = (
            b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
            % (
                header[:-2] if header else _BARE,
                self._stream,
                subject,
                sequence,
                format_time(time_ns).encode(),
            )
            + b"Nats-Last-Sequence: %d\r\n" % previous
        )
        if self._headers_only:
            return destination, header + b"Nats-Msg-Size: %d\r\n\r\n" % len(payload), b""
        return destination, header + b"\r\n", payload


def limits_of(config: StreamConfig) -> StoreLimits:
    """Return the limits, but for the age, that are kept by removing messages.

    A stream that discards new messages keeps the old ones, also when it has more than a later limit allows.
    """
    removes_old = config.discard is DiscardPolicy.OLD
    return StoreLimits(
        max_messages=config.max_msgs if removes_old else -1,
        max_bytes=config.max_bytes if removes_old else -1,
        max_per_subject=config.max_msgs_per_subject,
    )


def are_tighter(config: StreamConfig, old: StreamConfig) -> bool:
    """Return whether a configuration removes messages that the old one kept."""
    new_limits, old_limits = limits_of(config), limits_of(old)
    pairs = (
        (new_limits.max_messages, old_limits.max_messages),
        (new_limits.max_bytes, old_limits.max_bytes),
        (new_limits.max_per_subject, old_limits.max_per_subject),
        (config.max_age, old.max_age),
    )
    return any(new > 0 and not 0 < before <= new for new, before in pairs)
