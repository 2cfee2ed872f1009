"""The header keys by which a publisher asks something of a stream, and how they are found in a message."""

from __future__ import annotations

from jetlake.errors import ApiError, api_error

__all__ = [
    "BATCH_ID",
    "EXPECTED_LAST_MSG_ID",
    "EXPECTED_LAST_SEQUENCE",
    "EXPECTED_LAST_SUBJECT_SEQUENCE",
    "EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT",
    "EXPECTED_STREAM",
    "INCREMENT",
    "MSG_ID",
    "ROLLUP",
    "SOURCE",
    "check_schedule",
    "has_only_id",
    "read_id",
    "read_wishes",
]

MSG_ID = b"Nats-Msg-Id"
EXPECTED_STREAM = b"Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE = b"Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE = b"Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID = b"Nats-Expected-Last-Msg-Id"
INCREMENT = b"Nats-Incr"
ROLLUP = b"Nats-Rollup"
SOURCE = b"Nats-Stream-Source"
BATCH_ID = b"Nats-Batch-Id"
_ID_LINE = b"\r\nNats-Msg-Id:"
_SCHEDULE = (b"Nats-Schedule", b"Nats-Schedule-Time-Zone")
_SCHEDULER = (b"Nats-Scheduler", b"Nats-Schedule-Next")


def read_wishes(header: bytes) -> dict[bytes, bytes] | None:
    """The first value of every key that starts with `Nats-`; None when the block has no such key.

    One cheap search settles it for messages whose headers are their own business. An empty value asks for nothing.
    """
    if b"\r\nNats-" not in header:
        return None
    wishes: dict[bytes, bytes] = {}
    for line in header.split(b"\r\n"):
        if line.startswith(b"Nats-"):
            key, colon, value = line.partition(b":")
            if colon and key not in wishes:
                wishes[key] = value.lstrip(b" \t")
    return {key: value for key, value in wishes.items() if value}


def has_only_id(header: bytes) -> bool:
    """Whether a message id is all that the block asks for."""
    start = header.find(b"\r\nNats-")
    return header.startswith(_ID_LINE, start) and header.find(b"\r\nNats-", start + 2) < 0


def read_id(header: bytes) -> bytes:
    """The message id, or empty bytes."""
    start = header.find(_ID_LINE)
    if start < 0:
        return b""
    start += len(_ID_LINE)
    return header[start : header.find(b"\r\n", start)].lstrip(b" \t")


# What no stream here can do is refused as by a stream that has the feature turned off.


def check_schedule(wishes: dict[bytes, bytes]) -> ApiError | None:
    """Refuse a schedule, and messages that claim to come from one."""
    if any(key in wishes for key in _SCHEDULE):
        return api_error(10188)
    return api_error(10212) if any(key in wishes for key in _SCHEDULER) else None
