"""Admission: the checks that a published message has to pass, numbered in the order of nats-server.

The first failed check decides the answer. A check returns the error or None and raises nothing, because a full stream
may refuse as many messages a second as another one stores.
"""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import ApiError, api_error
from jetlake.model.enums import DiscardPolicy, StorageType
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.server.engine.schedule.schedule_headers import SCHEDULE, check_schedule
from jetlake.server.engine.stream.counters import check_increment
from jetlake.server.engine.stream.message_headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM,
    ROLLUP,
    SOURCE,
)
from jetlake.server.engine.stream.message_lifetimes import check_lifetime
from jetlake.store.interface import SUBJECT_BYTES_MAX, MessageStore
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["HEADER_BYTES_MAX", "RECORD_BYTES_MAX", "Admission", "check_stream", "parse_sequence"]

HEADER_BYTES_MAX = 65_535
"""Longest header block that a stream accepts."""
RECORD_BYTES_MAX = 65 * 1024 * 1024
"""Longest record that a stream accepts: the highest `max_payload` that JetStream allows, and a subject."""

# Record overhead in bytes: without headers, with headers.
_RECORD_OVERHEAD = {StorageType.FILE: (30, 34), StorageType.MEMORY: (16, 16)}


class Admission:
    """The checks of one stream.

    Args:
        store: the stream's messages.
        usage: the stream's share of account and server usage.
        holds_schedule: whether the newest message of a subject, if there is one, is a schedule.

    Attributes:
        largest: bytes of header and payload that a message may have.
        refuses_when_full: a full stream refuses new messages.
    """

    def __init__(
        self, config: StreamConfig, store: MessageStore, usage: StreamUsage, holds_schedule: Callable[[bytes], bool]
    ) -> None:
        self._store = store
        self._holds_schedule = holds_schedule
        self._usage = usage
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed."""
        self._config = config
        self._name = config.name.encode()
        self._overhead, self._overhead_with_header = _RECORD_OVERHEAD[config.storage]
        self.largest = config.max_msg_size if config.max_msg_size >= 0 else RECORD_BYTES_MAX
        self.refuses_when_full = config.discard is DiscardPolicy.NEW and (
            config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        )

    def record_size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Return the bytes that the message will take in the store."""
        overhead = self._overhead_with_header if header else self._overhead
        return overhead + len(subject) + len(header) + len(payload)

    def check_record(self, subject: bytes, size: int) -> ApiError | None:
        """Check in steps 2 and 3: record and subject are not too long, and the stream is not sealed."""
        # No client may send a longer subject; a transform may make one.
        if size > RECORD_BYTES_MAX or len(subject) > SUBJECT_BYTES_MAX:
            return api_error(10077, err="message too large")
        return api_error(10109) if self._config.sealed else None

    def check_size(self, header: bytes, payload: bytes) -> ApiError | None:
        """Step 4: the stream's `max_msg_size`, and the longest header block; of a counter also with its total."""
        if len(header) + len(payload) > self.largest:
            return api_error(10054)
        return api_error(10097) if len(header) > HEADER_BYTES_MAX else None

    def check_control_headers(
        self, control: dict[bytes, bytes], header: bytes, subject: bytes, payload: bytes, now_ns: int
    ) -> ApiError | None:
        """Check in steps 5 to 11: the control headers, before deduplication."""
        return (
            check_increment(control, payload, self._config)
            or check_stream(control, self._name)
            or check_lifetime(control, self._config)
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
        return check_schedule(control, header, subject, self._config, now_ns, self._holds_schedule)

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
        if not self._config.allow_rollup_hdrs or self._config.deny_purge:
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
        config = self._config
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
        return self.record_size(message.subject, message.header, message.payload)


def check_stream(control: dict[bytes, bytes], name: bytes) -> ApiError | None:
    """Check the expected stream name."""
    expected = control.get(EXPECTED_STREAM)
    return api_error(10060) if expected is not None and expected != name else None


def _check_sequences(control: dict[bytes, bytes], subject: bytes, store: MessageStore) -> ApiError | None:
    """Check the expected last sequences, of the subject (or of a pattern named instead) and of the stream."""
    expected = control.get(EXPECTED_LAST_SUBJECT_SEQUENCE)
    if expected is not None:
        actual = store.last_sequence_for(control.get(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject))
        if parse_sequence(expected) != actual:
            return api_error(10071, seq=actual)
    elif EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in control:
        return api_error(10193)
    expected = control.get(EXPECTED_LAST_SEQUENCE)
    if expected is not None and parse_sequence(expected) != store.last_sequence:
        return api_error(10071, seq=store.last_sequence)
    return None


def _check_last_message_id(control: dict[bytes, bytes], last_message_id: bytes) -> ApiError | None:
    """Check the expected id of the newest message."""
    expected = control.get(EXPECTED_LAST_MSG_ID)
    if expected is None or expected == last_message_id:
        return None
    return api_error(10070, id=last_message_id.decode("utf-8", "replace"))


def parse_sequence(text: bytes) -> int:
    """Parse a sequence; malformed ones become -1, which no sequence equals."""
    return int(text) if text.isdigit() and len(text) <= 20 else -1
