"""Dead letters: a message that was given up, with headers that say what happened and where the message came from."""

from __future__ import annotations

from collections.abc import Iterable

from jetlake.model.ack_subject import AckSubject
from jetlake.model.encoding.times import format_time
from jetlake.protocol.headers import Headers

__all__ = [
    "FAILED",
    "HEADER_PREFIX",
    "MAX_DELIVERIES",
    "REASONS",
    "TERMINATED",
    "error_headers",
    "letter_header",
    "letter_headers",
    "letter_id",
    "letter_subject",
    "own_headers",
    "replay_id",
    "replay_prefix",
    "why_left",
]

HEADER_PREFIX = "Dead-Letter-"
"""What the headers begin with that a dead letter gets besides its own."""

MAX_DELIVERIES = "max_deliveries"
"""The consumer's `max_deliver` was reached."""
TERMINATED = "terminated"
"""A worker terminated the message."""
FAILED = "failed"
"""The handler failed as often as its retries allow."""
REASONS = (MAX_DELIVERIES, TERMINATED, FAILED)

_DESCRIPTION = HEADER_PREFIX + "Description"
_DESCRIPTION_MAX = 512
_TRACEBACK = HEADER_PREFIX + "Traceback"
_TRACEBACK_BYTES_MAX = 4096
_LINE_EXTRA_BYTES = len(": \r\n")
"""What a header takes besides its key and value."""


def letter_headers(origin: AckSubject, subject: str, now_ns: int) -> dict[str, str | list[str]]:
    """Return the headers that every letter of a message whose handler failed has.

    Args:
        origin: the last delivery.
        subject: the subject that the message was published to.
        now_ns: the time, nanoseconds since 1970.
    """
    said: dict[str, str | list[str]] = {
        "Stream": origin.stream,
        "Consumer": origin.consumer,
        "Sequence": str(origin.stream_seq),
        "Subject": subject,
        "Reason": FAILED,
        "Deliveries": str(origin.delivered),
        "Time": format_time(now_ns),
    }
    return {HEADER_PREFIX + name: value for name, value in said.items()}


def error_headers(description: str, traceback: str, bytes_max: int) -> dict[str, str | list[str]]:
    """Return the headers that describe the error, cut to `bytes_max` bytes of the header block.

    Args:
        description: the error in one line; line breaks become blanks.
        traceback: where the error was raised; its last 4096 bytes are kept, one header for each line, or fewer where
            the description leaves less.
        bytes_max: the room for both.
    """
    room = bytes_max - len(_DESCRIPTION) - _LINE_EXTRA_BYTES
    if room <= 0:
        return {}
    text = " ".join(_encodable(description).split())[:_DESCRIPTION_MAX]
    told = text.encode()[:room].decode("utf-8", "ignore").rstrip()
    said: dict[str, str | list[str]] = {_DESCRIPTION: told} if told else {}
    lines = _last_lines(_encodable(traceback), room - len(told.encode()))
    if lines:
        said[_TRACEBACK] = lines
    return said


def letter_id(origin: AckSubject) -> str:
    """Derive the message id, which is the same however often the message is given up.

    The time the message was stored tells streams of one name apart that gave the same sequence to different messages.
    """
    return f"{origin.stream}:{origin.consumer}:{origin.stream_seq}:{origin.timestamp_ns}"


def letter_subject(template: str, stream: str, consumer: str) -> str:
    """Fill in `{stream}` and `{consumer}`."""
    return template.replace("{stream}", stream).replace("{consumer}", consumer)


def replay_id(letters: str, sequence: int, stored_ns: int) -> str:
    """Derive the message id of a replay: one that was cut off before it deleted its letter publishes nothing twice.

    The time the dead letter was stored tells it from one with its sequence in an earlier stream of the same name.
    """
    return f"{replay_prefix(letters)}{sequence}:{stored_ns}"


def replay_prefix(letters: str) -> str:
    """Return what the message ids of a stream's replayed dead letters begin with."""
    return f"requeue:{letters}:"


def letter_header(headers: Headers, name: str) -> str:
    """Return what a letter says, by the name behind `Dead-Letter-`; empty when it says nothing."""
    return headers.get(HEADER_PREFIX + name) or ""


def why_left(headers: Headers) -> str:
    """Return why a message in a stream of dead letters can't be replayed, for counting; empty when it can."""
    if not letter_header(headers, "Stream"):
        return "no dead letters"
    if letter_header(headers, "Missing") or not letter_header(headers, "Subject"):
        return "without their message, left where they are"
    return ""


def own_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Select the headers that a message keeps when it is published again.

    Headers of an earlier death are left out, and so are those that told a server how to treat the message: they were
    about the publish that they came with, and a roll-up would purge the letters before it.
    """
    kept: dict[str, str | list[str]] = {}
    for key, value in pairs:
        if not key.startswith((HEADER_PREFIX, "Nats-")):
            values = kept.setdefault(key, [])
            assert isinstance(values, list)
            values.append(value)
    return kept


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _last_lines(text: str, room: int) -> list[str]:
    kept: list[str] = []
    text_room = _TRACEBACK_BYTES_MAX
    for line in reversed(text.splitlines()):
        size = len(line.encode())
        text_room -= size
        room -= size + len(_TRACEBACK) + _LINE_EXTRA_BYTES
        if text_room < 0 or room < 0:
            break
        if line.strip():
            kept.append(line)
    return kept[::-1]
