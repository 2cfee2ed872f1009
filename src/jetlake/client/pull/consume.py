"""Continuous reading of a consumer: how messages are taken, what each status means, pins, and `max_deliver`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Self

from jetlake.client.api.api_caller import until_ready
from jetlake.client.connection.connection import Connection, HandlerT
from jetlake.client.messages.loan import Loan
from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.pull.continuous_pull import ContinuousPull, NextStep, Verdict
from jetlake.client.pull.handlers import MessageHandler
from jetlake.client.pull.options import ConsumeOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.client.settings.options import duration_s
from jetlake.completion import hides
from jetlake.errors import (
    ConnectionClosedError,
    ConsumeError,
    ConsumerDeletedError,
    HeartbeatMissedError,
    InvalidOptionError,
    JetlakeError,
    NotFoundError,
    NotJetStreamMessageError,
    PermissionsError,
    PullStatusError,
    RequestTimeoutError,
)
from jetlake.model.ack_subject import delivery_count
from jetlake.model.encoding.durations import Seconds
from jetlake.model.enums import PriorityPolicy

if TYPE_CHECKING:
    from jetlake.client.pull.consumer import Consumer

PinnedCallback = Callable[[str], None]
"""Called with the pin when this client becomes the pinned one."""

UnpinnedCallback = Callable[[], None]
"""Called when this client is no longer the pinned one."""


@hides("failed", "handed_out_up_to", "lend_batch", "loan", "report", "traced", "will_be_emptied")
class MessageReader:
    """Messages of a consumer, without end.

    Use it as an async context manager and iterate over it (or over `batches()`); with a handler, wait on `wait()`.
    Iterating without the context manager works too and stops when the loop is left. The reason why a read ends, such
    as a deleted consumer or a missed heartbeat, is raised by the waiting loop after the messages that have arrived.
    With a handler, `wait()` raises it; without a waiting caller it is passed to `on_error` at once, and raised when
    the `async with` block ends.

    Args:
        pull: fetches the messages ahead.
        source_name: the name of the consumer or stream that is read.
    """

    __slots__ = ("_is_raised", "_mailbox", "_pull", "_source_name")

    def __init__(self, pull: ContinuousPull, source_name: str) -> None:
        self._pull = pull
        self._is_raised = False
        self._source_name = source_name
        self._mailbox = pull.mailbox

    def start(self) -> Self:
        """Subscribe and pull; entering the context manager or iterating does it too."""
        self._pull.start()
        return self

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if kind is None and not self._is_raised and self._pull.handlers.has_handler and self._mailbox.error is not None:
            raise self._mailbox.error

    def __repr__(self) -> str:
        state = "ended" if self.is_stopped else "reading" if self._pull.is_started else "not started"
        return f"<{type(self).__name__} of {self._source_name} {state} {self.pending_messages} waiting>"

    @property
    def pending_messages(self) -> int:
        """Messages received and not handed out."""
        return len(self._mailbox.messages)

    @property
    def is_stopped(self) -> bool:
        """Whether no more messages will come."""
        return self._mailbox.is_ended

    @property
    def handled(self) -> int:
        """Messages that the handler has finished."""
        return self._pull.handlers.handled

    # Taking messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._refuse_handler()
        own = not self._pull.is_started
        self.start()
        pull = self._pull
        mailbox = self._mailbox
        messages = mailbox.messages
        try:
            while True:
                while messages:
                    message = messages.popleft()
                    if len(messages) <= pull.refill_at:
                        pull.handed_out(message)
                    yield message
                if mailbox.is_ended:
                    break
                await mailbox.wait()
        finally:
            if own:
                await self.stop()
        if mailbox.error is not None:
            raise mailbox.error

    async def batches(self) -> AsyncIterator[MessageBatch[Message]]:
        """Yield lists of all messages that have arrived; the fastest way to read many.

        The `ack()` of each batch acknowledges all its messages by one call.
        """
        own = not self._pull.is_started
        try:
            while batch := await self.next_batch():
                yield batch
        finally:
            if own:
                await self.stop()

    async def next_batch(self) -> MessageBatch[Message]:
        """Return all messages that have arrived, at least one; an empty list once the read is stopped or drained.

        Raises:
            ConsumeError: the read ended.
        """
        self._refuse_handler()
        self.start()
        mailbox = self._mailbox
        while not mailbox.messages:
            if mailbox.is_ended:
                if mailbox.error is not None:
                    raise mailbox.error
                return MessageBatch()
            await mailbox.wait()
        taken = mailbox.take_all()
        self._pull.handed_out_all()
        return taken

    async def lend_batch(self) -> MessageBatch[Message]:
        """Take all messages that are there for a thread that hands them out, as `next_batch` does for the loop.

        The thread calls it when it has handed out all that it got, and in between `handed_out_up_to`.
        """
        pull, mailbox = self._pull, self._mailbox
        self._refuse_handler()
        self.start()
        pull.handed_out_up_to(pull.loan.total)
        while not mailbox.messages:
            if mailbox.is_ended:
                if mailbox.error is not None:
                    raise mailbox.error
                return MessageBatch()
            await mailbox.wait()
        return pull.lend()

    def handed_out_up_to(self, count: int) -> None:
        """Note how many of all lent messages were handed out."""
        self._pull.handed_out_up_to(count)

    @property
    def loan(self) -> Loan:
        """The messages that a blocking client has taken and not handed out."""
        return self._pull.loan

    async def next(self, timeout: Seconds | None = None) -> Message:
        """Return the next message.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConsumeError: the read ended.
            SubscriptionClosedError: the read was stopped.
        """
        self._refuse_handler()
        self.start()
        messages = self._mailbox.messages
        if not messages:
            await self._wait_for_message(timeout)
        message = messages.popleft()
        if len(messages) <= self._pull.refill_at:
            self._pull.handed_out(message)
        return message

    async def _wait_for_message(self, timeout: Seconds | None) -> None:
        mailbox = self._mailbox
        try:
            async with asyncio.timeout(None if timeout is None else duration_s("timeout", timeout)):
                await mailbox.filled()
        except TimeoutError:
            raise RequestTimeoutError(f"no message within {timeout} s") from None
        if not mailbox.messages:
            raise self._pull.end_reason()

    def _refuse_handler(self) -> None:
        if self._pull.handlers.has_handler:
            raise InvalidOptionError("a handler gets all messages; leave it out to iterate")

    async def wait(self) -> None:
        """Wait until a read with a handler ends; raises the error that ended it, if any."""
        self.start()
        handlers = self._pull.handlers
        self._pull.waiting += 1
        try:
            await handlers.ended()
        finally:
            self._pull.waiting -= 1
        if self._mailbox.error is not None:
            self._is_raised = True
            raise self._mailbox.error
        if handlers.has_handler and not self._mailbox.is_ended:
            raise ConsumeError("the tasks of the handlers were cancelled")

    # Stopping

    async def stop(self) -> list[Message]:
        """Stop at once. Messages that were not handed out are given back to the server, and returned for information.

        Handlers that are at work finish their message; one that calls this itself is not waited for.
        """
        return await self._pull.stop()

    async def unsubscribe(self) -> None:
        """Stop at once; the same as `stop`."""
        await self.stop()

    async def drain(self) -> None:
        """Stop pulling; messages in flight are still handed out, then the waiting loop ends."""
        await self._pull.drain()

    # What the blocking client calls

    def traced(self, handler: HandlerT) -> HandlerT:
        """Return the handler, traced if the client is."""
        return self._pull._connection.traced(handler)

    def report(self, error: Exception) -> None:
        """Report an error that no call can raise, to the read's own `on_error` or to the client's."""
        self._pull.report(error)

    async def failed(self, message: Message, error: Exception) -> None:
        """Retry or give up a message whose handler raised."""
        await self._pull.failed.handle(message, error)

    def will_be_emptied(self) -> None:
        """Promise that all messages are taken, as by a handler, so that draining hands them out."""
        self._pull.is_emptied = True


class Consume(MessageReader):
    """Messages of a consumer, without end; see `Consumer.consume`."""

    __slots__ = ()

    def __init__(
        self,
        connection: Connection,
        consumer: Consumer,
        options: ConsumeOptions,
        *,
        handler: MessageHandler | None = None,
        concurrency: int = 1,
        on_pinned: PinnedCallback | None = None,
        on_unpinned: UnpinnedCallback | None = None,
    ) -> None:
        pull = _ConsumerPull(
            connection,
            consumer,
            options,
            handler=handler,
            concurrency=concurrency,
            on_pinned=on_pinned,
            on_unpinned=on_unpinned,
        )
        super().__init__(pull, f"{consumer.name!r} of {consumer.stream_name!r}")

    @property
    def pin_id(self) -> str:
        """The pin of this client in its priority group; empty while another client is pinned."""
        return self._pull.state.pin_id


class _ConsumerPull(ContinuousPull):
    """The continuous pull of a consumer that outlives the read.

    A message that is returned to the server unseen has used up a delivery. From a consumer with `max_deliver`, messages
    are therefore fetched ahead only while they have deliveries left; otherwise only as many as tasks wait for.
    """

    __slots__ = ("_ahead_max", "_attempts", "_consumer", "_deliveries_max", "_is_pinned", "_on_pinned", "_on_unpinned")

    def __init__(
        self,
        connection: Connection,
        consumer: Consumer,
        options: ConsumeOptions,
        *,
        handler: MessageHandler | None,
        concurrency: int,
        on_pinned: PinnedCallback | None,
        on_unpinned: UnpinnedCallback | None,
    ) -> None:
        super().__init__(connection, options, handler, concurrency)
        self._consumer = consumer
        # With a group whose policy is unknown, the first message with a pin tells.
        self._is_pinned = consumer.config.priority_policy is PriorityPolicy.PINNED_CLIENT or (
            not consumer.is_known and bool(options.group.group)
        )
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned
        self._attempts = 0
        self.pull_subject = consumer.pull_subject
        self._deliveries_max = max(0, consumer.config.max_deliver) if not options.max_bytes else 0
        # The last two deliveries are not spent on messages that are only fetched ahead.
        self._ahead_max = max(1, self._deliveries_max - 2) if self._deliveries_max > 1 else 0
        if self._deliveries_max:
            self.state.wanted = 0
            self.mailbox.on_wait = self._want

    @property
    def needs_ack(self) -> bool:
        """Whether messages wait for their acknowledgement."""
        return self._consumer.needs_ack

    def accept(self, messages: list[Message]) -> tuple[list[Message], Verdict]:
        """Take all messages; messages in their last delivery are handed out first."""
        self._consumer.prepare(messages)
        if self._is_pinned:
            self._read_pin(messages[-1])
        if self._deliveries_max:
            messages = self._put_last_deliveries_first(messages)
        return messages, NextStep.PULL

    def heard(self, status: PullStatus, now: float) -> Verdict:
        """Read a status."""
        had_pin = self.state.pin_id
        outcome = self.state.heard(status, now)
        if outcome is PullOutcome.DELETED:
            return self._deleted()
        if outcome is PullOutcome.TERMINAL:
            return PullStatusError(status.status, status.description)
        if outcome in (PullOutcome.UNAVAILABLE, PullOutcome.LOST):
            return NextStep.RECOVER
        if outcome is PullOutcome.UNPINNED and had_pin and self._on_unpinned is not None:
            self._notify(self._on_unpinned)
        return NextStep.PULL

    def missed(self) -> Verdict:
        """End the read or recover, as `on_missed_heartbeat` says."""
        error = HeartbeatMissedError(self.state.silence_s)
        if self._options.on_missed_heartbeat == "stop":
            return error
        self.report(error)
        return NextStep.RECOVER

    async def has_lost_pulls(self) -> bool | Exception:
        """Ask whether the consumer has a new leader, knows of no pull, or was unavailable for a while."""
        consumer = self._consumer
        leader = consumer.leader
        attempts = self._attempts
        verdict = await self.recover()
        if isinstance(verdict, Exception):
            return verdict
        is_interrupted = self._attempts > attempts + 1
        return is_interrupted or consumer.leader != leader or not consumer.cached_info.num_waiting

    async def recover(self) -> Verdict:
        """Check that the consumer exists; a server that is not ready is asked again until it is."""
        try:
            await until_ready(self._connection, self._ask, self.report)
        except NotFoundError:
            return self._deleted()
        except (ConnectionClosedError, PermissionsError):
            pass  # A user without permission for CONSUMER.INFO may have one for pulls, and the pull finds out.
        except JetlakeError as error:
            return error
        return NextStep.PULL

    async def _ask(self) -> None:
        self._attempts += 1
        await self._consumer.info()

    def _deleted(self) -> ConsumerDeletedError:
        return ConsumerDeletedError(self._consumer.stream_name, self._consumer.name)

    # Pins

    def _read_pin(self, message: Message) -> None:
        # The server's header is the last one: a message may be stored with the pin of a consumer that it came from.
        found = message.raw_header.rpartition(b"\r\nNats-Pin-Id:")
        pin = found[2].partition(b"\r\n")[0].strip().decode("utf-8", "replace") if found[1] else ""
        if pin and pin != self.state.pin_id:
            self.state.pin_id = pin
            if self._on_pinned is not None:
                self._notify(self._on_pinned, pin)

    def _notify(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self.report(error)

    # Consumers with max_deliver

    def _want(self, waiting: int) -> None:
        """Pull one message for each waiting task, while nothing is fetched ahead."""
        if self.state.wanted is not None:
            self.state.wanted = waiting
            self.refill()

    def _put_last_deliveries_first(self, messages: list[Message]) -> list[Message]:
        """Move messages in their last delivery to the front of the mailbox, and return the others."""
        counts = [_deliveries(message) for message in messages]
        self.state.wanted = None if max(counts) <= self._ahead_max else 0
        if max(counts) < self._deliveries_max:
            return messages
        pairs = list(zip(counts, messages, strict=True))
        last = [message for count, message in pairs if count >= self._deliveries_max]
        self.mailbox.messages.extendleft(reversed(last))
        return [message for count, message in pairs if count < self._deliveries_max]

    def gave_back(self, messages: list[Message]) -> None:
        """Report messages that were returned to the server in their last delivery."""
        if self._deliveries_max:
            used_up = sum(_deliveries(message) >= self._deliveries_max for message in messages)
            if used_up:
                consumer = f"{self._consumer.name!r} of {self._consumer.stream_name!r}"
                unseen = f"{used_up} messages of {consumer} were not handed out in their last delivery"
                self._connection.signal(ConsumeError(f"{unseen}: fetch fewer ahead (max_messages), or use next()"))


def _deliveries(message: Message) -> int:
    try:
        return delivery_count(message.raw_reply)
    except NotJetStreamMessageError:
        return 1  # Another client published to the inbox itself.
