"""Which server this one speaks like, and how it names itself."""

from __future__ import annotations

from jetlake.version import __version__

__all__ = ["API_LEVEL", "COMPATIBLE_VERSION", "JETLAKE_VERSION", "PROTOCOL"]

COMPATIBLE_VERSION = "2.15.1"
"""The nats-server whose behaviour is kept; clients open their features by this number in INFO."""

API_LEVEL = 5
"""The level of the JetStream API that is served."""

PROTOCOL = 1
"""The version of the client protocol."""

JETLAKE_VERSION = __version__
