"""The server as the system account knows it."""

from __future__ import annotations

from typing import Protocol

from jetlake.server.shell.monitoring.server_view import ServerView

__all__ = ["ServerControl"]


class ServerControl(ServerView, Protocol):
    """What the system account may see of the server and do to it."""

    def reload_configuration(self) -> list[str]:
        """Read the configuration again and take over what has changed; return the names.

        Raises:
            JetlakeError: there is no file to read, or its changes cannot be taken over.
        """
        ...
