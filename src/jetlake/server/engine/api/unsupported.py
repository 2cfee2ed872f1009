"""What a stream's configuration may ask for that this server does not do: it says so instead of ignoring it."""

from __future__ import annotations

from jetlake.errors import api_error
from jetlake.model.stream import StreamConfig

__all__ = ["check_supported"]


def check_supported(config: StreamConfig) -> None:
    """Refuse what would otherwise be accepted and not happen.

    Raises:
        ApiError: 10052, naming the feature.
    """
    for is_wanted, feature in (
        (config.mirror is not None, "mirroring another stream"),
        (bool(config.sources), "sourcing from other streams"),
        (config.allow_atomic, "atomic batch publish"),
        (config.allow_batched, "batch publish"),
        (config.allow_msg_schedules, "message schedules"),
    ):
        if is_wanted:
            raise api_error(10052, err=f"{feature} is not supported by this server")
