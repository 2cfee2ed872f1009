"""JetStream for Python: an embedded server, a client, and data pipelines on Apache Spark.

The public names are loaded when they are first used, so that importing the client never pays for the server or Spark.
All errors are in `jetlake.errors`; the ones that most programs catch are here too.
"""

from __future__ import annotations

from jetlake.version import __version__

# Where each public name lives.
_HOMES = {
    "connect": "jetlake.client",
    "Client": "jetlake.client",
    "Server": "jetlake.server",
    "ApiError": "jetlake.errors",
    "DisconnectedError": "jetlake.errors",
    "JetlakeError": "jetlake.errors",
    "NoRespondersError": "jetlake.errors",
    "NotFoundError": "jetlake.errors",
    "RequestTimeoutError": "jetlake.errors",
}

__all__ = [
    "ApiError",
    "Client",
    "DisconnectedError",
    "JetlakeError",
    "NoRespondersError",
    "NotFoundError",
    "RequestTimeoutError",
    "Server",
    "__version__",
    "connect",
]

# As type checkers know it; `typing` itself takes longer to load than all else before a command begins.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from jetlake.client import Client as Client
    from jetlake.client import connect as connect
    from jetlake.errors import ApiError as ApiError
    from jetlake.errors import DisconnectedError as DisconnectedError
    from jetlake.errors import JetlakeError as JetlakeError
    from jetlake.errors import NoRespondersError as NoRespondersError
    from jetlake.errors import NotFoundError as NotFoundError
    from jetlake.errors import RequestTimeoutError as RequestTimeoutError
    from jetlake.server import Server as Server


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jetlake' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
