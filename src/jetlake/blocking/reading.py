"""Blocking iteration over subscriptions, continuous reads and watches, whose callbacks and handlers run in threads.

Messages come from the loop's thread in lists and are handed out one by one in any thread. One request for more
(`_Fill`) is under way at a time; all callers that find nothing wait for it, each with a timeout of its own. The loop's
thread puts the result into `_taken`, where it stays until it is taken, so an interrupted caller loses nothing. Ctrl-C
may come between any two bytecodes: a value is returned in the statement after it is removed, without a call between.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from jetlake.blocking.facade import Call, Facade, Method, View
from jetlake.blocking.loop_thread import Latch, LoopThread, Submitted, Worker
from jetlake.blocking.message import Message
from jetlake.client.connection.subscription import Subscription as AsyncSubscription
from jetlake.client.messages.callbacks import failure_of
from jetlake.client.messages.loan import Loan
from jetlake.client.messages.message import give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.ordered.ordered import OrderedConsume
from jetlake.client.ordered.watch import Watch as AsyncWatch
from jetlake.client.pull.consume import Consume, MessageReader
from jetlake.client.settings.options import duration_s
from jetlake.completion import hides
from jetlake.errors import (
    ConnectionClosedError,
    InvalidOptionError,
    JetlakeError,
    NotFoundError,
    RequestTimeoutError,
    SubscriptionClosedError,
)
from jetlake.model.encoding.durations import Seconds

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")
B = TypeVar("B", bound=list[Any])

MessageHandler = Callable[[Message], Any]
"""A plain function that takes a message; it runs in a thread of its own and may block."""

_LAST_LOOK_S = 1.0


class _Fill(Submitted[list[T]]):
    """One request for more, and the number of threads that wait for it."""

    __slots__ = ("waiting",)

    def __init__(self, work: Coroutine[Any, Any, list[T]], finished: Callable[[Any], None]) -> None:
        super().__init__(work, finished)
        self.waiting = 0


class BlockingIterator(Facade, Generic[T]):
    """The base of blocking subscriptions, continuous reads and watches."""

    def __init__(self, inner: Any, thread: LoopThread, loan: Loan | None = None) -> None:
        super().__init__(inner, thread)
        # Who lends messages learns when they are handed out; without a loan nobody wants to know.
        self._loan = loan or Loan()
        self._received = 0
        self._taken: deque[T] = deque()
        self._lock = threading.Lock()
        self._fill: _Fill[T] | None = None
        self._more = Latch()
        self._has_callback = False

    def next_batch(self) -> list[T]:
        """Return all values that are there, at least one; an empty list once the iterator ended.

        Raises:
            JetlakeError: it ended for a reason.
        """
        return self._take_into([])

    def _take_into(self, batch: B) -> B:
        """Move all values that are there, at least one, into an empty list; none once the iterator ended."""
        self._refuse_callback()
        while True:
            if self._received >= self._loan.look_at:
                self._note(self._received)
            fresh: deque[T] = deque()
            if self._taken:
                # No call between the copy and its return: neither another thread nor Ctrl-C comes between.
                batch[:] = self._taken
                self._taken = fresh
                return batch
            if not self._wait(None):
                return batch

    def next(self, timeout: Seconds | None = None) -> T:
        """Return the next value.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConnectionClosedError: the client was closed.
            JetlakeError: it ended.
        """
        self._refuse_callback()
        deadline = None if timeout is None else time.monotonic() + duration_s("timeout", timeout)
        while True:
            self._look()
            taken = self._taken
            if taken:
                # No call between the look and the return, as above.
                first = taken[0]
                del taken[0]
                return first
            if not self._wait(deadline):
                if self._thread.port.is_closed():
                    raise ConnectionClosedError("the client is closed")
                raise SubscriptionClosedError(f"{self._inner!r} ended")

    def batches(self) -> Iterator[list[T]]:
        """Yield lists of all values that are there; the fastest way to take many."""
        while batch := self.next_batch():
            yield batch

    def __iter__(self) -> Iterator[T]:
        self._refuse_callback()
        return self._each()

    def _each(self) -> Iterator[T]:
        loan = self._loan
        while True:
            # As `_look`, without a call for each message.
            if self._received - len(self._taken) >= loan.look_at - 1:
                self._look()
            taken = self._taken
            if taken:
                first = taken[0]
                del taken[0]
                yield first
            elif not self._wait(None):
                return

    def _look(self) -> None:
        """Tell the lender, if it wants to know, before the next message is handed out: counting that one."""
        handed_out = self._received - len(self._taken) + 1
        if handed_out >= self._loan.look_at:
            self._note(handed_out)

    def _note(self, handed_out: int) -> None:
        try:
            self._thread.call_soon(partial(self._inner.handed_out_up_to, handed_out))
        except ConnectionClosedError:
            pass

    def _fetch(self) -> Coroutine[Any, Any, list[T]]:
        """Return what gets the next values from the loop."""
        return cast("Coroutine[Any, Any, list[T]]", self._inner.next_batch())

    def _refuse_callback(self) -> None:
        if self._has_callback:
            raise InvalidOptionError("a callback or handler gets all messages; leave it out to take them")

    def _wait(self, deadline: float | None) -> bool:
        """Wait until there may be more; False once the iterator ended.

        Raises:
            RequestTimeoutError: the deadline has passed.
        """
        more = self._more
        fill = self._join_fill()
        if fill is None:
            return True
        try:
            is_there = more.wait(None if deadline is None else deadline - time.monotonic())
        except BaseException:
            self._leave_fill(fill)
            raise
        if not is_there:
            if self._leave_fill(fill):
                fill.done.wait(_LAST_LOOK_S)
            if not self._taken and (fill.is_cancelled or not fill.done.is_set):
                raise RequestTimeoutError(f"nothing arrived from {self._inner!r} in time")
        elif not fill.done.is_set:
            self._leave_fill(fill)  # An earlier request has brought something.
            return True
        if self._taken:
            return True
        if fill.error is not None:
            raise fill.error
        return bool(fill.value)

    def _join_fill(self) -> _Fill[T] | None:
        """Return the request for more that is under way, or a new one; None if there is something already."""
        with self._lock:
            fill = self._fill
            if fill is None:
                if self._taken:
                    return None
                fill = _Fill(self._fetch(), self._filled)
                try:
                    self._thread.port.submit(fill)
                except BaseException:
                    self._thread.port.abandon(fill)
                    raise
                self._fill = fill
                if fill.done.is_set:
                    self._fill = None  # It ended before the line above.
            fill.waiting += 1
            return fill

    def _leave_fill(self, fill: _Fill[T]) -> bool:
        """Stop waiting; the last caller to leave cancels the request, and gets True."""
        with self._lock:
            fill.waiting -= 1
            if fill.waiting:
                return False
            if self._fill is fill:
                self._fill = None
        self._thread.port.abandon(fill)
        return True

    def _filled(self, fill: Submitted[list[T]]) -> None:
        """Add the messages and wake all callers; on the loop's thread."""
        if fill.error is None:
            fresh = fill.value
            # No call between the look at the deque and its change: another thread may replace the deque meanwhile.
            self._taken.extend(fresh)
            # Behind it: a thread that sees the messages and not yet their number notes too few, never too many.
            self._received += len(fresh)
        if self._fill is fill:
            self._fill = None
        more, self._more = self._more, Latch()
        more.set()


