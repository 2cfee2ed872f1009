"""Blocking forms of subscriptions and of continuous reads, whose callbacks and handlers run in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self, TypeVar, cast

from jetlake.blocking.facade import View
from jetlake.blocking.message import Message
from jetlake.blocking.taking import ContinuousTaking, Taking
from jetlake.blocking.threads.loop_thread import LoopThread, Worker
from jetlake.client.connection.subscription import Subscription as AsyncSubscription
from jetlake.client.messages.failures import failure_of
from jetlake.client.messages.message import give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.ordered.ordered_consume import OrderedConsume
from jetlake.client.pull.consume import Consume
from jetlake.client.pull.message_reader import MessageReader
from jetlake.client.settings.options import duration_s
from jetlake.completion import hides
from jetlake.errors import ConnectionClosedError, InvalidOptionError, JetlakeError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds

__all__ = ["MessageHandler", "Reading", "Subscription"]

T = TypeVar("T")

MessageHandler = Callable[[Message], Any]
"""A plain function that takes a message; it runs in a thread of its own and may block."""


@hides("run")
class Subscription(Taking[Message]):
    """A blocking subscription: iterate over it, or give a callback, which runs in a thread of its own."""

    _inner: AsyncSubscription

    def next_batch(self) -> MessageBatch[Message]:
        """Return all messages that are there, at least one; an empty list once the subscription ended.

        Raises:
            JetlakeError: the subscription ended for a reason.
        """
        return self._take_into(MessageBatch())

    def batches(self) -> Iterator[MessageBatch[Message]]:
        """Yield all messages that are there, again and again; the fastest way to take many."""
        return iter(self.next_batch, [])

    def run(self, callback: MessageHandler, name: str) -> None:
        """Hand every message to the callback, in a thread of its own."""
        self._has_callback = True
        self._thread.start_worker(partial(self._work, self._inner._connection.traced(callback)), name)

    def _work(self, callback: MessageHandler) -> None:
        connection = self._inner._connection
        try:
            for message in self._each():
                try:
                    callback(message)
                except BaseException as error:
                    self._report(failure_of(error, message))
        except JetlakeError as error:
            if not connection.is_closed:
                self._report(error)

    def _report(self, error: Exception) -> None:
        try:
            self._thread.call_soon(partial(self._inner._connection.signal, error))
        except ConnectionClosedError:
            pass

    @property
    def pending_messages(self) -> int:
        """Messages received and not taken yet."""
        return self._inner.pending_messages + len(self._taken)

    pending_bytes = View[int]("Bytes of payload received and not taken off the connection yet.")
    pending_messages_max = View[int]("Most messages that may wait to be taken.")
    pending_bytes_max = View[int]("Most bytes of payload that may wait to be taken.")
    subject = View[bytes]("What is subscribed.")
    queue = View[bytes]("The queue group; empty for none.")
    delivered = View[int]("Messages received so far.")
    dropped = View[int]("Messages that were dropped because a limit was reached.")
    is_closed = View[bool]("Whether no more messages will come.")

    def unsubscribe(self, after: int = 0) -> None:
        """End it now, or after so many messages since it began; what waits can still be taken."""
        self._thread.call(self._inner.unsubscribe(after))

    def drain(self, timeout: Seconds | None = None) -> None:
        """End it without loss: what the server has sent already still comes."""
        self._thread.call(self._inner.drain(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._inner._connection.is_closed:
            self.unsubscribe()


class Reading(ContinuousTaking[Message]):
    """Messages of a consumer, without end: use it as a context manager and iterate over it, or over `batches()`.

    With a handler, `concurrency` threads call it; `wait` waits for the end.
    """

    _inner: MessageReader

    def __init__(
        self, inner: MessageReader, thread: LoopThread, handler: MessageHandler | None = None, concurrency: int = 1
    ) -> None:
        super().__init__(inner, thread)
        self._has_callback = handler is not None
        self._handler = inner.traced(handler)
        self._concurrency = concurrency
        if handler is not None:
            inner.will_be_emptied()
        self._workers: list[Worker] = []
        self._handled = 0
        self._error: Exception | None = None
        self._is_started = False

    def start(self) -> Self:
        """Subscribe and pull; entering the context manager or iterating does it too."""
        super().start()
        self._is_started = True
        with self._lock:
            while self._handler is not None and len(self._workers) < self._concurrency:
                name = f"jetlake-handler-{len(self._workers)}"
                self._workers.append(self._thread.start_worker(partial(self._work, self._handler), name))
        return self

    def __iter__(self) -> Iterator[Message]:
        return self._until_left(super().__iter__())

    def next_batch(self) -> MessageBatch[Message]:
        """Return all messages that are there, at least one; an empty list once the read was stopped or drained.

        Raises:
            ConsumeError: the read ended.
        """
        return self._take_into(MessageBatch())

    def batches(self) -> Iterator[MessageBatch[Message]]:
        """Return all messages that are there, again and again; the fastest way to take many."""
        return self._until_left(iter(self.next_batch, []))

    def _until_left(self, taken: Iterator[T]) -> Iterator[T]:
        """Without the context manager, leaving the loop stops the read."""
        own = not self._is_started
        try:
            self.start()
            yield from taken
        finally:
            if own:
                self.__exit__()

    def _work(self, handler: MessageHandler) -> None:
        try:
            # Not over `self`, which starts what is started already.
            for message in self._each():
                try:
                    handler(message)
                    with self._lock:
                        self._handled += 1
                except BaseException as error:
                    self._thread.call(self._inner.failed(message, failure_of(error, message)))
        except ConnectionClosedError:
            pass
        except Exception as error:
            self._error = self._error or error

    def wait(self, timeout: Seconds | None = None) -> None:
        """With a handler: wait until consumption ends; whatever ended it is raised.

        Raises:
            RequestTimeoutError: `timeout` seconds have passed.
        """
        self.start()
        if not self._thread.join(self._workers, None if timeout is None else duration_s("timeout", timeout)):
            raise RequestTimeoutError(f"consumption goes on after {timeout} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> list[Message]:
        """Stop at once; what was received and not handed out goes back to the server, and is returned."""
        left = cast("list[Message]", self._thread.call(self._inner.stop()))
        taken, self._taken = self._taken, deque()
        give_back(taken)
        self._thread.join(self._workers)
        return [*taken, *left]

    def unsubscribe(self) -> None:
        """Do the same as `stop`."""
        self.stop()

    def drain(self) -> None:
        """Ask for no more; everything that is under way is still handed out, then the loop that waits ends."""
        self._thread.call(self._inner.drain())
        self._thread.join(self._workers)

    @property
    def pin_id(self) -> str:
        """The pin of this client in its priority group; empty while it is not the pinned one."""
        return self._inner.pin_id if isinstance(self._inner, Consume) else ""

    @property
    def resets(self) -> int:
        """How often the consumer of an ordered read was made anew."""
        return self._inner.resets if isinstance(self._inner, OrderedConsume) else 0

    def pending_at_start(self) -> int:
        """Return how many messages there were to read when an ordered read began; waits until that is known.

        Raises:
            ConsumeError: the read ended before it was.
        """
        return self._thread.call(self._ordered().pending_at_start())

    def is_caught_up(self) -> bool:
        """Ask the server whether everything that there is to read in order has come and was taken."""
        return self._thread.call(self._ordered().is_caught_up()) and not self._taken

    def _ordered(self) -> OrderedConsume:
        if not isinstance(self._inner, OrderedConsume):
            raise InvalidOptionError("only ordered reads know what there was when they began")
        return self._inner

    @property
    def handled(self) -> int:
        """Messages that the handler has finished."""
        return self._handled

    @property
    def pending_messages(self) -> int:
        """Messages received and not handed out."""
        return self._inner.pending_messages + len(self._taken)

    is_stopped = View[bool]("Whether no more messages will come.")
