"""The receiver of many answers to one request: a mailbox with a subject of its own."""

from __future__ import annotations

import asyncio

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Receiver
from jetlake.errors import DisconnectedError, RequestTimeoutError
from jetlake.protocol.nuid import new_inbox

__all__ = ["Answers"]


class Answers(Receiver):
    """The answers to one request; usable in a `with` block, which subscribes and unsubscribes.

    Args:
        connection: where the answers come from.
        during: what a lost connection cuts off, for the error.
    """

    __slots__ = ("_connection", "_during", "mailbox")

    def __init__(self, connection: Connection, during: str) -> None:
        super().__init__(new_inbox(connection.options.inbox_prefix).encode())
        self._connection = connection
        self._during = during
        self.mailbox = Mailbox(connection.loop)

    def __enter__(self) -> Answers:
        self._connection.subscribe(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.unsubscribe(self)

    def receive(self, messages: list[Message]) -> None:
        self.mailbox.put(messages)

    def ended(self, error: Exception | None) -> None:
        self.mailbox.end(error or DisconnectedError(f"the connection was closed during the {self._during}"))

    def disconnected(self) -> None:
        self.mailbox.end(DisconnectedError(f"the connection was lost during the {self._during}"))

    async def next(self, timeout_s: float, subject: str) -> Message:
        """Return the next answer.

        Args:
            timeout_s: how long the server may be silent.
            subject: where the request went, for the error.

        Raises:
            RequestTimeoutError: the server fell silent.
            DisconnectedError: the connection was lost.
        """
        mailbox = self.mailbox
        while not mailbox.messages:
            if mailbox.is_ended:
                raise mailbox.error or DisconnectedError(f"the {self._during} was cut off")
            try:
                async with asyncio.timeout(timeout_s):
                    await mailbox.wait()
            except TimeoutError:
                raise RequestTimeoutError(f"no answer on {subject!r} within {timeout_s:g} s") from None
        return mailbox.messages.popleft()
