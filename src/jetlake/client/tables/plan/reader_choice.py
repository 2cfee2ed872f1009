"""By which reader a stream is read: pure, from its configuration, the server's version and the options."""

from __future__ import annotations

from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.errors import UnsupportedStreamError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig

__all__ = [
    "BATCH_DIRECT_GET",
    "SERVER_MIN",
    "Version",
    "check_server",
    "choose_reader",
    "parse_version",
    "version_text",
]

Version = tuple[int, int, int]

SERVER_MIN: Version = (2, 9, 0)
"""The oldest server that is read from: the first with named consumers."""

BATCH_DIRECT_GET: Version = (2, 11, 0)


def parse_version(text: str) -> Version:
    """`2.15.1` or `2.12.0-RC.1` as numbers; what is no version counts as the oldest."""
    numbers = []
    for part in text.split("-")[0].split(".")[:3]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return (*numbers, 0, 0, 0)[:3]  # type: ignore[return-value]


def check_server(version: Version) -> None:
    """Refuse servers that are too old.

    Raises:
        UnsupportedStreamError: the server lacks what every way of reading needs.
    """
    if version < SERVER_MIN:
        raise UnsupportedStreamError(
            f"the server is {version_text(version)}; bulk reads need {version_text(SERVER_MIN)} or newer: upgrade it"
        )


def choose_reader(config: StreamConfig, version: Version, options: ReadOptions, sequences: int) -> str:
    """Return how tasks read a range of so many sequences: `consumer`, `direct` or `leader`.

    Raises:
        UnsupportedStreamError: the stream cannot be read that way, with what to change.
    """
    wanted = options.reader
    may_direct = config.allow_direct and version >= BATCH_DIRECT_GET
    if config.retention is RetentionPolicy.LIMITS:
        if wanted == "auto":
            small = sequences < options.direct_below and len(options.subjects) <= 1
            return "direct" if small and may_direct else "consumer"
    elif wanted == "consumer":
        raise UnsupportedStreamError(
            f"stream {config.name} has {config.retention} retention, where a consumer takes messages away by reading "
            "them: option reader may be direct or leader there"
        )
    elif wanted == "auto":
        if may_direct:
            return "direct"
        raise UnsupportedStreamError(_no_direct(config, version) + ", or use option reader=leader (slow)")
    if wanted == "direct" and not may_direct:
        raise UnsupportedStreamError(_no_direct(config, version) + ", or leave option reader at auto")
    return wanted


def _no_direct(config: StreamConfig, version: Version) -> str:
    if version < BATCH_DIRECT_GET:
        return (
            f"stream {config.name} ({config.retention} retention) would be read by batches of direct gets, which need "
            f"a server {version_text(BATCH_DIRECT_GET)} or newer, and this one is {version_text(version)}: upgrade it"
        )
    return (
        f"stream {config.name} ({config.retention} retention) would be read by direct gets, which it does not allow: "
        "set allow_direct on the stream"
    )


def version_text(version: Version) -> str:
    """Return the version as it is written: `2.11.0`."""
    return ".".join(map(str, version))
