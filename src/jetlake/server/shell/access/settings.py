"""The settings in force: the options, with the authenticator and the TLS context made of them."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.server.config.options import Options
from jetlake.server.shell.access.auth import Authentication, Authenticator
from jetlake.server.shell.access.tls import server_context

__all__ = ["Settings"]


class Settings:
    """What connections and monitoring are served with at the moment.

    Attributes:
        port: the port that is listened on; 0 before that.
        connection_type: how clients connect, as `allowed_connection_types` of users names it.
        previous_authenticator: the one before the last reload.

    Args:
        options: the server's options.
        loaded_ns: when they were read.
        connection_type: as the attribute.
        make_authenticator: makes the check of credentials for options and a connection type.

    Raises:
        ConfigError: a certificate that the options name cannot be used.
    """

    def __init__(
        self,
        options: Options,
        loaded_ns: int,
        connection_type: str = "STANDARD",
        make_authenticator: Callable[[Options, str], Authentication] = Authenticator,
    ) -> None:
        self.port = 0
        self.connection_type = connection_type
        self.make_authenticator = make_authenticator
        self.authenticator = make_authenticator(options, connection_type)
        self.apply(options, loaded_ns)

    def for_listener(self, options: Options, connection_type: str) -> Settings:
        """Return the settings of another listener of the same server, whose clients are checked in the same way."""
        return Settings(options, self.loaded_ns, connection_type, self.make_authenticator)

    def apply(self, options: Options, loaded_ns: int) -> None:
        """Put new options into force; nothing changes when one of their certificates cannot be used.

        Raises:
            ConfigError: a certificate that the options name cannot be used.
        """
        self.tls_context = server_context(options.tls) if options.tls is not None else None
        self.options = options
        self.previous_authenticator = self.authenticator
        self.authenticator = self.make_authenticator(options, self.connection_type)
        self.loaded_ns = loaded_ns
