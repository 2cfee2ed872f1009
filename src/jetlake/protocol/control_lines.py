"""The parts of a control line that all parsers share: verbs, arguments, sizes, and the violations found in them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jetlake.errors import ProtocolError

__all__ = [
    "SIZES",
    "SIZE_DIGITS_MAX",
    "bad_arguments",
    "control_line_exceeded",
    "message_arguments",
    "payload_violation",
    "read_size",
    "unknown_operation",
    "verb_pattern",
]

SIZE_DIGITS_MAX = 9
_SIZES_PREPARED = 2048
_SIZES_KEPT_MAX = 8192


class _Sizes(dict[bytes, int]):
    """Sizes by their digits: looking them up is faster than converting, and refuses what is no plain number."""

    def __missing__(self, digits: bytes) -> int:
        if not digits.isdigit() or len(digits) > SIZE_DIGITS_MAX:
            raise KeyError(digits)
        size = int(digits)
        if len(self) < _SIZES_KEPT_MAX:
            self[digits] = size
        return size


SIZES = _Sizes((b"%d" % size, size) for size in range(_SIZES_PREPARED))


def verb_pattern(spaced: Iterable[bytes], loose: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return the pattern of a verb: a spaced one needs a blank behind it, a loose one does not."""
    either = (b"|".join(map(re.escape, verbs)) for verbs in (spaced, loose))
    return re.compile(rb"(%b)[ \t]|(%b)[ \t]?" % tuple(either), re.IGNORECASE)


def message_arguments(verb: str, arguments: bytes, names: int, sizes: int) -> list[bytes]:
    """Split the arguments of a message: names, the reply (empty when there is none), and sizes."""
    parts = arguments.split()
    if len(parts) == names + sizes:
        parts.insert(names, b"")
    elif len(parts) != names + 1 + sizes:
        raise bad_arguments(verb, arguments)
    return parts


def read_size(digits: bytes) -> int:
    """Return the number of bytes that the digits say."""
    try:
        return SIZES[digits]
    except KeyError:
        raise ProtocolError(f"bad size {digits[:20]!r}") from None


def unknown_operation(line: bytes) -> ProtocolError:
    """Return the violation of a line without a known verb."""
    return ProtocolError(f"unknown operation {line[:20]!r}", text="Unknown Protocol Operation")


def control_line_exceeded(limit: int) -> ProtocolError:
    """Return the violation of a line with arguments that are too long."""
    return ProtocolError(f"control line is longer than {limit} bytes", text="maximum control line exceeded")


def payload_violation(size: int, limit: int) -> ProtocolError:
    """Return the violation of a message that is too large."""
    return ProtocolError(f"message of {size} bytes, but {limit} are the limit", text="Maximum Payload Violation")


def bad_arguments(verb: str, arguments: bytes) -> ProtocolError:
    """Return the violation of too few or too many arguments, after which the connection ends without an -ERR."""
    return ProtocolError(f"bad arguments of {verb}: {arguments[:80]!r}")
