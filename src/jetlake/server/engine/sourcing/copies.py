"""Copies: what a mirror or source stores of the messages that its origin delivers.

A mirror has the sequences and times of its origin, and its last sequence is its position. A source gives copies new
sequences and times, names the origin's sequence in a header, and has its position in `Positions`.

Copies were checked where they were published. What remains are the stream's own limits: a copy that these refuse, and
all after it, is not stored, and is asked for again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from jetlake.errors import ApiError, JetlakeError, StoreError
from jetlake.model.encoding.durations import parse_lifetime
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.source_names import SOURCE_HEADER, consumer_name, index_name
from jetlake.model.stream import StreamSource, SubjectTransform
from jetlake.model.transforms import Transform, compile_transform
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.routing.sublist import Sublist
from jetlake.server.engine.sourcing.positions import Position, Positions
from jetlake.server.engine.stream.counters import add_copy
from jetlake.server.engine.stream.headers import MSG_ID, ROLLUP, TTL, read_control_headers
from jetlake.server.engine.stream.publish import AMPLE_ROOM, Batch
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.interface import Incoming
from jetlake.store.steps import Steps

_BARE = b"NATS/1.0\r\n\r\n"
_CONDITIONS = (b"Nats-Expected-", b"Nats-Batch-")


class Mirror:
    """The copying side of a mirror, whose position is its own last sequence.

    Args:
        source: the mirror's origin.
        path: the mirror's copy path.

    Attributes:
        renaming: its transforms, to be prepared before the first copy.
    """

    is_mirror = True
    identity = ""

    def __init__(self, source: StreamSource, path: CopyPath) -> None:
        self.source = source
        self.consumer_name = path.consumer_name()
        self._store = path.stream.store
        self._path = path
        self.renaming = Renaming(source.subject_transforms)

    @property
    def last_sequence(self) -> int:
        """The origin's sequence up to which all is copied."""
        return self._store.last_sequence

    def start(self) -> Start:
        """Return the configured start for a mirror that never had a message, else what follows its last sequence."""
        if self._store.last_sequence:
            return Start(self._store.last_sequence + 1)
        return Start(self.source.opt_start_seq, self.source.opt_start_time or "")

    def connected(self, delivered_sequence: int, identity: str) -> None:
        """Skip the sequences that the origin will not deliver."""
        if delivered_sequence > self._store.last_sequence:
            self._path.skip_to(delivered_sequence)

    def forget(self) -> None:
        """Keep the position: a mirror does not notice that its origin was recreated."""

    def recover(self) -> None:
        """Do nothing: the store knows its last sequence."""

    def store(self, copies: Copies, on_durable: Action) -> int:
        """Store copies under the origin's sequences."""
        renaming = self.renaming
        if renaming or any(b"\r\nNats-" in message[2] for message in copies.messages):
            copies.messages = [
                (renaming.apply(subject), reply, without_conditions(header), payload)
                for subject, reply, header, payload in copies.messages
            ]
        return self._path.append(copies, on_durable)


