"""Takes tasks from the consumers of queues, the highest priority first, and keeps the ones that a worker holds.

Always true:

- Everything here runs on the loop of the blocking client, except `held`, to which any thread adds and from which any
  thread removes.
- A pull that waits (one per consumer, for `_PULL_S` seconds at most) may outlive the call that began it. A message
  that it brings when no worker asks for one returns to the queue at once: no worker sits on a task it has no room for.
- The ack wait of a held message is extended three times per ack wait: a task may run for hours, and the tasks of a
  worker that was killed go to another one after a single ack wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from jetlake.client.messages.message import Message, give_back
from jetlake.client.pull.consumer import Consumer
from jetlake.errors import ConnectionClosedError, ConsumerDeletedError, JetlakeError, NotFoundError

_PULL_S = 1.0
_RETRY_S = 0.2

logger = logging.getLogger("jetlake.celery")


@dataclass(frozen=True, slots=True)
class Level:
    """The consumer of one priority of one queue."""

    queue: str
    priority: int
    consumer: Consumer


class QueueGoneError(JetlakeError):
    """The stream or the consumer of a queue was deleted: declare it again.

    Attributes:
        queue: the queue's name.
    """

    def __init__(self, queue: str) -> None:
        super().__init__(f"the stream or a consumer of queue {queue!r} was deleted")
        self.queue = queue


class Puller:
    """The pulls and the held messages of one connection to the broker.

    Args:
        ack_wait_s: the consumers' ack wait.

    Attributes:
        held: messages that were handed to the worker and are not settled, by delivery tag.
    """

    def __init__(self, ack_wait_s: float) -> None:
        self.held: dict[str, Message] = {}
        self._ack_wait_s = ack_wait_s
        self._pulling: set[Consumer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived: list[tuple[Level, Message]] = []
        self._failed: JetlakeError | None = None
        self._news = asyncio.Event()
        self._is_taking = False

    async def start(self) -> None:
        """Begin to extend the ack wait of held messages."""
        self._keep(self._extend())

    def wake(self) -> None:
        """End the wait of `take`: something else than a task has come. Called on the loop."""
        self._news.set()

    async def take(self, levels: Sequence[Level], limit: int, wait_s: float) -> list[tuple[Level, Message]]:
        """Return tasks of the highest level that has some; wait for the first one to come.

        Args:
            levels: where to look, the most urgent first.
            limit: the most tasks to return.
            wait_s: how long to wait; none may have come.

        Raises:
            QueueGoneError: a stream or consumer is gone.
            ConnectionClosedError: the connection is closed for good.
        """
        for level in levels:
            try:
                found = await level.consumer.fetch(limit, no_wait=True)
            except (NotFoundError, ConsumerDeletedError):
                raise QueueGoneError(level.queue) from None
            except ConnectionClosedError:
                raise
            except JetlakeError as error:
                # The connection is repaired by the client itself, and messages can be acknowledged after it.
                logger.warning("queue %s cannot be read now: %s", level.queue, error)
                await asyncio.sleep(min(_RETRY_S, wait_s))
                return []
            if found:
                return [(level, message) for message in found]
        return await self._wait(levels, limit, wait_s) if wait_s > 0 else []

    async def _wait(self, levels: Sequence[Level], limit: int, wait_s: float) -> list[tuple[Level, Message]]:
        self._is_taking = True
        self._news.clear()
        self._failed = None
        try:
            for level in levels:
                if level.consumer not in self._pulling:
                    self._pulling.add(level.consumer)
                    self._keep(self._pull(level))
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._is_taking = False
            arrived, self._arrived = self._arrived, []
            wanted = {level.consumer for level in levels}
            taken = [one for one in arrived if one[0].consumer in wanted][:limit]
            give_back([one[1] for one in arrived if one not in taken])
        if not taken and self._failed is not None:
            raise self._failed
        return taken

    async def _pull(self, level: Level) -> None:
        found: list[Message] = []
        try:
            found = await level.consumer.fetch(1, expires=_PULL_S)
        except (NotFoundError, ConsumerDeletedError):
            self._failed = QueueGoneError(level.queue)
        except ConnectionClosedError as error:
            self._failed = error
        except JetlakeError:
            pass  # The next look at the queue tells.
        finally:
            self._pulling.discard(level.consumer)
        if not self._is_taking:
            give_back(found)
            return
        self._arrived += [(level, message) for message in found]
        if self._arrived or self._failed is not None:
            self._news.set()
        elif level.consumer not in self._pulling:
            # The pull expired, and a worker still waits.
            self._pulling.add(level.consumer)
            self._keep(self._pull(level))

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            for message in list(self.held.values()):
                try:
                    message.in_progress()
                except JetlakeError:
                    pass  # Settled by another thread meanwhile, or there is no connection now.

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
