"""What a publisher may expect of a stream before its message goes in, by headers; each check in the server's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import ApiError, api_error
from jetlake.server.engine.stream.message_headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM,
)

if TYPE_CHECKING:
    from jetlake.store.interface import MessageStore

__all__ = ["check_last_message_id", "check_sequences", "check_stream"]


def check_stream(wishes: dict[bytes, bytes], name: bytes) -> ApiError | None:
    """The message is meant for this stream."""
    expected = wishes.get(EXPECTED_STREAM)
    return api_error(10060) if expected is not None and expected != name else None


def check_sequences(wishes: dict[bytes, bytes], subject: bytes, store: MessageStore) -> ApiError | None:
    """The last sequence of the subject (or of a pattern named instead) and of the stream are what they should be."""
    expected = wishes.get(EXPECTED_LAST_SUBJECT_SEQUENCE)
    if expected is not None:
        actual = store.last_sequence_for(wishes.get(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject))
        if _number(expected) != actual:
            return api_error(10071, seq=actual)
    elif EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in wishes:
        return api_error(10193)
    expected = wishes.get(EXPECTED_LAST_SEQUENCE)
    if expected is not None and _number(expected) != store.last_sequence:
        return api_error(10071, seq=store.last_sequence)
    return None


def check_last_message_id(wishes: dict[bytes, bytes], last_message_id: bytes) -> ApiError | None:
    """The newest message has that id."""
    expected = wishes.get(EXPECTED_LAST_MSG_ID)
    if expected is None or expected == last_message_id:
        return None
    return api_error(10070, id=last_message_id.decode("utf-8", "replace"))


def _number(text: bytes) -> int:
    """The decimal number, or -1, which no sequence equals: junk is a mismatch."""
    return int(text) if text.isdigit() and len(text) <= 20 else -1
