"""What tasks found lost, for the driver to count: tasks and driver have only the server in common."""

from __future__ import annotations

import logging

from jetlake.errors import ApiError, PermissionsError, UnsupportedStreamError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.requests.key_value import KeyValue

__all__ = ["LossNotes", "note_key"]

_log = logging.getLogger("jetlake.spark")


def note_key(owner: str, stream: str, batch_first: int, place: str) -> str:
    """Return the key of what was lost at one place (a task's first sequence, or `>` for all) of a batch."""
    return f"lost.{owner}.{stream}.{batch_first}.{place}"


class LossNotes:
    """Counts by batch and task, in the bucket of the sink's ledger; a repeated task writes its count anew."""

    def __init__(self, options: SourceOptions) -> None:
        self._values = KeyValue(options.connection, options.ledger, "" if options.has_patterns else options.streams[0])

    def add(self, key: str, count: int) -> None:
        """Note that so many messages are lost; where that is not allowed, the log is all there is."""
        try:
            self._values.write(key, b"%d" % count)
        except UnsupportedStreamError as error:
            _log.warning("%d lost messages are missing in the query's count: %s", count, error)

    def total(self, pattern: str) -> int:
        """Return all that was noted under keys that match."""
        try:
            return sum(int(value) for value in self._values.values(pattern) if value.isdigit())
        except (ApiError, PermissionsError) as error:
            _log.warning("the messages that tasks found lost could not be counted: %s", error)
            return 0

    def remove(self, pattern: str) -> None:
        """Forget what was counted."""
        self._values.remove(pattern)
