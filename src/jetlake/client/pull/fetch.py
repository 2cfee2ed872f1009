"""One fetch: awaited it is a list, iterated over it gives messages as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.inbox_pool import PooledInbox
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.pull.fetch_state import FetchState
from jetlake.client.pull.pull_options import FetchOptions
from jetlake.client.pull.pull_status import PullStatus, read_status
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.errors import DisconnectedError, PermissionsError, PullStatusError
from jetlake.model.encoding.codec import encode
from jetlake.protocol import encoder

__all__ = ["Fetch"]


class Fetch:
    """Messages of one pull.

    `await fetch` gives a list, which may be empty. `async for message in fetch` gives each as it comes. When the fetch
    ends early for a reason worth knowing, the list form raises it if there are no messages, and keeps it in `error` if
    there are; the iterator raises it after the last message.

    Attributes:
        error: why the fetch ended early, or None.
        status: the status with which the server ended it, or None.

    Args:
        connection: the connection to the server.
        consumer: the consumer to pull from.
        options: how much, and for how long.
        after: a message of the consumer whose acknowledgement carries the pull.
    """

    __slots__ = (
        "_after",
        "_connection",
        "_consumer",
        "_inbox",
        "_mailbox",
        "_options",
        "_reply",
        "_state",
        "_timer",
        "error",
    )

    def __init__(
        self, connection: Connection, consumer: PulledConsumer, options: FetchOptions, after: Message | None = None
    ) -> None:
        self._after = after
        self._connection = connection
        self._consumer = consumer
        self._options = options
        self._inbox: PooledInbox | None = None
        self._mailbox: Mailbox | None = None
        self._reply = b""
        self._state: FetchState | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.error: Exception | None = None

    @property
    def status(self) -> PullStatus | None:
        """The status with which the server ended it; None when it was filled or still runs."""
        return self._state.status if self._state is not None else None

    def __repr__(self) -> str:
        if self._state is None:
            return f"<Fetch of {self._consumer!r}: await it, or iterate over it>"
        return f"<Fetch of {self._consumer!r} {'ended' if self._state.is_over else 'waiting'}>"

    def __await__(self) -> Generator[Any, None, list[Message]]:
        return self._all().__await__()

    async def _all(self) -> list[Message]:
        mailbox = self._start()
        try:
            while not mailbox.is_ended:
                await mailbox.wait()
        except BaseException:
            give_back(mailbox.messages)
            raise
        finally:
            self._finish()
        messages = mailbox.take_all()
        self.error = mailbox.error or await self._unavailable()
        if self.error is not None and not messages:
            raise self.error
        return messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        mailbox = self._start()
        messages = mailbox.messages
        try:
            while True:
                while messages:
                    yield messages.popleft()
                if mailbox.is_ended:
                    break
                await mailbox.wait()
        finally:
            self._finish()
            give_back(messages)
        self.error = mailbox.error or await self._unavailable()
        if self.error is not None:
            raise self.error

    def _start(self) -> Mailbox:
        if self._mailbox is not None:
            raise RuntimeError("a fetch is one pull: call fetch again for the next")
        connection = self._connection
        connection.check_connected()
        loop = connection.loop
        self._mailbox = Mailbox(loop)
        self._state = FetchState(self._options, self._consumer.stream_name, self._consumer.name, loop.time())
        self._inbox = connection.inboxes.take(self)
        self._reply = self._inbox.next_reply()
        body = encode(self._options.request())
        if self._after is not None and not self._after.is_settled:
            self._after.settle_by_pull(self._reply, body)
        else:
            connection.send(encoder.pub(self._consumer.pull_subject, self._reply, body))
        connection.end_turn()
        self._timer = loop.call_at(self._state.deadline(), self._look)
        return self._mailbox

    def _finish(self) -> None:
        """Give the inbox back, or give it up when the server may still send to it."""
        if self._timer is not None:
            self._timer.cancel()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            over = self._state is not None and self._state.is_over and self._state.error is None
            self._connection.inboxes.put_back(inbox, reusable=over)

    async def _unavailable(self) -> Exception | None:
        """Nobody answered: find out why."""
        if self._state is None or not self._state.is_unavailable:
            return None
        try:
            await self._consumer.info()
        except Exception as error:
            return error
        return PullStatusError(503, "No Responders")

    # What the inbox calls

    def receive(self, messages: list[Message]) -> None:
        state, mailbox = self._state, self._mailbox
        assert state is not None and mailbox is not None
        now = mailbox.loop.time()
        for position, message in enumerate(messages):
            if not message.raw_reply:
                taken = messages[:position]
                for message in messages[position:]:
                    if message.raw_reply:
                        taken.append(message)
                    elif message.raw_subject == self._reply:
                        state.heard(read_status(message), now)
                messages = taken
                break
        if messages:
            self._consumer.prepare(messages)
            size = sum([message.size for message in messages]) if self._options.max_bytes else 0
            state.received(len(messages), size, now)
        if state.is_over:
            mailbox.messages.extend(messages)
            mailbox.end(state.error)
        elif messages:
            mailbox.put(messages)

    def ended(self, error: Exception | None) -> None:
        """The connection is gone, or forbids it."""
        if self._mailbox is not None:
            self._mailbox.end(error or DisconnectedError("the connection was closed during the fetch"))

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        """The server refused to publish to the subject; if pulls go there, the fetch is over."""
        if subject == self._consumer.pull_subject:
            self.ended(error)

    def disconnected(self) -> None:
        """The connection was lost, and with it the answers."""
        self.ended(DisconnectedError("the connection was lost during the fetch"))

    def _look(self) -> None:
        state, mailbox = self._state, self._mailbox
        assert state is not None and mailbox is not None
        state.expire(mailbox.loop.time())
        if state.is_over:
            self._state_late()
            mailbox.end(state.error)
        else:
            self._timer = mailbox.loop.call_at(state.deadline(), self._look)

    def _state_late(self) -> None:
        """The server did not end the pull itself, so it may yet send to this inbox: do not use it again."""
        if self._inbox is not None:
            inbox, self._inbox = self._inbox, None
            self._connection.inboxes.put_back(inbox, reusable=False)
