"""The rules that a message has to pass before it goes into a stream; each check says which step of the order it is.

The order is the server's: the first rule that is broken answers. Every check returns the error or None; nothing is
raised, because a full stream may refuse as many messages as others store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import ApiError, api_error
from jetlake.model.enums import DiscardPolicy, StorageType
from jetlake.server.engine.stream.counters import check_increment
from jetlake.server.engine.stream.expectations import check_last_message_id, check_sequences, check_stream
from jetlake.server.engine.stream.message_headers import BATCH_ID, ROLLUP, SOURCE, check_schedule
from jetlake.server.engine.stream.message_lifetimes import check_lifetime
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["HEADER_BYTES_MAX", "RECORD_BYTES_MAX", "Admission"]

HEADER_BYTES_MAX = 65_535
"""The longest header block that a stream takes."""
RECORD_BYTES_MAX = 65 * 1024 * 1024
"""The longest record that a stream takes: the highest `max_payload` that goes with JetStream, and a subject."""

# Bytes that a message takes in the store besides its own: without headers, with headers.
_RECORD_OVERHEAD = {StorageType.FILE: (30, 34), StorageType.MEMORY: (16, 16)}

# With more room than this per message the limits of account and server need no look at each one.
_AMPLE_ROOM = 2 * 1024 * 1024


class Admission:
    """The rules of one stream.

    Attributes:
        largest: bytes of header and payload that a message may have.
        refuses_when_full: a full stream refuses new messages.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._store = stream.store
        self.configure()

    def configure(self) -> None:
        """Read the stream's configuration, new or changed."""
        config = self._config = self._stream.config
        self._name = config.name.encode()
        self._overhead, self._overhead_with_header = _RECORD_OVERHEAD[config.storage]
        self.largest = config.max_msg_size if config.max_msg_size >= 0 else RECORD_BYTES_MAX
        self.refuses_when_full = config.discard is DiscardPolicy.NEW and (
            config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        )

    def record_size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """The bytes that the message will take in the store."""
        overhead = self._overhead_with_header if header else self._overhead
        return overhead + len(subject) + len(header) + len(payload)

    def check_record(self, size: int) -> ApiError | None:
        """Steps 2 and 3: no record is too long, and the stream takes any at all."""
        if size > RECORD_BYTES_MAX:
            return api_error(10077, err="message too large")
        return api_error(10109) if self._config.sealed else None

    def check_wishes(self, wishes: dict[bytes, bytes], subject: bytes, payload: bytes) -> ApiError | None:
        """Steps 4 to 10: what the headers expect, before the look for duplicates."""
        if BATCH_ID in wishes:
            return api_error(10174)
        return (
            check_increment(wishes, payload, self._config)
            or check_stream(wishes, self._name)
            or check_lifetime(wishes, self._config)
            or check_sequences(wishes, subject, self._store)
            or check_schedule(wishes)
            or (api_error(10227) if SOURCE in wishes else None)
        )

    def check_replacement(self, wishes: dict[bytes, bytes], last_message_id: bytes) -> ApiError | None:
        """Steps 12 and 13: the last message's id, and whether the message may replace others."""
        error = check_last_message_id(wishes, last_message_id)
        rollup = wishes.get(ROLLUP)
        if error is not None or rollup is None:
            return error
        if not self._config.allow_rollup_hdrs or self._config.deny_purge:
            return api_error(10111, err="rollup not permitted")
        if rollup.lower() not in (b"sub", b"all"):
            return api_error(10111, err=f'rollup value invalid: "{rollup.decode("utf-8", "replace")}"')
        return None

    def check_size(self, header: bytes, payload: bytes) -> ApiError | None:
        """Steps 15 and 16: the message is no longer than the stream allows, nor its header than any does."""
        if len(header) + len(payload) > self.largest:
            return api_error(10054)
        return api_error(10097) if len(header) > HEADER_BYTES_MAX else None

    # Room

    def has_ample_room(self, count: int) -> bool:
        """Whether account and server have so much room that so many messages cannot fill it."""
        storage = self._config.storage
        for usage in (self._stream.engine.usage, self._stream.jetstream.usage):
            room = usage.room(storage)
            if room is not None and room < count * _AMPLE_ROOM:
                return False
        return True

    def check_server_room(self) -> ApiError | None:
        """Step 17: the server's storage is not full."""
        self._stream.account_for_bytes()
        room = self._stream.engine.usage.room(self._config.storage)
        return api_error(10023) if room is not None and room < 0 else None

    def check_account_room(self, size: int) -> ApiError | None:
        """Step 19: the message fits into what the account may use."""
        room = self._stream.jetstream.usage.room(self._config.storage)
        return api_error(10002) if room is not None and room < size else None

    def check_full(self, subject: bytes, size: int, rollup: bytes) -> ApiError | None:
        """Step 21, discard new: a full stream refuses, unless the message will push out one of its own subject."""
        config = self._config
        store = self._store
        displaces = False
        if config.max_msgs_per_subject > 0:
            displaces = store.count_on(subject) >= config.max_msgs_per_subject
            if displaces and config.discard_new_per_subject and not rollup:
                return api_error(10077, err="maximum messages per subject exceeded")
        if config.max_msgs > 0 and store.messages >= config.max_msgs and not displaces:
            return api_error(10077, err="maximum messages exceeded")
        is_full = config.max_bytes > 0 and store.bytes + size > config.max_bytes
        if is_full and (not displaces or self._oldest_size(subject) < size):
            return api_error(10077, err="maximum bytes exceeded")
        return None

    def _oldest_size(self, subject: bytes) -> int:
        """Bytes of the subject's oldest message, which the next one will push out."""
        run = self._store.read(self._store.first_sequence, SubjectFilter([subject]), 1, RECORD_BYTES_MAX)
        if not run.messages:
            return 0
        message = run.messages[0]
        return self.record_size(message.subject, message.header, message.payload)
