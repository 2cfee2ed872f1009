"""The names of buckets and keys, and the streams and subjects that they become."""

from __future__ import annotations

import re

from jetlake.client.streams.buckets import check_bucket
from jetlake.errors import InvalidOptionError

__all__ = ["STREAM_PREFIX", "check_key", "check_pattern", "stream_name", "subject_prefix"]

STREAM_PREFIX = "KV_"
"""What the names of the buckets' streams begin with."""

_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
_PATTERN = re.compile(r"([-/_=a-zA-Z0-9]+|\*)(\.([-/_=a-zA-Z0-9]+|\*))*(\.>)?|>")


def check_key(key: str) -> str:
    """Check the name of a key, and return it.

    Raises:
        InvalidOptionError: not dot-separated tokens of letters, digits and `-/_=`.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidOptionError(f"a key is dot-separated tokens of letters, digits and -/_=, not {key!r}")
    return key


def check_pattern(pattern: str) -> str:
    """Check a key, or a pattern of keys with `*` for one token and `>` for the rest.

    Raises:
        InvalidOptionError: neither.
    """
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        raise InvalidOptionError(f"a pattern is a key that may have * for a token and > at its end, not {pattern!r}")
    return pattern


def stream_name(bucket: str) -> str:
    """Return the stream of a bucket."""
    return STREAM_PREFIX + check_bucket(bucket)


def subject_prefix(bucket: str) -> str:
    """Return what the subjects of a bucket's keys begin with."""
    return f"$KV.{bucket}."