class ContinuousIterator(BlockingIterator[T]):
    """A read that begins with `start` and ends with `stop`; usable as a context manager.

    The error that ends a read with a handler is raised by `wait`. When nobody waits, it is reported at once, and raised
    when the `with` block is left.
    """

    def __init__(self, inner: Any, thread: LoopThread, loan: Loan | None = None) -> None:
        super().__init__(inner, thread, loan)
        self._error: Exception | None = None
        self._waiting = 0
        self._is_raised = False

    def start(self) -> Self:
        """Begin; entering the context manager and iterating do it too."""

        async def start() -> None:
            self._inner.start()

        self._thread.call(start())
        return self

    @abstractmethod
    def stop(self) -> object:
        """End the read."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        try:
            self.stop()
        except ConnectionClosedError:
            pass
        if kind is None and self._error is not None and not self._is_raised:
            raise self._error

    def _failed(self, error: Exception) -> None:
        """Keep the error that ended the handlers' messages for the caller that waits, or report it."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            is_awaited = self._waiting > 0
        if not is_awaited:
            try:
                self._thread.call_soon(partial(self._inner.report, error))
            except ConnectionClosedError:
                pass

    def _wait_for(self, workers: list[Worker], timeout: Seconds | None) -> bool:
        """Wait until the handlers have ended, and raise the reason; False if time ran out."""
        with self._lock:
            self._waiting += 1
        try:
            has_ended = self._thread.join(workers, None if timeout is None else duration_s("timeout", timeout))
        finally:
            with self._lock:
                self._waiting -= 1
        if has_ended and self._error is not None:
            self._is_raised = True
            raise self._error
        return has_ended


