"""What a client has received and sent."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Statistics", "Traffic"]


class Traffic(Struct):
    """Counters that the parts of a connection add to: once for each read and write, never for each message."""

    messages_received: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    bytes_sent: int = 0


class Statistics(Struct, frozen=True):
    """Messages and bytes received and sent so far, over all TCP connections of a client."""

    messages_received: int
    """Messages for any subscription, answers and statuses included."""
    bytes_received: int
    """Bytes read from servers, protocol included."""
    frames_sent: int
    """Publishes, requests, acknowledgements, subscriptions and pings."""
    bytes_sent: int
    """Bytes written to servers, protocol included."""
    reconnects: int
    """How often the client has reconnected."""
    subscriptions: int
    """Subscriptions that are open now, those for answers included."""
