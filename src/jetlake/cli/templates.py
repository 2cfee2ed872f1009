"""The template functions of bodies, headers and subjects, as `nats` has them: `{{Count}}`, `{{ Random 3 5 }}`."""

from __future__ import annotations

import random
import re
import string
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from jetlake.protocol.nuid import next_nuid

__all__ = ["fill", "fill_text"]

_CALL = re.compile(rb"\{\{\s*\.?([A-Za-z]+)((?:\s+[0-9]+)*)\s*\}\}")
_LETTERS = string.ascii_letters + string.digits
_RANDOM_MAX = 64 * 1024 * 1024
"""No message may have more characters."""


def fill(text: bytes, number: int, request: bytes = b"") -> bytes:
    """Return a text with the results of its template functions; braces around anything else stay as they are.

    Args:
        number: the number of the message, for `Count`.
        request: the content of the request, for `Request`. Nothing in it is a function.
    """
    if b"{{" not in text:
        return text

    def result(call: re.Match[bytes]) -> bytes:
        name, arguments = call[1].decode(), [int(word) for word in call[2].split()]
        if name == "Request" and not arguments:
            return request
        if name == "Random":
            return _random(*arguments).encode() if _is_range(arguments) else call[0]
        function = None if arguments else _FUNCTIONS.get(name)
        return call[0] if function is None else function(number).encode()

    return _CALL.sub(result, text)


def fill_text(text: str, number: int) -> str:
    """Return a subject or a header's value with the results of its template functions."""
    return fill(text.encode(errors="surrogateescape"), number).decode(errors="surrogateescape")


def _is_range(arguments: list[int]) -> bool:
    return len(arguments) == 2 and arguments[0] <= arguments[1] <= _RANDOM_MAX


def _random(shortest: int, longest: int) -> str:
    return "".join(random.choices(_LETTERS, k=random.randint(shortest, longest)))


def _clock() -> str:
    """Return the time of day as Go's `time.Kitchen` writes it: `3:04PM`."""
    now = datetime.now()
    return f"{now.hour % 12 or 12}:{now.minute:02}{'PM' if now.hour >= 12 else 'AM'}"


_FUNCTIONS: dict[str, Callable[[int], str]] = {
    "Count": str,
    "Cnt": str,
    "TimeStamp": lambda _: datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    "Unix": lambda _: str(time.time_ns() // 1_000_000_000),
    "UnixNano": lambda _: str(time.time_ns()),
    "Time": lambda _: _clock(),
    "ID": lambda _: next_nuid(),
    "UUID": lambda _: str(uuid.uuid4()),
}
