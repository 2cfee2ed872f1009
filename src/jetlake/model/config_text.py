"""Values of configurations as people read them: `3d`, `1.0 GiB`, `unlimited`; for the command and the dashboard."""

from __future__ import annotations

from typing import Any

import msgspec

from jetlake.model.encoding.durations import format_duration

__all__ = ["DURATIONS", "config_text", "count_text", "duration_text", "size_text"]

DURATIONS = frozenset(
    {
        "max_age",
        "duplicate_window",
        "subject_delete_marker_ttl",
        "ack_wait",
        "backoff",
        "idle_heartbeat",
        "inactive_threshold",
        "max_expires",
        "priority_timeout",
    }
)
"""The fields that are durations, in nanoseconds."""
_SIZES = frozenset({"max_bytes", "max_msg_size"})
_COUNTS = frozenset(
    {"max_msgs", "max_msgs_per_subject", "max_consumers", "max_deliver", "max_ack_pending", "max_waiting", "max_batch"}
)


def config_text(name: str, value: Any) -> str:
    """Write the value of a field; `none` for nothing."""
    if value in (None, "", (), [], {}) or (name in DURATIONS and not value):
        return "none"
    if isinstance(value, (tuple, list)):
        return ", ".join(config_text(name, one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {config_text(key, one)}" for key, one in value.items())
    if name in DURATIONS:
        return duration_text(value)
    if name in _SIZES:
        return size_text(value)
    if name in _COUNTS:
        return count_text(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def count_text(number: int) -> str:
    """Write a number with its thousands set apart; below zero means no limit."""
    return "unlimited" if number < 0 else f"{number:,}"


def size_text(number: int) -> str:
    """Write a number of bytes in the unit that fits; below zero means no limit."""
    if number < 0:
        return "unlimited"
    amount, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{number:,} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration_text(nanoseconds: int) -> str:
    """Write a length of time as it may be typed, days first: `3d`, `1d12h`; `none` for zero and below."""
    if nanoseconds <= 0:
        return "none"
    days, rest = divmod(nanoseconds, 86_400 * 10**9)
    text = format_duration(rest) if rest else ""
    for ending in ("0s", "0m"):  # 12h0m0s
        if text.endswith(ending) and text.removesuffix(ending)[-1:] in ("m", "h"):
            text = text.removesuffix(ending)
    return f"{days}d{text}" if days else text
