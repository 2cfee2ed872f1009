"""How a streaming query gives finished batches back, by the stream's retention policy.

Pure: the stream's configuration, the server's version and the options in; a choice or a reason out.
"""

from __future__ import annotations

from jetlake.client.tables.plan.reader_choice import Version, version_text
from jetlake.errors import UnsupportedStreamError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig
from jetlake.spark.options.source_options import SourceOptions

__all__ = ["choose_release"]

CONSUMER_RESET: Version = (2, 14, 0)


def choose_release(config: StreamConfig, version: Version, options: SourceOptions) -> str:
    """Return how a streaming query gives a finished batch back: `none`, `purge`, `reset` or `ack`.

    Raises:
        UnsupportedStreamError: there is no way that keeps the guarantee, with what to change.
    """
    name = config.name
    if config.retention is RetentionPolicy.LIMITS:
        if options.guarantee == "atLeastOnce":
            raise UnsupportedStreamError(
                f"stream {name} has limits retention, which is always read exactly once: leave option guarantee away"
            )
        return "none"
    if options.guarantee == "atLeastOnce":
        return "ack"
    if config.retention is RetentionPolicy.WORKQUEUE:
        if config.deny_purge or config.sealed:
            raise UnsupportedStreamError(
                f"work queue {name} does not allow purging, by which finished batches leave it: "
                "allow it, or use option guarantee=atLeastOnce"
            )
        return "purge"
    if version < CONSUMER_RESET:
        raise UnsupportedStreamError(
            f"stream {name} has interest retention; to release finished batches the server must be "
            f"{version_text(CONSUMER_RESET)} or newer and is {version_text(version)}: upgrade it, "
            "or use option guarantee=atLeastOnce"
        )
    return "reset"
