"""The text of an option as a value: one parser for each kind of value, each with a reason when it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from jetlake.protocol.subjects import is_subset, is_valid_config

_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {
    "": 1.0,
    "ms": 0.001,
    "millisecond": 0.001,
    "milliseconds": 0.001,
    "s": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def text(value: str) -> str:
    """Any text that is not blank."""
    if not value.strip():
        raise ValueError("it is empty")
    return value


def names(value: str) -> tuple[str, ...]:
    """Several names: separated by commas, or a JSON array of strings (for names that hold commas)."""
    value = value.strip()
    if value.startswith("["):
        try:
            items = json.loads(value)
        except ValueError as error:
            raise ValueError(f"it begins like a JSON array but is not one ({error})") from None
        if not all(isinstance(item, str) for item in items):
            raise ValueError("the JSON array may hold strings only")
    else:
        items = value.split(",")
    stripped = tuple(item.strip() for item in items)
    if not stripped or not all(stripped):
        raise ValueError("it is empty, or has an empty name between commas")
    return tuple(dict.fromkeys(stripped))


def names_text(items: Iterable[str]) -> str:
    """Return the text that `names` reads as these: with commas between them, or a JSON array if commas would not do."""
    given = list(items)
    joined = ",".join(given)
    return json.dumps(given) if joined.startswith("[") or any("," in item for item in given) else joined


def count(value: str) -> int:
    """Return a whole number from 0 on; underscores and `1e6` are understood."""
    try:
        number = int(value) if "e" not in value.lower() else float(value)
    except ValueError:
        raise ValueError("it is not a whole number") from None
    if number != int(number):
        raise ValueError("it is not a whole number")
    if number < 0:
        raise ValueError("it is negative")
    return int(number)


def positive(value: str) -> int:
    """Return a whole number from 1 on."""
    number = count(value)
    if number == 0:
        raise ValueError("it must be at least 1")
    return number


def byte_size(value: str) -> int:
    """Bytes, with an optional unit of 1024s: `65536`, `64k`, `16MiB`."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("it is not a size such as 65536, 64k or 16m")
    size = int(match[1]) * _SIZE_FACTOR[match[2].lower()]
    if size == 0:
        raise ValueError("it must be at least 1 byte")
    return size


def duration_s(value: str) -> float:
    """Read seconds, with an optional unit: `0.5`, `100ms`, `5 minutes`."""
    match = _DURATION.fullmatch(value.strip())
    factor = _SECONDS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError("it is not a duration such as 0.5, 100ms, 30s or 5 minutes")
    return float(match[1]) * factor


def timeout_s(value: str) -> float:
    """Read a duration that lets something happen."""
    seconds = duration_s(value)
    if seconds == 0:
        raise ValueError("it must be more than 0")
    return seconds


def boolean(value: str) -> bool:
    """Read `true` or `false`, in any case."""
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return word == "true"


def choice(*words: str) -> Callable[[str], Any]:
    """Return a parser of these words, in any case, that returns them as they are spelled here."""
    spelled = {word.lower(): word for word in words}

    def parse(value: str) -> str:
        word = spelled.get(value.strip().lower())
        if word is None:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return word

    return parse


def subject_filters(subjects: Iterable[str]) -> tuple[str, ...]:
    """Return the subject filters, except any that another filter covers, because the server refuses such pairs.

    Raises:
        ValueError: one of them is no subject or pattern.
    """
    filters = tuple(dict.fromkeys(subjects))
    for subject in filters:
        if not is_valid_config(subject.encode()):
            raise ValueError(f"{subject!r} is not a valid subject or pattern")
    encoded = [subject.encode() for subject in filters]
    return tuple(
        subject.decode()
        for subject in encoded
        if not any(other is not subject and is_subset(subject, other) for other in encoded)
    )
