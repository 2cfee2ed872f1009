"""How Celery's queues are kept in JetStream: names, streams, consumers, and the address of the server.

A queue is a work queue stream. A task is stored under the subject of its priority, or, with an ETA, as a schedule that
the server publishes to that subject when it is due. Each level of priority has one durable consumer, which all workers
share:

    stream celery_mail     subjects  celery.mail.>
                           tasks     celery.mail.p9  celery.mail.p6  celery.mail.p3  celery.mail.p0
                           schedules celery.mail.eta.<id>
                           consumers p9 p6 p3 p0

What is broadcast to the exchange celery.pidbox goes to the subject `celery_broadcast.celery=2Epidbox`, which no stream
stores.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from jetlake.client.settings.options import build_options
from jetlake.errors import ConfigError, InvalidOptionError

_DEFAULT_PREFIX = "celery"
_PORT = 4222


@dataclass(frozen=True)
class QueueOptions:
    """What `broker_transport_options` says about queues, validated.

    Attributes:
        prefix: the beginning of every stream's name and subject; the path of the broker's URL.
        visibility_timeout_s: seconds after which the tasks of a worker that died go to another one.
        priority_steps: levels of priority; a task goes to the highest that is not above its own priority.
        replicas: copies of every queue in a cluster.
    """

    prefix: str = _DEFAULT_PREFIX
    visibility_timeout_s: float = 30.0
    priority_steps: tuple[int, ...] = (0, 3, 6, 9)
    replicas: int = 1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.prefix):
            raise ConfigError(
                f"the path of the URL is the prefix of stream names: letters, digits and '-', not {self.prefix!r}"
            )
        if not _is_number(self.visibility_timeout_s) or not 1 <= self.visibility_timeout_s < math.inf:
            raise ConfigError(f"visibility_timeout must be 1 second or more, not {self.visibility_timeout_s!r}")
        steps = self.priority_steps
        if not steps or steps[0] != 0 or list(steps) != sorted(set(steps)) or steps[-1] > 255:
            raise ConfigError(f"priority_steps are ascending numbers from 0 to 255 that begin with 0, not {steps!r}")
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int) or self.replicas < 1:
            raise ConfigError(f"replicas must be 1 or more, not {self.replicas!r}")

    @classmethod
    def of(cls, virtual_host: str | None, options: dict[str, Any]) -> QueueOptions:
        """Build them from the path of the URL and the transport's options.

        Raises:
            ConfigError: a value makes no sense.
        """
        steps = options.get("priority_steps", cls.priority_steps)
        try:
            steps = tuple(int(step) for step in steps)
        except (TypeError, ValueError):
            raise ConfigError(f"priority_steps must be a list of numbers, not {steps!r}") from None
        return cls(
            prefix=(virtual_host or "").strip("/") or _DEFAULT_PREFIX,
            visibility_timeout_s=options.get("visibility_timeout", cls.visibility_timeout_s),
            priority_steps=steps,
            replicas=options.get("replicas", cls.replicas),
        )

    def level(self, priority: object) -> int:
        """Return the level of a task's priority: the highest step that is not above it."""
        wanted = priority if isinstance(priority, int) else 0
        return max([step for step in self.priority_steps if step <= wanted], default=0)

    def stream(self, queue: str) -> str:
        """Return the name of a queue's stream."""
        return f"{self.prefix}_{token(queue)}"

    def subject(self, queue: str, *tokens: str) -> str:
        """Return a subject of a queue's stream."""
        return ".".join([self.prefix, token(queue), *tokens])

    def broadcast_subject(self, exchange: str) -> str:
        """Return the subject of what is broadcast to an exchange. No queue's subject begins like it."""
        return f"{self.prefix}_broadcast.{token(exchange)}"


def server_url(host: str | None, port: int | None, user: str | None, password: str | None, *, tls: bool) -> str:
    """Return the address for `jetlake.connect`, from the parts into which kombu and Celery take a URL."""
    login = ""
    if user:
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"
    shown = f"[{host}]" if host and ":" in host else host or "localhost"
    return f"{'tls' if tls else 'nats'}://{login}{shown}:{port or _PORT}"


def connect_options(given: Any) -> dict[str, Any]:
    """Return the options that a user gives for `jetlake.connect`, besides the address.

    Raises:
        ConfigError: it does not take them.
    """
    try:
        build_options(f"nats://localhost:{_PORT}", **given)
    except (TypeError, InvalidOptionError) as error:
        raise ConfigError(f"'connect' has options of jetlake.connect: {error}") from None
    return dict(given)


def due_at(message: dict[str, Any], now: datetime) -> datetime | None:
    """Return when a task is due, or None if it is due already or has no ETA."""
    eta = message["headers"].get("eta")
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None  # The worker reports it, with the task's name.
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    return due if due > now else None


def token(name: str) -> str:
    """Return a name as a subject token: characters other than letters, digits, `-` and `_` become `=` and their code.

    Raises:
        ConfigError: the name is empty, or cannot be encoded.
    """
    if not name:
        raise ConfigError("a queue, an exchange or a task id needs a name that is not empty")
    try:
        return re.sub(
            r"[^A-Za-z0-9_-]", lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), name, flags=re.ASCII
        )
    except UnicodeEncodeError:
        raise ConfigError(f"the name {name!r} is not valid UTF-8") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
