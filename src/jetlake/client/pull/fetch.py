"""One fetch: awaited it is a list, iterated over it gives messages as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.inbox_pool import PooledInbox
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.pull.fetch_state import FetchState
from jetlake.client.pull.pull_options import FetchOptions
from jetlake.client.pull.pull_status import PullStatus, read_status
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.completion import hides
from jetlake.errors import (
    ConnectionClosedError,
    DisconnectedError,
    JetlakeError,
    NotFoundError,
    PermissionsError,
    RequestTimeoutError,
)
from jetlake.model.encoding.codec import encode
from jetlake.protocol import encoder

__all__ = ["Fetch"]


@hides("disconnected", "ended", "forbidden", "check_deadline", "receive", "receive_run")
class Fetch:
    """Messages that were asked for once.

    `await fetch` gives a list, which may be empty, and whose `ack()` acknowledges all messages at once. `async for
    message in fetch` gives each as it comes. When the fetch ends early for a reason worth knowing, the list form raises
    it if there are no messages, and keeps it in `error` if there are; the iterator raises it after the last message. A
    connection, a leader or heartbeats that are lost are no such reason before the time of the fetch is over: the pull
    is sent again for what is left.

    Attributes:
        error: why the fetch ended early, or None.
        status: the status with which the server ended it, or None.

    Args:
        connection: the connection to the server.
        consumer: the consumer to pull from.
        options: how much, and for how long.
        after: a message of the consumer whose acknowledgement carries the pull.
        is_patient: send a lost pull again, until the time of the fetch is over.
    """

    __slots__ = (
        "_after",
        "_connection",
        "_consumer",
        "_inbox",
        "_is_patient",
        "_mailbox",
        "_options",
        "_reply",
        "_state",
        "_wants_all",
        "error",
    )

    def __init__(
        self,
        connection: Connection,
        consumer: PulledConsumer,
        options: FetchOptions,
        after: Message | None = None,
        *,
        is_patient: bool = True,
    ) -> None:
        self._after = after
        self._connection = connection
        self._is_patient = is_patient
        self._consumer = consumer
        self._options = options
        self._inbox: PooledInbox | None = None
        self._mailbox: Mailbox | None = None
        self._reply = b""
        self._state: FetchState | None = None
        self._wants_all = False
        self.error: Exception | None = None

    @property
    def status(self) -> PullStatus | None:
        """The status with which the server ended it; None when it was filled or still runs."""
        return self._state.status if self._state is not None else None

    @property
    def is_lost(self) -> bool:
        """Whether the pull was lost and not sent again."""
        return self._state is not None and self._state.loss is not None

    def __repr__(self) -> str:
        if self._state is None:
            return f"<Fetch of {self._consumer!r}: await it, or iterate over it>"
        return f"<Fetch of {self._consumer!r} {'ended' if self._state.is_over else 'waiting'}>"

    def __await__(self) -> Generator[Any, None, MessageBatch[Message]]:
        return self._all().__await__()

    async def _all(self) -> MessageBatch[Message]:
        mailbox = self._start()
        self._wants_all = True
        try:
            while not mailbox.is_ended:
                await self._wait()
        except BaseException:
            give_back(mailbox.messages)
            raise
        finally:
            self._finish()
        messages = mailbox.take_all()
        self.error = mailbox.error
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
                await self._wait()
        finally:
            self._finish()
            give_back(messages)
        self.error = mailbox.error
        if self.error is not None:
            raise self.error

    def _start(self) -> Mailbox:
        if self._mailbox is not None:
            raise RuntimeError("a fetch is one pull: call fetch again for the next")
        connection = self._connection
        loop = connection.loop
        self._mailbox = Mailbox(loop)
        self._state = FetchState(
            self._options,
            self._consumer.stream_name,
            self._consumer.name,
            loop.time(),
            connection.options.request_timeout_s,
            self._is_patient,
        )
        self._inbox = connection.inboxes.take(self)
        if connection.is_connected:
            self._pull(self._state, self._inbox)
        else:
            # Whoever calls in a loop and ignores the error must not keep the loop from connecting: `_wait` waits.
            self._state.loss = DisconnectedError("no server is connected")
        return self._mailbox

    def _pull(self, state: FetchState, inbox: PooledInbox) -> None:
        connection = self._connection
        self._reply = inbox.next_reply()
        body = encode(state.next_request(connection.loop.time()))
        if self._after is not None and not self._after.is_settled:
            self._after.settle_by_pull(self._reply, body)
        else:
            connection.send(encoder.pub(self._consumer.pull_subject, self._reply, body))
        connection.end_turn()
        inbox.call_at(state.deadline())

    async def _wait(self) -> None:
        """Wait until something has changed; send a lost pull again."""
        state, mailbox = self._state, self._mailbox
        assert state is not None and mailbox is not None
        if state.loss is None:
            await mailbox.wait()
            return
        try:
            await self._recover(state)
        except (NotFoundError, ConnectionClosedError) as error:
            mailbox.end(error)
        except RequestTimeoutError:
            pass  # Nobody knows the consumer's leader yet; the first loss says more.
        except JetlakeError as error:
            state.loss = error
        if state.loss is not None and self._connection.loop.time() >= state.end_at:
            state.give_up()
            mailbox.end(state.error)

    async def _recover(self, state: FetchState) -> None:
        """Wait for a server and the consumer's leader, then pull for what is left.

        Raises:
            NotFoundError: the consumer is gone.
            JetlakeError: no server or leader was found in time.
        """
        connection = self._connection
        # What the server may still send for the lost pull comes to an inbox that is gone.
        self._release_inbox(reusable=False)
        await asyncio.sleep(min(state.retry_wait_s(), max(0.0, state.end_at - connection.loop.time())))
        await connection.wait_connected(max(0.0, state.end_at - connection.loop.time()))
        if state.is_unavailable:
            try:
                await self._consumer.info(max(0.1, state.end_at - connection.loop.time()))
            except PermissionsError:
                pass  # A client that may not ask may pull all the same.
        if connection.loop.time() < state.end_at:
            self._inbox = connection.inboxes.take(self)
            self._pull(state, self._inbox)

    def _finish(self) -> None:
        """Give the inbox back, or give it up when the server may still send to it."""
        state = self._state
        self._release_inbox(reusable=state is not None and state.is_over and state.error is None and state.loss is None)

    def _release_inbox(self, *, reusable: bool) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._connection.inboxes.put_back(inbox, reusable=reusable)

    # What the inbox calls

    def receive(self, messages: list[Message]) -> None:
        state = self._state
        assert state is not None
        now = self._connection.loop.time()
        for message in messages:
            if not message.raw_reply and message.raw_subject == self._reply:
                state.heard(read_status(message), now)
        self.receive_run([message for message in messages if message.raw_reply])

    def receive_run(self, messages: list[Message]) -> None:
        state, mailbox = self._state, self._mailbox
        assert state is not None and mailbox is not None
        if messages:
            self._consumer.prepare(messages)
            size = sum([message.size for message in messages]) if self._options.max_bytes else 0
            state.received(len(messages), size, mailbox.loop.time())
        if state.is_over:
            mailbox.messages.extend(messages)
            mailbox.end(state.error)
            self._connection.expect_frames()  # Acknowledgements, and the next pull.
        elif state.loss is not None or (messages and not self._wants_all):
            mailbox.put(messages)
        else:
            mailbox.messages.extend(messages)  # The list is handed out when it is whole.

    def ended(self, error: Exception | None) -> None:
        """End the fetch: the connection is closed, or forbids the inbox."""
        if self._mailbox is not None:
            self._mailbox.end(error or DisconnectedError("the connection was closed during the fetch"))

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        """End the fetch if the server refused to publish to the subject of its pulls."""
        if subject == self._consumer.pull_subject:
            self.ended(error)

    def disconnected(self) -> None:
        """Take note that the connection was lost, and with it the answers."""
        state, mailbox = self._state, self._mailbox
        assert state is not None and mailbox is not None
        state.lose(DisconnectedError("the connection was lost during the fetch"), mailbox.loop.time())
        self._tell(state, mailbox)

    def _tell(self, state: FetchState, mailbox: Mailbox) -> None:
        if state.is_over:
            mailbox.end(state.error)
        else:
            mailbox.wake()

    def check_deadline(self) -> None:
        """End the fetch, or send its pull again, if the server is silent for too long."""
        state, mailbox, inbox = self._state, self._mailbox, self._inbox
        assert state is not None and mailbox is not None and inbox is not None
        state.expire(mailbox.loop.time())
        if state.is_over or state.loss is not None:
            # The server did not end the pull itself, so it may yet send to this inbox: do not use it again.
            self._release_inbox(reusable=False)
            self._tell(state, mailbox)
        else:
            inbox.call_at(state.deadline())
