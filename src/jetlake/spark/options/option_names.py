"""The names of streams, consumers and buckets in options."""

from __future__ import annotations

from jetlake.client.tables.options.option_values import names

__all__ = ["bucket_name", "consumer_name", "stream_names", "stream_patterns"]


def stream_names(value: str) -> tuple[str, ...]:
    """Names of streams, separated by commas."""
    streams = names(value)
    for stream in streams:
        if any(character in stream for character in " .*>/\\\t\r\n"):
            raise ValueError(f"{stream!r} cannot be a stream's name: it holds a blank, a dot, a wildcard or a slash")
    return streams


def stream_patterns(value: str) -> tuple[str, ...]:
    """Names of streams in which `*` stands for anything."""
    stream_names(value.replace("*", "x"))
    return names(value)


def consumer_name(value: str) -> str:
    """Return the name of a consumer, bucket or domain."""
    if any(character in value for character in " .*>/\\\t\r\n") or not value:
        raise ValueError("a consumer's name has no blank, dot, wildcard or slash")
    return value


def bucket_name(value: str) -> str:
    """Return the name of a key-value bucket; empty for `none`."""
    return "" if value.strip().lower() == "none" else consumer_name(value)
