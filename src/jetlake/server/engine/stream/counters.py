"""Counters: in a counter stream a published message is an increment, and the subject's new total is stored.

The newest message of a subject holds its total as `{"val":"5"}`, an integer of any size, and in a header what each
counter that the stream sources had contributed by then; there is no other state.
"""

from __future__ import annotations

import re

from jetlake.errors import ApiError, DecodeError, StoreError, api_error
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import append_pair, find_value, remove_key, replace_value
from jetlake.server.engine.stream.headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM,
    INCREMENT,
    ROLLUP,
    SOURCE,
)
from jetlake.store.message import StoredMessage
from jetlake.store.message_store import MessageStore

TOTAL = b'{"val":"%b"}'
"""The payload of a counter's message, with the total."""

# Conditions that depend on the order of messages: increments must commute, so they are refused together.
_CONDITIONS = (
    EXPECTED_STREAM,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    ROLLUP,
)

# What each sourced counter had contributed: its total by stream and subject.
_SOURCES = b"Nats-Counter-Sources"

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


def count(
    store: MessageStore, subject: bytes, control: dict[bytes, bytes], totals: dict[bytes, int] | None = None
) -> bytes | ApiError:
    """Return the subject's new total as digits, or the error that refuses the increment.

    Args:
        totals: the totals of subjects that are about to be stored; the new one is added.
    """
    increment = control.get(INCREMENT)
    if increment is None:
        return api_error(10169)
    before = totals[subject] if totals and subject in totals else _total(store, subject)
    if before is None:
        return api_error(10172)
    total = before + int(increment)
    if abs(total) >= _LARGEST:
        return api_error(10171)
    if totals is not None:
        totals[subject] = total
    return b"%d" % total


def keep_sources(store: MessageStore, subject: bytes, header: bytes) -> bytes:
    """Return an increment's header with what sourced counters have contributed to the subject so far."""
    last = _newest(store, subject)
    sources = find_value(last.header, _SOURCES) if last is not None else None
    return append_pair(remove_key(header, _SOURCES), _SOURCES, sources) if sources else header


def add_copy(store: MessageStore, subject: bytes, header: bytes, payload: bytes) -> tuple[bytes, bytes] | ApiError:
    """Add what a sourced counter has grown by since its last copy; return the header and payload to store."""
    origin = (find_value(header, SOURCE) or b"").decode("utf-8", "replace").split(" ")
    value = _value(payload)
    if value is None or len(origin) < 5:
        return api_error(10169)
    stream, origin_subject = origin[0], origin[4]
    before = _total(store, subject)
    if before is None:
        return api_error(10172)
    last = _newest(store, subject)
    sources = _read_sources(last.header if last is not None else b"")
    growth = value - int(sources.get(stream, {}).get(origin_subject, "0"))
    sources[stream] = {**sources.get(stream, {}), origin_subject: str(value)}
    header = replace_value(header, INCREMENT, b"%d" % growth)
    ordered = {name: dict(sorted(totals.items())) for name, totals in sorted(sources.items())}
    header = append_pair(remove_key(header, _SOURCES), _SOURCES, encode(ordered))
    return header, b'{"val":"%d"}' % (before + growth)


def _read_sources(header: bytes) -> dict[str, dict[str, str]]:
    text = find_value(header, _SOURCES)
    try:
        sources = decode(dict[str, dict[str, str]], text) if text else {}
    except DecodeError:
        return {}
    is_sound = all(_is_whole_number(value.encode()) for totals in sources.values() for value in totals.values())
    return sources if is_sound else {}


def _newest(store: MessageStore, subject: bytes) -> StoredMessage | None:
    sequence = store.last_sequence_for(subject)
    return store.get(sequence) if sequence else None


def _total(store: MessageStore, subject: bytes) -> int | None:
    """Return the subject's current total; None when its newest message holds none or cannot be read."""
    if not store.last_sequence_for(subject):
        return 0
    try:
        message = _newest(store, subject)
    except StoreError:
        return None
    return _value(message.payload) if message is not None else None


def _value(payload: bytes) -> int | None:
    """Return the total in a counter's message; None when it holds none."""
    try:
        value = decode(dict[str, str], payload)["val"].encode()
    except (DecodeError, KeyError):
        return None
    return int(value) if _is_whole_number(value) else None
