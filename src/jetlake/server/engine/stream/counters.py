"""Counters: in a counter stream a published message is an increment, and the subject's new total is stored.

The newest message of a subject holds its total as `{"val":"5"}`, an integer of any size; there is no other state.
"""

from __future__ import annotations

import re

from jetlake.errors import ApiError, DecodeError, StoreError, api_error
from jetlake.model.encoding.codec import decode
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.stream.message_headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM,
    INCREMENT,
    ROLLUP,
)
from jetlake.store.interface import MessageStore

__all__ = ["check_increment", "count"]

# Conditions that depend on the order of messages: increments must commute, so they are refused together.
_CONDITIONS = (
    EXPECTED_STREAM,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    ROLLUP,
)

# Bounds the time that Python needs to parse a number.
_DIGITS_MAX = 4000
_LARGEST = 10**_DIGITS_MAX
_is_whole_number = re.compile(rb"[+-]?\d{1,%d}\Z" % _DIGITS_MAX).match


def check_increment(control: dict[bytes, bytes], payload: bytes, config: StreamConfig) -> ApiError | None:
    """Refuse an increment that is no integer, has a payload or conditions, or goes to a stream without counters."""
    increment = control.get(INCREMENT)
    if increment is None:
        return None
    if not _is_whole_number(increment):
        return api_error(10171)
    if not config.allow_msg_counter:
        return api_error(10168)
    if payload:
        return api_error(10170)
    return api_error(10171) if any(key in control for key in _CONDITIONS) else None


def count(store: MessageStore, subject: bytes, control: dict[bytes, bytes]) -> bytes | ApiError:
    """Return the subject's new total as digits, or the error that refuses the increment."""
    increment = control.get(INCREMENT)
    if increment is None:
        return api_error(10169)
    before = _total(store, subject)
    if before is None:
        return api_error(10172)
    total = before + int(increment)
    return b"%d" % total if abs(total) < _LARGEST else api_error(10171)


def _total(store: MessageStore, subject: bytes) -> int | None:
    """Return the subject's current total; None when its newest message holds none or cannot be read."""
    sequence = store.last_sequence_for(subject)
    if not sequence:
        return 0
    try:
        message = store.get(sequence)
        value = decode(dict[str, str], message.payload)["val"].encode() if message is not None else b""
    except (StoreError, DecodeError, KeyError):
        return None
    return int(value) if _is_whole_number(value) else None
