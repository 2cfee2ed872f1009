"""The options of a worker, checked where the worker is declared: its consumer may not be there yet."""

from __future__ import annotations

from inspect import signature
from typing import Any

from jetlake.client import Consumer
from jetlake.client.pull.options import consume_options, retry_options
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import AckPolicy

_OPTIONS = {*signature(Consumer.consume).parameters} - {"self", "handler", "on_error"}
_RETRIES = ("retries", "backoff", "dead_letter")
_CHECKED = {*signature(consume_options).parameters} - {"group", "on_error", "retries"}


def worker_options(concurrency: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `Consumer.consume` for a worker, which fetches no more ahead than it handles at once.

    What depends on the consumer, such as its priority group, is checked when the worker starts.

    Raises:
        InvalidOptionError: an option that no consumer takes.
    """
    unknown = sorted(set(given) - _OPTIONS)
    if unknown:
        raise InvalidOptionError(f"a worker has no option {unknown[0]!r}; it takes {', '.join(sorted(_OPTIONS))}")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidOptionError(f"concurrency must be 1 or more, not {concurrency!r}")
    consume_options(**{name: value for name, value in given.items() if name in _CHECKED})
    retry_options(ConsumerConfig(ack_policy=AckPolicy.EXPLICIT), *(given.get(name) for name in _RETRIES))
    limit = {} if "max_bytes" in given else {"max_messages": concurrency}
    return {**limit, "concurrency": concurrency, **given}
