"""The consumer that a push or pull subscription is bound to, deleted at its end if it was created for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jetlake.client.api.api_caller import ApiCaller
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.replies import ConsumerDeleteReply, ConsumerInfoReply

UNBOUND_WAITS_S = (0.0, 0.005, 0.02, 0.075, 0.15)
"""When to ask whether a consumer is bound: a server notices only a moment after the UNSUB that it is no longer."""


class BoundConsumer:
    """A consumer by its name.

    Args:
        api: asks about the consumer and deletes it.

    Attributes:
        stream_name: the stream's name.
        name: the consumer's name.
        is_owned: the consumer was created for the subscription, which deletes it at its end.
        is_named: the consumer has a name of the user's, by which others may use it too.
    """

    __slots__ = ("_api", "_deletion", "is_named", "is_owned", "name", "stream_name")

    def __init__(self, api: ApiCaller, stream_name: str, name: str, *, is_owned: bool, is_named: bool) -> None:
        self._api = api
        self._deletion: asyncio.Task[None] | None = None
        self.stream_name = stream_name
        self.name = name
        self.is_owned = is_owned
        self.is_named = is_named

    async def info(self, timeout_s: float | None = None) -> ConsumerInfo:
        """Ask the server about the consumer."""
        return await self._api.call(
            ConsumerInfoReply, "CONSUMER.INFO", self.stream_name, self.name, timeout_s=timeout_s
        )

    async def is_push_bound(self) -> bool:
        """Return whether another member of the queue group is bound to the consumer, once this one no longer is."""
        for wait_s in UNBOUND_WAITS_S:
            await asyncio.sleep(wait_s)
            if not (await self.info()).push_bound:
                return False
        return True

    async def has_waiting_pulls(self) -> bool:
        """Return whether another client pulls from the consumer."""
        return bool((await self.info()).num_waiting)

    def begin_deletion(self, is_in_use: Callable[[], Awaitable[bool]] | None) -> None:
        """Delete a consumer that was created for the subscription, unless it is in use, without waiting."""
        if self.is_owned:
            self.is_owned = False
            self._deletion = self._api.connection.loop.create_task(self._delete(is_in_use))
            # The error may have no taker: after a cancelled drain the client is closed at once.
            self._deletion.add_done_callback(lambda deletion: deletion.cancelled() or deletion.exception())

    async def delete_if_owned(self, is_in_use: Callable[[], Awaitable[bool]] | None) -> None:
        """Delete a consumer that was created for the subscription, unless it is in use; later calls do nothing.

        The deletion continues when the caller is cancelled.

        Raises:
            ApiError: the consumer could not be deleted.
        """
        self.begin_deletion(is_in_use)
        if self._deletion is not None:
            await asyncio.shield(self._deletion)
            self._deletion = None

    async def _delete(self, is_in_use: Callable[[], Awaitable[bool]] | None) -> None:
        if is_in_use is None or not await is_in_use():
            await self._api.call(ConsumerDeleteReply, "CONSUMER.DELETE", self.stream_name, self.name)
