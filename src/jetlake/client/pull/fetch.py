"""One fetch: awaited it is a list of messages, iterated over it yields each message when it arrives.

`Fetch` sends pulls and receives; `FetchState` below decides, without I/O: what to request, when to send a lost pull
again, when the fetch is complete, and why it ended. A fetch has one pull under way at a time. An inbox goes back to the
pool only after the server itself ended the pull; in every other case the server may still send to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.inboxes import PooledInbox
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.messages.ready import Deferred
from jetlake.client.pull.options import FetchOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify, read_status
from jetlake.completion import hides
from jetlake.errors import (
    ConnectionClosedError,
    ConsumerDeletedError,
    DisconnectedError,
    HeartbeatMissedError,
    JetlakeError,
    NotFoundError,
    PermissionsError,
    PullStatusError,
    RequestTimeoutError,
)
from jetlake.model.encoding.codec import encode
from jetlake.model.requests import PullRequest
from jetlake.protocol import encoder

if TYPE_CHECKING:
    from jetlake.client.pull.consumer import Consumer


@hides("disconnected", "ended", "forbidden", "check_deadline", "receive", "receive_run")
class Fetch(Deferred[MessageBatch[Message]]):
    """Messages of one request.

    `await fetch` gives a list, which may be empty, and whose `ack()` acknowledges all messages at once. `async for
    message in fetch` gives each as it comes. When the fetch ends early for a reason worth knowing, the list form raises
    it if there are no messages, and keeps it in `error` if there are; the iterator raises it after the last message. A
    lost connection, a lost leader or missed heartbeats are no such reason before the time of the fetch is over: the
    pull is sent again for the missing messages.

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
        consumer: Consumer,
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
        """The status with which the server ended the fetch; None if it was filled or is still running."""
        return self._state.status if self._state is not None else None

    @property
    def is_lost(self) -> bool:
        """Whether the pull was lost and not sent again."""
        return self._state is not None and self._state.loss is not None

    def __repr__(self) -> str:
        name = f"{self._consumer.name!r} of {self._consumer.stream_name!r}"
        if self._state is None:
            return f"<Fetch of {name}: await it, or iterate over it>"
        return f"<Fetch of {name} {'ended' if self._state.is_over else 'waiting'}>"

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
            raise RuntimeError("a fetch can be read only once: call fetch again")
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
            # `_wait` waits: a caller that fetches in a loop and ignores errors must not keep the loop from connecting.
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
            pass  # The consumer has no leader yet; the first loss is the better error.
        except JetlakeError as error:
            state.loss = error
        if state.loss is not None and self._connection.loop.time() >= state.end_at:
            state.give_up()
            mailbox.end(state.error)

    async def _recover(self, state: FetchState) -> None:
        """Wait for a server and the consumer's leader, then pull for the missing messages.

        Raises:
            NotFoundError: the consumer is gone.
            JetlakeError: no server or leader was found in time.
        """
        connection = self._connection
        # Messages that the server may still send for the lost pull come to an inbox that is gone.
        self._release_inbox(reusable=False)
        await asyncio.sleep(min(state.retry_wait_s(), max(0.0, state.end_at - connection.loop.time())))
        await connection.wait_connected(max(0.0, state.end_at - connection.loop.time()))
        if state.is_unavailable:
            try:
                await self._consumer.info_within(max(0.1, state.end_at - connection.loop.time()))
            except PermissionsError:
                pass  # A user without permission for CONSUMER.INFO may have one for pulls.
        if connection.loop.time() < state.end_at:
            # sometimes: a fetch asks again for what is missing
            self._inbox = connection.inboxes.take(self)
            self._pull(state, self._inbox)

    def _finish(self) -> None:
        """Return the inbox to the pool, or drop it when the server may still send to it."""
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
            self._mailbox.end(error or ConnectionClosedError("the connection was closed during the fetch"))

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        """End the fetch if the server refused to publish to the subject of its pulls."""
        if subject == self._consumer.pull_subject:
            self.ended(error)

    def disconnected(self) -> None:
        """Note that the pull was lost with the connection."""
        state, mailbox = self._state, self._mailbox
        assert state is not None and mailbox is not None
        state.lose(DisconnectedError("the connection was lost during the fetch"), mailbox.loop.time())
        self._notify(state, mailbox)

    def _notify(self, state: FetchState, mailbox: Mailbox) -> None:
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
            # Neither heartbeats came nor the status that ends every pull.
            self._connection.suspect()
            # The server did not end the pull itself, so it may yet send to this inbox: do not use it again.
            self._release_inbox(reusable=False)
            self._notify(state, mailbox)
        else:
            inbox.call_at(state.deadline())


# The server ends an expired pull itself; this long after that, it has failed to.
_GRACE_S = 1.0
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 1.0