@hides("run")
class Subscription(BlockingIterator[Message]):
    """A blocking subscription: iterate over it, or give a callback, which runs in a thread of its own."""

    _inner: AsyncSubscription

    def __init__(self, inner: AsyncSubscription, thread: LoopThread) -> None:
        super().__init__(inner, thread, inner.loan)

    def _fetch(self) -> Coroutine[Any, Any, list[Message]]:
        return cast("Coroutine[Any, Any, list[Message]]", self._inner.lend_batch())

    def next_batch(self) -> MessageBatch[Message]:
        """Return all messages that have arrived, at least one; an empty list after the end of the subscription.

        Raises:
            JetlakeError: the subscription ended for a reason.
        """
        return self._take_into(MessageBatch())

    def batches(self) -> Iterator[MessageBatch[Message]]:
        """Yield batches of all messages that are there; the fastest way to take many."""
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
        """Messages received and not read yet."""
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
        """End it now, or after `after` messages since it began; received messages can still be taken."""
        self._thread.call(self._inner.unsubscribe(after))

    def drain(self, timeout: Seconds | None = None) -> None:
        """End it without loss: what the server has sent already still comes."""
        self._thread.call(self._inner.drain(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._inner._connection.is_closed:
            with suppress(NotFoundError):  # Of a push consumer that was deleted in the block.
                self.unsubscribe()


class Reading(ContinuousIterator[Message]):
    """Messages of a consumer, without end: use it as a context manager and iterate over it, or over `batches()`.

    With a handler, `concurrency` threads call it; `wait` waits for the end.
    """

    _inner: MessageReader

    def __init__(
        self, inner: MessageReader, thread: LoopThread, handler: MessageHandler | None = None, concurrency: int = 1
    ) -> None:
        super().__init__(inner, thread, inner.loan)
        self._has_callback = handler is not None
        self._handler = inner.traced(handler)
        self._concurrency = concurrency
        if handler is not None:
            inner.will_be_emptied()
        self._workers: list[Worker] = []
        self._handled = 0
        self._is_started = False

    def _fetch(self) -> Coroutine[Any, Any, list[Message]]:
        return cast("Coroutine[Any, Any, list[Message]]", self._inner.lend_batch())

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
        """Yield batches of all messages that are there; the fastest way to take many."""
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
            self._failed(error)

    def wait(self, timeout: Seconds | None = None) -> None:
        """With a handler: wait until consumption ends; whatever ended it is raised.

        Raises:
            RequestTimeoutError: `timeout` seconds have passed.
        """
        self.start()
        if not self._wait_for(self._workers, timeout):
            raise RequestTimeoutError(f"consumption did not end within {timeout} s")

    def stop(self) -> list[Message]:
        """Stop at once; messages that were not handed out go back to the server, and are returned."""
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
        """How often the consumer of an ordered read was recreated."""
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
            raise InvalidOptionError("only ordered reads know the number of messages at their start")
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


class Watch(ContinuousIterator[T]):
    """The blocking form of a watch: use it as a context manager and iterate over it, or give a handler."""

    _inner: AsyncWatch[T]

    stop = Call(AsyncWatch.stop)

    def __init__(self, inner: AsyncWatch[T], thread: LoopThread, handler: Callable[[T], object] | None = None) -> None:
        super().__init__(inner, thread)
        self._handler = handler
        self._has_callback = handler is not None
        self._worker: Worker | None = None

    def start(self) -> Self:
        """Start; entering the context manager, `current` and iterating do it too."""
        super().start()
        with self._lock:
            if self._handler is not None and self._worker is None:
                self._worker = self._thread.start_worker(partial(self._work, self._handler), "jetlake-watch")
        return self

    def _work(self, handler: Callable[[T], object]) -> None:
        try:
            for value in self._each():
                try:
                    handler(value)
                except BaseException as error:
                    self._thread.call_soon(partial(self._inner.report, failure_of(error, value)))
        except ConnectionClosedError:
            pass
        except Exception as error:
            self._failed(error)

    def wait(self, timeout: Seconds | None = None) -> None:
        """With a handler: wait until the watch ends; whatever ended it is raised.

        Raises:
            RequestTimeoutError: `timeout` seconds have passed.
        """
        self.start()
        if not self._wait_for([] if self._worker is None else [self._worker], timeout):
            raise RequestTimeoutError(f"the watch did not end within {timeout} s")

    def current(self) -> list[T]:
        """Return the remaining initial values; may be empty.

        Raises:
            ConsumeError: the watch ended.
        """
        self._refuse_callback()
        # Values that an interrupted caller leaves are taken by the next one.
        self._thread.call(self._take_current())
        fresh: deque[T] = deque()
        values = [*self._taken]
        self._taken = fresh
        return values

    async def _take_current(self) -> None:
        self._taken.extend(await self._inner.current())


class Watched(Method, Generic[P, W]):
    """The blocking form of a method that makes a watch: its handler, if there is one, runs in a thread."""

    def __init__(self, method: Callable[Concatenate[Any, P], Any], kind: Callable[..., W]) -> None:
        super().__init__(method)
        self._kind = kind

    @overload
    def __get__(self, instance: None, owner: type) -> Watched[P, W]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, W]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(
        self, instance: Facade, *args: Any, handler: Callable[[Any], object] | None = None, **options: Any
    ) -> Any:
        return self._kind(self._method(instance._inner, *args, **options), instance._thread, handler)
