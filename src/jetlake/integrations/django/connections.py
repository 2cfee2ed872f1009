"""The connection of a process, made when it is first used, with the options of the setting JETLAKE."""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

import jetlake.blocking
from jetlake.errors import InvalidOptionError

_client: jetlake.blocking.Client | None = None
_opening = threading.Lock()


def client() -> jetlake.blocking.Client:
    """Return this process's client, which all its threads share.

    Raises:
        ImproperlyConfigured: the setting JETLAKE makes no sense.
        NoServersError: no server could be reached.
    """
    global _client
    with _opening:
        # A client is closed in a process that was forked from the one that made it.
        if _client is None or _client.is_closed:
            options = getattr(settings, "JETLAKE", {})
            try:
                _client = jetlake.blocking.connect(**{"name": "django", **options})
            except (TypeError, InvalidOptionError) as error:
                raise ImproperlyConfigured(f"the setting JETLAKE has options of jetlake.connect: {error}") from None
        return _client


def jetstream() -> jetlake.blocking.JetStream:
    """Return the JetStream context of this process's client."""
    return client().jetstream()


def publish_on_commit(subject: str, payload: bytes, *, using: str | None = None, **options: Any) -> None:
    """Publish when the transaction has been committed, and not at all when it is rolled back; at once without one.

    A process that dies between the commit and the publish does not publish.

    Args:
        subject: the subject of a stream.
        payload: the message.
        using: the database's alias.
        options: further options of `publish`, such as `msg_id` and `headers`.
    """
    transaction.on_commit(partial(_publish, subject, payload, options), using=using)


def _publish(subject: str, payload: bytes, options: dict[str, Any]) -> None:
    jetstream().publish(subject, payload, **options)


def close() -> None:
    """Send what is queued and close this process's client; the next use connects again."""
    global _client
    with _opening:
        closing, _client = _client, None
    if closing is not None and not closing.is_closed:
        closing.close()


def _forked() -> None:
    global _opening
    _opening = threading.Lock()  # A thread of the parent may have held it at the moment of the fork.


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
