"""JetStream in a Django project: one connection a process, workers as a management command, a server for tests.

::

    INSTALLED_APPS = [..., "jetlake.integrations.django"]
    JETLAKE = {"servers": "nats://localhost:4222"}      # options of jetlake.connect
"""

from __future__ import annotations

from jetlake.integrations.django.connections import client, close, jetstream, publish_on_commit
from jetlake.integrations.django.workers import worker

__all__ = ["client", "close", "jetstream", "publish_on_commit", "worker"]


def __dir__() -> list[str]:
    return sorted(__all__)
