"""Celery on JetStream: the broker `jetstream://` and the result backend `jetstream://`.

::

    import jetlake.integrations.celery
    from celery import Celery

    app = Celery("shop", broker="jetstream://localhost:4222", backend="jetstream://localhost:4222")

Importing this package makes both addresses known to kombu and Celery; transport and backend are loaded when used.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("celery") is None:
    raise ImportError("Celery on JetStream needs packages that are not installed: pip install 'jetlake[celery]'")

from celery.app.backends import BACKEND_ALIASES
from kombu.transport import TRANSPORT_ALIASES

from jetlake.integrations.celery.development import development_server

__all__ = ["close_connections", "development_server"]

TRANSPORT_ALIASES["jetstream"] = "jetlake.integrations.celery.transport:Transport"
BACKEND_ALIASES["jetstream"] = "jetlake.integrations.celery.backend:JetStreamBackend"


def close_connections() -> None:
    """Close this process's connections to results, as at its end; whatever is used afterwards connects again."""
    from jetlake.integrations.celery import backend

    backend.close_connections()


def __dir__() -> list[str]:
    return sorted(__all__)
