"""The copy path of a stream: messages of another stream are stored, with their sequences and times or with new ones.

Copies were checked where they were published. What remains are the stream's own limits: a copy that these refuse, and
all after it, is not stored, and may be stored later.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jetlake.errors import ApiError, StoreError
from jetlake.model.encoding.lifetimes import parse_lifetime
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig
from jetlake.model.transforms import compile_transform
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.server.engine.stream.admission import Admission
from jetlake.server.engine.stream.batch_release import Batch, BatchRelease
from jetlake.server.engine.stream.counters import add_copy
from jetlake.server.engine.stream.ids.message_ids import MessageIds
from jetlake.server.engine.stream.message_headers import MSG_ID, ROLLUP, read_control_headers
from jetlake.server.engine.stream.message_lifetimes import TTL
from jetlake.server.engine.stream.message_writer import MessageWriter
from jetlake.server.engine.stream.publish_path import AMPLE_ROOM, PublishPath
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.interface import Incoming, MessageStore

__all__ = ["Copies", "CopyPath"]


class Copies(msgspec.Struct):
    """A run of messages of one origin, in its order."""

    messages: list[Incoming]
    """Subject, the reply with which the message was delivered, header and payload."""
    sequences: list[int] | None = None
    """The sequences to store the messages under, ascending; None for the stream's next ones."""
    times_ns: list[int] | None = None
    """The times to store; None for the current one."""


