"""The embedded server: an engine that decides, a shell of sockets and timers around it, and their configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlake.server.config.options import Options as Options
    from jetlake.server.config.options import Permissions as Permissions
    from jetlake.server.config.options import SubjectPermissions as SubjectPermissions
    from jetlake.server.shell.access.function import Access as Access
    from jetlake.server.shell.access.function import ConnectRequest as ConnectRequest
    from jetlake.server.shell.server import Server as Server

__all__ = ["Access", "ConnectRequest", "Options", "Permissions", "Server", "SubjectPermissions"]


def __getattr__(name: str) -> object:
    # Loaded on first use: the engine's modules are imported by many who never open a socket.
    if name == "Server":
        from importlib.util import find_spec

        if find_spec("xxhash") is None:
            # Better now than when the first stream is created.
            raise ImportError("the server needs packages that are not installed: pip install 'jetlake[server]'")
        from jetlake.server.modules import load
        from jetlake.server.shell.server import Server

        load()
        return Server
    if name in ("Options", "Permissions", "SubjectPermissions"):
        from jetlake.server.config import options

        return getattr(options, name)
    if name in ("Access", "ConnectRequest"):
        from jetlake.server.shell.access import function

        return getattr(function, name)
    raise AttributeError(f"module 'jetlake.server' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
