"""The settings in force: the options, with the authenticator and the TLS context made of them."""

from __future__ import annotations

from jetlake.server.config.options import Options
from jetlake.server.shell.access.auth import Authenticator
from jetlake.server.shell.access.tls import server_context

__all__ = ["Settings"]


class Settings:
    """What connections and monitoring are served with at the moment.

    Args:
        options: the server's options.
        loaded_ns: when they were read.

    Raises:
        ConfigError: a certificate that the options name cannot be used.
    """

    def __init__(self, options: Options, loaded_ns: int) -> None:
        self.apply(options, loaded_ns)

    def apply(self, options: Options, loaded_ns: int) -> None:
        """Put new options into force; nothing changes when one of their certificates cannot be used.

        Raises:
            ConfigError: a certificate that the options name cannot be used.
        """
        self.tls_context = server_context(options.tls) if options.tls is not None else None
        self.options = options
        self.authenticator = Authenticator(options)
        self.loaded_ns = loaded_ns
