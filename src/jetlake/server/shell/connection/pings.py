"""Pings: how a connection finds out that its client is alive, and how far away the client is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.protocol.encoder import PING
from jetlake.server.engine.core.timers import Timer
from jetlake.server.shell.connection.gone import GONE
from jetlake.server.shell.connection.services import ConnectionServices

if TYPE_CHECKING:
    from jetlake.server.shell.connection.peer_connection import PeerConnection

__all__ = ["PingTimer"]

# The first ping comes soon, to learn the round-trip time.
_FIRST_PING_S = 2.0

_SECOND_NS = 1_000_000_000


class PingTimer:
    """Pings an idle peer, and ends the connection of one that leaves too many pings unanswered.

    Attributes:
        last_activity_ns: when the client last sent anything.
        rtt_ns: the round-trip time; 0 = not known yet.
    """

    def __init__(self, connection: PeerConnection, services: ConnectionServices) -> None:
        self.last_activity_ns = services.clock.now_ns()
        self.rtt_ns = 0
        self._peer = connection.peer
        self._writer = connection.writer
        self._connection = connection
        self._settings = services.settings
        self._clock = services.clock
        self._log = services.log
        self._timers = services.engine_loop.timers
        self._statistics = services.statistics
        self._unanswered = 0
        self._sent_ns = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Schedule the first ping."""
        self._schedule(min(self._settings.options.ping_interval_s, _FIRST_PING_S))

    def close(self) -> None:
        """Send no more pings."""
        self._timers.cancel(self._timer)

    def detach(self) -> None:
        """Release the connection, which is gone."""
        self._connection = GONE

    def take_pong(self) -> None:
        """Handle PONG."""
        self._unanswered = 0
        if self._sent_ns:
            self.rtt_ns = max(self._clock.now_ns() - self._sent_ns, 1)

    def _schedule(self, delay_s: float) -> None:
        self._timer = self._timers.schedule(self._clock.now_ns() + int(delay_s * _SECOND_NS), self._ping)

    def _ping(self, now_ns: int) -> None:
        options = self._settings.options
        is_active = now_ns - self.last_activity_ns < options.ping_interval_s * _SECOND_NS
        if not is_active or not self.rtt_ns:
            if self._unanswered >= options.ping_max:
                self._statistics.stale_connections += 1
                self._log.debug(f"{self._peer} - Stale Client Connection - Closing")
                self._connection.end("Stale Connection", reason="Stale Connection")
                return
            if not self._connection.is_mute:
                self._unanswered += 1
                self._sent_ns = now_ns
                self._writer.send(PING)
        self._schedule(options.ping_interval_s)
