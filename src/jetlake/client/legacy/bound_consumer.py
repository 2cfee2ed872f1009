"""The consumer that a push or pull subscription is bound to, deleted at its end if it was created for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jetlake.client.api.api_caller import ApiCaller
from jetlake.errors import NotFoundError
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.replies import ConsumerDeleteReply, ConsumerInfoReply

__all__ = ["UNBOUND_WAITS_S", "BoundConsumer"]

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

    __slots__ = ("_api", "is_named", "is_owned", "name", "stream_name")

    def __init__(self, api: ApiCaller, stream_name: str, name: str, *, is_owned: bool, is_named: bool) -> None:
        self._api = api
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

    async def delete_if_owned(self, is_in_use: Callable[[], Awaitable[bool]] | None) -> None:
        """Delete a consumer that was created for the subscription, unless it is in use; later calls do nothing.

        Raises:
            ApiError: the consumer could not be deleted.
        """
        if not self.is_owned:
            return
        self.is_owned = False
        try:
            if is_in_use is None or not await is_in_use():
                await self._api.call(ConsumerDeleteReply, "CONSUMER.DELETE", self.stream_name, self.name)
        except NotFoundError:
            pass  # Deleted already.
