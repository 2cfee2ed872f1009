"""Continuous reading of a consumer that stays: what each status means for it, its pin, and how it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetlake.client.handler_pool import MessageHandler
from jetlake.client.message import Message
from jetlake.client.pull_options import ConsumeOptions
from jetlake.client.pull_status import PullOutcome, PullStatus
from jetlake.client.reading import Reading
from jetlake.errors import (
    ConnectionClosedError,
    ConsumerDeletedError,
    HeartbeatMissedError,
    JetlakeError,
    NotFoundError,
    PermissionsError,
    PullStatusError,
)
from jetlake.protocol.headers import find_value

if TYPE_CHECKING:
    from jetlake.client.consumer import Consumer

__all__ = ["Consume", "PinnedCallback", "UnpinnedCallback"]

PinnedCallback = Callable[[str], None]
"""Called with the pin when this client becomes the pinned one."""

UnpinnedCallback = Callable[[], None]
"""Called when this client is no longer the pinned one."""

_RECOVER_WAIT_S = 0.1
_RECOVER_WAIT_MAX_S = 2.0


class Consume(Reading):
    """Messages of a consumer, without end; see `Consumer.consume`."""

    __slots__ = ("_consumer", "_on_pinned", "_on_unpinned")

    def __init__(
        self,
        consumer: Consumer,
        options: ConsumeOptions,
        *,
        handler: MessageHandler | None = None,
        concurrency: int = 1,
        on_pinned: PinnedCallback | None = None,
        on_unpinned: UnpinnedCallback | None = None,
    ) -> None:
        super().__init__(consumer.connection, options, handler=handler, concurrency=concurrency)
        self._consumer = consumer
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned

    @property
    def pin_id(self) -> str:
        """The pin of this client in its priority group; empty while it is not the pinned one."""
        return self._puller.state.pin_id

    def _source(self) -> str:
        return f"{self._consumer.name!r} of {self._consumer.stream_name!r}"

    async def wind_down(self) -> None:
        if self._handlers.has_handler or self.is_emptied or not self._consumer.needs_ack:
            await self._drain()
        else:
            # The connection goes, and nobody could acknowledge what an iterator took later.
            await self._stop()

    def _begin(self) -> None:
        self._connection.subscribe(self)
        self._puller.aim(self._consumer.pull_subject, self.subject)
        self._puller.begin()

    def _accept(self, messages: list[Message]) -> list[Message]:
        self._consumer.prepare(messages)
        if self._options.group.group:
            self._read_pin(messages[-1])
        return messages

    def _heard(self, status: PullStatus, now: float) -> None:
        state = self._puller.state
        had_pin = state.pin_id
        outcome = state.heard(status, now)
        if outcome is PullOutcome.DELETED:
            self._fail(ConsumerDeletedError(self._consumer.stream_name, self._consumer.name))
        elif outcome is PullOutcome.TERMINAL:
            self._fail(PullStatusError(status.status, status.description))
        elif outcome is PullOutcome.UNAVAILABLE:
            self._begin_recovery()
        elif outcome is PullOutcome.UNPINNED and had_pin and self._on_unpinned is not None:
            self._notify(self._on_unpinned)

    def _missed(self) -> None:
        error = HeartbeatMissedError(self._puller.state.silence_s)
        if self._options.on_missed_heartbeat == "stop":
            self._fail(error)
        else:
            self._connection.signal(error)
            self._begin_recovery()

    async def _recover(self) -> None:
        """Check that the consumer is there; a server that is not ready yet is asked again."""
        wait_s = _RECOVER_WAIT_S
        give_up_at = self._loop.time() + self._options.expires_s
        while True:
            try:
                await self._consumer.info()
            except NotFoundError:
                self._fail(ConsumerDeletedError(self._consumer.stream_name, self._consumer.name))
                return
            except ConnectionClosedError:
                return
            except PermissionsError:
                break  # Who may not ask may pull all the same, and the pull will tell.
            except JetlakeError as error:
                if self._loop.time() >= give_up_at:
                    self._fail(error)
                    return
            else:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(_RECOVER_WAIT_MAX_S, wait_s * 2)
        self._puller.resume()

    def _read_pin(self, message: Message) -> None:
        state = self._puller.state
        pin = find_value(message.raw_header, b"Nats-Pin-Id") if message.raw_header else None
        if pin and pin.decode() != state.pin_id:
            state.pin_id = pin.decode()
            if self._on_pinned is not None:
                self._notify(self._on_pinned, state.pin_id)

    def _notify(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self._connection.signal(error)
