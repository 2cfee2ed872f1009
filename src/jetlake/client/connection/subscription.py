"""A core subscription: an async iterator, or a callback, with a limit on what waits and a signal when it is reached."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Literal

from msgspec import Struct

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.callbacks import CallbackRunner, MessageCallback
from jetlake.client.messages.loan import Loan
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.messages.receiver import Receiver
from jetlake.client.settings.options import duration_s, timeout_s
from jetlake.completion import hides
from jetlake.errors import (
    DisconnectedError,
    InvalidOptionError,
    RequestTimeoutError,
    SlowSubscriberError,
    SubscriptionClosedError,
)
from jetlake.model.encoding.durations import Seconds

__all__ = ["MessageCallback", "PendingLimits", "SlowPolicy", "Subscription"]

SlowPolicy = Literal["drop_new", "drop_old", "pause", "error"]
"""What happens when the limit of waiting messages is reached:

- `drop_new`: new messages are dropped until there is room,
- `drop_old`: the messages that wait longest are dropped,
- `pause`: the connection is not read until there is room (all its subscriptions wait),
- `error`: the subscription ends and its iterator raises.

Every time it begins, `on_error` gets a `SlowSubscriberError`.
"""

_POLICIES = ("drop_new", "drop_old", "pause", "error")


class PendingLimits(Struct, frozen=True, kw_only=True):
    """How much may wait in a subscription, and what happens at the limits.

    Raises:
        InvalidOptionError: a limit or policy that cannot work.
    """

    pending_messages_max: int = 512 * 1024
    """Most messages that may wait to be taken."""
    pending_bytes_max: int = 128 * 1024 * 1024
    """Most bytes of payload that may wait to be taken."""
    on_slow: SlowPolicy = "drop_new"
    """What happens when one of them is reached."""

    def __post_init__(self) -> None:
        if self.pending_messages_max < 1 or self.pending_bytes_max < 1:
            raise InvalidOptionError("pending_messages_max and pending_bytes_max must be at least 1")
        if self.on_slow not in _POLICIES:
            raise InvalidOptionError(f"on_slow must be one of {', '.join(_POLICIES)}, not {self.on_slow!r}")


@hides("handed_out_up_to", "lend_batch", "loan")
class Subscription(Receiver):
    """Messages of a subject. Iterate over it, or pass a callback; end it with `unsubscribe` or `drain`.

    Usable as an async context manager, which unsubscribes at its end.
    """

    __slots__ = (
        "_connection",
        "_is_slow",
        "_mailbox",
        "_needs_look",
        "_on_slow",
        "_runner",
        "dropped",
        "loan",
        "pending_bytes",
        "pending_bytes_max",
        "pending_messages_max",
    )

    def __init__(
        self,
        connection: Connection,
        subject: bytes,
        queue: bytes,
        *,
        callback: MessageCallback | None,
        limits: PendingLimits,
        concurrency: int = 1,
    ) -> None:
        super().__init__(subject, queue)
        self._connection = connection
        self._mailbox = Mailbox(connection.loop)
        self.loan = Loan()
        self._on_slow = limits.on_slow
        self._is_slow = False
        self._needs_look = False
        self.pending_messages_max = limits.pending_messages_max
        self.pending_bytes_max = limits.pending_bytes_max
        self.pending_bytes = 0
        self.dropped = 0
        self._runner: CallbackRunner | None = None
        if callback is not None:
            self._runner = CallbackRunner(callback, self._mailbox, self._took, connection.signal, concurrency)

    def __repr__(self) -> str:
        queue = f" queue {self.queue.decode()!r}" if self.queue else ""
        ended = " ended" if self.is_closed else ""
        return f"<{type(self).__name__} {self.subject.decode()!r}{queue} {self.pending_messages} waiting{ended}>"

    @property
    def pending_messages(self) -> int:
        """Messages received and not read yet."""
        return len(self._mailbox.messages)

    @property
    def is_closed(self) -> bool:
        """Whether no more messages will come."""
        return self._mailbox.is_ended

    # Taking messages

    async def next(self, timeout: Seconds | None = None) -> Message:
        """Return the next message.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            SubscriptionClosedError: the subscription ended.
        """
        self._refuse_callback()
        mailbox = self._mailbox
        if not mailbox.messages:
            try:
                async with asyncio.timeout(None if timeout is None else duration_s("timeout", timeout)):
                    await mailbox.filled()
            except TimeoutError:
                raise RequestTimeoutError(f"no message on {self.subject.decode()!r} within {timeout} s") from None
            if not mailbox.messages:
                raise mailbox.error or SubscriptionClosedError(f"the subscription {self.subject.decode()!r} ended")
        message = mailbox.messages.popleft()
        self._took(message)
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._refuse_callback()
        mailbox = self._mailbox
        messages = mailbox.messages
        while True:
            while messages:
                message = messages.popleft()
                self.pending_bytes -= len(message.payload)
                if self._needs_look:
                    self._handed_out()
                yield message
            if mailbox.is_ended:
                if mailbox.error is not None:
                    raise mailbox.error
                return
            await mailbox.wait()

    async def batches(self) -> AsyncIterator[MessageBatch[Message]]:
        """Yield lists of all messages that have arrived; the fastest way to read many."""
        while batch := await self.next_batch():
            yield batch

    async def next_batch(self) -> MessageBatch[Message]:
        """Return all messages that have arrived, at least one; an empty list after the end of the subscription.

        Raises:
            JetlakeError: the subscription ended for a reason.
        """
        return self._take_all() if await self._has_more() else MessageBatch()

    async def lend_batch(self) -> MessageBatch[Message]:
        """Take all messages that are there for a thread that hands them out, as `next_batch` does for the loop.

        The thread calls it when it has handed out all that it got, and in between `handed_out_up_to`.
        """
        self.handed_out_up_to(self.loan.total)
        if not await self._has_more():
            return MessageBatch()
        self.loan.add(len(self._mailbox.messages))
        return self._take_all()

    def handed_out_up_to(self, count: int) -> None:
        """Note how many of all lent messages were handed out."""
        self.loan.note(count)
        if self._needs_look:
            self._handed_out()

    async def _has_more(self) -> bool:
        """Wait for messages; False once the subscription ended without a reason to raise."""
        self._refuse_callback()
        mailbox = self._mailbox
        while not mailbox.messages:
            if mailbox.is_ended:
                if mailbox.error is not None:
                    raise mailbox.error
                return False
            await mailbox.wait()
        return True

    def _take_all(self) -> MessageBatch[Message]:
        taken = self._mailbox.take_all()
        self.pending_bytes = 0
        if self._needs_look:
            self._handed_out()
        return taken

    def _took(self, message: Message) -> None:
        self.pending_bytes -= len(message.payload)
        if self._needs_look:
            self._handed_out()

    def _refuse_callback(self) -> None:
        if self._runner is not None:
            raise InvalidOptionError("the subscription has a callback, which gets all messages")

    # Ending

    async def unsubscribe(self, after: int = 0) -> None:
        """End the subscription now, or after `after` messages since it began; waiting messages can still be taken."""
        if after < 0:
            raise InvalidOptionError(f"after must be 0 or more messages, not {after}")
        self._connection.unsubscribe(self, after)
        if not after or self.delivered >= after:
            self.ended(None)

    async def drain(self, timeout: Seconds | None = None) -> None:
        """End the subscription without loss: messages in flight still arrive, and callbacks finish.

        Raises:
            RequestTimeoutError: the server did not answer in time.
        """
        wait_s = timeout_s(timeout) or self._connection.options.drain_timeout_s
        with self._connection.endings.leaving():
            await self._drain(wait_s)

    async def _drain(self, wait_s: float) -> None:
        self._connection.stop_delivery(self)
        if self._on_slow == "pause":
            # The answer of the server is behind the messages under way, which are finite now.
            self.pending_messages_max = self.pending_bytes_max = sys.maxsize
            self._connection.resume_reading(self)
        try:
            if self._connection.is_connected:
                await self._connection.flush(wait_s)
        except DisconnectedError:
            pass  # Messages under way are lost with the connection.
        finally:
            self._connection.forget(self)
            self.ended(None)
        if self._runner is not None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._connection.endings.finished(self._runner.workers)
            except TimeoutError:
                told = f"the callback of {self.subject.decode()!r} did not finish in {wait_s:g} s"
                raise RequestTimeoutError(told) from None

    async def wind_down(self) -> None:
        if not self.is_closed:
            await self._drain(self._connection.options.drain_timeout_s)

    def abandon(self) -> None:
        """End the subscription at once, and cancel its callback if that is running."""
        self._connection.unsubscribe(self)
        self.ended(None)
        for worker in self._runner.workers if self._runner is not None else ():
            if worker is not asyncio.current_task():
                worker.cancel()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.unsubscribe()

    # What the connection calls

    def receive(self, messages: list[Message]) -> None:
        runner = self._runner
        if runner is not None and runner.is_direct:
            messages = runner.call(messages)
            if not messages:
                return
        size = 0
        for message in messages:
            size += len(message.payload)
        self.pending_bytes += size
        waiting = len(self._mailbox.messages) + len(messages)
        if waiting > self.pending_messages_max or self.pending_bytes > self.pending_bytes_max:
            self._overflow(messages)
        else:
            self._mailbox.put(messages)

    def ended(self, error: Exception | None) -> None:
        self._mailbox.end(error)

    # The limit

    def _overflow(self, messages: list[Message]) -> None:
        """Apply the policy to more messages than may wait, and signal once each time it begins."""
        begins = not self._is_slow
        self._is_slow = self._needs_look = True
        if self._on_slow == "pause":
            self._mailbox.put(messages)
            self._connection.pause_reading(self)
        elif self._on_slow == "drop_old":
            self._mailbox.put(messages)
            self._drop_old()
        else:
            self._keep_what_fits(messages)
        if begins or self._on_slow == "error":
            error = SlowSubscriberError(self.subject.decode("utf-8", "replace"), self.dropped)
            self._connection.signal(error)
            if self._on_slow == "error":
                self._connection.unsubscribe(self)
                self.ended(error)

    def _keep_what_fits(self, messages: list[Message]) -> None:
        room = self.pending_messages_max - len(self._mailbox.messages)
        for message in messages:
            self.pending_bytes -= len(message.payload)
        kept = []
        for message in messages:
            size = len(message.payload)
            if room <= 0 or self.pending_bytes + size > self.pending_bytes_max:
                break
            kept.append(message)
            room -= 1
            self.pending_bytes += size
        self.dropped += len(messages) - len(kept)
        self._mailbox.put(kept)

    def _drop_old(self) -> None:
        waiting = self._mailbox.messages
        while len(waiting) > self.pending_messages_max or (
            self.pending_bytes > self.pending_bytes_max and len(waiting) > 1
        ):
            self.pending_bytes -= len(waiting.popleft().payload)
            self.dropped += 1

    def _handed_out(self) -> None:
        """Resume a subscription that was too slow, once enough messages were taken."""
        if (
            len(self._mailbox.messages) * 2 <= self.pending_messages_max
            and self.pending_bytes * 2 <= self.pending_bytes_max
        ):
            self._is_slow = self._needs_look = False
            self._connection.resume_reading(self)
