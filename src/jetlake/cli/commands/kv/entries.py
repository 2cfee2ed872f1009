"""Entries of a bucket on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jetlake.cli import output
from jetlake.client.kv.entry import Entry

__all__ = ["entry_fields", "print_entries", "shown_value"]

_VALUE_BYTES_SHOWN = 500


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return an entry for JSON; the value is in base64, as in all that the server answers."""
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "created": entry.created,
        "operation": entry.operation,
        "value": entry.value,
    }


def shown_value(entry: Entry) -> str:
    """Return the value as one line of text, cut off where it is long; what can't be printed is escaped."""
    text = entry.value[:_VALUE_BYTES_SHOWN].decode("utf-8", "backslashreplace")
    return output.printable(text) + ("…" if len(entry.value) > _VALUE_BYTES_SHOWN else "")


def print_entries(title: str, entries: Sequence[Entry], as_json: bool) -> None:
    """Print a table of entries."""
    if as_json:
        output.print_json([entry_fields(entry) for entry in entries])
        return
    output.print_table(
        title,
        ["Key", "Revision", "Operation", "Created", "Value"],
        [
            [
                entry.key,
                output.count(entry.revision),
                entry.operation.value,
                f"{entry.created:%Y-%m-%d %H:%M:%S}",
                shown_value(entry),
            ]
            for entry in entries
        ],
        numbers=[1],
        spare=[3, 2],
    )
