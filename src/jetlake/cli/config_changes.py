"""What an edit changes in a configuration, as people and as JSON read it."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import Struct

from jetlake.cli import output

__all__ = ["config_changes", "print_changes", "told_changes"]


def config_changes(old: Struct, new: Struct) -> dict[str, tuple[Any, Any]]:
    """List the fields that differ, with both values."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def print_changes(changes: dict[str, tuple[Any, Any]], as_json: bool) -> None:
    """Print the changes, or that there are none."""
    if as_json:
        output.print_json({key: {"from": old, "to": new} for key, (old, new) in changes.items()})
    else:
        click.echo(told_changes(changes) or "No changes")


def told_changes(changes: dict[str, tuple[Any, Any]]) -> str:
    """Write the changes for people, one a line."""
    return "\n".join(f"{key}: {_human(key, old)} -> {_human(key, new)}" for key, (old, new) in changes.items())


_DURATIONS = frozenset(
    {
        "max_age",
        "duplicate_window",
        "subject_delete_marker_ttl",
        "ack_wait",
        "idle_heartbeat",
        "inactive_threshold",
        "max_expires",
        "priority_timeout",
    }
)
_SIZES = frozenset({"max_bytes", "max_msg_size"})
_COUNTS = frozenset(
    {"max_msgs", "max_msgs_per_subject", "max_consumers", "max_deliver", "max_ack_pending", "max_waiting", "max_batch"}
)


def _human(key: str, value: Any) -> str:
    """Write a value of the configuration with the units that options have."""
    if value is None or (key in _DURATIONS and not value):
        return "none"
    if key in _DURATIONS:
        return output.long_duration(value)
    if key in _SIZES:
        return output.size(value)
    if key in _COUNTS:
        return output.count(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
