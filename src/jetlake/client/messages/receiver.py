"""The receiver of a subscription's messages: the base of everything that receives from a connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import repeat
from typing import ClassVar

from jetlake.client.messages.message import Message
from jetlake.completion import hides
from jetlake.errors import PermissionsError

__all__ = ["Denial", "Receiver"]


@hides(
    "abandon",
    "await_answers",
    "cluster_changed",
    "delivered_before",
    "delivered_max",
    "disconnected",
    "ended",
    "forbidden",
    "needs_ack",
    "receive",
    "receive_answers",
    "receive_run",
    "reconnected",
    "sid",
    "takes_answers",
    "wind_down",
)
class Receiver(ABC):
    """Takes the messages of one subscription, a list for each read of the socket.

    Attributes:
        subject: what is subscribed.
        queue: the queue group; empty for none.
        sid: the number that the connection gave it; empty while it is not subscribed.
        delivered: messages received so far.
        delivered_before: messages received on earlier connections, which the server in use does not count.
        delivered_max: messages after which the subscription ends; 0 for no end.
        takes_answers: many messages are taken by `receive_answers`, without an object for each.
    """

    takes_answers: ClassVar[bool] = False

    __slots__ = ("delivered", "delivered_before", "delivered_max", "queue", "sid", "subject")

    def __init__(self, subject: bytes, queue: bytes = b"") -> None:
        self.subject = subject
        self.queue = queue
        self.sid = b""
        self.delivered = 0
        self.delivered_before = 0
        self.delivered_max = 0

    @property
    def needs_ack(self) -> bool:
        """Whether messages of `receive_run` may wait for their acknowledgement; if not, they come settled."""
        return True

    @abstractmethod
    def receive(self, messages: list[Message]) -> None:
        """Take the messages of one read; the list belongs to the receiver."""

    def receive_run(self, messages: list[Message]) -> None:
        """Take many messages of one read that all have a reply subject."""
        self.receive(messages)

    def receive_answers(self, subjects: list[bytes], payloads: list[bytes]) -> None:
        """Take many messages of one read that have neither reply nor headers, if `takes_answers` says so."""
        nothing = repeat(b"")
        self.receive(list(map(Message, subjects, repeat(self.sid), nothing, nothing, payloads)))

    def ended(self, error: Exception | None) -> None:  # noqa: B027  not every receiver cares
        """End: the connection is closed (by the user when `error` is None), or the server refuses the subscription."""

    async def wind_down(self) -> None:  # noqa: B027  not every receiver cares
        """Drain: end without loss, and return when all received messages are handled."""

    async def await_answers(self) -> None:  # noqa: B027  not every receiver cares
        """Return when all publishes and requests are answered; the client drains, and nothing else receives."""

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:  # noqa: B027  not every receiver cares
        """Learn that the server refused to publish to this subject."""

    def abandon(self) -> None:  # noqa: B027  not every receiver cares
        """Cancel the callbacks that still run: draining took too long."""

    def disconnected(self) -> None:  # noqa: B027  not every receiver cares
        """Learn that the connection was lost; the next one gets the subscription again."""

    def reconnected(self) -> None:  # noqa: B027  not every receiver cares
        """Learn that the subscription is restored on a new connection."""

    def cluster_changed(self) -> None:  # noqa: B027  not every receiver cares
        """Another server joined or left the cluster of the connected one."""


class Denial:
    """The refusal of an inbox, which holds for the connection on which the server refused it."""

    __slots__ = ("_error", "_reconnects")

    def __init__(self) -> None:
        self._error: PermissionsError | None = None
        self._reconnects = 0

    def take(self, error: Exception | None, reconnects: int) -> None:
        """Remember the refusal, if the error is one, for the connection of this number."""
        self._error = error if isinstance(error, PermissionsError) else None
        self._reconnects = reconnects

    def check(self, reconnects: int) -> None:
        """Raise the refusal if it still holds on the connection of this number.

        Raises:
            PermissionsError: the server refused the inbox on this connection.
        """
        if self._error is not None and self._reconnects == reconnects:
            raise self._error
