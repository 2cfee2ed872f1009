"""Admission: the checks that a published message has to pass, numbered in the order of nats-server.

The first failed check decides the answer. A check returns the error or None and raises nothing, because a full stream
may refuse as many messages a second as another one stores.

The messages of an atomic batch are checked together, when its commit arrives: each against the stream and against the
messages before it in the batch, which are not stored yet (`check_batch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import ApiError, api_error
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.batch.atomic_batches import StagedMessage
from jetlake.server.engine.schedule.schedules import SCHEDULE
from jetlake.server.engine.stream.counters import TOTAL, check_increment, count, keep_sources
from jetlake.server.engine.stream.expiry import check_lifetime
from jetlake.server.engine.stream.headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM,
    MSG_ID,
    ROLLUP,
    SOURCE,
    TTL,
    read_control_headers,
)
from jetlake.server.engine.stream.rules import RECORD_BYTES_MAX
from jetlake.store.interface import SUBJECT_BYTES_MAX
from jetlake.store.message_store import MessageStore
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

HEADER_BYTES_MAX = 65_535
"""Longest header block that a stream accepts."""

Checked = tuple[bytes, bytes, bytes, dict[bytes, bytes], bool]
"""A message that passed all checks: subject, header, payload, control headers, and whether a consumer wants it."""


class Admission:
    """The checks of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._store = stream.store
        self._usage = stream.usage

    def check_record(self, subject: bytes, size: int) -> ApiError | None:
        """Check in steps 2 and 3: record and subject are not too long, and the stream is not sealed."""
        # No client may send a longer subject; a transform may make one.
        if size > RECORD_BYTES_MAX or len(subject) > SUBJECT_BYTES_MAX:
            return api_error(10077, err="message too large")
        return api_error(10109) if self._stream.config.sealed else None

    def check_size(self, header: bytes, payload: bytes) -> ApiError | None:
        """Step 4: the stream's `max_msg_size`, and the longest header block; of a counter also with its total."""
        if len(header) + len(payload) > self._stream.rules.largest:
            return api_error(10054)
        return api_error(10097) if len(header) > HEADER_BYTES_MAX else None

    def check_control_headers(
        self, control: dict[bytes, bytes], header: bytes, subject: bytes, payload: bytes, now_ns: int
    ) -> ApiError | None:
        """Check in steps 5 to 11: the control headers, before deduplication."""
        config = self._stream.config
        return (
            check_increment(control, payload, config)
            or _check_stream(control, self._stream.rules.name)
            or check_lifetime(control, config)
            or _check_sequences(control, subject, self._store)
            or self.check_schedule(control, header, subject, now_ns)
            or (api_error(10227) if SOURCE in control else None)
        )

    def check_schedule(
        self, control: dict[bytes, bytes], header: bytes, subject: bytes, now_ns: int
    ) -> ApiError | None:
        """Step 10: schedules, and messages that claim to come from one."""
        if b"\r\nNats-Schedule" not in header:
            return None
        return self._stream.schedules.check(control, header, subject, self._stream.config, now_ns)

    @staticmethod
    def complete(control: dict[bytes, bytes], header: bytes) -> bytes:
        """Return the header with the rollup that every schedule has: a subject holds one schedule at most."""
        if SCHEDULE not in control or ROLLUP in control:
            return header
        control[ROLLUP] = b"sub"
        return append_pair(header, ROLLUP, b"sub")

    def check_replacement(self, control: dict[bytes, bytes], last_message_id: bytes) -> ApiError | None:
        """Check in steps 13 and 14: the expected id of the last message, and rollup."""
        return _check_last_message_id(control, last_message_id) or self.check_rollup(control)

    def check_rollup(self, control: dict[bytes, bytes]) -> ApiError | None:
        """Step 14: the stream allows rollups, and the value is known."""
        rollup = control.get(ROLLUP)
        if rollup is None:
            return None
        if not self._stream.rules.obeys_rollup:
            return api_error(10111, err="rollup not permitted")
        if rollup.lower() not in (b"sub", b"all"):
            return api_error(10111, err=f'rollup value invalid: "{rollup.decode("utf-8", "replace")}"')
        return None

    # Room

    def check_server_room(self) -> ApiError | None:
        """Step 16: the server's storage is not full."""
        self._usage.set_used(self._store.bytes)
        room = self._usage.server_room
        return api_error(10023) if room is not None and room < 0 else None

    def check_account_room(self, size: int) -> ApiError | None:
        """Step 18: the message fits the account's limit."""
        room = self._usage.account_room
        return api_error(10002) if room is not None and room < size else None

    def check_full(
        self, subject: bytes, size: int, rollup: bytes, ahead: tuple[int, int, int] = (0, 0, 0)
    ) -> ApiError | None:
        """Step 20, discard new: a full stream refuses, unless the message displaces one of its own subject.

        Args:
            ahead: number and bytes of the messages that are stored before this one, and their number on its subject.
        """
        config = self._stream.config
        store = self._store
        displaces = False
        if config.max_msgs_per_subject > 0:
            displaces = store.count_on(subject) + ahead[2] >= config.max_msgs_per_subject
            if displaces and config.discard_new_per_subject and not rollup:
                return api_error(10077, err="maximum messages per subject exceeded")
        if config.max_msgs > 0 and store.messages + ahead[0] >= config.max_msgs and not displaces:
            return api_error(10077, err="maximum messages exceeded")
        is_full = config.max_bytes > 0 and store.bytes + ahead[1] + size > config.max_bytes
        if is_full and (not displaces or self._oldest_size(subject) < size):
            return api_error(10077, err="maximum bytes exceeded")
        return None

    def _oldest_size(self, subject: bytes) -> int:
        """Return the record size of the subject's oldest message, which the next one displaces."""
        run = self._store.read(self._store.first_sequence, SubjectFilter([subject]), 1, RECORD_BYTES_MAX)
        if not run.messages:
            return 0
        message = run.messages[0]
        return self._stream.rules.record_size(message.subject, message.header, message.payload)

    # Atomic batches

    def check_batch(self, messages: list[StagedMessage], now_ns: int) -> list[Checked] | ApiError:
        """Return the messages of an atomic batch in the form to store, or the error of the first refused one."""
        counts = self._stream.config.allow_msg_counter
        ahead = _Ahead()
        for subject, header, payload in messages:
            control = read_control_headers(header)
            error = (
                self._check_batch_headers(control, header, payload)
                or self._check_batch_id(control, now_ns, ahead)
                or (api_error(10227) if SOURCE in control else None)
                or self._check_batch_sequences(control, subject, ahead)
                or self.check_schedule(control, header, subject, now_ns)
                or self._check_batch_rollup(control, subject, ahead)
            )
            if error is not None:
                return error
            header = self.complete(control, header)
            if counts:
                counted = count(self._store, subject, control, ahead.totals)
                if isinstance(counted, ApiError):
                    return counted
                payload = TOTAL % counted
                header = keep_sources(self._store, subject, header)
            error = self._add((subject, header, payload), control, ahead)
            if error is not None:
                return error
        return ahead.messages

    def _check_batch_headers(self, control: dict[bytes, bytes], header: bytes, payload: bytes) -> ApiError | None:
        if EXPECTED_LAST_MSG_ID in control:
            return api_error(10177, header=EXPECTED_LAST_MSG_ID.decode())
        if len(header) > HEADER_BYTES_MAX:
            return api_error(10097)
        config = self._stream.config
        return (
            check_increment(control, payload, config)
            or _check_stream(control, self._stream.rules.name)
            or (api_error(10166) if TTL in control and not config.allow_msg_ttl else None)
            or check_lifetime(control, config)
        )

    def _check_batch_id(self, control: dict[bytes, bytes], now_ns: int, ahead: _Ahead) -> ApiError | None:
        message_id = control.get(MSG_ID)
        if message_id is None:
            return None
        if message_id in ahead.ids or self._stream.ids.window.find(message_id, now_ns):
            return api_error(10201)
        ahead.ids.add(message_id)
        return None

    def _check_batch_sequences(self, control: dict[bytes, bytes], subject: bytes, ahead: _Ahead) -> ApiError | None:
        """Check the expected last sequences: of the stream on the first message only, of a subject before its first."""
        expected = control.get(EXPECTED_LAST_SEQUENCE)
        if expected is not None:
            running = self._store.last_sequence + len(ahead.messages)
            if _parse_sequence(expected) != running:
                return api_error(10071, seq=running)
            if ahead.messages:
                return api_error(10164)
        expected = control.get(EXPECTED_LAST_SUBJECT_SEQUENCE)
        if expected is not None:
            pattern = control.get(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject)
            if pattern in ahead.on_subject:
                return api_error(10164)
            actual = self._store.last_sequence_for(pattern)
            if _parse_sequence(expected) != actual:
                return api_error(10071, seq=actual)
        elif EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in control:
            return api_error(10193)
        return None

    def _check_batch_rollup(self, control: dict[bytes, bytes], subject: bytes, ahead: _Ahead) -> ApiError | None:
        error = self.check_rollup(control)
        rollup = control.get(ROLLUP, b"").lower()
        if error is None and rollup == b"sub" and subject in ahead.on_subject:
            error = api_error(10111, err="batch rollup sub invalid")
        elif error is None and rollup == b"all" and ahead.messages:
            error = api_error(10111, err="batch rollup all invalid")
        return error

    def _add(self, message: StagedMessage, control: dict[bytes, bytes], ahead: _Ahead) -> ApiError | None:
        """Add a message that passed, unless a full stream refuses it."""
        subject, header, payload = message
        rules = self._stream.rules
        is_wanted = not rules.is_interest or self._stream.retention.is_wanted(subject)
        on_subject = ahead.on_subject.get(subject, 0)
        if is_wanted and rules.refuses_when_full:
            size = rules.record_size(subject, header, payload)
            counts = (len(ahead.messages), ahead.bytes, on_subject)
            error = self.check_full(subject, size, control.get(ROLLUP, b""), counts)
            if error is not None:
                return error
            ahead.bytes += size
        ahead.on_subject[subject] = on_subject + 1
        ahead.messages.append((subject, header, payload, control, is_wanted))
        return None