class Source:
    """The copying side of one source.

    Args:
        source: the source's origin.
        path: the copy path of the stream that copies.
        positions: the positions of that stream's sources.
        is_repeated: the stream has another source with the origin's name.

    Attributes:
        renaming: its transforms, to be prepared before the first copy.
    """

    is_mirror = False

    def __init__(self, source: StreamSource, path: CopyPath, positions: Positions, *, is_repeated: bool) -> None:
        self.source = source
        self.index_name = index_name(source)
        self.consumer_name = path.consumer_name(self.index_name if is_repeated else "")
        self._store = path.stream.store
        self._path = path
        self._positions = positions
        self.renaming = Renaming(source.subject_transforms)
        self._identity = ""
        self._is_recreated = False
        origin, filters, destinations = (part.encode() for part in self.index_name.split(" "))
        # A subject may hold a percent sign.
        self._line = b"%b: %b %%d %b %b %%b %%b\r\n\r\n" % tuple(
            part.replace(b"%", b"%%") for part in (SOURCE_HEADER, origin, filters, destinations)
        )

    @property
    def last_sequence(self) -> int:
        """The origin's sequence up to which all is copied."""
        return self._positions.get(self.index_name).sequence

    @property
    def identity(self) -> str:
        """The identity of the origin that was copied from; empty when nothing was."""
        return self._positions.get(self.index_name).identity

    def start(self) -> Start:
        """Return what follows the position; without one, the configured start.

        A stream that has lost messages may have lost its position with them. It copies what is newer than its own last
        message, rather than everything once more.
        """
        self._positions.refresh()
        position = self._positions.get(self.index_name)
        if position.sequence:
            return Start(position.sequence + 1)
        source, store = self.source, self._store
        if source.opt_start_seq:
            return Start(source.opt_start_seq)
        time = source.opt_start_time or ""
        if self._is_recreated or not store.last_time_ns:
            return Start(time=time)
        if time:
            return Start(time=format_time(max(parse_time(time), store.last_time_ns)))
        return Start(time=format_time(store.last_time_ns)) if store.first_sequence > 1 else Start()

    def connected(self, delivered_sequence: int, identity: str) -> None:
        """Take the origin's identity for the copies to come."""
        self._identity = identity

    def forget(self) -> None:
        """Forget the position: the origin is another stream of the same name."""
        self._positions.forget(self.index_name)
        self._is_recreated = True

    def recover(self) -> None:
        """Read the position again after a store error, which may have rolled copies back."""
        self._positions.failed(self.index_name)

    def store(self, copies: Copies, on_durable: Action) -> int:
        """Store copies under the stream's next sequences, each with its origin in a header."""
        sequences = copies.sequences or []
        identity, line, rename = self._identity.encode(), self._line, self.renaming
        messages = []
        for sequence, (subject, reply, header, payload) in zip(sequences, copies.messages, strict=True):
            head = without_conditions(header, SOURCE_HEADER + b":")[:-2] if header else b""
            tail = line % (sequence, subject, identity)
            messages.append((rename.apply(subject), reply, (head or b"NATS/1.0\r\n") + tail, payload))
        end: int | None = None
        is_durable = False

        def on_released(error: JetlakeError | None) -> None:
            nonlocal is_durable
            is_durable = error is None
            if is_durable and end is not None:
                self._positions.on_durable(end)
            on_durable(error)

        stored = self._path.append(Copies(messages), on_released)
        if stored:
            end = self._positions.stored(self.index_name, Position(sequences[stored - 1], self._identity))
            if is_durable:
                # Released at once: the stream does not wait for the disk.
                self._positions.on_durable(end)
        return stored


class Start(NamedTuple):
    """Where copying begins: at a sequence, at a time, or with both empty at the origin's first message."""

    sequence: int = 0
    time: str = ""


class Copies(msgspec.Struct):
    """A run of messages of one origin, in its order."""

    messages: list[Incoming]
    """Subject, the reply with which the message was delivered, header and payload."""
    sequences: list[int] | None = None
    """The sequences to store the messages under, ascending; None for the stream's next ones."""
    times_ns: list[int] | None = None
    """The times to store; None for the current one."""


