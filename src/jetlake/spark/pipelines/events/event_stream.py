"""The stream that collects what a server says about its consumers, for health and dead letters."""

from __future__ import annotations

from typing import Any

from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.checks import require_stream

__all__ = ["EVENTS_STREAM", "EVENT_FIELDS", "EVENT_SUBJECTS", "check_events_stream", "events_config"]

EVENTS_STREAM = "EVENTS"
"""The name that `jetlake events init` gives it."""

# Not the audit of API calls: every question to the server, the pipelines' own included, would be collected.
EVENT_SUBJECTS = (
    "$JS.EVENT.METRIC.>",
    "$JS.EVENT.ADVISORY.CONSUMER.>",
    "$JS.EVENT.ADVISORY.STREAM.>",
)
"""What it collects."""

EVENT_FIELDS = (
    "type string, id string, timestamp string, stream string, consumer string, stream_seq bigint, "
    "consumer_seq bigint, ack_time bigint, deliveries bigint, reason string"
)
"""The fields of the events that pipelines read, as the payload's schema."""


def events_config(*, max_age_s: float = 7 * 86_400, subjects: tuple[str, ...] = EVENT_SUBJECTS) -> dict[str, Any]:
    """Return the options of the stream, for `JetStream.create_stream`."""
    return {
        "description": "what the server says about streams and consumers",
        "subjects": list(subjects),
        "max_age": max_age_s,
        "allow_direct": True,
        # An event is published once and has no message id.
        "duplicate_window": min(max_age_s, 120) if max_age_s else 120,
    }


def check_events_stream(options: ConnectionOptions, name: str) -> None:
    """Make sure that events are collected.

    Raises:
        ConfigError: there is no such stream; the text says how to make it.
    """
    require_stream(
        options,
        name,
        "it collects events; make it with `jetlake events init`, and give consumers a sample frequency "
        "(`--sample 100`) so that their acks are measured",
    )
