"""How often a message whose handler failed is tried again, and where it goes when it is given up."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from jetlake.client.settings.options import duration_s
from jetlake.client.settings.wire_values import publish_subject
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.dead_letter import letter_subject
from jetlake.model.encoding.durations import Seconds
from jetlake.model.enums import AckPolicy

__all__ = ["Backoff", "RetryOptions", "retry_options"]

Backoff = Seconds | Iterable[Seconds]
"""Seconds before each retry; the last one repeats."""

_RETRIES = 3
_BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


class RetryOptions(Struct, frozen=True):
    """The retries of a read with a handler.

    Attributes:
        retries: how often a message is tried again.
        backoff_s: seconds before each retry; the last one repeats.
        dead_letter: the subject that messages go to which are given up; empty for none.
    """

    retries: int
    backoff_s: tuple[float, ...]
    dead_letter: str

    def is_last(self, delivered: int) -> bool:
        """Return whether a message that failed in this delivery is given up."""
        return delivered > self.retries

    def delay_s(self, delivered: int) -> float:
        """Return the seconds to wait after this delivery."""
        return self.backoff_s[min(delivered, len(self.backoff_s)) - 1]


def retry_options(
    config: ConsumerConfig, retries: int | None, backoff: Backoff | None, dead_letter: str | None
) -> RetryOptions | None:
    """Check what `consume` was given; None when it was given nothing.

    Raises:
        InvalidOptionError: an option that cannot work, or a consumer that gives up first.
    """
    if retries is None and backoff is None and dead_letter is None:
        return None
    if config.ack_policy is not AckPolicy.EXPLICIT:
        raise InvalidOptionError(f"retries need ack_policy explicit; {config.name!r} has {config.ack_policy.value}")
    count = _RETRIES if retries is None else retries
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidOptionError(f"retries is a whole number of 0 or more, not {retries!r}")
    if 0 < config.max_deliver <= count + 1:
        raise InvalidOptionError(
            f"the consumer {config.name!r} gives a message up after max_deliver={config.max_deliver} deliveries, "
            f"before {count} retries and one more after a crash are over: use max_deliver=-1 or {count + 2} and more"
        )
    if backoff is None:
        waits = tuple(wait / 1e9 for wait in config.backoff) or _BACKOFF_S
    else:
        waits = tuple(_waits(backoff))
        if not waits or min(waits) < 0:
            raise InvalidOptionError(f"backoff is seconds of 0 or more, or a list of them, not {backoff!r}")
    subject = ""
    if dead_letter is not None:
        subject = letter_subject(dead_letter, "STREAM", "CONSUMER")
        publish_subject(subject)
    return RetryOptions(count, waits, dead_letter or "")


def _waits(backoff: Backoff) -> list[float]:
    if isinstance(backoff, Iterable) and not isinstance(backoff, (str, bytes)):
        return [duration_s("backoff", wait) for wait in backoff]
    return [duration_s("backoff", backoff)]  # type: ignore[arg-type]
