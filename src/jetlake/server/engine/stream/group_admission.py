"""Admission of atomic batches: every message is checked against the stream and the messages before it in the batch."""

from __future__ import annotations

from jetlake.errors import ApiError, api_error
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.batch.atomic_batches import StagedMessage
from jetlake.server.engine.stream.admission import HEADER_BYTES_MAX, Admission, check_stream, parse_sequence
from jetlake.server.engine.stream.counters import TOTAL, check_increment, count, keep_sources
from jetlake.server.engine.stream.ids.deduplication import Deduplication
from jetlake.server.engine.stream.message_headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    MSG_ID,
    ROLLUP,
    SOURCE,
    read_control_headers,
)
from jetlake.server.engine.stream.message_lifetimes import TTL, check_lifetime
from jetlake.server.engine.stream.message_writer import Checked
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.interface import MessageStore

__all__ = ["GroupAdmission"]


class _Ahead:
    """What the messages of a batch that were checked so far will change."""

    def __init__(self) -> None:
        self.messages: list[Checked] = []
        self.bytes = 0
        self.on_subject: dict[bytes, int] = {}
        self.ids: set[bytes] = set()
        self.totals: dict[bytes, int] = {}


class GroupAdmission:
    """The checks of a stream's atomic batches, in nats-server's order.

    Args:
        store: the stream's messages.
        admission: the checks of single messages.
        window: the message ids that count as seen.
        retention: knows which subjects consumers want.
    """

    def __init__(
        self,
        config: StreamConfig,
        store: MessageStore,
        admission: Admission,
        window: Deduplication,
        retention: Retention,
    ) -> None:
        self._store = store
        self._admission = admission
        self._window = window
        self._retention = retention
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed."""
        self._config = config
        self._name = config.name.encode()
        self._is_interest = config.retention is RetentionPolicy.INTEREST

    def check(self, messages: list[StagedMessage], now_ns: int) -> list[Checked] | ApiError:
        """Return the messages as they are to be stored, or the error of the first one that is refused."""
        ahead = _Ahead()
        for subject, header, payload in messages:
            control = read_control_headers(header)
            error = (
                self._check_headers(control, header, payload)
                or self._check_id(control, now_ns, ahead)
                or (api_error(10227) if SOURCE in control else None)
                or self._check_sequences(control, subject, ahead)
                or self._admission.check_schedule(control, header, subject, now_ns)
                or self._check_rollup(control, subject, ahead)
            )
            if error is not None:
                return error
            header = self._admission.complete(control, header)
            if self._config.allow_msg_counter:
                counted = count(self._store, subject, control, ahead.totals)
                if isinstance(counted, ApiError):
                    return counted
                payload = TOTAL % counted
                header = keep_sources(self._store, subject, header)
            error = self._add((subject, header, payload), control, ahead)
            if error is not None:
                return error
        return ahead.messages

    def _check_headers(self, control: dict[bytes, bytes], header: bytes, payload: bytes) -> ApiError | None:
        if EXPECTED_LAST_MSG_ID in control:
            return api_error(10177, header=EXPECTED_LAST_MSG_ID.decode())
        if len(header) > HEADER_BYTES_MAX:
            return api_error(10097)
        return (
            check_increment(control, payload, self._config)
            or check_stream(control, self._name)
            or (api_error(10166) if TTL in control and not self._config.allow_msg_ttl else None)
            or check_lifetime(control, self._config)
        )

    def _check_id(self, control: dict[bytes, bytes], now_ns: int, ahead: _Ahead) -> ApiError | None:
        message_id = control.get(MSG_ID)
        if message_id is None:
            return None
        if message_id in ahead.ids or self._window.find(message_id, now_ns):
            return api_error(10201)
        ahead.ids.add(message_id)
        return None

    def _check_sequences(self, control: dict[bytes, bytes], subject: bytes, ahead: _Ahead) -> ApiError | None:
        """Check the expected last sequences: of the stream on the first message only, of a subject before its first."""
        expected = control.get(EXPECTED_LAST_SEQUENCE)
        if expected is not None:
            running = self._store.last_sequence + len(ahead.messages)
            if parse_sequence(expected) != running:
                return api_error(10071, seq=running)
            if ahead.messages:
                return api_error(10164)
        expected = control.get(EXPECTED_LAST_SUBJECT_SEQUENCE)
        if expected is not None:
            pattern = control.get(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject)
            if pattern in ahead.on_subject:
                return api_error(10164)
            actual = self._store.last_sequence_for(pattern)
            if parse_sequence(expected) != actual:
                return api_error(10071, seq=actual)
        elif EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in control:
            return api_error(10193)
        return None

    def _check_rollup(self, control: dict[bytes, bytes], subject: bytes, ahead: _Ahead) -> ApiError | None:
        error = self._admission.check_rollup(control)
        rollup = control.get(ROLLUP, b"").lower()
        if error is None and rollup == b"sub" and subject in ahead.on_subject:
            error = api_error(10111, err="batch rollup sub invalid")
        elif error is None and rollup == b"all" and ahead.messages:
            error = api_error(10111, err="batch rollup all invalid")
        return error

    def _add(self, message: StagedMessage, control: dict[bytes, bytes], ahead: _Ahead) -> ApiError | None:
        """Add a message that passed, unless a full stream refuses it."""
        subject, header, payload = message
        is_wanted = not self._is_interest or self._retention.is_wanted(subject)
        on_subject = ahead.on_subject.get(subject, 0)
        if is_wanted and self._admission.refuses_when_full:
            size = self._admission.record_size(subject, header, payload)
            counts = (len(ahead.messages), ahead.bytes, on_subject)
            error = self._admission.check_full(subject, size, control.get(ROLLUP, b""), counts)
            if error is not None:
                return error
            ahead.bytes += size
        ahead.on_subject[subject] = on_subject + 1
        ahead.messages.append((subject, header, payload, control, is_wanted))
        return None