class FetchState:
    """The requested and received messages of one fetch.

    A pull that is lost (with the connection, with the consumer's leader, or in silence) is sent again for the missing
    messages, as long as the fetch has time; only at the end of its time the loss is an error, if no message has come.

    Args:
        options: the request.
        stream: the stream's name.
        consumer: the consumer's name.
        now: when the fetch began.
        no_wait_s: how long a fetch that does not wait for messages may wait for a server.
        is_patient: send a lost pull again; otherwise the fetch ends with it.

    Attributes:
        end_at: when the time of the fetch is over, except for messages that are under way by then.
        is_over: nothing more will come.
        error: why it ended early, or None.
        status: the last status that the server sent, or None.
        loss: why the last pull was lost, until the next one is sent.
        is_unavailable: the last pull was lost because no server answers for the consumer.
    """

    __slots__ = (
        "_bytes_left",
        "_consumer",
        "_heartbeat_s",
        "_is_empty",
        "_is_patient",
        "_last_heard",
        "_messages_left",
        "_options",
        "_retry_s",
        "_stream",
        "end_at",
        "error",
        "is_over",
        "is_unavailable",
        "loss",
        "status",
    )

    def __init__(
        self,
        options: FetchOptions,
        stream: str,
        consumer: str,
        now: float,
        no_wait_s: float = 5.0,
        is_patient: bool = True,
    ) -> None:
        self._options = options
        self._is_patient = is_patient
        self._stream = stream
        self._consumer = consumer
        self._messages_left = options.max_messages
        self._bytes_left = options.max_bytes
        self._heartbeat_s = options.idle_heartbeat_s
        self._last_heard = now
        self._is_empty = True
        self._retry_s = _RETRY_FIRST_S
        self.end_at = now + (options.expires_s or no_wait_s)
        self.is_over = False
        self.is_unavailable = False
        self.error: JetlakeError | None = None
        self.loss: JetlakeError | None = None
        self.status: PullStatus | None = None

    # Requests

    def next_request(self, now: float) -> PullRequest:
        """Return the pull to send now: for all messages at first, for the missing ones after a lost pull."""
        options = self._options if self.loss is None else self._options.within(self.end_at - now)
        self._last_heard = now
        self.loss = None
        self.is_unavailable = False
        self._heartbeat_s = options.idle_heartbeat_s
        return options.request(self._messages_left, self._bytes_left)

    def retry_wait_s(self) -> float:
        """Return how long to wait before the pull is sent again; doubles each time."""
        wait_s, self._retry_s = self._retry_s, min(_RETRY_MAX_S, 2 * self._retry_s)
        return wait_s

    # Answers

    def received(self, messages: int, size: int, now: float) -> None:
        """Count received messages and their bytes."""
        self._last_heard = now
        self._is_empty = False
        self._messages_left -= messages
        if self._options.max_bytes:
            self._bytes_left -= size
        # The status that ends the fetch may have come in the same read, and stays the end.
        if self._messages_left <= 0 or (self._options.max_bytes and self._bytes_left <= 0):
            self.is_over = True

    def heard(self, status: PullStatus, now: float) -> None:
        """Read a status."""
        self._last_heard = now
        outcome = classify(status)
        if outcome is PullOutcome.HEARTBEAT:
            return
        self.status = status
        is_shutdown = outcome is PullOutcome.ENDED and "shutdown" in status.description.lower()
        if is_shutdown or outcome in (PullOutcome.LOST, PullOutcome.UNAVAILABLE):
            self.is_unavailable = outcome is PullOutcome.UNAVAILABLE
            words = status.description or ("No Responders" if self.is_unavailable else "")
            self.lose(PullStatusError(status.status, words), now)
            return
        self.is_over = True
        if outcome is PullOutcome.DELETED:
            self.error = ConsumerDeletedError(self._stream, self._consumer)
        elif outcome is not PullOutcome.ENDED:
            self.error = PullStatusError(status.status, status.description)

    def lose(self, loss: JetlakeError, now: float) -> None:
        """Note that the pull is lost; the fetch is over if its time is, or if it takes what is there and has some."""
        self.loss = loss
        if now >= self.end_at or not self._is_patient or (self._options.no_wait and not self._is_empty):
            self.give_up()

    def give_up(self) -> None:
        """End the fetch; the last loss is an error if nothing came."""
        self.is_over = True
        if self._is_empty:
            self.error = self.loss

    # Time

    def deadline(self) -> float:
        """Return when to call `expire`."""
        if self._heartbeat_s:
            return min(self.end_at + _GRACE_S, self._last_heard + 2 * self._heartbeat_s)
        return self.end_at + _GRACE_S

    def expire(self, now: float) -> None:
        """End the wait at `deadline`: the server missed its heartbeats, or the time of the fetch is over."""
        silence_s = 2 * self._heartbeat_s
        if silence_s and now - self._last_heard >= silence_s and self.loss is None:
            self.lose(HeartbeatMissedError(silence_s), now)
        elif now >= self.end_at + _GRACE_S:
            self.give_up()
