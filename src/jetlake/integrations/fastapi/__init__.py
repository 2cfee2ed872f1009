"""JetStream in a FastAPI or Starlette application: lifespan, dependency, background workers that drain at shutdown.

::

    from jetlake.integrations.fastapi import Messaging

    messaging = Messaging("nats://localhost:4222")
    app = FastAPI(lifespan=messaging.lifespan)
"""

from __future__ import annotations

from jetlake.integrations.fastapi.messaging import Messaging

__all__ = ["Messaging"]


def __dir__() -> list[str]:
    return sorted(__all__)
