"""Direct gets of many messages: one request, a stream of answers, and a status that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Receiver
from jetlake.client.streams.stored_message import StoredMessage, from_direct
from jetlake.errors import DisconnectedError, MessageNotFoundError, NoRespondersError, RequestTimeoutError
from jetlake.model.encoding.codec import encode
from jetlake.model.requests import DirectGetRequest
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

__all__ = ["HINT", "get_batch"]

HINT = "direct gets need a stream with allow_direct=True"
"""What to say when nobody answers one."""


class _Answers(Receiver):
    __slots__ = ("mailbox",)

    def __init__(self, subject: bytes, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(subject)
        self.mailbox = Mailbox(loop)

    def receive(self, messages: list[Message]) -> None:
        self.mailbox.put(messages)

    def ended(self, error: Exception | None) -> None:
        self.mailbox.end(error or DisconnectedError("the connection was closed during the get"))

    def disconnected(self) -> None:
        self.mailbox.end(DisconnectedError("the connection was lost during the get"))


async def get_batch(
    connection: Connection, subject: bytes, request: DirectGetRequest, timeout_s: float
) -> AsyncIterator[StoredMessage]:
    """The messages of one request, as they come.

    Args:
        timeout_s: how long the server may be silent.

    Raises:
        NoRespondersError: the stream does not allow direct gets, or there is none.
        RequestTimeoutError: the server fell silent.
    """
    answers = _Answers(new_inbox(connection.options.inbox_prefix).encode(), connection.loop)
    mailbox = answers.mailbox
    connection.subscribe(answers)
    try:
        connection.send(encoder.pub(subject, answers.subject, encode(request)))
        connection.end_turn()
        while True:
            while mailbox.messages:
                message = mailbox.messages.popleft()
                status = message.status
                if status == 204:
                    return
                if status == 503:
                    raise NoRespondersError(subject.decode(), HINT)
                try:
                    yield from_direct(message, in_batch=True)
                except MessageNotFoundError:
                    return
            if mailbox.is_ended:
                raise mailbox.error or DisconnectedError("the get was cut off")
            try:
                async with asyncio.timeout(timeout_s):
                    await mailbox.wait()
            except TimeoutError:
                raise RequestTimeoutError(f"no answer on {subject.decode()!r} within {timeout_s:g} s") from None
    finally:
        connection.unsubscribe(answers)