class _Ahead:
    """The messages of an atomic batch that were checked so far, and what they will change in the stream."""

    def __init__(self) -> None:
        self.messages: list[Checked] = []
        self.bytes = 0
        self.on_subject: dict[bytes, int] = {}
        self.ids: set[bytes] = set()
        self.totals: dict[bytes, int] = {}


def _check_stream(control: dict[bytes, bytes], name: bytes) -> ApiError | None:
    """Check the expected stream name."""
    expected = control.get(EXPECTED_STREAM)
    return api_error(10060) if expected is not None and expected != name else None


def _check_sequences(control: dict[bytes, bytes], subject: bytes, store: MessageStore) -> ApiError | None:
    """Check the expected last sequences, of the subject (or of a pattern named instead) and of the stream."""
    expected = control.get(EXPECTED_LAST_SUBJECT_SEQUENCE)
    if expected is not None:
        actual = store.last_sequence_for(control.get(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject))
        if _parse_sequence(expected) != actual:
            return api_error(10071, seq=actual)
    elif EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in control:
        return api_error(10193)
    expected = control.get(EXPECTED_LAST_SEQUENCE)
    if expected is not None and _parse_sequence(expected) != store.last_sequence:
        return api_error(10071, seq=store.last_sequence)
    return None


def _check_last_message_id(control: dict[bytes, bytes], last_message_id: bytes) -> ApiError | None:
    """Check the expected id of the newest message."""
    expected = control.get(EXPECTED_LAST_MSG_ID)
    if expected is None or expected == last_message_id:
        return None
    return api_error(10070, id=last_message_id.decode("utf-8", "replace"))


def _parse_sequence(text: bytes) -> int:
    """Parse a sequence; malformed ones become -1, which no sequence equals."""
    return int(text) if text.isdigit() and len(text) <= 20 else -1
