"""OpenTelemetry: spans of messages that are published, delivered and handled, joined by W3C headers, and metrics.

::

    from jetlake.otel import Tracing

    async with jetlake.connect(url, tracing=Tracing()) as nc:
        ...
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("opentelemetry") is None:
    raise ImportError("tracing needs packages that are not installed: pip install 'jetlake[otel]'")

from jetlake.otel.tracing import Tracing

__all__ = ["Tracing"]


def __dir__() -> list[str]:
    return sorted(__all__)