class CopyPath:
    """The copy path of one stream: stores copies with their sequences and times, or with new ones."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._path = stream.publish_path

    def consumer_name(self, source: str | None = None) -> str:
        """Return the name of the consumer at an origin.

        Args:
            source: None for a mirror; the index name of a source that shares its origin with another, else empty.
        """
        services, account = self.stream.services, self.stream.account
        return consumer_name(self.stream.name, account.name, services.options.domain, source)

    def append(self, copies: Copies, on_durable: Action) -> int:
        """Store copies up to the first that the stream's limits refuse, and return their number.

        Args:
            on_durable: called when the copies are on disk, with None, or with the error that may have rolled them back.
        """
        store, path, usage, rules = self.stream.store, self._path, self.stream.usage, self.stream.rules
        messages = copies.messages
        batch = Batch(checks_room=not usage.has_room(len(messages) * AMPLE_ROOM), on_durable=on_durable)
        last_before, bytes_before = store.last_sequence, store.bytes
        now_ns = self.stream.services.clock.now_ns()
        try:
            is_refusable = rules.checks_copies or batch.checks_room
            if is_refusable or (rules.is_interest and not path.are_wanted(messages)):
                stored = self._append_each(copies, now_ns, batch)
            else:
                self._append_runs(copies, now_ns, batch)
                stored = len(messages)
            batch.bytes = max(store.bytes - bytes_before, 0)
            path.enforce_limits(batch, now_ns)
        except StoreError as error:
            self.stream.release.roll_back(batch, error)
            return 0
        batch.last_sequence = store.last_sequence
        usage.set_used(store.bytes)
        self.stream.release.when_durable(batch, stored, has_stored=batch.last_sequence != last_before)
        return stored

    def skip_to(self, last_sequence: int) -> None:
        """Skip the sequences up to this one: the origin has no messages for them.

        Raises:
            StoreError: the store takes nothing more.
        """
        before = self.stream.store.last_sequence
        self._skip_below(last_sequence + 1)
        if self.stream.store.last_sequence != before:
            batch = Batch()
            batch.last_sequence = self.stream.store.last_sequence
            self.stream.release.when_durable(batch, 0, has_stored=True)

    def _skip_below(self, sequence: int) -> None:
        store = self.stream.store
        missing = sequence - store.last_sequence - 1
        if missing > 0 and not store.messages:
            store.advance_to(sequence)
        elif missing > 0:
            store.skip(missing)

    def _append_runs(self, copies: Copies, now_ns: int, batch: Batch) -> None:
        """Store copies that no rule looks at, with one call of the store for each run of consecutive sequences."""
        messages, sequences = copies.messages, copies.sequences
        for start, end in _consecutive(sequences, len(messages)):
            if sequences is not None:
                self._skip_below(sequences[start])
            run = messages if end - start == len(messages) else messages[start:end]
            times_ns = now_ns if copies.times_ns is None else copies.times_ns[start:end]
            self.stream.store.append_run(run, times_ns)
        batch.subjects = [message[0] for message in messages]
        self.stream.ids.last = b""

    def _append_each(self, copies: Copies, now_ns: int, batch: Batch) -> int:
        """Store copies one by one; return how many, before one was refused."""
        for index, (subject, _, header, payload) in enumerate(copies.messages):
            if copies.sequences is not None:
                self._skip_below(copies.sequences[index])
            time_ns = now_ns if copies.times_ns is None else copies.times_ns[index]
            if self._append_checked(subject, header, payload, time_ns, now_ns, batch) is not None:
                return index
            if self.stream.rules.enforces_each:
                self._path.enforce_limits(batch, now_ns)
        return len(copies.messages)

    def _append_checked(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, now_ns: int, batch: Batch
    ) -> ApiError | None:
        """Check one copy against the stream's limits and store it; return what refuses it."""
        stream, path, rules = self.stream, self._path, self.stream.rules
        admission = path.admission
        if rules.transform is not None:
            subject = rules.transform.apply(subject) or subject
        control = self._obeyed(read_control_headers(header)) if header else {}
        message_id = control.get(MSG_ID)
        if message_id and stream.ids.window.find(message_id, now_ns):
            return None
        if rules.config.allow_msg_counter and header:
            counted = add_copy(self.stream.store, subject, header, payload)
            if isinstance(counted, ApiError):
                return counted
            header, payload = counted
        is_wanted = not rules.is_interest or stream.retention.is_wanted(subject)
        size = rules.record_size(subject, header, payload)
        error = (
            admission.check_record(subject, size)
            or admission.check_size(header, payload)
            or path.check_room(subject, size, control, now_ns, batch, is_wanted=is_wanted)
        )
        if error is None:
            if ROLLUP in control and batch.subjects:
                path.enforce_limits(batch, now_ns)
            path.write((subject, header, payload, control, is_wanted), time_ns, batch)
        return error

    def _obeyed(self, control: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the control headers that this stream obeys in a copy."""
        rules = self.stream.rules
        obeyed: dict[bytes, bytes] = {}
        if rules.deduplicates_copies and (message_id := control.get(MSG_ID)):
            obeyed[MSG_ID] = message_id
        if rules.obeys_rollup and control.get(ROLLUP, b"").lower() in (b"sub", b"all"):
            obeyed[ROLLUP] = control[ROLLUP]
        if rules.config.allow_msg_ttl and parse_lifetime(control.get(TTL, b"")) is not None:
            obeyed[TTL] = control[TTL]
        return obeyed


def _consecutive(sequences: list[int] | None, count: int) -> Iterable[tuple[int, int]]:
    """Return where runs of consecutive sequences start and end."""
    if sequences is None or sequences[-1] - sequences[0] == count - 1:
        return [(0, count)]
    starts = [0, *(index for index in range(1, count) if sequences[index] != sequences[index - 1] + 1)]
    return zip(starts, [*starts[1:], count], strict=True)


# How many new subjects are kept; beyond, all are forgotten.
_RENAMED_MAX = 4096
_PREPARED_AT_ONCE = 64


class Renaming:
    """The subject transforms of a mirror or source; the first that matches a subject renames it.

    There may be thousands: they are put into a tree of their sources in steps, and compiled when a message needs them.
    """

    def __init__(self, transforms: Sequence[SubjectTransform]) -> None:
        self._transforms = transforms
        self._compiled: dict[int, Transform] = {}
        self._matches: Sublist[int] = Sublist()  # numbers of the transforms, by the pattern of their source
        # New subjects of the last ones, unless a transform may draw another one the next time.
        self._renamed: dict[bytes, bytes] = {}
        self._keeps = True
        self._is_prepared = False

    def prepare(self) -> Steps[None]:
        """Put the transforms into the tree, before a message needs them."""
        for number, transform in enumerate(self._transforms):
            if number and not number % _PREPARED_AT_ONCE:
                yield
            self._keeps = self._keeps and "random" not in transform.dest.lower()
            self._matches.insert((transform.src or ">").encode(), number)
        self._is_prepared = True

    def __bool__(self) -> bool:
        return bool(self._transforms)

    def apply(self, subject: bytes) -> bytes:
        """Return the new subject, or the subject itself where no transform matches."""
        renamed = self._renamed.get(subject)
        if renamed is None:
            renamed = self._find(subject)
            if self._keeps:
                if len(self._renamed) >= _RENAMED_MAX:
                    self._renamed.clear()
                self._renamed[subject] = renamed
        return renamed

    def _find(self, subject: bytes) -> bytes:
        assert self._is_prepared
        number = min(self._matches.match(subject), default=-1)
        if number < 0:
            return subject
        compiled = self._compiled.get(number)
        if compiled is None:
            transform = self._transforms[number]
            compiled = self._compiled[number] = compile_transform(transform.src, transform.dest)
        return compiled.apply(subject) or subject


def without_conditions(header: bytes, *others: bytes) -> bytes:
    """Return the header without conditions and batches, which held where the message was published.

    Args:
        others: beginnings of other lines to remove.
    """
    unwanted = (*_CONDITIONS, *others)
    if not any(b"\r\n" + prefix in header for prefix in unwanted):
        return header
    lines = [line for line in header.split(b"\r\n") if not line.startswith(unwanted)]
    kept = b"\r\n".join(lines)
    return b"" if kept == _BARE else kept
