"""The settings in force: the options, with the authenticator and the TLS context made of them."""

from __future__ import annotations

from jetlake.server.config.options import Options
from jetlake.server.shell.access.auth import Authenticator
from jetlake.server.shell.access.tls import server_context

__all__ = ["Settings"]


class Settings:
    """What connections and monitoring are served with at the moment.

    Attributes:
        port: the port that is listened on; 0 before that.
        previous_authenticator: the one before the last reload.

    Args:
        options: the server's options.
        loaded_ns: when they were read.
        connection_type: how clients connect, as `allowed_connection_types` of users names it.

    Raises:
        ConfigError: a certificate that the options name cannot be used.
    """

    def __init__(self, options: Options, loaded_ns: int, connection_type: str = "STANDARD") -> None:
        self.port = 0
        self._connection_type = connection_type
        self.authenticator = Authenticator(options, connection_type)
        self.apply(options, loaded_ns)

    def apply(self, options: Options, loaded_ns: int) -> None:
        """Put new options into force; nothing changes when one of their certificates cannot be used.

        Raises:
            ConfigError: a certificate that the options name cannot be used.
        """
        self.tls_context = server_context(options.tls) if options.tls is not None else None
        self.options = options
        self.previous_authenticator = self.authenticator
        self.authenticator = Authenticator(options, self._connection_type)
        self.loaded_ns = loaded_ns
