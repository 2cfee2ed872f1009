"""Lame duck mode: a server that leaves takes no more clients and lets those it has go one by one."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["leave_as_lame_duck"]

# Clients leave at least this often, however long the whole may take.
_PAUSE_MAX_S = 1.0


async def leave_as_lame_duck(server: Server, random: Random) -> None:
    """Tell clients to go elsewhere, give them the grace period, close them spread over the duration, and stop."""
    server.log.info("Entering lame duck mode, stop accepting new clients")
    await server.retire()
    for connection in server.connections.values():
        connection.send_info()
    if server.connections:
        grace_s = server.options.lame_duck_grace_period_s
        await server.turns.sleep(grace_s)
        leaving = list(server.connections.values())
        pause_s = min((server.options.lame_duck_duration_s - grace_s) / max(len(leaving), 1), _PAUSE_MAX_S)
        for connection in leaving:
            connection.end(reason="Server Shutdown")
            # Not all at once and not in step: those who leave reconnect somewhere.
            await server.turns.sleep(pause_s * (0.5 + random.random() / 2))
    server.log.info("Initiating Shutdown...")
    await server.stop()