class CopyPath:
    """The copy path of one stream.

    Args:
        config: the stream's configuration.
        store: the stream's messages.
        usage: the stream's share of account and server usage.
        clock: the source of time.
        writer: stores checked messages.
        path: checks the room for messages.
        release: shows what is durable.
        retention: knows which subjects consumers want.
        ids: the stream's message ids.
    """

    def __init__(
        self,
        config: StreamConfig,
        store: MessageStore,
        usage: StreamUsage,
        clock: Clock,
        writer: MessageWriter,
        path: PublishPath,
        release: BatchRelease,
        retention: Retention,
        ids: MessageIds,
    ) -> None:
        self._store = store
        self._usage = usage
        self._clock = clock
        self._writer = writer
        self._path = path
        self._release = release
        self._retention = retention
        self._ids = ids
        self._admission = Admission(config, store, usage, lambda _subject: True)
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed."""
        self._config = config
        self._admission.configure(config)
        transform = config.subject_transform
        self._transform = compile_transform(transform.src, transform.dest) if transform is not None else None
        self._is_interest = config.retention is RetentionPolicy.INTEREST
        self._obeys_rollup = config.allow_rollup_hdrs and not config.deny_purge
        self._deduplicates = config.mirror is None and config.duplicate_window > 0
        # A message that pushes others out and is then replaced on its subject must have pushed them out.
        self._settles_each = config.max_msgs_per_subject > 0 and max(config.max_msgs, config.max_bytes) > 0
        self._has_rules = bool(
            config.sealed
            or config.allow_msg_counter
            or config.allow_msg_ttl
            or config.max_msg_size >= 0
            or config.republish
            or self._obeys_rollup
            or self._deduplicates
            or self._settles_each
            or self._transform
            or self._admission.refuses_when_full
        )

    def store(self, copies: Copies, on_durable: Action) -> int:
        """Store copies up to the first that the stream's limits refuse, and return their number.

        Args:
            on_durable: called when the copies are on disk, with None or the error, which may have undone them.
        """
        store, writer = self._store, self._writer
        messages = copies.messages
        batch = Batch(checks_room=not self._usage.has_room(len(messages) * AMPLE_ROOM), on_durable=on_durable)
        last_before, bytes_before = store.last_sequence, store.bytes
        now_ns = self._clock.now_ns()
        try:
            if self._has_rules or batch.checks_room or not self._are_wanted(messages):
                stored = self._store_each(copies, now_ns, batch)
            else:
                self._store_runs(copies, now_ns, batch)
                stored = len(messages)
            batch.bytes = max(store.bytes - bytes_before, 0)
            writer.settle(batch, now_ns)
        except StoreError as error:
            self._release.undo(batch, error)
            return 0
        batch.last_sequence = store.last_sequence
        self._usage.set_used(store.bytes)
        self._release.when_durable(batch, stored, has_stored=batch.last_sequence != last_before)
        return stored

    def skip_to(self, last_sequence: int) -> None:
        """Use up the sequences to this one: the origin has no messages for them.

        Raises:
            StoreError: the store takes nothing more.
        """
        before = self._store.last_sequence
        self._skip_below(last_sequence + 1)
        if self._store.last_sequence != before:
            batch = Batch()
            batch.last_sequence = self._store.last_sequence
            self._release.when_durable(batch, 0, has_stored=True)

    def _skip_below(self, sequence: int) -> None:
        store = self._store
        missing = sequence - store.last_sequence - 1
        if missing > 0 and not store.messages:
            store.advance_to(sequence)
        elif missing > 0:
            store.skip(missing)

    def _are_wanted(self, messages: list[Incoming]) -> bool:
        """Return whether each message has an interested consumer, where the retention policy asks for one."""
        if not self._is_interest:
            return True
        return all(self._retention.is_wanted(subject) for subject in {message[0] for message in messages})

    def _store_runs(self, copies: Copies, now_ns: int, batch: Batch) -> None:
        """Store copies that no rule looks at, with one call of the store for each run of consecutive sequences."""
        messages, sequences = copies.messages, copies.sequences
        for start, end in _consecutive(sequences, len(messages)):
            if sequences is not None:
                self._skip_below(sequences[start])
            run = messages if end - start == len(messages) else messages[start:end]
            times_ns = now_ns if copies.times_ns is None else copies.times_ns[start:end]
            self._store.append_run(run, times_ns)
        batch.subjects = [message[0] for message in messages]
        self._ids.last = b""

    def _store_each(self, copies: Copies, now_ns: int, batch: Batch) -> int:
        """Store copies one by one; return how many, before one was refused."""
        for index, (subject, _, header, payload) in enumerate(copies.messages):
            if copies.sequences is not None:
                self._skip_below(copies.sequences[index])
            time_ns = now_ns if copies.times_ns is None else copies.times_ns[index]
            if self._store_checked(subject, header, payload, time_ns, now_ns, batch) is not None:
                return index
            if self._settles_each:
                self._writer.settle(batch, now_ns)
        return len(copies.messages)

    def _store_checked(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, now_ns: int, batch: Batch
    ) -> ApiError | None:
        """Check one copy against the stream's limits and store it; return what refuses it."""
        admission, writer = self._admission, self._writer
        if self._transform is not None:
            subject = self._transform.apply(subject) or subject
        control = self._obeyed(read_control_headers(header)) if header else {}
        message_id = control.get(MSG_ID)
        if message_id and self._ids.window.find(message_id, now_ns):
            return None
        if self._config.allow_msg_counter and header:
            counted = add_copy(self._store, subject, header, payload)
            if isinstance(counted, ApiError):
                return counted
            header, payload = counted
        is_wanted = not self._is_interest or self._retention.is_wanted(subject)
        size = admission.record_size(subject, header, payload)
        error = (
            admission.check_record(subject, size)
            or admission.check_size(header, payload)
            or self._path.check_room(subject, size, control, now_ns, batch, is_wanted=is_wanted)
        )
        if error is None:
            if ROLLUP in control and batch.subjects:
                writer.settle(batch, now_ns)
            writer.write((subject, header, payload, control, is_wanted), time_ns, batch)
        return error

    def _obeyed(self, control: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the control headers that this stream obeys in a copy."""
        obeyed: dict[bytes, bytes] = {}
        if self._deduplicates and (message_id := control.get(MSG_ID)):
            obeyed[MSG_ID] = message_id
        if self._obeys_rollup and control.get(ROLLUP, b"").lower() in (b"sub", b"all"):
            obeyed[ROLLUP] = control[ROLLUP]
        if self._config.allow_msg_ttl and parse_lifetime(control.get(TTL, b"")) is not None:
            obeyed[TTL] = control[TTL]
        return obeyed


def _consecutive(sequences: list[int] | None, count: int) -> Iterable[tuple[int, int]]:
    """Return where runs of consecutive sequences start and end."""
    if sequences is None or sequences[-1] - sequences[0] == count - 1:
        return [(0, count)]
    starts = [0, *(index for index in range(1, count) if sequences[index] != sequences[index - 1] + 1)]
    return zip(starts, [*starts[1:], count], strict=True)
